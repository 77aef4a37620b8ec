"""Which kernels a network needs."""

from __future__ import annotations

from functools import partial

from torch import nn

from famr.engine.kernels import gelu, layer_norm
from famr.engine.kernels.compiling import begin
from famr.engine.kernels.gelu import Gelu
from famr.engine.kernels.layer_norm import LayerNorms, serves


def get_ready(module: nn.Module) -> None:
    """Begin to compile what a network of transformer blocks needs, beside other work."""
    for part in module.modules():
        if not isinstance(part, nn.LayerNorm) or len(part.normalized_shape) != 1 or part.weight is None:
            continue
        (width,), device = part.normalized_shape, part.weight.device
        begin((Gelu, 0, device), partial(Gelu.compiled, device), partial(gelu.agrees, device=device))
        if serves(width):
            try_it = partial(layer_norm.agrees, width=width, device=device)
            begin((LayerNorms, width, device), partial(LayerNorms.compiled, width, device), try_it)
