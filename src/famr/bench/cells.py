"""One cell: a request forgotten by a method, measured beside the original and the retrained reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from famr.baselines import Baseline as Alternative
from famr.bench.looks import Said, Views, distance, look, measures
from famr.bench.records import as_json
from famr.bench.references import Reference
from famr.bench.tasks import Task
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.errors import FamrError
from famr.models import Classifier

SHOWN = {"retain_accuracy": "Ret", "forget_accuracy": "For"}


@dataclass(frozen=True, eq=False)
class Case:
    """A request on one original: what methods may see, what is scored, and the answers all methods share."""

    task: Task
    seed: int
    original: Classifier
    original_digest: str
    seen: Splits
    views: Views
    original_said: Said
    reference: Reference | None
    """None: no retrained model stands beside, and all that it would say is not available."""
    train_images: int
    device: torch.device
    precision: Precision

    def cell(self, name: str, method: Alternative) -> dict[str, Any]:
        """Run a method and measure it; what goes wrong is the cell's reason, and no other cell is lost for it."""
        head = {"method": name, "task": self.task.label, "kind": self.task.request.kind, "seed": self.seed}
        head |= {"numbers": method.to_json(), "original_sha256": self.original_digest}
        try:
            outcome = method.unlearn(
                self.original, self.seen, seed=self.seed, device=str(self.device), precision=self.precision
            )
            said = look(outcome.model, self.views, self.device, self.precision)
            costs = {
                "seconds": outcome.seconds,
                "image_passes": outcome.image_passes,
                "peak_memory": outcome.peak_memory,
            }
            cell = head | self.compared(said, costs) | {"facts": dict(outcome.facts)}
            as_json(cell)  # what cannot be written down has failed
        except FamrError as error:
            return head | {"error": {"kind": type(error).__name__, "what": error.what, "where": error.where}}
        except Exception as error:  # a bug or a full GPU in one method must not cost the others their cells
            return head | {"error": {"kind": type(error).__name__, "what": str(error) or "no words", "where": None}}
        return cell

    def retrained_again(self, name: str, other: Reference, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The cell of a retrained model of another seed: how near two models that never saw the data are."""
        head = {"method": name, "task": self.task.label, "kind": self.task.request.kind, "seed": self.seed}
        head |= {"numbers": dict(numbers), "original_sha256": self.original_digest}
        costs = {
            "seconds": other.seconds,
            "image_passes": other.image_passes,
            "peak_memory": other.peak_memory,
        }
        return head | self.compared(other.said, costs) | {"facts": {"retrained with": "the next seed"}}

    @cached_property
    def truth(self) -> dict[str, float | None] | None:
        """The figures of the retrained model."""
        return None if self.reference is None else measures(self.reference.said, self.original_said.forget.logits)

    @cached_property
    def before(self) -> dict[str, float | None]:
        """The figures of the original."""
        return self._measured(self.original_said)

    def _measured(self, said: Said) -> dict[str, float | None]:
        found = measures(said, self.original_said.forget.logits)
        retrained = None if self.reference is None else self.reference.said
        return found | distance(said, found, retrained, self.truth)

    def compared(self, said: Said, costs: Mapping[str, Any]) -> dict[str, Any]:
        """The figures of original, unlearned and retrained model, and the costs."""
        reference = self.reference
        return {
            "original": self.before,
            "unlearned": self._measured(said),
            "retrained": self.truth,
            **costs,
            "share_of_retraining": None if reference is None else costs["seconds"] / reference.seconds,
            "fde": costs["image_passes"] / self.train_images,
            "retraining": None
            if reference is None
            else {
                "seconds": reference.seconds,
                "fde": reference.image_passes / self.train_images,
                "peak_memory": reference.peak_memory,
            },
        }


def in_a_line(cell: Mapping[str, Any]) -> str:
    """A cell as progress tells of it."""
    head = f"{cell['method']}, {cell['task']}, seed {cell['seed']}: "
    if "error" in cell:
        return head + f"failed: {cell['error']['kind']}: {cell['error']['what']}"
    found, truth = cell["unlearned"], cell["retrained"]
    beside = {name: "" if truth is None else f" of {100 * truth[name]:.1f}" for name in SHOWN}
    told = [f"{title} {100 * found[name]:.1f}{beside[name]}" for name, title in SHOWN.items()]
    if truth is not None:
        told += [f"Avg. Gap {found['average_gap']:.4f}", f"JS {found['js_to_retrained']:.3f}"]
    return head + ", ".join([*told, f"{cell['seconds']:.2f} s"])
