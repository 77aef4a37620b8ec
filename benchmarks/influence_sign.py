"""The sign of [FAMR, Eq. (7)]: softmax regression on the digits, samples removed, influence step against retraining.

    python -m benchmarks.influence_sign --output benchmarks/results/influence_sign-digits.json

The regression is ridge-regularised and solved to rounding error before and after the removal, so that retraining is
exact. The printed sign is a minus; removing data moves the minimiser by plus H⁻¹Σ∇ℓ, with H over the remaining data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import famr
from benchmarks.cells import log, parser_for, write_results
from famr.certificates.curvature import flat, gauss_newton_product, shaped
from famr.certificates.influence import influence_step, retained_curvature, summed_gradient
from famr.data.loaders import Batches, loader_batches
from famr.runs.folder import environment

RIDGE = 1.0
SIZES = (1, 3, 10, 30, 100, 300)
DRAWS = 5
SIGNS = {"corrected": 1.0, "printed": -1.0, "no step": 0.0}
CPU = torch.device("cpu")


def solve(module: nn.Linear, batches: Batches) -> Tensor:
    """argmin Σℓ + ½ρ‖θ‖² by Newton's method with the dense Hessian."""
    parameters = list(module.parameters())
    size = flat(parameters).numel()

    def losses() -> list[tuple[Tensor, Tensor]]:
        pairs = [(module(batch.images), batch.labels) for batch in batches(None)]
        return [(logits, F.cross_entropy(logits, labels, reduction="sum")) for logits, labels in pairs]

    for _ in range(30):
        weights = flat(parameters)
        gradient = sum((flat(torch.autograd.grad(loss, parameters)) for _, loss in losses()), RIDGE * weights)
        if float(gradient.norm()) < 1e-9:
            break
        product = gauss_newton_product(losses, parameters)  # of a linear model it is the Hessian
        matrix = torch.stack([product(unit) for unit in torch.eye(size, dtype=torch.float64)])
        step = torch.linalg.solve(matrix + RIDGE * torch.eye(size, dtype=torch.float64), gradient)
        set_weights(module, weights - step)
    return flat(parameters)


@torch.no_grad()
def set_weights(module: nn.Module, vector: Tensor) -> None:
    """Set all weights from one flat vector."""
    parameters = list(module.parameters())
    for parameter, part in zip(parameters, shaped(vector, parameters), strict=True):
        parameter.copy_(part)


def main() -> None:
    output = parser_for(__doc__).parse_args().output
    data = famr.open_data("digits")
    images = torch.stack([data.train.pixels(row, 1) for row in range(len(data.train))]).flatten(1).double() / 255
    images = F.avg_pool2d(images.reshape(len(images), 1, *data.train.pixels(0, 1).shape[1:]), 2).flatten(1)
    labels = data.train.targets
    cells: list[dict[str, Any]] = []
    draws = torch.Generator().manual_seed(0)
    module = nn.Linear(images.shape[1], len(data.labels)).double()
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    parameters = list(module.parameters())
    before = solve(module, loader_batches([(images, labels)], CPU))
    for size in SIZES:
        for draw in range(DRAWS):
            shuffled = torch.randperm(len(images), generator=draws)
            removed, left = shuffled[:size], shuffled[size:]
            forget, retain = (loader_batches([(images[part], labels[part])], CPU) for part in (removed, left))
            set_weights(module, before)
            gradient = summed_gradient(module, parameters, forget)
            step = influence_step(gradient, retained_curvature(module, parameters, retain, len(left)), RIDGE)
            truth = solve(module, retain) - before
            errors = {name: float((sign * step.x - truth).norm() / truth.norm()) for name, sign in SIGNS.items()}
            cells.append({"removed": size, "draw": draw, "relative_error": errors, "cg_residual": step.residual})
            log(f"{size} removed, draw {draw}: {errors}")
    facts = {"benchmark": "influence_sign-digits", "ridge": RIDGE, "environment": environment("cpu"), "cells": cells}
    write_results(output, facts)


if __name__ == "__main__":
    main()
