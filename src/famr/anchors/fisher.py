"""Hold each weight as firmly as the retained answers depend on it: the diagonal of the Fisher information."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch
from famr.engine.finite import Sums
from famr.engine.oom import part_size

MICRO_BATCH = 32
GRADIENT_NUMBERS = 2**27
"""Numbers of all the gradients held at once: half a gibibyte."""


@dataclass(frozen=True, eq=False)
class FisherAnchor:
    """A = ½ Σᵢ Fᵢ(θᵢ − θ₀ᵢ)². Needs retained images once, to take F."""

    original: Sequence[Tensor]
    fisher: Sequence[Tensor]

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """½ Σᵢ Fᵢ(θᵢ − θ₀ᵢ)²."""
        together = zip(parameters, self.original, self.fisher, strict=True)
        return 0.5 * torch.stack([(f * (p - p0).square()).sum() for p, p0, f in together]).sum()

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
        """Fᵢ(θᵢ − θ₀ᵢ), one parameter after another."""
        return (f * (p.detach() - p0) for p, p0, f in zip(parameters, self.original, self.fisher, strict=True))

    @torch.no_grad()
    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """gᵢ/(1 + sFᵢ)."""
        return shrunk(gradient, self.fisher, strength)


def shrunk(gradient: Sequence[Tensor], fisher: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
    """gᵢ/(1 + sFᵢ), of all weights at once: one by one they are hundreds of small operations.

    >>> shrunk([torch.tensor([6.0])], [torch.tensor([2.0])], strength=1.0)
    (tensor([2.]),)
    """
    if not gradient:
        return ()
    firm = torch._foreach_add(torch._foreach_mul(list(fisher), strength), 1)
    return torch._foreach_div(list(gradient), firm)


def draw_labels(log_p: Tensor, uniform: Tensor) -> Tensor:
    """A label for each answer: the class at which the running sum of probabilities passes `uniform`.

    >>> draw_labels(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0.6]))
    tensor([1])
    """
    passed = log_p.exp().cumsum(dim=-1) < uniform[..., None]
    return passed.sum(dim=-1).clamp(max=log_p.shape[-1] - 1)


def fisher_diagonal(
    module: nn.Module,
    logits: Callable[[object], Tensor],
    batches: Iterable[Batch],
    generator: torch.Generator,
    covered: Container[int] = (),
) -> list[Tensor]:
    """F = E_x E_{y ~ p(·|x)} (∂ log p(y|x)/∂θ)², with labels drawn from the model itself: the true Fisher.

    (With the data's labels it would be the "empirical Fisher", another thing.) `logits` reads them off what the
    module returned; parameters at the places `covered` are left out, with zeros in their stead.
    """
    every = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    names = [name for place, name in enumerate(every) if place not in covered]
    state = {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}

    def log_likelihood(weights: dict[str, Tensor], image: Tensor, uniform: Tensor) -> Tensor:
        output = torch.func.functional_call(module, {**state, **weights}, (image[None],))
        log_p = torch.log_softmax(logits(output)[0], dim=-1)
        return log_p.gather(0, draw_labels(log_p.detach(), uniform)[None])[0]

    gradients = torch.func.vmap(torch.func.grad(log_likelihood), in_dims=(None, 0, 0))
    weights = {name: state[name] for name in names}
    total = {name: torch.zeros_like(state[name]) for name in every}
    count = 0
    sums = Sums()
    if not names:
        return [total[name] for name in every]
    few = part_size(MICRO_BATCH, next(module.parameters()).device)
    at_once = max(1, min(few, GRADIENT_NUMBERS // sum(tensor.numel() for tensor in weights.values())))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the kernel that vmap knows
        for batch in batches:
            for images in torch.split(batch.images, at_once):
                uniform = torch.rand(len(images), generator=generator).to(images)
                for name, gradient in gradients(weights, images, uniform).items():
                    total[name] += gradient.square().sum(dim=0)
                count += len(images)
            sums.after(batch, (total[name] for name in names))
    sums.require_finite("Fisher information", {name: [total[name]] for name in names})
    return [total[name] / max(1, count) for name in every]
