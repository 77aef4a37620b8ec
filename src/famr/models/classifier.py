"""A classifier: the network as its library built it, with class names, preprocessing and the way to save it."""

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
    """Where a network comes from: how to build it, and how its own library stores it."""

    @property
    def library(self) -> str:
        """The library that loads the saved folder: timm, transformers, torchvision or none."""
        ...

    @property
    def name(self) -> str:
        """The architecture's name in that library."""
        ...

    def build(self, classes: int) -> nn.Module:
        """The network with random weights.

        Args:
            classes: Outputs of the head.
        """
        ...

    def save(self, classifier: Classifier, folder: Path) -> None:
        """Write weights and configuration so that the library loads the folder without famr.

        Args:
            classifier: Has this architecture.
            folder: Exists and is empty.
        """
        ...


@dataclass(frozen=True)
class BareArchitecture:
    """A network that famr did not build: its weights can be saved, its code cannot.

    Attributes:
        name: See `Architecture.name`.
        library: See `Architecture.library`.
    """

    name: str = "module"
    library: str = "none"

    def build(self, classes: int) -> nn.Module:
        """See `Architecture.build`; not possible, as only the caller has the code.

        Args:
            classes: Outputs of the head.

        Raises:
            CheckpointError: Always.
        """
        raise CheckpointError(
            "famr cannot build this network anew.",
            where=self.name,
            fix=f"Build it yourself with {classes} outputs, and pass the nn.Module.",
        )

    def save(self, classifier: Classifier, folder: Path) -> None:
        """See `Architecture.save`."""
        save_plain(classifier, folder)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network that returns one logit per class, with its class names and preprocessing.

    Attributes:
        module: Returns logits (batch, classes), or an object with `.logits`.
        labels: Class names by index; None where they are not known.
        preprocessing: Of stored images; None where it is not known.
        architecture: How the network is built and saved.
        spec: The name it was loaded by.
    """

    module: nn.Module
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    architecture: Architecture = field(default_factory=BareArchitecture)
    spec: str = "module"

    def __post_init__(self) -> None:
        if self.labels is not None:
            object.__setattr__(self, "labels", tuple(self.labels))

    def logits(self, images: Tensor) -> Tensor:
        """The network's logits.

        Args:
            images: As the network takes them, (batch, channels, height, width).

        Returns:
            (batch, classes).
        """
        return logits_of(self.module(images))

    def require_preprocessing(self) -> Preprocessing:
        """The preprocessing of stored images.

        Raises:
            RequestError: It is not known.
        """
        if self.preprocessing is None:
            raise RequestError(
                "The preprocessing of this network's images is not known.",
                where=self.spec,
                fix="Give it: famr.Classifier(module, labels, famr.Preprocessing(…)); or pass prepared images "
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
        """Number of classes, from the class names or from a forward pass of one blank image.

        Returns:
            None where neither class names nor preprocessing are known.
        """
        if self.labels is not None or self.preprocessing is None:
            return None if self.labels is None else len(self.labels)
        blank = torch.zeros(1, self.preprocessing.channels, *self.preprocessing.crop)
        parameter = next(self.module.parameters())
        with torch.no_grad(), eval_mode(self.module):
            logits = self.logits(blank.to(parameter.device, parameter.dtype))
        return int(logits.shape[-1])


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode; each submodule's own mode returns on exit.

    Args:
        module: The network.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def save_plain(classifier: Classifier, folder: Path) -> None:
    """Write a state dict and a config.json, for libraries without a folder layout of their own.

    Args:
        classifier: What is written.
        folder: Exists.
    """
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
    """The logits in the output of a network.

    Args:
        output: A tensor, or an object with `.logits`.

    Returns:
        (batch, classes).

    Raises:
        CheckpointError: The output is anything else.
    """
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise CheckpointError(
            f"The network must return logits (batch, classes), got {shape}.",
            fix="Wrap it in an nn.Module that returns one row of class scores per image.",
        )
    return logits
