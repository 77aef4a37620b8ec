"""Soak: requests one after the other in one process, on the digits, with faults at random; what piles up, what breaks.

    python -m benchmarks.soak --output benchmarks/results/soak-digits.json

Each request is `famr forget`, `report`, `sign` with a ledger, and `verify`. A fault comes with more than every second
one, and the request is asked again without it. Counted: exit codes other than the fault's own, tracebacks, inputs that
changed, what was left behind, runs that do not verify, and weights that differ between two runs of the same request.
Memory and open files of the process are read as it goes.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import famr
from benchmarks.cells import Results, log
from benchmarks.soaking import Ended, forked, held_by_another, in_process, memory, open_files
from famr.storage.digests import check_complete, file_digest, folder_digests
from famr.storage.locks import lock_file

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
TRAINING = famr.Training(epochs=4, batch_size=64, learning_rate=3e-3)
METHODS = {
    "paper": ("--paper", "--epochs", "10"),
    "natural": ("--strength", "100", "--epochs", "20", "--function-images", "2", "--fisher-images", "50"),
}
EACH_CLASS = 40
EVERY = 20
"""Requests between two looks at memory and open files."""


@dataclass
class Soak:
    """The places of a soak and what was counted so far."""

    place: Path
    draw: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    """The weights that each different request ended with first."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METHODS, 1.0))
    """How long a request took last, by its method."""
    wrong: list[str] = field(default_factory=list)
    """Whatever was not as it must be, in words."""

    def __post_init__(self) -> None:
        data = famr.open_data("digits")
        start = famr.new_model("timm:vit_tiny_patch16_224", data.labels, from_scratch=True, arguments=SMALL)
        famr.fit(start, data.train, TRAINING, device="cpu").save(self.place / "original")
        for position in range(len(data.train)):
            label = data.labels[int(data.train.targets[position])]
            folder = self.place / "data" / label
            folder.mkdir(parents=True, exist_ok=True)
            if len(list(folder.iterdir())) < EACH_CLASS:
                data.train.decode(int(data.train.rows[position])).save(folder / f"{position}.png")
        self.key = self.place / "key"
        in_process(["keygen", str(self.key)])
        self.before = self.inputs()

    def inputs(self) -> dict[str, str]:
        """The digests of all that is only read."""
        return folder_digests(self.place / "original") | folder_digests(self.place / "data")

    def expect(self, holds: bool, what: str) -> None:
        """Count and remember what is not as it must be."""
        if not holds:
            self.counts["wrong"] += 1
            self.wrong.append(what)
            log(f"WRONG: {what}")

    def forget(self, output: Path, label: str, method: str, **changed: str) -> list[str]:
        """The command of a request; `changed` replaces an option or adds one."""
        options = {"model": str(self.place / "original"), "data": f"folder:{self.place / 'data'}", "class": label}
        words = [word for name, value in (options | changed).items() for word in (f"--{name.replace('_', '-')}", value)]
        fixed = ["--output-dir", str(output), "--device", "cpu", "--quiet", "--no-gates"]
        return ["forget", *fixed, *METHODS[method], *words]

    def request(self, number: int) -> None:
        """One request: perhaps a fault, then to the end, signed and verified."""
        output = self.place / "runs" / f"run-{number:04d}"
        label, method = str(self.draw.randrange(10)), self.draw.choice(list(METHODS))
        resume: list[str] = []
        if self.draw.random() < 0.6:
            name = self.draw.choice(list(FAULTS))
            resume = self.fault(name, output, label, method)
        begin = time.monotonic()
        done = in_process([*self.forget(output, label, method), *resume])
        if not resume:
            self.seconds[method] = time.monotonic() - begin
        self.expect(done.code == 0, f"request {number}: {done.code}: {done.err}")
        if done.code != 0:
            return
        self.counts["finished"] += 1
        weights = file_digest(output / "model.safetensors")
        first = self.weights.setdefault(f"{label}, {method}", weights)
        self.expect(weights == first, f"request {number} ended with other weights than before")
        self.sign_and_verify(output, number)
        left = [path.name for path in output.parent.iterdir() if not path.name.startswith("run-") or "." in path.name]
        inside = [path.name for path in output.rglob(".*")]
        self.expect(not left and not inside, f"request {number} left {left + inside}")
        self.expect(self.inputs() == self.before, f"request {number} changed an input")

    def sign_and_verify(self, output: Path, number: int) -> None:
        """Describe a finished run, enter it in the ledger, and hold it against its signature."""
        book = ["--ledger", str(self.place / "ledger.jsonl")]
        self.add(["report", str(output)], "killed in a report", 0.5)
        self.add(["sign", str(output), "--key", str(self.key), "--without-data", *book], "killed in signing", 0.05)
        self.counts["verified"] += self.verifies(output, number)

    def add(self, command: list[str], name: str, longest: float) -> None:
        """A command that adds to a finished run; one time in four it is killed first, and the run must still hold."""
        if self.draw.random() < 0.25:
            killed = forked(command, signal.SIGKILL, self.draw.uniform(0, longest))
            seen = self.faults.setdefault(name, Counter())
            seen["injected"] += 1
            seen["too_late"] += killed.code == 0
            seen["as_expected"] += killed.code in (0, -signal.SIGKILL)
            check_complete(Path(command[1]))
        done = in_process(command)
        self.expect(done.code == 0, f"{' '.join(command[:2])}: {done.code}: {done.err}")

    def verifies(self, output: Path, number: int) -> bool:
        """Whether a run is what was signed, and is in the ledger."""
        book = ["--ledger", str(self.place / "ledger.jsonl")]
        done = in_process(["verify", str(output), "--key", f"{self.key}.pub", *book])
        self.expect(done.code == 0, f"request {number} does not verify: {done.err}")
        return done.code == 0

    def fault(self, name: str, output: Path, label: str, method: str) -> list[str]:
        """Let something go wrong; what the next try has to say."""
        seen = self.faults.setdefault(name, Counter())
        codes, done = FAULTS[name](self, output, label, method)
        over = done.code == 0  # before the fault came
        seen["injected"] += 1
        seen["too_late"] += over
        seen["as_expected"] += done.code in codes
        self.expect(done.code in codes, f"{name}: {done.code}: {done.err}")
        self.expect("Traceback" not in done.err, f"{name} showed a traceback")
        self.expect(output.exists() == over, f"{name} left something at the output path")
        shutil.rmtree(self.place / "spoilt", ignore_errors=True)
        killed = done.code == -signal.SIGKILL
        if not killed:
            self.expect(not lock_file(output).exists(), f"{name} left its lock")
        if over:
            return ["--overwrite"]
        return ["--resume"] if killed or done.code == STOPPED else []


