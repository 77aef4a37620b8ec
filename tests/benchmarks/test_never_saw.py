"""The benchmark of targets: what settings were chosen on is not reported, and its page is made from its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.cells import small_vit
from benchmarks.never_saw import Setting, Variant, correlation, drawn_requests
from benchmarks.never_saw_page import never_saw_page

import famr
from benchmarks import never_saw
from famr.data import Data


@pytest.fixture
def setting(digits: Data) -> Setting:
    facts = {"benchmark": "never saw: digits", "data": "digits", "model": "a tiny ViT"}
    brief = famr.Training(epochs=1, batch_size=64, augmentation=None)
    return Setting(
        digits,
        small_vit(digits.labels, embed_dim=16, depth=2),
        brief,
        facts,
        scored_seed=1,
        late_share=0.5,
        classes=3,
        samples=2,
    )


def test_classes_and_samples_for_tuning_are_others_than_the_reported_ones(setting: Setting) -> None:
    scored, tuning = drawn_requests(setting, False), drawn_requests(setting, True)
    names = [{name for request in requests for name in request.classes} for requests in (scored, tuning)]
    assert [len(each) for each in names] == [3, 3]
    assert not names[0] & names[1]
    assert [len(request.samples) for request in scored[3:]] == [len(setting.data.train) // 10] * 2
    assert scored[3:] != tuning[3:]


def test_rows_are_computed_once_and_become_a_page(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"quick": Variant(replace(famr.FAMR.paper(), epochs=1))}
    few = replace(setting, classes=1, samples=1)
    monkeypatch.setattr(never_saw, "DEFAULTS", quick)
    monkeypatch.setattr(
        never_saw,
        "open_setting",
        lambda _arguments: replace(few, facts={**few.facts, "training": {"epochs": 1, "batch_size": 64}}),
    )
    output = tmp_path / "never_saw-digits.json"
    command = [
        "never_saw",
        "digits",
        "--output",
        str(output),
        "--models",
        str(tmp_path / "models"),
        "--references",
        "2",
    ]
    monkeypatch.setattr("sys.argv", command)
    never_saw.main()
    content = json.loads(output.read_text(encoding="utf-8"))
    assert [row["variant"] for row in content["cells"]] == ["original", "retrained 0", "retrained 1", "quick"] * 2
    original = content["cells"][0]
    assert original["forget_accuracy"] >= 0
    assert 0 <= original["js"] <= 0.7
    monkeypatch.setattr(never_saw, "run_variant", None)
    never_saw.main()  # everything is there
    assert json.loads(output.read_text(encoding="utf-8")) == content
    page = never_saw_page("never_saw-digits", content)
    assert "## One class" in page
    assert "## A tenth of the training images" in page
    assert "| retrained | 2 |" in page
    assert "requests that no setting was chosen on" in page


def test_the_correlation_is_pearsons() -> None:
    one = torch.tensor([1.0, 2.0, 4.0])
    assert correlation(one, 3 * one + 1) == pytest.approx(1.0)
    assert correlation(one, -one) == pytest.approx(-1.0)
