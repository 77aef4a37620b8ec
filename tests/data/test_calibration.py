"""No image both calibrates a run and scores it: one split by a hash of ids, the same everywhere, and on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

import famr
from conftest import Outcome, alg1
from famr.cli.opening import open_run
from famr.cli.options import MovedOptions
from famr.data import Data
from famr.data.calibration import (
    RULE,
    calibration_may_be_scored,
    calibration_split_or_none_seen,
    is_calibration,
    rule_of,
    scored_splits,
    seen_splits,
)
from famr.errors import CheckpointError, DataError
from small import QUICK, save_pictures, save_small


def ids_of(images: famr.data.Images | None) -> list[str]:
    return [] if images is None else list(images.ids)


def test_the_two_halves_are_disjoint_and_cover_everything(without_three: famr.Splits) -> None:
    calibration, scored = famr.calibration_split(without_three)
    both = ids_of(calibration.test) + ids_of(scored.test)
    assert sorted(both) == sorted(ids_of(without_three.test))
    assert len(set(both)) == len(both)
    assert calibration.forget_test is None
    assert ids_of(scored.forget_test) == ids_of(without_three.forget_test)
    for half in (calibration, scored):
        assert (half.forget, half.retain, half.request) == (
            without_three.forget,
            without_three.retain,
            without_three.request,
        )


def test_it_is_a_quarter_by_the_hash_of_the_id_alone(without_three: famr.Splits) -> None:
    test = without_three.test
    assert test is not None
    expected = {id_ for id_ in test.ids if int(sha256(id_.encode()).hexdigest()[:16], 16) % 4 == 0}
    assert set(ids_of(famr.calibration_split(without_three).for_forgetting.test)) == expected
    turned = replace(without_three, test=test.take(torch.randperm(len(test))))
    assert set(ids_of(famr.calibration_split(turned).for_forgetting.test)) == expected
    share = sum(is_calibration(f"test/{index}") for index in range(10_000)) / 10_000
    assert share == pytest.approx(0.25, abs=0.02)


def test_another_request_of_the_same_data_has_the_same_calibration_images(digits: Data) -> None:
    seen = [
        set(ids_of(famr.calibration_split(famr.split(digits, famr.Request(classes=[name]))).for_scoring.test))
        for name in ("3", "5")
    ]
    calibration = famr.calibration_split(famr.split(digits, famr.Request(samples=[0]))).for_forgetting
    assert not set(ids_of(calibration.test)) & (seen[0] | seen[1])


@pytest.mark.parametrize("count", [1, 40, 79])
def test_too_few_held_out_images_are_a_clear_error(without_three: famr.Splits, count: int) -> None:
    assert without_three.test is not None
    few = replace(without_three, test=without_three.test.take(torch.arange(count)))
    with pytest.raises(DataError, match=rf"{count} held-out images are too few .* each must be at least 20"):
        famr.calibration_split(few)
    seen, scored = calibration_split_or_none_seen(few)
    assert (seen.test, seen.forget_test) == (None, None)
    assert scored is few


def test_without_held_out_images_there_is_nothing_to_divide(without_three: famr.Splits) -> None:
    none = replace(without_three, test=None)
    seen, scored = famr.calibration_split(none)
    assert scored is none
    assert seen.forget_test is None


def test_a_run_records_the_rule_only_where_it_saw_calibration_images_alone(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    calibration, scored = famr.calibration_split(without_three)
    method = alg1(epochs=1)

    def recorded(splits: famr.Splits) -> dict[str, Any]:
        return famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(gates=False)).to_json()

    kept = recorded(calibration)
    assert kept["calibration"] == RULE == "sha256-id-quarter"
    assert ids_of(scored_splits(kept, without_three).test) == ids_of(scored.test)
    assert ids_of(seen_splits(kept, without_three).test) == ids_of(calibration.test)
    assert not calibration_may_be_scored(kept)
    whole = recorded(without_three)
    assert whole["calibration"] is None
    assert calibration_may_be_scored(whole)
    assert scored_splits(whole, without_three) is without_three
    blind = recorded(replace(without_three, test=None))
    assert blind["calibration"] == "none"
    assert not calibration_may_be_scored(blind)
    assert scored_splits(blind, without_three) is without_three
    assert seen_splits(blind, without_three).test is None
    assert rule_of(scored.test) is None


def test_runs_of_the_first_edition_are_scored_as_before_and_say_so(without_three: famr.Splits) -> None:
    file = Path(__file__).parents[1] / "fixtures/first_edition/class/unlearning/run.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    assert scored_splits(record, without_three) is without_three
    assert seen_splits(record, without_three) is without_three
    assert calibration_may_be_scored(record)


def test_an_unknown_rule_is_an_error(without_three: famr.Splits) -> None:
    with pytest.raises(CheckpointError, match="a rule for its calibration images that this famr does not know"):
        scored_splits({"calibration": "every third"}, without_three)


def test_the_command_line_scores_no_image_that_its_run_has_seen(
    original_run: Path, tmp_path: Path, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    import famr.cli.audit
    import famr.cli.certify
    import famr.cli.evaluate
    import famr.cli.forget
    import famr.cli.report

    seen: dict[str, famr.Splits] = {}
    scored: dict[str, famr.Splits] = {}

    def watch(module: Any, name: str, into: dict[str, famr.Splits], key: str) -> None:
        function = getattr(module, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            into[key] = next(each for each in arguments if isinstance(each, famr.Splits))
            if "scored" in options:
                scored[key] = options["scored"]
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, watched)

    watch(famr.cli.forget, "forget", seen, "forget")
    watch(famr.cli.forget, "compare", scored, "forget")
    watch(famr.cli.evaluate, "compare", scored, "evaluate")
    watch(famr.cli.audit, "audit", scored, "audit")
    watch(famr.cli.report, "measure", scored, "report")
    watch(famr.cli.certify, "certify", seen, "certify")
    folder, here = tmp_path / "no-3", ("--device", "cpu")
    asked = ("--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder)
    assert run("forget", *asked, *QUICK).code == 0
    for command in (
        ("evaluate", folder),
        ("audit", folder, "--quick"),
        ("report", folder),
        ("certify", folder, "--lanczos-steps", 2, "--retained-images", 20),
    ):
        done = run(*command, *here)
        assert done.code in (0, 7), done.err
    assert set(scored) == {"forget", "evaluate", "audit", "report", "certify"}
    assert set(seen) == {"forget", "certify"}
    opened = open_run(folder, MovedOptions())
    assert opened.record["calibration"] == RULE
    everything = set(ids_of(famr.split(famr.open_data("digits"), opened.request).test))
    for given in seen.values():
        assert given.forget_test is None
        for measured in scored.values():
            assert not set(ids_of(given.test)) & set(ids_of(measured.test))
            assert set(ids_of(given.test)) | set(ids_of(measured.test)) == everything
            assert measured.forget_test is not None


def test_with_too_few_held_out_images_a_run_sees_none_and_all_are_scored(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    data = save_pictures(tmp_path / "data")
    model, folder = save_small(tmp_path / "model"), tmp_path / "no-cat"
    done = run("forget", "--model", model, "--data", f"folder:{data}", "--class", "cat", *QUICK, "--output-dir", folder)
    assert done.code == 0, done.err
    assert "held-out images are too few to set some aside for calibration; the run sees none of them" in done.err
    opened = open_run(folder, MovedOptions())
    assert opened.record["calibration"] == "none"
    assert opened.seen.test is None
    assert len(ids_of(opened.splits.test)) == 2


def test_a_sketch_from_the_command_line_is_calibrated_on_calibration_images(
    original_run: Path, digits: Data, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    told = run("sketch", original_run, "--data", "digits", "--images", 20, "-o", tmp_path / "sketch", "--device", "cpu")
    assert told.code == 0, told.err
    held_out = famr.Sketch.load(tmp_path / "sketch").held_out
    assert held_out is not None
    assert held_out.margins is not None
    assert len(held_out.margins) == sum(map(is_calibration, ids_of(digits.test)))
