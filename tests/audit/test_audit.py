"""The audit as a whole, on digits: what it passes, what it fails and by which gates, and what keeps it from passing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_shadows import tiny

import famr
from conftest import SMALL_VIT, Outcome
from famr.audit import conversions, measurements, two_sample
from famr.audit.audit import Against, AuditSettings, audit, audit_methods
from famr.audit.controls import NEVER_SAW_EPOCHS
from famr.audit.costs import PartDone
from famr.audit.gates import GATES, Gate
from famr.audit.gates.base import gap_to_references
from famr.audit.per_image import hits_on
from famr.audit.references import Reference
from famr.audit.verdict import Audit, read_thresholds
from famr.audit.visual_prompt import PromptConfig
from famr.data import Data
from famr.engine.inference import predict
from famr.errors import CheckpointError, RequestError
from famr.runs.audits import read_audits
from famr.runs.training_record import ids_digest
from famr.training import Trained

TRAINING = famr.Training(epochs=12, batch_size=32, learning_rate=3e-3, weight_decay=0.0, augmentation=None)
CPU = torch.device("cpu")
SEEDS = (0, 1)
"""Of relearning."""


def put_second(_module: torch.nn.Module, _images: object, logits: torch.Tensor) -> torch.Tensor:
    """Logits in which the three is never first and always second."""
    others = logits.index_fill(1, torch.tensor([3]), -torch.inf).max(dim=1, keepdim=True).values
    return torch.where(torch.arange(10) == 3, torch.minimum(logits, others - 0.1), logits)


def hidden_by_bias(original: famr.Classifier) -> famr.Classifier:
    hidden = original.copy()
    with torch.no_grad():
        hidden.module[3].bias[3] -= 20  # type: ignore[index,union-attr,operator]
    return hidden


@dataclass(frozen=True, eq=False)
class World:
    """Networks of one hidden layer, trained in a second each: with the threes, without them, and for less long."""

    scored: famr.Splits
    original: famr.Classifier
    references: tuple[Reference, ...]
    never_saw: Reference

    @classmethod
    def make(cls, digits: Data, splits: famr.Splits) -> World:
        assert splits.retain is not None
        retain = splits.retain

        def reference(seed: int, training: famr.Training = TRAINING) -> Reference:
            trained = famr.fit(tiny(seed), retain, training, seed=seed, device="cpu")
            return Reference.trained_now(trained, splits.request)

        return cls(
            famr.calibration_split(splits).for_scoring,
            famr.fit(tiny(100), digits.train, TRAINING, seed=100, device="cpu").model,
            tuple(reference(seed) for seed in range(6)),
            reference(50, replace(TRAINING, epochs=3)),
        )

    def quick(self, model: famr.Classifier, **changes: Any) -> Audit:
        """A quick audit against the first five references, or others."""
        against = {"original": self.original, "retrained": self.references[:5], "never_saw": self.never_saw}
        return audit(model, self.scored, **{**against, "quick": True, "device": "cpu", **changes})


@pytest.fixture(scope="module")
def world(digits: Data, without_three: famr.Splits) -> World:
    return World.make(digits, without_three)


@pytest.fixture(scope="module")
def parts() -> list[PartDone]:
    """What the whole audits told of their progress."""
    return []


@pytest.fixture(scope="module")
def whole(world: World, parts: list[PartDone]) -> dict[str, Audit]:
    """Audits with every part, of a sixth retrained model, and of the original with the class always second."""
    second = world.original.copy()
    second.module.register_forward_hook(put_second)
    models = {"retrained": world.references[5].model, "second": second}
    against = Against(world.original, world.references[:5], world.never_saw)
    with pytest.MonkeyPatch.context() as patch:  # briefer attacks; each is tested in a file of its own
        patch.setattr(two_sample, "FOLDS", 2)
        patch.setattr(measurements, "RELEARNING_SEEDS", SEEDS)
        patch.setattr(measurements, "PROMPT", PromptConfig(steps=60))
        return audit_methods(models, world.scored, against, AuditSettings(device="cpu", on_part=parts.append))


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the gates that take longest: they train classifiers on predictions."""
    monkeypatch.delitem(GATES, "tell_tale_auc")
    monkeypatch.delitem(GATES, "rmia_auc")


