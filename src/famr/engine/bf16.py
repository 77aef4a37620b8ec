"""bf16 for a whole network: activations and a copy of the weights are bf16, weights and gradients stay in float32.

Under autocast the residual stream and the normalisations of a transformer stay in float32, which doubles the memory
traffic between its matrix products. Here every forward pass gets the weights rounded to bf16, differentiably. The last
normalisation and the last linear layer stay in float32: their rounding would go straight into the logits, the same way
for all images. So do layers with statistics of their own, such as BatchNorm. A network that does not run this way, such
as one that mixes in float32 buffers, runs under autocast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from famr.engine.devices import autocast
from famr.models.classifier import eval_mode, logits_of

NORMALISATIONS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Bf16Network:
    """Calls a network in bf16.

    Args:
        module: The network, with its weights in float32; those without `requires_grad` do not change any more.
        example: A few images as it takes them; they tell whether it runs in bf16 throughout.

    Attributes:
        rounds_activations: Whether it does; else it runs under autocast.
    """

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        self._module = module
        self._last_layers = last_layers(module)
        float32 = {
            parameter
            for layer in module.modules()
            if layer in self._last_layers or any(b.is_floating_point() for b in layer.buffers(recurse=False))
            for parameter in layer.parameters(recurse=False)
        }
        rounded = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.dtype == torch.float32 and parameter not in float32
        }
        self._trainable = {name: parameter for name, parameter in rounded.items() if parameter.requires_grad}
        self._frozen = {
            name: parameter.detach().to(torch.bfloat16)
            for name, parameter in rounded.items()
            if not parameter.requires_grad
        }
        self.rounds_activations = self._runs(example)

    def __call__(self, images: Tensor) -> Any:
        """What the network returns.

        Args:
            images: As the network takes them.
        """
        if not self.rounds_activations:
            with autocast(images.device, "bf16"):
                return self._module(images)
        return self._call_rounded(images)

    def _call_rounded(self, images: Tensor) -> Any:
        weights = {name: parameter.to(torch.bfloat16) for name, parameter in self._trainable.items()}
        with _float32_inputs(self._last_layers):
            return torch.func.functional_call(
                self._module, {**self._frozen, **weights}, (images.to(torch.bfloat16),), tie_weights=False
            )

    @torch.no_grad()
    def _runs(self, example: Tensor) -> bool:
        try:
            with eval_mode(self._module):
                return bool(torch.isfinite(logits_of(self._call_rounded(example))).all())
        except RuntimeError:  # operands of two dtypes
            return False


def last_layers(module: nn.Module) -> list[nn.Module]:
    """The last normalisation and the last linear layer of a network, in the order of its definition.

    Args:
        module: The network.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> last_layers(network) == [network[1], network[2]]
    True
    """
    layers = list(module.modules())
    last = [next((x for x in reversed(layers) if isinstance(x, kind)), None) for kind in (NORMALISATIONS, nn.Linear)]
    return [layer for layer in last if layer is not None]


@contextmanager
def _float32_inputs(layers: Sequence[nn.Module]) -> Iterator[None]:
    def widen(_layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.float() if isinstance(value, Tensor) else value for value in inputs)

    handles = [layer.register_forward_pre_hook(widen) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
