"""The link to retraining [FAMR, Eq. (7)–(10)]: the influence step with its right sign, and the retrained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.anchors import FisherAnchor, KFACAnchor
from famr.certificates.claims import Assumption, Claim, bounded
from famr.certificates.conjugate_gradient import Solution, solve_damped
from famr.certificates.curvature import flat, gauss_newton_product, gradient, shaped
from famr.certificates.lipschitz import local_lipschitz
from famr.certificates.resting import MICRO_BATCH, in_parts
from famr.data.loaders import Batches
from famr.engine.oom import derivative_batch_size
from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.classifier import logits_of

DAMPING = 0.01
"""For each retained image: added to the mean curvature of the retained loss."""
SEGMENT = (0.0, 0.25, 0.5, 0.75, 1.0)
LIPSCHITZ_IMAGES = 4

NO_RETRAINED = "no retrained checkpoint was given"


def influence_step(
    logits: Callable[[Tensor], Tensor],
    parameters: Sequence[nn.Parameter],
    forget: Batches,
    retain: Batches,
    retain_count: int,
    damping: float = DAMPING,
) -> Solution:
    """Δ = +(H + δI)⁻¹ Σ_T ∇ℓ at θ₀: where the minimiser of the training loss goes without T [FAMR, Eq. (7), corrected].

    H is the Gauss–Newton matrix of the retained loss, summed; `retain` may be a sample of `retain_count` images, and is
    scaled up. ℓ is the cross-entropy that the model was trained with.
    """
    seen = sum(len(batch.labels) for batch in retain(None))

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in retain(None):
            for part in in_parts(batch, derivative_batch_size(MICRO_BATCH, batch.images.device)):
                said = logits(part.images)
                yield said, F.cross_entropy(said, part.labels, reduction="sum") * (retain_count / seen)

    slope = gradient(lambda: _losses(logits, forget), parameters)
    return solve_damped(gauss_newton_product(pieces, parameters), slope, damping=damping * retain_count)


def sketched_influence_step(
    logits: Callable[[Tensor], Tensor],
    parameters: Sequence[nn.Parameter],
    forget: Batches,
    anchor: KFACAnchor | FisherAnchor,
    retain_count: int,
    damping: float = DAMPING,
) -> Solution:
    """The same with H = N·F, F the Fisher information of a sketch, which is inverted exactly."""
    delta = damping * retain_count
    slope = gradient(lambda: _losses(logits, forget), parameters)
    pieces = shaped(slope, parameters)
    x = flat(anchor.precondition(pieces, 1 / damping)) / delta  # (δI + N F)⁻¹ g = (I + (N/δ)F)⁻¹ g/δ
    there = [nn.Parameter(p.detach() + piece) for p, piece in zip(parameters, shaped(x, parameters), strict=True)]
    left = slope - retain_count * flat(anchor.gradient(there)) - delta * x
    residual = float(left.norm() / slope.norm().clamp(min=1e-30))
    return Solution(x, delta, residual, 0, residual < 1e-2, False)


def _losses(logits: Callable[[Tensor], Tensor], batches: Batches) -> Iterator[Tensor]:
    for batch in batches(None):
        for part in in_parts(batch, derivative_batch_size(MICRO_BATCH, batch.images.device)):
            yield F.cross_entropy(logits(part.images), part.labels, reduction="sum")


def influence_claim(step: Solution, moved: Tensor, images: int, sketched: bool = False) -> Claim:
    """How FAMR's step compares with the influence step; an analogy, so measured and not assumed."""
    cosine = float(F.cosine_similarity(moved, step.x, dim=0)) if float(moved.norm()) else 0.0
    return Claim(
        "influence_step",
        "The cosine between θ − θ₀ and the damped influence step +(H + δI)⁻¹Σ∇ℓ, over the weights that may change.",
        "[FAMR, Eq. (7), (8)], sign corrected",
        value=cosine,
        assumptions=(
            Assumption.found("The linear system is solved.", step.converged),
            *([Assumption("The sketch stands for the curvature of the retained loss.", "stated")] if sketched else []),
            Assumption("The original minimises the training loss.", "stated"),
            Assumption("The loss is quadratic between the original and the retrained weights.", "stated"),
        ),
        details={
            "distance": float((moved - step.x).norm()),
            "length_of_the_run": float(moved.norm()),
            "length_of_the_influence_step": float(step.x.norm()),
            "damping": step.damping,
            "residual": step.residual,
            "steps": step.steps,
            "retained_images": images,
        },
    )