def verdicts(found: Audit, model: str = "unlearned") -> dict[str, str | None]:
    """By the name of the gate."""
    return {check.name: check.verdicts.get(model) for check in found.checks}


def test_a_retrained_model_passes_and_the_original_fails(whole: dict[str, Audit]) -> None:
    passed = whole["retrained"]
    assert passed.obstacles == ()
    assert passed.verdicts["unlearned"] == "pass"
    assert all(check.verdicts.get("retrained", "pass") == "pass" for check in passed.counted)
    assert passed.verdicts["original"] == passed.verdicts["head only"] == passed.verdicts["collapsed"] == "fail"
    counted = {check.name for check in passed.counted}
    assert {"forget_accuracy_gap", "js_excess", "forgotten_rank_gap", "original_head_gap"} < counted
    assert {"visual_prompt_gap", "retained_tuning_rank_gap", "perturbed_gap", "retain_accuracy_gap"} < counted
    assert passed.to_json()["sentence"].startswith(f"Passed: {len(counted)} of {len(counted)} gates with power pass.")


def test_a_class_hidden_in_the_head_alone_is_caught_by_what_the_features_hold(whole: dict[str, Audit]) -> None:
    """Its forget accuracy is zero."""
    found = verdicts(whole["retrained"], "head only")
    assert found["forget_accuracy"] == found["forgotten_rank_gap"] == "pass"
    failed = {name for name, verdict in found.items() if verdict == "fail"}
    assert failed == {"original_head_gap", "visual_prompt_gap", "tell_tale_auc"}


def test_a_class_that_is_never_predicted_and_always_second_is_caught(whole: dict[str, Audit], world: World) -> None:
    """By accuracy it is forgotten; a model that never saw it has it among the last."""
    found = whole["second"]
    assert verdicts(found)["forget_accuracy"] == "pass"
    assert verdicts(found)["forgotten_rank_gap"] == "fail"
    assert found.to_json()["sentence"].startswith("Failed: ")

    def share(model: famr.Classifier) -> float:
        logits = predict(model, world.scored.forget, CPU).logits
        ranks = [sum(value > row[3] for value in row) / 9 for row in logits.tolist()]
        return sum(ranks) / len(ranks)

    expected = sum(share(each.model) for each in world.references[:5]) / 5 - share(world.original)
    figures = {check.name: check.figures for check in found.checks}["forgotten_rank_gap"]
    assert figures["original"].value == pytest.approx(abs(expected))


def test_the_four_controls_and_the_reasons_of_gates_that_do_not_count_are_in_every_record(
    whole: dict[str, Audit], world: World
) -> None:
    for found in whole.values():
        record = json.loads(json.dumps(found.to_json(), allow_nan=False))
        controls = record["subject"]["controls"]
        assert list(controls) == ["original", "head only", "collapsed", "retrained", "never saw"]
        assert (controls["never saw"]["used"], controls["never saw"]["not_used"]) == (True, None)
        assert record["stated"]["controls"]["models"] == controls
        reasons = {check["name"]: check["not_counted"] for check in record["checks"] if not check["counts"]}
        assert "js_excess" not in reasons  # a never-saw model has other predictions, and decides nothing there
        for gate in ("mia_efficacy_gap", "average_gap"):  # hardly overfitted models: the attack is a coin flip
            assert reasons[gate] == "it cannot tell on the original here"
        assert reasons["int8_comes_back"] == "no control shows that it has power"
        assert reasons["rmia_auc"] == "the original does not fail it here"
        assert reasons["relearning_gap"] == "it cannot tell on the original here"  # no curve comes back in time
        for check in record["checks"]:
            if check["kind"] != "conversion":
                assert {"original", "never saw", "head only"} <= set(check["verdicts"]) or check["kind"] == "utility"
    utility = {check.name: check for check in whole["second"].checks}["retain_accuracy_gap"]
    assert utility.verdicts["collapsed"] == "fail"


