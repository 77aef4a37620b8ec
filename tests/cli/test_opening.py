"""Data and models opened from the records of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import famr
from conftest import Outcome, alg1
from famr.cli.opening import DataSource


def test_a_run_is_not_compared_with_an_original_that_changed(
    run: Callable[..., Outcome], original: famr.Classifier, original_run: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(original_run, source)
    quick = ("--paper", "--no-gates", "--epochs", 2, "--device", "cpu", "--quiet")
    run("forget", "--model", source, "--data", "digits", "--class", "3", "--output-dir", tmp_path / "run", *quick)
    shutil.rmtree(source)
    gone = run("evaluate", tmp_path / "run", "--json", "--device", "cpu")
    assert gone.code == 0
    assert json.loads(gone.out)["not_available"]["forget_kl"] == "the original checkpoint was not given"
    other = run("evaluate", tmp_path / "run", "--original", tmp_path / "run", "--device", "cpu")
    assert other.code == 4
    assert "other weights" in other.err


def test_a_run_saved_from_python_can_be_evaluated_with_its_data(
    run: Callable[..., Outcome], original_run: Path, without_three: famr.Splits, tmp_path: Path
) -> None:
    result = famr.forget(famr.load_model(str(original_run)), without_three, alg1(epochs=1), device="cpu")
    scores = famr.evaluate(result, without_three, device="cpu")
    folder = result.save(tmp_path / "run", scores=scores)
    assert run("evaluate", folder, "--device", "cpu").code == 2  # it does not say which data
    again = run("evaluate", folder, "--data", "digits", "--device", "cpu", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out) == json.loads((folder / "unlearning/metrics.json").read_text(encoding="utf-8"))


def test_a_source_is_read_as_it_was_recorded() -> None:
    source = DataSource("digits", root="x", label_column="y", split_seed=3, match_labels_by_name=True, forget_only=True)
    assert DataSource.from_json({**source.to_json(), "style_target": "folder:z"}) == source
    assert DataSource.from_json({}) == DataSource(None)
