"""Forsaken: learn a mask over neurons with which forget images get the predictions of images never trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from famr.baselines.descent import Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.losses.objective import target_kl
from famr.metrics.predictions import Predictions
from famr.models import Classifier


def non_member_target(held_out: Predictions, labels: Tensor, forgotten: Sequence[int]) -> Tensor:
    """q: the mean prediction on held-out images of the image's class, or of all classes if that class is forgotten.

    Args:
        held_out: Predictions of the original on held-out images, with their labels.
        labels: Classes of the forget images, (images,).
        forgotten: Class indices.

    Returns:
        One distribution for each forget image, (images, classes).
    """
    probabilities = torch.softmax(held_out.logits, dim=-1)
    rows = probabilities.mean(dim=0).repeat(probabilities.shape[1], 1)  # (classes, classes)
    for label in set(held_out.targets.tolist()) - set(forgotten):
        rows[label] = probabilities[held_out.targets == label].mean(dim=0)
    return rows[labels]


def forsaken_loss(logits: Tensor, target: Tensor, masks: Sequence[Tensor], penalty: float) -> Tensor:
    """KL(q ‖ p) + ρ·mean|1 − m| over all neurons, after [Ma et al. 2022].

    Args:
        logits: Of forget images, (batch, classes).
        target: q, (batch, classes).
        masks: m, one tensor a layer.
        penalty: ρ.
    """
    distance = torch.cat([(1 - mask).abs() for mask in masks])
    return target_kl(logits, target).mean() + penalty * distance.mean()


def neuron_masks(module: nn.Module) -> dict[str, Tensor]:
    """m = 1 for the outputs of each linear and convolutional layer, by the name of the layer.

    Args:
        module: The network.

    Raises:
        RequestError: It has no such layer.
    """
    masks = {
        name: torch.ones(len(layer.weight), device=layer.weight.device, requires_grad=True)
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    }
    if not masks:
        raise RequestError("The network has no linear or convolutional layer.", fix="Use another method.")
    return masks


def scale_neurons(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """θ = m ⊙ θ₀: the incoming weights and the bias of each neuron, multiplied by its mask.

    Args:
        weights: θ₀ by name.
        masks: m by the name of the layer.

    Returns:
        All weights by name; those of other layers are unchanged.
    """
    scaled = dict(weights)
    for layer, mask in masks.items():
        for part in ("weight", "bias"):
            name = f"{layer}.{part}" if layer else part
            if name in weights:
                scaled[name] = weights[name] * mask.view(-1, *[1] * (weights[name].ndim - 1))
    return scaled


@dataclass(frozen=True)
class Forsaken(WeightBaseline):
    """θ = m ⊙ θ₀, one m a neuron; L = KL(q ‖ p_θ) + ρ·mean|1 − m| on D_f [Ma et al. 2022].

    The masks and the KL to the predictions on non-members, q, are the paper's; its mask-gradient generator, its numbers
    and the form of its penalty could not be looked up. Here a neuron is an output of a linear or convolutional layer,
    and q comes from held-out images. BatchNorm keeps its statistics.

    Attributes:
        steps: 20 epochs of Adam with η 1e-2; our choice.
        penalty: ρ; our choice.
    """

    steps: Steps = field(
        default_factory=lambda: Steps(epochs=20, learning_rate=1e-2, optimiser="adam", weight_decay=0.0)
    )
    penalty: float = 1.0

    name = "Forsaken"
    paper = "Ma et al. 2022"
    needs_retain = False
    kinds = ("class", "samples", "concept", "style")
    refusal_reason = "it compares with held-out images, and nothing but the images to forget was given"
    tuning = (
        {"learning_rate": 3e-3},
        {"penalty": 10.0, "learning_rate": 3e-3},
        {"penalty": 10.0},
        {"optimiser": "sgd", "learning_rate": 1e-1},
        {"optimiser": "sgd", "learning_rate": 1.0},
    )

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise RequestError(f"`penalty` must be at least 0, got {self.penalty!r}.", where="Forsaken")

    def check(self, original: Classifier, splits: Splits) -> None:
        """See `Baseline.check`; held-out images are needed too.

        Args:
            original: The trained classifier.
            splits: What to forget, and the other images.

        Raises:
            RequestError: The request or the images do not allow this method.
        """
        super().check(original, splits)
        if splits.test is None or not splits.test.labelled:
            raise RequestError(
                "Forsaken needs held-out images with labels.",
                where="splits.test",
                fix="Give the whole data set, with labels.",
            )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: steps on the masks, which are then multiplied into the weights."""
        steps, size, module = self.steps, self.steps.batch_size, session.model.module
        assert session.splits.test is not None
        held_out = session.predictions(session.splits.test)
        target = non_member_target(held_out, session.forget.targets, session.splits.forgotten_classes())
        start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        masks = neuron_masks(module)
        values = list(masks.values())
        descent = Descent(session, steps, total=steps.epochs * session.forget_steps(size), parameters=values)

        def loss(images: Tensor, rows: Tensor) -> Tensor:
            logits = session.logits(images, weights=scale_neurons(start, masks))
            return forsaken_loss(logits, rows, values, self.penalty)

        for epoch in descent.epochs():
            for batch in descent.within(session.forget_batches(size, epoch, labels=target)):
                descent.step(loss, batch.images, batch.labels)
        with torch.no_grad():
            for name, weight in scale_neurons(start, masks).items():
                module.get_parameter(name).copy_(weight)
        session.facts["mean_change_of_masks"] = float((1 - torch.cat(values).detach()).abs().mean())