def test_digests_images_and_records_of_all_models_stand_in_the_subject(whole: dict[str, Audit], world: World) -> None:
    subject = json.loads(json.dumps(whole["second"].to_json()))["subject"]
    assert subject["unlearned_sha256"] == world.original.digest()  # a hook is no weight
    assert subject["original_sha256"] == world.original.digest()
    assert subject["retrained_sha256"] == [each.model.digest() for each in world.references[:5]]
    assert subject["controls"]["never saw"]["sha256"] == world.never_saw.model.digest()
    for seed, each in enumerate(subject["references"]):
        assert (each["record"]["seed"], each["not_shown"]) == (seed, [])
        assert each["forget_accuracy"] == each["unseen_accuracy"] == 0.0
    assert world.scored.forget_test is not None
    assert subject["images"]["held_out_forgotten"]["ids_sha256"] == ids_digest(world.scored.forget_test.ids)
    assert subject["images"]["forget"]["count"] == len(world.scored.forget)
    assert "quarter of the held-out images on which methods are calibrated is not among them" in subject["calibration"]


def test_all_parts_are_recorded_with_their_costs_as_plain_values(whole: dict[str, Audit]) -> None:
    record = json.loads(json.dumps(whole["second"].to_json(), allow_nan=False))
    assert {check["name"] for check in record["checks"]} == set(read_thresholds()) - {"u_lira_accuracy", "style_gap"}
    attacks = {"relearning", "visual prompt", "retained tuning", "perturbed images", "survival"}
    passive = {"answers", "membership", "depth", "shadow attacks", "gates", "cka"}
    assert set(record["costs"]) == attacks | passive
    assert all(seconds > 0 for seconds in record["costs"].values())
    stated = record["stated"]
    assert {name for name, part in stated.items() if part["needs_retrained"]} == {"tug_of_war", "non_members", "cka"}
    collateral = stated["collateral"]["classes"]
    assert sorted(row["class"] for row in collateral) == [str(digit) for digit in range(10) if digit != 3]
    assert [row["change"] for row in collateral] == sorted(row["change"] for row in collateral)
    tow = stated["tug_of_war"]
    assert tow["retrained"]["tow"] > 0.9 > tow["original"]["tow"]
    assert set(tow["unlearned"]) == {"tow", "tow_mia"}
    assert set(stated["calibration"]["ece"]) == {"unlearned", "original", "head only", "never saw", "retrained"}
    assert 0 <= stated["before_and_after"]["auc"] <= 1
    assert "penultimate" in stated["cka"]["unlearned"]["original"]["forget"]
    assert set(stated["cka"]["retrained"]) == {"original", "another retrained"}
    assert set(stated["survival"]["unlearned"]["changed"]) == {"int8", "bf16", "fp16", "onnx"}
    assert set(stated["survival"]["original"]["changed"]) == {"int8", "bf16", "fp16"}
    assert stated["depth"]["original"]["prototype"]["forget_accuracy"] > 0.5
    assert stated["relearning"]["original"]["median_steps"] == 0
    assert stated["visual_prompt"]["head only"]["under"]["forget_accuracy"] > 0.9
    assert len(stated["relearning"]["retrained"]["runs"]) == len(SEEDS)


def test_progress_counts_the_models_down(whole: dict[str, Audit], parts: list[PartDone]) -> None:
    assert [part.done for part in parts] == list(range(1, len(parts) + 1))
    assert {part.total for part in parts} == {len(parts)} == {len(whole) + 1 + 6 + 1}
    assert parts[-1].seconds_left == 0 < parts[0].seconds_left


