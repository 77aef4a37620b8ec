"""`famr train`: originals and retrained models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import famr
from conftest import Outcome


def test_train_and_retrain_from_the_command_line(run: Callable[..., Outcome], tmp_path: Path) -> None:
    shape = [
        f"--model-arg={pair}" for pair in ("img_size=16", "patch_size=4", "embed_dim=32", "depth=1", "num_heads=2")
    ]
    common = ("--model", "timm:vit_tiny_patch16_224", "--from-scratch", *shape, "--data", "digits", "--epochs", 1)
    full = run("train", *common, "--output-dir", tmp_path / "full", "--device", "cpu", "--json", "--quiet")
    assert full.code == 0, full.err
    less = run(
        "train", *common, "--without-class", "3", "--output-dir", tmp_path / "less", "--device", "cpu", "--json", "-q"
    )
    assert less.code == 0, less.err
    assert json.loads(full.out)["train_count"] - json.loads(less.out)["train_count"] == 146
    record = json.loads((tmp_path / "less/training/run.json").read_text(encoding="utf-8"))
    assert record["without"] == {"kind": "class", "classes": ["3"]}
    assert famr.load_model(str(tmp_path / "less")).labels == famr.load_model(str(tmp_path / "full")).labels
    listed = run("classes", tmp_path / "less", "--json")
    assert json.loads(listed.out) == {"classes": [str(digit) for digit in range(10)]}
