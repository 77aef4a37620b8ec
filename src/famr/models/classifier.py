"""A classifier: the network as its library built it, with what is needed to feed it, read it and save it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from famr.data.transforms import Preprocessing
from famr.errors import CheckpointError, RequestError
from famr.models.fresh import fresh_copy
from famr.models.weights import save_weights, state_digest


class Architecture(Protocol):
    """Where a network comes from: how to build it anew, and how its own library stores it."""

    @property
    def library(self) -> str:
        """The library that loads the saved folder: timm, transformers, torchvision or none."""
        ...

    @property
    def name(self) -> str:
        """The architecture's name in that library."""
        ...

    def build(self, classes: int) -> nn.Module:
        """The network with random weights and a head of `classes` outputs."""
        ...

    def save(self, classifier: Classifier, folder: Path) -> None:
        """Write weights and configuration so that the library loads the folder by itself."""
        ...


@dataclass(frozen=True)
class BareArchitecture:
    """A network that famr did not build: its weights can be saved, its code cannot."""

    name: str = "module"
    library: str = "none"

    def build(self, classes: int) -> nn.Module:
        """Not possible: only the caller has the code."""
        raise CheckpointError(
            "famr cannot build this network anew.",
            where=self.name,
            fix=f"Build it yourself with {classes} outputs, and pass the nn.Module.",
        )

    def save(self, classifier: Classifier, folder: Path) -> None:
        """The weights, and what is known about them."""
        save_plain(classifier, folder)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network that returns one logit a class, the names of the classes, and how to prepare its images."""

    module: nn.Module
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    architecture: Architecture = field(default_factory=BareArchitecture)
    spec: str = "module"

    def __post_init__(self) -> None:
        if self.labels is not None:
            object.__setattr__(self, "labels", tuple(self.labels))

    def logits(self, images: Tensor) -> Tensor:
        """(batch, classes), whatever the library wraps around it."""
        return logits_of(self.module(images))

    def require_preprocessing(self) -> Preprocessing:
        """How to prepare images for this network; an error where nobody has said."""
        if self.preprocessing is None:
            raise RequestError(
                "It is not known how this network wants its images.",
                where=self.spec,
                fix="Say so: famr.Classifier(module, labels, famr.Preprocessing(…)); or hand over prepared images "
                "with famr.forget(module, forget=loader).",
            )
        return self.preprocessing

    def copy(self) -> Classifier:
        """The same classifier with weights of its own."""
        return replace(self, module=fresh_copy(self.module))

    def digest(self) -> str:
        """SHA-256 of the names, types, shapes and bytes of all weights."""
        return state_digest(self.module)

    def class_count(self) -> int | None:
        """How many classes the head knows, asked with one blank image; None if nobody says how large one is."""
        if self.labels is not None or self.preprocessing is None:
            return None if self.labels is None else len(self.labels)
        blank = torch.zeros(1, self.preprocessing.channels, *self.preprocessing.crop)
        parameter = next(self.module.parameters())
        with torch.no_grad(), eval_mode(self.module):
            logits = self.logits(blank.to(parameter.device, parameter.dtype))
        return int(logits.shape[-1])


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Have a network in evaluation mode for a while; every part of it gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def save_plain(classifier: Classifier, folder: Path) -> None:
    """For libraries without a folder layout of their own: the state dict, and a config.json that explains it."""
    save_weights(classifier.module, folder / "model.safetensors")
    config = {
        "library": classifier.architecture.library,
        "architecture": classifier.architecture.name,
        "num_classes": classifier.class_count(),
        "label_names": None if classifier.labels is None else list(classifier.labels),
        "preprocessing": None if classifier.preprocessing is None else classifier.preprocessing.to_json(),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned: a tensor, or an object that has them as `.logits`."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise CheckpointError(
            f"The network must return logits (batch, classes), got {shape}.",
            fix="Wrap it in an nn.Module that returns one row of class scores an image.",
        )
    return logits
