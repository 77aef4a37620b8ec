"""`famr demo`: models, figure and table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import famr
from conftest import Outcome
from famr.cli import demo


def test_the_demo_writes_models_and_a_figure_and_prints_a_table_or_one_json_object(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SMALL", {**demo.SMALL, "embed_dim": 48})
    monkeypatch.setattr(demo, "TRAINING", replace(demo.TRAINING, epochs=1))
    for name in ("METHOD", "PAPER"):
        monkeypatch.setattr(demo, name, replace(getattr(demo, name), epochs=2, strength=1.0))
    run_demo, reports = demo.run_demo, []

    def run_once(*arguments: Any, **named: Any) -> demo.DemoReport:
        reports.append(reports[0] if reports else run_demo(*arguments, **named))
        return reports[0]

    monkeypatch.setattr(demo, "run_demo", run_once)
    written = run("demo", "--output-dir", tmp_path / "demo", "--quiet", "--json")
    assert written.code == 0, written.err
    assert json.loads(written.out) == json.loads((tmp_path / "demo/demo.json").read_text(encoding="utf-8"))
    for model in ("original", "unlearned", "retrained"):
        famr.load_model(str(tmp_path / "demo" / model))
    with Image.open(tmp_path / "demo/forgetting.png") as figure:
        assert figure.width > 600
    printed = run("demo", "--output-dir", tmp_path / "demo")
    for words in ("original", "unlearned", "retrained", "paper's Alg. 1", "set for so small a model"):
        assert words in printed.out


def test_the_demo_refuses_a_folder_that_exists(run: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/mine").write_text("", encoding="utf-8")
    assert run("demo", "--output-dir", tmp_path / "demo", "--quiet").code == 2
