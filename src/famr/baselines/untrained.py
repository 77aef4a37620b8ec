"""The same architecture with weights that have seen nothing: where retraining starts, and what a bad teacher knows."""

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
    """The network with random weights drawn with `seed`.

    Where famr did not build the network, each part draws its own weights anew; a part that cannot is an error, since
    trained weights would stay in it.
    """
    with deterministic(seed):
        if not isinstance(original.architecture, BareArchitecture):
            classes = original.class_count()
            assert classes is not None
            return replace(original, module=original.architecture.build(classes).eval())
        fresh = original.copy()
        _redraw(fresh.module)
        fresh.module.eval()
        return fresh


def _redraw(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if hasattr(part, "reset_parameters"):
            cast(Callable[[], None], part.reset_parameters)()
        elif any(True for _ in part.parameters(recurse=False)) or any(True for _ in part.buffers(recurse=False)):
            raise CheckpointError(
                f"The part {name or 'itself'!r} of the network ({type(part).__name__}) cannot draw new weights.",
                fix="Give it a method reset_parameters, or load the network by name, e.g. timm:NAME.",
            )
