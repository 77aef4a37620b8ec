"""What an anchor is, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from famr.anchors.statistics import FisherStatistics
from famr.data.loaders import Batch
from famr.engine.base import Session
from famr.errors import RequestError


class Anchor(Protocol):
    """A(θ, θ₀): zero at θ₀, nowhere negative. No method leaves a graph behind."""

    def draw(self) -> None:
        """Take the next batch, for an anchor that has data of its own; called before every step."""
        ...

    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A(θ, θ₀) over all the anchor knows.

        Args:
            parameters: θ.
        """
        ...

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterable[Tensor]:
        """∇A(θ, θ₀), or an unbiased estimate of it.

        Args:
            parameters: θ.

        Returns:
            One tensor a parameter, to be read once.
        """
        ...


@runtime_checkable
class WeightAnchor(Anchor, Protocol):
    """An anchor that is a metric of the weights: A = ½ΔᵀFΔ with Δ = θ − θ₀."""

    first_strength: ClassVar[dict[str, float]]
    """λ at which the search begins: under `natural` as the metric of the step, under `penalty` as a term of J."""
    predicts_divergence: ClassVar[bool]
    """Whether A predicts the KL divergence of retained predictions, in nats, as Fisher information does."""

    @classmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        """The anchor at θ₀.

        Args:
            inputs: What the run has.
        """
        ...

    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(I + sF)⁻¹ g.

        Args:
            gradient: g, one tensor a parameter.
            strength: s.
        """
        ...


class AnchorTerm(NamedTuple):
    """An anchor and its strength λ in J."""

    anchor: Anchor
    strength: float


@dataclass(frozen=True, eq=False)
class AnchorInputs:
    """Everything a weight anchor may read.

    Attributes:
        session: The network at θ₀; its parameters are those that may change.
        original: θ₀ of these, see `original_weights`.
        retained: Opens a pass over the images from which Fisher information is taken; None without such images.
        statistics: Fisher information that was taken earlier, from a sketch.
        seed: Of random draws.
    """

    session: Session
    original: Sequence[Tensor]
    retained: Callable[[], Iterable[Batch]] | None
    statistics: FisherStatistics | None
    seed: int

    def names(self) -> list[str]:
        """Names of the parameters that may change."""
        return [name for name, parameter in self.session.model.module.named_parameters() if parameter.requires_grad]

    def require_retained(self, anchor: str) -> Callable[[], Iterable[Batch]]:
        """The pass over retained images.

        Args:
            anchor: Name of the anchor that needs it.

        Raises:
            RequestError: There are none.
        """
        if self.retained is None:
            raise no_retained_images(anchor)
        return self.retained


def no_retained_images(anchor: str) -> RequestError:
    """The error for an anchor whose images are missing.

    Args:
        anchor: Its name.
    """
    return RequestError(
        f"The {anchor} anchor needs retained images, or others like them.",
        where="anchor",
        fix="Give the whole data, a sketch (famr sketch), or use the l2 anchor.",
    )


def original_weights(session: Session) -> list[Tensor]:
    """θ₀ of the parameters that may change: the original's own tensors where they fit, else copies.

    Args:
        session: The network, still at θ₀.
    """
    known = dict(session.original.module.named_parameters())
    names = {id(parameter): name for name, parameter in session.model.module.named_parameters()}

    def start(parameter: nn.Parameter) -> Tensor:
        own = known[names[id(parameter)]]
        same = (own.device, own.dtype, type(own.data)) == (parameter.device, parameter.dtype, type(parameter.data))
        return own.detach() if same else parameter.detach().clone()

    return [start(parameter) for parameter in session.parameters]
