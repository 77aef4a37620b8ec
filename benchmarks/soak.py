"""Soak: requests one after the other in one process, on the digits, with faults at random; leaks and failures.

    python -m benchmarks.soak --output benchmarks/results/soak-digits.json

Each request is `famr forget`, `report`, `sign` with a ledger, and `verify`. More than every second one meets a fault
first, and is then run again without it. Counted: exit codes other than the fault's own, tracebacks, changed inputs,
files left behind, runs that do not verify, and weights that differ between two runs of the same request. Memory and
open files of the process are read every 20 requests.
"""

from __future__ import annotations

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
from benchmarks.cells import Results, log, parser_for, small_vit
from benchmarks.processes import Ended, locked_by_another, open_files, resident_bytes, run_in_child, run_in_process
from famr.storage.digests import check_complete, file_digest, folder_digests
from famr.storage.locks import lock_file

TRAINING = famr.Training(epochs=4, batch_size=64, learning_rate=3e-3)
METHODS = {
    "paper": ("--paper", "--epochs", "10"),
    "natural": ("--strength", "100", "--epochs", "20", "--function-images", "2", "--fisher-images", "50"),
}
IMAGES_PER_CLASS = 40
SAMPLE_EVERY = 20
"""Requests between two readings of memory and open files."""


@dataclass
class Soak:
    """The files of a soak and its counts so far.

    Attributes:
        folder: Of everything.
        draw: Random numbers.
        counts: By what is counted.
        faults: Counts of each fault.
        weights: Digest of the weights with which each different request ended first.
        seconds: Of the last request with each method.
        wrong: Violations, in words.
    """

    folder: Path
    draw: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METHODS, 1.0))
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = famr.open_data("digits")
        famr.fit(small_vit(data.labels, embed_dim=32)(0), data.train, TRAINING, device="cpu").save(
            self.folder / "original"
        )
        for index in range(len(data.train)):
            label = data.labels[int(data.train.targets[index])]
            folder = self.folder / "data" / label
            folder.mkdir(parents=True, exist_ok=True)
            if len(list(folder.iterdir())) < IMAGES_PER_CLASS:
                data.train.decode(int(data.train.rows[index])).save(folder / f"{index}.png")
        self.key = self.folder / "key"
        run_in_process(["keygen", str(self.key)])
        self.before = self.inputs()

    def inputs(self) -> dict[str, str]:
        """Digests of everything that is only read."""
        return folder_digests(self.folder / "original") | folder_digests(self.folder / "data")

    def expect(self, holds: bool, what: str) -> None:
        """Record a violation."""
        if not holds:
            self.counts["wrong"] += 1
            self.wrong.append(what)
            log(f"WRONG: {what}")

    def forget(self, output: Path, label: str, method: str, **changed: str) -> list[str]:
        """The command of a request; `changed` replaces an option or adds one."""
        options = {"model": str(self.folder / "original"), "data": f"folder:{self.folder / 'data'}", "class": label}
        words = [word for name, value in (options | changed).items() for word in (f"--{name.replace('_', '-')}", value)]
        fixed = ["--output-dir", str(output), "--device", "cpu", "--quiet", "--no-gates"]
        return ["forget", *fixed, *METHODS[method], *words]

    def request(self, number: int) -> None:
        """One request: perhaps a fault, then to the end, signed and verified."""
        output = self.folder / "runs" / f"run-{number:04d}"
        label, method = str(self.draw.randrange(10)), self.draw.choice(list(METHODS))
        resume: list[str] = []
        if self.draw.random() < 0.6:
            name = self.draw.choice(list(FAULTS))
            resume = self.fault(name, output, label, method)
        start = time.monotonic()
        done = run_in_process([*self.forget(output, label, method), *resume])
        if not resume:
            self.seconds[method] = time.monotonic() - start
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
        """Report on a finished run, sign it into the ledger, and verify its signature."""
        ledger = ["--ledger", str(self.folder / "ledger.jsonl")]
        self.add(["report", str(output)], "killed in a report", 0.5)
        self.add(["sign", str(output), "--key", str(self.key), "--without-data", *ledger], "killed in signing", 0.05)
        self.counts["verified"] += self.verifies(output, number)

    def add(self, command: list[str], name: str, longest: float) -> None:
        """A command that adds to a finished run; one in four is killed first, and the run must still be whole."""
        if self.draw.random() < 0.25:
            killed = run_in_child(command, signal.SIGKILL, self.draw.uniform(0, longest))
            seen = self.faults.setdefault(name, Counter())
            seen["injected"] += 1
            seen["too_late"] += killed.code == 0
            seen["as_expected"] += killed.code in (0, -signal.SIGKILL)
            check_complete(Path(command[1]))
        done = run_in_process(command)
        self.expect(done.code == 0, f"{' '.join(command[:2])}: {done.code}: {done.err}")

    def verifies(self, output: Path, number: int) -> bool:
        """Whether a run is as it was signed, and in the ledger."""
        ledger = ["--ledger", str(self.folder / "ledger.jsonl")]
        done = run_in_process(["verify", str(output), "--key", f"{self.key}.pub", *ledger])
        self.expect(done.code == 0, f"request {number} does not verify: {done.err}")
        return done.code == 0

    def fault(self, name: str, output: Path, label: str, method: str) -> list[str]:
        """Inject a fault; the options that the next attempt needs."""
        seen = self.faults.setdefault(name, Counter())
        codes, done = FAULTS[name](self, output, label, method)
        too_late = done.code == 0  # the run ended before the fault came
        seen["injected"] += 1
        seen["too_late"] += too_late
        seen["as_expected"] += done.code in codes
        self.expect(done.code in codes, f"{name}: {done.code}: {done.err}")
        self.expect("Traceback" not in done.err, f"{name} showed a traceback: {done.err[-500:]}")
        self.expect(output.exists() == too_late, f"{name} left something at the output path")
        shutil.rmtree(self.folder / "damaged", ignore_errors=True)
        killed = done.code == -signal.SIGKILL
        if not killed:
            self.expect(not lock_file(output).exists(), f"{name} left its lock")
        if too_late:
            return ["--overwrite"]
        return ["--resume"] if killed or done.code == STOPPED else []


