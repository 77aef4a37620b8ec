"""Numbers that stopped being finite, told so that somebody can act: which layer, which step, which images.

A guard looks once, after the work whose figures it was given: inside an epoch the host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch
from famr.engine.distributed import number
from famr.errors import NumericsError

SHOWN = 10
"""Images of a batch that an error names; it counts the others."""


class NotFiniteError(NumericsError):
    """An error that knows the batch by its places in a set, until `naming` puts the names of the images to them."""

    def __init__(self, what: str, *, where: str, fix: str, places: Sequence[int]) -> None:
        super().__init__(what, where=where, fix=fix)
        self.places = tuple(places)


@contextmanager
def name_bad_images(images: Sequence[str] | None) -> Iterator[None]:
    """Say by their ids which images were in the batch that went wrong; by their places where they have no ids."""
    try:
        yield
    except NotFiniteError as error:
        names = [str(place) if images is None else images[place] for place in error.places]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        told = f"{error.where}; images {', '.join(names[:SHOWN])}{more}"
        raise NumericsError(error.what, where=told, fix=error.fix) from error


def require_finite(losses: Sequence[Tensor], places: Sequence[Tensor], module: nn.Module, epoch: int) -> None:
    """Name the first step of an epoch that went wrong, its images, and the first layer that is no number now.

    `places` are those of the images of each step. The caller's model is untouched, as this one is a copy.
    """
    edited = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if all_finite([*losses, *edited.values()]):
        return
    finite = torch.isfinite(torch.stack(list(losses))).tolist()
    step = finite.index(False) if not all(finite) else len(finite) - 1
    wrong = [name for name, p in edited.items() if not _is_finite(p) or not (p.grad is None or _is_finite(p.grad))]
    layer = f", {wrong[0]} first of {len(wrong)} weights" if wrong else ""
    raise NotFiniteError(
        "The loss or a weight is no longer a finite number.",
        where=f"epoch {epoch}, step {step + 1}{layer}",
        fix="Lower the learning rate (or β), or use fp32. Nothing was written; the original is unchanged.",
        places=places[step].tolist(),
    )


@dataclass
class Sums:
    """Statistics that are added up batch by batch: after which batch they were finite, known to the device alone."""

    finite: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)

    def after(self, batch: Batch, tensors: Iterable[Tensor]) -> None:
        """Look at the sums as they are now, without waiting for the answer."""
        every = [tensor.sum() for tensor in tensors]
        self.finite.append(torch.isfinite(torch.stack(every).sum() if every else torch.zeros(())))
        self.places.append(batch.positions)

    def require_finite(self, what: str, found: Mapping[str, Iterable[Tensor]]) -> None:
        """Name the first layer whose sums are no numbers, the batch that made them so, and its images."""
        wrong = [name for name, tensors in found.items() if not all(_is_finite(tensor) for tensor in tensors)]
        if not wrong:
            return
        sound = [bool(flag) for flag in self.finite]
        batch = sound.index(False)
        raise NotFiniteError(
            f"The {what} is not a finite number everywhere.",
            where=f"{wrong[0]} first of {len(wrong)} layers, batch {batch + 1}",
            fix="Use the l2 anchor, or a model whose answers do not overflow. Nothing was written.",
            places=self.places[batch].tolist(),
        )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every number is finite; the device is synchronised once.

    Args:
        tensors: Any tensors, also sharded ones.
    """
    flags = [torch.isfinite(tensor.detach()).all() for tensor in tensors]
    whole = [flag.full_tensor() if hasattr(flag, "full_tensor") else flag for flag in flags]
    return bool(torch.stack([flag.to(whole[0].device) for flag in whole]).all())


def _is_finite(tensor: Tensor) -> bool:
    """Of a tensor that may lie in parts on several processes."""
    return number((~torch.isfinite(tensor)).sum()) == 0
