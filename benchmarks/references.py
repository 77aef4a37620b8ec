"""Retrained references: the predictions of a model that never saw the forget set, kept so that it is trained once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import famr
from famr.bench.scoring import ImageScores
from famr.engine.devices import pick_device
from famr.engine.inference import predict, predict_splits
from famr.metrics.predictions import Predictions, SplitPredictions
from famr.metrics.retraining import js_divergence


@dataclass(frozen=True, eq=False)
class Reference:
    """A retrained model.

    Attributes:
        predictions: On the sets of the request.
        retain: On the retained training images; only where samples are forgotten.
        seconds: Of the retraining.
    """

    predictions: SplitPredictions
    retain: ImageScores | None
    seconds: float

    def save(self, file: Path, facts: dict[str, object]) -> None:
        """Write it, with what it is a reference of."""
        tensors: dict[str, Tensor] = {}
        for name in ("forget", "test", "forget_test"):
            predictions: Predictions | None = getattr(self.predictions, name)
            if predictions is not None:
                tensors |= {f"{name}.logits": predictions.logits, f"{name}.targets": predictions.targets}
        if self.retain is not None:
            tensors |= {f"retain.{name}": values for name, values in self.retain._asdict().items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"reference": json.dumps({**facts, "seconds": self.seconds})}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(file), metadata=metadata)

    def where(self, scored: Tensor) -> Reference:
        """The same with some of the test images."""
        test = self.predictions.test
        assert test is not None
        part = Predictions(test.logits[scored], test.targets[scored])
        return replace(self, predictions=replace(self.predictions, test=part))

    @classmethod
    def load(cls, file: Path, facts: dict[str, object]) -> Reference:
        """Read what `save` wrote; a reference of something else is refused."""
        with safe_open(str(file), framework="pt") as stored:
            metadata = json.loads(stored.metadata()["reference"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        seconds = metadata.pop("seconds")
        if metadata != json.loads(json.dumps(facts)):
            raise ValueError(f"{file.name} is a reference of {metadata}, not of {facts}.")

        def predictions(name: str) -> Predictions | None:
            if f"{name}.logits" not in tensors:
                return None
            return Predictions(tensors[f"{name}.logits"], tensors[f"{name}.targets"])

        forget = predictions("forget")
        assert forget is not None
        retain = None
        if "retain.correct" in tensors:
            retain = ImageScores(tensors["retain.probability"], tensors["retain.correct"])
        return cls(SplitPredictions(forget, predictions("test"), predictions("forget_test")), retain, seconds)


def reference(
    start: Callable[[int], famr.Classifier],
    splits: famr.Splits,
    training: famr.Training,
    seed: int,
    models: Path | None = None,
) -> Reference:
    """The same training, from the same start, without the forget set; from `models`, where it was trained before."""
    assert splits.retain is not None
    facts: dict[str, object] = {"request": splits.request.to_json(), "training": asdict(training), "seed": seed}
    name = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    file = None if models is None else models / "references" / f"{name}.safetensors"
    if file is not None and file.is_file():
        return Reference.load(file, facts)
    trained = famr.fit(start(seed), splits.retain, training, seed=seed)
    device = pick_device("auto")
    retain = None
    if splits.request.kind == "samples":
        retain = ImageScores.of(predict(trained.model, splits.retain, device))
    retrained = Reference(predict_splits(splits, trained.model, device), retain, trained.seconds)
    if file is not None:
        retrained.save(file, facts)
    return retrained


def js_between(references: list[Reference]) -> list[float]:
    """JS of each pair of retrained models on the forget set: no unlearned model can be expected to come closer."""
    logits = [each.predictions.forget.logits for each in references]
    pairs = [(one, other) for index, one in enumerate(logits) for other in logits[:index]]
    return [float(js_divergence(one, other).mean()) for one, other in pairs]
