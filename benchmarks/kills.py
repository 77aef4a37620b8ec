"""A hundred kills: `famr forget` on the digits, killed (SIGKILL) at a random time, then resumed with `--resume`.

    python -m benchmarks.kills --output benchmarks/results/kills-digits.json

Counted: outputs that are neither absent nor whole, inputs that changed, runs that could not resume, and weights that
differ from those of an uninterrupted run. A state is saved after every epoch. A run that ends before its kill does not
count and is started again.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch

import famr
from benchmarks.cells import Results, log, parser_for, small_vit
from benchmarks.processes import run_in_child
from famr.errors import FamrError
from famr.storage.digests import check_complete, file_digest, folder_digests

COUNTS = ("kills", "with_a_state", "corrupt_outputs", "changed_inputs", "resumes", "other_weights", "too_late")
TRAINING = famr.Training(epochs=8, batch_size=64, learning_rate=3e-3)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have threads of its own
    facts = {"benchmark": "kills-digits", "data": "scikit-learn's digits", "every": "epoch"}
    results = Results(arguments.output, facts)
    with tempfile.TemporaryDirectory() as folder:
        results.add(kill_and_resume(Path(folder), arguments.kills, arguments.seed))


def kill_and_resume(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """The counts."""
    data = famr.open_data("digits")
    original = folder / "original"
    famr.fit(small_vit(data.labels)(0), data.train, TRAINING, device="cpu").save(original)
    before = folder_digests(original)
    command = ["forget", "--model", str(original), "--data", "digits", "--class", "3", "--strength", "100"]
    command += ["--epochs", "24", "--device", "cpu", "--quiet"]
    start = time.perf_counter()
    uninterrupted = folder / "uninterrupted"
    assert run_in_child([*command, "--output-dir", str(uninterrupted)]).code == 0
    seconds = time.perf_counter() - start
    weights = file_digest(uninterrupted / "model.safetensors")
    log(f"one run takes {seconds:.1f} s")
    draw = random.Random(seed)
    counts = dict.fromkeys(COUNTS, 0)
    for number in range(kills):
        output = folder / f"run-{number}"
        state = output.with_name(f"{output.name}.unfinished") / "state.json"
        run = [*command, "--output-dir", str(output)]
        while run_in_child(run, signal.SIGKILL, draw.uniform(0, seconds)).code != -signal.SIGKILL:
            counts["too_late"] += 1
            shutil.rmtree(output)
        counts["kills"] += 1
        counts["with_a_state"] += state.is_file()
        counts["corrupt_outputs"] += not absent_or_whole(output)
        again = run_in_child([*run, "--resume", *(["--overwrite"] if output.exists() else [])])
        counts["resumes"] += again.code == 0 and absent_or_whole(output) and not state.parent.exists()
        counts["other_weights"] += file_digest(output / "model.safetensors") != weights
        counts["changed_inputs"] += folder_digests(original) != before
        prefixes = (f"run-{number}", f".run-{number}")
        log(f"{number + 1}: {counts}, left: {sorted(p.name for p in folder.iterdir() if p.name.startswith(prefixes))}")
    return {**counts, "seconds_of_one_run": seconds, "seed": seed}


def absent_or_whole(output: Path) -> bool:
    """Whether a run folder does not exist, or holds everything that its seal lists."""
    if not output.exists():
        return True
    try:
        check_complete(output)
    except FamrError:
        return False
    return (output / "COMPLETE.json").is_file()


if __name__ == "__main__":
    main()
