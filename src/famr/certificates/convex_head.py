"""(ε, δ)-certified removal for a linear head on frozen features [Guo et al. 2020; Sekhari et al. 2021].

**Claim.** After any sequence of removals that was not refused, the released weights can hardly be told from those of a
head that was trained without the removed images: for every set S of weights

    P(removed ∈ S) ≤ e^ε·P(retrained ∈ S) + δ        and the same with both exchanged.

**Proof.** One Newton step a removal leaves a gradient u, ‖u‖ ≤ `residual` with all classes stacked. The loss is
λn-strongly convex, so the weights V lie within ‖u‖/(λn) of the exact minimiser on the n remaining images. Released is
V + ξ with fresh ξ ~ N(0, s²I) over the stacked weights, s = σ/(λn): two Gaussians of one width, at most ‖u‖/σ standard
deviations apart. Their (ε, δ) is known exactly (`gaussian.py`), so the residual may grow to σ·`largest_shift(ε, δ)`.
This is one Gaussian mechanism over all classes; composing one guarantee a class would be looser.

**Why the noise is not in the objective.** [Guo et al. 2020] add b·w, b ~ N(0, σ²I), to the training loss and release
the weights as they are: the exact solution for b − u in place of b. If u were independent of b, the same (ε, δ) would
follow. But the weights, and so u, depend on b, and a bound on ‖u‖ alone, as in their Thm. 3, is then not enough. A test
computes a case with one feature: at the ε where that theorem gives δ < 0.001, δ is 0.09. Noise that is drawn after the
removal is independent of u; [Sekhari et al. 2021] draw it then, and so does this file.

**State.** `state` V, λ, σ, n and the residual so far. `state` is secret: only `released` may be published, with one
draw of noise for each state, since two draws of one state compose.

**Charges.** By default `data_residual`, a proved bound. `account="exact"` charges the norm of the residual itself,
which is as sound; `account="worst"` does not depend on the remaining images. Charges add up by the triangle inequality.
The gradient on the images that are passed in is measured as well, and the larger of the two counts, so that other
images than those of the training cannot void the certificate unnoticed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from famr.certificates.gaussian import epsilon_of, largest_shift
from famr.certificates.logistic import (
    data_residual,
    exact_residual,
    head_gradient,
    newton_step,
    signs_of,
    solve_head,
    worst_case_residual,
)
from famr.errors import CheckpointError, DataError, GateError, RequestError
from famr.models.weights import apply_umask, read_weights

Account = Literal["bound", "exact", "worst"]

ROUNDING = 1e-9
"""By how much a feature's norm may exceed 1."""


class LabelledFeatures(NamedTuple):
    """Features of images with their classes.

    Attributes:
        features: (images, width), rows no longer than 1.
        labels: Class indices, (images,).
    """

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class RemovalSettings:
    """What a certified head is trained with, and guarantees.

    Attributes:
        strength: λ of the logistic regression, for each image.
        sigma: σ of the noise; more allows more removals and costs accuracy.
        epsilon: ε of the guarantee.
        delta: δ of the guarantee.
    """

    strength: float = 1e-2
    sigma: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, holds, must in (
            ("strength", 0 < self.strength < math.inf, "above 0"),
            ("sigma", 0 < self.sigma < math.inf, "above 0"),
            ("epsilon", 0 < self.epsilon < math.inf, "above 0"),
            ("delta", 0 < self.delta < 1, "between 0 and 1"),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where="CertifiedHead")

    @property
    def budget(self) -> float:
        """σ·s(ε, δ): the residual up to which the guarantee holds, s the largest shift that (ε, δ) allow."""
        return self.sigma * largest_shift(self.epsilon, self.delta)

    def noise(self, count: int) -> float:
        """s = σ/(λn): the standard deviation of the noise in each weight.

        Args:
            count: n.
        """
        return self.sigma / (self.strength * count)

    def epsilon_spent(self, residual: float) -> float:
        """The ε that a residual allows at this δ.

        Args:
            residual: ‖u‖ at most.
        """
        return epsilon_of(residual / self.sigma, self.delta)


