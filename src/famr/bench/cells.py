"""One cell: a request, a method and a seed, measured beside the original and the retrained reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from famr.baselines import Baseline
from famr.bench.references import BenchReference
from famr.bench.results import json_text
from famr.bench.scoring import BenchPredictions, ScoredBatches, bench_metrics, predict_scored, retraining_gap
from famr.bench.tasks import Task
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.errors import FamrError
from famr.models import Classifier


@dataclass(frozen=True, eq=False)
class Case:
    """A request on one original, and what all methods share there.

    Attributes:
        task: The request.
        seed: Of the original and of the methods.
        original: The model that is to forget.
        original_digest: SHA-256 of its weights.
        splits: What methods may see.
        batches: What is scored.
        original_predictions: The original's predictions on it.
        reference: The retrained model; None: no model was retrained, and figures that need one are not available.
        train_images: Training images of the original, the unit of FDE.
        device: Where to compute.
        precision: Of methods and of scoring alike.
    """

    task: Task
    seed: int
    original: Classifier
    original_digest: str
    splits: Splits
    batches: ScoredBatches
    original_predictions: BenchPredictions
    reference: BenchReference | None
    train_images: int
    device: torch.device
    precision: Precision

    def cell(self, name: str, method: Baseline) -> dict[str, Any]:
        """Run a method and score it.

        Args:
            name: Of the method in the tables.
            method: The method with its numbers.

        Returns:
            The cell as plain values; with `error` in place of figures if the method failed, so that a failure costs
            no other cell.
        """
        head = self._head(name, method.to_json())
        try:
            outcome = method.unlearn(
                self.original, self.splits, seed=self.seed, device=str(self.device), precision=self.precision
            )
            predictions = predict_scored(outcome.model, self.batches, self.device, self.precision)
            figures = self._figures(predictions, outcome.seconds, outcome.image_passes, outcome.peak_memory)
            cell = head | figures | {"facts": dict(outcome.facts)}
            json_text(cell)  # a cell with NaN has failed
        except FamrError as error:
            return head | {"error": {"kind": type(error).__name__, "what": error.what, "where": error.where}}
        except Exception as error:  # a bug or a full GPU in one method must not cost the cells of others
            return head | {"error": {"kind": type(error).__name__, "what": str(error) or "no message", "where": None}}
        return cell

    def retrained_cell(self, name: str, other: BenchReference, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The cell of a retrained model of another seed: how close two models that never saw the data are.

        Args:
            name: Of the row.
            other: The model of the other seed.
            numbers: Of its training.
        """
        figures = self._figures(other.predictions, other.seconds, other.image_passes, other.peak_memory)
        return self._head(name, numbers) | figures | {"facts": {"retrained with": "the next seed"}}

    def _head(self, name: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "method": name,
            "task": self.task.label,
            "kind": self.task.request.kind,
            "seed": self.seed,
            "numbers": dict(numbers),
            "original_sha256": self.original_digest,
        }

    @cached_property
    def retrained_metrics(self) -> dict[str, float | None] | None:
        """Metrics of the retrained model."""
        if self.reference is None:
            return None
        return bench_metrics(self.reference.predictions, self.original_predictions.forget.logits)

    @cached_property
    def original_metrics(self) -> dict[str, float | None]:
        """Metrics of the original."""
        return self._metrics(self.original_predictions)

    def _metrics(self, predictions: BenchPredictions) -> dict[str, float | None]:
        metrics = bench_metrics(predictions, self.original_predictions.forget.logits)
        retrained = None if self.reference is None else self.reference.predictions
        return metrics | retraining_gap(predictions, metrics, retrained, self.retrained_metrics)

    def _figures(
        self, predictions: BenchPredictions, seconds: float, image_passes: int, peak_memory: int | None
    ) -> dict[str, Any]:
        """Metrics of original, unlearned and retrained model, and the costs."""
        reference = self.reference
        return {
            "original": self.original_metrics,
            "unlearned": self._metrics(predictions),
            "retrained": self.retrained_metrics,
            "seconds": seconds,
            "image_passes": image_passes,
            "peak_memory": peak_memory,
            "share_of_retraining": None if reference is None else seconds / reference.seconds,
            "fde": image_passes / self.train_images,
            "retraining": None
            if reference is None
            else {
                "seconds": reference.seconds,
                "fde": reference.image_passes / self.train_images,
                "peak_memory": reference.peak_memory,
            },
        }


def progress_line(cell: Mapping[str, Any]) -> str:
    """A cell in one line.

    Args:
        cell: As plain values.
    """
    head = f"{cell['method']}, {cell['task']}, seed {cell['seed']}: "
    if "error" in cell:
        return head + f"failed: {cell['error']['kind']}: {cell['error']['what']}"
    metrics, retrained = cell["unlearned"], cell["retrained"]
    parts = []
    for name, title in (("retain_accuracy", "Ret"), ("forget_accuracy", "For")):
        beside = "" if retrained is None else f" of {100 * retrained[name]:.1f}"
        parts.append(f"{title} {100 * metrics[name]:.1f}{beside}")
    if retrained is not None:
        parts += [f"Avg. Gap {metrics['average_gap']:.4f}", f"JS {metrics['js_to_retrained']:.3f}"]
    return head + ", ".join([*parts, f"{cell['seconds']:.2f} s"])
