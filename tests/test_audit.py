"""The audit as a whole, on digits: the original fails, retrained models pass, uniform answers are caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import famr
from conftest import Outcome, alg1
from famr.audits.audit import audit
from famr.audits.intervals import gap_figure, mean_interval
from famr.augmentation import Augmentation
from famr.data import Data
from famr.errors import RequestError
from famr.train import Trained

TRAINING = famr.Training(
    epochs=15, batch_size=64, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
)


@pytest.fixture(scope="module")
def retrained(without_three: famr.Splits, digits: Data) -> list[Trained]:
    from conftest import SMALL_VIT

    assert without_three.retain is not None
    made = []
    for seed in (0, 1):
        start = famr.new_model(
            "timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=SMALL_VIT, seed=seed
        )
        made.append(famr.fit(start, without_three.retain, TRAINING, seed=seed, device="cpu"))
    return made


def test_original_fails_retrained_passes_and_uniform_answers_are_caught(
    original: famr.Classifier, without_three: famr.Splits, retrained: list[Trained]
) -> None:
    references = [found.model for found in retrained]
    paper = famr.forget(original, without_three, alg1(), device="cpu", track_retain=False)
    for seed in (0, 1):
        found = audit(paper.model, without_three, original=original, retrained=references, seed=seed, device="cpu")
        by_name = {check.name: check for check in found.checks}
        assert found.verdicts["original"] == "fail"
        assert found.verdicts["retrained"] != "fail"
        assert by_name["forget_accuracy_gap"].verdicts["original"] == "fail"
        assert by_name["forget_accuracy_gap"].verdicts["retrained"] == "pass"
        assert by_name["tell_tale_auc"].verdicts["unlearned"] == "fail"
        assert by_name["tell_tale_auc"].verdicts["retrained"] != "fail"
        assert found.verdicts["unlearned"] == "fail"


def test_a_class_that_is_merely_biased_away_is_caught(
    original: famr.Classifier, without_three: famr.Splits, retrained: list[Trained]
) -> None:
    """Its forget accuracy is zero, and everything is still there."""
    biased = original.copy()
    with torch.no_grad():
        biased.module.head.bias[3] -= 20  # type: ignore[index,union-attr]
    references = [found.model for found in retrained]
    found = audit(biased, without_three, original=original, retrained=references, device="cpu")
    verdicts = {check.name: check.verdicts["unlearned"] for check in found.checks}
    assert verdicts["forget_accuracy"] == "pass"
    assert verdicts["best_bias_excess"] == "fail"
    assert verdicts["original_head_back"] == "fail"
    assert found.verdicts["unlearned"] == "fail"


def test_without_a_retrained_model_nothing_is_invented(original: famr.Classifier, without_three: famr.Splits) -> None:
    found = audit(original, without_three, device="cpu")
    assert {check.name for check in found.checks if not check.needs_retrained} == {"forget_accuracy"}
    assert found.verdicts == {"unlearned": "fail"}  # it still knows the class; that takes no reference
    for check in (check for check in found.checks if check.needs_retrained):
        assert check.figures["unlearned"].value is None
        assert "no retrained model" in str(check.figures["unlearned"].why_not)


def test_too_few_images_cannot_tell(original: famr.Classifier, digits: Data, retrained: list[Trained]) -> None:
    splits = famr.split(digits, famr.Request(samples=[1, 2, 3]))
    found = audit(original, splits, retrained=[retrained[0].model], device="cpu")
    assert set(found.verdicts.values()) == {"cannot tell"}
    assert any("too few" in note for note in found.notes)


def test_an_audit_needs_the_whole_data(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.take(torch.arange(30)), digits.labels)
    with pytest.raises(RequestError, match="whole data"):
        audit(original, alone, device="cpu")


def test_intervals_hold_the_mean_and_shrink_with_more_images() -> None:
    few, many = (torch.rand(size, generator=torch.Generator().manual_seed(0)) for size in (50, 5000))
    widths = []
    for values in (few, many):
        mean, low, high = mean_interval(values)
        assert low < mean < high
        assert low < 0.5 < high
        half = 1.96 * float(values.double().std()) / len(values) ** 0.5
        assert (high - low) / 2 == pytest.approx(half, rel=0.15)
        widths.append(high - low)
    assert widths[1] < widths[0] / 5
    assert gap_figure(torch.tensor([0.1, -0.1] * 20)).low == 0.0


def test_the_command_writes_the_audit_and_exits_by_its_gates(
    original_run: Path, retrained: list[Trained], tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = tmp_path / "no-3"
    asked = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *asked, "--paper", "--learning-rate", "5e-5", "--quiet").code == 0
    references: list[str | Path] = []
    for place, found in enumerate(retrained[:2]):
        references += ["--retrained", found.save(tmp_path / f"retrained-{place}")]
    outcome = run("audit", folder, *references, "--device", "cpu", "--json")
    assert outcome.code == 7
    told = json.loads((folder / "unlearning/audit.json").read_text(encoding="utf-8"))
    assert told["verdicts"]["unlearned"] == "fail"
    assert told["verdicts"]["original"] == "fail"
    assert "tell_tale_auc" in outcome.err
    assert run("evaluate", folder, "--device", "cpu").code == 0
    lenient = tmp_path / "lenient.json"
    lenient.write_text(json.dumps(dict.fromkeys(told["subject"]["thresholds"], 1.0)), encoding="utf-8")
    passed = run("audit", folder, *references, "--thresholds", lenient, "--device", "cpu")
    assert passed.code == 0, passed.err
    assert "verdict" in passed.out
