"""How much logits can change with the weights: the largest singular value of J = ∂f(x)/∂θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from famr.certificates.curvature import flat, jacobian_product, math_attention, shaped

ITERATIONS = 20
MEMORY = 4 << 30
"""Bytes that J may take; a larger one is never written down."""


def local_lipschitz(
    logits: Callable[[], Tensor], parameters: Sequence[Tensor], *, seed: int = 0, memory: int = MEMORY
) -> float:
    """‖J‖₂ of one image's logits f, from J Jᵀ (classes, classes); by power iteration where J is too large.

    Args:
        logits: Computes f with its graph.
        parameters: θ.
        seed: Of the start of the power iteration.
        memory: Bytes that J may take.
    """
    with math_attention():
        outputs = logits()
        entries = outputs.numel() * sum(parameter.numel() for parameter in parameters)
        if entries * outputs.element_size() <= memory:
            return _from_full_jacobian(outputs, parameters)
        return _by_power_iteration(outputs, parameters, seed)


def _from_full_jacobian(outputs: Tensor, parameters: Sequence[Tensor]) -> float:
    """The root of the largest eigenvalue of J Jᵀ, with every row of J in one backward pass."""
    count = outputs.numel()
    rows = torch.eye(count, dtype=outputs.dtype, device=outputs.device).reshape(count, *outputs.shape)
    jacobian = torch.autograd.grad(outputs, list(parameters), rows, allow_unused=True, is_grads_batched=True)
    gram = torch.zeros(count, count, dtype=outputs.dtype, device=outputs.device)
    for columns in jacobian:
        if columns is not None:
            gram += columns.reshape(count, -1) @ columns.reshape(count, -1).T
    return float(torch.linalg.eigvalsh(gram.double().cpu())[-1].clamp(min=0).sqrt())


def _by_power_iteration(outputs: Tensor, parameters: Sequence[Tensor], seed: int) -> float:
    """The same, approached from below."""
    left = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed)).to(outputs)
    for _ in range(ITERATIONS):
        left = left / left.norm()
        gradients = torch.autograd.grad(outputs, list(parameters), left, allow_unused=True, retain_graph=True)
        right = flat([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)])
        length = right.norm()  # ‖Jᵀu‖
        if float(length) == 0:
            return 0.0
        left = jacobian_product(outputs, parameters, shaped(right / length, parameters))  # J Jᵀu/‖Jᵀu‖
    return float(left.norm())
