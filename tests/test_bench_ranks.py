"""`famr bench methods` in two processes: the results of one, each cell run once, and an end to go on from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from famr.alternatives import Delete
from famr.bench import running
from famr.bench.spreading import Sign, _last_moved, spread
from famr.errors import StorageError
from famr.ranks import ALONE
from rank_worlds import command, world

VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
COSTS = ("seconds", "seconds_of_steps", "share_of_retraining", "peak_memory")
METHODS = ["delete", "ssd", "gradient-ascent", "fine-tune"]
WORKED = "worked"


def bench(output: Path, *more: object, methods: list[str] = METHODS) -> list[str]:
    network = [word for name, value in VIT.items() for word in ("--model-arg", f"{name}={value}")]
    training = ["--epochs", 1, "--batch-size", 128, "--no-augment", "--device", "cpu"]
    start = ["--start", "timm:vit_tiny_patch16_224", "--from-scratch", *network]
    given = ["bench", "methods", "--data", "digits", "--class", 3, "--methods", ",".join(methods), "--output", output]
    return [str(word) for word in (*given, *start, *training, *more)]


def found(folder: Path) -> dict[str, Any]:
    """What results.json says, without the clock and the number of processes."""
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    content["environment"].pop("processes", None)
    timeless: dict[str, Any] = without_costs(content)
    return timeless


def without_costs(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_costs(inner) for name, inner in value.items() if name not in COSTS}
    return [without_costs(inner) for inner in value] if isinstance(value, list) else value


# What a rank does


def working(rank: int, folder: Path, happens: str, arguments: list[str]) -> None:
    """The command; each leaves word of its cells, and rank 0 begins with its own when rank 1 has one.

    In its first cell rank 1 is killed, or falls asleep; or it cannot write a reference, or all of DELETE fails.
    """
    real, save = running.Case.cell, running.Reference.save

    def cell(case: Any, name: str, method: Any) -> dict[str, Any]:
        with (folder / f"{WORKED}.{rank}").open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
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

    running.Case.cell, running.Reference.save = cell, unwritten  # type: ignore[method-assign]
    if happens == "broken":
        Delete.change = broken  # type: ignore[method-assign]
    os.environ["FAMR_TIMEOUT"] = "2" if happens == "asleep" else "20"
    command(rank, arguments)


# What comes of it


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench-ranks")


def test_torchrun_gives_the_results_of_one_process(place: Path, run: Callable[..., Any]) -> None:
    asked = {"methods": ["delete", "ssd", "retrain", "sisa", "famr"]}
    more = ["--seeds", "0,1", "--trials", 2, "--shards", 2, "--json"]
    one = run(*bench(place / "one", *more, **asked))
    assert one.code == 0, one.err
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, "-m", "--", "famr", *bench(place / "two", *more, "--processes", 2, **asked)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("0 of 10 cells are there") == 1
    first, second = json.loads(one.out), json.loads(done.stdout)
    assert (first["cells"], first["failed"]) == (second["cells"], second["failed"]) == (10, 0)
    assert found(place / "two") == found(place / "one")
    assert found(place / "one")["tuning"]
    content = json.loads((place / "two/results.json").read_text(encoding="utf-8"))
    assert content["environment"]["processes"] == 2
    names = [sorted(path.relative_to(place / name) for path in (place / name).rglob("*")) for name in ("one", "two")]
    assert names[0] == names[1]


def test_each_cell_is_run_once_and_a_failed_one_is_told(place: Path) -> None:
    log = place / "broken"
    ended = world(log, working, log, "broken", bench(place / "shared", "--trials", 1))
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[1].out == ended[1].err == ""  # only the first speaks
    shares = [(log / f"{WORKED}.{rank}").read_text(encoding="utf-8").split("\n")[:-1] for rank in range(2)]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == ["DELETE", "SSD", "fine-tune", "gradient ascent"]
    cells = {cell["method"]: cell for cell in found(place / "shared")["cells"]}
    assert cells.pop("DELETE")["error"] == {"kind": "ValueError", "what": "It is broken.", "where": None}
    assert len(cells) == 3
    assert all("unlearned" in cell for cell in cells.values())


def test_a_killed_process_ends_the_other_and_what_is_done_is_not_done_again(
    place: Path, run: Callable[..., Any]
) -> None:
    log, folder = place / "killed", place / "stopped"
    arguments = bench(folder, "--trials", 1)
    ended = world(log, working, log, "killed", arguments)
    assert [each.code for each in ended] == [5, -9], ended
    assert "Another process of this run ended" in ended[0].err
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("*/*")}
    assert {file.parent.name for file in kept} == {"originals", "references", "cells"}
    assert f"{4 - len(list(folder.glob('cells/*')))} not run yet" in (folder / "results.md").read_text(encoding="utf-8")
    assert not list(folder.rglob(".*"))
    done = run(*arguments)  # two began, one goes on
    assert done.code == 0, done.err
    assert kept.items() <= {file: file.stat().st_mtime_ns for file in folder.glob("*/*")}.items()
    assert run(*bench(place / "whole", "--trials", 1)).code == 0
    assert found(folder) == found(place / "whole")
    next(folder.glob("cells/*")).unlink()  # one began, two go on
    ended = world(log, command, arguments)
    assert [each.code for each in ended] == [0, 0], ended
    assert found(folder) == found(place / "whole")


def test_a_process_that_stands_still_is_not_waited_for_without_end(place: Path) -> None:
    log = place / "asleep"
    ended = world(log, working, log, "asleep", bench(place / "slow", "--trials", 1), stopped=1)
    assert ended[0].code == 5
    assert "has stood still for 2 seconds" in ended[0].err
    assert "where: rank 1" in ended[0].err


def test_what_no_cell_can_do_without_fails_for_all(place: Path) -> None:
    log = place / "unwritten"
    ended = world(log, working, log, "unwritten", bench(place / "full", "--trials", 1))
    assert [each.code for each in ended] == [6, 6], ended
    assert all("The disk is full." in each.err for each in ended)


def test_another_number_of_processes_or_other_settings_are_refused(place: Path) -> None:
    never = place / "never"
    ended = world(place / "log", command, bench(never, "--processes", 3))
    assert [each.code for each in ended] == [2, 2]
    assert all("3 processes were asked for, and 2 started" in each.err for each in ended)
    ended = world(place / "log", command, bench(never), bench(never, "--trials", 3))
    assert [each.code for each in ended] == [3, 3]
    assert all("do not see the same: the bench" in each.err for each in ended)
    ended = world(place / "log", command, ["bench", "speed", "--output", f"{never}.json"])
    assert [each.code for each in ended] == [2, 2]
    assert all("`famr bench speed` runs in one process" in each.err for each in ended)
    assert not list(place.glob("never*"))


def test_one_process_takes_every_piece_in_order() -> None:
    with spread(ALONE) as work:
        assert list(work.divided("any", "abc")) == ["a", "b", "c"]


def test_only_who_has_work_and_does_none_stands_still() -> None:
    before = (3.0, 0.0)
    assert _last_moved(Sign(worked=3.0), before) == before
    assert _last_moved(Sign(worked=3.0, waits=True), before)[1] > 0
    assert _last_moved(Sign(worked=3.1), before)[1] > 0