@dataclass(frozen=True, eq=False)
class CertifiedHead:
    """A linear head from which images can be removed with an (ε, δ) guarantee.

    Attributes:
        released: V + ξ, (classes, width): the only part of the head that may be published.
        state: V, (classes, width): secret.
        settings: λ, σ, ε, δ.
        count: n, the images of the head.
        removed: Images removed so far.
        residual: Bound on the gradient's norm at `state` on the images of the head.
    """

    released: Tensor
    state: Tensor
    settings: RemovalSettings
    count: int
    removed: int = 0
    residual: float = 0.0

    def __post_init__(self) -> None:
        if not self.residual >= 0:
            raise RequestError(f"`residual` must be at least 0, got {self.residual!r}.", where="CertifiedHead")
        if self.released.shape != self.state.shape or self.state.ndim != 2:
            shapes = tuple(self.released.shape), tuple(self.state.shape)
            raise RequestError(f"`released` and `state` must be (classes, width), got {shapes}.", where="CertifiedHead")

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in each weight."""
        return self.settings.noise(self.count)

    @property
    def epsilon_spent(self) -> float:
        """The ε that holds now, at the same δ."""
        return self.settings.epsilon_spent(self.residual)

    def scores(self, features: Tensor) -> Tensor:
        """Scores of the released weights, (images, classes).

        Args:
            features: (images, width).
        """
        return features.double() @ self.released.mT

    def save(self, folder: Path) -> None:
        """Write `released.safetensors` to publish, and `state.safetensors` and `head.json` for further removals.

        Args:
            folder: It may exist.
        """
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in (("released", self.released), ("state", self.state)):
            save_file({"weight": tensor.contiguous()}, str(folder / f"{name}.safetensors"))
        apply_umask(folder / "released.safetensors")  # the state stays private
        counts = {"count": self.count, "removed": self.removed, "residual": self.residual}
        content = json.dumps({**asdict(self.settings), **counts}, indent=2) + "\n"
        (folder / "head.json").write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> CertifiedHead:
        """Read what `save` wrote.

        Args:
            folder: The folder.

        Raises:
            CheckpointError: It is no certified head, or a damaged one.
        """
        released, state = (read_weights(folder / f"{name}.safetensors") for name in ("released", "state"))
        try:
            counts: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf-8"))
            settings = RemovalSettings(**{field.name: counts.pop(field.name) for field in fields(RemovalSettings)})
            return cls(released["weight"], state["weight"], settings, **counts)
        except (OSError, ValueError, KeyError, TypeError, RequestError) as error:
            raise CheckpointError(
                "This is no certified head, or a damaged one.", where=str(folder), fix="Train the head anew."
            ) from error


def train_certified_head(
    data: LabelledFeatures, classes: int, settings: RemovalSettings, *, generator: torch.Generator | None = None
) -> CertifiedHead:
    """Solve the head exactly, and release it with noise.

    Args:
        data: All images of the head.
        classes: Number of classes.
        settings: λ, σ, ε, δ.
        generator: Of the noise; whoever knows its seed knows the noise. None: seeded by the system.

    Raises:
        DataError: The features or labels would void the bounds.
        NumericsError: The logistic regression cannot be solved.
    """
    data = _checked(data, classes, where="features")
    if int(data.labels.min()) == int(data.labels.max()):
        raise DataError("All images are of one class.", where="labels", fix="Give images of at least two classes.")
    signs = signs_of(data.labels, classes)
    state = solve_head(data.features, signs, settings.strength)
    residual = float(head_gradient(state, data.features, signs, settings.strength).norm())
    return _release(CertifiedHead(state, state, settings, len(data.features), residual=residual), generator)


def remove(
    head: CertifiedHead,
    left: LabelledFeatures,
    removed: LabelledFeatures,
    *,
    account: Account = "bound",
    generator: torch.Generator | None = None,
) -> CertifiedHead:
    """Remove images by one Newton step.

    Args:
        head: Stays as it is.
        left: The images of the head that remain.
        removed: The images of the head that are removed.
        account: What is charged, see the module.
        generator: Of the noise; None: seeded by the system.

    Raises:
        DataError: These are not the images of the head.
        GateError: The residual would exceed the budget.
    """
    classes, strength = len(head.state), head.settings.strength
    left, removed = _checked(left, classes, where="left"), _checked(removed, classes, where="removed")
    _require_count(head, left, removed)
    residual = max(head.residual, _gradient_norm(head, left, removed))
    step = newton_step(head.state, left.features, removed.features, signs_of(removed.labels, classes), strength)
    if account == "worst":
        charge = worst_case_residual(head.state, len(removed.features), len(left.features), strength)
    elif account == "exact":
        charge = exact_residual(head.state, step, left.features)
    else:
        charge = data_residual(step, left.features)
    after = replace(
        head,
        state=head.state + step,
        count=len(left.features),
        removed=head.removed + len(removed.features),
        residual=residual + charge,
    )
    return _release(after, generator)


def _release(head: CertifiedHead, generator: torch.Generator | None) -> CertifiedHead:
    """The head with fresh noise on its state; an error where the residual exceeds the budget."""
    settings = head.settings
    if not head.residual <= settings.budget:
        raise GateError(
            f"The certificate's budget is spent: the gradient residual would be up to {head.residual:.3g}, "
            f"(ε = {settings.epsilon:g}, δ = {settings.delta:g}) allows {settings.budget:.3g}. "
            "The head was not changed.",
            where=f"{head.removed} images removed, {head.count} left",
            fix="Retrain the head on the images that are left; or train it with a larger sigma or strength.",
        )
    if generator is None:
        generator = torch.Generator()
        generator.seed()  # by the system, never a seed that others know
    noise = torch.randn(head.state.shape, generator=generator, dtype=torch.float64)
    return replace(head, released=head.state + head.noise * noise)


def _require_count(head: CertifiedHead, left: LabelledFeatures, removed: LabelledFeatures) -> None:
    counts, width = (len(left.features), len(removed.features)), left.features.shape[1]
    if sum(counts) != head.count or width != head.state.shape[1]:
        raise DataError(
            f"The head has {head.count} images with {head.state.shape[1]} features; {counts[0]} left and "
            f"{counts[1]} removed, with {width} features, were given.",
            where="left, removed",
            fix="Give every image that is still in the head, once.",
        )


def _gradient_norm(head: CertifiedHead, left: LabelledFeatures, removed: LabelledFeatures) -> float:
    """The gradient's norm on all images passed in: at most the residual, if they are those of the training."""
    gradients = (
        head_gradient(head.state, data.features, signs_of(data.labels, len(head.state)), head.settings.strength)
        for data in (left, removed)
    )
    norm = float(sum(gradients, torch.zeros_like(head.state)).norm())
    if norm > max(head.residual, head.settings.budget):
        raise DataError(
            f"The head was not trained on these images: its gradient there is {norm:.3g}, "
            f"at most {head.residual:.3g} was expected.",
            where="left, removed",
            fix="Give the features and labels that the head was trained on, less those removed since.",
        )
    return norm


def _checked(data: LabelledFeatures, classes: int, *, where: str) -> LabelledFeatures:
    """The features in double precision; an error for whatever would void the bounds."""
    features, labels = data
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
    return LabelledFeatures(features, labels)
