"""L_forget of a network [FAMR, Eq. (2)–(5)]: the pure functions of `objective` applied to its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from famr.config import FAMR
from famr.data import Images
from famr.data.loaders import Batch, Batches, evaluation_batch_size, evaluation_batches
from famr.engine.attention import Asked
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import predict_batches, require_known_classes
from famr.engine.lean import one_pass
from famr.engine.oom import halve_on_oom, micro_batches
from famr.engine.prefix import Front, fits
from famr.errors import RequestError, is_out_of_memory
from famr.losses.objective import (
    at_least_float32,
    combine,
    gram_matrix,
    logit_excess,
    reduce,
    style_distance,
    target_kl,
    uniform_target,
)
from famr.metrics.forgetting import correct, entropy
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.activations import LayerOutput, capture_layer, mean_gram
from famr.models.classifier import logits_of
from famr.targets.distributions import margins, matching_temperature, reference_target, tempered_target, without
from famr.targets.probe import mean_features, probe_target


@dataclass(frozen=True, eq=False)
class ForgetLoss:
    """L_forget of a batch of images, as Alg. 1 differentiates it."""

    model: Classifier
    method: FAMR
    target: Tensor  # (classes,), or (images, classes) for a target of each image
    device: torch.device
    tap: LayerOutput | None = None
    gram_target: Tensor | None = None
    ranks: Ranks = ALONE
    forgotten: Tensor | None = None
    """The classes that the target leaves out, by index."""
    lean: bool = False
    """Whether it takes the leaner ways of `lean` and `half`; there are no second derivatives then."""
    front: Front | None = None
    """Where given, batches hold what this frozen front made of their images, and the network begins behind it."""
    a_step: int | None = None
    """Images of a step, where it is known: it is looked at so many at a time that this takes no more memory."""
    attention: int | None = None
    """Tokens, for each head, that one pass over the forget images asks attention for; None where nobody counted."""

    @classmethod
    def without_target(
        cls, model: Classifier, method: FAMR, device: torch.device, ranks: Ranks = ALONE, *, lean: bool = False
    ) -> ForgetLoss:
        """One that can be asked for answers, from which a target is made."""
        return cls(model, method, torch.zeros(0, device=device), device, ranks=ranks, lean=lean)

    def __call__(self, batch: Batch) -> Tensor:
        """L_forget of a batch, with a graph."""
        _, kl, style = self.per_image(batch)
        return self.combined(kl, style)

    def with_others(self, batch: Batch, others: Tensor) -> tuple[Tensor, Tensor]:
        """L_forget of a batch, and the answers to other images, from one pass through the network."""
        said = self.logits(torch.cat([batch.images, others]))
        _, kl, style = self._judged(said, batch)
        return self.combined(kl, style), said[len(batch.images) :]

    def per_image(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, KL(q ‖ p) with what is added to it, and, where style is forgotten, ‖G − G_target‖² of each image."""
        return self._judged(self.logits(batch.images), batch)

    def _judged(self, said: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same from answers that begin with those to the batch."""
        mine, style = len(batch.images), None
        if self.tap is not None and self.gram_target is not None:  # in full precision: these are sums of squares
            style = style_distance(gram_matrix(self.tap.features(len(said))[:mine]), self.gram_target)
            style = self.ranks.gather(style, len(batch.labels))
        logits = self.ranks.gather(said[:mine], len(batch.labels))
        target = self.target if self.target.ndim == 1 else self.target[batch.positions.to(self.device)]
        apart = target_kl(logits, target)
        if self.forgotten is not None and self.method.demotion:
            apart = apart + self.method.demotion * logit_excess(logits, self.forgotten)
        return logits, apart, style

    def logits(self, images: Tensor) -> Tensor:
        """The model's answers, in the precision of the run."""
        beyond = nullcontext() if self.front is None else self.front.behind(images)
        no_style = self.tap is None  # a style is sums of squares
        how = one_pass(
            self.model.module, self.device, self.method.settled_precision, lean=self.lean, round_all=no_style
        )
        with how, beyond:
            return at_least_float32(self.model.logits(images if self.front is None else self.front.blank))

    def combined(self, kl: Tensor, style: Tensor | None) -> Tensor:
        """α·L_KL + β·L_style over these images."""
        how = self.method.reduction
        total_style = None if style is None else reduce(style, how)
        return combine(reduce(kl, how), total_style, self.method.alpha, self.method.beta or 0.0)

    def _measured(self, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        """A batch's figures and labels; of half of it at a time where memory does not hold all."""
        try:
            return [(*self.per_image(batch), batch.labels)]
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(batch.labels) == 1 or self.ranks.size > 1:
                raise
        return [each for half, _ in micro_batches(batch, 2) for each in self._measured(half)]

    def predict(self, images: Images) -> Predictions:
        """What it answers to images; from behind its front, where there is one and room for what that makes of them."""
        prepared = self.model.require_preprocessing()
        if self.front is None or not fits(self.front, len(images)):
            return self._collected(evaluation_batches(images, prepared, self.device, self.ranks, self.a_step))
        size = evaluation_batch_size(self.device, self.a_step)
        return self._beyond(self.front.passes(images, prepared, size, self.device, for_steps=False))

    def held_out(self, passes: Passes) -> Predictions | None:
        """What it answers to held-out images; None where there are none."""
        if passes.held_out_beyond is not None:
            return self._beyond(passes.held_out_beyond)
        return None if passes.held_out is None else self._collected(passes.held_out)

    def forgotten_answers(self, passes: Passes) -> Predictions:
        """What it answers to the forget images."""
        return self._collected(passes.forget) if self.front is None else self._beyond(passes.forget)

    def _collected(self, batches: Batches) -> Predictions:
        return predict_batches(self.model, batches(None), self.device, self.method.settled_precision, self.ranks)

    @torch.no_grad()
    def _beyond(self, batches: Batches) -> Predictions:
        """From what its front made of images."""
        found = [(halve_on_oom(self.logits, batch.images), batch.labels) for batch in batches(None)]
        said, labels = zip(*found, strict=True)
        return require_known_classes(self.model, Predictions(torch.cat(said).cpu(), torch.cat(labels).cpu()))

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch]) -> tuple[Predictions, Tensor, Tensor | None]:
        """Predictions, KL and style distance of every image, without a graph."""
        found = [each for batch in batches for each in self._measured(batch)]
        logits, kls, styles, labels = zip(*found, strict=True)
        answers = Predictions(torch.cat(logits).cpu(), torch.cat(labels).cpu())
        return answers, torch.cat(kls), None if self.tap is None else torch.cat(styles)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """How a model answers images it was not trained on, without the images."""

    entropy: float
    """The mean entropy of its answers."""
    entropy_when_wrong: float | None
    """The same over the images it gets wrong; None where there are none, or no labels."""
    margins: Tensor | None
    """The log-odds of the true class, one an image; None where there are no labels."""

    @classmethod
    def of(cls, said: Predictions) -> HeldOut:
        """From its answers."""
        unsure = entropy(said.logits)
        if not said.labelled:
            return cls(float(unsure.mean()), None, None)
        wrong = unsure[correct(said.logits, said.targets) == 0]
        return cls(
            float(unsure.mean()),
            float(wrong.mean()) if len(wrong) else None,
            margins(said.logits, said.targets),
        )


