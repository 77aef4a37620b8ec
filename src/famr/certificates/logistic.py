"""ℓ₂-regularised logistic regression, one problem a class, and what one Newton step leaves of its gradient.

    L(W) = Σ_c [ Σᵢ log(1 + exp(−y_ic·w_c·xᵢ)) + (λn/2)‖w_c‖² ]

with y_ic = +1 where xᵢ is of class c, else −1.

`features` X is (images, width) with rows no longer than 1, `signs` Y is (images, classes), `weights` W is
(classes, width), all in double precision. As in [Guo et al. 2020] each image adds λ: n images weigh λn.

A Newton step Δ that cancels the gradient of the removed images leaves ∇L(W + Δ) = (the gradient before) + R, and

    R_c = Σᵢ rᵢxᵢ,   rᵢ = ℓ'(zᵢ + δᵢ) − ℓ'(zᵢ) − ℓ''(zᵢ)δᵢ,   δ = XΔ_c,   |rᵢ| ≤ γδᵢ²/2

with γ the largest |ℓ'''|. Both bounds follow from it; the norms of the classes are joined as the norm of the stacked
vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.errors import NumericsError

GAMMA = 1 / (6 * math.sqrt(3))
"""γ = max |ℓ'''| of log(1 + e⁻ᶻ), at σ(z) = ½ ± 1/√12. The 1/4 often used is max ℓ'': safe, and 2.6 times as large."""

STEPS, HALVINGS = 100, 30
SOLVED = 1e-9
"""The gradient an image below which the problem counts as solved; the solver continues as far as doubles allow."""


def signs_of(labels: Tensor, classes: int) -> Tensor:
    """Y: +1 in the column of an image's class, −1 elsewhere.

    Args:
        labels: Class indices, (images,).
        classes: Number of classes.

    >>> signs_of(torch.tensor([0, 2]), 3)
    tensor([[ 1., -1., -1.],
            [-1., -1.,  1.]], dtype=torch.float64)
    """
    return 2 * F.one_hot(labels, classes).double() - 1


def head_loss(weights: Tensor, features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """L(W), a scalar.

    Args:
        weights: W.
        features: X.
        signs: Y.
        strength: λ.
    """
    fit = F.softplus(-signs * (features @ weights.mT)).sum()
    return fit + 0.5 * strength * len(features) * weights.square().sum()


def head_gradient(weights: Tensor, features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """∇L(W), (classes, width). Gradients of several sets of images add up, λ included.

    Args:
        weights: W.
        features: X.
        signs: Y.
        strength: λ.
    """
    derivative = -signs * torch.sigmoid(-signs * (features @ weights.mT))  # ∂L/∂z, (images, classes)
    return derivative.mT @ features + strength * len(features) * weights


def head_hessian(weights: Tensor, features: Tensor, strength: float) -> Tensor:
    """∇²L of one class, (width, width); it does not depend on the labels.

    Args:
        weights: w_c, (width,).
        features: X.
        strength: λ.
    """
    probability = torch.sigmoid(features @ weights)
    curved = (probability * (1 - probability))[:, None] * features
    ridge = strength * len(features) * torch.eye(features.shape[1], dtype=features.dtype)
    return features.mT @ curved + ridge


def solve_head(features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """The W with ∇L(W) = 0, by Newton's method to machine precision, class by class.

    Args:
        features: X.
        signs: Y.
        strength: λ.

    Raises:
        NumericsError: The gradient does not become small enough.

    >>> X, Y = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([[1.0], [-1.0]]).double()
    >>> w = float(solve_head(X, Y, strength=0.1))
    >>> abs(0.1 * w - 1 / (1 + math.exp(w))) < 1e-15  # λw = σ(−w)
    True
    """
    return torch.cat([_solve_class(features, signs[:, [c]], strength) for c in range(signs.shape[1])])


def _solve_class(features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """One class: Newton steps, halved until the gradient shrinks; once solved, whole steps as long as one helps."""
    weights = torch.zeros(1, features.shape[1], dtype=features.dtype)
    gradient = head_gradient(weights, features, signs, strength)
    for _ in range(STEPS):
        step = _solve(head_hessian(weights[0], features, strength), gradient[0])[None]
        solved = float(gradient.norm()) <= SOLVED * len(features)
        for halving in range(1 if solved else HALVINGS):
            share = 0.5**halving
            next_weights = weights - share * step
            next_gradient = head_gradient(next_weights, features, signs, strength)
            if next_gradient.norm() < (1 - share / 4) * gradient.norm():
                weights, gradient = next_weights, next_gradient
                break
        else:
            break
    if not float(gradient.norm()) <= SOLVED * len(features):
        raise NumericsError(
            f"The head's logistic regression was not solved: its gradient is still {float(gradient.norm()):.1e}.",
            fix="Raise the strength λ.",
        )
    return weights


def newton_step(weights: Tensor, left: Tensor, removed: Tensor, removed_signs: Tensor, strength: float) -> Tensor:
    """Δ_c = H_c⁻¹ Σ_removed (λw_c + ∇ℓ), H_c the Hessian on the remaining images [Guo et al. 2020].

    Args:
        weights: W.
        left: X of the remaining images.
        removed: X of the removed images.
        removed_signs: Y of the removed images.
        strength: λ.
    """
    gradients = head_gradient(weights, removed, removed_signs, strength)
    return torch.stack([_solve(head_hessian(w, left, strength), g) for w, g in zip(weights, gradients, strict=True)])


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(vector[:, None], factor)[:, 0]


def worst_case_residual(weights: Tensor, removed: int, left: int, strength: float) -> float:
    """‖R‖ ≤ γm²(1 + λ‖w_c‖)²/(2λ²n) a class, whatever the images [Guo et al. 2020, Thm. 1].

    An exact solution has λ‖w_c‖ ≤ 1, which gives 2γm²/(λ²n); the paper's 4γm²/(λ²n) takes the largest change of the
    Hessian along the step where its mean, half of it, is enough.

    Args:
        weights: W.
        removed: m.
        left: n, after the removal.
        strength: λ.

    >>> round(worst_case_residual(torch.tensor([[0.0]]), removed=1, left=100, strength=0.1) / GAMMA, 6)
    0.5
    """
    lengths = (1 + strength * weights.norm(dim=1)) * removed / (strength * left)  # ‖Δ_c‖ at most
    return float((GAMMA / 2 * left * lengths.square()).norm())


def data_residual(step: Tensor, left: Tensor) -> float:
    """‖R‖ ≤ (γ/2)·‖X‖₂·‖(XΔ_c)²‖₂ a class, from the remaining images [Guo et al. 2020, Cor. 1, sharpened].

    The paper's γ‖X‖₂‖Δ‖₂‖XΔ‖₂ is at least twice this, since |xᵢ·Δ| ≤ ‖Δ‖.

    Args:
        step: Δ.
        left: X of the remaining images.
    """
    norm = torch.linalg.eigvalsh(left.mT @ left)[-1].clamp(min=0).sqrt()  # ‖X‖₂
    return float((GAMMA / 2 * norm * (left @ step.mT).square().norm(dim=0)).norm())


def exact_residual(weights: Tensor, step: Tensor, left: Tensor) -> float:
    """‖R‖ itself; it does not depend on the labels.

    Args:
        weights: W, before the step.
        step: Δ.
        left: X of the remaining images.
    """
    before, along = left @ weights.mT, left @ step.mT
    probability = torch.sigmoid(before)
    remainder = torch.sigmoid(before + along) - probability - probability * (1 - probability) * along
    return float((remainder.mT @ left).norm())
