"""Compiled networks for the steps of a method: on a GPU a step of a small network mostly waits for Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from famr.alternatives.alternative import Meter
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.optimise import trainable

REFUSED: set[type[nn.Module]] = set()
"""Networks that could not be compiled in this process: to try again in every run would only take time."""


class Compiled:
    """Networks of one run, compiled for batches of one size; others would each be compiled anew, and stay as they are.

    A process compiles the same network once for all copies of it, so that it belongs to no method's seconds.
    """

    def __init__(self, size: int, meter: Meter, facts: dict[str, Any]) -> None:
        self._size, self._meter, self._facts = size, meter, facts
        self._found: dict[tuple[int, bool, bool], Classifier] = {}

    def of(self, model: Classifier, images: Tensor, weights: Mapping[str, Tensor] | None) -> Classifier:
        """What is to be asked about these images: the compiled network, or the model itself."""
        if len(images) != self._size:
            return model
        key = id(model.module), torch.is_grad_enabled(), weights is None
        if key not in self._found:
            with self._meter.paused():
                self._found[key] = _compiled(model, images, weights)
            self._facts["compiled"] = self._facts.get("compiled", True) and self._found[key] is not model
        return self._found[key]


def answer(model: Classifier, images: Tensor, weights: Mapping[str, Tensor] | None) -> Tensor:
    """Logits with a network's own weights, or with others by the same names."""
    if weights is None:
        return model.logits(images)
    inside = "_orig_mod." if hasattr(model.module, "_orig_mod") else ""  # what `torch.compile` wraps
    own = {f"{inside}{name}": weight for name, weight in weights.items()}
    return logits_of(torch.func.functional_call(model.module, own, (images,)))


def _compiled(model: Classifier, images: Tensor, weights: Mapping[str, Tensor] | None) -> Classifier:
    """The same weights, used once forwards and backwards; the model itself, with a warning, where that fails."""
    module = model.module
    if type(module) in REFUSED:
        return model
    statistics = [buffer.clone() for buffer in module.buffers()]
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            quick = replace(model, module=torch.compile(module, dynamic=False))  # type: ignore[arg-type]
            said = answer(quick, images, weights)
            if said.requires_grad:
                changed = trainable(module) if weights is None else [w for w in weights.values() if w.requires_grad]
                torch.autograd.grad(said.sum(), changed, allow_unused=True)
        except Exception as error:  # of whatever kind: steps that are not compiled are slower, and no worse
            REFUSED.add(type(module))
            why = next(iter(str(error).splitlines()), type(error).__name__)
            warnings.warn(
                f"{model.spec}: the network cannot be compiled, its steps run without, which takes longer: {why}",
                stacklevel=2,
            )
            quick = model
    with torch.no_grad():
        for buffer, before in zip(module.buffers(), statistics, strict=True):
            buffer.copy_(before)
    return quick
