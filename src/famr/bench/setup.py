"""Data, starting weights and training of a bench, as a command line names them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from famr.data import Data, open_data
from famr.errors import CheckpointError
from famr.models import Classifier, new_model
from famr.training import Training

SCRATCH = "scratch"
"""In place of a model: the architecture of a given original, with random weights."""


@dataclass(frozen=True, eq=False)
class BenchSetup:
    """Data, starting weights and training.

    Attributes:
        data_spec: The data, as for `famr.open_data`.
        data_name: What the tables call the data; None: its specification without the path.
        data_root: Where torchvision keeps its files.
        label_column: The column with the classes.
        split_seed: Of the test split, for data that has none.
        weights: A file with the starting weights; None: the published ones.
        arguments: Of the model's constructor.
        from_scratch: Whether all starting weights are random.
        training: Of originals and retrained models.
    """

    data_spec: str
    data_name: str | None
    data_root: str | None
    label_column: str | None
    split_seed: int
    weights: Path | None
    arguments: Mapping[str, Any]
    from_scratch: bool
    training: Training

    def open_data(self) -> Data:
        """The images."""
        return open_data(
            self.data_spec, root=self.data_root, label_column=self.label_column, split_seed=self.split_seed
        )

    def describe_data(self) -> str:
        """The data in words, without the path to it."""
        kind, _, path = self.data_spec.partition(":")
        return self.data_name or (f"{kind}:{Path(path).name}" if path else kind)

    def describe_start(self, spec: str) -> str:
        """The starting weights in words.

        Args:
            spec: The model, as timm:NAME and the like.

        Raises:
            CheckpointError: There is no file with the weights.
        """
        source = "published weights"
        if self.weights is not None:
            if not self.weights.is_file():
                raise CheckpointError("There is no such file.", where=str(self.weights), fix="Check --weights.")
            digest = hashlib.sha256(self.weights.read_bytes()).hexdigest()
            source = f"weights {self.weights.name} ({digest[:12]})"
        elif self.from_scratch or spec == SCRATCH:
            source = "from scratch"
        arguments = "".join(f", {name}={value}" for name, value in self.arguments.items())
        return f"{spec}{arguments}, {source}"

    def start_from(self, spec: str, labels: Sequence[str]) -> Callable[[int], Classifier]:
        """A function from a seed to the model that training starts from.

        Args:
            spec: The model, as timm:NAME and the like.
            labels: Its classes.
        """
        return lambda seed: new_model(
            spec,
            labels,
            weights=self.weights,
            arguments=self.arguments,
            from_scratch=self.from_scratch,
            seed=seed,
        )

    def training_on(self, data: Data) -> Training:
        """The training, with mirror images only where the data allows them.

        Args:
            data: The images.
        """
        if self.training.augmentation is None:
            return self.training
        return replace(self.training, augmentation=replace(self.training.augmentation, mirror=data.mirror))
