"""Forsaken: learn a mask over neurons under which forget images are answered like images never trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.data.request import Kind
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.losses.objective import target_kl
from famr.metrics.predictions import Predictions
from famr.models import Classifier


def non_member_target(held_out: Predictions, labels: Tensor, forgotten: Sequence[int]) -> Tensor:
    """The model's mean answer to held-out images: of the image's own class, or of all where that class is forgotten.

    `labels` are those of the forget images; the result is one distribution for each.
    """
    said = torch.softmax(held_out.logits, dim=-1)
    rows = said.mean(dim=0).repeat(said.shape[1], 1)  # (classes, classes)
    for label in set(held_out.targets.tolist()) - set(forgotten):
        rows[label] = said[held_out.targets == label].mean(dim=0)
    return rows[labels]


def forsaken_loss(logits: Tensor, target: Tensor, masks: Sequence[Tensor], penalty: float) -> Tensor:
    """KL(q ‖ p) + ρ·mean|1 − m| over all neurons."""
    moved = torch.cat([(1 - mask).abs() for mask in masks])
    return target_kl(logits, target).mean() + penalty * moved.mean()


@dataclass(frozen=True)
class Forsaken(WeightChange):
    """θ = m ⊙ θ₀ with one m for each neuron, learned so that KL(q ‖ p_θ) is small on D_f, q the answer to non-members,
    at a price for every neuron that is touched [Ma et al. 2022].

    The idea and the KL to the non-member distribution are the paper's; its mask-gradient generator, the numbers and the
    form of the penalty could not be looked up. Here a neuron is an output of a linear or convolutional layer, its
    mask scales the weights and bias that feed it, and epochs, rate and ρ are ours. q comes from held-out images; no
    retained images are used. BatchNorm stays as it is.
    """

    steps: Steps = field(
        default_factory=lambda: Steps(epochs=20, learning_rate=1e-2, optimiser="adam", weight_decay=0.0)
    )
    penalty: float = 1.0
    """ρ."""

    name: ClassVar[str] = "Forsaken"
    paper: ClassVar[str] = "Ma et al. 2022"
    needs_retain: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = ("class", "samples", "concept", "style")
    why_not: ClassVar[str] = "it compares with held-out images, and nothing but the images to forget was given"

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise RequestError(f"`penalty` must be at least 0, got {self.penalty!r}.", where="Forsaken")

    def check(self, original: Classifier, splits: Splits) -> None:
        """Also refuse without held-out images."""
        super().check(original, splits)
        if splits.test is None or not splits.test.labelled:
            raise RequestError(
                "Forsaken needs held-out images with labels.", where="splits.test", fix="Give the whole data."
            )

    def trials(self) -> Iterator[Self]:
        """Three learning rates with two penalties."""
        for penalty in (1.0, 10.0):
            for rate in (3e-3, 1e-2, 3e-2):
                yield replace(self, penalty=penalty, steps=replace(self.steps, learning_rate=rate))

    def change(self, work: Work) -> None:
        """Passes over the forget set; at the end the masks become part of the weights."""
        steps, module = self.steps, work.model.module
        assert work.splits.test is not None
        held_out = work.answers(work.splits.test)
        labels = work.splits.forget.targets
        target = non_member_target(held_out, labels, work.splits.forgotten_classes()).to(work.device)
        start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        masks = neuron_masks(module)
        values = list(masks.values())
        descent = Descent(work, steps, steps.epochs * work.steps_of_forget(steps.batch_size), parameters=values)

        def loss(images: Tensor, wanted: Tensor) -> Tensor:
            return forsaken_loss(work.logits(images, weights=masked(start, masks)), wanted, values, self.penalty)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.forget(steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, batch.images, target[batch.positions.to(work.device)])
            descent.end_of(f"epoch {epoch}")
        with torch.no_grad():
            for name, weight in masked(start, masks).items():
                module.get_parameter(name).copy_(weight)
        work.facts["mean_change_of_masks"] = float((1 - torch.cat(values).detach()).abs().mean())


def neuron_masks(module: nn.Module) -> dict[str, Tensor]:
    """A mask of ones for the outputs of each linear and convolutional layer, by the layer's name."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            found[name] = torch.ones(len(part.weight), device=part.weight.device, requires_grad=True)
    if not found:
        raise RequestError("The network has no linear or convolutional layer.", fix="Use another method.")
    return found


def masked(weights: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """m ⊙ θ₀: each neuron's incoming weights and bias scaled by its mask; the other weights as they are."""
    scaled = dict(weights)
    for layer, mask in masks.items():
        for part in ("weight", "bias"):
            name = f"{layer}.{part}" if layer else part
            if name in weights:
                scaled[name] = weights[name] * mask.view(-1, *[1] * (weights[name].ndim - 1))
    return scaled
