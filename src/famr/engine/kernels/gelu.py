"""GELU in bf16: x·Φ(x)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.engine.kernels.compiling import PIECE, launches, near
from famr.engine.kernels.toolchain import Launch

THREADS = 256
NARROW = 128
"""Threads of a block of the backward kernel, at most; they lie side by side in a row."""
BLOCKS = 16
"""Its blocks for each of a device's processors."""


class Gelu:
    """Its kernels."""

    def __init__(self, forward: Launch, backward: Launch, processors: int) -> None:
        self._forward, self._backward, self._processors = forward, backward, processors

    @classmethod
    def compiled(cls, device: torch.device) -> Gelu:
        """For any size."""
        return cls(*launches("gelu", device), torch.cuda.get_device_properties(device).multi_processor_count)

    def forward(self, x: Tensor) -> Tensor:
        """x·Φ(x)."""
        out, pieces = torch.empty_like(x), x.numel() // PIECE
        self._forward((-(-pieces // THREADS), 1, 1), (THREADS, 1, 1), [x, out, pieces])
        return out

    def backward(self, slope: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of x; and its sum over all rows."""
        pieces = x.shape[-1] // PIECE
        rows = x.numel() // x.shape[-1]
        threads = min(NARROW, -(-pieces // 32) * 32)
        across = -(-pieces // threads)
        each = -(-rows * across // (BLOCKS * self._processors))
        down = -(-rows // each)
        of_x = torch.empty_like(x)
        sums = torch.empty((down, x.shape[-1]), dtype=torch.float32, device=x.device)
        self._backward((across, down, 1), (threads, 1, 1), [slope, x, of_x, sums, pieces, rows, each])
        return of_x, sums.sum(0).to(x.dtype)


def serves(x: Tensor) -> bool:
    """Whether the kernels can take its rows."""
    return x.ndim > 0 and x.shape[-1] % PIECE == 0


@torch.no_grad()
def agrees(ours: Gelu, device: torch.device) -> bool:
    """Whether it answers as the library does, from where Φ is 0 to where it is 1."""
    draw = torch.Generator().manual_seed(0)
    x = torch.linspace(-9, 9, 37 * PIECE * (NARROW + 3)).to(device, torch.bfloat16)
    x = x[torch.randperm(len(x), generator=draw).to(device)].reshape(37, -1)
    slope = torch.randn(x.shape, generator=draw).to(device, torch.bfloat16)
    wide = x.float()
    expected = torch.ops.aten.gelu_backward(slope.float(), wide)
    apart = ours.forward(x).float() - F.gelu(wide)
    small = bool(
        (apart.abs() <= 1e-5 + F.gelu(wide).abs() / 128).all()
    )  # each of them, where it is next to nothing too
    return small and near([ours.forward(x), *ours.backward(slope, x)], [F.gelu(wide), expected, expected.sum(0)])
