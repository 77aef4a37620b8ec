"""Layer normalisation in bf16."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.engine.kernels.compiling import PIECE, launches, near
from famr.engine.kernels.toolchain import Launch

LANES = 32
WARPS = 4
WIDEST = 1280
"""A row has to fit into what the lanes of one warp hold."""
BLOCKS = 3
"""Blocks for each of a device's processors, in the backward kernel."""

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class LayerNorms:
    """The kernels for rows of one width."""

    def __init__(self, forward: Launch, backward: Launch, processors: int) -> None:
        self._forward, self._backward, self._processors = forward, backward, processors

    @classmethod
    def compiled(cls, width: int, device: torch.device) -> LayerNorms:
        """For rows of this width."""
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(*launches("layer_norm", device, WIDTH=width), processors)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """What `torch.native_layer_norm` gives: the result, and μ and 1/σ of each row."""
        rows = x.numel() // x.shape[-1]
        out = torch.empty_like(x)
        mean, rstd = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        grid = (-(-rows // WARPS), 1, 1)
        self._forward(grid, (LANES * WARPS, 1, 1), [x, weight, bias, out, mean, rstd, rows, eps])
        return out, mean, rstd

    def backward(
        self, slope: Tensor, around: Tensor | None, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
    ) -> Gradients:
        """The gradients of x, scale and shift; and the sum of that of x over all rows.

        `around`: the gradient of what goes around the normalisation, as in x + f(norm(x)); it is added to that of x.
        """
        rows, width = len(mean), x.shape[-1]
        blocks = min(-(-rows // WARPS), BLOCKS * self._processors)
        of_x = torch.empty_like(x)
        sums = torch.empty((3, blocks, width), dtype=torch.float32, device=x.device)
        past = slope if around is None else around
        given = [slope, past, x, mean, rstd, weight, of_x, *sums, rows, int(around is not None)]
        self._backward((blocks, 1, 1), (LANES * WARPS, 1, 1), given)
        of_weight, of_bias, total = sums.sum(1).to(weight.dtype)
        return of_x, of_weight, of_bias, total


def serves(width: int) -> bool:
    """Whether rows are of a length that the kernels can take.

    >>> serves(768), serves(770), serves(4096)
    (True, False, False)
    """
    return width % PIECE == 0 and 0 < width <= WIDEST


@torch.no_grad()
def agrees(ours: LayerNorms, width: int, device: torch.device) -> bool:
    """Whether the kernels answer as the library does in float32, on rows that are far from zero and of any size."""
    draw = torch.Generator().manual_seed(width)
    rows = 1 + 5 * WARPS  # not a multiple of anything
    x, slope, around = (torch.randn(rows, width, generator=draw) for _ in range(3))
    x = (3 * x + torch.linspace(-4, 4, rows)[:, None]).to(device, torch.bfloat16)
    slope, around, weight, bias = (
        each.to(device, torch.bfloat16)
        for each in (slope, around, 1 + torch.randn(width, generator=draw) / 2, torch.randn(width, generator=draw))
    )
    out, mean, rstd = ours.forward(x, weight, bias, 1e-6)
    wide = [each.float() for each in (x, weight, bias)]
    expected, *moments = torch.native_layer_norm(wide[0], (width,), wide[1], wide[2], 1e-6)
    of_x, *others = torch.ops.aten.native_layer_norm_backward(
        slope.float(), wide[0], (width,), *moments, wide[1], wide[2], [True, True, True]
    )
    every = [near([out], [expected])]
    for past, of_all in ((None, of_x), (around, of_x + around.float())):
        found = ours.backward(slope, past, x, mean, rstd, weight)
        every.append(near(found, [of_all, *others, of_all.sum(0)]))
    return all(every)