STOPPED = 130
Fault = Callable[[Soak, Path, str, str], tuple[tuple[int, ...], Ended]]


def killed(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """SIGKILL at a random time."""
    done = run_in_child(soak.forget(output, label, method), signal.SIGKILL, soak.draw.uniform(0, soak.seconds[method]))
    return (-signal.SIGKILL, 0), done


def stopped(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """SIGTERM or SIGINT at a random time."""
    number = soak.draw.choice([signal.SIGTERM, signal.SIGINT])
    done = run_in_child(soak.forget(output, label, method), number, soak.draw.uniform(0.1, soak.seconds[method]))
    return (STOPPED, 0), done


def full_disk(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """No file may grow beyond some bytes, fewer than the weights take."""
    size = soak.draw.randrange(1, (soak.folder / "original/model.safetensors").stat().st_size)
    return (6,), run_in_child(soak.forget(output, label, method), limit=(resource.RLIMIT_FSIZE, size))


def claimed_by_another(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """Another process writes to the same output."""
    with locked_by_another(output):
        return (6,), run_in_process(soak.forget(output, label, method))


def corrupt_weights(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """A bit of the weights is flipped, or their end is missing."""
    shutil.copytree(soak.folder / "original", soak.folder / "damaged")
    file = soak.folder / "damaged/model.safetensors"
    content, index = bytearray(file.read_bytes()), soak.draw.randrange(file.stat().st_size)
    content[index] ^= 1 << soak.draw.randrange(8)
    file.write_bytes(content if soak.draw.random() < 0.5 else content[:index])
    return (4,), run_in_process(soak.forget(output, label, method, model=str(soak.folder / "damaged")))


def corrupt_image(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """An image that is to be forgotten ends too early."""
    shutil.copytree(soak.folder / "data", soak.folder / "damaged")
    file = soak.draw.choice(sorted((soak.folder / "damaged" / label).iterdir()))
    file.write_bytes(file.read_bytes()[: soak.draw.randrange(60)])
    return (3,), run_in_process(soak.forget(output, label, method, data=f"folder:{soak.folder / 'damaged'}"))


def bad_request(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """A request that cannot be carried out."""
    wrong = soak.draw.choice(
        [{"class": "11"}, {"sample": "0"}, {"concept": "colour=blue"}, {"device": "abacus"}, {"epochs": "x"}]
    )
    return (2,), run_in_process(soak.forget(output, label, method, **wrong))


def no_numbers(soak: Soak, output: Path, label: str, method: str) -> tuple[tuple[int, ...], Ended]:
    """A step after which weights are not finite."""
    del method
    return (5,), run_in_process(soak.forget(output, label, "paper", learning_rate="1e38"))


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


def run_soak(folder: Path, requests: int, seed: int, minutes: float) -> dict[str, Any]:
    """The counts of a whole soak; it ends early when the minutes are over."""
    soak = Soak(folder, random.Random(seed))
    start, readings = time.monotonic(), []
    done = 0
    for number in range(requests):
        if number % SAMPLE_EVERY == 0:
            readings.append(_reading(number))
            log(json.dumps({**readings[-1], **soak.counts}))
        soak.request(number)
        done += 1
        if time.monotonic() - start > 60 * minutes:
            break
    readings.append(_reading(done))
    verified = [soak.verifies(run, number) for number, run in enumerate(sorted((folder / "runs").iterdir()))]
    soak.expect(soak.inputs() == soak.before, "an input has changed")
    return {
        "requests": done,
        "finished": soak.counts["finished"],
        "verified": soak.counts["verified"],
        "verified_at_the_end": sum(verified),
        "wrong": soak.wrong,
        "different_requests": len(soak.weights),
        "faults": {name: dict(seen) for name, seen in sorted(soak.faults.items())},
        "looks": readings,
        "seconds": time.monotonic() - start,
        "seed": seed,
    }


def _reading(requests: int) -> dict[str, int]:
    gc.collect()
    return {"requests": requests, "memory": resident_bytes(), "open_files": open_files()}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="the soak ends after so long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have threads of its own
    results = Results(arguments.output, {"benchmark": "soak-digits", "data": "scikit-learn's digits, as PNG files"})
    with tempfile.TemporaryDirectory() as folder:
        results.add(run_soak(Path(folder), arguments.requests, arguments.seed, arguments.minutes))


if __name__ == "__main__":
    main()