STOPPED = 130
Fault = Callable[[Soak, Path, str, str], tuple[tuple[int, ...], Ended]]


def killed(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """SIGKILL at a random time."""
    done = forked(soak.forget(output, label, method), signal.SIGKILL, soak.draw.uniform(0, soak.seconds[method]))
    return (-signal.SIGKILL, 0), done


def stopped(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """SIGTERM or SIGINT at a random time."""
    number = soak.draw.choice([signal.SIGTERM, signal.SIGINT])
    done = forked(soak.forget(output, label, method), number, soak.draw.uniform(0.1, soak.seconds[method]))
    return (STOPPED, 0), done


def full_disk(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """No file may grow beyond some bytes, fewer than the weights take."""
    size = soak.draw.randrange(1, (soak.place / "original/model.safetensors").stat().st_size)
    return (6,), forked(soak.forget(output, label, method), limit=(resource.RLIMIT_FSIZE, size))


def claimed_by_another(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """Another process writes to the same place."""
    with held_by_another(output):
        return (6,), in_process(soak.forget(output, label, method))


def corrupt_weights(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """A byte of the model is another, or its end is missing."""
    shutil.copytree(soak.place / "original", soak.place / "spoilt")
    file = soak.place / "spoilt/model.safetensors"
    content, place = bytearray(file.read_bytes()), soak.draw.randrange(file.stat().st_size)
    content[place] ^= 1 << soak.draw.randrange(8)
    file.write_bytes(content if soak.draw.random() < 0.5 else content[:place])
    return (4,), in_process(soak.forget(output, label, method, model=str(soak.place / "spoilt")))


def corrupt_image(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """An image that is to be forgotten ends too early."""
    shutil.copytree(soak.place / "data", soak.place / "spoilt")
    file = soak.draw.choice(sorted((soak.place / "spoilt" / label).iterdir()))
    file.write_bytes(file.read_bytes()[: soak.draw.randrange(60)])
    return (3,), in_process(soak.forget(output, label, method, data=f"folder:{soak.place / 'spoilt'}"))


def bad_request(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """Something that cannot be asked."""
    wrong = soak.draw.choice(
        [{"class": "11"}, {"sample": "0"}, {"concept": "colour=blue"}, {"device": "abacus"}, {"epochs": "x"}]
    )
    return (2,), in_process(soak.forget(output, label, method, **wrong))


def no_numbers(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """A step that leads out of all numbers."""
    del method
    return (5,), in_process(soak.forget(output, label, "paper", learning_rate="1e38"))


FAULTS: dict[str, Fault] = {
    each.__name__.replace("_", " "): each
    for each in (
        killed,
        stopped,
        full_disk,
        claimed_by_another,
        corrupt_weights,
        corrupt_image,
        bad_request,
        no_numbers,
    )
}


def soaked(place: Path, requests: int, seed: int, minutes: float) -> dict[str, Any]:
    """The counts of a whole soak; it ends early where the minutes are over, and says how far it came."""
    soak = Soak(place, random.Random(seed))
    begin, looks = time.monotonic(), []
    done = 0
    for number in range(requests):
        if number % EVERY == 0:
            gc.collect()
            looks.append({"requests": number, "memory": memory(), "open_files": open_files()})
            log(json.dumps({**looks[-1], **soak.counts}))
        soak.request(number)
        done += 1
        if time.monotonic() - begin > 60 * minutes:
            break
    gc.collect()
    looks.append({"requests": done, "memory": memory(), "open_files": open_files()})
    whole = [soak.verifies(run, number) for number, run in enumerate(sorted((place / "runs").iterdir()))]
    soak.expect(soak.inputs() == soak.before, "an input has changed")
    return {
        "requests": done,
        "finished": soak.counts["finished"],
        "verified": soak.counts["verified"],
        "verified_at_the_end": sum(whole),
        "wrong": soak.wrong,
        "different_requests": len(soak.weights),
        "faults": {name: dict(seen) for name, seen in sorted(soak.faults.items())},
        "looks": looks,
        "seconds": time.monotonic() - begin,
        "seed": seed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="the soak ends after so long, however far it came")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have threads of its own
    results = Results(arguments.output, {"benchmark": "soak-digits", "data": "scikit-learn's digits, as PNG files"})
    with tempfile.TemporaryDirectory() as folder:
        results.add(soaked(Path(folder), arguments.requests, arguments.seed, arguments.minutes))


if __name__ == "__main__":
    main()
