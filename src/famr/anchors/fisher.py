"""The diagonal Fisher anchor: each weight is anchored as strongly as retained predictions depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from famr.anchors.base import AnchorInputs, WeightAnchor
from famr.anchors.statistics import fisher_diagonal
from famr.models.classifier import logits_of


@dataclass(frozen=True, eq=False)
class FisherAnchor(WeightAnchor):
    """Diagonal of the Fisher information of retained images: A = ½ Σᵢ Fᵢ(θᵢ − θ₀ᵢ)².

    Attributes:
        original: θ₀.
        fisher: F, one tensor a parameter.
    """

    original: Sequence[Tensor]
    fisher: Sequence[Tensor]

    strength_as_metric: ClassVar[float] = 1e3
    strength_as_penalty: ClassVar[float] = 1e4
    predicts_divergence: ClassVar[bool] = True

    @classmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        """See `WeightAnchor.build`."""
        known = inputs.known_statistics()
        if known is not None:
            return cls(inputs.original, known.diagonal)
        draws = torch.Generator().manual_seed(inputs.seed)
        with inputs.retained_batches("fisher") as batches:
            fisher = fisher_diagonal(inputs.session.model.module, logits_of, batches(None), draws)
        return cls(inputs.original, fisher)

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """½ Σᵢ Fᵢ(θᵢ − θ₀ᵢ)².

        Args:
            parameters: θ.
        """
        triples = zip(parameters, self.original, self.fisher, strict=True)
        return 0.5 * torch.stack([(f * (p - p0).square()).sum() for p, p0, f in triples]).sum()

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
        """Fᵢ(θᵢ − θ₀ᵢ), one parameter after another.

        Args:
            parameters: θ.
        """
        return (f * (p.detach() - p0) for p, p0, f in zip(parameters, self.original, self.fisher, strict=True))

    @torch.no_grad()
    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """gᵢ/(1 + sFᵢ).

        Args:
            gradient: g.
            strength: s.

        >>> anchor = FisherAnchor([torch.zeros(1)], [torch.tensor([2.0])])
        >>> anchor.precondition([torch.tensor([6.0])], strength=1.0)
        [tensor([2.])]
        """
        return [g / (1 + strength * f) for g, f in zip(gradient, self.fisher, strict=True)]
