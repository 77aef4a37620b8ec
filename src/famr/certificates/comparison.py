"""Claims about a retrained model: distance of the weights, difference of the logits, and Eq. (10) between the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from famr.certificates.claims import Assumption, Claim, Statement
from famr.certificates.curvature import flat
from famr.certificates.lipschitz import local_lipschitz
from famr.data.loaders import Batches
from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.classifier import logits_of

SEGMENT = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Points between the unlearned and the retrained weights at which L_f is measured."""
LIPSCHITZ_IMAGES = 4
"""Images of each set at which L_f is measured."""

DISTANCE_TO_RETRAINED = Statement("distance_to_retrained", "‖θ − w*‖ over all weights.", "[FAMR, Eq. (9)]")
LOGITS_TO_RETRAINED = Statement(
    "answers_to_retrained", "The mean ‖f_θ(x) − f_w*(x)‖ of the logits on each set.", "[FAMR, Eq. (10)]"
)
LIPSCHITZ_BOUND = Statement(
    "lipschitz_bound",
    "max ‖f_θ(x) − f_w*(x)‖ over some images, against L_f·‖θ − w*‖, L_f measured along the segment.",
    "[FAMR, Eq. (10)]",
)


def no_retrained_claims() -> list[Claim]:
    """The claims where no retrained model was given."""
    statements = (DISTANCE_TO_RETRAINED, LOGITS_TO_RETRAINED, LIPSCHITZ_BOUND)
    return [statement.unavailable("no retrained checkpoint was given") for statement in statements]


def retrained_claims(
    unlearned: Classifier, retrained: Classifier, sets: Mapping[str, Batches], device: torch.device
) -> list[Claim]:
    """Compare the unlearned with the retrained model.

    Args:
        unlearned: θ.
        retrained: w*.
        sets: Passes over images by the name of the set, "forget" among them.
        device: Where to compute.

    Raises:
        CheckpointError: Their weights have different names or shapes.
    """
    ours, theirs = (model.copy().module.to(device).eval() for model in (unlearned, retrained))
    require_same_shapes(ours, theirs)
    distance = float((flat(ours.parameters()) - flat(theirs.parameters())).norm())
    differences = {name: logit_differences(ours, theirs, batches) for name, batches in sets.items()}
    images = [image for batches in sets.values() for image in islice(_single_images(batches), LIPSCHITZ_IMAGES)]
    largest = max(float(_logit_distance(ours, theirs, image)) for image in images)
    constant = segment_lipschitz(ours, theirs, images)
    return [
        DISTANCE_TO_RETRAINED.claim(distance),
        logits_claim(differences),
        lipschitz_claim(largest, constant, distance, len(images)),
    ]


def logits_claim(differences: Mapping[str, Tensor]) -> Claim:
    """Mean and maximum of ‖f_θ(x) − f_w*(x)‖ on each set.

    Args:
        differences: One value an image, by the name of the set.
    """
    details = {
        f"{name}_{part}": float(value)
        for name, norms in differences.items()
        for part, value in (("mean", norms.mean()), ("max", norms.max()))
    }
    return LOGITS_TO_RETRAINED.claim(float(differences["forget"].mean()), details=details)


def lipschitz_claim(largest: float, constant: float, distance: float, images: int) -> Claim:
    """max ‖f_θ(x) − f_w*(x)‖ ≤ L_f·‖θ − w*‖ [FAMR, Eq. (10)].

    Args:
        largest: The left side.
        constant: L_f.
        distance: ‖θ − w*‖.
        images: Number of images at which both were measured.
    """
    same = Assumption(f"L_f is no larger between the {len(SEGMENT)} points, nor for other images.", "stated")
    details = {"lipschitz_constant": constant, "images": images, "points": len(SEGMENT)}
    return LIPSCHITZ_BOUND.claim(largest, constant * distance, assumptions=(same,), details=details)


@torch.no_grad()
def logit_differences(ours: nn.Module, theirs: nn.Module, batches: Batches) -> Tensor:
    """‖f_θ(x) − f_w*(x)‖ of each image, (images,).

    Args:
        ours: f_θ.
        theirs: f_w*.
        batches: Passes over the images.
    """
    return torch.cat([_logit_distance(ours, theirs, batch.images) for batch in batches(None)])


def segment_lipschitz(ours: nn.Module, theirs: nn.Module, images: Sequence[Tensor]) -> float:
    """L_f: the largest ‖∂f/∂θ‖₂ over points of the segment between two networks, and over images.

    Args:
        ours: The network at one end; it has the weights of the other end afterwards.
        theirs: The network at the other end.
        images: Batches of one image.
    """
    first = [parameter.detach().clone() for parameter in ours.parameters()]
    last = [parameter.detach().clone() for parameter in theirs.parameters()]
    parameters, constant = list(ours.parameters()), 0.0
    for share in SEGMENT:
        with torch.no_grad():
            for parameter, a, b in zip(parameters, first, last, strict=True):
                parameter.copy_(a + share * (b - a)).requires_grad_(True)
        for image in images:
            constant = max(constant, local_lipschitz(lambda image=image: _logits(ours, image), parameters))  # type: ignore[misc]
    return constant


def require_same_shapes(ours: nn.Module, theirs: nn.Module) -> None:
    """Refuse networks whose weights cannot be subtracted.

    Args:
        ours: The unlearned network.
        theirs: The retrained network.

    Raises:
        CheckpointError: Their weights have different names or shapes.
    """
    shapes = [{name: tuple(p.shape) for name, p in network.named_parameters()} for network in (ours, theirs)]
    if shapes[0] != shapes[1]:
        odd = next(name for name in {**shapes[0], **shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise CheckpointError(
            f"The retrained model has other weights than the unlearned one: {odd} is {shapes[1].get(odd)}, not "
            f"{shapes[0].get(odd)}.",
            where="retrained",
            fix="Retrain the same architecture with the same classes.",
        )


def _logits(module: nn.Module, images: Tensor) -> Tensor:
    return logits_of(module(images))


@torch.no_grad()
def _logit_distance(ours: nn.Module, theirs: nn.Module, images: Tensor) -> Tensor:
    distance: Tensor = (_logits(ours, images) - _logits(theirs, images)).norm(dim=-1)
    return distance


def _single_images(batches: Batches) -> Iterator[Tensor]:
    for batch in batches(None):
        yield from torch.split(batch.images, 1)
