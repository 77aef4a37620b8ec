"""Shadow models that two requests share: a class, and a share of the training images.

Each shadow is trained without a random half of a pool of images, twice as many as the request for samples has, and
every other one without the class; then it unlearns what it saw of them. So every image and the class are in half of the
shadows, each shadow unlearns as many samples as the audited model, and one training serves both requests and every
method. The attacker knows everything but the membership.

What U-LiRA reads of a model is one number an image, its scaled confidence; these are kept, in half precision, some
ten kilobytes a model, so that shadows of several sessions on several machines add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import famr
from benchmarks.cells import CLASS_SEED, Start, log
from famr.audit.lira import scaled_confidence
from famr.audit.shadow_logits import ShadowLogits
from famr.data import Data, Images
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.errors import FamrError, GateError

CLASS, SAMPLES = "class", "samples"
WIDER_BUDGET = 0.05
"""The budget of a shadow that the method refuses within its own."""
SHADOW_SEED = 100
"""Of the first shadow; no seed of a reference."""

Unlearning = tuple[str, str]
"""A kind of request, and a method."""


@dataclass(frozen=True, eq=False)
class ShadowSetting:
    """What shadow models have in common.

    Attributes:
        start: From a seed, what training starts from.
        data: All images.
        training: How they are trained.
        class_name: The class of one request.
        samples: Indices of the training images of the other; none is of the class.
        methods: By name.
        count: Shadow models in all, an even number.
    """

    start: Start
    data: Data
    training: famr.Training
    class_name: str
    samples: Tensor
    methods: Mapping[str, famr.FAMR]
    count: int

    @property
    def pool(self) -> Tensor:
        """The samples, then as many other training images, which shadows may have to forget in their place."""
        order = torch.randperm(len(self.data.train), generator=torch.Generator().manual_seed(CLASS_SEED + 2))
        other = (self.data.train.targets != self.data.labels.index(self.class_name))[order]
        return torch.cat([self.samples, order[other & ~torch.isin(order, self.samples)][: len(self.samples)]])

    @property
    def has_image(self) -> Tensor:
        """Which shadow saw which image of the pool, (shadows, pool): pairs of a random half and the other half."""
        size = 2 * len(self.samples)
        seen = torch.zeros(self.count, size, dtype=torch.bool)
        for first in range(0, self.count, 2):
            draws = torch.Generator().manual_seed(1000 * CLASS_SEED + first)
            seen[first, torch.randperm(size, generator=draws)[: size // 2]] = True
            seen[first + 1] = ~seen[first]
        return seen

    @property
    def has_class(self) -> Tensor:
        """Which shadow saw the class, (shadows,): every other one."""
        return torch.arange(self.count) % 2 == 0

    def forget_set(self, kind: str) -> Images:
        """The images that are attacked.

        Args:
            kind: Of the request.
        """
        if kind == SAMPLES:
            return self.data.train.take(self.samples)
        return self.data.train.where(self.data.train.targets == self.data.labels.index(self.class_name))


class ShadowModels:
    """Shadow models, each trained once and kept by its scaled confidences on both forget sets.

    Args:
        setting: What they have in common.
        file: Holds the confidences of all.
    """

    def __init__(self, setting: ShadowSetting, file: Path) -> None:
        self.setting, self.file = setting, file
        self._has_image, self._has_class = setting.has_image, setting.has_class
        self._stored = dict(load_file(str(file))) if file.is_file() else {}

    def done(self, unlearnings: Sequence[Unlearning]) -> list[int]:
        """Shadows of which everything is known.

        Args:
            unlearnings: What they have to have unlearned.
        """
        return [number for number in range(self.setting.count) if not self._missing(number, unlearnings)]

    def prepare(self, unlearnings: Sequence[Unlearning], numbers: Sequence[int]) -> None:
        """Train each shadow once and run its missing unlearnings; one that fails stays missing.

        Args:
            unlearnings: What they have to unlearn.
            numbers: Of the shadows.
        """
        for number in numbers:
            if missing := self._missing(number, unlearnings):
                self._run(number, missing)

    def logits(self, kind: str, method: str) -> ShadowLogits | None:
        """What U-LiRA reads, from pairs of shadows of which both are done; None without any.

        The scaled confidence φ of an image is also that of the logits (φ, 0) of two classes.

        Args:
            kind: Of the request.
            method: By its name.
        """
        done = set(self.done([(kind, method)]))
        used = [number for number in range(self.setting.count) if {number, number ^ 1} <= done]
        if not used:
            return None
        after, before = (
            torch.stack([self._stored[f"{number}.{kind}.{which}"].float() for number in used])
            for which in (method, "trained")
        )
        images = before.shape[1]
        member = self._has_image[used, :images] if kind == SAMPLES else self._has_class[used, None].expand(-1, images)
        order = member.to(torch.int8).argsort(dim=0, descending=True, stable=True)  # members of each image first
        inside, outside = order[: len(used) // 2], order[len(used) // 2 :]
        parts = (after.gather(0, inside), before.gather(0, outside), before.gather(0, inside))
        unlearned, retrained, trained = (torch.stack([part, torch.zeros_like(part)], dim=-1) for part in parts)
        return ShadowLogits(torch.zeros(images, dtype=torch.long), unlearned, retrained, trained)

    def _missing(self, number: int, unlearnings: Sequence[Unlearning]) -> list[Unlearning]:
        return [each for each in unlearnings if f"{number}.{'.'.join(each)}" not in self._stored]

    def _run(self, number: int, unlearnings: Sequence[Unlearning]) -> None:
        """Train a shadow, unlearn, and keep the confidences before and after."""
        setting, has_class = self.setting, bool(self._has_class[number])
        train = setting.data.train
        is_member = torch.ones(len(train), dtype=torch.bool)
        is_member[setting.pool[~self._has_image[number]]] = False
        if not has_class:
            is_member &= train.targets != setting.data.labels.index(setting.class_name)
        own = replace(setting.data, train=train.where(is_member))
        seed = SHADOW_SEED + number
        trained = famr.fit(setting.start(seed), own.train, setting.training, seed=seed)
        before = {kind: self._confidence(trained.model, kind) for kind in (CLASS, SAMPLES)}
        found = {f"{kind}.trained": before[kind] for kind in before}
        requests = {
            CLASS: famr.Request(classes=[setting.class_name]),
            SAMPLES: famr.Request(
                samples=[train.ids[index] for index in setting.pool[self._has_image[number]].tolist()]
            ),
        }
        for kind, method in unlearnings:
            if kind == CLASS and not has_class:  # there is nothing to unlearn
                found[f"{kind}.{method}"] = before[kind].clone()
                continue
            splits = famr.calibration_split(famr.split(own, requests[kind])).for_forgetting
            try:
                recipe = famr.ProxyRecipe(setting.training, setting.start(seed), late_share=1.0)
                unlearned, wider = unlearn_shadow(trained.model, splits, setting.methods[method], recipe, number)
            except FamrError as error:
                log(f"shadow {number}, {kind}, {method}: {error.what}")
                continue
            found[f"{kind}.{method}"] = self._confidence(unlearned, kind)
            if wider:
                log(f"shadow {number}, {kind}, {method}: within a budget of {WIDER_BUDGET:g} only")
        self._stored |= {f"{number}.{name}": values for name, values in found.items()}
        partial = self.file.with_suffix(".partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        save_file(self._stored, str(partial))
        partial.replace(self.file)
        log(f"shadow {number}: trained in {trained.seconds:.1f} s")

    def _confidence(self, model: famr.Classifier, kind: str) -> Tensor:
        predictions = predict(model, self.setting.forget_set(kind), pick_device("auto"))
        return scaled_confidence(predictions.logits, predictions.targets).half().contiguous()


def unlearn_shadow(
    model: famr.Classifier, splits: Splits, method: famr.FAMR, recipe: famr.ProxyRecipe, seed: int
) -> tuple[famr.Classifier, bool]:
    """The shadow after it unlearned, and whether that took the wider budget.

    A shadow was trained on other images than the audited model and may lose more than the budget.

    Args:
        model: The shadow.
        splits: What it has to forget.
        method: How.
        recipe: How the shadow was trained.
        seed: Of the run.
    """
    monitor = famr.Monitor(track_retain=False)
    try:
        return famr.forget(model, splits, method, recipe=recipe, seed=seed, monitor=monitor).model, False
    except GateError:
        if method.strength != "auto":  # no strength is searched, so no budget helps
            raise
        wider = replace(method, budget=WIDER_BUDGET)
        return famr.forget(model, splits, wider, recipe=recipe, seed=seed, monitor=monitor).model, True
