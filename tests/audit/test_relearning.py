"""Relearn time: how many steps until a forgotten class is back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import famr
from audited import same_weights, weights_of, with_low_bias
from famr.audit.relearning import (
    CHECKED,
    RECOVERED,
    AttackImages,
    RelearningConfig,
    images_needed,
    level_bias,
    median_steps,
    relearn,
    relearning,
)
from famr.data.loaders import image_batches
from famr.errors import DataError, NumericsError, RequestError
from famr.models.layers import head_of

CPU = torch.device("cpu")
QUICK = RelearningConfig(images=10, steps=25, learning_rate=3e-4)


def test_a_hidden_class_is_back_at_once_and_one_never_seen_is_not(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    hidden = with_low_bias(original, by=100.0)
    before = weights_of(hidden)
    found = relearning(
        {"original": original, "hidden": hidden, "retrained": retrained},
        without_three,
        original,
        QUICK,
        seeds=(0, 1),
        device="cpu",
    )
    assert median_steps(found["original"]) == 0
    assert median_steps(found["hidden"]) == 0
    for run in found["retrained"]:
        assert run.curve[0] < 0.1
        assert run.steps is None or run.steps >= 8
        assert run.curve[-1] > 0.4  # it does learn
    assert same_weights(before, weights_of(hidden))
    assert [run.target for run in found["hidden"]] == [run.target for run in found["retrained"]]
    assert json.loads(json.dumps(found["hidden"][0].to_json()))["steps"] == 0


def test_without_a_levelled_bias_a_low_bias_would_pass_for_forgetting(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    hidden = {"hidden": with_low_bias(original)}
    config = replace(QUICK, steps=5, level_bias=False)
    runs = relearning(hidden, without_three, original, config, seeds=(0,), device="cpu")["hidden"]
    assert median_steps(runs) is None
    assert runs[0].curve == (0.0,) * 6


def test_the_same_seed_gives_the_same_curve(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    config = replace(QUICK, steps=3)
    state = torch.random.get_rng_state()
    first, again, other = (
        relearning({"r": retrained}, without_three, original, config, seeds=(seed,), device="cpu")["r"][0]
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_retained_images_a_step_is_adam_on_the_forgotten_ones(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    bare = replace(without_three, retain=None, test=None)
    config = RelearningConfig(images=6, steps=2, learning_rate=1e-3)
    task = AttackImages.draw(bare, 6, seed=0)
    run = relearn(retrained, task, 2.0, config, CPU)  # a target that is never reached
    student = retrained.copy()
    student.module.eval()
    level_bias(student, {3})
    batch, checked = (
        next(iter(image_batches(images, student.require_preprocessing(), 1000, CPU)(None)))
        for images in (task.learned, task.checked)
    )
    optimiser = torch.optim.Adam(student.module.parameters(), lr=1e-3)
    curve = []
    for _step in range(3):
        with torch.no_grad():
            curve.append(float((student.logits(checked.images).argmax(dim=1) == checked.labels).float().mean()))
        optimiser.zero_grad()
        F.cross_entropy(student.logits(batch.images), batch.labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert run.curve == pytest.approx(tuple(curve), abs=0.02)  # the order within a batch rounds otherwise
    assert run.retain_accuracy is None
    assert run.steps is None
    assert (run.images, run.checked) == (6, CHECKED)


def test_accuracy_is_measured_on_other_images_than_those_learned_from(without_three: famr.Splits) -> None:
    task = AttackImages.draw(without_three, 20, seed=3)
    assert len(task.learned) == 20
    assert not set(task.learned.ids) & set(task.checked.ids)
    assert len(task.checked) == min(CHECKED, len(without_three.forget) - 20)
    assert set(task.checked.ids) < set(without_three.forget.ids)
    with pytest.raises(DataError, match="none is left"):
        AttackImages.draw(without_three, len(without_three.forget), seed=0)


def test_a_levelled_bias_is_the_mean_of_the_remaining_ones(original: famr.Classifier) -> None:
    hidden = with_low_bias(original)
    level_bias(hidden, {3})
    bias = head_of(hidden).bias.tolist()
    assert bias[3] == pytest.approx(sum(bias[:3] + bias[4:]) / 9, abs=1e-6)
    before = weights_of(hidden)
    level_bias(hidden, set())  # samples: no class is forgotten
    assert same_weights(before, weights_of(hidden))


def test_images_needed_are_the_fewest_with_which_most_seeds_reach_the_target(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    run = relearning({"o": original}, without_three, original, replace(QUICK, steps=1), seeds=(0,), device="cpu")["o"][
        0
    ]
    assert run.target == pytest.approx(RECOVERED * run.curve[0])
    never = replace(run, curve=(0.0, 0.0))
    assert images_needed({20: [run], 5: [run, run, never], 1: [run, never]}) == 5
    assert images_needed({5: [never]}) is None


def test_bad_settings_and_divergence_are_errors(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    with pytest.raises(RequestError, match="`steps` must be above 0"):
        RelearningConfig(steps=0)
    wild = RelearningConfig(images=5, steps=20, learning_rate=1e30)
    with pytest.raises(NumericsError, match="diverged"):
        relearning({"r": retrained}, without_three, original, wild, seeds=(0,), device="cpu")
