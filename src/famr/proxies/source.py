"""Where the predictions of proxies on a forget set come from: a sketch's, or one that is trained for the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from famr.data import Images
from famr.data.request import Kind
from famr.data.splits import Splits
from famr.engine.base import Engine
from famr.models import Classifier
from famr.proxies.cost import ProxyPlan, plan_proxy
from famr.proxies.predictions import own_proxy
from famr.proxies.proxies import Proxies
from famr.proxies.recipe import ALL_LAYERS, ProxyRecipe, recorded_recipe
from famr.proxies.training import too_few_images
from famr.runs.events import ProxyStep
from famr.targets.base import ProxyPredictions

TRAINED_NOW, TRAINED_BEFORE = "for this run", "for the sketch"
"""When the proxies of a run were trained, as run.json says it."""


@dataclass(frozen=True, eq=False)
class ProxySource:
    """Where the predictions of proxies come from: `proxies` or `recipe`, and `why_not` where there is neither.

    Attributes:
        proxies: Those of a sketch.
        recipe: How one is trained for the request.
        why_not: Why there can be none; empty where there can.
    """

    proxies: Proxies | None = None
    recipe: ProxyRecipe | None = None
    why_not: str = ""

    def plan(self, original: Classifier, images: int) -> ProxyPlan | None:
        """What the predictions cost; None where there can be none.

        Args:
            original: The model that is to forget.
            images: Retained images.
        """
        if self.proxies is not None:
            return ProxyPlan(f"{len(self.proxies)} proxies of the sketch", 0.0, 0.0, self.proxies.late_share)
        return None if self.recipe is None else plan_proxy(original, self.recipe, images)

    def with_start(self, original: Classifier) -> ProxySource:
        """The same with the recipe's start loaded.

        Args:
            original: The model that is to forget.
        """
        return self if self.recipe is None else replace(self, recipe=self.recipe.with_start(original))

    def predict(
        self,
        original: Classifier,
        splits: Splits,
        held_out: Images | None,
        whole_classes: bool,
        engine: Engine,
        seed: int,
        on_event: Callable[[ProxyStep], None] | None = None,
    ) -> ProxyPredictions:
        """The predictions on the forget set.

        Args:
            original: The model that is to forget.
            splits: The sets of the request.
            held_out: Images for the temperature of a proxy that is trained now.
            whole_classes: Whether whole classes are forgotten.
            engine: Computes them.
            seed: Of the draws of a training.
            on_event: Called after each step of a training.
        """
        if self.proxies is not None:
            return self.proxies.predict(original, splits.forget, whole_classes, engine.device)
        assert self.recipe is not None
        assert splits.retain is not None
        steps = self.recipe.short_training.steps(len(splits.retain))
        on_step = None if on_event is None else lambda step: on_event(ProxyStep(step, steps))
        sets = (splits.retain, splits.forget, held_out)
        return own_proxy(original, *sets, self.recipe, engine=engine, seed=seed, on_step=on_step)

    def to_json(self) -> dict[str, Any]:
        """As run.json has it."""
        if self.proxies is not None:
            return {"trained": TRAINED_BEFORE, "proxies": len(self.proxies), **self.proxies.recipe}
        return {"trained": TRAINED_NOW, **(self.recipe.to_json() if self.recipe is not None else {})}


def proxy_source(
    original: Classifier, splits: Splits | None, kind: Kind, proxies: Proxies | None, recipe: ProxyRecipe | None
) -> ProxySource:
    """Where the predictions for a request come from: a sketch's proxies if they serve it, else one that is trained.

    Args:
        original: The model that is to forget.
        splits: The sets of the request; None for a loader.
        kind: Of the request.
        proxies: Of a sketch; None: there are none.
        recipe: How the model was trained; None: as its folder records.
    """
    if splits is None:
        return ProxySource(why_not="a loader's images have no retained images beside them")
    reason = "there is no sketch with proxies"
    if proxies is not None:
        reason = _why_not_these(original, splits, kind, proxies)
        if not reason:
            return ProxySource(proxies)
    if splits.retain is None:
        return ProxySource(why_not=f"there are no retained images, and {reason}")
    if (too_few := too_few_images(splits.retain)) is not None:
        return ProxySource(why_not=too_few)
    recipe = recipe or recorded_recipe(original)
    if kind == "style":  # a style is read off early layers, which the original learnt with it
        recipe = replace(recipe, late_share=ALL_LAYERS)
    return ProxySource(recipe=recipe)


def _why_not_these(original: Classifier, splits: Splits, kind: Kind, proxies: Proxies) -> str:
    """Why a sketch's proxies do not serve a request; empty where they do."""
    if kind == "style":
        return "the proxies of the sketch saw the style"
    if not splits.forget.labelled:
        return "without labels it is not known which proxies of the sketch saw the images"
    if not proxies.fit(original):
        return "an earlier request changed the early layers on which the proxies of the sketch were trained"
    return ""
