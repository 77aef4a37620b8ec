"""What is timed: networks by size or by name, and images made for the purpose.

The images are noise over the colours of their class: they look like nothing, but a network learns them in a few dozen
steps, so that there is something to forget and the metrics of two loops can be compared. Only as many as `POOL` of each
kind differ; a larger set shows them again, as speed does not depend on what they show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from famr.bench.paper_setting import SIZES, size_called
from famr.data import Data, Images
from famr.data.request import Request
from famr.data.splits import Splits, split
from famr.data.transforms import Preprocessing
from famr.engine.unread import Unread
from famr.models import Classifier, load_model, new_model

LABELS = tuple(str(number) for number in range(10))
FORGOTTEN = LABELS[0]
LITTLE = "little"
LITTLE_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 192, "depth": 3, "num_heads": 3}
"""Of the same kind as the paper's smallest, for machines without a GPU."""
POOL = 512
HELD_OUT = 500
GRID = 4


@dataclass(frozen=True)
class Named:
    """A network to be timed: what the tables call it, and how it is made."""

    name: str
    spec: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "spec": self.spec, "arguments": dict(self.arguments)}


def size_named(name: str) -> Named:
    """`Ti`, `S`, `B` or `L` of the paper at 224 px, or `little`.

    >>> size_named("b").spec, size_named("little").arguments["img_size"]
    ('timm:vit_base_patch16_224', 16)
    """
    if name.strip().lower() == LITTLE:
        return Named("little ViT", SIZES["ViT-Ti"], LITTLE_VIT)
    size = size_called(name.strip(), option="--sizes", also=[LITTLE])
    return Named(size, SIZES[size])


def made(named: Named, seed: int) -> Classifier:
    """The network with random weights, or as a folder holds it; its images are stored as large as it takes them."""
    kind, _, place = named.spec.partition(":")
    if place and kind in ("timm", "hf", "torchvision"):
        model = new_model(named.spec, LABELS, arguments=named.arguments, from_scratch=True, seed=seed)
    else:
        model = load_model(named.spec)
    prepared = model.require_preprocessing()
    return replace(model, preprocessing=replace(prepared, resize=prepared.crop))


def synthetic(model: Classifier, forget: int, retained: int, seed: int) -> Data:
    """So many images of the class to be forgotten, so many of the others, and some held out."""
    labels = model.labels or LABELS
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 128, (len(labels), GRID, GRID, model.require_preprocessing().channels), dtype=np.uint8)
    others = np.arange(POOL) % (len(labels) - 1) + 1
    pools = [
        _noisy(colours[classes], model.require_preprocessing(), rng) for classes in (np.zeros(POOL, dtype=int), others)
    ]

    def images(name: str, forget: int, retained: int) -> Images:
        def decode(row: int) -> Image.Image:
            pool, place = (0, row) if row < forget else (1, row - forget)
            return Image.fromarray(pools[pool][place % POOL].squeeze())

        targets = np.concatenate([np.zeros(forget, dtype=int), others[np.arange(retained) % POOL]])
        ids = [f"{name}/{row}" for row in range(forget + retained)]
        return Images.from_source(decode, ids, torch.from_numpy(targets))

    return Data(
        "synthetic", tuple(labels), images("train", forget, retained), images("test", 0, HELD_OUT), mirror=False
    )


def _noisy(colours: NDArray[np.uint8], prepared: Preprocessing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each grid of colours as large as the network wants it, under as much noise; (images, height, width, channels)."""
    height, width = prepared.crop
    rows, columns = np.arange(height) * GRID // height, np.arange(width) * GRID // width
    large = colours[:, rows][:, :, columns]
    return large + rng.integers(0, 128, large.shape, dtype=np.uint8)


def forgetting(data: Data) -> Splits:
    """The class to be forgotten, and the rest."""
    return split(data, Request(classes=[data.labels[0]]))


def parameters_of(module: nn.Module) -> int:
    """How many weights a network has."""
    return sum(parameter.numel() for parameter in module.parameters())


def forward_flops(model: Classifier, first_token: Sequence[str] = ()) -> int:
    """Floating-point operations of one image through the network, counted layer by layer; nothing is computed.

    Only matrix products and convolutions count, a multiplication and an addition as two. Layers that are named in
    `first_token` see that one alone.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    prepared = model.require_preprocessing()
    shadow = deepcopy(model.module).to("meta").eval().requires_grad_(False)
    image = torch.zeros(1, prepared.channels, *prepared.crop, device="meta")
    spared = Unread(tuple(first_token)).spared(shadow)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), spared, FlopCounterMode(display=False) as counter:
        shadow(image)
    return int(counter.get_total_flops())


PASS = 3
"""A sample pass costs three forward passes: forward, gradient of the activations, gradient of the weights."""
