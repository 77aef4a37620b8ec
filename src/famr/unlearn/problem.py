"""J(θ) of a run, built at θ₀: which weights may change, the target, the anchors, the passes over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.anchors import ANCHORS, AnchorInputs, AnchorTerm, FunctionAnchor, WeightAnchor, original_weights
from famr.config import ResolvedFAMR
from famr.data import Images
from famr.data.loaders import Batches, order
from famr.engine.base import Session
from famr.metrics.predictions import Predictions
from famr.models.activations import LayerOutput
from famr.targets import TARGETS, Target, TargetInputs
from famr.targets.demotion import LowestQuarter
from famr.unlearn.edited import edited_parameters
from famr.unlearn.inputs import RunInputs
from famr.unlearn.objective import ForgetObjective
from famr.unlearn.style import capture_style, neutral_gram


@dataclass(frozen=True, eq=False)
class Problem:
    """J(θ) = L_forget(θ) + Σ λ·A(θ, θ₀), and the data of its terms.

    Attributes:
        session: The network.
        config: The settings, calibrated.
        objective: L_forget.
        target: q.
        original: θ₀ of the parameters that may change.
        weight_anchor: A of the weights.
        function_anchor: A of the predictions on retained images; None without one.
        steps: Passes over the forget set for steps.
        steps_per_epoch: Batches of such a pass.
        forget: Passes over the forget set for evaluation.
        held_out: Passes over the calibration images; None without held-out images.
    """

    session: Session
    config: ResolvedFAMR
    objective: ForgetObjective
    target: Target
    original: Sequence[Tensor]
    weight_anchor: WeightAnchor
    function_anchor: FunctionAnchor | None
    steps: Batches
    steps_per_epoch: int
    forget: Batches
    held_out: Batches | None

    @property
    def anchors(self) -> tuple[AnchorTerm, ...]:
        """Σ λ·A: the weight anchor first, then the function-space anchor if there is one."""
        terms = [AnchorTerm(self.weight_anchor, self.config.strength)]
        if self.function_anchor is not None:
            terms.append(AnchorTerm(self.function_anchor, self.config.function_strength))
        return tuple(terms)

    def with_strengths(self, factor: float) -> Problem:
        """The same problem with anchors that are weaker or stronger.

        Args:
            factor: On λ of every anchor.
        """
        strength, function_strength = factor * self.config.strength, factor * self.config.function_strength
        return replace(self, config=replace(self.config, strength=strength, function_strength=function_strength))

    def predict_held_out(self) -> Predictions | None:
        """Predictions on the calibration images; None without them."""
        return None if self.held_out is None else self.session.predict(self.held_out)


@contextmanager
def build_problem(session: Session, inputs: RunInputs, config: ResolvedFAMR, seed: int) -> Iterator[Problem]:
    """Build J at θ₀; the style layer is read for as long as the context lasts.

    Args:
        session: The network with the original's weights.
        inputs: The data of the run.
        config: The settings; the temperature and β are calibrated here where they were left open.
        seed: Seed of random draws.

    Yields:
        The problem.

    Raises:
        RequestError: Something that the target, an anchor or the style loss needs is not available.
    """
    session.train_only(edited_parameters(session, inputs, config), cache_prefix=not config.forgets_style)
    with capture_style(session, config) as style:
        forget = inputs.forget_batches(session)
        calibration = inputs.calibration_images()
        held_out = None if calibration is None else session.evaluation_batches(calibration)
        target = _target(session, inputs, config, style, forget, held_out)
        config = replace(config, temperature=target.temperature)
        demotion = target.demotion or LowestQuarter(torch.tensor(inputs.forgotten))
        objective = ForgetObjective(
            session=session,
            config=config,
            target=target.probabilities.to(session.device),
            demotion=demotion.to(session.device) if config.demotion else None,
            style=style,
            gram_target=None if style is None else neutral_gram(session, inputs, style, config),
        )
        if config.balance_beta:
            config = replace(config, beta=objective.balanced_beta(forget), balance_beta=False)
            objective = replace(objective, config=config)
        original, available = original_weights(session), inputs.available()
        yield Problem(
            session=session,
            config=config,
            objective=objective,
            target=target,
            original=original,
            weight_anchor=_weight_anchor(session, original, inputs, config, seed),
            function_anchor=_function_anchor(session, inputs, config, seed),
            steps=inputs.step_batches(session, config.step_size(available.forget_images)),
            steps_per_epoch=available.steps(config.batch_size),
            forget=forget,
            held_out=held_out,
        )


def _target(
    session: Session,
    inputs: RunInputs,
    config: ResolvedFAMR,
    style: LayerOutput | None,
    forget: Batches,
    held_out: Batches | None,
) -> Target:
    target_inputs = TargetInputs(
        session=session,
        forget_batches=forget,
        held_out_batches=held_out,
        sketched=None if inputs.sketch is None else inputs.sketch.held_out,
        retained=None if inputs.splits is None else inputs.splits.retain,
        style=style,
        forgotten=inputs.forgotten,
        forgets_classes=inputs.forgets_classes,
        temperature=config.temperature,
        overshoot=config.overshoot,
        proxy=inputs.proxy,
    )
    return TARGETS[config.target].build(target_inputs)


def _weight_anchor(
    session: Session, original: Sequence[Tensor], inputs: RunInputs, config: ResolvedFAMR, seed: int
) -> WeightAnchor:
    source = inputs.anchor_source()
    sample = source.take(order(len(source), seed)[: config.fisher_images]) if isinstance(source, Images) else source
    statistics = None if inputs.sketch is None else inputs.sketch.fisher
    batch_size = inputs.gradient_batch_size(config)
    return ANCHORS[config.anchor].build(AnchorInputs(session, original, sample, statistics, seed, batch_size))


def _function_anchor(session: Session, inputs: RunInputs, config: ResolvedFAMR, seed: int) -> FunctionAnchor | None:
    if not config.function_strength:
        return None
    return FunctionAnchor.build(session, inputs.anchor_source(), config.function_images, config.step_size, seed)
