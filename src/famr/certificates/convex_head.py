"""(ε, δ)-certified removal for a linear head on frozen features [Guo et al. 2020; Sekhari et al. 2021].

**The claim.** After any sequence of removals that was not refused, the released weights can hardly be told from those
of a head trained without the removed images: for every set S of weights

    P(removed ∈ S) ≤ e^ε·P(retrained ∈ S) + δ        and the same with both exchanged.

**Why.** One Newton step a removal leaves a gradient u, ‖u‖ ≤ `residual` with all classes stacked. The loss is
λn-strongly convex, so the weights V lie within ‖u‖/(λn) of the exact minimiser on the n images left. Released is V + ξ
with fresh ξ ~ N(0, s²I) over the stacked weights, s = σ/(λn): two Gaussians of one width, at most ‖u‖/σ standard
deviations apart. Their (ε, δ) is known exactly (`gaussian.py`), so the residual may grow to σ·`largest_shift(ε, δ)`.
This is one Gaussian mechanism over all classes; composing one guarantee a class would give away some of it.

**Why the noise is not in the objective.** [Guo et al. 2020] add b·w, b ~ N(0, σ²I), to the training loss and release
the weights as they are: the exact solution for b − u in place of b. Were u independent of b, the same (ε, δ) would
follow. But the weights, and so u, depend on b, and a bound on ‖u‖ alone, as in their Thm. 3, is then not enough. A test
computes a case with one feature: at the ε where that theorem says δ < 0.001, δ is 0.09. Noise that is drawn after the
removal knows nothing of u; so [Sekhari et al. 2021] place it, and so does this file.

**What is kept.** `state` V, λ, σ, n and the residual spent. `state` is secret: only `released` may be handed out, with
one draw of noise for each state, since two draws of one state compose.

**What is charged.** By default `data_residual`, a proved bound. `account="exact"` charges the norm of the residual
itself, which is as sound; `account="worst"` does not look at the images left. Charges add up by the triangle
inequality. The gradient on the images handed over is measured as well, and the larger of the two counts: images that
are not those trained on cannot void the certificate unseen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from famr.certificates.gaussian import epsilon_of, largest_shift
from famr.certificates.logistic import (
    data_residual,
    exact_residual,
    gradient,
    minimise,
    newton_step,
    signs_of,
    worst_case_residual,
)
from famr.errors import CheckpointError, DataError, GateError, RequestError
from famr.models.weights import apply_umask, read_weights

Account = Literal["bound", "exact", "worst"]

ROUNDING = 1e-9
"""By how much a feature's norm may exceed 1."""

ASSUMES = "The features do not depend on the removed images: the backbone was not trained on them."
"""What the guarantee rests on and nobody checks."""


@dataclass(frozen=True, eq=False)
class CertifiedHead:
    """A linear head, one row of weights a class, from which images can be removed with an (ε, δ) guarantee."""

    released: Tensor  # (classes, width): the only part of the head that may be handed out
    state: Tensor  # (classes, width): the same before the noise
    strength: float
    sigma: float
    epsilon: float
    delta: float
    count: int
    """Images the head now stands for."""
    removed: int = 0
    residual: float = 0.0
    """Bound on the gradient's norm at `state` on the images left: what of the budget is spent."""

    def __post_init__(self) -> None:
        for name, holds, must in (
            ("strength", 0 < self.strength < math.inf, "above 0"),
            ("sigma", 0 < self.sigma < math.inf, "above 0"),
            ("epsilon", 0 < self.epsilon < math.inf, "above 0"),
            ("delta", 0 < self.delta < 1, "between 0 and 1"),
            ("residual", self.residual >= 0, "at least 0"),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where="CertifiedHead")
        if self.released.shape != self.state.shape or self.state.ndim != 2:
            shapes = tuple(self.released.shape), tuple(self.state.shape)
            raise RequestError(f"`released` and `state` must be (classes, width), got {shapes}.", where="CertifiedHead")

    @property
    def budget(self) -> float:
        """The residual at which the guarantee ends."""
        return self.sigma * largest_shift(self.epsilon, self.delta)

    @property
    def spread(self) -> float:
        """s = σ/(λn): the standard deviation of the noise in each weight."""
        return self.sigma / (self.strength * self.count)

    @property
    def epsilon_spent(self) -> float:
        """The ε that holds now, at the same δ."""
        return epsilon_of(self.residual / self.sigma, self.delta)

    def scores(self, features: Tensor) -> Tensor:
        """One score a class, from the released weights."""
        return features.double() @ self.released.mT

    def save(self, folder: Path) -> None:
        """`released.safetensors` to hand out; `state.safetensors` and `head.json` for whoever removes images."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in (("released", self.released), ("state", self.state)):
            save_file({"weight": tensor.contiguous()}, str(folder / f"{name}.safetensors"))
        apply_umask(folder / "released.safetensors")  # the state stays private
        names = [field.name for field in fields(self) if field.name not in ("released", "state")]
        facts = {name: getattr(self, name) for name in names}
        (folder / "head.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> CertifiedHead:
        """Read what `save` wrote."""
        released, state = (read_weights(folder / f"{name}.safetensors") for name in ("released", "state"))
        try:
            facts: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf-8"))
            return cls(released["weight"], state["weight"], **facts)
        except (OSError, ValueError, KeyError, TypeError, RequestError) as error:
            raise CheckpointError(
                "This is no certified head, or a damaged one.", where=str(folder), fix="Train the head anew."
            ) from error


def train_certified_head(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    strength: float,
    sigma: float,
    epsilon: float,
    delta: float,
    generator: torch.Generator | None = None,
) -> CertifiedHead:
    """Solve the head exactly, and release it with noise. Whoever knows the generator's seed knows the noise."""
    features = _checked(features, labels, classes, where="features")
    blank = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    head = CertifiedHead(blank, blank, strength, sigma, epsilon, delta, len(features))
    if int(labels.min()) == int(labels.max()):
        raise DataError("All images are of one class.", where="labels", fix="Give images of at least two classes.")
    signs = signs_of(labels, classes)
    state = minimise(features, signs, strength)
    residual = float(gradient(state, features, signs, strength).norm())
    return _released(replace(head, state=state, residual=residual), generator)


