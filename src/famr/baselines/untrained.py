"""The original's architecture with random weights: where retraining starts, and the incompetent one of two teachers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from torch import nn

from famr.engine.devices import deterministic
from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.classifier import BareArchitecture


def untrained(original: Classifier, seed: int) -> Classifier:
    """The same network with random weights.

    A network that famr did not build draws its weights module by module. A module that cannot is an error, as its
    trained weights would remain.

    Args:
        original: The trained classifier; unchanged.
        seed: Of the random weights.

    Raises:
        CheckpointError: A module has weights but no method `reset_parameters`.
    """
    with deterministic(seed):
        if not isinstance(original.architecture, BareArchitecture):
            classes = original.class_count()
            assert classes is not None
            return replace(original, module=original.architecture.build(classes).eval())
        copy = original.copy()
        _redraw(copy.module)
        copy.module.eval()
        return copy


def _redraw(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if hasattr(module, "reset_parameters"):
            cast(Callable[[], None], module.reset_parameters)()
        elif any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False)):
            raise CheckpointError(
                f"The module {name or 'itself'!r} of the network ({type(module).__name__}) cannot draw new weights.",
                fix="Give it a method reset_parameters, or load the network by name, e.g. timm:NAME.",
            )
