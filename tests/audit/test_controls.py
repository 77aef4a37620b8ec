"""The controls of an audit: edits and trainings of which it is known what a gate has to say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_shadows import tiny

import famr
from famr.audit.controls import NEVER_SAW_EPOCHS, collapsed, head_only_edit, learned_enough, train_never_saw
from famr.audit.gates import GATES
from famr.audit.names import COLLAPSED
from famr.audit.verdict import FALSE_FAILS, GateResult
from famr.data.images import Images
from famr.engine.inference import predict
from famr.models.layers import head_of
from famr.training import Trained, Training
from made_up import compared, measured, right_for

LABELS = torch.arange(200) % 5
CPU = torch.device("cpu")


def test_a_head_only_edit_predicts_as_the_original_without_the_class_and_keeps_its_features(
    without_three: famr.Splits,
) -> None:
    original = tiny(0)
    edited = head_only_edit(original, (3,))
    assert edited is not None
    before, after = (predict(model, without_three.forget, CPU).logits for model in (original, edited))
    masked = before.index_fill(1, torch.tensor([3]), -torch.inf)
    torch.testing.assert_close(torch.softmax(after, -1), torch.softmax(masked, -1))
    changed = [
        name
        for (name, weight), (_, other) in zip(
            original.module.named_parameters(), edited.module.named_parameters(), strict=True
        )
        if not torch.equal(weight, other)
    ]
    assert changed == ["3.bias"]


def test_there_is_no_head_only_edit_without_a_class_or_a_bias() -> None:
    model = tiny(0)
    assert head_only_edit(model, ()) is None
    head_of(model).register_parameter("bias", None)
    assert head_only_edit(model, (3,)) is None


def test_a_never_saw_model_is_trained_as_the_original_for_a_fraction_of_the_epochs(
    without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Training, int, list[str]]] = []

    def fit(model: famr.Classifier, images: Images, training: Training, *, seed: int, device: str | None) -> Trained:
        calls.append((training, seed, list(images.ids)))
        return Trained(model, training, seed, (), "cpu", "fp32", 0, "", "")

    monkeypatch.setattr("famr.audit.controls.fit", fit)
    assert without_three.retain is not None
    training = Training(epochs=9, learning_rate=0.01)
    train_never_saw(tiny, without_three.retain, training, seed=5, device="cpu")
    train_never_saw(tiny, without_three.retain, replace(training, epochs=1), seed=5, device="cpu")
    (first, seed, ids), (shortest, _, _) = calls
    assert first == replace(training, epochs=9 // NEVER_SAW_EPOCHS)
    assert (shortest.epochs, seed) == (1, 5)
    assert not set(ids) & set(without_three.forget.ids)


def test_a_control_that_learned_next_to_nothing_is_not_used() -> None:
    assert learned_enough(0.8, [1.0, 1.0])
    assert not learned_enough(0.79, [1.0, 1.0])
    assert not learned_enough(0.9, [])


def test_a_collapsed_model_fails_the_gates_on_utility(without_three: famr.Splits) -> None:
    """It forgets everything: "no more than retrained" would pass it."""
    references = [measured(right_for(0, LABELS), right_for(0.9, LABELS)) for _ in range(5)]
    model = collapsed(references[0])
    assert model.forget.logits.argmax(dim=1).unique().tolist() == [0]  # the commonest class, the first of several
    models = compared(without_three, {"unlearned": references[0]}, references).with_control(COLLAPSED, model)
    utility = [gate for gate in GATES.values() if gate.kind == "utility"]
    assert utility
    for gate in utility:
        found = GateResult.of(gate, gate.measure(models.for_kind("utility")), gate.threshold, FALSE_FAILS)
        assert found.verdicts == {"unlearned": "pass", "retrained": "pass", "collapsed": "fail"}
        assert found.not_counted is None
    assert COLLAPSED not in models.for_kind("depth").audited
    assert COLLAPSED not in models.named


def test_a_collapsed_model_under_audit_fails(without_three: famr.Splits) -> None:
    references = [measured(right_for(0, LABELS), right_for(0.9, LABELS)) for _ in range(5)]
    model = collapsed(references[0])
    models = compared(without_three, {"unlearned": model}, references).with_control(COLLAPSED, model)
    gate = GATES["retain_accuracy_gap"]
    found = GateResult.of(gate, gate.measure(models), gate.threshold, FALSE_FAILS)
    assert found.verdicts["unlearned"] == "fail"
    assert found.not_counted is None
