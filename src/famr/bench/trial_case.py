"""Runs on a tuning request: judged on images that methods may see, so that nothing is tuned on what is scored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from famr.baselines import Baseline
from famr.bench.results import json_text
from famr.bench.tasks import Task
from famr.data import Images
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.engine.inference import predict
from famr.errors import DataError, FamrError, NumericsError
from famr.metrics.forgetting import correct
from famr.models import Classifier


@dataclass(frozen=True, eq=False)
class TrialCase:
    """A tuning request on the original on which methods are tuned. There is no retrained model.

    Attributes:
        task: The request.
        seed: Of the original and of the methods.
        original: The model that is to forget.
        original_digest: SHA-256 of its weights.
        splits: What methods may see; its test images are held out of training and are never scored.
        device: Where to compute.
        precision: Of methods and predictions alike.
    """

    task: Task
    seed: int
    original: Classifier
    original_digest: str
    splits: Splits
    device: torch.device
    precision: Precision

    def run(self, name: str, method: Baseline) -> dict[str, Any]:
        """Run a method and take the figures by which its numbers are chosen.

        Args:
            name: Of the method in the tables.
            method: The method with its numbers.

        Returns:
            Plain values; with `error` in place of figures if the method failed.
        """
        head = {
            "method": name,
            "task": self.task.label,
            "kind": self.task.tuning_kind,
            "seed": self.seed,
            "numbers": method.to_json(),
            "original_sha256": self.original_digest,
        }
        try:
            outcome = method.unlearn(
                self.original, self.splits, seed=self.seed, device=str(self.device), precision=self.precision
            )
            run = head | {
                "forget_accuracy": self._accuracy(outcome.model, self.splits.forget),
                "held_out_accuracy": self._accuracy(outcome.model, self._held_out),
                "original_accuracy": self.original_accuracy,
                "seconds": outcome.seconds,
                "facts": dict(outcome.facts),
            }
            json_text(run)  # a run with NaN has failed
        except FamrError as error:
            return head | {"error": {"kind": type(error).__name__, "what": error.what, "where": error.where}}
        except Exception as error:  # a bug or a full GPU in one method must not cost the trials of others
            return head | {"error": {"kind": type(error).__name__, "what": str(error) or "no message", "where": None}}
        return run

    @cached_property
    def original_accuracy(self) -> float:
        """Accuracy of the original on the held-out images."""
        return self._accuracy(self.original, self._held_out)

    @property
    def _held_out(self) -> Images:
        if self.splits.test is None or not len(self.splits.test):
            raise DataError(
                "Tuning needs held-out images of classes that stay.",
                where=self.splits.request.describe(),
                fix="Give more test images.",
            )
        return self.splits.test

    def _accuracy(self, model: Classifier, images: Images) -> float:
        predictions = predict(model, images, self.device, self.precision)
        if not bool(torch.isfinite(predictions.logits).all()):
            raise NumericsError(
                "The model's predictions are not finite numbers.", where=model.spec, fix="Lower the learning rate."
            )
        return float(correct(predictions.logits, predictions.targets).mean())


def trial_line(run: dict[str, Any]) -> str:
    """A run in one line.

    Args:
        run: As plain values.
    """
    head = f"{run['method']}, {run['task']}: "
    if "error" in run:
        return head + f"failed: {run['error']['kind']}: {run['error']['what']}"
    forget, held_out = 100 * run["forget_accuracy"], 100 * run["held_out_accuracy"]
    return head + f"For {forget:.1f}, held-out {held_out:.1f}, {run['seconds']:.2f} s"
