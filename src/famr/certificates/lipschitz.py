"""How much a network's answers can change with its weights: the largest singular value of ∂f(x)/∂θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from famr.certificates.curvature import push_forward, shaped, twice_differentiable

ITERATIONS = 20


def local_lipschitz(answers: Callable[[], Tensor], parameters: Sequence[Tensor], seed: int = 0) -> float:
    """‖∂f/∂θ‖₂ of one image's answers f, by power iteration on J Jᵀ. It approaches the value from below."""
    with twice_differentiable():
        outputs = answers()
        draws = torch.Generator().manual_seed(seed)
        left = torch.randn(outputs.shape, generator=draws).to(outputs)
        size = torch.zeros(())
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
