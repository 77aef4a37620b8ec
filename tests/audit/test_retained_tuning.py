"""Fine-tuning on retained images alone: a class behind a moved boundary comes back, one never learned does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import famr
from audited import same_weights, weights_of, with_low_bias
from famr.audit.gates.retained_tuning import RETAINED_TUNING_PROBABILITY_GAP, RETAINED_TUNING_RANK_GAP
from famr.audit.retained_tuning import RetainedTuning, RetainedTuningConfig, tune_on_retained
from famr.audit.verdict import FALSE_FAILS, GateResult
from famr.data.loaders import image_batches
from famr.engine.inference import predict
from famr.errors import NumericsError, RequestError
from famr.metrics.predictions import Predictions
from made_up import compared, measured, right_for

CPU = torch.device("cpu")
BRIEF = RetainedTuningConfig(images=64, steps=2, batch_size=64, learning_rate=1e-3)


def test_steps_are_adam_on_retained_images_alone_in_evaluation_mode(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    assert without_three.retain is not None
    some = without_three.retain.take(torch.arange(64))
    before = weights_of(original)
    found = tune_on_retained(original, without_three.forget, some, BRIEF, device="cpu")
    assert same_weights(before, weights_of(original))
    student = original.copy()
    student.module.eval()
    batch = next(iter(image_batches(some, student.require_preprocessing(), 64, CPU)(None)))
    optimiser = torch.optim.Adam(student.module.parameters(), lr=1e-3)
    for _step in range(2):
        optimiser.zero_grad()
        F.cross_entropy(student.logits(batch.images), batch.labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    slow = predict(student, without_three.forget, CPU).logits
    torch.testing.assert_close(found.forget.logits, slow, atol=2e-3, rtol=2e-3)  # the order within a batch


def test_a_class_hidden_by_its_bias_gains_where_one_never_seen_does_not(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    """Behind a bias of −5 the class is second to none but the best: its rank gives it away, before and after."""
    assert without_three.retain is not None
    config = RetainedTuningConfig(steps=20)
    found = {
        name: tune_on_retained(model, without_three.forget, without_three.retain, config, device="cpu")
        for name, model in (("hidden", with_low_bias(original, by=5.0)), ("retrained", retrained))
    }
    figures = {name: each.to_json() for name, each in found.items()}
    assert figures["hidden"]["true_class_probability"] > 20 * figures["retrained"]["true_class_probability"]
    assert json.loads(json.dumps(figures))["hidden"]["images"] == len(without_three.forget)


def tuned(true: float, others: float) -> RetainedTuning:
    """Predictions whose logit of the true class is `true`, of half of the remaining ones `others`, of the rest −9."""
    logits = torch.full((50, 9), -9.0)
    logits[:, 0] = true
    logits[:, 1:5] = others
    return RetainedTuning(Predictions(logits, torch.zeros(50, dtype=torch.long)))


def test_the_gates_are_gaps_of_probability_and_of_rank(without_three: famr.Splits) -> None:
    labels = torch.arange(50) % 5
    bare = measured(right_for(0, labels), right_for(0.9, labels))
    never, back, second = tuned(-20.0, 0.0), tuned(0.0, 0.0), tuned(-8.0, 0.0)
    models = {"unlearned": replace(bare, retained_tuning=second), "original": replace(bare, retained_tuning=back)}
    audit = compared(without_three, models, [replace(bare, retained_tuning=never)] * 5)
    verdicts, values = {}, {}
    for gate in (RETAINED_TUNING_PROBABILITY_GAP, RETAINED_TUNING_RANK_GAP):
        assert gate.applies(audit)
        result = GateResult.of(gate, gate.measure(audit), gate.threshold, FALSE_FAILS)
        verdicts[gate.name] = result.verdicts
        values[gate.name] = {name: estimate.value for name, estimate in result.figures.items()}
    probability, rank = RETAINED_TUNING_PROBABILITY_GAP.name, RETAINED_TUNING_RANK_GAP.name
    assert values[probability]["original"] == pytest.approx(0.2, abs=1e-4)
    assert verdicts[probability] == {"unlearned": "pass", "original": "fail", "retrained": "pass"}
    assert values[rank] == pytest.approx({"unlearned": 0.5, "original": 1.0, "retrained": 0.0})
    assert verdicts[rank] == {"unlearned": "fail", "original": "fail", "retrained": "pass"}
    quick = replace(audit, audited={"unlearned": bare})
    assert not RETAINED_TUNING_PROBABILITY_GAP.applies(quick)


def test_bad_settings_unlabelled_images_and_divergence_are_errors(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    forget, retain = without_three.forget, without_three.retain
    assert retain is not None
    with pytest.raises(RequestError, match="`learning_rate` must be above 0"):
        RetainedTuningConfig(learning_rate=float("inf"))
    with pytest.raises(RequestError, match="needs their classes"):
        tune_on_retained(original, forget.with_targets([-1] * len(forget)), retain, device="cpu")
    wild = RetainedTuningConfig(images=64, steps=5, learning_rate=1e30)
    with pytest.raises(NumericsError, match="diverged"):
        tune_on_retained(original, forget, retain, wild, device="cpu")
