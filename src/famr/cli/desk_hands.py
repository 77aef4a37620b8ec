"""What `famr request` has done for the desk: opening data, forgetting with the ordinary command, measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from famr.cli.commands import open_facts, run_forget
from famr.config import FAMR
from famr.data import Data, Images
from famr.data.request import Request
from famr.desk.duplicates import Fingerprint, fingerprints
from famr.desk.lookup import Sample
from famr.desk.recheck import Measurement
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.metrics.forgetting import correct, cross_entropy
from famr.models import load_model
from famr.models.labels import match_labels


@dataclass(frozen=True)
class RealHands:
    """Works with the model and the data of a workspace."""

    model: str
    facts: Mapping[str, Any]
    device: str = "auto"
    quiet: bool = True

    def data(self) -> Data:
        """The training data, with the class names of the model."""
        return _opened(self.model, tuple(sorted(self.facts.items())))

    def fingerprints(self) -> Sequence[Fingerprint]:
        """The fingerprints of the training images."""
        return _prints(self.model, tuple(sorted(self.facts.items())))

    def file_of(self, id_: str) -> Path | None:
        """The file behind an image, where the data is a folder."""
        kind, _, place = self.facts["spec"].partition(":")
        file = Path(place) / id_
        return file if kind == "folder" and file.is_file() else None

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        """`famr forget`, with its gates."""
        run_forget(
            model=parent,
            weights=None,
            arguments={},
            request=request,
            data_facts=self.facts,
            style_target=None,
            sketch=None,
            method=FAMR.from_json(dict(plan["method"])),
            retrained=None,
            track_retain=True,
            gates=True,
            output_dir=folder,
            overwrite=False,
            resume=True,
            seed=plan["seed"],
            device=self.device,
            quiet=self.quiet,
        )

    def measure(self, model: str, samples: Mapping[int, Sequence[Sample]]) -> dict[int, Measurement]:
        """How a model answers the images of each request that are still in the data."""
        classifier, data, place = load_model(model), self.data(), pick_device(self.device)
        looks = {}
        for number, found in samples.items():
            images = _images_of(data, found)
            if len(images) == 0 or not images.labelled:
                looks[number] = Measurement(len(images), None, None)
                continue
            said = predict(classifier, images, place)
            right = float(correct(said.logits, said.targets).mean())
            looks[number] = Measurement(len(images), right, float(cross_entropy(said.logits, said.targets).mean()))
        return looks


@cache
def _opened(model: str, facts: tuple[tuple[str, Any], ...]) -> Data:
    found = dict(facts)
    _, data = match_labels(load_model(model), open_facts(found), by_name=found["match_labels_by_name"])
    return data


@cache
def _prints(model: str, facts: tuple[tuple[str, Any], ...]) -> tuple[Fingerprint, ...]:
    return tuple(fingerprints(_opened(model, facts).train))


def _images_of(data: Data, samples: Sequence[Sample]) -> Images:
    """The training images that were found for a request."""
    found = [each for each in samples if each.state == "found"]
    ids = {each.id for each in found if each.id is not None}
    classes = {data.labels.index(each.asked) for each in found if each.id is None and each.asked in data.labels}
    pairs = zip(data.train.ids, data.train.targets.tolist(), strict=True)
    return data.train.where(torch.tensor([id_ in ids or target in classes for id_, target in pairs], dtype=torch.bool))
