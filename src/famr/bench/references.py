"""Retrained reference models: trained once for all methods, kept by their predictions, read back only if undamaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from famr.bench.scoring import BenchPredictions, ImageScores
from famr.metrics.predictions import Predictions
from famr.models.weights import apply_umask
from famr.runs.folder import atomic_file


@dataclass(frozen=True, eq=False)
class BenchReference:
    """A model that was trained without the forget set.

    Attributes:
        predictions: On everything that is scored.
        seconds: Training time.
        image_passes: Images that went through the network in training.
        peak_memory: Bytes on the GPU; None on other devices.
    """

    predictions: BenchPredictions
    seconds: float
    image_passes: int
    peak_memory: int | None

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write it, whole or not at all.

        Args:
            path: A safetensors file.
            facts: What it is a reference of; `load` compares them.
        """
        from safetensors.torch import save_file

        forget = self.predictions.forget
        tensors = {"forget.logits": forget.logits, "forget.targets": forget.targets}
        for name in ("retain", "test", "forget_test"):
            scores: ImageScores | None = getattr(self.predictions, name)
            if scores is not None:
                tensors |= {f"{name}.{field}": values for field, values in scores._asdict().items()}
        costs = {"seconds": self.seconds, "image_passes": self.image_passes, "peak_memory": self.peak_memory}
        metadata = {"famr_reference": json.dumps({"facts": facts, "costs": costs}, sort_keys=True)}
        with atomic_file(path) as staging:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, str(staging), metadata=metadata)
            apply_umask(staging)

    @classmethod
    def load(cls, path: Path, facts: Mapping[str, Any]) -> BenchReference | None:
        """Read what `save` wrote.

        Args:
            path: The file.
            facts: What it must be a reference of.

        Returns:
            None where there is no such file, or where it is damaged or of something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as stored:
                metadata = json.loads(stored.metadata()["famr_reference"])
                tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            if metadata["facts"] != json.loads(json.dumps(facts)):
                return None

            def scores(name: str) -> ImageScores:
                return ImageScores(tensors[f"{name}.probability"], tensors[f"{name}.correct"])

            forget = Predictions(tensors["forget.logits"], tensors["forget.targets"])
            forget_test = scores("forget_test") if "forget_test.correct" in tensors else None
            predictions = BenchPredictions(forget, scores("retain"), scores("test"), forget_test)
            return cls(predictions, **metadata["costs"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None