def retrained_claims(
    unlearned: Classifier, retrained: Classifier | None, sets: dict[str, Batches], device: torch.device
) -> list[Claim]:
    """Distance to the retrained weights, difference of the answers, and Eq. (10) along the segment between them."""
    distance_says = "‖θ − w*‖, all weights counted."
    answers_says = "The mean ‖f_θ(x) − f_w*(x)‖ of the logits on each set."
    lipschitz_says = "max ‖f_θ(x) − f_w*(x)‖ over some images, against L_f·‖θ − w*‖, L_f measured along the segment."
    if retrained is None:
        return [
            Claim("distance_to_retrained", distance_says, "[FAMR, Eq. (9)]", not_available=NO_RETRAINED),
            Claim("answers_to_retrained", answers_says, "[FAMR, Eq. (10)]", not_available=NO_RETRAINED),
            Claim("lipschitz_bound", lipschitz_says, "[FAMR, Eq. (10)]", not_available=NO_RETRAINED),
        ]
    ours, theirs = unlearned.copy().module.to(device).eval(), retrained.copy().module.to(device).eval()
    require_same_shapes(ours, theirs)
    apart = float((flat(list(ours.parameters())) - flat(list(theirs.parameters()))).norm())
    with torch.no_grad():
        gaps = {
            name: torch.cat([(_said(ours, b.images) - _said(theirs, b.images)).norm(dim=-1) for b in batches(None)])
            for name, batches in sets.items()
        }
    details = {f"{name}_{part}": value for name, gap in gaps.items() for part, value in _mean_and_max(gap).items()}
    images = [image for batches in sets.values() for image in islice(_one_by_one(batches), LIPSCHITZ_IMAGES)]
    constant, largest = _along_the_segment(ours, theirs, images)
    return [
        Claim("distance_to_retrained", distance_says, "[FAMR, Eq. (9)]", value=apart),
        Claim(
            "answers_to_retrained",
            answers_says,
            "[FAMR, Eq. (10)]",
            value=float(gaps["forget"].mean()),
            details=details,
        ),
        Claim(
            "lipschitz_bound",
            lipschitz_says,
            "[FAMR, Eq. (10)]",
            **bounded(largest, constant * apart),
            assumptions=(
                Assumption(f"L_f is no larger between the {len(SEGMENT)} points, nor for other images.", "stated"),
            ),
            details={"lipschitz_constant": constant, "images": len(images), "points": len(SEGMENT)},
        ),
    ]


def require_same_shapes(ours: nn.Module, theirs: nn.Module) -> None:
    """Weights can be compared only where both networks have the same ones."""
    shapes = [{name: tuple(p.shape) for name, p in network.named_parameters()} for network in (ours, theirs)]
    if shapes[0] != shapes[1]:
        odd = next(name for name in {**shapes[0], **shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise CheckpointError(
            f"The retrained model has other weights than the unlearned one: {odd} is {shapes[1].get(odd)}, not "
            f"{shapes[0].get(odd)}.",
            where="retrained",
            fix="Retrain the same architecture with the same classes.",
        )


def _along_the_segment(ours: nn.Module, theirs: nn.Module, images: list[Tensor]) -> tuple[float, float]:
    """The largest ‖∂f/∂θ‖₂ over the points and images, and the largest difference of the answers to these images."""
    begin = [parameter.detach().clone() for parameter in ours.parameters()]
    end = [parameter.detach().clone() for parameter in theirs.parameters()]
    with torch.no_grad():
        largest = max(float((_said(ours, image) - _said(theirs, image)).norm()) for image in images)
    parameters, constant = list(ours.parameters()), 0.0
    for share in SEGMENT:
        with torch.no_grad():
            for parameter, a, b in zip(parameters, begin, end, strict=True):
                parameter.copy_(a + share * (b - a)).requires_grad_(True)
        for image in images:
            constant = max(constant, local_lipschitz(lambda image=image: _said(ours, image), parameters))  # type: ignore[misc]
    return constant, largest


def _said(module: nn.Module, images: Tensor) -> Tensor:
    return logits_of(module(images))


def _one_by_one(batches: Batches) -> Iterator[Tensor]:
    for batch in batches(None):
        yield from torch.split(batch.images, 1)


def _mean_and_max(values: Tensor) -> dict[str, float]:
    return {"mean": float(values.mean()), "max": float(values.max())}


def unknown_influence(why: str) -> Claim:
    """The claim where there is nothing to compute it from."""
    found = influence_claim(Solution(torch.zeros(1), 0.0, 0.0, 0, True, False), torch.zeros(1), 0)
    return replace(found, value=None, assumptions=(), details={}, not_available=why)
