"""What the first edition left on disk still loads: run folders of every kind, a sketch, a desk, signed evidence."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import famr

KEPT = Path(__file__).parent / "fixtures/first_edition"
UNLEARNED = ("class", "paper", "samples", "from-sketch", "concept", "style", "desk/runs/run-0001")
Run = Callable[..., Any]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, and the working directory in which it was made."""
    folder = tmp_path / "kept"
    shutil.copytree(KEPT, folder)
    with closing(sqlite3.connect(folder / "desk/desk.sqlite")) as desk, desk:  # it was made in another folder
        desk.execute("UPDATE settings SET value = ? WHERE name = 'model'", (json.dumps(str(folder / "original")),))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", ["original", "retrained", "pets", "sisa/shard-0", *UNLEARNED])
def test_models_of_run_folders_load(name: str) -> None:
    model = famr.load_model(str(KEPT / name))
    assert model.labels is not None
    assert all(torch.isfinite(weight).all() for weight in model.module.parameters())


@pytest.mark.parametrize("name", UNLEARNED)
def test_unlearning_runs_evaluate_to_the_recorded_metrics(name: str, kept: Path, run: Run) -> None:
    told = run("evaluate", kept / name, "--device", "cpu", "--json")
    assert told.code == 0, told.err
    recorded = json.loads((kept / name / "unlearning/metrics.json").read_text(encoding="utf-8"))["unlearned"]
    measured = json.loads(told.out)["unlearned"]
    for metric, value in recorded.items():
        assert measured[metric] == (value if metric == "counts" or value is None else pytest.approx(value, abs=1e-4))


def test_a_run_of_before_is_reported_and_certified(kept: Path, run: Run) -> None:
    for command in (("certify", kept / "paper"), ("report", kept / "paper", "--retrained", kept / "retrained")):
        told = run(*command, "--device", "cpu")
        assert told.code == 0, told.err
    assert (kept / "paper/unlearning/report.html").is_file()


def test_a_model_that_forgot_before_forgets_the_next_request(kept: Path, run: Run) -> None:
    asked = ("--model", kept / "class", "--data", "digits", "--class", 5, "--output-dir", kept / "next")
    told = run("forget", *asked, "--no-gates", "--strength", 1, "--epochs", 1, "--device", "cpu", "--quiet")
    assert told.code == 0, told.err
    earlier = json.loads((kept / "next/unlearning/run.json").read_text(encoding="utf-8"))["earlier"]
    assert [each["classes"] for each in earlier] == [["3"]]


def test_the_sketch_of_before_serves_a_request(kept: Path, run: Run) -> None:
    asked = ("--model", kept / "original", "--data", "digits", "--class", 3, "--sketch", kept / "sketch.safetensors")
    how = ("--no-gates", "--strength", 1, "--epochs", 1, "--device", "cpu", "--quiet", "--output-dir", kept / "again")
    told = run("forget", *asked, *how)
    assert told.code == 0, told.err


def test_evidence_of_before_verifies_with_its_public_key(kept: Path, run: Run) -> None:
    told = run("verify", kept / "class", "--key", kept / "signing.key.pub", "--ledger", kept / "ledger.jsonl")
    assert told.code == 0, told.err
    assert "their number is not in this statement" in told.out


def test_the_desk_of_before_lists_its_requests_and_takes_new_ones(kept: Path, run: Run) -> None:
    listed = run("request", "list", "-w", kept / "desk", "--json")
    assert listed.code == 0, listed.err
    assert {"R-0001", "R-0002"} <= set(listed.out.replace('"', " ").split())
    new = run("request", "new", "-w", kept / "desk", "--class", 7)
    assert new.code == 0, new.err
    assert run("request", "show", "R-0003", "-w", kept / "desk").code == 0


def test_the_certified_head_of_before_removes_images(kept: Path, run: Run) -> None:
    asked = ("--model", kept / "certified-head", "--data", "digits", "--sample", 3, "--output-dir", kept / "removed")
    told = run("forget", *asked, "--device", "cpu")
    assert told.code == 0, told.err


def test_the_ensemble_of_before_loads_and_removes(kept: Path) -> None:
    from famr.sisa.folder import load_sisa

    sisa = load_sisa(kept / "sisa")
    images = famr.open_data("digits").train.take(torch.arange(200))
    _, removal = sisa.forget(images, [sisa.ids[0]], device="cpu")
    assert removal.removed_trained_on == 0


def test_method_settings_of_before_are_read() -> None:
    for name in UNLEARNED:
        run_json = json.loads((KEPT / name / "unlearning/run.json").read_text(encoding="utf-8"))
        settings = {key: value for key, value in run_json["method"].items() if key != "name"}
        assert famr.FAMR.from_json(settings).target == settings["target"]
