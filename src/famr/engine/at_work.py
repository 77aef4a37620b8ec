"""A network at its work: on this rank's device, whole or in parts; and what all ranks must see alike before that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from famr._version import __version__
from famr.config import FAMR
from famr.data import Images
from famr.data.loaders import LabelledImages
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.distributed import Ranks
from famr.errors import RequestError
from famr.models import Classifier

LOOKED_AT = 16
"""Forget images whose pixels are compared between ranks; of the others, names and labels."""


def working_place(device: str | None, home: torch.device, ranks: Ranks) -> torch.device:
    """The device asked for; else that of the network, or the best there is for one on the CPU."""
    if ranks.size > 1:
        return ranks.place(device or "auto")
    return pick_device(device or ("auto" if home.type == "cpu" else str(home)))


def require_divisible(method: FAMR, ranks: Ranks) -> None:
    """Refuse an anchor that needs whole layers where they lie in parts."""
    if ranks.sharded and method.anchor != "l2":
        raise RequestError(
            f"The {method.anchor} anchor needs whole layers, and --shard divides them.",
            where="anchor",
            fix="Use --anchor l2, or leave out --shard.",
        )


def to_work(module: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Put a network where it works, in evaluation mode."""
    if ranks.sharded:
        from famr.engine.fsdp import spread

        spread(module, device, ranks)
    module.to(device).eval()


def begin_anew(module: nn.Module, original: nn.Module, ranks: Ranks) -> None:
    """Give a network at work the original's weights."""
    if ranks.sharded:
        from famr.engine.fsdp import restore

        restore(module, original)
    else:
        module.load_state_dict(original.state_dict())


def from_work(model: Classifier, original: Classifier, home: torch.device, ranks: Ranks) -> Classifier:
    """The finished classifier, whole, where the original is; the same on every rank, or it is an error on all."""
    if ranks.sharded:
        from famr.engine.fsdp import made_whole

        model = made_whole(model, original)
    model.module.to(home).zero_grad()
    if ranks.size > 1:
        ranks.agree({"the unlearned weights": model.digest()}, fix="Use the same hardware and libraries for all.")
    return model


def what_is_seen(
    original: Classifier,
    splits: Splits | None,
    loader: Iterable[LabelledImages] | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What must be the same on every rank, by the name under which an error calls it."""
    seen: dict[str, Any] = {
        "the weights": original.digest(),
        "the versions": [torch.__version__, __version__],
        **settings,
    }
    if loader is not None:
        pairs = [(_bytes(images), labels.tolist()) for images, labels in loader]
        return {**seen, "the forget images": pairs}
    if splits is None:
        return seen
    sets = {"forget": splits.forget, "retained": splits.retain, "test": splits.test}
    names = {f"the {name} images": None if images is None else _names(images) for name, images in sets.items()}
    pixels = _pixels(splits.forget, original.require_preprocessing().channels)
    return {**seen, **names, "the request": splits.request.to_json(), "the pixels of the forget images": pixels}


def _names(images: Images) -> list[Any]:
    return [list(images.ids), images.targets.tolist()]


def _pixels(images: Images, channels: int) -> list[str]:
    every = max(1, len(images) // LOOKED_AT)
    return [_bytes(images.pixels(position, channels)) for position in range(0, len(images), every)[:LOOKED_AT]]


def _bytes(tensor: torch.Tensor) -> str:
    return sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
