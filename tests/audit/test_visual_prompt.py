"""Recovery by a visual prompt: one pattern brings back a class that the network still knows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

import famr
from audited import same_weights, weights_of, with_low_bias
from famr.audit.attack_images import AttackImages
from famr.audit.gates.visual_prompt import VISUAL_PROMPT_GAP
from famr.audit.measurements import ModelMeasurements
from famr.audit.prediction_bound import Shares
from famr.audit.recovery import AttackHits
from famr.audit.verdict import FALSE_FAILS, GateResult
from famr.audit.visual_prompt import PromptConfig, PromptRecovery, recover_by_prompt, train_prompt
from famr.errors import NumericsError, RequestError
from made_up import compared, measured, right_for

CPU = torch.device("cpu")
QUICK = PromptConfig(steps=40)


def test_a_prompt_recovers_a_hidden_class_and_not_one_never_seen(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    hidden = with_low_bias(original, by=100.0)
    before = weights_of(hidden)
    found = {
        name: recover_by_prompt(model, without_three, QUICK, device="cpu")
        for name, model in (("hidden", hidden), ("retrained", retrained))
    }
    assert same_weights(before, weights_of(hidden))
    assert found["hidden"].before.forget_accuracy == 0.0
    assert found["hidden"].under.forget_accuracy > 0.9
    assert found["retrained"].under.forget_accuracy < 0.5
    assert len(found["hidden"].under.forget) == 100
    assert json.loads(json.dumps(found["hidden"].to_json()))["under"]["counts"]["forget"] == 100
    labels = torch.full((100,), 3)
    bare = measured(right_for(0, labels), right_for(0.9, torch.arange(200) % 5))
    models = {name: replace(bare, prompt=each) for name, each in found.items()}
    audit = compared(without_three, {"unlearned": models["hidden"]}, [models["retrained"]] * 5)
    assert VISUAL_PROMPT_GAP.applies(audit)
    result = GateResult.of(
        VISUAL_PROMPT_GAP, VISUAL_PROMPT_GAP.measure(audit), VISUAL_PROMPT_GAP.threshold, FALSE_FAILS
    )
    assert result.verdicts == {"unlearned": "fail", "retrained": "pass"}
    expected = found["hidden"].under.forget_accuracy - found["retrained"].under.forget_accuracy
    assert result.figures["unlearned"].value == pytest.approx(expected)


def test_the_pattern_keeps_its_bound_and_follows_from_the_seed(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    config = PromptConfig(steps=10, learning_rate=5.0, bound=0.1)
    frozen = original.copy()
    frozen.module.eval().requires_grad_(False)
    task = AttackImages.draw(without_three, config.images, seed=1)
    pattern = train_prompt(frozen, task, config, CPU)
    preprocessing = frozen.require_preprocessing()
    assert pattern.shape == (preprocessing.channels, *preprocessing.crop)
    in_pixels = pattern * torch.tensor(preprocessing.std)[:, None, None]
    assert 0.09 < float(in_pixels.abs().max()) <= 0.1 + 1e-6
    assert torch.equal(pattern, train_prompt(frozen, task, config, CPU))


def test_bad_settings_unlabelled_images_and_divergence_are_errors(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    with pytest.raises(RequestError, match="`bound` must be above 0"):
        PromptConfig(bound=0.0)
    unlabelled = famr.forget_only(without_three.forget.with_targets([-1] * len(without_three.forget)))
    with pytest.raises(RequestError, match="needs the classes"):
        recover_by_prompt(original, unlabelled, QUICK, device="cpu")
    ruined = original.copy()
    with torch.no_grad():
        head = ruined.module.head  # type: ignore[union-attr]
        head.weight.fill_(math.nan)  # type: ignore[union-attr,operator]
    with pytest.raises(NumericsError, match="diverged"):
        recover_by_prompt(ruined, without_three, replace(QUICK, steps=1), device="cpu")


def test_the_gate_is_bounded_by_shares_of_images(without_three: famr.Splits) -> None:
    """A prompt recovers nothing from some retrained models and much from others."""

    def model(recovered: int) -> ModelMeasurements:
        hits = AttackHits((torch.arange(40) < recovered).float(), None)
        predictions = right_for(0.0, torch.arange(40) % 5)
        return replace(measured(predictions, predictions), prompt=PromptRecovery(hits, hits))

    recovered = (0, 8, 0, 16, 2)
    models = compared(without_three, {"unlearned": model(30)}, [model(each) for each in recovered])
    assert VISUAL_PROMPT_GAP.measure(models).spread == Shares(tuple(each / 40 for each in recovered), 40)