@dataclass(frozen=True, eq=False)
class Passes:
    """The images of a run, as passes over them; None where they were not given."""

    steps: Batches
    steps_per_epoch: int
    forget: Batches
    held_out: Batches | None
    """Some of the held-out images. How sure a target is to be is read off the original's answers to them, and on them
    a run is followed."""
    neutral: Batches | None
    kept: Batches | None
    """Some retained images."""
    forgotten: tuple[int, ...]
    """The classes that are forgotten whole."""
    forgets_classes: bool
    """Whether that is what the request asks for."""
    remembered: HeldOut | None = None
    """How the original answers held-out images, where a sketch remembers it."""
    held_out_beyond: Batches | None = None
    """The held-out images as a frozen front left them, where that is kept."""


@contextmanager
def forget_loss(asking: ForgetLoss, passes: Passes, known: ForgetLoss | None = None) -> Iterator[ForgetLoss]:
    """L_forget for a run: its target, G_target from neutral images; τ and β settled where they were left open.

    `asking` is without a target: what the network answers, one is made of. `known` is that of an earlier attempt, held
    by other strengths: its target is this one's too.
    """
    model, method, device = asking.model, asking.method, asking.device
    if not method.forgets_style:
        if known is None:
            said = _held_out(asking, passes)  # first: they are read while libraries wake, and the next walk counts
            if asking.front is not None:
                next(iter(passes.forget(None)))  # walks it, which steps do not
            with Asked() if asking.lean else nullcontext() as asked:
                original = asking.forgotten_answers(passes)
            method, target = _target(asking, passes, original, said)
            attention = None if asked is None else asked.tokens
        else:
            method, target = replace(method, temperature=known.method.temperature), known.target
            attention = known.attention
        left_out = torch.tensor(passes.forgotten, device=device) if method.target == "masked" else None
        yield replace(asking, method=method, target=target.to(device), forgotten=left_out, attention=attention)
        return
    assert method.style_layer is not None
    if passes.neutral is None:
        raise RequestError(
            "Style forgetting needs images of a neutral style.",
            where="style_target",
            fix="Give the retained images, or a folder with --style-target.",
        )
    with capture_layer(model.module, method.style_layer, method.style_channels_last) as tap:
        if method.target == "probe":
            target = _probed(model.module, tap, passes, asking.ranks)
        else:
            said = _held_out(asking, passes)
            method, target = _target(asking, passes, asking.forgotten_answers(passes), said)
        gram_target = mean_gram(model.module, tap, passes.neutral(None))
        loss = replace(asking, method=method, target=target.to(device), tap=tap, gram_target=gram_target)
        yield loss if method.beta is not None else _balanced(loss, passes.forget)


