"""Small networks for the digits, and every baseline with numbers that suit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from PIL import Image
from torch import nn

import famr
from famr.baselines import (
    BASELINES,
    SSD,
    BadTeacher,
    Baseline,
    BoundaryShrink,
    Delete,
    FamrMethod,
    FineTune,
    Forsaken,
    GradientAscent,
    L1Sparse,
    LabelAnnealing,
    NegGradPlus,
    NewtonHead,
    RandomLabels,
    Retrain,
    SalUn,
    Scrub,
    SisaRemoval,
)
from famr.baselines.base import RunSettings
from famr.baselines.session import BaselineSession
from famr.data import Data, Images
from famr.data.augmentation import Augmentation
from famr.data.images import PixelCache
from famr.sisa import train_sisa

PREPROCESSING = famr.Preprocessing(8, (8, 8), (0.3,), (0.4,))
TRAINING = famr.Training(epochs=8, batch_size=64, learning_rate=3e-3, augmentation=None)
NAMES = tuple(method.name for method in BASELINES.values())


def convolutional() -> nn.Module:
    """With BatchNorm and dropout, so that training mode makes a difference."""
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
    """Without BatchNorm and dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def start(seed: int, network: Callable[[], nn.Module] = convolutional) -> famr.Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return famr.Classifier(network(), tuple("0123456789"), PREPROCESSING)


def cases(data: Data) -> dict[str, Baseline]:
    """Each method with numbers for 146 forget images and a network of 13,000 weights; those of the papers differ."""
    sisa = train_sisa(
        lambda seed: start(seed, plain),
        data.train,
        shards=2,
        slices=1,
        training=replace(TRAINING, epochs=4, batch_size=32),
        device="cpu",
    )
    methods: tuple[Baseline, ...] = (
        FamrMethod(famr.FAMR(strength=1.0, edit_head=True, edited_share=1.0, function_images=5)),
        Retrain(replace(TRAINING, epochs=4), start),
        FineTune().with_numbers(epochs=4, learning_rate=1e-1, batch_size=64),
        GradientAscent().with_numbers(learning_rate=4e-3, batch_size=64),
        NegGradPlus().with_numbers(alpha=0.9, epochs=1, batch_size=64),
        RandomLabels().with_numbers(epochs=2, learning_rate=3e-2, batch_size=64),
        SalUn().with_numbers(epochs=2, learning_rate=3e-2, batch_size=64),
        Scrub().with_numbers(epochs=3, learning_rate=3e-3, batch_size=64),
        SSD(alpha=5.0, batch_size=32),
        BadTeacher().with_numbers(epochs=4, learning_rate=3e-3, batch_size=64),
        BoundaryShrink().with_numbers(learning_rate=3e-3),
        L1Sparse().with_numbers(epochs=4, learning_rate=1e-1, batch_size=64),
        NewtonHead(),
        SisaRemoval(sisa),
        Forsaken().with_numbers(penalty=0.1, epochs=10, learning_rate=3e-2, batch_size=64),
        LabelAnnealing().with_numbers(epochs=2, learning_rate=3e-2, batch_size=64),
        Delete().with_numbers(epochs=10, learning_rate=1e-2, batch_size=64),
    )
    return {method.name: method for method in methods}


class DecodedError(AssertionError):
    """An image was decoded that a method must not use."""


def undecodable(images: Images) -> Images:
    """The same images; decoding one is an error."""

    def decode(row: int) -> Image.Image:
        raise DecodedError(images.all_ids[row])

    return replace(images, decode=decode, cache=PixelCache())


def session_of(
    model: famr.Classifier, splits: famr.Splits, augmentation: Augmentation | None = None
) -> BaselineSession:
    """What a baseline with seed 2 works with on a CPU."""
    settings = RunSettings(2, torch.device("cpu"), "fp32")
    return BaselineSession("a baseline", model.copy(), splits, settings, augmentation)
