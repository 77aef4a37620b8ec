"""Some retained images on which a run is watched: not those that hold it, and not the test images."""

from __future__ import annotations

from famr.config import FAMR
from famr.data import Images
from famr.data.loaders import order
from famr.data.splits import Splits, sample_per_class
from famr.metrics.forgetting import correct
from famr.unlearn.forget_loss import ForgetLoss

IMAGES = 500


def watched_images(splits: Splits | None, method: FAMR, seed: int) -> Images | None:
    """A few images of each retained class; None without retained images that have labels."""
    if splits is None or splits.retain is None or not splits.retain.labelled:
        return None
    each = max(1, IMAGES // len(splits.retain.class_counts()))
    some = sample_per_class(splits.retain, each, seed, skip=method.function_images or 0)
    if not len(some):  # so few that all of them hold the answers
        some = sample_per_class(splits.retain, each, seed)
    return some.take(order(len(some), seed)[:IMAGES])


def accuracy_now(loss: ForgetLoss, images: Images) -> float:
    """The accuracy of the network of a run, as it is now."""
    said = loss.predict(images)
    return float(correct(said.logits, said.targets).mean())
