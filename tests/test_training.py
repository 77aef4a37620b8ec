"""Training: it learns, it repeats itself, and a reference never sees what it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import famr
from famr import training as train
from famr.data import Data, Images
from famr.data.augmentation import Augmentation, augment
from famr.data.loaders import Batch
from famr.engine import waking
from famr.errors import NumericsError, RequestError
from famr.training import Trained

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


def test_the_given_model_is_not_trained_in_place(digits: Data) -> None:
    model = start(digits)
    before = model.digest()
    famr.fit(model, digits.train.take(torch.arange(64)), famr.Training(epochs=1), device="cpu")
    assert model.digest() == before


def test_a_retrained_reference_never_decodes_a_forgotten_image(digits: Data) -> None:
    seen: list[int] = []

    def spy(row: int):  # type: ignore[no-untyped-def]
        seen.append(row)
        return digits.train.decode(row)

    fresh = famr.open_data("digits")
    watched = replace(fresh, train=replace(fresh.train, decode=spy))
    splits = famr.split(watched, famr.Request(classes=["3"]))
    assert splits.retain is not None
    famr.fit(start(digits), splits.retain, famr.Training(epochs=2), device="cpu")
    assert len(seen) >= len(splits.retain) - 127  # all but a short last batch, each decoded once
    assert not set(seen) & set(splits.forget.rows.tolist())


def test_lean_steps_train_the_same_model(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """What spares traffic on a GPU changes no more than rounding does: in float32 next to nothing."""
    monkeypatch.setattr(waking, "_AWAKE", set())
    model, training = start(digits), famr.Training(epochs=1)
    plain = famr.fit(model, digits.train, training, device="cpu")
    asked: list[bool] = []
    monkeypatch.setattr(train, "lean_pays", lambda _device: asked.append(True) or True)  # type: ignore[func-returns-value]
    lean = famr.fit(model, digits.train, training, device="cpu")
    assert asked
    went = apart(plain.model, model)
    assert 0 < apart(lean.model, plain.model) < 1e-3 * went
    halved = replace(training, precision="bf16")
    assert apart(famr.fit(model, digits.train, halved, device="cpu").model, plain.model) < 0.2 * went
    monkeypatch.undo()
    assert apart(famr.fit(model, digits.train, halved, device="cpu").model, plain.model) < 0.2 * went  # as autocast is


def test_training_wakes_the_libraries_that_a_later_run_would_wake(
    digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of attention, where the network has some."""
    some, training = digits.train.take(torch.arange(32)), famr.Training(epochs=1, batch_size=16)
    without = famr.new_model("timm:resnet10t", digits.labels, from_scratch=True)
    for model, lean, awake in ((start(digits), False, 0), (without, True, 0), (start(digits), True, 1)):
        monkeypatch.setattr(waking, "_AWAKE", found := set())
        monkeypatch.setattr(train, "lean_pays", lambda _device, lean=lean: lean)
        famr.fit(model, some, training, device="cpu")
        assert len(found) == awake


def apart(one: famr.Classifier, other: famr.Classifier) -> float:
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    return sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5


def test_a_captured_step_trains_the_same_model(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads images, labels and places where the first batch lay, η from the optimiser, and nothing else."""

    class Replayed:
        def __init__(self, step: train.Stepping, device: torch.device, plain: int) -> None:  # noqa: ARG002
            self.step, self.held, self.left = step, None, []

        def __call__(self, batch: Batch, sizes: tuple[int, ...], left: int) -> torch.Tensor:
            assert sizes == (len(batch.images),)
            self.left.append(left)
            if self.held is None:
                self.held = Batch(*(tensor.clone() for tensor in batch))
            for place, tensor in zip(self.held, batch, strict=True):
                place.copy_(tensor)
            return self.step(self.held)

    model, training = start(digits), famr.Training(epochs=2)
    plain = famr.fit(model, digits.train, training, device="cpu")
    made: list[Replayed] = []

    def taking(step: train.Stepping, device: torch.device) -> train.Taking:
        made.append(Replayed(step, device, 3))
        return lambda batch, left: made[0](batch, (len(batch.images),), left)

    monkeypatch.setattr(train, "_taking", taking)
    replayed = famr.fit(model, digits.train, training, device="cpu")
    assert replayed.model.digest() == plain.model.digest()
    assert [row.loss for row in replayed.history] == [row.loss for row in plain.history]
    steps = plain.history[-1].step
    assert made[0].left == list(range(steps, 0, -1))


def test_weight_decay_spares_biases_and_norms(digits: Data) -> None:
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
