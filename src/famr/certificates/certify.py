"""`certify`: the deviation certificate of a run, every number computed from its weights, its images and its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from famr.anchors import AnchorInputs, KFACAnchor
from famr.certificates.claims import Certificate, Claim
from famr.certificates.conjugate_gradient import Solution
from famr.certificates.curvature import flat
from famr.certificates.deviation import deviation_claims
from famr.certificates.link import (
    influence_claim,
    influence_step,
    retrained_claims,
    sketched_influence_step,
    unknown_influence,
)
from famr.certificates.resting import RestingObjective
from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
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
NOT_SHOWN = (
    "That the network is the one that training without the forget set would have given; only retraining shows that.",
    "That nothing about the forget images can be learned from the weights; see the audit for attacks.",
    "Anything about copies of the original, its caches, its logs or models distilled from it.",
    "A bound that rests on an assumption marked `stated` was not checked there; one marked `fails` proves nothing.",
)

__all__ = ["LANCZOS_STEPS", "certify"]


def certify(
    result: Unlearned,
    splits: Splits,
    *,
    retrained: Classifier | None = None,
    sketch: Sketch | None = None,
    style_target: Images | None = None,
    device: str | None = None,
    lanczos_steps: int = LANCZOS_STEPS,
    retained_images: int = RETAINED_IMAGES,
    on_part: Callable[[str], None] | None = None,
) -> Certificate:
    """What can be said about the run, each claim with its bound and assumptions.

    `retrained` is a model that never saw the forget set; without it the claims about it are not available. `sketch` and
    `style_target` are those of the run, if it had any. `on_part` hears which part begins.
    """
    for name, value in (("lanczos_steps", lanczos_steps), ("retained_images", retained_images)):
        if value < 1:
            raise RequestError(f"`{name}` must be at least 1, got {value!r}.", where="famr.certify")
    require_same_labels(result.model, splits)
    if sketch is not None:
        sketch.check(result.original)
    place = pick_device(device or "auto")
    try:
        with deterministic(result.seed):
            say = on_part or (lambda _part: None)
            where = (place, lanczos_steps, retained_images, say)
            claims = _claims(result, splits, retrained, sketch, style_target, *where)
    except torch.OutOfMemoryError as error:
        raise NumericsError(
            "There is too little memory for second derivatives of this network.",
            where=str(place),
            fix="Use a device with more memory, or device='cpu'.",
        ) from error
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


def _claims(
    result: Unlearned,
    splits: Splits,
    retrained: Classifier | None,
    sketch: Sketch | None,
    style_target: Images | None,
    device: torch.device,
    lanczos_steps: int,
    retained_images: int,
    say: Callable[[str], None],
) -> list[Claim]:
    say("the objective of the run")
    config = replace(result.method, precision="fp32", search=False)
    if OPTIMISERS[config.optimiser].uses_metric:
        config = replace(config, anchor="l2")  # the metric of the step is no part of J
    inputs = RunInputs.of(result.original, splits, None, style_target, None, sketch)
    weights = {name: tensor.to(device) for name, tensor in result.model.module.state_dict().items()}
    with (
        PlainEngine(device).session(result.original, "fp32") as session,
        build_problem(session, inputs, config, result.seed) as problem,
    ):
        names = [name for name, p in session.model.module.named_parameters() if p.requires_grad]
        require_only_edited(result, names)
        objective = RestingObjective.of(problem)
        say("the influence step")
        influence = _influence(objective, splits, sketch, retained_images, device)
        say("curvature at the result")
        found = deviation_claims(
            objective, flat([weights[name] for name in names]), problem.steps_per_epoch, lanczos_steps
        )
        moved, model = objective.moved, session.model
    say("the retrained model")
    compared = {
        name: image_batches(
            images.take(torch.arange(min(len(images), COMPARED_IMAGES))),
            model.require_preprocessing(),
            EVALUATION_BATCH,
            device,
        )
        for name, images in (("forget", splits.forget), ("retain", splits.retain), ("test", splits.test))
        if images is not None
    }
    link = influence if isinstance(influence, Claim) else influence_claim(influence[0], moved, *influence[1:])
    return [*found, link, *retrained_claims(result.model, retrained, compared, device)]


def _influence(
    objective: RestingObjective, splits: Splits, sketch: Sketch | None, count: int, device: torch.device
) -> Claim | tuple[Solution, int, bool]:
    """The influence step at θ₀, the number of images behind it, whether from a sketch; or why there is none."""
    session, forget = objective.problem.session, objective.problem.forget
    if not splits.forget.labelled or (splits.retain is not None and not splits.retain.labelled):
        return unknown_influence("the images have no labels")
    if splits.retain is None:
        if sketch is None:
            return unknown_influence("neither retained images nor a sketch were given")
        start = [parameter.detach().clone() for parameter in objective.parameters]
        kfac = KFACAnchor.build(AnchorInputs(session, start, None, sketch.fisher, seed=0))
        left = sum(sketch.class_counts) - len(splits.forget)
        return sketched_influence_step(objective.logits, objective.parameters, forget, kfac, left), sketch.images, True
    some = splits.retain.take(order(len(splits.retain), 0)[:count])
    retain = image_batches(some, session.model.require_preprocessing(), EVALUATION_BATCH, device)
    try:
        step = influence_step(objective.logits, objective.parameters, forget, retain, len(splits.retain))
    except NumericsError as error:
        return unknown_influence(error.what)
    return step, len(some), False


def require_only_edited(result: Unlearned, names: list[str]) -> None:
    """A certificate about some weights says nothing about others that were changed as well."""
    free, after = set(names), dict(result.model.module.named_parameters())
    for name, before in result.original.module.named_parameters():
        if name not in free and not torch.equal(before.cpu(), after[name].cpu()):
            raise RequestError(
                f"{name} differs between the original and the unlearned model, though the run did not edit it.",
                where="certify",
                fix="Certify the weights that the run wrote, against the original it started from.",
            )