def _held_out(asking: ForgetLoss, passes: Passes) -> HeldOut | None:
    """How the original answers held-out images, for a target that is to be as sure as that; None where that is not
    known."""
    said = None if asking.method.target == "uniform" else asking.held_out(passes)
    return passes.remembered if said is None else HeldOut.of(said)


def _target(asking: ForgetLoss, passes: Passes, original: Predictions, held_out: HeldOut | None) -> tuple[FAMR, Tensor]:
    """q of each forget image, from the original's answers; and the method with its temperature filled in."""
    method = asking.method
    if method.target == "probe":
        raise RequestError("The probe target is for styles.", where="target", fix="Use masked, reference or uniform.")
    classes = original.logits.shape[-1]
    if method.target == "uniform":
        return method, uniform_target(classes)
    if method.target in ("reference", "tempered") and passes.forgets_classes:
        raise RequestError(
            f"The {method.target} target is for samples: with it the model would still know the forgotten classes.",
            where="target",
            fix="Use the masked target for classes and concepts.",
        )
    if method.target == "reference":
        if held_out is None or held_out.margins is None or not original.labelled:
            raise RequestError(
                "The reference target needs labelled held-out images, or a sketch, and labelled forget images.",
                where="target",
                fix="Give the whole data, or use the tempered target.",
            )
        beyond = method.overshoot or 0.0
        return method, reference_target(original.logits, original.targets, held_out.margins, beyond)
    logits = original.logits
    if method.target == "masked":
        if not 0 < len(passes.forgotten) < classes:
            raise RequestError(
                f"The masked target removes the forgotten classes; this request forgets {len(passes.forgotten)} of "
                f"{classes} whole.",
                where="target",
                fix="Use the tempered or the reference target for samples.",
            )
        logits = without(logits, torch.tensor(passes.forgotten))
    temperature = method.temperature
    if temperature is None:
        if held_out is None:
            raise RequestError(
                "Without held-out images or a sketch the temperature of the target cannot be chosen.",
                where="temperature",
                fix="Give one, e.g. 0.6.",
            )
        unsure = held_out.entropy  # of samples a retrained model is as sure as of any new image
        if method.target == "masked" and held_out.entropy_when_wrong is not None:
            unsure = held_out.entropy_when_wrong  # of a class it never saw it is wrong about all
        temperature = matching_temperature(logits, unsure)
    return replace(method, temperature=temperature), tempered_target(logits, temperature)


def _probed(module: nn.Module, tap: LayerOutput, passes: Passes, ranks: Ranks) -> Tensor:
    """q of each forget image from a classifier that saw retained images only."""
    if passes.kept is None:
        raise RequestError(
            "The probe target needs labelled retained images.",
            where="target",
            fix="Give the whole data, or use the uniform target.",
        )
    kept, labels = mean_features(module, tap, passes.kept(None), ranks)
    forget, _ = mean_features(module, tap, passes.forget(None), ranks)
    with torch.no_grad():
        classes = logits_of(module(next(iter(passes.forget(None))).images[:1])).shape[-1]
    return probe_target(kept, labels, forget, classes)


def _balanced(loss: ForgetLoss, forget: Batches) -> ForgetLoss:
    """β such that β·L_style = L_KL at θ₀: the scale of a Gram matrix differs by orders between layers."""
    _, kl, style = loss.measure(forget(None))
    assert style is not None
    beta = float(kl.mean() / style.mean().clamp(min=torch.finfo(style.dtype).tiny))
    return replace(loss, method=replace(loss.method, beta=beta))
