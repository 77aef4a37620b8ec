"""Reference models: shown not to have seen the forget set, and trained alike; else refused, or no reason to pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_shadows import tiny

import famr
from famr.audit.measurements import ModelMeasurements
from famr.audit.references import (
    Reference,
    ReferenceFacts,
    differing_settings,
    forget_and_unseen,
    reference_facts,
    trained_unlike,
    why_not_used,
    why_seen,
)
from famr.data import Data
from famr.errors import RequestError
from famr.runs.training_record import TrainingRecord, ids_digest
from made_up import measured, right_for

LABELS = torch.arange(100) % 5
SAW = {"unlearned": "u", "original": "o"}
SETTINGS = {"epochs": 8, "learning_rate": 0.1, "label_smoothing": 0.0, "precision": "fp32", "compile": False}


def good_record(splits: famr.Splits) -> TrainingRecord:
    assert splits.retain is not None
    return TrainingRecord(splits.request, "r", 0, len(splits.retain), ids_digest(splits.retain.ids), SETTINGS)


def facts_of(
    record: TrainingRecord | None,
    splits: famr.Splits,
    model: ModelMeasurements | None = None,
    original: ModelMeasurements | None = None,
) -> ReferenceFacts:
    threes = torch.full((40,), 3)
    never = measured(right_for(0, threes), right_for(0.9, LABELS), forget_test=right_for(0, threes))
    return reference_facts(Reference(tiny(0), record), "retrained 0", model or never, original, splits, "r", SAW)


# its record


def test_a_model_trained_on_exactly_the_retained_images_is_shown_to_be_a_reference(without_three: famr.Splits) -> None:
    facts = facts_of(good_record(without_three), without_three)
    assert facts.not_shown == ()
    assert (facts.forget_accuracy, facts.unseen_accuracy) == (0.0, 0.0)
    record = facts.to_json()["record"]
    assert (record["seed"], record["without"]) == (0, without_three.request.to_json())


def test_a_model_without_a_record_is_not_shown_to_be_one(without_three: famr.Splits) -> None:
    assert facts_of(None, without_three).not_shown == ("there is no record of its training",)


def test_a_record_that_speaks_against_a_model_is_an_error(without_three: famr.Splits, digits: Data) -> None:
    good = good_record(without_three)
    assert without_three.retain is not None
    everything = ids_digest([*without_three.retain.ids, *without_three.forget.ids])
    for record, reason in (
        (replace(good, without=famr.Request(classes=["4"]), images_sha256="x"), "it was trained without class 4"),
        (replace(good, without=None, images_sha256=everything), "it was trained on everything"),
        (replace(good, images_sha256=everything), "include the forget set"),
        (replace(good, weights_sha256="another"), "the record of its training is of other weights"),
        (replace(good, start_sha256="o"), "its training started from the weights of the original"),
        (replace(good, start_sha256="u"), "its training started from the weights of the unlearned"),
    ):
        with pytest.raises(RequestError, match=f"retrained 0 model is no reference for this request: .*{reason}"):
            facts_of(record, without_three)


def test_the_outcome_of_a_training_has_its_record_before_and_after_it_is_saved(
    digits: Data, tmp_path: Path, without_three: famr.Splits
) -> None:
    assert without_three.retain is not None
    brief = famr.Training(epochs=1, augmentation=None)
    trained = famr.fit(tiny(0), without_three.retain.take(torch.arange(128)), brief, seed=3, device="cpu")
    now = Reference.trained_now(trained, without_three.request).record
    saved = trained.save(tmp_path / "retrained")
    later = Reference.of(replace(trained.model, spec=str(saved))).record
    assert now is not None
    assert later is not None
    assert (now.weights_sha256, now.images_sha256, now.seed) == (later.weights_sha256, later.images_sha256, 3)
    assert differing_settings(now, later) == ()
    assert Reference.of(trained.model).record is None
    assert Reference.of(Reference(trained.model, now)).record is now


# its predictions


def test_a_model_that_knows_a_class_saw_it(without_three: famr.Splits) -> None:
    threes = torch.full((40,), 3)
    knows = measured(right_for(0.3, threes), right_for(0.9, LABELS), forget_test=right_for(0.25, threes))
    with pytest.raises(RequestError, match=r"saw the forget set: it puts 30\.0 % of it into classes"):
        facts_of(good_record(without_three), without_three, knows)


def test_a_model_that_leads_on_forgotten_samples_as_the_original_does_saw_them(digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=list(range(100))))
    record = good_record(splits)
    saw, never = (measured(right_for(share, LABELS), right_for(0.8, LABELS)) for share in (1.0, 0.8))
    assert facts_of(record, splits, never, saw).not_shown == ()
    with pytest.raises(RequestError, match=r"right for 100\.0 % of it and for 80\.0 % of unseen images"):
        facts_of(record, splits, saw, saw)


def test_with_few_samples_a_lead_by_chance_is_no_proof_of_having_seen_them() -> None:
    """Three of twenty images more than expected: chance with so few, and none with four hundred."""
    lucky, original, unseen = (torch.tensor([1.0] * hits + [0.0] * (20 - hits)) for hits in (19, 20, 16))
    assert why_seen(lucky, unseen, (original, unseen), classes=False) is None
    many = tuple(values.repeat(20) for values in (lucky, unseen, original))
    assert "as the original is" in str(why_seen(many[0], many[1], (many[2], many[1]), classes=False))


def test_without_a_lead_of_the_original_nothing_can_be_read_off_it() -> None:
    all_right = torch.ones(100)
    assert why_seen(all_right, all_right, (all_right, all_right), classes=False) is None
    assert why_seen(all_right, torch.zeros(100), None, classes=False) is None


def test_unseen_images_have_the_forget_sets_mix_of_classes() -> None:
    """All models are right for class 0 and for half of the others: samples of class 0 alone are no sign of a lead."""
    test = right_for(1.0, LABELS)
    test = replace(test, logits=torch.where((LABELS > 0)[:, None], right_for(0.5, LABELS).logits, test.logits))
    easy = torch.zeros(30, dtype=torch.long)
    forget, unseen = forget_and_unseen(measured(right_for(1.0, easy), test))
    assert (float(forget.mean()), float(unseen.mean())) == (1.0, 1.0)
    mixed = torch.tensor([0] * 30 + [1] * 10)
    _, unseen = forget_and_unseen(measured(right_for(1.0, mixed), test))
    assert float(unseen.mean()) == pytest.approx(0.75 * 1.0 + 0.25 * 0.5)
    absent = torch.full((30,), 7)
    _, unseen = forget_and_unseen(measured(right_for(1.0, absent, classes=9), test))
    assert float(unseen.mean()) == pytest.approx(0.6)


# how it was trained


def references(*settings: dict[str, object]) -> dict[str, Reference]:
    records = [TrainingRecord(None, "r", 0, 1, "x", {**SETTINGS, **each}) for each in settings]
    return {f"retrained {index}": Reference(tiny(0), record) for index, record in enumerate(records)}


def test_references_of_different_trainings_are_an_obstacle() -> None:
    """Their spread would be that of the settings, and allow any model."""
    assert trained_unlike(references({}, {}, {"precision": "bf16", "compile": True}), None) is None
    found = trained_unlike(references({}, {"epochs": 2, "learning_rate": 0.2}), None)
    assert found == "The retrained 1 model was trained unlike the retrained 0 one: epochs, learning_rate differ."
    assert trained_unlike({"retrained 0": Reference(tiny(0)), **references({})}, None) is None
    assert trained_unlike({}, None) is None


def test_references_trained_unlike_the_original_are_an_obstacle(digits: Data, tmp_path: Path) -> None:
    brief = famr.Training(epochs=1, augmentation=None)
    trained = famr.fit(tiny(0), digits.train.take(torch.arange(128)), brief, device="cpu")
    original = replace(trained.model, spec=str(trained.save(tmp_path / "original")))
    now = Reference.trained_now(trained, famr.Request(classes=["3"]))
    assert now.record is not None
    longer = Reference(now.model, replace(now.record, training={**now.record.training, "epochs": 2}))
    assert trained_unlike({"retrained 0": now}, original) is None
    found = trained_unlike({"retrained 0": longer}, original)
    assert found == "The retrained 0 model was trained unlike the original one: epochs differ."
    changed = original.copy()
    with torch.no_grad():
        next(changed.module.parameters()).add_(1)
    assert trained_unlike({"retrained 0": longer}, changed) is None  # the record is not of these weights


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epochs": 2}, None),
        ({"epochs": 2, "precision": "bf16"}, None),
        ({"epochs": 8}, "not trained for fewer epochs than the retrained 0 model"),
        ({"epochs": 2, "label_smoothing": 0.3}, "trained unlike the retrained 0 model: label_smoothing differ"),
    ],
)
def test_a_never_saw_control_differs_from_the_references_in_its_epochs_alone(
    settings: dict[str, object], reason: str | None
) -> None:
    """A gate that it fails does not count, so that its user must not choose what it fails."""
    (never_saw,) = references(settings).values()
    found = why_not_used(never_saw, ReferenceFacts("n", {}, (), 0.0, 0.0), references({}, {}))
    assert found is None if reason is None else reason in str(found)


def test_a_never_saw_control_without_a_record_is_not_used() -> None:
    facts = ReferenceFacts("n", None, ("there is no record of its training",), 0.0, 0.0)
    assert why_not_used(Reference(tiny(0)), facts, references({})) == "there is no record of its training"
