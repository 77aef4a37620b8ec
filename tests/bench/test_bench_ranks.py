"""`famr bench methods` in two processes: the results of one process, each cell run once, resumed after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from famr.baselines import Delete
from famr.bench import running
from famr.bench.spreading import RankState, divide_work, last_progress
from famr.engine.distributed import ALONE
from famr.errors import StorageError
from rank_worlds import by_itself, command, world

VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
COSTS = ("seconds", "seconds_of_steps", "share_of_retraining", "peak_memory", "preparation", "step")
METHODS = "delete,ssd,retrain,sisa"
CELLS = 8
"""Four methods, one class, two seeds."""
WORKED = "worked"


def bench(output: Path, *more: object) -> list[str]:
    network = [word for name, value in VIT.items() for word in ("--model-arg", f"{name}={value}")]
    training = ["--epochs", 1, "--batch-size", 128, "--no-augment", "--device", "cpu"]
    sizes = ["--seeds", "0,1", "--trials", 2, "--shards", 2, "--seconds", 600]  # which cuts nothing
    start = ["--start", "timm:vit_tiny_patch16_224", "--from-scratch", *network]
    given = ["bench", "methods", "--data", "digits", "--class", 3, "--methods", METHODS, "--output", output]
    return [str(word) for word in (*given, *start, *training, *sizes, *more)]


def results_of(folder: Path) -> dict[str, Any]:
    """results.json without times and the number of processes."""
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    content["environment"].pop("processes", None)
    timeless: dict[str, Any] = without_costs(content)
    return timeless


def without_costs(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_costs(inner) for name, inner in value.items() if name not in COSTS}
    return [without_costs(inner) for inner in value] if isinstance(value, list) else value


# A rank


def working(rank: int, folder: Path, happens: str, arguments: list[str]) -> None:
    """The command; each rank logs the cells that it scores, and rank 0 begins when rank 1 has one.

    In its first cell rank 1 is killed or sleeps; or no reference can be written, or every cell of DELETE fails.
    """
    real, save = running.Case.cell, running.BenchReference.save

    def cell(case: Any, name: str, method: Any) -> dict[str, Any]:
        if case.task.label != "class 3":
            return real(case, name, method)
        with (folder / f"{WORKED}.{rank}").open("a", encoding="utf-8") as file:
            file.write(f"{name}, {case.seed}\n")
        while not (folder / f"{WORKED}.1").exists():
            time.sleep(0.02)
        if rank == 1 and happens == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and happens == "asleep":
            time.sleep(60)
        return real(case, name, method)

    def unwritten(reference: Any, file: Path, facts: Any) -> None:
        if happens == "unwritten":
            raise StorageError("The disk is full.", where="references", fix="Free space.")
        save(reference, file, facts)

    def broken(_method: Any, _work: Any) -> None:
        raise ValueError("It is broken.")

    running.Case.cell, running.BenchReference.save = cell, unwritten  # type: ignore[method-assign]
    if happens == "broken":
        Delete.change = broken  # type: ignore[method-assign]
    os.environ["FAMR_TIMEOUT"] = "2" if happens == "asleep" else "20"
    command(rank, arguments)


# Results


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench-ranks")


@pytest.fixture(scope="module")
def one(root: Path) -> Path:
    """The folder of one process."""
    done = by_itself(root, bench(root / "one", "--json"))
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["cells"], report["failed"]) == (CELLS, 0)
    assert results_of(root / "one")["tuning"]
    return root / "one"


def test_torchrun_gives_the_results_of_one_process(root: Path, one: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "--"]
    words = [*launcher, "famr", *bench(root / "two", "--processes", 2, "--json")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"0 of {CELLS} cells are there") == 1
    report = json.loads(done.stdout)
    assert (report["cells"], report["failed"]) == (CELLS, 0)
    assert results_of(root / "two") == results_of(one)
    content = json.loads((root / "two/results.json").read_text(encoding="utf-8"))
    assert content["environment"]["processes"] == 2
    assert files(root / "two") == files(one)


def files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def test_each_cell_is_run_once_and_a_failed_one_is_reported(root: Path, one: Path) -> None:
    log = root / "broken"
    ended = world(log, working, log, "broken", bench(root / "shared"))
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[1].out == ended[1].err == ""  # only the first prints
    shares = [(log / f"{WORKED}.{rank}").read_text(encoding="utf-8").splitlines() for rank in range(2)]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == [f"{name}, {seed}" for name in ("DELETE", "SISA", "SSD") for seed in (0, 1)]
    for cell, expected in zip(results_of(root / "shared")["cells"], results_of(one)["cells"], strict=True):
        if cell["method"] == "DELETE":
            assert cell["error"] == {"kind": "ValueError", "what": "It is broken.", "where": None}
        else:
            assert cell == expected


def test_a_killed_process_ends_the_other_and_any_number_of_processes_resumes(root: Path, one: Path) -> None:
    log, folder = root / "killed", root / "stopped"
    ended = world(log, working, log, "killed", bench(folder))
    assert [each.code for each in ended] == [5, -9], ended
    assert "Another process of this run ended" in ended[0].err
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("*/*")}
    assert {file.parent.name for file in kept} == {"originals", "references", "tuning", "limits", "cells"}
    left = CELLS - len(list(folder.glob("cells/*")))
    assert f"{left} not run yet" in (folder / "results.md").read_text(encoding="utf-8")
    assert not list(folder.rglob(".*"))
    done = by_itself(log, bench(folder))  # two began, one resumes
    assert done.code == 0, done.err
    assert f"{left} to run" in done.err
    assert kept.items() <= {file: file.stat().st_mtime_ns for file in folder.glob("*/*")}.items()
    assert results_of(folder) == results_of(one)
    next(folder.glob("cells/*")).unlink()  # one began, two resume
    ended = world(log, command, bench(folder))
    assert [each.code for each in ended] == [0, 0], ended
    assert "1 to run" in ended[0].err
    assert results_of(folder) == results_of(one)
    assert files(folder) == files(one)


def test_a_process_without_progress_ends_the_run_after_the_timeout(root: Path) -> None:
    log = root / "asleep"
    ended = world(log, working, log, "asleep", bench(root / "slow"), stopped=1)
    assert ended[0].code == 5
    assert "made no progress for 2 seconds" in ended[0].err
    assert "where: rank 1" in ended[0].err


def test_an_error_that_concerns_all_cells_ends_all_processes(root: Path) -> None:
    log = root / "unwritten"
    ended = world(log, working, log, "unwritten", bench(root / "full"))
    assert [each.code for each in ended] == [6, 6], ended
    assert all("The disk is full." in each.err for each in ended)


def test_another_number_of_processes_or_other_settings_are_refused(root: Path) -> None:
    never = root / "never"
    ended = world(root / "log", command, bench(never, "--processes", 3))
    assert [each.code for each in ended] == [2, 2]
    assert all("3 processes were asked for, and 2 started" in each.err for each in ended)
    ended = world(root / "log", command, bench(never), bench(never, "--trials", 3))
    assert [each.code for each in ended] == [3, 3]
    assert all("do not see the same: the bench" in each.err for each in ended)
    assert not list(root.glob("never*"))


def test_one_process_takes_every_piece_in_order() -> None:
    with divide_work(ALONE) as work:
        assert list(work.divided("abc")) == ["a", "b", "c"]


def test_a_rank_stalls_only_if_it_has_work_and_uses_no_cpu() -> None:
    before = (3.0, 0.0)
    assert last_progress(RankState(cpu_seconds=3.0), before) == before
    assert last_progress(RankState(cpu_seconds=3.0, waits=True), before)[1] > 0
    assert last_progress(RankState(cpu_seconds=3.1), before)[1] > 0
