"""Numbers that are no longer finite: the error names the layer, the step and the images.

A check reads the device once, after the work whose numbers it checks: within an epoch the host never waits for the
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch
from famr.engine.distributed import as_float
from famr.errors import NumericsError

SHOWN = 10
"""Images of a batch that an error names; it counts the rest."""


class NotFiniteError(NumericsError):
    """An error that knows the images of its batch by their indices in the set, until `name_bad_images` names them.

    Args:
        what: See `FamrError`.
        where: See `FamrError`.
        fix: See `FamrError`.
        positions: Indices of the images.
    """

    def __init__(self, what: str, *, where: str, fix: str, positions: Sequence[int]) -> None:
        super().__init__(what, where=where, fix=fix)
        self.positions = tuple(positions)


@contextmanager
def name_bad_images(ids: Sequence[str] | None) -> Iterator[None]:
    """Name the images of the batch that a `NotFiniteError` is about.

    Args:
        ids: Of the set's images; None: they have none, and their indices are given.

    Raises:
        NumericsError: The error, with the names of the images.
    """
    try:
        yield
    except NotFiniteError as error:
        names = [str(position) if ids is None else ids[position] for position in error.positions]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        where = f"{error.where}; images {', '.join(names[:SHOWN])}{more}"
        raise NumericsError(error.what, where=where, fix=error.fix) from error


def require_finite_steps(losses: Sequence[Tensor], positions: Sequence[Tensor], module: nn.Module, epoch: int) -> None:
    """Check the losses of an epoch and the weights after it.

    Args:
        losses: Of each step.
        positions: Indices of the images of each step.
        module: The network; its trainable parameters are checked.
        epoch: From 1.

    Raises:
        NotFiniteError: Names the first step that went wrong, its images, and the first weight that is not finite.
    """
    weights = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if all_finite([*losses, *weights.values()]):
        return
    finite = torch.isfinite(torch.stack(list(losses))).tolist()
    step = finite.index(False) if not all(finite) else len(finite) - 1
    bad = [name for name, p in weights.items() if not _is_finite(p) or not (p.grad is None or _is_finite(p.grad))]
    layer = f", {bad[0]} first of {len(bad)} weights" if bad else ""
    raise NotFiniteError(
        "The loss or a weight is no longer a finite number.",
        where=f"epoch {epoch}, step {step + 1}{layer}",
        fix="Lower the learning rate (or β), or use fp32. Nothing was written; the original is unchanged.",
        positions=positions[step].tolist(),
    )


@dataclass
class Sums:
    """Whether statistics that are summed batch by batch were finite after each batch.

    Attributes:
        finite: One flag a batch, on the device.
        positions: Indices of the images of each batch.
    """

    finite: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)

    def after(self, batch: Batch, tensors: Iterable[Tensor]) -> None:
        """Check the sums as they are now, without waiting for the device.

        Args:
            batch: The last one that was added.
            tensors: The sums.
        """
        totals = [tensor.sum() for tensor in tensors]
        self.finite.append(torch.isfinite(torch.stack(totals).sum() if totals else torch.zeros(())))
        self.positions.append(batch.positions)

    def require_finite(self, what: str, sums: Mapping[str, Iterable[Tensor]]) -> None:
        """Check the final sums.

        Args:
            what: What they are, for the error.
            sums: Tensors of each layer by its name.

        Raises:
            NotFiniteError: Names the first layer whose sums are not finite, the batch after which, and its images.
        """
        bad = [name for name, tensors in sums.items() if not all(_is_finite(tensor) for tensor in tensors)]
        if not bad:
            return
        batch = [bool(flag) for flag in self.finite].index(False)
        raise NotFiniteError(
            f"The {what} is not a finite number everywhere.",
            where=f"{bad[0]} first of {len(bad)} layers, batch {batch + 1}",
            fix="Use the l2 anchor, or a model whose logits do not overflow. Nothing was written.",
            positions=self.positions[batch].tolist(),
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
    return as_float((~torch.isfinite(tensor)).sum()) == 0
