"""Shadow models for a request: the run's own training and unlearning, done again with other seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from famr.audit.populations import FEWEST_MODELS, Populations
from famr.audit.shadows import Method, Setting, ShadowDone, train_references, train_whole
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.models import Classifier
from famr.training import Training


def train_populations(
    splits: Splits,
    start: Callable[[int], Classifier],
    training: Training,
    method: Method,
    count: int,
    cache: Path,
    *,
    seed: int = 0,
    device: str | None = None,
    on_shadow: Callable[[ShadowDone], None] | None = None,
) -> Populations:
    """Half of `count` models train on everything and unlearn the forget set, the other half never see it.

    What is in the cache is not trained again, so an interrupted call goes on where it stopped. `start` makes the
    starting weights from a seed.
    """
    if count < 2 * FEWEST_MODELS or count % 2:
        raise RequestError(
            f"Shadows come in pairs, at least {2 * FEWEST_MODELS} models in all, got {count}.",
            where="shadows",
            fix="16 is a fair start; more narrow the interval.",
        )
    setting = Setting(start, splits.forget, splits.retain, training=training, seed=seed)
    half = count // 2
    before = train_whole(setting, half, cache, device=device, on_shadow=on_shadow)
    after = train_whole(setting, half, cache, method=method, device=device)
    never = train_references(setting, half, cache, device=device, on_shadow=on_shadow)
    return Populations(splits.forget.targets, after.logits, never.logits, before.logits)
