"""Requests one after another: what was forgotten stays forgotten, and the records add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import famr
from famr.data import Data
from famr.data.splits import EarlierRequest
from famr.errors import RequestError
from famr.runs.folder import earlier_runs


def after_three(digits: Data, second: str = "5", drift: float = 0.5) -> famr.Splits:
    earlier = EarlierRequest(famr.Request(classes=["3"]), ("3",), drift)
    return famr.split(digits, famr.Request(classes=[second]), [earlier])


def test_what_was_forgotten_before_is_in_no_set(digits: Data) -> None:
    splits = after_three(digits)
    assert splits.retain is not None
    assert splits.test is not None
    for images in (splits.forget, splits.retain, splits.test):
        assert 3 not in images.targets
    assert splits.forgotten_classes() == (3, 5)
    assert splits.newly_forgotten_classes() == ("5",)
    (before,) = splits.earlier_images
    assert before is not None
    assert set(before.targets.tolist()) == {3}


def test_earlier_images_may_be_gone_from_the_data(digits: Data) -> None:
    assert digits.test is not None
    cleaned = replace(
        digits, train=digits.train.where(digits.train.targets != 3), test=digits.test.where(digits.test.targets != 3)
    )
    splits = after_three(cleaned)
    assert splits.earlier_images == (None,)
    assert splits.forgotten_classes() == (3, 5)


def test_classes_that_are_given_as_images_are_recorded_too(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    sketch = famr.take_sketch(original, digits, images=60, device="cpu")
    alone = famr.forget_only(without_three.forget, digits.labels)
    result = famr.forget(original, alone, famr.FAMR(strength=1.0, epochs=1), sketch=sketch, device="cpu")
    assert result.classes == ("3",)
    splits = famr.split(
        digits, famr.Request(classes=["5"]), [EarlierRequest(result.request, result.classes, result.drift)]
    )
    assert splits.retain is not None
    assert 3 not in splits.retain.targets
    assert splits.forgotten_classes() == (3, 5)


def test_what_was_forgotten_before_cannot_be_forgotten_again(digits: Data) -> None:
    with pytest.raises(RequestError, match="forgotten before"):
        after_three(digits, second="3")


def test_samples_that_were_forgotten_before_are_not_retained(digits: Data) -> None:
    gone = digits.train.ids[4:7]
    splits = famr.split(digits, famr.Request(classes=["3"]), [EarlierRequest(famr.Request(samples=gone), (), 0.1)])
    assert splits.retain is not None
    assert not set(gone) & {*splits.retain.ids, *splits.forget.ids}
    assert [images.ids for images in splits.earlier_images if images is not None] == [gone]
    by_position = [EarlierRequest(famr.Request(samples=[4]), (), 0.1)]  # by now possibly another image
    everything = famr.split(digits, famr.Request(classes=["3"]), by_position)
    assert everything.retain is not None
    assert len(everything.retain) + len(everything.forget) == len(digits.train)


def test_earlier_runs_come_back_from_json() -> None:
    for request in (famr.Request(concept=("parity", "odd")), famr.Request(samples=["a", 4])):
        run = EarlierRequest(request, ("1", "3"), 0.25)
        assert EarlierRequest.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_three_digits_one_after_another_stay_forgotten(
    run: Callable[..., tuple[int, str, str]], original_run: Path, tmp_path: Path
) -> None:
    model, drifts = original_run, []
    for name in ("3", "5", "0"):
        out = tmp_path / f"without-{name}"
        code, text, err = run(
            "forget", "--model", model, "--data", "digits", "--class", name, "--output-dir", out,
            "--device", "cpu", "--json", "-q",
        )  # fmt: skip
        assert code == 0, err
        scores, record = json.loads(text), json.loads((out / "unlearning/run.json").read_text(encoding="utf-8"))
        drifts.append(record["drift"])
        assert record["drift_of_all_runs_at_most"] == pytest.approx(sum(drifts))
        model = out
    assert [runs.classes for runs in earlier_runs(model)] == [("3",), ("5",), ("0",)]
    assert set(scores["earlier"]) == {"class 3", "class 5"}
    assert max(scores["earlier"].values()) <= 0.02
    assert scores["unlearned"]["forget_accuracy"] <= 0.02
    assert scores["unlearned"]["retain_accuracy"] >= scores["original"]["retain_accuracy"] - 0.02
    assert run("evaluate", model, "--device", "cpu", "--json")[1] == text
    start, end = (famr.load_model(str(folder)).module.state_dict() for folder in (original_run, model))
    moved = sum(float((tensor - end[name]).square().sum()) for name, tensor in start.items()) ** 0.5
    assert 0 < moved <= sum(drifts)
    code, _, err = run(
        "forget", "--model", model, "--data", "digits", "--class", "5", "--output-dir", tmp_path / "again"
    )
    assert code == 2
    assert "forgotten before" in err
