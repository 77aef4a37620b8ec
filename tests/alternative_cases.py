"""A small network that knows the digits, and every alternative with numbers that suit it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import nn

import famr
from famr.baselines import (
    SSD,
    Alternative,
    BadTeacher,
    BoundaryShrink,
    Delete,
    FineTune,
    Forsaken,
    GradientAscent,
    L1Sparse,
    LabelAnnealing,
    NegGradPlus,
    NewtonHead,
    Ours,
    RandomLabels,
    Retrain,
    SalUn,
    Scrub,
    SisaRemoval,
)
from famr.baselines.work import WeightChange, Work
from famr.data import Data, Images
from famr.data.images import PixelCache
from famr.sisa.ensemble import train_sisa

PREPROCESSING = famr.Preprocessing(8, (8, 8), (0.3,), (0.4,))
TRAINING = famr.Training(epochs=8, batch_size=64, learning_rate=3e-3, augmentation=None)


def convolutional() -> nn.Module:
    """With BatchNorm and dropout, so that it shows who trains them."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 48),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(48, 10),
    )


def plain() -> nn.Module:
    """Nothing in it depends on training mode."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def start(seed: int, network: Callable[[], nn.Module] = convolutional) -> famr.Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return famr.Classifier(network(), tuple("0123456789"), PREPROCESSING)


def stepping(method: Any, **changes: Any) -> Any:
    """The method with other steps."""
    return replace(method, steps=replace(method.steps, **changes))


def cases(data: Data) -> dict[str, Alternative]:
    """Each method with numbers for 146 forget images and a network of 13,000 weights; the papers have other ones."""
    sisa = train_sisa(
        lambda seed: start(seed, plain),
        data.train,
        shards=2,
        slices=1,
        training=replace(TRAINING, epochs=4, batch_size=32),
        device="cpu",
    )
    methods = (
        Ours(famr.FAMR(strength=1.0, edit_head=True, edited_share=1.0, function_images=5)),
        Retrain(replace(TRAINING, epochs=4), start),
        stepping(FineTune(), epochs=4, learning_rate=1e-1, batch_size=64),
        stepping(GradientAscent(), learning_rate=4e-3, batch_size=64),
        stepping(NegGradPlus(alpha=0.9), epochs=1, batch_size=64),
        stepping(RandomLabels(), epochs=2, learning_rate=3e-2, batch_size=64),
        stepping(SalUn(), epochs=2, learning_rate=3e-2, batch_size=64),
        stepping(Scrub(), epochs=3, learning_rate=1e-2, batch_size=64),
        SSD(alpha=5.0, batch_size=32),
        stepping(BadTeacher(), epochs=4, learning_rate=3e-3, batch_size=64),
        stepping(BoundaryShrink(), learning_rate=3e-3),
        stepping(L1Sparse(), epochs=4, learning_rate=1e-1, batch_size=64),
        NewtonHead(),
        SisaRemoval(sisa),
        stepping(Forsaken(penalty=0.1), epochs=10, learning_rate=3e-2, batch_size=64),
        stepping(LabelAnnealing(), epochs=2, learning_rate=3e-2, batch_size=64),
        stepping(Delete(), epochs=10, learning_rate=1e-2, batch_size=64),
    )
    return {method.name: method for method in methods}


NAMES = (
    "FAMR",
    "retrain",
    "fine-tune",
    "gradient ascent",
    "NegGrad+",
    "random labels",
    "SalUn",
    "SCRUB",
    "SSD",
    "bad teacher",
    "boundary shrink",
    "ℓ₁-sparse",
    "Newton step on the head",
    "SISA",
    "Forsaken",
    "label annealing",
    "DELETE",
)


class LookedError(AssertionError):
    """An image was looked at that must not be."""


def unseen(images: Images) -> Images:
    """The same images, but an error for whoever looks at one."""

    def decode(row: int) -> Image.Image:
        raise LookedError(images.all_ids[row])

    return replace(images, decode=decode, cache=PixelCache())


class Peek(WeightChange):
    """Does nothing to the model, but shows what a method works with."""

    name = "peek"
    paper = "none"

    def __init__(self, look: Callable[[Work], None]) -> None:
        self.look = look

    def trials(self) -> Iterable[Peek]:  # type: ignore[override]
        yield self

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}

    def change(self, work: Work) -> None:
        self.look(work)
