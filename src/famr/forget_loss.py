"""L_forget of a network [FAMR, Eq. (2)–(5)]: the pure functions of `objective` applied to its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.batches import Batch, Batches
from famr.devices import autocast
from famr.errors import RequestError
from famr.evaluation import Answers
from famr.method import FAMR
from famr.models import Classifier
from famr.objective import at_least_float32, combine, gram_matrix, reduce, style_distance, target_kl, uniform_target
from famr.style import LayerOutput, listen, mean_gram


@dataclass(frozen=True, eq=False)
class ForgetLoss:
    """L_forget of a batch of images, as Alg. 1 differentiates it."""

    model: Classifier
    method: FAMR
    target: Tensor
    device: torch.device
    tap: LayerOutput | None = None
    gram_target: Tensor | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """L_forget of a batch, with a graph."""
        _, kl, style = self.per_image(batch)
        return self.combined(kl, style)

    def per_image(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, KL(q ‖ p) and, where style is forgotten, ‖G − G_target‖² of each image."""
        with autocast(self.device, self.method.precision):
            logits = at_least_float32(self.model.logits(batch.images))
        style = None
        if self.tap is not None and self.gram_target is not None:  # in full precision: these are sums of squares
            style = style_distance(gram_matrix(self.tap.features), self.gram_target)
        return logits, target_kl(logits, self.target), style

    def combined(self, kl: Tensor, style: Tensor | None) -> Tensor:
        """α·L_KL + β·L_style over these images."""
        how = self.method.reduction
        total_style = None if style is None else reduce(style, how)
        return combine(reduce(kl, how), total_style, self.method.alpha, self.method.beta or 0.0)

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch]) -> tuple[Answers, Tensor, Tensor | None]:
        """Answers, KL and style distance of every image, without a graph."""
        found = [(*self.per_image(batch), batch.labels) for batch in batches]
        logits, kls, styles, labels = zip(*found, strict=True)
        answers = Answers(torch.cat(logits).cpu(), torch.cat(labels).cpu())
        return answers, torch.cat(kls), None if self.tap is None else torch.cat(styles)


@contextmanager
def forget_loss(
    model: Classifier, method: FAMR, forget: Batches, neutral: Batches | None, device: torch.device
) -> Iterator[ForgetLoss]:
    """L_forget for a run: the uniform target over the head's classes, G_target from neutral images, β settled."""
    with torch.no_grad():
        classes = model.logits(next(iter(forget(None))).images[:1]).shape[-1]
    loss = ForgetLoss(model, method, uniform_target(classes).to(device), device)
    if not method.forgets_style:
        yield loss
        return
    assert method.style_layer is not None
    if neutral is None:
        raise RequestError(
            "Style forgetting needs images of a neutral style.",
            where="style_target",
            fix="Give the retained images, or a folder with --style-target.",
        )
    with listen(model.module, method.style_layer, method.style_channels_last) as tap:
        loss = replace(loss, tap=tap, gram_target=mean_gram(model.module, tap, neutral(None)))
        yield loss if method.beta is not None else _balanced(loss, forget)


def _balanced(loss: ForgetLoss, forget: Batches) -> ForgetLoss:
    """β such that β·L_style = L_KL at θ₀: the scale of a Gram matrix differs by orders between layers."""
    _, kl, style = loss.measure(forget(None))
    assert style is not None
    beta = float(kl.mean() / style.mean().clamp(min=torch.finfo(style.dtype).tiny))
    return replace(loss, method=replace(loss.method, beta=beta))
