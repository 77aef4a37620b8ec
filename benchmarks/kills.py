"""A hundred kills: `famr forget` on the digits, killed (SIGKILL) at a random time, then gone on with by `--resume`.

    python -m benchmarks.kills --output benchmarks/results/kills-digits.json

Counted: outputs that are neither absent nor whole, inputs that changed, runs that could not go on, and weights that
differ from those of a run nobody killed. A state is kept after every epoch, so that there is something to go on from.
A run that was over before its kill is no kill: it is begun again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

import famr
from benchmarks.cells import Results, log
from famr.cli.main import main as famr_command
from famr.errors import FamrError
from famr.runs.resume import ResumeState
from famr.storage.digests import check_complete, file_digest, folder_digests

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2}
SEEN = ("kills", "with_a_state", "corrupt_outputs", "changed_inputs", "resumes", "other_weights")
TRAINING = famr.Training(epochs=8, batch_size=64, learning_rate=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have threads of its own
    results = Results(
        arguments.output, {"benchmark": "kills-digits", "data": "scikit-learn's digits", "every": "epoch"}
    )
    with tempfile.TemporaryDirectory() as folder:
        results.add(killed(Path(folder), arguments.kills, arguments.seed))


def killed(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """The counts."""
    data = famr.open_data("digits")
    start = famr.new_model("timm:vit_tiny_patch16_224", data.labels, from_scratch=True, arguments=SMALL)
    original = folder / "original"
    famr.fit(start, data.train, TRAINING, device="cpu").save(original)
    before = folder_digests(original)
    command = ["forget", "--model", str(original), "--data", "digits", "--class", "3", "--strength", "100"]
    command += ["--epochs", "24", "--device", "cpu", "--quiet"]
    begin = time.perf_counter()
    whole = folder / "whole"
    assert finish([*command, "--output-dir", str(whole)]) == 0
    seconds = time.perf_counter() - begin
    weights = file_digest(whole / "model.safetensors")
    log(f"one run takes {seconds:.1f} s")
    draw = random.Random(seed)
    counts = dict.fromkeys([*SEEN, "too_late"], 0)
    for turn in range(kills):
        output = folder / f"run-{turn}"
        state = output.with_name(f"{output.name}.unfinished") / "state.json"
        while kill_after(draw.uniform(0, seconds), [*command, "--output-dir", str(output)]):
            counts["too_late"] += 1
            shutil.rmtree(output)
        counts["kills"] += 1
        counts["with_a_state"] += state.is_file()
        counts["corrupt_outputs"] += not absent_or_whole(output)
        again = [*command, "--output-dir", str(output), "--resume", *(["--overwrite"] if output.exists() else [])]
        counts["resumes"] += finish(again) == 0 and absent_or_whole(output) and not state.parent.exists()
        counts["other_weights"] += file_digest(output / "model.safetensors") != weights
        counts["changed_inputs"] += folder_digests(original) != before
        litter = sorted(path.name for path in folder.iterdir() if path.name.startswith((f"run-{turn}", f".run-{turn}")))
        log(f"{turn + 1}: {counts}, left: {litter}")
    return {**counts, "seconds_of_one_run": seconds, "seed": seed}


def finish(command: list[str]) -> int:
    """Run a command in a child to its end; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(_child(command), 0)[1])


def kill_after(seconds: float, command: list[str]) -> bool:
    """Run a command and kill it; whether it was over before."""
    child = _child(command)
    time.sleep(seconds)
    over = os.waitpid(child, os.WNOHANG)[0] != 0
    if not over:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return over


def _child(command: list[str]) -> int:
    """A process that runs `famr`, without the seconds that importing it takes."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        ResumeState.due = lambda _self: True  # type: ignore[method-assign,assignment]
        sys.argv = ["famr", *command]
        famr_command()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        os._exit(code)


def absent_or_whole(output: Path) -> bool:
    """Whether a run folder is not there at all, or has everything that it says it has."""
    if not output.exists():
        return True
    try:
        check_complete(output)
    except FamrError:
        return False
    return (output / "COMPLETE.json").is_file()


if __name__ == "__main__":
    main()
