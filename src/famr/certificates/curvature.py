"""Products with the Hessian and the Gauss–Newton matrix of a loss, for networks too large to write either down.

A loss comes as pieces: a function that yields the losses of batches, whose sum is meant, so that no more than one
batch is in memory. Vectors are flat: all parameters, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Pieces: TypeAlias = Callable[[], Iterable[Tensor]]
"""The losses of the batches, each with a graph; their sum is the loss."""
AnsweredPieces: TypeAlias = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""The same, with the logits that each loss is a function of."""
Product: TypeAlias = Callable[[Tensor], Tensor]
"""v ↦ A v for a symmetric matrix A."""


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Attention in its plain form: the fast kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All entries, one tensor after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `flat`.

    >>> [piece.tolist() for piece in shaped(torch.arange(3.0), [torch.zeros(1), torch.zeros(2, 1)])]
    [[0.0], [[1.0], [2.0]]]
    """
    pieces = torch.split(vector, [tensor.numel() for tensor in like])
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def gradient(pieces: Pieces, parameters: Sequence[Tensor]) -> Tensor:
    """∇L."""
    total = torch.zeros_like(flat(parameters))
    for loss in pieces():
        total += flat(_grad(loss, parameters))
    return total


def hessian_product(pieces: Pieces, parameters: Sequence[Tensor]) -> Product:
    """v ↦ ∇²L v, by differentiating ∇L · v."""

    def product(vector: Tensor) -> Tensor:
        total, directions = torch.zeros_like(vector), shaped(vector, parameters)
        with twice_differentiable():
            for loss in pieces():
                slopes = _grad(loss, parameters, create_graph=True)
                along = sum((slope * direction).sum() for slope, direction in zip(slopes, directions, strict=True))
                assert isinstance(along, Tensor)
                if along.requires_grad:
                    total += flat(_grad(along, parameters))
        return total

    return product


def gauss_newton_product(pieces: AnsweredPieces, parameters: Sequence[Tensor]) -> Product:
    """v ↦ Σ Jᵀ ∇²ℓ J v with J = ∂logits/∂θ: the Hessian without the curvature of the network; never negative for a
    loss that is convex in the logits."""

    def product(vector: Tensor) -> Tensor:
        total, directions = torch.zeros_like(vector), shaped(vector, parameters)
        with twice_differentiable():
            for logits, loss in pieces():
                pushed = push_forward(logits, parameters, directions)  # J v
                (slope,) = torch.autograd.grad(loss, logits, create_graph=True)
                (bent,) = torch.autograd.grad((slope * pushed).sum(), logits, retain_graph=True)  # ∇²ℓ J v
                total += flat(_grad(logits, parameters, bent))  # Jᵀ ∇²ℓ J v
        return total

    return product


def push_forward(outputs: Tensor, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> Tensor:
    """J v: how `outputs` change along a direction in θ. Jᵀu is linear in u; its derivative in u along v is J v."""
    dummy = torch.zeros_like(outputs, requires_grad=True)
    pulled = _grad(outputs, parameters, dummy, create_graph=True)
    along = sum((piece * direction).sum() for piece, direction in zip(pulled, directions, strict=True))
    assert isinstance(along, Tensor)
    if not along.requires_grad:
        return torch.zeros_like(outputs)
    (pushed,) = torch.autograd.grad(along, dummy)
    return pushed.detach()


def _grad(
    of: Tensor, parameters: Sequence[Tensor], weights: Tensor | None = None, create_graph: bool = False
) -> list[Tensor]:
    """∂(of)/∂θ, zero for parameters that it does not depend on. The graph is kept, for whoever needs it again."""
    found = torch.autograd.grad(
        of, list(parameters), weights, allow_unused=True, create_graph=create_graph, retain_graph=True
    )
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
