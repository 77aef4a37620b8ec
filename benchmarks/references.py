"""Retrained references: what a model that never saw the forget set says, kept so that it is trained only once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import famr
from famr.engine.devices import pick_device
from famr.engine.inference import predict, predict_splits
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions, SplitPredictions


class Retained(NamedTuple):
    """What a model says about the retained training images, one value an image."""

    probability: Tensor  # of the true class
    correct: Tensor

    @classmethod
    def of(cls, said: Predictions) -> Retained:
        """From all its answers."""
        probability = torch.softmax(said.logits, dim=-1).gather(-1, said.targets[:, None])[:, 0]
        return cls(probability, correct(said.logits, said.targets))


@dataclass(frozen=True, eq=False)
class Reference:
    """A retrained model by its answers, and how long the retraining took."""

    answers: SplitPredictions
    retain: Retained | None
    """Only where samples are forgotten."""
    seconds: float

    def save(self, file: Path, facts: dict[str, object]) -> None:
        """Write it, with what it is a reference of."""
        sets = {"forget": self.answers.forget, "test": self.answers.test, "forget_test": self.answers.forget_test}
        found = {name: said for name, said in sets.items() if said is not None}
        tensors = {f"{name}.logits": said.logits.contiguous() for name, said in found.items()}
        tensors |= {f"{name}.targets": said.targets.contiguous() for name, said in found.items()}
        if self.retain is not None:
            tensors |= {f"retain.{name}": value.contiguous() for name, value in self.retain._asdict().items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(file), metadata={"reference": json.dumps({**facts, "seconds": self.seconds})})

    def where(self, scored: Tensor) -> Reference:
        """The same with some of the test images."""
        test = self.answers.test
        assert test is not None
        some = Predictions(test.logits[scored], test.targets[scored])
        return replace(self, answers=replace(self.answers, test=some))

    @classmethod
    def load(cls, file: Path, facts: dict[str, object]) -> Reference:
        """Read what `save` wrote; a reference of something else is refused."""
        with safe_open(str(file), framework="pt") as stored:
            kept = json.loads(stored.metadata()["reference"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        seconds = kept.pop("seconds")
        if kept != json.loads(json.dumps(facts)):
            raise ValueError(f"{file.name} is a reference of {kept}, not of {facts}.")

        def said(name: str) -> Predictions | None:
            if f"{name}.logits" not in tensors:
                return None
            return Predictions(tensors[f"{name}.logits"], tensors[f"{name}.targets"])

        forget = said("forget")
        assert forget is not None
        retain = None
        if "retain.correct" in tensors:
            retain = Retained(tensors["retain.probability"], tensors["retain.correct"])
        return cls(SplitPredictions(forget, said("test"), said("forget_test")), retain, seconds)


def reference(
    start: Callable[[int], famr.Classifier],
    splits: famr.Splits,
    training: famr.Training,
    seed: int,
    models: Path | None = None,
) -> Reference:
    """The same training, from the same start, without the forget set; from `models`, where it was made before."""
    assert splits.retain is not None
    facts: dict[str, object] = {"request": splits.request.to_json(), "training": asdict(training), "seed": seed}
    name = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    file = None if models is None else models / "references" / f"{name}.safetensors"
    if file is not None and file.is_file():
        return Reference.load(file, facts)
    trained = famr.fit(start(seed), splits.retain, training, seed=seed)
    place = pick_device("auto")
    retain = None
    if splits.request.kind == "samples":
        retain = Retained.of(predict(trained.model, splits.retain, place))
    found = Reference(predict_splits(splits, trained.model, place), retain, trained.seconds)
    if file is not None:
        found.save(file, facts)
    return found
