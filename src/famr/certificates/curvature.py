"""Products with the Hessian and the Gauss–Newton matrix of a loss, for networks too large to write either down.

A loss is given by batches: a function that yields the loss of one batch after the other, so that one graph at a time is
in memory; their sum is the loss. Vectors are flat: all parameters, one after another.

curvlinops has these operators too. Ours stay because its forward-over-reverse Hessian products of a KL divergence are
off by 7e-4 in float32 on a small ViT, where ours are by 4e-7, and because every term of J would need a module of its
own for its loss, its data and the activations that it reads. The tests compare both in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Losses: TypeAlias = Callable[[], Iterable[Tensor]]
"""Yields the loss of each batch, with its graph; the sum is the loss."""
LogitsAndLosses: TypeAlias = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""The same, each with the logits that it is a function of."""
Product: TypeAlias = Callable[[Tensor], Tensor]
"""v ↦ A v for a symmetric matrix A."""


@contextmanager
def math_attention() -> Iterator[None]:
    """Use the MATH kernel of attention inside the block: fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Concatenate all entries, detached.

    Args:
        tensors: One or more.
    """
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `flat`.

    Args:
        vector: All entries.
        like: Tensors of the shapes to cut it into.

    >>> [part.tolist() for part in shaped(torch.arange(3.0), [torch.zeros(1), torch.zeros(2, 1)])]
    [[0.0], [[1.0], [2.0]]]
    """
    parts = torch.split(vector, [tensor.numel() for tensor in like])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def gradient(losses: Losses, parameters: Sequence[Tensor]) -> Tensor:
    """∇L, flat.

    Args:
        losses: L.
        parameters: θ.
    """
    total = torch.zeros_like(flat(parameters))
    for loss in losses():
        total += flat(_grad(loss, parameters))
    return total


def hessian_product(losses: Losses, parameters: Sequence[Tensor]) -> Product:
    """v ↦ ∇²L v, by differentiating ∇L · v.

    Args:
        losses: L.
        parameters: θ.
    """

    def product(vector: Tensor) -> Tensor:
        total, directions = torch.zeros_like(vector), shaped(vector, parameters)
        with math_attention():
            for loss in losses():
                gradients = _grad(loss, parameters, create_graph=True)
                directional = _inner(gradients, directions)  # ∇L · v
                if directional.requires_grad:
                    total += flat(_grad(directional, parameters))
        return total

    return product


def gauss_newton_product(losses: LogitsAndLosses, parameters: Sequence[Tensor]) -> Product:
    """v ↦ Σ Jᵀ ∇²ℓ J v with J = ∂logits/∂θ and ∇²ℓ in the logits.

    It is the Hessian without the curvature of the network, and positive semi-definite for a loss that is convex in the
    logits.

    Args:
        losses: ℓ with the logits.
        parameters: θ.
    """

    def product(vector: Tensor) -> Tensor:
        total, directions = torch.zeros_like(vector), shaped(vector, parameters)
        with math_attention():
            for logits, loss in losses():
                tangent = jacobian_product(logits, parameters, directions)  # J v
                (gradients,) = torch.autograd.grad(loss, logits, create_graph=True)
                (curved,) = torch.autograd.grad((gradients * tangent).sum(), logits, retain_graph=True)  # ∇²ℓ J v
                total += flat(_grad(logits, parameters, curved))  # Jᵀ ∇²ℓ J v
        return total

    return product


def jacobian_product(outputs: Tensor, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> Tensor:
    """J v with J = ∂outputs/∂θ. Jᵀu is linear in u; its derivative in u along v is J v.

    Args:
        outputs: With their graph, which is kept.
        parameters: θ.
        directions: v, one tensor a parameter.

    Returns:
        A tensor of the shape of `outputs`.
    """
    dummy = torch.zeros_like(outputs, requires_grad=True)
    directional = _inner(_grad(outputs, parameters, dummy, create_graph=True), directions)  # (Jᵀu) · v
    if not directional.requires_grad:
        return torch.zeros_like(outputs)
    (tangent,) = torch.autograd.grad(directional, dummy)
    return tangent.detach()


def _inner(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(tensors, others, strict=True)]).sum()


def _grad(
    output: Tensor, parameters: Sequence[Tensor], weights: Tensor | None = None, create_graph: bool = False
) -> list[Tensor]:
    """∂output/∂θ, zero for parameters that it does not depend on. The graph is kept for further derivatives."""
    gradients = torch.autograd.grad(
        output, list(parameters), weights, allow_unused=True, create_graph=create_graph, retain_graph=True
    )
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
