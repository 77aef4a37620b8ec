"""Training: it learns, it is deterministic, and a retrained reference never sees a forgotten image."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import famr
from conftest import NEEDS_CUDA
from famr.data import Data, Images
from famr.data.augmentation import Augmentation, augment
from famr.errors import NumericsError, RequestError
from famr.training import Trained
from famr.training.steps import GradientSteps

SMALL_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}


def start(digits: Data) -> famr.Classifier:
    return famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=SMALL_VIT)


def test_training_learns_the_digits(trained: Trained, digits: Data) -> None:
    from famr.engine.inference import accuracy_on_images

    assert digits.test is not None
    assert accuracy_on_images(trained.model, digits.test, torch.device("cpu")) > 0.9  # type: ignore[operator]
    assert trained.history[-1].loss < 0.3 * trained.history[0].loss


def test_the_same_seed_trains_the_same_model(digits: Data) -> None:
    training = famr.Training(epochs=1)
    model = start(digits)
    first, again, other = (
        famr.fit(model, digits.train, training, seed=s, device="cpu").model.digest() for s in (0, 0, 1)
    )
    assert first == again != other


@NEEDS_CUDA
def test_on_cuda_steps_are_recorded_from_the_first_training_of_a_process_on(digits: Data) -> None:
    from famr.data.transforms import _constants

    _constants.cache_clear()  # as in a fresh process
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "The steps of this network run one by one …"
        famr.fit(start(digits), digits.train, famr.Training(epochs=1), device="cuda")


def test_a_training_frees_its_steps_without_the_garbage_collector(
    digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded steps of one training hold gigabytes on a GPU, and many trainings follow each other in an audit."""
    made: list[weakref.ref[GradientSteps]] = []
    init = GradientSteps.__init__

    def noted(self: GradientSteps, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        made.append(weakref.ref(self))

    monkeypatch.setattr(GradientSteps, "__init__", noted)
    few = digits.train.take(torch.arange(64))
    gc.disable()
    try:
        famr.fit(start(digits), few, famr.Training(epochs=1, batch_size=32), device="cpu")
        assert [steps() for steps in made] == [None]
    finally:
        gc.enable()


def test_the_given_model_is_not_trained_in_place(digits: Data) -> None:
    model = start(digits)
    before = model.digest()
    famr.fit(model, digits.train.take(torch.arange(64)), famr.Training(epochs=1), device="cpu")
    assert model.digest() == before


def test_a_retrained_reference_never_decodes_a_forgotten_image(digits: Data) -> None:
    decoded: list[int] = []

    def noted(row: int):  # type: ignore[no-untyped-def]
        decoded.append(row)
        return digits.train.decode(row)

    fresh = famr.open_data("digits")
    watched = replace(fresh, train=replace(fresh.train, decode=noted))
    splits = famr.split(watched, famr.Request(classes=["3"]))
    assert splits.retain is not None
    famr.fit(start(digits), splits.retain, famr.Training(epochs=2), device="cpu")
    assert len(decoded) >= len(splits.retain) - 127  # all but a short last batch, each decoded once
    assert not set(decoded) & set(splits.forget.rows.tolist())


def test_bf16_trains_nearly_the_same_model(digits: Data) -> None:
    model, training = start(digits), famr.Training(epochs=1)
    full, half = (
        famr.fit(model, digits.train, replace(training, precision=precision), device="cpu").model
        for precision in ("fp32", "bf16")
    )
    assert all(parameter.dtype == torch.float32 for parameter in half.module.parameters())
    assert 0 < distance(half, full) < 0.2 * distance(full, model)


def distance(one: famr.Classifier, other: famr.Classifier) -> float:
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    return sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5


def test_a_training_step_depends_on_its_tensors_alone(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step reads images and labels from fixed buffers, and η from the optimiser."""

    class Buffered:
        def __init__(self, step: Callable[..., torch.Tensor], _device: torch.device, _warmup: int) -> None:
            self._step, self._buffers = step, []

        def __call__(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            self._buffers = self._buffers or [tensor.clone() for tensor in tensors]
            for buffer, tensor in zip(self._buffers, tensors, strict=True):
                buffer.copy_(tensor)
            steps.append(1)
            return self._step(*self._buffers)

    steps: list[int] = []
    model, training = start(digits), famr.Training(epochs=2)
    plain = famr.fit(model, digits.train, training, device="cpu")
    monkeypatch.setattr("famr.training.steps._replayed", Buffered)
    buffered = famr.fit(model, digits.train, training, device="cpu")
    assert len(steps) == plain.history[-1].step
    assert buffered.model.digest() == plain.model.digest()
    assert [row.loss for row in buffered.history] == [row.loss for row in plain.history]


def test_the_steps_are_those_of_a_plain_loop() -> None:
    """Clip, update, set η: as anyone would write it."""
    images, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(networks[0](inputs), targets)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 4)
    networks = [network, copy.deepcopy(network)]
    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=1.0) for each in networks)
    rates = [0.1, 0.05, 0.2]
    steps = GradientSteps([*network.parameters()], ours, lambda step: rates[step], torch.device("cpu"), clip=0.3)
    for rate in rates:
        assert steps.rate == rate
        value = steps.take(loss, (images, labels))
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        expected = torch.nn.functional.cross_entropy(networks[1](images), labels)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(networks[1].parameters(), 0.3)
        theirs.step()
        assert torch.equal(value, expected.detach())
    for a, b in zip(network.parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_weight_decay_leaves_out_biases_and_normalisation(digits: Data) -> None:
    images = digits.train.take(torch.arange(64))
    still = replace(famr.Training(epochs=1, batch_size=64, augmentation=None), learning_rate=1e-12)
    model = start(digits)
    heavy = famr.fit(model, images, replace(still, weight_decay=1e11), device="cpu").model.module.state_dict()
    for name, before in model.module.state_dict().items():
        moved = not torch.allclose(before, heavy[name], atol=1e-6)
        decayed = before.ndim > 1 and bool(before.abs().max() > 1e-4)
        assert moved == decayed, name


def test_an_unmoved_view_is_the_image_itself() -> None:
    pixels = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    whole = Augmentation(smallest_area=1.0, widest_aspect=1.0, mirror=False)
    view = augment(pixels, (16, 16), whole, torch.Generator().manual_seed(0))
    torch.testing.assert_close(view, pixels.float(), atol=0.05, rtol=0)


def test_mirroring_turns_half_of_the_images() -> None:
    pixels = torch.arange(16, dtype=torch.uint8).repeat(200, 1, 16, 1)
    mirror = Augmentation(smallest_area=1.0, widest_aspect=1.0, mirror=True)
    view = augment(pixels, (16, 16), mirror, torch.Generator().manual_seed(0))
    turned = view[:, 0, 0, 0] > view[:, 0, 0, -1]
    torch.testing.assert_close(view[turned][0], pixels[0].float().flip(-1), atol=0.05, rtol=0)
    assert 60 < int(turned.sum()) < 140


def test_crops_stay_inside_the_image() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).mul(4).repeat(100, 1, 64, 1)
    view = augment(ramp, (32, 32), Augmentation(smallest_area=0.3), torch.Generator().manual_seed(0))
    span = (view[:, 0, 0, :].amax(dim=-1) - view[:, 0, 0, :].amin(dim=-1)) / 252
    assert float(span.min()) > 0.4  # √0.3 of the width, less the aspect
    assert float(span.max()) <= 1.0


def test_a_diverging_training_is_an_error(digits: Data) -> None:
    wild = famr.Training(epochs=2, learning_rate=1e30, warmup_share=0.0, gradient_clip=1e30)
    with pytest.raises(NumericsError, match="no longer a finite number"):
        famr.fit(start(digits), digits.train, wild, device="cpu")


def test_images_without_labels_cannot_be_trained_on(digits: Data) -> None:
    unlabelled: Images = digits.train.with_targets([-1] * 10)
    with pytest.raises(RequestError, match="class for every image"):
        famr.fit(start(digits), unlabelled, device="cpu")


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("learning_rate", -1.0), ("warmup_share", 1.0)])
def test_bad_training_settings_fail_when_they_are_given(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        replace(famr.Training(), **{name: value})  # type: ignore[arg-type]
