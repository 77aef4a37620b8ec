"""How proxies of a model are trained: like the model itself, for a fraction of its epochs, in its late layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from famr.errors import CheckpointError, FamrError, RequestError
from famr.models import Classifier
from famr.proxies.late import redrawn
from famr.runs.folder import read_unlearning
from famr.runs.training_record import RECORD, TrainingRecord
from famr.training import Training
from famr.training.recorded import original_training, recorded_training

EPOCH_SHARE = 0.25
"""Epochs of a proxy, as a share of the original's. With half as many its target is farther from retrained models
(docs/method.md, "What was tried")."""
LATE_SHARE, ALL_LAYERS = 0.5, 1.0
"""Share of the layers that a proxy has of its own. A network that was fine-tuned has a proxy with all of them: it is
nearer to retrained models, at nearly twice the cost. From random weights a quarter of the epochs does not suffice for
all layers, and a sketch holds many proxies: these have half. With a quarter of the layers the target is farther from
retrained models (docs/method.md, "What was tried")."""


@dataclass(frozen=True, eq=False)
class ProxyRecipe:
    """How proxies of a model are trained.

    Attributes:
        training: The original's training, with all its epochs.
        start: The model from which the original's training started, such as a pretrained network with a new head; None:
            not known, and late layers start from random weights.
        epochs: Of a proxy; None: a quarter of the training's, at least one.
        late_share: Share of the layers that a proxy trains; the others are the original's, frozen. Best 1 where the
            start is a pretrained network.
        source: Where the recipe comes from, in words.
        record: Folder whose record says where the training started, for `with_start`; None: there is none.
    """

    training: Training
    start: Classifier | None = None
    epochs: int | None = None
    late_share: float = LATE_SHARE
    source: str = "as given"
    record: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.late_share <= 1:
            raise RequestError(f"`late_share` must be in (0, 1], got {self.late_share!r}.", where="ProxyRecipe")
        if self.epochs is not None and self.epochs < 1:
            raise RequestError(f"`epochs` must be at least 1, got {self.epochs!r}.", where="ProxyRecipe")

    @property
    def short_training(self) -> Training:
        """The training of a proxy. Images are not augmented: activations of the early layers are computed once."""
        epochs = self.epochs or max(1, round(EPOCH_SHARE * self.training.epochs))
        return replace(self.training, epochs=epochs, augmentation=None)

    def with_start(self, original: Classifier) -> ProxyRecipe:
        """The recipe with the start that the record names, loaded; without one where it can no longer be found.

        Args:
            original: The model that is to forget.
        """
        if self.start is not None or self.record is None:
            return self
        try:
            found = original_training(original, self.record)
            return replace(self, start=found.start(found.seed), record=None)
        except FamrError as error:
            source = f"{self.source}; late layers start at random ({error.what.rstrip('.')})"
            return replace(self, late_share=min(self.late_share, LATE_SHARE), source=source, record=None)

    def start_of(self, original: Classifier, names: tuple[str, ...], seed: int) -> Classifier:
        """Where the late layers of a proxy start.

        Args:
            original: The model that is to forget.
            names: Parameters of the late layers.
            seed: Of random weights.
        """
        return redrawn(original, names, seed) if self.start is None else self.start

    def to_json(self) -> dict[str, Any]:
        """Facts about the recipe, for records."""
        short = self.short_training
        return {
            "epochs": short.epochs,
            "epochs_of_training": self.training.epochs,
            "late_share": self.late_share,
            "start_sha256": None if self.start is None else self.start.digest(),
            "source": self.source,
        }


def recorded_recipe(model: Classifier) -> ProxyRecipe:
    """The recipe that the model's folder records: that of its training, or of the model that it was unlearned from.

    Args:
        model: As it was loaded; one without a record gets the usual fine-tuning.
    """
    folder = _trained_folder(Path(model.spec))
    if folder is None:
        return ProxyRecipe(Training(), source="the default training, as the model has no record of its own")
    try:
        share = ALL_LAYERS if _was_fine_tuned(folder) else LATE_SHARE
        source = "the record of the original's training"
        return ProxyRecipe(recorded_training(folder), late_share=share, source=source, record=folder)
    except CheckpointError:
        return ProxyRecipe(Training(), source="the default training, as the model's record cannot be read")


def sketch_recipe(model: Classifier) -> ProxyRecipe:
    """The recorded recipe for proxies that are taken once: a file holds them all, so that they share early layers.

    Args:
        model: As it was loaded.
    """
    return replace(recorded_recipe(model), late_share=LATE_SHARE)


def _was_fine_tuned(folder: Path) -> bool:
    """Whether a training is recorded to have started from trained weights."""
    record = TrainingRecord.read(folder)
    return record is not None and record.start is not None and not record.start.get("from_scratch")


def _trained_folder(folder: Path) -> Path | None:
    """The folder of the training behind a run folder, through all unlearning runs in between."""
    passed: set[Path] = set()
    while folder not in passed and folder.is_dir():
        passed.add(folder)
        if (folder / RECORD).is_file():
            return folder
        try:
            folder = Path(read_unlearning(folder)[1]["original"]["model"])
        except (FamrError, KeyError, TypeError):
            return None
    return None
