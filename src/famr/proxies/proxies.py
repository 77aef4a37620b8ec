"""Proxies taken once: a few models, each trained without some classes and some samples, for all later requests.

A request is answered by the proxies that saw none of it: for a class the one that left out its group, for a sample the
one that left out its fold (`groups`). They hold their late layers alone, in half precision.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from famr.data import Data, Images
from famr.data.loaders import order
from famr.engine.base import Engine
from famr.engine.inference import predict
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.proxies.groups import class_groups, class_similarity, folds
from famr.proxies.late import early_digest, with_late_state
from famr.proxies.predictions import proxy_temperature
from famr.proxies.recipe import ProxyRecipe
from famr.proxies.training import proxy_trainer
from famr.targets.base import ProxyPredictions

GROUPS = 10
"""Proxies of a sketch: to leave out ten of a hundred classes at once costs nothing (docs/method.md, What was tried)."""
COMPARED_IMAGES = 5000
"""Training images, at most, from which the similarity of classes is taken."""


@dataclass(frozen=True, eq=False)
class Proxies:
    """Models that share their early layers with the original, each trained without a part of the data.

    Attributes:
        group_of_class: Which proxy left out each class.
        late: Late layers of each proxy by name; floating numbers in half precision.
        temperatures: τ of each.
        names: Parameters of the late layers.
        early_sha256: Digest of the original's other tensors.
        recipe: How they were trained, as plain values.
    """

    group_of_class: tuple[int, ...]
    late: tuple[Mapping[str, Tensor], ...]
    temperatures: tuple[float, ...]
    names: tuple[str, ...]
    early_sha256: str
    recipe: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.late)

    @property
    def late_share(self) -> float:
        """Share of the layers that a proxy has of its own."""
        return float(self.recipe["late_share"])

    def fit(self, model: Classifier) -> bool:
        """Whether a model has the early layers that the proxies were trained on.

        A model that forgot something by an edit of its late layers has them still.

        Args:
            model: The model that is to forget.
        """
        return early_digest(model.module, self.names) == self.early_sha256

    def model(self, number: int, original: Classifier) -> Classifier:
        """One proxy as a classifier.

        Args:
            number: From 0.
            original: Has the early layers.
        """
        return with_late_state(original, self.late[number], f"proxy {number}")

    def predict(
        self, original: Classifier, forget: Images, whole_classes: bool, device: torch.device
    ) -> ProxyPredictions:
        """Predictions on a forget set, each by a proxy that never saw the image, nor its class where that goes whole.

        Args:
            original: Has the early layers.
            forget: The forget set.
            whole_classes: Whether whole classes are forgotten.
            device: Where to compute.

        Raises:
            RequestError: Some images have no label, so that it is not known which proxy saw them.
            CheckpointError: The model has other early layers.
        """
        if not forget.labelled:
            missing = int((forget.targets < 0).sum())
            raise RequestError(
                f"It is not known which proxies saw {missing} of {len(forget)} images, as they have no class.",
                where="sketch",
                fix="Give their classes, or use --effort quick.",
            )
        if not self.fit(original):
            raise CheckpointError(
                "The proxies of the sketch were trained on other early layers than this model's.",
                where=original.spec,
                fix="Take a sketch of this model with `famr sketch`, or use --effort quick.",
            )
        groups = torch.tensor(self.group_of_class)
        if whole_classes:
            unseen_by = groups[forget.targets]
        else:
            unseen_by = folds(forget, original.require_preprocessing().channels, self.group_of_class, len(self))
        logits = torch.zeros(len(forget), len(groups))
        for number in torch.unique(unseen_by).tolist():
            chosen = (unseen_by == number).nonzero().squeeze(1)
            logits[chosen] = predict(self.model(number, original), forget.take(chosen), device).logits.float()
        return ProxyPredictions(logits, groups != unseen_by[:, None], torch.tensor(self.temperatures)[unseen_by])

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a file."""
        layers = ((number, name) for number, late in enumerate(self.late) for name in late)
        return {f"proxy.{number}.{name}": self.late[number][name].contiguous() for number, name in layers}

    def facts(self) -> dict[str, Any]:
        """Everything else, as plain values."""
        return {
            "group_of_class": list(self.group_of_class),
            "temperatures": list(self.temperatures),
            "names": list(self.names),
            "early_sha256": self.early_sha256,
            "recipe": json.loads(json.dumps(self.recipe)),
        }

    @classmethod
    def from_file(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `facts` and `tensors`.

        Args:
            facts: What `facts` returned.
            tensors: May hold others too.

        Raises:
            KeyError: Something is missing.
        """
        late: list[dict[str, Tensor]] = [{} for _ in facts["temperatures"]]
        for name, tensor in tensors.items():
            if name.startswith("proxy."):
                number, _, inner = name.removeprefix("proxy.").partition(".")
                late[int(number)][inner] = tensor
        return cls(
            group_of_class=tuple(facts["group_of_class"]),
            late=tuple(late),
            temperatures=tuple(facts["temperatures"]),
            names=tuple(facts["names"]),
            early_sha256=facts["early_sha256"],
            recipe=facts["recipe"],
        )


def train_proxies(
    original: Classifier,
    data: Data,
    recipe: ProxyRecipe,
    *,
    engine: Engine,
    groups: int = GROUPS,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> Proxies:
    """Train proxies for all later requests of classes, of concepts that are whole classes, and of samples.

    Args:
        original: A trained model.
        data: Its training images; held-out images set the temperatures.
        recipe: How it was trained.
        engine: Computes the steps.
        groups: How many proxies.
        seed: Of all draws.
        on_step: Called after each step with the number of steps so far.

    Raises:
        RequestError: Fewer than three groups, or images without labels.
    """
    images, classes, device = data.train, len(data.labels), engine.device
    sample = images.take(order(len(images), seed)[:COMPARED_IMAGES])
    similarity = class_similarity(torch.softmax(predict(original, sample, device).logits, -1), sample.targets, classes)
    group_of_class = class_groups(similarity, groups)
    fold = folds(images, original.require_preprocessing().channels, group_of_class, groups)
    held_out = data.test if data.test is not None and data.test.labelled else None
    before = None if held_out is None else predict(original, held_out, device)
    late, temperatures, steps = [], [], itertools.count(1)
    count = None if on_step is None else lambda _: on_step(next(steps))
    with proxy_trainer(original, recipe, images, engine=engine, seed=seed) as trainer:
        for number in range(groups):
            left_out = (torch.tensor(group_of_class)[images.targets] == number) | (fold == number)
            late.append(halved(trainer.train(~left_out, seed=seed + number, on_step=count)))
            proxy = None if held_out is None else trainer.session.predict(trainer.session.evaluation_batches(held_out))
            temperatures.append(_temperature(proxy, before, group_of_class, number))
        names = trainer.names
    facts = {**recipe.to_json(), "seed": seed, "images": len(images)}
    return Proxies(group_of_class, tuple(late), tuple(temperatures), names, early_digest(original.module, names), facts)


def steps_of(recipe: ProxyRecipe, images: int, groups: int) -> int:
    """About how many steps the training of proxies takes.

    Args:
        recipe: How they are trained.
        images: Training images.
        groups: How many proxies.
    """
    return groups * recipe.short_training.steps(round(images * (groups - 2) / groups))


def halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with floating numbers in half precision.

    Args:
        state: By name.

    Raises:
        CheckpointError: A number is too large for half precision.
    """
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    if bad := [name for name, tensor in half.items() if not bool(torch.isfinite(tensor).all())]:
        raise CheckpointError(
            "A weight of a proxy is too large for half precision.", where=bad[0], fix="Use --proxies 0."
        )
    return half


def _temperature(
    proxy: Predictions | None, original: Predictions | None, group_of_class: Sequence[int], number: int
) -> float:
    if proxy is None or original is None:
        return 1.0
    return proxy_temperature(proxy, original, torch.tensor(group_of_class) != number)
