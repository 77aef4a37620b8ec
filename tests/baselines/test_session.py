"""The batches, forward passes and counts that baselines work with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import famr
from baselines.cases import TRAINING, plain, session_of, start
from famr.baselines import FineTune, RandomLabels
from famr.data import Data, Images
from famr.data.augmentation import Augmentation
from famr.data.images import PixelCache
from famr.data.loaders import device_pixels
from famr.engine.devices import autocast

AUGMENTATION = Augmentation(smallest_area=0.8, mirror=False)


@pytest.fixture(scope="module")
def model(digits: Data) -> famr.Classifier:
    return famr.fit(start(0, plain), digits.train, replace(TRAINING, epochs=1), device="cpu").model


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Keep sets on the device, as on a GPU; the sizes of the sets that are kept."""

    def keep() -> list[int]:
        sizes: list[int] = []

        def stored(images: Images, preprocessing: famr.Preprocessing, device: torch.device) -> Tensor | None:
            sizes.append(len(images))
            return device_pixels(images, preprocessing, device, room=1 << 30)

        for module in ("famr.data.loaders", "famr.baselines.base"):
            monkeypatch.setattr(f"{module}.gpu_pixels", stored)
        return sizes

    return keep


def fresh(splits: famr.Splits) -> famr.Splits:
    """The same splits with an empty cache."""
    assert splits.retain is not None
    cache = PixelCache()
    return replace(
        splits, forget=replace(splits.forget, cache=cache), retain=replace(splits.retain, cache=cache), test=None
    )


def test_a_pass_depends_on_the_seed_and_the_epoch_alone(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    first, again, later = (
        torch.cat([batch.positions for batch in session.forget_batches(50, epoch)]) for epoch in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert first.sort().values.tolist() == list(range(146))
    other = torch.cat([batch.positions for batch in session_of(model, without_three).forget_batches(50, 1)])
    assert torch.equal(first, other)


def test_batches_have_the_counted_number_and_full_retain_batches(
    model: famr.Classifier, without_three: famr.Splits
) -> None:
    session = session_of(model, without_three)
    assert len(list(session.forget_batches(50, 1))) == session.forget_steps(50) == 3
    retain = list(session.retain_batches(100, 1))
    assert [len(batch.labels) for batch in retain] == [100] * session.retain_steps(100) == [100] * 12
    assert len(list(session.retain_batches(5000, 1))) == session.retain_steps(5000) == 1


def test_paired_batches_repeat_the_forget_set_as_needed(model: famr.Classifier, without_three: famr.Splits) -> None:
    pairs = list(session_of(model, without_three).paired_batches(60, 100, 1))
    assert [len(retain.labels) for _, retain in pairs] == [100] * 12
    assert [len(forget.labels) for forget, _ in pairs] == [60, 60, 26] * 4
    first, second = (torch.cat([forget.positions for forget, _ in pairs[start : start + 3]]) for start in (0, 3))
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(146))
    assert not torch.equal(first, second)


def test_mixed_batches_hold_both_sets_in_their_proportion(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    batches = list(session.mixed_batches(100, 1))
    assert len(batches) == session.mixed_steps(100) == 14
    for batch in batches[:-2]:
        assert len(batch.images) == len(batch.labels) == 100
        assert int(batch.forgotten.sum()) == 10  # 146 of 1,438 images
        assert batch.labels[batch.forgotten].tolist() == [3] * 10
        assert 3 not in batch.labels[~batch.forgotten].tolist()


def test_labels_replace_those_of_the_forget_images(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    labels = torch.arange(146)
    for batch in session.forget_batches(50, 1, labels=labels):
        assert torch.equal(batch.labels, batch.positions)
    for forget, retain in session.paired_batches(50, 100, 1, labels=labels):
        assert torch.equal(forget.labels, forget.positions)
        assert torch.equal(retain.labels, session.retain.targets[retain.positions])
    for mixed in session.mixed_batches(100, 1, labels=labels + 1000):
        assert bool((mixed.labels[mixed.forgotten] >= 1000).all())


def test_augmented_views_reach_the_steps_and_depend_on_the_seed(
    model: famr.Classifier, without_three: famr.Splits
) -> None:
    plain_run, first, again = (
        FineTune()
        .with_numbers(epochs=1, batch_size=64, augmentation=augmentation)
        .unlearn(model, without_three, seed=2, device="cpu")
        .model.digest()
        for augmentation in (None, AUGMENTATION, AUGMENTATION)
    )
    assert first == again != plain_run


@pytest.mark.parametrize("augmentation", [None, AUGMENTATION])
def test_images_on_the_device_give_the_same_batches(
    augmentation: Augmentation | None,
    model: famr.Classifier,
    without_three: famr.Splits,
    on_device: Callable[[], list[int]],
) -> None:
    decoded = list(session_of(model, fresh(without_three), augmentation).forget_batches(50, 3))
    sizes = on_device()
    stored = list(session_of(model, fresh(without_three), augmentation).forget_batches(50, 3))
    assert sizes == [146]
    assert len(stored) == len(decoded) == 3
    for one, other in zip(decoded, stored, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_baseline_with_images_on_the_device_makes_the_same_model(
    model: famr.Classifier, without_three: famr.Splits, on_device: Callable[[], list[int]]
) -> None:
    method = RandomLabels().with_numbers(epochs=2, batch_size=64)
    decoded = method.unlearn(model, fresh(without_three), device="cpu").model
    sizes = on_device()
    stored = method.unlearn(model, fresh(without_three), device="cpu").model
    assert {146, 1292} <= set(sizes)
    torch.testing.assert_close(stored.module.state_dict(), decoded.module.state_dict(), rtol=1e-3, atol=1e-5)


def test_forward_passes_are_counted(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    (batch,) = session.batches(session.forget, 146)
    session.logits(batch.images)
    session.logits(batch.images, session.frozen_copy())
    session.predictions(session.forget)
    assert session.image_passes == 3 * 146


def test_logits_are_those_of_the_model_or_of_other_weights(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    (batch,) = session.batches(session.forget, 146)
    torch.testing.assert_close(session.logits(batch.images), model.logits(batch.images))
    zeros = {name: torch.zeros_like(weight) for name, weight in model.module.named_parameters()}
    assert not bool(session.logits(batch.images, weights=zeros).any())
    torch.testing.assert_close(session.predictions(session.forget).logits, model.logits(batch.images))


def test_logits_in_bf16_are_returned_in_float32(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    session.precision = "bf16"
    (batch,) = session.batches(session.forget, 146)
    logits = session.logits(batch.images)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, model.logits(batch.images))
    with autocast(torch.device("cpu"), "bf16"):
        torch.testing.assert_close(logits, model.logits(batch.images).float(), rtol=0.1, atol=0.1)


def test_a_frozen_copy_takes_no_gradients(model: famr.Classifier, without_three: famr.Splits) -> None:
    frozen = session_of(model, without_three).frozen_copy()
    assert not any(parameter.requires_grad for parameter in frozen.module.parameters())
    assert all(parameter.requires_grad for parameter in copy.deepcopy(model.module).parameters())
