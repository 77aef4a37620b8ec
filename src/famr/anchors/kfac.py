"""Hold each layer in its own metric: the Fisher information of a layer as a Kronecker product, A ⊗ G.

For a layer s = W ã (ã its input with a 1 for the bias) the Fisher information of W is about E[ã ãᵀ] ⊗ E[g gᵀ], with
g the gradient in s of log p(y|x), y drawn from the model [K-FAC]. A layer that is used at T places (tokens, pixels)
counts T times, places taken as independent. Unlike the diagonal this sees directions: a change of W that the retained
inputs do not excite costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.anchors.fisher import draw_labels, shrunk
from famr.data.loaders import Batch
from famr.engine.finite import Sums
from famr.engine.oom import part_size
from famr.errors import NumericsError

MICRO_BATCH = 64
RIDGES = (0.0, 1e-12, 1e-9)
"""Shares of the mean eigenvalue that are added in turn where eigenvectors are not found."""
LARGEST = 4096
"""Inputs of a layer above which its matrix A would take longer than everything else: it gets the diagonal instead."""

SPECTRA = ("a", "U", "g", "V")
"""The tensors of `Spectra`."""


@dataclass(frozen=True, eq=False)
class Spectra:
    """The metric of one layer, A = U diag(a) Uᵀ and G = V diag(g) Vᵀ; where its weight and bias stand among the
    parameters."""

    weight: int
    bias: int | None
    a: Tensor  # (inputs [+ 1],)
    U: Tensor  # (inputs [+ 1], inputs [+ 1])
    g: Tensor  # (outputs,)
    V: Tensor  # (outputs, outputs)

    def times(self, matrix: Tensor) -> Tensor:
        """G M A."""
        return self.V @ ((self.V.T @ matrix @ self.U) * (self.g[:, None] * self.a)) @ self.U.T

    @property
    def spectra(self) -> Spectra:
        """It is there."""
        return self

    def to(self, device: torch.device | str) -> Spectra:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in SPECTRA})


@dataclass(frozen=True, eq=False)
class Factors:
    """The same metric by its two matrices."""

    weight: int
    bias: int | None
    A: Tensor  # (inputs [+ 1], inputs [+ 1])
    G: Tensor  # (outputs, outputs)

    def times(self, matrix: Tensor) -> Tensor:
        """G M A."""
        return self.G @ matrix @ self.A

    @cached_property
    def spectra(self) -> Spectra:
        """In eigenvalues and eigenvectors, which take a while to find."""
        return Spectra(self.weight, self.bias, *_eigh(self.A), *_eigh(self.G))


def covered(layers: Sequence[Factors | Spectra]) -> set[int]:
    """The places of their weights and biases."""
    return {place for layer in layers for place in (layer.weight, layer.bias) if place is not None}


class Alike:
    """Layers of one shape, solved together: a small product keeps a GPU waiting, many at once do not."""

    def __init__(self, layers: Sequence[Factors | Spectra]) -> None:
        self.layers = layers
        every = [[getattr(layer.spectra, name) for layer in layers] for name in SPECTRA]
        self._a, self._U, self._g, self._V = (each[0][None] if len(each) == 1 else torch.stack(each) for each in every)

    def solved(self, matrices: Tensor, strength: float) -> Tensor:
        """(I + s·A⊗G)⁻¹ M of each layer, exactly."""
        turned = self._V.mT @ matrices @ self._U  # M in the eigenvectors
        return self._V @ (turned / (1 + strength * self._g[:, :, None] * self._a[:, None, :])) @ self._U.mT


class Metrics(NamedTuple):
    """What one pass over images finds."""

    layers: list[Factors]
    diagonals: dict[int, Tensor]
    """Diagonal Fisher information of layer normalisations, by the places of scale and shift among the parameters."""


@dataclass(frozen=True, eq=False)
class KFACAnchor:
    """A = ½ Σ_layers tr(ΔWᵀ G ΔW A) + ½ Σ_rest Fᵢ Δᵢ². Needs retained images once, to take the factors."""

    original: Sequence[Tensor]
    layers: Sequence[Factors | Spectra]
    rest: Sequence[Tensor]
    """Diagonal Fisher information of the parameters no layer covers; zero for the others."""

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Half the squared length of Δ in this metric."""
        pulls = self.gradient(parameters)
        together = zip(parameters, self.original, pulls, strict=True)
        return 0.5 * torch.stack([((p - p0) * pull).sum() for p, p0, pull in together]).sum()

    @torch.no_grad()
    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """G ΔW A for each layer, F ⊙ Δ for the rest."""
        moved = [p - p0 for p, p0 in zip(parameters, self.original, strict=True)]
        pulls = [f * delta for f, delta in zip(self.rest, moved, strict=True)]
        for layer in self.layers:
            _put(pulls, layer, layer.times(_take(moved, layer)))
        return pulls

    @torch.no_grad()
    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(I + s·A⊗G)⁻¹ g, exactly, in the eigenvectors of A and G."""
        found, alone = list(gradient), self._alone
        divided = shrunk([gradient[place] for place in alone], [self.rest[place] for place in alone], strength)
        for place, each in zip(alone, divided, strict=True):
            found[place] = each
        for alike in self._alike:
            solved = alike.solved(torch.stack([_take(gradient, layer) for layer in alike.layers]), strength)
            for layer, matrix in zip(alike.layers, solved, strict=True):
                _put(found, layer, matrix)
        return found

    def find_eigenvectors(self) -> None:
        """What `precondition` needs and keeps, which takes a while; without it the first call finds it."""
        self._alike  # noqa: B018

    @cached_property
    def _alone(self) -> list[int]:
        """The places of the parameters that no layer covers."""
        held = covered(self.layers)
        return [place for place in range(len(self.original)) if place not in held]

    @cached_property
    def _alike(self) -> list[Alike]:
        """The layers by their shapes."""
        shapes: dict[tuple[int, ...], list[Factors | Spectra]] = {}
        for layer in self.layers:
            shapes.setdefault(tuple(_take(self.original, layer).shape), []).append(layer)
        return [Alike(layers) for layers in shapes.values()]


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Of a matrix that is positive up to rounding. In double precision: single fails to converge on low ranks.

    Double may fail there too, as where images leave most inputs of a layer at zero; a little more on the diagonal,
    far below what the images can tell, helps.
    """
    place = (matrix.cpu() if matrix.device.type == "mps" else matrix).double()  # which has no double precision
    for share in RIDGES:
        more = torch.diag((share * place.diagonal().mean()).expand(len(place)))
        try:
            values, vectors = torch.linalg.eigh(place + more)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        return values.clamp(min=0).to(matrix), vectors.to(matrix)
    raise NumericsError(
        "The Fisher information of a layer has no eigenvectors that could be found.",
        where=f"anchor kfac, a matrix of {len(matrix)} rows",
        fix="Use --anchor fisher or l2. Nothing was written; the original is unchanged.",
    )


