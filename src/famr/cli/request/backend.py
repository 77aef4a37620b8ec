"""What the desk does with models and data: open the data, run `famr forget`, evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from famr.cli.forget import ForgetTask, run_forget
from famr.cli.opening import DataSource
from famr.cli.options import ComputeOptions, ModelSource, OutputOptions
from famr.config import FAMR
from famr.data import Data, Images
from famr.data.request import Request
from famr.desk.duplicates import Fingerprint, fingerprints
from famr.desk.lookup import Sample
from famr.desk.recheck import Measurement
from famr.desk.workspace import Settings
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.metrics.forgetting import correct, cross_entropy
from famr.models import load_model
from famr.models.labels import match_labels


@dataclass(frozen=True)
class ModelBackend:
    """The backend of a workspace, see `famr.desk.running.DeskBackend`.

    Attributes:
        model: The model that the workspace is about.
        source: Its training data.
        device: Where to compute.
        quiet: Show no progress.
    """

    model: str
    source: DataSource
    device: str = "auto"
    quiet: bool = True

    @classmethod
    def of(cls, settings: Settings, device: str = "auto", quiet: bool = True) -> ModelBackend:
        """The backend for the model and the data of a workspace.

        Args:
            settings: Of the workspace.
            device: Where to compute.
            quiet: Show no progress.
        """
        return cls(settings.model, DataSource.from_json(settings.data), device, quiet)

    def data(self) -> Data:
        """See `SearchableData.data`."""
        return _open_data(self.model, self.source)

    def fingerprints(self) -> Sequence[Fingerprint]:
        """See `SearchableData.fingerprints`."""
        return _fingerprints(self.model, self.source)

    def file_of(self, id_: str) -> Path | None:
        """See `SearchableData.file_of`.

        Args:
            id_: Id of the image.
        """
        kind, _, folder = str(self.source.spec).partition(":")
        file = Path(folder) / id_
        return file if kind == "folder" and file.is_file() else None

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        """Run `famr forget` with its gates, see `DeskBackend.forget`.

        Args:
            parent: The model to start from.
            request: What to forget.
            plan: Settings of the method, and the seed.
            folder: The run folder to write.
        """
        task = ForgetTask(
            ModelSource(model=parent),
            self.source,
            request,
            FAMR.from_json(dict(plan["method"])),
            OutputOptions(output_dir=folder),
            run=ComputeOptions(seed=plan["seed"], device=self.device, resume=True, quiet=self.quiet),
        )
        run_forget(task)

    def measure(self, model: str, samples: Mapping[int, Sequence[Sample]]) -> dict[int, Measurement]:
        """See `DeskBackend.measure`; images that are no longer in the data are left out.

        Args:
            model: The model to evaluate.
            samples: What was found of each request, by its number.
        """
        classifier, data, device = load_model(model), self.data(), pick_device(self.device)
        measurements = {}
        for number, samples_of_request in samples.items():
            images = _images_of(data, samples_of_request)
            if len(images) == 0 or not images.labelled:
                measurements[number] = Measurement(len(images), None, None)
                continue
            predictions = predict(classifier, images, device)
            accuracy = float(correct(predictions.logits, predictions.targets).mean())
            loss = float(cross_entropy(predictions.logits, predictions.targets).mean())
            measurements[number] = Measurement(len(images), accuracy, loss)
        return measurements


@cache
def _open_data(model: str, source: DataSource) -> Data:
    _, data = match_labels(load_model(model), source.open(), by_name=source.match_labels_by_name)
    return data


@cache
def _fingerprints(model: str, source: DataSource) -> tuple[Fingerprint, ...]:
    return tuple(fingerprints(_open_data(model, source).train))


def _images_of(data: Data, samples: Sequence[Sample]) -> Images:
    """The training images that were found for a request."""
    found = [sample for sample in samples if sample.state == "found"]
    ids = {sample.id for sample in found if sample.id is not None}
    names = {sample.asked for sample in found if sample.id is None and sample.asked in data.labels}
    classes = {data.labels.index(name) for name in names}
    pairs = zip(data.train.ids, data.train.targets.tolist(), strict=True)
    return data.train.where(torch.tensor([id_ in ids or target in classes for id_, target in pairs], dtype=torch.bool))
