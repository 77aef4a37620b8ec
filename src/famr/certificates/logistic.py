"""ℓ₂-regularised logistic regression, one problem a class, and what one Newton step leaves of its gradient.

    L(W) = Σ_c [ Σᵢ log(1 + exp(−y_ic·w_c·xᵢ)) + (λn/2)‖w_c‖² ]

with y_ic = +1 where xᵢ is of class c, else −1.

`features` X is (images, width) with rows no longer than 1, `signs` Y is (images, classes), `weights` W is
(classes, width), all in double precision. As in [Guo et al. 2020] λ counts once an image: n images weigh λn.

A Newton step Δ that undoes the gradient of the removed images leaves ∇L(W + Δ) = (what was there before) + R, and

    R_c = Σᵢ rᵢxᵢ,   rᵢ = ℓ'(zᵢ + δᵢ) − ℓ'(zᵢ) − ℓ''(zᵢ)δᵢ,   δ = XΔ_c,   |rᵢ| ≤ γδᵢ²/2

with γ the largest |ℓ'''|. From it come both bounds; norms of classes are joined as the norm of the stacked vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.errors import NumericsError

GAMMA = 1 / (6 * math.sqrt(3))
"""max |ℓ'''| of log(1 + e⁻ᶻ), at σ(z) = ½ ± 1/√12. The 1/4 often used is max ℓ'': safe, and 2.6 times as large."""

STEPS, HALVINGS = 100, 30
SOLVED = 1e-9
"""The gradient an image at which the solver must have arrived; it goes on as far as doubles allow."""


def signs_of(labels: Tensor, classes: int) -> Tensor:
    """+1 in the column of an image's class, −1 elsewhere.

    >>> signs_of(torch.tensor([0, 2]), 3)
    tensor([[ 1., -1., -1.],
            [-1., -1.,  1.]], dtype=torch.float64)
    """
    return 2 * F.one_hot(labels, classes).double() - 1


def loss(weights: Tensor, features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """L(W), as a scalar."""
    fit = F.softplus(-signs * (features @ weights.mT)).sum()
    return fit + 0.5 * strength * len(features) * weights.square().sum()


def gradient(weights: Tensor, features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """∇L(W), (classes, width). Over several sets of images it adds up, λ included."""
    slope = -signs * torch.sigmoid(-signs * (features @ weights.mT))  # (images, classes)
    return slope.mT @ features + strength * len(features) * weights


def hessian(weights: Tensor, features: Tensor, strength: float) -> Tensor:
    """∇²L of one class's problem at its `weights` (width,); labels do not enter."""
    chance = torch.sigmoid(features @ weights)
    curved = (chance * (1 - chance))[:, None] * features
    ridge = strength * len(features) * torch.eye(features.shape[1], dtype=features.dtype)
    return features.mT @ curved + ridge


def minimise(features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """The W where ∇L(W) = 0, by Newton's method to machine precision, class by class.

    >>> X, Y = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([[1.0], [-1.0]]).double()
    >>> w = float(minimise(X, Y, strength=0.1))
    >>> abs(0.1 * w - 1 / (1 + math.exp(w))) < 1e-15  # λw = σ(−w)
    True
    """
    return torch.cat([_minimise(features, signs[:, [c]], strength) for c in range(signs.shape[1])])


def _minimise(features: Tensor, signs: Tensor, strength: float) -> Tensor:
    """One class: Newton steps, halved until the gradient shrinks; once solved, whole steps as long as one helps."""
    weights = torch.zeros(1, features.shape[1], dtype=features.dtype)
    slope = gradient(weights, features, signs, strength)
    for _ in range(STEPS):
        step = _solve(hessian(weights[0], features, strength), slope[0])[None]
        solved = float(slope.norm()) <= SOLVED * len(features)
        for halving in range(1 if solved else HALVINGS):
            share = 0.5**halving
            there = weights - share * step
            left = gradient(there, features, signs, strength)
            if left.norm() < (1 - share / 4) * slope.norm():
                weights, slope = there, left
                break
        else:
            break
    if not float(slope.norm()) <= SOLVED * len(features):
        raise NumericsError(
            f"The head's logistic regression was not solved: its gradient is still {float(slope.norm()):.1e}.",
            fix="Raise the strength λ.",
        )
    return weights


def newton_step(weights: Tensor, left: Tensor, removed: Tensor, removed_signs: Tensor, strength: float) -> Tensor:
    """Δ_c = H_c⁻¹ Σ_removed (λw_c + ∇ℓ), H_c the Hessian on the images left [Guo et al. 2020]."""
    pull = gradient(weights, removed, removed_signs, strength)
    return torch.stack([_solve(hessian(w, left, strength), g) for w, g in zip(weights, pull, strict=True)])


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(vector[:, None], factor)[:, 0]


def worst_case_residual(weights: Tensor, removed: int, left: int, strength: float) -> float:
    """‖R‖ ≤ γm²(1 + λ‖w_c‖)²/(2λ²n) a class, whatever the images: m removed, n left [Guo et al. 2020, Thm. 1].

    An exact solution has λ‖w_c‖ ≤ 1, which gives 2γm²/(λ²n); the paper's 4γm²/(λ²n) takes the largest
    change of the Hessian along the step where its mean, half of it, is enough.

    >>> round(worst_case_residual(torch.tensor([[0.0]]), removed=1, left=100, strength=0.1) / GAMMA, 6)
    0.5
    """
    lengths = (1 + strength * weights.norm(dim=1)) * removed / (strength * left)  # ‖Δ_c‖ at most
    return float((GAMMA / 2 * left * lengths.square()).norm())


def data_residual(step: Tensor, left: Tensor) -> float:
    """‖R‖ ≤ (γ/2)·‖X‖₂·‖(XΔ_c)²‖₂ a class, from the images left [Guo et al. 2020, Cor. 1, sharpened].

    The paper's γ‖X‖₂‖Δ‖₂‖XΔ‖₂ is at least twice this, since |xᵢ·Δ| ≤ ‖Δ‖.
    """
    spread = torch.linalg.eigvalsh(left.mT @ left)[-1].clamp(min=0).sqrt()
    return float((GAMMA / 2 * spread * (left @ step.mT).square().norm(dim=0)).norm())


def exact_residual(weights: Tensor, step: Tensor, left: Tensor) -> float:
    """‖R‖ itself; labels do not enter."""
    before, along = left @ weights.mT, left @ step.mT
    chance = torch.sigmoid(before)
    remainder = torch.sigmoid(before + along) - chance - chance * (1 - chance) * along
    return float((remainder.mT @ left).norm())