def _take(tensors: Sequence[Tensor], layer: Factors | Spectra) -> Tensor:
    """A layer's weight, and its bias as one more column: (outputs, inputs [+ 1])."""
    weight = tensors[layer.weight].flatten(1)
    return weight if layer.bias is None else torch.cat([weight, tensors[layer.bias][:, None]], dim=1)


def _put(tensors: list[Tensor], layer: Factors | Spectra, matrix: Tensor) -> None:
    """The inverse of `_take`, in place."""
    shape = tensors[layer.weight].shape
    if layer.bias is not None:
        tensors[layer.bias] = matrix[:, -1]
        matrix = matrix[:, :-1]
    tensors[layer.weight] = matrix.reshape(shape)


def kfac_factors(
    module: nn.Module, logits: Callable[[object], Tensor], batches: Iterable[Batch], generator: torch.Generator
) -> Metrics:
    """A and G of every linear and convolutional layer that was used, from the network's own draws of labels.

    Layer normalisations come on the way: they have two numbers a feature, whose gradients image by image are at hand.
    """
    index = {id(p): place for place, p in enumerate(p for p in module.parameters() if p.requires_grad)}
    layers = [
        layer
        for layer in module.modules()
        if _is_covered(layer) and id(layer.weight) in index and (layer.bias is None or id(layer.bias) in index)
    ]
    norms = [
        layer
        for layer in module.modules()
        if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1 and layer.bias is not None
        if id(layer.weight) in index and id(layer.bias) in index
    ]
    totals: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    squares: dict[nn.LayerNorm, Tensor] = {}
    used: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        used.setdefault(layer, []).append((inputs[0].detach(), output))

    handles = [layer.register_forward_hook(keep) for layer in (*layers, *norms)]
    count = 0
    sums = Sums()
    try:
        for batch in batches:
            for images in torch.split(batch.images, part_size(MICRO_BATCH, batch.images.device)):
                used.clear()
                log_p = torch.log_softmax(logits(module(images)), dim=-1)
                uniform = torch.rand(len(images), generator=generator).to(log_p)
                likelihood = log_p.gather(-1, draw_labels(log_p.detach(), uniform)[:, None]).sum()
                calls = [(layer, call) for layer, found in used.items() for call in found]
                gradients = torch.autograd.grad(likelihood, [output for _, (_, output) in calls])
                if not count:
                    norms = [norm for norm in norms if _is_plain(norm, used.get(norm, []), len(images))]
                of_images: dict[nn.LayerNorm, Tensor] = {}
                for (layer, (inputs, _)), gradient in zip(calls, gradients, strict=True):
                    if isinstance(layer, nn.LayerNorm):
                        if layer in norms:
                            of_images[layer] = of_images.get(layer, 0.0) + _per_image(layer, inputs, gradient)
                        continue
                    a, g = _rows(layer, inputs, gradient)  # (rows, inputs [+ 1]), (rows, outputs)
                    per_image = len(a) / len(images)
                    A, G = totals.get(layer, (0.0, 0.0))
                    totals[layer] = (A + a.T @ a / per_image, G + g.T @ g)
                for norm, each in of_images.items():
                    squares[norm] = squares.get(norm, 0.0) + each.square().sum(dim=1)
                count += len(images)
            sums.after(batch, (*(factor for pair in totals.values() for factor in pair), *squares.values()))
    finally:
        for handle in handles:
            handle.remove()
    names = {layer: name for name, layer in module.named_modules()}
    found: dict[nn.Module, tuple[Tensor, ...]] = {**totals}
    found.update((norm, (both,)) for norm, both in squares.items())
    sums.require_finite("Fisher information", {names[layer]: each for layer, each in found.items()})
    return Metrics(
        [
            Factors(
                index[id(layer.weight)], None if layer.bias is None else index[id(layer.bias)], A / count, G / count
            )
            for layer, (A, G) in totals.items()
        ],
        {
            index[id(parameter)]: each / count
            for norm, both in squares.items()
            for parameter, each in zip((norm.weight, norm.bias), both, strict=True)
        },
    )


