"""Where a command's time goes: each part by itself, whatever is inside it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.speed_tables import attention_page, end_to_end_page
from benchmarks.taken_apart import LIBRARIES, REST, Clock

from benchmarks import taken_apart
from small import QUICK, save_pictures, save_small


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that goes on only when it is told to."""
    now = [0.0]
    monkeypatch.setattr(taken_apart.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(taken_apart.time, "time", lambda: now[0])
    return now


def test_of_a_part_inside_another_only_the_inner_one_counts(at: list[float]) -> None:
    clock = Clock(begun=-3.0)

    def inner() -> None:
        at[0] += 5

    def outer() -> None:
        at[0] += 1
        clock.around("inner", inner)()
        at[0] += 1

    clock.around("outer", outer)()
    at[0] += 7
    clock.enter(REST)
    assert dict(clock.seconds) == {LIBRARIES: 3, REST: 7, "outer": 2, "inner": 5}


def test_a_generator_is_timed_while_it_works(at: list[float]) -> None:
    clock = Clock(begun=0.0)

    def three() -> Iterator[int]:
        for number in range(3):
            at[0] += 1
            yield number
        at[0] += 10

    for _ in clock.around("generator", three)():
        at[0] += 100
    clock.enter(REST)
    assert clock.seconds["generator"] == 13
    assert clock.seconds[REST] == 300


def test_a_part_that_fails_is_left(at: list[float]) -> None:
    clock = Clock(begun=0.0)

    def fails() -> None:
        at[0] += 2
        raise ValueError("as it must")

    with pytest.raises(ValueError, match="as it must"):
        clock.around("failing", fails)()
    at[0] += 1
    clock.enter(REST)
    assert clock.seconds["failing"] == 2
    assert clock.seconds[REST] == 1


def test_the_parts_of_a_command_add_up_to_it(tmp_path: Path) -> None:
    data, model = save_pictures(tmp_path / "data"), save_small(tmp_path / "model")
    begun = time.time()
    given = [sys.executable, "-m", "benchmarks.taken_apart", begun, tmp_path / "parts.json", "forget"]
    given += ["--data", f"folder:{data}", "--model", model, "--class", "cat", "--output-dir", tmp_path / "run", *QUICK]
    subprocess.run([str(word) for word in given], check=True, capture_output=True)
    whole = time.time() - begun
    parts = json.loads((tmp_path / "parts.json").read_text(encoding="utf-8"))
    assert (tmp_path / "run").is_dir()
    wanted = {LIBRARIES, "the model", "the data", "the target", "anchors", "steps", "scores", "writing"}
    assert wanted <= parts.keys()
    assert 0.5 * whole < sum(parts.values()) <= whole
    told = json.loads((tmp_path / "run/unlearning/run.json").read_text(encoding="utf-8"))
    assert parts["steps"] + parts["what nobody reads"] >= told["seconds"] * 0.5


@pytest.mark.parametrize("name", [name for names in taken_apart.PARTS.values() for name in names])
def test_a_part_is_a_function_that_there_is(name: str) -> None:
    module, _, function = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_what_another_thread_does_takes_none_of_the_time(at: list[float]) -> None:
    clock = Clock(0.0)

    def beside() -> None:
        at[0] += 5

    other = threading.Thread(target=clock.around("beside", beside))
    clock.enter("steps")
    other.start()
    other.join()
    clock.leave()
    assert "beside" not in clock.seconds
    assert clock.seconds["steps"] == 5


def test_the_page_says_what_both_loops_made_of_a_model() -> None:
    scores = dict.fromkeys(("retain_accuracy", "forget_accuracy"), 0.5) | {
        f"forget_{name}": 1.0 for name in ("cross_entropy", "entropy", "kl")
    }
    content = {
        "environment": {"hardware": "x", "torch": "2", "famr": "0"},
        "training": {"epochs": 1, "batch_size": 2},
        "data": "d",
        "model": "m",
        "cells": [
            {
                "name": "loops",
                "sample_passes": 5000,
                "steps": 80,
                "ours": {"median": 0.25},
                "plain": {"median": 1.5},
                "agreement": {
                    **{"original": scores, "ours": scores, "plain": scores, "weights_apart": 0.001},
                    "gap": {"retain_accuracy": 0.003, "forget_accuracy": 0.0},
                },
            },
            {"name": "retraining", "seconds": [10.0], "seconds_of_steps": 5.0},
            {
                "name": "default",
                "seconds": [4.0, 2.0, 3.0],
                "seconds_of_steps": 0.1,
                "parts": {"all of it": 3.5, "steps": 0.1},
                "scores": {"unlearned": scores},
            },
        ],
    }
    page = end_to_end_page("x", content)
    assert "| retraining | 1 | 10.00 | 100 | 5.00 | 100 | – | – | – | – |" in page  # nobody measured it
    content["cells"][1]["scores"] = {"retain_accuracy": 0.875, "forget_accuracy": 0.0}  # type: ignore[index]
    assert "| retraining | 1 | 10.00 | 100 | 5.00 | 100 | – | – | 87.5 | 0.0 |" in end_to_end_page("x", content)
    assert "| default | 3 | 3.00 | 30.0 | 0.10 | 2.0 | – | – | 50.0 | 50.0 |" in page
    assert "sketch" not in page
    assert "0.30 points apart." in page
    content["cells"][2]["seconds_of_all"] = 0.35  # type: ignore[index]
    content["cells"][2]["every_seconds_of_steps"] = [0.1, 0.125, 0.09]  # type: ignore[index]
    content["cells"][0]["agreement"]["ties_aside"] = {"retain_accuracy": {"share": 0.9, "gap": 0.001}}  # type: ignore[index]
    content["cells"][2]["seconds_of_sketch"] = 12.0  # type: ignore[index]
    told = end_to_end_page("x", content)
    assert "| default | 3 | 3.00 | 30.0 | 0.10 | 2.0 | 0.10, 0.12, 0.09 | 0.35 | 50.0 | 50.0 |" in told
    assert "0.30 points apart; 90 % of the retained are no ties, 0.10 points apart. It is no tie where" in told
    assert "no tie where" not in page
    assert "The sketch took 12.00 seconds, once." in told
    assert page.index("| steps | 0.10 |") < page.index("| all of it | 3.50 |")
    assert "| ours | 0.25 | 50.00 | 50.00 | 1.000 | 1.000 | 1.000 |" in page
    assert "5,000 sample passes in 80 steps" in page


def test_the_page_of_attention_says_what_a_plan_takes_and_from_when_it_pays() -> None:
    size = {"images": 10, "heads": 2, "tokens": 50}
    dear, free = {"first": 0.101}, {"first": 0.001, "later": 5e-6}
    machine = {"hardware": "x", "torch": "2", "famr": "0"}
    cells = [{**size, "planned": {**dear, "later": later}, "unplanned": free} for later in (3e-6, 6e-6)]
    page = attention_page("x", {"environment": machine, "cells": cells})
    assert "| 10 | 2 | 50 | 100 | 5 | 3 | 2.00 | 5.0e+07 |" in page  # 0.1 s at 2 ns a token
    assert "| 10 | 2 | 50 | 100 | 5 | 6 | -1.00 | never |" in page
