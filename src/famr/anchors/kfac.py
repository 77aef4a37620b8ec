"""The K-FAC anchor: each layer is anchored in its own metric, a Kronecker product A ⊗ G.

Unlike the diagonal it distinguishes directions: a change of W that retained inputs do not excite costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from famr.anchors.base import AnchorInputs, WeightAnchor
from famr.anchors.statistics import LayerFisher, covered, fisher_diagonal, kfac_statistics
from famr.models.classifier import logits_of


@dataclass(frozen=True, eq=False)
class KFACAnchor(WeightAnchor):
    """Fisher information of retained images layer by layer: A = ½ Σ tr(ΔWᵀ G ΔW A) + ½ Σ_rest Fᵢ Δᵢ².

    Attributes:
        original: θ₀.
        layers: A and G of each layer.
        rest: Diagonal Fisher information of the parameters that no layer covers; zero for the covered ones.
    """

    original: Sequence[Tensor]
    layers: Sequence[LayerFisher]
    rest: Sequence[Tensor]

    strength_as_metric: ClassVar[float] = 1e2
    strength_as_penalty: ClassVar[float] = 1e2
    predicts_divergence: ClassVar[bool] = True

    @classmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        """See `WeightAnchor.build`."""
        known = inputs.known_statistics()
        if known is not None:
            in_layers = covered(known.layers)
            rest = [torch.zeros_like(f) if index in in_layers else f for index, f in enumerate(known.diagonal)]
            return cls(inputs.original, known.layers, rest)
        module, draws = inputs.session.model.module, torch.Generator().manual_seed(inputs.seed)
        with inputs.retained_batches("kfac") as batches:
            layers, norms = kfac_statistics(module, logits_of, batches(None), draws)
            rest = fisher_diagonal(module, logits_of, batches(None), draws, covered(layers) | norms.keys())
        return cls(inputs.original, layers, [norms.get(index, f) for index, f in enumerate(rest)])

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Half the squared length of Δ in this metric.

        Args:
            parameters: θ.
        """
        triples = zip(parameters, self.original, self.gradient(parameters), strict=True)
        return 0.5 * torch.stack([((p - p0) * pull).sum() for p, p0, pull in triples]).sum()

    @torch.no_grad()
    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """G ΔW A for each layer, F ⊙ Δ for the rest.

        Args:
            parameters: θ.
        """
        moved = [p - p0 for p, p0 in zip(parameters, self.original, strict=True)]
        pulls = [f * delta for f, delta in zip(self.rest, moved, strict=True)]
        for layer in self.layers:
            _scatter(pulls, layer, layer.times(_gather(moved, layer)))
        return pulls

    @torch.no_grad()
    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(I + s·A⊗G)⁻¹ g for each layer, g/(1 + sF) for the rest.

        Args:
            gradient: g.
            strength: s.
        """
        solved = [g / (1 + strength * f) for g, f in zip(gradient, self.rest, strict=True)]
        for layer in self.layers:
            _scatter(solved, layer, layer.solve(_gather(gradient, layer), strength))
        return solved


def _gather(tensors: Sequence[Tensor], layer: LayerFisher) -> Tensor:
    """A layer's weight, and its bias as one more column: (outputs, inputs [+ 1])."""
    weight = tensors[layer.weight].flatten(1)
    return weight if layer.bias is None else torch.cat([weight, tensors[layer.bias][:, None]], dim=1)


def _scatter(tensors: list[Tensor], layer: LayerFisher, matrix: Tensor) -> None:
    """The inverse of `_gather`, in place."""
    shape = tensors[layer.weight].shape
    if layer.bias is not None:
        tensors[layer.bias] = matrix[:, -1]
        matrix = matrix[:, :-1]
    tensors[layer.weight] = matrix.reshape(shape)