def _is_plain(norm: nn.LayerNorm, calls: Sequence[tuple[Tensor, Tensor]], images: int) -> bool:
    """Whether it normalises over the last dimension, with the images along the first; some libraries' do not."""
    for inputs, output in calls:
        if len(inputs) != images or inputs.ndim < 2 or inputs.shape[-1] != norm.normalized_shape[0]:
            return False
        again = F.layer_norm(inputs, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        if not torch.allclose(output, again, rtol=1e-3, atol=1e-3):
            return False
    return True


def _per_image(norm: nn.LayerNorm, inputs: Tensor, gradient: Tensor) -> Tensor:
    """The gradients of scale and shift of each image: (2, images, features)."""
    unit = F.layer_norm(inputs, norm.normalized_shape, None, None, norm.eps)
    both = torch.stack([gradient * unit, gradient])
    return both.reshape(2, len(inputs), -1, inputs.shape[-1]).sum(dim=2)


def _is_covered(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and layer.weight[0].numel() <= LARGEST
    return isinstance(layer, nn.Linear) and layer.in_features <= LARGEST


def _rows(layer: nn.Module, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's inputs and the gradients of its outputs, one row a place where it is used."""
    if isinstance(layer, nn.Conv2d):
        padding = (int(layer.padding[0]), int(layer.padding[1]))
        patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)  # (batch, inputs, places)
        rows, gradients = patches.mT.flatten(0, 1), gradient.flatten(2).mT.flatten(0, 1)
    else:
        rows, gradients = inputs.flatten(0, -2), gradient.flatten(0, -2)
    if layer.bias is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    return rows, gradients
