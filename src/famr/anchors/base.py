"""The interface of anchors, and the inputs that a weight anchor is built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from torch import Tensor, nn

from famr.anchors.statistics import FisherStatistics
from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, Batches, LabelledImages, loader_batches
from famr.engine.base import Session
from famr.engine.finite import name_bad_images
from famr.errors import RequestError

Source = Images | Iterable[LabelledImages]
"""Stored images, or a user's own batches of (images, labels) as the network takes them."""


class Anchor(ABC):
    """A(θ, θ₀): zero at θ₀, nowhere negative. No method leaves a graph behind."""

    @abstractmethod
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A(θ, θ₀).

        Args:
            parameters: θ.
        """

    @abstractmethod
    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterable[Tensor]:
        """∇A(θ, θ₀), or an unbiased estimate of it.

        Args:
            parameters: θ.

        Returns:
            One tensor a parameter, to be read once.
        """

    def draw(self) -> None:
        """Take the next batch; called before every step. An anchor without data has nothing to do."""
        return

    def restart(self, steps: int = 0) -> None:  # noqa: ARG002
        """Draw as a run from θ₀ does. An anchor without data has nothing to do.

        Args:
            steps: Steps that the run has taken already.
        """
        return


class WeightAnchor(Anchor):
    """An anchor that is a metric of the weights: A = ½ΔᵀFΔ with Δ = θ − θ₀.

    Attributes:
        strength_as_metric: λ at which a search begins where the anchor is the metric of the step.
        strength_as_penalty: λ at which it begins where the anchor is a term of J.
        predicts_divergence: Whether A predicts the KL divergence of retained predictions, in nats, as Fisher
            information does.
        needs_whole_layers: Whether it cannot be used where weights are divided among processes.
    """

    strength_as_metric: ClassVar[float]
    strength_as_penalty: ClassVar[float]
    predicts_divergence: ClassVar[bool] = False
    needs_whole_layers: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        """Build the anchor at θ₀.

        Args:
            inputs: The network, θ₀ and retained images.

        Raises:
            RequestError: Something that it needs is not available.
        """

    @abstractmethod
    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(I + sF)⁻¹ g.

        Args:
            gradient: g, one tensor a parameter.
            strength: s.
        """


class AnchorTerm(NamedTuple):
    """A term λ·A of J.

    Attributes:
        anchor: A.
        strength: λ.
    """

    anchor: Anchor
    strength: float


@dataclass(frozen=True, eq=False)
class AnchorInputs:
    """Everything that a weight anchor may read.

    Attributes:
        session: The network at θ₀; its parameters are those that may change.
        original: θ₀ of these, see `original_weights`.
        source: Images from which Fisher information is taken; None without such images.
        statistics: Fisher information from a sketch; None without one.
        seed: Seed of random draws.
        batch_size: Images at a time, at most.
    """

    session: Session
    original: Sequence[Tensor]
    source: Source | None
    statistics: FisherStatistics | None
    seed: int
    batch_size: int = EVALUATION_BATCH

    def names(self) -> list[str]:
        """Names of the parameters that may change."""
        return [name for name, parameter in self.session.model.module.named_parameters() if parameter.requires_grad]

    def known_statistics(self) -> FisherStatistics | None:
        """Fisher information of the parameters that may change, from the sketch; None without one."""
        return None if self.statistics is None else self.statistics.of(self.names(), self.session.device)

    @contextmanager
    def retained_batches(self, anchor: str) -> Iterator[Batches]:
        """Passes over the images of `source`; an error inside of the block names those whose numbers are not finite.

        Args:
            anchor: Name of the anchor, for the error.

        Yields:
            Passes in batches as the network takes them.

        Raises:
            RequestError: There are no images.
        """
        source = require_source(self.source, anchor)
        if isinstance(source, Images):
            with name_bad_images(source.ids):
                yield self.session.image_batches(source, self.batch_size)
        else:
            with name_bad_images(None):
                yield loader_batches(source, self.session.device)


def require_source(source: Source | None, anchor: str) -> Source:
    """The images of an anchor.

    Args:
        source: The images; None where there are none.
        anchor: Name of the anchor.

    Raises:
        RequestError: There are none.
    """
    if source is None:
        raise RequestError(
            f"The {anchor} anchor needs retained images, or others like them.",
            where="anchor",
            fix="Give the whole data, a sketch (famr sketch), or use the l2 anchor.",
        )
    return source


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
