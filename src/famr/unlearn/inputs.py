"""The data of a run: the forget set, and the other data that is available."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import torch

from famr._version import __version__
from famr.anchors import Source
from famr.config import ResolvedFAMR
from famr.data import Images
from famr.data.calibration import rule_of
from famr.data.loaders import Batches, LabelledImages, checked_pairs, gradient_batch_size, order
from famr.data.request import Kind, Request
from famr.data.splits import EarlierRequest, Splits, sample_per_class
from famr.engine.base import Session
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.proxies.cost import ProxyPlan
from famr.proxies.recipe import ProxyRecipe
from famr.proxies.source import ProxySource, proxy_source
from famr.targets import ProxyPredictions
from famr.unlearn.sketch import Sketch

CALIBRATION_IMAGES = 2000
"""Held-out images, at most, on which a target is calibrated and a run is tracked. The result is evaluated on all."""
WATCHED_IMAGES = 500
"""Retained images, at most, on which accuracy is compared before and after."""
COMPARED_IMAGES = 16
"""Forget images whose pixels are compared between processes; of the others ids and labels are."""


@dataclass(frozen=True)
class Available:
    """The available data, in the facts by which open settings are resolved.

    Attributes:
        kind: Kind of the request; a concept whose classes stay counts as samples.
        retained: Whether there are retained images, or others for the anchors.
        held_out: Whether there are held-out images.
        sketch: Whether there is a sketch.
        forget_images: Number of images in the forget set.
        steps_per_epoch: Batches of a user's own loader; None for stored images.
        classes: Number of classes with retained images; 0 where it is not known.
        fewest: Retained images of the smallest of these classes.
        proxy: Where predictions of a proxy come from, and at what cost; None: there can be none.
        no_proxy: Why there can be none.
    """

    kind: Kind
    retained: bool
    held_out: bool
    sketch: bool
    forget_images: int
    steps_per_epoch: int | None = None
    classes: int = 0
    fewest: int = 0
    proxy: ProxyPlan | None = None
    no_proxy: str = ""

    def steps(self, batch_size: int) -> int:
        """Steps of one pass over the forget set.

        Args:
            batch_size: Images a step, at most.
        """
        return self.steps_per_epoch or -(-self.forget_images // batch_size)


@dataclass(frozen=True, eq=False)
class RunInputs:
    """The data of a run.

    Attributes:
        splits: The sets of a request; None where `loader` is given.
        loader: The forget set as batches of a user's own.
        style_target: Images of a neutral style; None: the retained images.
        anchor_images: Images for anchors that need some; None: the retained images.
        sketch: Statistics of the training data, taken earlier.
        source: Where predictions of proxies come from.
        proxy: These predictions on the forget set, once they are known.
        proxy_plan: What they cost; None: there can be none.
    """

    splits: Splits | None
    loader: tuple[LabelledImages, ...] | None = None
    style_target: Source | None = None
    anchor_images: Source | None = None
    sketch: Sketch | None = None
    source: ProxySource = field(default_factory=ProxySource)
    proxy: ProxyPredictions | None = None
    proxy_plan: ProxyPlan | None = None

    @classmethod
    def of(
        cls,
        original: Classifier,
        splits: Splits | None,
        loader: Iterable[LabelledImages] | None,
        style_target: Source | None = None,
        anchor_images: Source | None = None,
        sketch: Sketch | None = None,
        recipe: ProxyRecipe | None = None,
    ) -> RunInputs:
        """Check the arguments of `forget`. Loaders are read once, and their batches kept.

        Args:
            original: The model that is to forget.
            splits: See the attributes.
            loader: See the attributes.
            style_target: See the attributes.
            anchor_images: See the attributes.
            sketch: See the attributes.
            recipe: How proxies of the model are trained; None: as its folder records.

        Raises:
            RequestError: Both or neither of `splits` and `loader` are given, or a loader yields something else.
            DataError: The images name other classes than the model.
            CheckpointError: The sketch is of other weights.
        """
        if splits is not None and not isinstance(splits, Splits):
            raise RequestError(
                f"The second argument must be Splits, got {type(splits).__name__}.",
                where="famr.forget",
                fix="forget=loader",
            )
        if (splits is None) == (loader is None):
            raise RequestError("Give either `splits` or `forget=`, and not both.", where="famr.forget")
        if splits is not None:
            require_same_labels(original, splits)
        if sketch is not None:
            sketch.check(original, splits.earlier if splits is not None else ())
        batches = None if loader is None else tuple(checked_pairs(loader))
        inputs = cls(splits, batches, _read_once(style_target), _read_once(anchor_images), sketch)
        proxies = None if sketch is None else sketch.proxies
        source = proxy_source(original, splits, inputs.kind, proxies, recipe)
        retained = 0 if splits is None or splits.retain is None else len(splits.retain)
        return replace(inputs, source=source, proxy_plan=source.plan(original, retained))

    @property
    def calibration(self) -> str | None:
        """How the held-out images that set a target were chosen, as run.json says it; None where that is not known."""
        test = None if self.splits is None else self.splits.test
        if test is None and self.sketch is not None and self.sketch.held_out is not None:
            return None
        return rule_of(test)

    def available(self) -> Available:
        """The available data, in facts."""
        if self.splits is None:
            assert self.loader is not None
            count = sum(len(images) for images, _ in self.loader)
            given, sketched = self.anchor_images is not None, self.sketch is not None
            steps = len(self.loader)
            return Available(
                "images", given, False, sketched, count, steps_per_epoch=steps, no_proxy=self.source.why_not
            )
        splits, counts = self.splits, {}
        if splits.retain is not None and splits.retain.labelled:
            counts = splits.retain.class_counts()
        return Available(
            self.kind,
            retained=self.anchor_images is not None or splits.retain is not None,
            held_out=splits.test is not None,
            sketch=self.sketch is not None,
            forget_images=len(splits.forget),
            classes=len(counts),
            fewest=min(counts.values(), default=0),
            proxy=self.proxy_plan,
            no_proxy=self.source.why_not,
        )

    @property
    def kind(self) -> Kind:
        """The kind of the request.

        A concept of classes that stay counts as samples: a retrained model would still know most of them. With a
        sketch, images without a request are classes or samples by their number.
        """
        if self.splits is None:
            return "images"
        kind = self.splits.request.kind
        if kind == "concept" and not self.splits.forgets_classes():
            return "samples"
        if kind == "images" and self.sketch is not None:
            return "class" if self.sketch.covers_classes(self.splits.forget.targets) else "samples"
        return kind

    @property
    def forgets_classes(self) -> bool:
        """Whether whole classes are forgotten and nothing else."""
        if self.splits is None:
            return False
        if self.sketch is not None:
            return self.kind in ("class", "concept")
        return self.splits.forgets_classes()

    @property
    def forgotten(self) -> tuple[int, ...]:
        """Indices of the classes that are forgotten whole; of a loader all that occur in it."""
        if self.splits is not None:
            return self.splits.forgotten_classes()
        assert self.loader is not None
        return tuple(sorted({int(label) for _, labels in self.loader for label in labels}))

    @property
    def request(self) -> Request:
        """The request; an empty one for a loader."""
        return Request() if self.splits is None else self.splits.request

    @property
    def earlier(self) -> tuple[EarlierRequest, ...]:
        """Earlier requests that the model has forgotten."""
        return () if self.splits is None else self.splits.earlier

    @property
    def forget_ids(self) -> tuple[str, ...] | None:
        """Ids of the forget images; None for a loader."""
        return None if self.splits is None else tuple(self.splits.forget.ids)

    def newly_forgotten_classes(self) -> tuple[str, ...]:
        """Names of the classes that this run forgets whole."""
        whole = self.splits is not None and self.forgets_classes
        return self.splits.newly_forgotten_classes() if whole and self.splits is not None else ()

    def step_size(self, config: ResolvedFAMR) -> int | None:
        """Images of a step, with those of the function-space anchor; None for a loader, which has its own batches.

        Args:
            config: The settings.
        """
        return None if self.splits is None else config.images_in_step(len(self.splits.forget))

    def gradient_batch_size(self, config: ResolvedFAMR) -> int:
        """Images at a time where the target and the anchors take gradients: no more memory than a step.

        Args:
            config: The settings.
        """
        return gradient_batch_size(self.step_size(config))

    def step_batches(self, session: Session, size: int) -> Batches:
        """Passes over the forget set for steps.

        Args:
            session: The network.
            size: Images a step; a loader keeps its own batches.
        """
        if self.splits is not None:
            return session.batches(self.splits.forget, size)
        assert self.loader is not None
        return session.loader_batches(self.loader)

    def forget_batches(self, session: Session) -> Batches:
        """Passes over the forget set for evaluation.

        Args:
            session: The network.
        """
        if self.splits is not None:
            return session.evaluation_batches(self.splits.forget)
        return self.step_batches(session, 0)

    def calibration_images(self) -> Images | None:
        """Held-out images that a run may see, the same in every run; None without held-out images."""
        test = None if self.splits is None else self.splits.test
        return None if test is None else test.take(order(len(test), 0)[:CALIBRATION_IMAGES].sort().values)

    def anchor_source(self) -> Source | None:
        """Images for anchors that need some."""
        if self.anchor_images is not None or self.splits is None:
            return self.anchor_images
        return self.splits.retain

    def neutral_source(self) -> Source | None:
        """Images of a neutral style."""
        if self.style_target is not None or self.splits is None:
            return self.style_target
        return self.splits.retain

    def watched_images(self, anchored: int, seed: int) -> Images | None:
        """A few retained images of each class on which a run is watched: not those of the anchor, no test images.

        Args:
            anchored: Images a class that the function-space anchor uses.
            seed: Seed of the draw.

        Returns:
            None without labelled retained images.
        """
        retain = None if self.splits is None else self.splits.retain
        if retain is None or not retain.labelled:
            return None
        per_class = max(1, WATCHED_IMAGES // len(retain.class_counts()))
        images = sample_per_class(retain, per_class, seed, skip=anchored)
        if not len(images):  # so few that all of them are anchored
            images = sample_per_class(retain, per_class, seed)
        return images.take(order(len(images), seed)[:WATCHED_IMAGES])

    def facts(self, original: Classifier, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Facts that must be the same in every process of a run, by the name that an error uses for them.

        Args:
            original: The model.
            settings: Further facts of the run.
        """
        versions = [torch.__version__, __version__]
        common: dict[str, Any] = {"the weights": original.digest(), "the versions": versions, **settings}
        if self.splits is None:
            assert self.loader is not None
            pairs = [(_digest(images), labels.tolist()) for images, labels in self.loader]
            return {**common, "the forget images": pairs}
        sets = {"forget": self.splits.forget, "retained": self.splits.retain, "test": self.splits.test}
        for name, images in sets.items():
            common[f"the {name} images"] = None if images is None else [list(images.ids), images.targets.tolist()]
        forget, channels = self.splits.forget, original.require_preprocessing().channels
        compared = range(0, len(forget), max(1, len(forget) // COMPARED_IMAGES))[:COMPARED_IMAGES]
        common["the request"] = self.splits.request.to_json()
        common["the pixels of the forget images"] = [_digest(forget.pixels(index, channels)) for index in compared]
        return common


def _read_once(source: Source | None) -> Source | None:
    """Images as they are; batches as a tuple, as several anchors may read them."""
    return source if source is None or isinstance(source, Images) else tuple(source)


def _digest(tensor: torch.Tensor) -> str:
    return sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
