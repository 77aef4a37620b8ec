"""What proxies predict on a forget set, and the temperature that makes up for their short training.

τ: the mean entropy of a proxy on held-out images that it misclassifies is the original's on those that the original
misclassifies. A model that never saw a class misclassifies all of its images. Where there are too few mistakes to
compare, the least confident tenth of the images stands in for them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from famr.data import Images
from famr.engine.base import Engine
from famr.metrics.forgetting import correct, entropy
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.proxies.recipe import ProxyRecipe
from famr.proxies.training import proxy_trainer
from famr.targets.base import ProxyPredictions
from famr.targets.tempered import matching_temperature

FEWEST_MISTAKES = 20
"""An entropy over fewer misclassified images says little."""
LEAST_CONFIDENT = 10
"""One held-out image in so many stands in for mistakes where these are too few; at least `FEWEST_MISTAKES` images."""


def proxy_temperature(proxy: Predictions, original: Predictions, known: Tensor) -> float:
    """τ of a proxy; 1 where there are too few held-out images to tell.

    Args:
        proxy: Its predictions on held-out images.
        original: The original's on the same images.
        known: The classes that the proxy was trained on, (classes,); only their images and probabilities count.

    >>> sure, label = torch.tensor([[4.0, 0.0]]).repeat(30, 1), torch.ones(30, dtype=torch.long)
    >>> both = torch.tensor([True, True])
    >>> round(proxy_temperature(Predictions(sure / 2, label), Predictions(sure, label), both), 3)
    0.5
    """
    seen = known[proxy.targets]
    targets, both = (
        proxy.targets[seen],
        [each.logits[seen].masked_fill(~known, -torch.inf) for each in (proxy, original)],
    )
    wrong = [logits[correct(logits, targets) == 0] for logits in both]
    if min(map(len, wrong)) < FEWEST_MISTAKES:
        wrong = [least_confident(logits) for logits in both]
    if min(map(len, wrong)) < FEWEST_MISTAKES:
        return 1.0
    return matching_temperature(wrong[0], float(entropy(wrong[1]).mean()))


def least_confident(logits: Tensor) -> Tensor:
    """The rows with the highest entropy: a tenth of them, but at least 20 where there are so many.

    Args:
        logits: (images, classes).

    >>> len(least_confident(torch.randn(500, 3))), len(least_confident(torch.randn(50, 3)))
    (50, 20)
    """
    count = max(FEWEST_MISTAKES, len(logits) // LEAST_CONFIDENT)
    return logits[entropy(logits).argsort(descending=True)[:count]]


def own_proxy(
    original: Classifier,
    retain: Images,
    forget: Images,
    held_out: Images | None,
    recipe: ProxyRecipe,
    *,
    engine: Engine,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> ProxyPredictions:
    """Train a proxy on the retained images of a request, and take its predictions on the forget set.

    Args:
        original: The model that is to forget.
        retain: The images that the proxy may see.
        forget: Those that it predicts.
        held_out: Images for its temperature; None: τ = 1.
        recipe: How it is trained.
        engine: Computes it.
        seed: Of all draws.
        on_step: Called after each step with the number of steps so far.
    """
    with proxy_trainer(original, recipe, retain, engine=engine, seed=seed) as trainer:
        trainer.train(seed=seed, on_step=on_step)
        session = trainer.session
        logits = session.predict(session.evaluation_batches(forget)).logits
        proxy = None if held_out is None else session.predict(session.evaluation_batches(held_out))
    known = torch.zeros(logits.shape[-1], dtype=torch.bool)
    known[list(retain.class_counts())] = True
    temperature = 1.0
    if held_out is not None and proxy is not None and held_out.labelled:
        with engine.session(original, "fp32", recipe.training.batch_size) as session:
            before = session.predict(session.evaluation_batches(held_out))
        temperature = proxy_temperature(proxy, before, known)
    return ProxyPredictions(logits, known.expand(len(logits), -1), torch.full((len(logits),), temperature))
