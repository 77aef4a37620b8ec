"""L_forget of a network [FAMR, Eq. (2)–(5)]: the pure functions of `famr.losses` applied to its predictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from famr.config import ResolvedFAMR
from famr.data.loaders import Batch, Batches
from famr.engine.base import Session
from famr.losses.objective import Reduction, combine, gram_matrix, reduce, style_distance, target_kl
from famr.metrics.predictions import Predictions
from famr.models.activations import LayerOutput
from famr.targets.demotion import Demotion


class ImageLosses(NamedTuple):
    """Losses of a batch, one row an image.

    Attributes:
        logits: (images, classes).
        kl: KL(q ‖ p), with the demotion penalty, (images,).
        style: ‖G − G_target‖², (images,); None where no style is forgotten.
    """

    logits: Tensor
    kl: Tensor
    style: Tensor | None


class Measured(NamedTuple):
    """Predictions and losses on the whole forget set.

    Attributes:
        predictions: Logits and labels, on the CPU.
        kl: See `ImageLosses`.
        style: See `ImageLosses`.
    """

    predictions: Predictions
    kl: Tensor
    style: Tensor | None


@dataclass(frozen=True, eq=False)
class ForgetObjective:
    """L_forget as Alg. 1 differentiates it.

    Attributes:
        session: Computes the logits.
        config: α, β, γ and the reduction.
        target: q, (classes,), or (images, classes) for one distribution an image, on the session's device.
        demotion: What forgotten classes are pushed below; None without it.
        style: Reads the style layer; None where no style is forgotten.
        gram_target: G_target; None where no style is forgotten.
    """

    session: Session
    config: ResolvedFAMR
    target: Tensor
    demotion: Demotion | None = None
    style: LayerOutput | None = None
    gram_target: Tensor | None = None

    @property
    def reduction(self) -> Reduction:
        """Whether the loss of a batch is the sum or the mean over its images."""
        return self.config.reduction

    def __call__(self, batch: Batch) -> Tensor:
        """L_forget of a batch, with a graph.

        Args:
            batch: Images of the forget set.
        """
        losses = self.per_image(batch)
        return self.combined(losses.kl, losses.style)

    def per_image(self, batch: Batch) -> ImageLosses:
        """Logits and losses of each image.

        Args:
            batch: Images of the forget set.
        """
        session = self.session
        logits = session.logits(batch)
        style = None
        if self.style is not None and self.gram_target is not None:
            features = self.style.features(len(batch.images))  # in full precision: these are sums of squares
            style = session.gather(style_distance(gram_matrix(features), self.gram_target), len(batch.labels))
        target = self.target if self.target.ndim == 1 else self.target[batch.positions.to(self.target.device)]
        kl = target_kl(logits, target)
        if self.demotion is not None:
            kl = kl + self.config.demotion * self.demotion.excess(logits, batch.positions)
        return ImageLosses(logits, kl, style)

    def combined(self, kl: Tensor, style: Tensor | None) -> Tensor:
        """α·L_KL + β·L_style over some images.

        Args:
            kl: One value an image.
            style: The same; None where no style is forgotten.
        """
        total = None if style is None else reduce(style, self.reduction)
        return combine(reduce(kl, self.reduction), total, self.config.alpha, self.config.beta)

    def balanced_beta(self, forget: Batches) -> float:
        """β such that β·L_style = L_KL here: the scale of a Gram matrix differs by orders of magnitude between layers.

        Args:
            forget: Passes over the forget set.
        """
        _, kl, style = self.measure(forget(None))
        assert style is not None
        return float(kl.mean() / style.mean().clamp(min=torch.finfo(style.dtype).tiny))

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch]) -> Measured:
        """Predictions and losses of every image, without a graph.

        Args:
            batches: One pass over the forget set.
        """
        rows: list[ImageLosses] = []
        labels: list[Tensor] = []
        for batch in batches:
            rows += self.session.in_parts(self.per_image, batch)
            labels.append(batch.labels)
        predictions = Predictions(torch.cat([row.logits for row in rows]).cpu(), torch.cat(labels).cpu())
        styles = [row.style for row in rows if row.style is not None]
        return Measured(predictions, torch.cat([row.kl for row in rows]), torch.cat(styles) if styles else None)
