"""Retrained references by their answers: trained once for all methods, kept, and read back only if they are whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from famr.bench.looks import Marks, Said
from famr.metrics.predictions import Predictions
from famr.models.weights import apply_umask
from famr.runs.folder import atomic_file


@dataclass(frozen=True, eq=False)
class Reference:
    """A model that never saw the forget set: what it says, and what its training took."""

    said: Said
    seconds: float
    image_passes: int
    peak_memory: int | None

    def save(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Whole or not at all, with what it is a reference of."""
        from safetensors.torch import save_file

        tensors = {"forget.logits": self.said.forget.logits, "forget.targets": self.said.forget.targets}
        for name in ("retain", "test", "forget_test"):
            marks: Marks | None = getattr(self.said, name)
            if marks is not None:
                tensors |= {f"{name}.probability": marks.probability, f"{name}.correct": marks.correct}
        costs = {"seconds": self.seconds, "image_passes": self.image_passes, "peak_memory": self.peak_memory}
        told = json.dumps({"facts": facts, "costs": costs}, sort_keys=True)
        with atomic_file(file) as staging:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, str(staging), metadata={"famr_reference": told})
            apply_umask(staging)

    @classmethod
    def load(cls, file: Path, facts: Mapping[str, Any]) -> Reference | None:
        """What `save` wrote; None where there is nothing, where it is damaged, or of something else."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), framework="pt") as stored:
                told = json.loads(stored.metadata()["famr_reference"])
                tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            if told["facts"] != json.loads(json.dumps(facts)):
                return None

            def marks(name: str) -> Marks:
                return Marks(tensors[f"{name}.probability"], tensors[f"{name}.correct"])

            forget = Predictions(tensors["forget.logits"], tensors["forget.targets"])
            held_out = marks("forget_test") if "forget_test.correct" in tensors else None
            return cls(Said(forget, marks("retain"), marks("test"), held_out), **told["costs"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None
