"""Some retained images on which a run is watched: not those that hold it, and not the test images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from famr.batches import Batches, looks, order
from famr.devices import Precision
from famr.evaluation import collect
from famr.method import FAMR
from famr.metrics.forgetting import correct
from famr.models import Classifier
from famr.ranks import ALONE, Ranks
from famr.splits import Splits, some_of_each_class

IMAGES = 500


@dataclass(frozen=True, eq=False)
class Watch:
    """A model, some retained images, and its accuracy on them before it forgets."""

    model: Classifier
    batches: Batches
    device: torch.device
    precision: Precision
    ranks: Ranks = ALONE
    before: float = 0.0

    def accuracy(self) -> float:
        """The model's accuracy now."""
        said = collect(self.model, self.batches(None), self.device, self.precision, self.ranks)
        return float(correct(said.logits, said.targets).mean())


def watch_over(
    splits: Splits | None,
    model: Classifier,
    device: torch.device,
    method: FAMR,
    seed: int,
    ranks: Ranks = ALONE,
) -> Watch | None:
    """A few images of each retained class; None without retained images that have labels."""
    if splits is None or splits.retain is None or not splits.retain.labelled:
        return None
    each = max(1, IMAGES // len(splits.retain.class_counts()))
    some = some_of_each_class(splits.retain, each, seed, skip=method.function_images or 0)
    if not len(some):  # so few that all of them hold the answers
        some = some_of_each_class(splits.retain, each, seed)
    some = some.take(order(len(some), seed)[:IMAGES])
    batches = looks(some, model.prepared_by(), device, ranks)
    watch = Watch(model, batches, device, method.settled_precision, ranks)
    return replace(watch, before=watch.accuracy())
