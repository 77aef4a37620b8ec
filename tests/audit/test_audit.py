"""The audit as a whole, on digits: the original fails, retrained models pass, uniform predictions are caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import famr
from conftest import SMALL_VIT, Outcome, alg1
from famr.audit import conversions
from famr.audit.audit import audit
from famr.audit.gates import GATES, Gate
from famr.audit.gates.base import gap_to_references
from famr.audit.per_image import hits_on
from famr.audit.verdict import Audit, read_thresholds
from famr.data import Data
from famr.engine.inference import predict
from famr.errors import CheckpointError, RequestError
from famr.runs.audits import read_audits
from famr.training import Trained


@pytest.fixture(scope="module")
def references(retrained_runs: list[Trained]) -> list[famr.Classifier]:
    return [run.model for run in retrained_runs]


@pytest.fixture(scope="module")
def uniform(original: famr.Classifier, without_three: famr.Splits) -> famr.Classifier:
    return famr.forget(original, without_three, alg1(), device="cpu", monitor=famr.Monitor(track_retain=False)).model


@pytest.fixture(scope="module")
def whole(
    uniform: famr.Classifier,
    original: famr.Classifier,
    without_three: famr.Splits,
    references: list[famr.Classifier],
) -> Audit:
    """An audit with every part."""
    return audit(uniform, without_three, original=original, retrained=references, device="cpu")


def test_original_fails_retrained_passes_and_uniform_predictions_are_caught(whole: Audit) -> None:
    by_name = {check.name: check for check in whole.checks}
    assert whole.verdicts == {"unlearned": "fail", "original": "fail", "retrained": "pass"}
    for gate in ("forget_accuracy_gap", "average_gap", "js_to_retrained", "tell_tale_auc", "rmia_auc"):
        assert by_name[gate].verdicts["original"] == "fail", gate
    assert by_name["forgotten_rank_gap"].verdicts["original"] == "fail"
    assert by_name["forgotten_rank_gap"].verdicts["retrained"] == "pass"
    assert by_name["tell_tale_auc"].verdicts["unlearned"] == "fail"
    assert by_name["relearning_saved"].verdicts["original"] == "fail"
    assert by_name["relearning_saved"].figures["original"].value == pytest.approx(1.0)  # it need not learn at all


def test_verdicts_are_the_same_for_other_seeds_and_whichever_retrained_model_comes_first(
    whole: Audit,
    uniform: famr.Classifier,
    original: famr.Classifier,
    without_three: famr.Splits,
    references: list[famr.Classifier],
) -> None:
    for seed in (1, 2):
        turned = references[seed:] + references[:seed]
        found = audit(uniform, without_three, original=original, retrained=turned, quick=True, seed=seed, device="cpu")
        assert found.verdicts == whole.verdicts
        verdicts = {check.name: check.verdicts for check in found.checks}["tell_tale_auc"]
        assert verdicts == {"unlearned": "fail", "original": "fail", "retrained": "pass"}


def test_all_parts_are_recorded_with_their_costs_as_plain_values(whole: Audit) -> None:
    record = json.loads(json.dumps(whole.to_json(), allow_nan=False))
    assert {check["name"] for check in record["checks"]} == set(read_thresholds()) - {"u_lira_accuracy", "style_excess"}
    assert set(record["costs"]) == {"answers", "membership", "depth", "relearning", "survival", "gates", "cka"}
    assert all(seconds > 0 for seconds in record["costs"].values())
    assert {name for name, part in record["stated"].items() if part["needs_retrained"]} == {"tug_of_war", "cka"}
    collateral = record["stated"]["collateral"]["classes"]
    assert sorted(row["class"] for row in collateral) == [str(digit) for digit in range(10) if digit != 3]
    assert [row["change"] for row in collateral] == sorted(row["change"] for row in collateral)
    tow = record["stated"]["tug_of_war"]
    assert tow["retrained"]["tow"] > 0.9 > tow["original"]["tow"]
    assert set(tow["unlearned"]) == {"tow", "tow_mia"}
    assert "int8_comes_back" in record["stated"]["power"]["original_does_not_fail"]
    assert "forget_accuracy_gap" not in record["stated"]["power"]["original_does_not_fail"]
    assert set(record["stated"]["calibration"]["ece"]) == {"unlearned", "original", "retrained"}
    assert 0 <= record["stated"]["before_and_after"]["auc"] <= 1
    layers = {"blocks.0", "blocks.1", "penultimate"}
    assert set(record["stated"]["cka"]["unlearned"]["original"]["forget"]) == layers
    assert set(record["stated"]["cka"]["retrained"]) == {"original", "another retrained"}
    assert set(record["stated"]["survival"]["unlearned"]["changed"]) == {"int8", "bf16", "fp16", "onnx"}
    assert record["stated"]["depth"]["original"]["prototype"]["forget_accuracy"] > 0.5
    assert record["stated"]["relearning"]["original"]["median_steps"] == 0
    assert len(record["stated"]["relearning"]["retrained"]["runs"]) == 3


def test_without_onnx_there_is_no_such_gate_and_the_audit_says_why(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "onnx_missing", lambda: "onnxruntime is not installed")
    found = audit(original, without_three, device="cpu")
    names = {check.name for check in found.checks}
    assert "onnx_comes_back" not in names
    assert "int8_comes_back" in names
    assert "onnx: not available: onnxruntime is not installed" in found.notes


def test_a_gate_is_added_by_one_line_in_the_mapping(
    original: famr.Classifier,
    without_three: famr.Splits,
    references: list[famr.Classifier],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(
        name="retain_training_accuracy_gap",
        title="accuracy on retained training images differs from retrained models",
        description="|accuracy − retrained| on retained training images.",
        threshold=0.03,
        measure=gap_to_references(hits_on("retain")),
    )
    monkeypatch.setitem(GATES, gate.name, gate)
    found = audit(original, without_three, retrained=references[:2], quick=True, device="cpu")
    result = found.checks[-1]
    assert (result.name, result.threshold, result.needs_retrained) == (gate.name, 0.03, True)
    assert set(result.verdicts) == {"unlearned", "retrained"}
    assert found.to_json()["checks"][-1]["says"] == gate.description
    assert found.subject["thresholds"][gate.name] == 0.03
    stricter = {gate.name: 1e-6}
    again = audit(original, without_three, retrained=references[:2], quick=True, thresholds=stricter, device="cpu")
    assert again.checks[-1].threshold == 1e-6


def test_models_that_cannot_be_compared_are_refused(
    original: famr.Classifier, without_three: famr.Splits, digits: Data
) -> None:
    wider = famr.new_model(
        "timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments={**SMALL_VIT, "embed_dim": 32}
    )
    with pytest.raises(CheckpointError, match="retrained 1 model is of another architecture"):
        audit(original, without_three, retrained=[original, wider], device="cpu")
    renamed = replace(original, labels=(*digits.labels[1:], digits.labels[0]))
    with pytest.raises(CheckpointError, match="retrained 0 model names other classes"):
        audit(original, without_three, retrained=[renamed], device="cpu")


def test_a_class_hidden_by_its_bias_alone_is_caught(
    original: famr.Classifier, without_three: famr.Splits, references: list[famr.Classifier]
) -> None:
    """Its forget accuracy is zero, and features and head still hold the class."""
    biased = original.copy()
    with torch.no_grad():
        biased.module.head.bias[3] -= 20  # type: ignore[index,union-attr]
    found = audit(biased, without_three, original=original, retrained=references, quick=True, device="cpu")
    verdicts = {check.name: check.verdicts["unlearned"] for check in found.checks}
    assert verdicts["forget_accuracy"] == "pass"
    assert verdicts["best_bias_excess"] == "fail"
    assert verdicts["original_head_back"] == "fail"
    assert found.verdicts["unlearned"] == "fail"


def test_without_a_retrained_model_nothing_is_invented(original: famr.Classifier, without_three: famr.Splits) -> None:
    found = audit(original, without_three, quick=True, device="cpu")
    assert {check.name for check in found.checks if not check.needs_retrained} == {"forget_accuracy"}
    assert found.stated["tug_of_war"]["not_available"] == "no retrained model was given"
    assert "original was not given" in found.stated["before_and_after"]["not_available"]
    assert found.verdicts == {"unlearned": "fail"}  # it still knows the class; that takes no reference
    for check in (check for check in found.checks if check.needs_retrained):
        assert check.figures["unlearned"].value is None
        assert "no retrained model" in str(check.figures["unlearned"].why_not)


def test_too_few_images_cannot_tell(original: famr.Classifier, digits: Data, retrained: famr.Classifier) -> None:
    splits = famr.split(digits, famr.Request(samples=[1, 2, 3]))
    found = audit(original, splits, retrained=[retrained], device="cpu")
    assert set(found.verdicts.values()) == {"cannot tell"}
    assert any("too few" in note for note in found.notes)


def test_an_audit_needs_the_whole_data(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.take(torch.arange(30)), digits.labels)
    with pytest.raises(RequestError, match="whole data"):
        audit(original, alone, device="cpu")


def test_a_class_that_is_never_predicted_and_always_second_is_caught(
    original: famr.Classifier, without_three: famr.Splits, references: list[famr.Classifier]
) -> None:
    """By accuracy it is forgotten; a model that never saw it has it among the last."""

    def put_second(_module: torch.nn.Module, _images: object, logits: torch.Tensor) -> torch.Tensor:
        others = logits.index_fill(1, torch.tensor([3]), -torch.inf).max(dim=1, keepdim=True).values
        return torch.where(torch.arange(10) == 3, torch.minimum(logits, others - 0.1), logits)

    second = original.copy()
    second.module.register_forward_hook(put_second)
    found = audit(second, without_three, original=original, retrained=references, quick=True, device="cpu")
    checks = {check.name: check for check in found.checks}
    assert checks["forget_accuracy"].verdicts["unlearned"] == "pass"
    assert checks["forgotten_rank_gap"].verdicts == {"unlearned": "fail", "original": "fail", "retrained": "pass"}
    figure = checks["forgotten_rank_gap"].figures["original"].value
    cpu = torch.device("cpu")

    def share(model: famr.Classifier) -> float:
        logits = predict(model, without_three.forget, cpu).logits
        ranks = [sum(value > row[3] for value in row) / 9 for row in logits.tolist()]
        return sum(ranks) / len(ranks)

    expected = sum(map(share, references)) / len(references) - share(original)
    assert figure == pytest.approx(abs(expected))


def test_the_command_writes_the_audit_and_exits_by_its_gates(
    original_run: Path, retrained_runs: list[Trained], tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = tmp_path / "no-3"
    options = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *options, "--paper", "--learning-rate", "5e-5", "--quiet").code == 0
    references: list[str | Path] = []
    for index, trained in enumerate(retrained_runs[:2]):
        references += ["--retrained", trained.save(tmp_path / f"retrained-{index}")]
    outcome = run("audit", folder, *references, "--quick", "--device", "cpu", "--json")
    assert outcome.code == 7
    record = json.loads((folder / "unlearning/audit.json").read_text(encoding="utf-8"))
    assert record["verdicts"]["unlearned"] == "fail"
    assert record["verdicts"]["original"] == "fail"
    assert "tell_tale_auc" in outcome.err
    assert run("evaluate", folder, "--device", "cpu").code == 0
    lenient = tmp_path / "lenient.json"
    lenient.write_text(json.dumps(dict.fromkeys(record["subject"]["thresholds"], 1.0)), encoding="utf-8")
    passed = run("audit", folder, *references, "--quick", "--thresholds", lenient, "--device", "cpu")
    assert passed.code == 0, passed.err
    assert "verdict" in passed.out
    assert "2 audits: fail, pass (the latest)" in passed.err
    assert [each.verdict for each in read_audits(folder)] == ["fail", "pass"]
    first = json.loads((folder / "unlearning/audits/0001.json").read_text(encoding="utf-8"))
    assert {name: first[name] for name in record} == record
