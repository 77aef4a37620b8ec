"""How much a network's answers can change with its weights: the largest singular value of J = ∂f(x)/∂θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from famr.certificates.curvature import push_forward, shaped, twice_differentiable

ITERATIONS = 20
ROOM = 4 << 30
"""Bytes that all of J may take; a larger one is never written down."""


def local_lipschitz(
    answers: Callable[[], Tensor], parameters: Sequence[Tensor], seed: int = 0, room: int = ROOM
) -> float:
    """‖J‖₂ of one image's answers f: from J Jᵀ, which has a row a class; by power iteration where J is too large."""
    with twice_differentiable():
        outputs = answers()
        entries = outputs.numel() * sum(parameter.numel() for parameter in parameters)
        if entries * outputs.element_size() <= room:
            return _from_all_rows(outputs, parameters)
        return _by_power_iteration(outputs, parameters, seed)


def _from_all_rows(outputs: Tensor, parameters: Sequence[Tensor]) -> float:
    """The root of the largest eigenvalue of J Jᵀ, with every row of J in one backward pass."""
    count = outputs.numel()
    rows = torch.eye(count, dtype=outputs.dtype, device=outputs.device).reshape(count, *outputs.shape)
    found = torch.autograd.grad(outputs, list(parameters), rows, allow_unused=True, is_grads_batched=True)
    gram = torch.zeros(count, count, dtype=outputs.dtype, device=outputs.device)
    for slopes in found:
        if slopes is not None:
            gram += slopes.reshape(count, -1) @ slopes.reshape(count, -1).T
    return float(torch.linalg.eigvalsh(gram.double().cpu())[-1].clamp(min=0).sqrt())


def _by_power_iteration(outputs: Tensor, parameters: Sequence[Tensor], seed: int) -> float:
    """The same, approached from below."""
    draws = torch.Generator().manual_seed(seed)
    left = torch.randn(outputs.shape, generator=draws).to(outputs)
    for _ in range(ITERATIONS):
        left = left / left.norm()
        found = torch.autograd.grad(outputs, list(parameters), left, allow_unused=True, retain_graph=True)
        pulled = torch.cat(
            [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, found, strict=True)]
        )  # Jᵀu
        size = pulled.norm()
        if float(size) == 0:
            return 0.0
        left = push_forward(outputs, parameters, shaped(pulled / size, parameters))  # J Jᵀu/‖Jᵀu‖
    return float(left.norm())