def test_verdicts_are_the_same_for_another_seed_and_whichever_retrained_model_comes_first(
    whole: dict[str, Audit], world: World, cheap: None
) -> None:
    hidden, turned = hidden_by_bias(world.original), world.references[2:5] + world.references[:2]
    found = world.quick(hidden, retrained=turned, seed=1)
    assert found.verdicts["unlearned"] == "fail"
    for model in ("original", "head only", "retrained"):
        assert found.verdicts[model] == whole["retrained"].verdicts[model]


# what keeps an audit from passing


def test_few_or_unshown_references_and_a_missing_original_cannot_pass(world: World, cheap: None) -> None:
    bare = [each.model for each in world.references[:2]]
    found = world.quick(world.references[5].model, retrained=bare, original=None)
    assert found.verdicts["unlearned"] == "cannot tell"
    obstacles = " ".join(found.obstacles)
    assert "There are 2 retrained models; with fewer than 5 there is no bound" in obstacles
    assert "Of 2 models (retrained 0, retrained 1) it is not shown that they never saw the forget set" in obstacles
    assert "Without the original it is not known which gates have power." in obstacles


def test_a_quick_audit_and_one_against_references_of_different_trainings_cannot_pass(world: World, cheap: None) -> None:
    """Their spread would allow any model."""
    last = world.references[4]
    assert last.record is not None
    longer = Reference(last.model, replace(last.record, training={**last.record.training, "epochs": 99}))
    found = world.quick(world.references[5].model, retrained=[*world.references[:4], longer], never_saw=None)
    assert found.verdicts["unlearned"] == "cannot tell"
    assert set(verdicts(found).values()) <= {"pass", "cannot tell"}
    assert found.obstacles == (
        "The retrained 4 model was trained unlike the retrained 0 one: epochs differ.",
        "A quick audit leaves out the strongest attacks.",
    )


def test_a_never_saw_control_of_the_users_own_making_is_not_used(world: World, cheap: None) -> None:
    """It would take away every gate that it was trained to fail."""
    given = world.never_saw
    assert given.record is not None
    smoothed = Reference(given.model, replace(given.record, training={**given.record.training, "label_smoothing": 0.4}))
    found = world.quick(world.original.copy(), never_saw=smoothed)
    control = found.subject["controls"]["never saw"]
    assert control["used"] is False
    assert "label_smoothing differ" in control["not_used"]
    assert all("never saw" not in check.verdicts for check in found.checks)
    assert verdicts(found)["js_excess"] == "fail"
    assert "js_excess" in {check.name for check in found.counted}


def test_images_that_calibrated_the_method_may_not_be_scored(world: World, without_three: famr.Splits) -> None:
    model = world.references[5].model
    unsplit = {"retrained": [], "quick": True, "device": "cpu"}
    found = audit(model, without_three, **unsplit)  # type: ignore[arg-type]
    assert any("calibrated the method may be among those that it is scored on" in each for each in found.obstacles)
    for splits, seen in ((world.scored, True), (without_three, False)):
        found = audit(model, splits, held_out_seen=seen, **unsplit)  # type: ignore[arg-type]
        assert not any("calibrated" in each for each in found.obstacles)


