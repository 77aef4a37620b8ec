"""GELU in bf16: x·Φ(x)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.kernels.compiling import PIECE, Launch, launches, near

THREADS = 256


class Gelu:
    """Its kernels."""

    def __init__(self, forward: Launch, backward: Launch) -> None:
        self._forward, self._backward = forward, backward

    @classmethod
    def compiled(cls) -> Gelu:
        """For any size."""
        return cls(*launches("gelu"))

    def forward(self, x: Tensor) -> Tensor:
        """x·Φ(x)."""
        out = torch.empty_like(x)
        self._over(self._forward, x, [x, out])
        return out

    def backward(self, slope: Tensor, x: Tensor) -> Tensor:
        """The gradient of x."""
        of_x = torch.empty_like(x)
        self._over(self._backward, x, [slope, x, of_x])
        return of_x

    @staticmethod
    def _over(kernel: Launch, x: Tensor, tensors: list[Tensor]) -> None:
        pieces = x.numel() // PIECE
        kernel((-(-pieces // THREADS), 1, 1), (THREADS, 1, 1), [*tensors, pieces])


@torch.no_grad()
def agrees(ours: Gelu, device: torch.device) -> bool:
    """Whether it answers as the library does, from where Φ is 0 to where it is 1."""
    draw = torch.Generator().manual_seed(0)
    x = torch.linspace(-9, 9, PIECE * (THREADS + 3)).to(device, torch.bfloat16)
    slope = torch.randn(len(x), generator=draw).to(device, torch.bfloat16)
    wide = x.float()
    of_x = torch.ops.aten.gelu_backward(slope.float(), wide)
    apart = ours.forward(x).float() - F.gelu(wide)
    small = bool(
        (apart.abs() <= 1e-5 + F.gelu(wide).abs() / 128).all()
    )  # each of them, where it is next to nothing too
    return small and near([ours.forward(x), ours.backward(slope, x)], [F.gelu(wide), of_x])
