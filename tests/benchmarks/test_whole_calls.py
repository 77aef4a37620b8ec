"""`python -m benchmarks.whole_calls`: engines with parts switched off, measurements, the result file, its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.whole_calls import editions_page, engine_by_name, made_up_data, main, new_vit, whole_calls_page

import famr
from famr.unlearn.forget import forget


@pytest.fixture(scope="module")
def model() -> famr.Classifier:
    return new_vit("tiny", 0)


@pytest.fixture(scope="module")
def splits(model: famr.Classifier) -> famr.Splits:
    return famr.split(made_up_data(model, 8, 198, 0), famr.Request(classes=["0"]))


def test_made_up_images_are_those_of_the_seed(model: famr.Classifier) -> None:
    one, same, other = (made_up_data(model, 4, 6, seed).train for seed in (0, 0, 1))
    assert one.targets.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert torch.equal(one.pixels(5, 3), same.pixels(5, 3))
    assert not torch.equal(one.pixels(5, 3), other.pixels(5, 3))


def test_engines_with_parts_switched_off_give_the_same_weights(model: famr.Classifier, splits: famr.Splits) -> None:
    method = famr.FAMR(epochs=2, strength=1.0)
    ends = []
    for name in ("reference", "all", "no-graphs", "no-prefix"):
        result = forget(model, splits, method, engine=engine_by_name(name, "cpu"))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in result.module.parameters()]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-4, atol=1e-5)


def test_parts_are_switched_off(model: famr.Classifier, splits: famr.Splits) -> None:
    late = {name for name, _ in model.module.named_parameters() if name.startswith("blocks.3.")}
    steps = []

    def step(batch: Any) -> torch.Tensor:
        steps.append(batch)
        return torch.zeros(())

    for name, shape in (("no-graphs", (17, 64)), ("no-prefix", (3, 16, 16))):
        with engine_by_name(name, "cpu").session(model, "fp32", 8) as session:
            session.train_only(late)
            for batches in (session.batches(splits.forget, 4), session.evaluation_batches(splits.forget)):
                batch = next(iter(batches(None)))
                assert batch.images.shape[1:] == shape  # activations of a cached prefix, or pixels
            session.run(step, batch)
            assert steps[-1] is batch


def test_a_dry_run_measures_once_and_makes_a_page(tmp_path: Path) -> None:
    output = tmp_path / "whole_calls-dry.json"
    options = ["--device", "cpu", "--sizes", "tiny", "--images", "8", "--retained", "99", "--threads", "1"]
    options += ["--output", str(output), "--engines", "all", "--repeats", "1", "--warm", "1"]
    main([*options, "--commit", "abc"])
    content = json.loads(output.read_text(encoding="utf-8"))
    (cell,) = content["cells"]
    assert (cell["model"], cell["engine"], cell["repeat"], cell["commit"]) == ("tiny ViT", "all", 0, "abc")
    assert cell["fresh"]["seconds"] > cell["fresh"]["seconds_of_steps"] > 0
    assert [call["drift"] for call in cell["warm"]] == [cell["fresh"]["drift"]]
    assert content["environment"]["torch"] == torch.__version__.split("+")[0]
    before = output.read_text(encoding="utf-8")
    main(options)  # nothing is missing
    assert output.read_text(encoding="utf-8") == before
    with pytest.raises(SystemExit):
        main([*options, "--seed", "1"])  # other settings
    page = whole_calls_page("whole_calls-dry", content)
    assert f"| tiny ViT | {cell['fresh']['seconds']:.2f} / {cell['warm'][0]['seconds']:.2f} |" in page


def test_a_process_that_takes_too_long_is_recorded_as_failed(tmp_path: Path) -> None:
    output = tmp_path / "late.json"
    options = ["--device", "cpu", "--sizes", "tiny", "--images", "8", "--engines", "all", "--repeats", "1"]
    main([*options, "--output", str(output), "--timeout", "0.05"])
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["cells"][0]["error"] == "not done after 0.05 s"


def test_the_page_shows_medians() -> None:
    def cell(engine: str, repeat: int, fresh: float, *warm: float) -> dict[str, Any]:
        calls = [
            {"seconds": seconds, "seconds_of_steps": 0.1, "trials": 1, "forget_accuracy": 0.0, "drift": 1.0}
            for seconds in (fresh, *warm)
        ]
        key = {"model": "ViT-Ti", "engine": engine, "repeat": repeat, "commit": "abc"}
        return {**key, "fresh": calls[0], "warm": calls[1:], "peak_memory": 2**30}

    settings = {"images": 500, "classes": 100, "retained": 1980, "epochs": 10, "seed": 0, "warm": 2}
    cells = [cell("all", repeat, 1.5 + repeat, 0.4, 0.5) for repeat in range(3)]
    cells.append({"model": "ViT-Ti", "engine": "no-graphs", "repeat": 0, "commit": "abc", "error": "no memory"})
    machine = {"hardware": "NVIDIA H200", "torch": "2", "famr": "0"}
    page = whole_calls_page("x", {"settings": settings, "environment": machine, "cells": cells})
    assert "| ViT-Ti | 2.50 / 0.45 |" in page
    assert "1.50 to 3.50 | 0.40 to 0.50 | 0.10 | 1 | 0.0 | 1.000 | 1.00" in page
    assert "Failed: ViT-Ti, without graph replay, process 1: no memory" in page


def test_editions_are_compared_by_their_first_and_by_the_median_of_their_warm_calls() -> None:
    cells = [
        {"model": "vit_tiny", "edition": "first", "fresh": 2.0, "warm": [1.0, 9.0, 1.0]},
        {"model": "vit_tiny", "edition": "second", "fresh": 3.0, "warm": [1.1, 1.1, 9.0]},
    ]
    content = {"commits": {"first": "a", "second": "b"}, "environment": {"hardware": "x", "torch": "2"}, "cells": cells}
    assert "| vit_tiny | 2.00 / 1.00 | 3.00 / 1.10 | 1.50 / 1.10 |" in editions_page("x", content)