def test_copies_and_models_that_saw_the_forget_set_are_refused_as_references_before_any_attack(
    world: World, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = hidden_by_bias(world.original)
    monkeypatch.delattr(measurements, "with_probes")

    def noisy(model: famr.Classifier, seed: int, scale: float = 0.02) -> famr.Classifier:
        changed, draws = model.copy(), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in changed.module.parameters():
                weight += scale * weight.std() * torch.randn(weight.shape, generator=draws)
        return changed

    def permuted(model: famr.Classifier) -> famr.Classifier:
        changed, turned = model.copy(), torch.arange(64).flip(0)
        first, last = changed.module[1], changed.module[3]  # type: ignore[index]
        with torch.no_grad():
            first.weight.copy_(first.weight[turned])
            first.bias.copy_(first.bias[turned])
            last.weight.copy_(last.weight[:, turned])
        return changed

    honest = list(world.references[:4])
    for given, message in (
        ([hidden.copy()] * 2, "retrained 0 model is the unlearned one: the same weights"),
        ([*honest, world.original], "retrained 4 model is the original one: the same weights"),
        ([*honest, world.references[0]], "retrained 0 model is the retrained 4 one: the same weights"),
        ([*honest, noisy(hidden, 0)], "retrained 4 model is a copy of the unlearned one"),
        ([noisy(hidden, seed, 0.1) for seed in range(5)], "(copy|copies) of the unlearned one"),
        ([permuted(hidden)], "retrained 0 model is a copy of the unlearned one"),
        ([*honest, permuted(world.references[0].model)], "retrained 0 model is a copy of the retrained 4 one"),
    ):
        with pytest.raises(RequestError, match=message):
            world.quick(hidden, retrained=given, never_saw=None)
    other = famr.Request(classes=["4"])
    wrong = replace(world.references[0], record=replace(world.references[0].record, without=other, images_sha256="x"))  # type: ignore[type-var]
    with pytest.raises(RequestError, match="retrained 0 model is no reference for this request"):
        world.quick(hidden, retrained=[wrong])
    saw = famr.fit(tiny(7), without_three.forget, TRAINING, seed=7, device="cpu").model
    with pytest.raises(RequestError, match=r"retrained 4 model saw the forget set: it puts 100\.0 % of it"):
        world.quick(hidden, retrained=[*honest, saw])


def test_a_looser_threshold_is_refused(world: World) -> None:
    with pytest.raises(RequestError, match=r"may be stricter than 0\.05, not looser"):
        world.quick(world.original, thresholds={"forget_accuracy": 0.5})


# what is left out, and bad input


def test_without_onnx_there_is_no_such_gate_and_the_audit_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "onnx_missing", lambda: "onnxruntime is not installed")
    found = audit(world.original, world.scored, device="cpu")
    names = {check.name for check in found.checks}
    assert "onnx_comes_back" not in names
    assert "int8_comes_back" in names
    assert "onnx: not available: onnxruntime is not installed" in found.notes


def test_a_gate_is_added_by_one_line_in_the_mapping(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(
        name="retain_training_accuracy_gap",
        title="accuracy on retained training images differs from retrained models",
        description="|accuracy − retrained| on retained training images.",
        threshold=0.03,
        measure=gap_to_references(hits_on("retain")),
    )
    for name in list(GATES):
        monkeypatch.delitem(GATES, name)
    monkeypatch.setitem(GATES, gate.name, gate)
    found = world.quick(world.original.copy(), retrained=world.references[:2])
    (result,) = found.checks
    assert (result.name, result.threshold, result.needs_retrained) == (gate.name, 0.03, True)
    assert set(result.verdicts) == {"unlearned", "original", "head only", "never saw", "retrained"}
    assert found.to_json()["checks"][0]["says"] == gate.description
    assert found.subject["thresholds"] == {gate.name: 0.03}
    again = audit(world.original, world.scored, quick=True, thresholds={gate.name: 1e-6}, device="cpu")
    assert again.checks[0].threshold == 1e-6


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


def test_without_a_retrained_model_nothing_is_invented(world: World) -> None:
    found = audit(world.original, world.scored, quick=True, device="cpu")
    assert {check.name for check in found.checks if not check.needs_retrained} == {"forget_accuracy"}
    assert found.stated["tug_of_war"]["not_available"] == "no retrained model was given"
    assert "original was not given" in found.stated["before_and_after"]["not_available"]
    assert found.verdicts["unlearned"] == "fail"  # it still knows the class; that takes no reference
    for check in (check for check in found.checks if check.needs_retrained):
        assert check.figures["unlearned"].value is None
        assert "no retrained model" in str(check.figures["unlearned"].why_not)


def test_too_few_images_cannot_tell(world: World, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=[1, 2, 3]))
    found = audit(world.original, splits, retrained=[tiny(9)], device="cpu")
    assert set(found.verdicts.values()) == {"cannot tell"}
    assert any("3 forget images are too few" in note for note in found.notes)


