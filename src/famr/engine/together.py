"""Speed: forget images and those whose answers are held go through the network together.

Two passes of a step keep a GPU waiting twice as often as one with as many images, and twice as many gradients have to
be added up. It takes more memory; where that runs out they go one after the other again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from famr.anchors import AnchorTerm, FunctionAnchor
from famr.config import FAMR
from famr.data.loaders import Batch
from famr.engine.oom import let_go


@runtime_checkable
class TakesOthers(Protocol):
    """A forgetting loss that can be had together with the answers to other images."""

    def with_others(self, batch: Batch, others: Tensor) -> tuple[Tensor, Tensor]:
        """L_forget of the batch, and those answers."""
        ...


@dataclass(frozen=True, eq=False)
class Together:
    """A forgetting loss and the anchor of the answers, in one pass."""

    loss: TakesOthers
    anchor: FunctionAnchor
    strength: float

    def fits(self, batch: Batch) -> bool:
        """Whether the images of both are of one size, and can lie in one batch."""
        return batch.images.shape[1:] == self.anchor.drawn.images.shape[1:]

    def backward(self, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Leave ∇(L_forget + λA) in the parameters, of the batch and of the images that were drawn; L_forget."""
        forget_loss, said = self.loss.with_others(batch, self.anchor.drawn.images)
        both = forget_loss + self.strength * self.anchor.judged(said)
        let_go(parameters)
        both.backward()  # type: ignore[no-untyped-call]
        return forget_loss.detach()


def held_together(loss: object, anchors: Sequence[AnchorTerm], method: FAMR) -> Together | None:
    """Where answers are held and their gradient is added to that of the loss, which it is not for `adamw`."""
    if not isinstance(loss, TakesOthers) or method.optimiser == "adamw":
        return None
    found = [Together(loss, anchor, strength) for anchor, strength in anchors if isinstance(anchor, FunctionAnchor)]
    return found[0] if found else None
