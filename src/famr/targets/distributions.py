"""What the model is to answer on the forget set: a distribution q an image, all of them through one KL(q ‖ p).

    uniform    1/C for every class: the paper's [FAMR, Eq. (2)]
    masked     the original's answer with the forgotten classes removed; for classes and concepts
    reference  the original's answer, as sure of the true class as it is of held-out images; for samples
    tempered   the original's answer, made as unsure as it is on held-out images; for samples without labels
    probe      the answer of a linear classifier in mid-network that never saw the style, see `probe`; for styles

A retrained model is not uniform on what it never saw. Of a class it never saw it is wrong about every image, and about
as unsure as of held-out images that it gets wrong: hence the temperature of `masked`. Of single samples it is as sure
as of other held-out images, and wrong about as many: hence the matched margins of `reference`. The last four do not
mark the forgotten images by their entropy.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy

Target = Literal["uniform", "masked", "reference", "tempered", "probe"]

COLDEST, HOTTEST = 1 / 64, 64.0


def tempered_target(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ): sharper below τ = 1, softer above.

    >>> tempered_target(torch.tensor([[0.0, 2.0]]), temperature=2.0)
    tensor([[0.2689, 0.7311]])
    """
    return torch.softmax(at_least_float32(logits) / temperature, dim=-1)


def without(logits: Tensor, forgotten: Tensor) -> Tensor:
    """Logits in which the forgotten classes (indices) can no longer be answered."""
    return at_least_float32(logits).index_fill(-1, forgotten, -torch.inf)


def masked_target(logits: Tensor, forgotten: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ) over the classes that are not forgotten.

    >>> masked_target(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([0]), temperature=1.0)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    return tempered_target(without(logits, forgotten), temperature)


def matching_temperature(logits: Tensor, wanted: float) -> float:
    """τ for which the mean entropy of softmax(z/τ) is `wanted`; the nearest possible τ where none is.

    The entropy grows with τ for each image, so bisection finds it.

    >>> round(matching_temperature(torch.tensor([[0.0, 1.0]]), wanted=float(entropy(torch.tensor([[0.0, 0.5]])))), 4)
    2.0
    """
    low, high = torch.tensor(COLDEST).log(), torch.tensor(HOTTEST).log()
    while (middle := (low + high) / 2) not in (low, high):  # until no number lies between
        if float(entropy(at_least_float32(logits) / middle.exp()).mean()) < wanted:
            low = middle
        else:
            high = middle
    return float(middle.exp())


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-odds of the true class, z_y − log Σ_{k≠y} exp z_k, of each image.

    >>> margins(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    logits = at_least_float32(logits)
    others = logits.scatter(-1, labels[:, None], -torch.inf).logsumexp(dim=-1)
    return logits.gather(-1, labels[:, None])[:, 0] - others


def reference_target(logits: Tensor, labels: Tensor, held_out: Tensor, overshoot: float = 0.0) -> Tensor:
    """The original's answers with the log-odds of the true class as `held_out` images have them, rank by rank.

    The least sure forget image gets the log-odds of the least sure held-out image, and so on up; none becomes surer
    than it was. The other classes keep their proportions. With an overshoot κ the log-odds go 1 + κ times as far: a
    short run stops before it has gone the whole way.

    >>> z = torch.tensor([[5.0, 0.0], [9.0, 0.0]])
    >>> reference_target(z, torch.tensor([0, 0]), held_out=torch.tensor([0.0, 0.0])).round(decimals=2)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    own = margins(logits, labels)
    ranks = (own.argsort().argsort().to(own) + 0.5) / len(own)
    wanted = torch.minimum(torch.quantile(held_out.to(own), ranks), own)
    changed = at_least_float32(logits).clone()
    changed[torch.arange(len(labels)), labels] += (1 + overshoot) * (wanted - own)
    return torch.softmax(changed, dim=-1)