def remove(
    head: CertifiedHead,
    features_left: Tensor,
    labels_left: Tensor,
    features_removed: Tensor,
    labels_removed: Tensor,
    *,
    account: Account = "bound",
    generator: torch.Generator | None = None,
) -> CertifiedHead:
    """Take images out by one Newton step; refused (`GateError`) when the budget would be overspent."""
    classes = len(head.state)
    left = _checked(features_left, labels_left, classes, where="features_left")
    gone = _checked(features_removed, labels_removed, classes, where="features_removed")
    if len(left) + len(gone) != head.count or left.shape[1] != head.state.shape[1]:
        raise DataError(
            f"The head stands for {head.count} images with {head.state.shape[1]} features; {len(left)} left and "
            f"{len(gone)} removed, with {left.shape[1]} features, were given.",
            where="features_left, features_removed",
            fix="Give every image that the head still stands for, once.",
        )
    gone_signs = signs_of(labels_removed, classes)
    before = max(head.residual, _measured(head, left, signs_of(labels_left, classes), gone, gone_signs))
    step = newton_step(head.state, left, gone, gone_signs, head.strength)
    if account == "worst":
        charge = worst_case_residual(head.state, len(gone), len(left), head.strength)
    else:
        charge = data_residual(step, left) if account == "bound" else exact_residual(head.state, step, left)
    after = replace(head, count=len(left), removed=head.removed + len(gone), residual=before + charge)
    return _released(replace(after, state=head.state + step), generator)


def _released(head: CertifiedHead, generator: torch.Generator | None) -> CertifiedHead:
    """The head with fresh noise on its state; refused where the residual is more than the noise hides."""
    if not head.residual <= head.budget:
        raise GateError(
            f"The certificate's budget is spent: the gradient residual would be up to {head.residual:.3g}, "
            f"(ε = {head.epsilon:g}, δ = {head.delta:g}) allows {head.budget:.3g}. The head was not changed.",
            where=f"{head.removed} images removed, {head.count} left",
            fix="Retrain the head on the images that are left; or train it with a larger sigma or strength.",
        )
    if generator is None:
        generator = torch.Generator()
        generator.seed()  # from the system, never from a seed that others know
    draw = torch.randn(head.state.shape, generator=generator, dtype=torch.float64)
    return replace(head, released=head.state + head.spread * draw)


def _measured(head: CertifiedHead, left: Tensor, left_signs: Tensor, gone: Tensor, gone_signs: Tensor) -> float:
    """The gradient's norm on all images handed over: no more than the residual, if they are those trained on."""
    found = gradient(head.state, left, left_signs, head.strength)
    norm = float((found + gradient(head.state, gone, gone_signs, head.strength)).norm())
    if norm > max(head.residual, head.budget):
        raise DataError(
            f"The head was not trained on these images: its gradient there is {norm:.3g}, "
            f"at most {head.residual:.3g} was expected.",
            where="features_left, features_removed",
            fix="Give the features and labels that the head was trained on, less those removed since.",
        )
    return norm


def _checked(features: Tensor, labels: Tensor, classes: int, *, where: str) -> Tensor:
    """The features in double precision; an error for whatever would void the bounds."""
    if features.ndim != 2 or labels.shape != features.shape[:1] or len(features) == 0:
        raise DataError(
            f"Features must be (images, width) with a label an image, got {tuple(features.shape)} "
            f"and {tuple(labels.shape)}.",
            where=where,
            fix="Give at least one image, and one label for each.",
        )
    features = features.detach().double().cpu()
    if not bool(torch.isfinite(features).all()):
        raise DataError("The features contain NaN or infinity.", where=where, fix="Check the backbone's output.")
    if float(longest := features.norm(dim=1).max()) > 1 + ROUNDING:
        raise DataError(
            f"A feature vector may not be longer than 1, got {float(longest):.3g}.",
            where=where,
            fix="Divide each by its norm, as `head_features` does.",
        )
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"Labels must be class indices from 0 to {classes - 1}.", where=where, fix="Check the labels.")
    return features
