"""J(θ) of a run, built at θ₀: which weights may change, the target, the anchors, the passes over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.anchors import ANCHORS, AnchorInputs, AnchorTerm, FunctionAnchor, original_weights
from famr.anchors.base import no_retained_images
from famr.config import ResolvedFAMR, even_batch_size
from famr.data import Images
from famr.data.loaders import Batches, loader_batches, order
from famr.data.splits import sample_per_class
from famr.engine.base import Session
from famr.engine.finite import name_bad_images
from famr.errors import RequestError
from famr.metrics.predictions import Predictions
from famr.models.activations import LayerOutput, capture_layer, mean_gram
from famr.models.layers import call_order, late_parameters
from famr.targets import TARGETS, HeldOutStatistics, ProbeFeatures, TargetInputs
from famr.targets.probe import PROBE_IMAGES
from famr.unlearn.inputs import RunInputs, Source
from famr.unlearn.objective import ForgetObjective

FISHER_BATCH = 256


@dataclass(frozen=True, eq=False)
class Problem:
    """J(θ) = L_forget(θ) + Σ λ·A(θ, θ₀), and the data of its terms.

    Attributes:
        session: The network.
        config: The settings, calibrated.
        objective: L_forget.
        original: θ₀ of the parameters that may change.
        anchors: The weight anchor first, then the function-space anchor if there is one.
        steps: Passes over the forget set for steps.
        steps_per_epoch: Batches of such a pass.
        forget: Passes over the forget set for evaluation.
        held_out: Passes over the calibration images; None without held-out images.
    """

    session: Session
    config: ResolvedFAMR
    objective: ForgetObjective
    original: Sequence[Tensor]
    anchors: tuple[AnchorTerm, ...]
    steps: Batches
    steps_per_epoch: int
    forget: Batches
    held_out: Batches | None

    def with_strengths(self, strength: float, function_strength: float) -> Problem:
        """The same problem with other strengths of its anchors.

        Args:
            strength: λ of the weight anchor.
            function_strength: λ of the function-space anchor.
        """
        first, *further = self.anchors
        config = replace(self.config, strength=strength, function_strength=function_strength)
        terms = (first._replace(strength=strength), *(term._replace(strength=function_strength) for term in further))
        return replace(self, config=config, anchors=terms)

    def predict_held_out(self) -> Predictions | None:
        """Predictions on the calibration images; None without them."""
        return None if self.held_out is None else self.session.predict(self.held_out)


@contextmanager
def build_problem(session: Session, inputs: RunInputs, config: ResolvedFAMR, seed: int) -> Iterator[Problem]:
    """Build J at θ₀; the style layer is read for as long as the context lasts.

    Args:
        session: The network with the original's weights.
        inputs: What the run has.
        config: The settings; the temperature and β are calibrated here where they were left open.
        seed: Of random draws.
    """
    session.train_only(trainable_names(session, inputs, config), cache_prefix=not config.forgets_style)
    with _style_layer(session, config) as style:
        forget = inputs.forget_batches(session)
        calibration = inputs.calibration_images()
        held_out = None if calibration is None else session.evaluation_batches(calibration)
        config, target = _target(session, inputs, config, style, forget, held_out)
        gram_target = None if style is None else _gram_target(session, inputs, style)
        classes = torch.tensor(inputs.forgotten, device=session.device) if config.target == "masked" else None
        objective = ForgetObjective(session, config, target.to(session.device), classes, style, gram_target)
        if config.balance_beta:
            config = replace(config, beta=_balanced_beta(objective, forget), balance_beta=False)
            objective = replace(objective, config=config)
        original = original_weights(session)
        anchors = build_anchors(session, original, inputs, config, seed)
        available = inputs.available()
        steps = inputs.step_batches(session, config.step_size(available.forget_images))
        per_epoch = available.steps(config.batch_size)
        yield Problem(session, config, objective, original, anchors, steps, per_epoch, forget, held_out)


def trainable_names(session: Session, inputs: RunInputs, config: ResolvedFAMR) -> list[str]:
    """Names of the parameters that may change.

    Args:
        session: The network.
        inputs: One forget image tells the order of the layers.
        config: The edited share, and whether the head may change.

    Raises:
        RequestError: The style layer lies before every layer that may change.
    """
    module = session.model.module
    free = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if config.edited_share >= 1 and config.edit_head:
        return free
    image = _first_image(session, inputs)

    def forward() -> object:
        return module(image)

    names = late_parameters(module, forward, config.edited_share, config.edit_head)
    if config.forgets_style:
        rank = call_order(module, forward)
        inside = [rank[name] for name in rank if name.startswith(f"{config.style_layer}.")]
        if inside and all(rank[name] > max(inside) for name in names):
            raise RequestError(
                "The style layer lies before every layer that may change, so its style cannot change.",
                where=f"{config.style_layer}, edited share {config.edited_share:g}",
                fix="Use a larger edited share, or a later layer.",
            )
    return names


def build_anchors(
    session: Session, original: Sequence[Tensor], inputs: RunInputs, config: ResolvedFAMR, seed: int
) -> tuple[AnchorTerm, ...]:
    """The weight anchor, and the function-space anchor where its strength is not zero.

    Args:
        session: The network at θ₀.
        original: θ₀ of the parameters that may change.
        inputs: What the run has.
        config: Which anchors, and their strengths.
        seed: Of random draws.

    Raises:
        RequestError: An anchor needs images, and there are none.
    """
    source = inputs.anchor_source()
    images = source.take(order(len(source), seed)[: config.fisher_images]) if isinstance(source, Images) else source
    batches = None if images is None or config.anchor == "l2" else _raw_batches(session, images)
    statistics = None if inputs.sketch is None else inputs.sketch.fisher
    with name_bad_images(images.ids if isinstance(images, Images) else None):
        retained = None if batches is None else (lambda: batches(None))
        anchor_inputs = AnchorInputs(session, original, retained, statistics, seed)
        terms = [AnchorTerm(ANCHORS[config.anchor].build(anchor_inputs), config.strength)]
    if config.function_strength:
        if source is None:
            raise no_retained_images("function")
        terms.append(AnchorTerm(_function_anchor(session, source, config, seed), config.function_strength))
    return tuple(terms)


def _function_anchor(session: Session, source: Source, config: ResolvedFAMR, seed: int) -> FunctionAnchor:
    if not isinstance(source, Images):
        return FunctionAnchor(session, session.loader_batches(source), seed)
    images = sample_per_class(source, config.function_images, seed)
    size = even_batch_size(len(images), config.batch_size, config.reduction)
    return FunctionAnchor(session, session.batches(images, size), seed)


def _raw_batches(session: Session, source: Source) -> Batches:
    if isinstance(source, Images):
        return session.image_batches(source, FISHER_BATCH)
    return loader_batches(source, session.device)


def _first_image(session: Session, inputs: RunInputs) -> Tensor:
    if inputs.splits is not None:
        batches = session.image_batches(inputs.splits.forget.take(torch.arange(1)), 1)
    else:
        batches = inputs.step_batches(session, 1)
    return next(iter(batches(None))).images[:1]


@contextmanager
def _style_layer(session: Session, config: ResolvedFAMR) -> Iterator[LayerOutput | None]:
    if not config.forgets_style:
        yield None
        return
    assert config.style_layer is not None
    with capture_layer(session.model.module, config.style_layer, config.style_channels_last) as style:
        yield style


def _target(
    session: Session,
    inputs: RunInputs,
    config: ResolvedFAMR,
    style: LayerOutput | None,
    forget: Batches,
    held_out: Batches | None,
) -> tuple[ResolvedFAMR, Tensor]:
    """q, and the settings with the temperature it was made with."""
    statistics = None if inputs.sketch is None else inputs.sketch.held_out
    if held_out is not None and config.target not in ("uniform", "probe"):
        statistics = HeldOutStatistics.of(session.predict(held_out))
    retained = None if inputs.splits is None else inputs.splits.retain

    def features() -> ProbeFeatures:
        assert style is not None
        assert retained is not None
        sample = retained.take(order(len(retained), 0)[:PROBE_IMAGES])
        kept, labels = _mean_features(session, style, session.evaluation_batches(sample))
        return ProbeFeatures(kept, labels, _mean_features(session, style, forget)[0])

    target = TARGETS[config.target](
        TargetInputs(
            session.predict(forget),
            statistics,
            inputs.forgotten,
            inputs.forgets_classes,
            config.temperature,
            config.overshoot,
            features if style is not None and retained is not None else None,
        )
    )
    return replace(config, temperature=target.temperature, match_entropy=False), target.probabilities


def _gram_target(session: Session, inputs: RunInputs, style: LayerOutput) -> Tensor:
    source = inputs.neutral_source()
    if source is None:
        raise RequestError(
            "Style forgetting needs images of a neutral style.",
            where="style_target",
            fix="Give the retained images, or a folder with --style-target.",
        )
    return mean_gram(session.model.module, style, _raw_batches(session, source)(None))


@torch.no_grad()
def _mean_features(session: Session, style: LayerOutput, batches: Batches) -> tuple[Tensor, Tensor]:
    """Each image's activations of the style layer, averaged over positions; and the labels."""
    features, labels = [], []
    for batch in batches(None):
        session.model.module(batch.images)
        means = style.features(len(batch.images)).mean(dim=-1).float()
        features.append(session.gather(means, len(batch.labels)).cpu())
        labels.append(batch.labels.cpu())
    return torch.cat(features), torch.cat(labels)


def _balanced_beta(objective: ForgetObjective, forget: Batches) -> float:
    """β such that β·L_style = L_KL at θ₀: the scale of a Gram matrix differs by orders between layers."""
    _, kl, style = objective.measure(forget(None))
    assert style is not None
    return float(kl.mean() / style.mean().clamp(min=torch.finfo(style.dtype).tiny))
