"""`certify`: the deviation certificate of a run, every number computed from its weights, its images and its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from famr.anchors import AnchorInputs, KFACAnchor
from famr.certificates.anchored_objective import AnchoredObjective
from famr.certificates.claims import Certificate, Claim
from famr.certificates.comparison import no_retrained_claims, retrained_claims
from famr.certificates.curvature import flat
from famr.certificates.deviation import deviation_claims
from famr.certificates.influence import (
    DAMPING,
    INFLUENCE,
    InfluenceStep,
    influence_claim,
    influence_step,
    retained_curvature,
    sketched_influence_step,
    summed_gradient,
)
from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, Batches, image_batches, order
from famr.data.splits import Splits
from famr.engine.devices import deterministic, pick_device
from famr.engine.plain import PlainEngine
from famr.errors import NumericsError, RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.optim import OPTIMISERS
from famr.unlearn.inputs import RunInputs
from famr.unlearn.problem import build_problem
from famr.unlearn.result import Unlearned
from famr.unlearn.sketch import Sketch

LANCZOS_STEPS = 30
RETAINED_IMAGES = 500
COMPARED_IMAGES = 1000
"""Images of each set, at most, on which the unlearned and the retrained model are compared."""
NOT_SHOWN = (
    "That the network is the one that training without the forget set would have given; only retraining shows that.",
    "That nothing about the forget images can be learned from the weights; see the audit for attacks.",
    "Anything about copies of the original, its caches, its logs or models distilled from it.",
    "A bound that rests on an assumption marked `stated` was not checked there; one marked `fails` proves nothing.",
)

__all__ = ["LANCZOS_STEPS", "RETAINED_IMAGES", "certify"]


def certify(
    result: Unlearned,
    splits: Splits,
    *,
    scored: Splits | None = None,
    retrained: Classifier | None = None,
    sketch: Sketch | None = None,
    style_target: Images | None = None,
    device: str | None = None,
    lanczos_steps: int = LANCZOS_STEPS,
    retained_images: int = RETAINED_IMAGES,
    on_part: Callable[[str], None] | None = None,
) -> Certificate:
    """Compute the deviation certificate of a run: its claims, each with its bound and assumptions.

    Args:
        result: The run.
        splits: The data that it was given.
        scored: The data on which it is compared with a retrained model; None: `splits`.
        retrained: A model that was trained without the forget set; None: the claims about it are not available.
        sketch: The sketch that the run used, if it used one.
        style_target: The images of a neutral style that the run used, if it used some.
        device: Where to compute; None: the best available.
        lanczos_steps: For each spectrum; each is a pass over the forget set.
        retained_images: Retained images, at most, for the curvature of the influence step.
        on_part: Called with the name of each part as it begins.

    Raises:
        RequestError: A number is less than 1, or weights differ that the run did not edit.
        DataError: The images name other classes than the model.
        CheckpointError: The sketch or the retrained model does not fit the run.
        NumericsError: There is too little memory, or the curvature is not finite.
    """
    for name, value in (("lanczos_steps", lanczos_steps), ("retained_images", retained_images)):
        if value < 1:
            raise RequestError(f"`{name}` must be at least 1, got {value!r}.", where="famr.certify")
    require_same_labels(result.model, splits)
    inputs = replace(RunInputs.of(result.original, splits, None, style_target, None, sketch), proxy=result.proxy)
    chosen, begin = pick_device(device or "auto"), on_part or _ignore
    with _name_memory_errors(chosen), deterministic(result.seed):
        begin("the objective of the run")
        with run_objective(result, inputs, chosen) as objective:
            weights = _edited_weights(result, objective)
            begin("the influence step")
            influence = _influence_claim(objective, inputs, weights - objective.start, retained_images)
            begin("curvature at the result")
            claims = [*deviation_claims(objective, weights, lanczos_steps), influence]
        begin("the retrained model")
        if retrained is None:
            claims += no_retrained_claims()
        else:
            claims += retrained_claims(
                result.model, retrained, _compared_sets(result, scored or splits, chosen), chosen
            )
    subject = {
        "original_sha256": result.original.digest(),
        "unlearned_sha256": result.model.digest(),
        "retrained_sha256": None if retrained is None else retrained.digest(),
        "request": result.request.to_json(),
        "method": result.method.to_json(),
        "forget_images": len(splits.forget),
        "seed": result.seed,
        "precision": "fp32",
        "lanczos_steps": lanczos_steps,
        "retained_images": retained_images,
    }
    return Certificate("deviation", tuple(claims), NOT_SHOWN, subject)


@contextmanager
def run_objective(result: Unlearned, inputs: RunInputs, device: torch.device) -> Iterator[AnchoredObjective]:
    """J of a finished run in float32, at θ₀.

    Args:
        result: The run.
        inputs: Its data.
        device: Where to compute.

    Yields:
        J.

    Raises:
        RequestError: Weights differ that the run did not edit.
    """
    config = replace(result.method, precision="fp32", search=False)
    if OPTIMISERS[config.optimiser].uses_metric:
        config = replace(config, anchor="l2")  # J has no weight anchor then; ℓ₂ needs no images
    with (
        PlainEngine(device).session(result.original, "fp32") as session,
        build_problem(session, inputs, config, result.seed) as problem,
    ):
        require_only_edited(result, _trainable_names(session.model))
        yield AnchoredObjective.of(problem)


def require_only_edited(result: Unlearned, names: list[str]) -> None:
    """Refuse a result with other changes than those of the run: claims about some weights are not about the rest.

    Args:
        result: The run.
        names: Parameters that the run could change.

    Raises:
        RequestError: Another parameter differs from the original.
    """
    trainable, after = set(names), dict(result.model.module.named_parameters())
    for name, before in result.original.module.named_parameters():
        if name not in trainable and not torch.equal(before.cpu(), after[name].cpu()):
            raise RequestError(
                f"{name} differs between the original and the unlearned model, though the run did not edit it.",
                where="certify",
                fix="Certify the weights that the run wrote, against the original it started from.",
            )


def _influence_claim(objective: AnchoredObjective, inputs: RunInputs, moved: Tensor, retained_images: int) -> Claim:
    """The influence step at θ₀ against the step of the run; curvature from retained images, or from a sketch."""
    splits, sketch, problem = inputs.splits, inputs.sketch, objective.problem
    assert splits is not None
    logits, parameters = objective.logits, objective.parameters
    if not splits.forget.labelled or (splits.retain is not None and not splits.retain.labelled):
        return INFLUENCE.unavailable("the images have no labels")
    if splits.retain is None and sketch is None:
        return INFLUENCE.unavailable("neither retained images nor a sketch were given")
    forget_gradient = summed_gradient(logits, parameters, problem.forget)
    if splits.retain is None:
        assert sketch is not None
        count = sum(sketch.class_counts) - len(splits.forget)
        original = [parameter.detach().clone() for parameter in parameters]
        kfac = KFACAnchor.build(AnchorInputs(problem.session, original, None, sketch.fisher, seed=0))
        solution = sketched_influence_step(forget_gradient, kfac, parameters, count, DAMPING * count)
        return influence_claim(InfluenceStep(solution, sketch.images, sketched=True), moved)
    count = len(splits.retain)
    sample = splits.retain.take(order(count, 0)[:retained_images])
    curvature = retained_curvature(logits, parameters, problem.session.image_batches(sample, EVALUATION_BATCH), count)
    try:
        solution = influence_step(forget_gradient, curvature, DAMPING * count)
    except NumericsError as error:
        return INFLUENCE.unavailable(error.what)
    return influence_claim(InfluenceStep(solution, len(sample)), moved)


def _trainable_names(model: Classifier) -> list[str]:
    return [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]


def _edited_weights(result: Unlearned, objective: AnchoredObjective) -> Tensor:
    """θ of the parameters that the run could change, flat."""
    session, after = objective.problem.session, result.model.module.state_dict()
    return flat([after[name].to(session.device) for name in _trainable_names(session.model)])


def _compared_sets(result: Unlearned, splits: Splits, device: torch.device) -> dict[str, Batches]:
    preprocessing = result.original.require_preprocessing()
    sets = {"forget": splits.forget, "retain": splits.retain, "test": splits.test}
    samples = {
        name: images.take(torch.arange(min(len(images), COMPARED_IMAGES)))
        for name, images in sets.items()
        if images is not None
    }
    return {name: image_batches(images, preprocessing, EVALUATION_BATCH, device) for name, images in samples.items()}


@contextmanager
def _name_memory_errors(device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise NumericsError(
            "There is too little memory for second derivatives of this network.",
            where=str(device),
            fix="Use a device with more memory, or device='cpu'.",
        ) from error


def _ignore(_part: str) -> None:
    return