def test_an_audit_needs_the_whole_data(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.take(torch.arange(30)), digits.labels)
    with pytest.raises(RequestError, match="whole data"):
        audit(original, alone, device="cpu")


# the command


def test_the_command_appends_its_audits_and_exits_by_its_gates(
    original_run: Path, retrained_runs: list[Trained], tmp_path: Path, run: Callable[..., Outcome], cheap: None
) -> None:
    folder = tmp_path / "no-3"
    options = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *options, "--paper", "--learning-rate", "5e-5", "--quiet").code == 0
    references: list[str | Path] = []
    three = famr.Request(classes=["3"])
    for index, trained in enumerate(retrained_runs[:2]):
        references += ["--retrained", trained.save(tmp_path / f"retrained-{index}", without=three)]
    brief = ("--quick", "--device", "cpu")
    for shopping, message in (
        (("--retrained", folder, "--retrained", folder), "retrained 0 model is the unlearned one"),
        ((*references, "--retrained", original_run), "retrained 2 model is the original one"),
    ):
        refused = run("audit", folder, *shopping, *brief)
        assert (refused.code, message in refused.err) == (2, True), refused.err
    assert not (folder / "unlearning/audit.json").exists()

    outcome = run("audit", folder, *references, *brief, "--json")
    assert outcome.code == 7
    record = json.loads((folder / "unlearning/audit.json").read_text(encoding="utf-8"))
    assert record["verdicts"]["unlearned"] == record["verdicts"]["original"] == "fail"
    assert "original_head_gap" in outcome.err
    assert [each["not_shown"] for each in record["subject"]["references"]] == [[], []]
    assert run("evaluate", folder, "--device", "cpu").code == 0
    lenient = tmp_path / "lenient.json"
    lenient.write_text(json.dumps(dict.fromkeys(record["subject"]["thresholds"], 1.0)), encoding="utf-8")
    looser = run("audit", folder, *references, *brief, "--thresholds", lenient)
    assert (looser.code, "not looser" in looser.err) == (2, True)
    again = run("audit", folder, *references[:2], *brief, "--seed", 1)
    assert again.code == 7
    assert "verdict" in again.out
    assert "2 audits: fail, fail (the latest)" in again.err
    assert [each.verdict for each in read_audits(folder)] == ["fail", "fail"]
    first = json.loads((folder / "unlearning/audits/0001.json").read_text(encoding="utf-8"))
    assert {name: first[name] for name in record} == record


def test_the_command_trains_a_never_saw_control_as_the_original_was_trained(
    original_run: Path,
    trained: Trained,
    without_three: famr.Splits,
    tmp_path: Path,
    run: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "no-3"
    options = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *options, "--paper", "--epochs", 1, "--no-gates", "--quiet").code == 0
    given: dict[str, Any] = {}

    def stop(*_models: object, **options: Any) -> Audit:
        given.update(options)
        raise RequestError("enough")

    monkeypatch.setattr("famr.cli.audit.audit", stop)
    assert run("audit", folder, "--device", "cpu").code == 2
    control = given["never_saw"]
    assert control.record.without == famr.Request(classes=["3"])
    assert control.record.training["epochs"] == trained.training.epochs // NEVER_SAW_EPOCHS
    assert control.record.training["learning_rate"] == trained.training.learning_rate
    assert without_three.retain is not None
    assert control.record.images_sha256 == ids_digest(without_three.retain.ids)
    quick = run("audit", folder, "--device", "cpu", "--quick")
    assert (quick.code, given["never_saw"]) == (2, None)
