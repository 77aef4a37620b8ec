"""Fisher information of a network on some images: its diagonal, and a Kronecker product A ⊗ G a layer [K-FAC].

For a layer s = W ã (ã is its input with a 1 for the bias) the Fisher information of W is about E[ã ãᵀ] ⊗ E[g gᵀ], where
g is the gradient of log p(y|x) in s. A layer that is used at T positions (tokens, pixels) counts T times; the positions
are taken as independent. Labels y are drawn from the model itself; the data's labels would give the empirical Fisher.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.data.loaders import Batch
from famr.engine.finite import Sums
from famr.engine.oom import derivative_batch_size
from famr.errors import NumericsError

DIAGONAL_BATCH = 32
"""Images whose gradients are computed one by one at a time; more where memory is free."""
KFAC_BATCH = 64
"""Images of a backward pass for A and G; more where memory is free."""
GRADIENT_NUMBERS = 2**27
"""Numbers of all per-image gradients in memory at a time: half a gibibyte."""
LARGEST_INPUT = 4096
"""Inputs of a layer above which A would take longer than everything else: it gets the diagonal instead."""
RIDGES = (0.0, 1e-12, 1e-9)
"""Shares of the mean eigenvalue that are added to the diagonal in turn where LAPACK finds no eigenvectors."""
EIGEN_TENSORS = ("a", "U", "g", "V")
"""The tensors of `LayerFisher`."""

Logits = Callable[[object], Tensor]
"""Reads the logits off what a module returned."""


@dataclass(frozen=True, eq=False)
class LayerFisher:
    """Fisher information A ⊗ G of one layer by its eigenvectors: A = U diag(a) Uᵀ, G = V diag(g) Vᵀ.

    Attributes:
        weight: Index of the layer's weight among the parameters.
        bias: Index of its bias; None without one.
        a: (inputs [+ 1],).
        U: (inputs [+ 1], inputs [+ 1]).
        g: (outputs,).
        V: (outputs, outputs).
    """

    weight: int
    bias: int | None
    a: Tensor
    U: Tensor
    g: Tensor
    V: Tensor

    def times(self, matrix: Tensor) -> Tensor:
        """G M A.

        Args:
            matrix: M, (outputs, inputs [+ 1]).
        """
        return self.V @ ((self.V.T @ matrix @ self.U) * (self.g[:, None] * self.a)) @ self.U.T

    def solve(self, matrix: Tensor, strength: float) -> Tensor:
        """(I + s·A⊗G)⁻¹ M, exactly.

        Args:
            matrix: M, (outputs, inputs [+ 1]).
            strength: s.
        """
        rotated = self.V.T @ matrix @ self.U
        return self.V @ (rotated / (1 + strength * self.g[:, None] * self.a)) @ self.U.T

    def to(self, device: torch.device | str) -> LayerFisher:
        """The same on a device.

        Args:
            device: Any device.
        """
        return replace(self, **{name: getattr(self, name).to(device) for name in EIGEN_TENSORS})


@dataclass(frozen=True, eq=False)
class FisherStatistics:
    """Fisher information of all trainable parameters, as a sketch stores it.

    Attributes:
        names: The parameters, in the order of `diagonal` and of the indices in `layers`.
        diagonal: One tensor a parameter.
        layers: One entry a linear or convolutional layer.
    """

    names: Sequence[str]
    diagonal: Sequence[Tensor]
    layers: Sequence[LayerFisher]

    def of(self, names: Sequence[str], device: torch.device) -> FisherStatistics:
        """The part that concerns some parameters, on a device.

        Args:
            names: Names of these parameters; the indices of the result count among them.
            device: Any device.
        """
        diagonals = dict(zip(self.names, self.diagonal, strict=True))
        index = {self.names.index(name): new for new, name in enumerate(names)}
        layers = [
            replace(
                layer.to(device), weight=index[layer.weight], bias=None if layer.bias is None else index[layer.bias]
            )
            for layer in self.layers
            if layer.weight in index and (layer.bias is None or layer.bias in index)
        ]
        return FisherStatistics(names, [diagonals[name].to(device) for name in names], layers)


def covered(layers: Iterable[LayerFisher]) -> set[int]:
    """Indices of the parameters of some layers.

    Args:
        layers: The layers.
    """
    return {index for layer in layers for index in (layer.weight, layer.bias) if index is not None}


def draw_labels(log_p: Tensor, uniform: Tensor) -> Tensor:
    """A label for each prediction: the class at which the running sum of probabilities passes `uniform`.

    Args:
        log_p: (…, classes).
        uniform: (…,), in [0, 1).

    >>> draw_labels(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0.6]))
    tensor([1])
    """
    passed = log_p.exp().cumsum(dim=-1) < uniform[..., None]
    return passed.sum(dim=-1).clamp(max=log_p.shape[-1] - 1)


def fisher_diagonal(
    module: nn.Module,
    logits: Logits,
    batches: Iterable[Batch],
    generator: torch.Generator,
    skip: Container[int] = (),
) -> list[Tensor]:
    """F = E_x E_{y ~ p(·|x)} (∂ log p(y|x)/∂θ)² of the trainable parameters.

    Args:
        module: The network in evaluation mode.
        logits: Reads the logits off what it returned.
        batches: Images.
        generator: Draws the labels, on the CPU.
        skip: Indices of parameters that are left out; they get zeros.

    Raises:
        NumericsError: A sum is not finite.
    """
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    names = [name for index, name in enumerate(trainable) if index not in skip]
    state = {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}

    def log_likelihood(weights: dict[str, Tensor], image: Tensor, uniform: Tensor) -> Tensor:
        output = torch.func.functional_call(module, {**state, **weights}, (image[None],))
        log_p = torch.log_softmax(logits(output)[0], dim=-1)
        return log_p.gather(0, draw_labels(log_p.detach(), uniform)[None])[0]

    gradients = torch.func.vmap(torch.func.grad(log_likelihood), in_dims=(None, 0, 0))
    weights = {name: state[name] for name in names}
    total = {name: torch.zeros_like(state[name]) for name in trainable}
    count = 0
    sums = Sums()
    if not names:
        return [total[name] for name in trainable]
    size = derivative_batch_size(DIAGONAL_BATCH, next(module.parameters()).device)
    size = max(1, min(size, GRADIENT_NUMBERS // sum(tensor.numel() for tensor in weights.values())))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the one that vmap supports
        for batch in batches:
            for images in torch.split(batch.images, size):
                uniform = torch.rand(len(images), generator=generator).to(images)
                for name, gradient in gradients(weights, images, uniform).items():
                    total[name] += gradient.square().sum(dim=0)
                count += len(images)
            sums.after(batch, (total[name] for name in names))
    sums.require_finite("Fisher information", {name: [total[name]] for name in names})
    return [total[name] / max(1, count) for name in trainable]


class KFACStatistics(NamedTuple):
    """Fisher information from one pass over images.

    Attributes:
        layers: A ⊗ G of each linear or convolutional layer.
        norms: Diagonal Fisher information of layer normalisations, by the indices of scale and shift.
    """

    layers: list[LayerFisher]
    norms: dict[int, Tensor]


def kfac_statistics(
    module: nn.Module, logits: Logits, batches: Iterable[Batch], generator: torch.Generator
) -> KFACStatistics:
    """A and G of every linear and convolutional layer that is used.

    The same pass gives the diagonal of layer normalisations, whose per-image gradients have a closed form.

    Args:
        module: The network in evaluation mode.
        logits: Reads the logits off what it returned.
        batches: Images.
        generator: Draws the labels, on the CPU.

    Raises:
        NumericsError: A sum is not finite, or LAPACK finds no eigenvectors of it.
    """
    index = {id(p): i for i, p in enumerate(p for p in module.parameters() if p.requires_grad)}
    layers = [layer for layer in module.modules() if _has_factors(layer) and _is_trainable(layer, index)]
    norms = [layer for layer in module.modules() if _is_vector_norm(layer) and _is_trainable(layer, index)]
    factors: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    squares: dict[nn.Module, Tensor] = {}
    count, sums = 0, Sums()
    with _recorded_calls([*layers, *norms]) as calls:
        for batch in batches:
            for images in torch.split(batch.images, derivative_batch_size(KFAC_BATCH, batch.images.device)):
                calls.clear()
                log_p = torch.log_softmax(logits(module(images)), dim=-1)
                uniform = torch.rand(len(images), generator=generator).to(log_p)
                likelihood = log_p.gather(-1, draw_labels(log_p.detach(), uniform)[:, None]).sum()
                gradients = torch.autograd.grad(likelihood, [output for _, _, output in calls])
                if not count:
                    norms = [norm for norm in norms if _is_over_features(norm, calls, len(images))]
                _add_batch(factors, squares, calls, gradients, norms, len(images))
                count += len(images)
            sums.after(batch, (*(factor for pair in factors.values() for factor in pair), *squares.values()))
    names = {layer: name for name, layer in module.named_modules()}
    totals = {**factors, **{norm: (both,) for norm, both in squares.items()}}
    sums.require_finite("Fisher information", {names[layer]: tensors for layer, tensors in totals.items()})
    return KFACStatistics(
        [_layer_fisher(layer, A / count, G / count, index) for layer, (A, G) in factors.items()],
        {
            index[id(parameter)]: square / count
            for norm, both in squares.items()
            for parameter, square in zip((norm.weight, norm.bias), both, strict=True)
        },
    )


Call = tuple[nn.Module, Tensor, Tensor]
"""A layer, its input and its output."""


@contextmanager
def _recorded_calls(layers: Iterable[nn.Module]) -> Iterator[list[Call]]:
    calls: list[Call] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((layer, inputs[0].detach(), output))

    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _add_batch(
    factors: dict[nn.Module, tuple[Tensor, Tensor]],
    squares: dict[nn.Module, Tensor],
    calls: Sequence[Call],
    gradients: Sequence[Tensor],
    norms: Sequence[nn.Module],
    images: int,
) -> None:
    """Add the terms of one batch: Σ ã ãᵀ and Σ g gᵀ of each layer, Σ g² of each normalisation's scale and shift."""
    per_image: dict[nn.Module, Tensor] = {}
    for (layer, inputs, _), gradient in zip(calls, gradients, strict=True):
        if isinstance(layer, nn.LayerNorm):
            if layer in norms:
                per_image[layer] = per_image.get(layer, 0.0) + _norm_gradients(layer, inputs, gradient)
            continue
        rows, outputs = _rows(layer, inputs, gradient)  # (rows, inputs [+ 1]), (rows, outputs)
        A, G = factors.get(layer, (0.0, 0.0))
        factors[layer] = (A + rows.T @ rows / (len(rows) / images), G + outputs.T @ outputs)
    for norm, gradient in per_image.items():
        squares[norm] = squares.get(norm, 0.0) + gradient.square().sum(dim=1)


def _layer_fisher(layer: nn.Module, A: Tensor, G: Tensor, index: Mapping[int, int]) -> LayerFisher:
    (a, U), (g, V) = _eigh(A), _eigh(G)
    bias = None if layer.bias is None else index[id(layer.bias)]
    return LayerFisher(index[id(layer.weight)], bias, a, U, g, V)


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a matrix that is positive up to rounding.

    In double precision, as single fails on matrices of low rank. Double may fail there too, e.g. where most inputs of a
    layer are zero on all images; then a ridge is added that is far below the precision of the statistics.
    """
    double = (matrix.cpu() if matrix.device.type == "mps" else matrix).double()  # MPS has no double precision
    for share in RIDGES:
        ridge = torch.diag((share * double.diagonal().mean()).expand(len(double)))
        try:
            values, vectors = torch.linalg.eigh(double + ridge)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        return values.clamp(min=0).to(matrix), vectors.to(matrix)
    raise NumericsError(
        "No eigenvectors of the Fisher information of a layer could be found.",
        where=f"anchor kfac, a matrix of {len(matrix)} rows",
        fix="Use --anchor fisher or l2. Nothing was written; the original is unchanged.",
    )


def _is_trainable(layer: nn.Module, index: Mapping[int, int]) -> bool:
    return id(layer.weight) in index and (layer.bias is None or id(layer.bias) in index)


def _is_vector_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1 and layer.bias is not None


def _is_over_features(norm: nn.Module, calls: Sequence[Call], images: int) -> bool:
    """Whether it normalises over the last dimension, with the images along the first; not in every library."""
    assert isinstance(norm, nn.LayerNorm)
    for layer, inputs, output in calls:
        if layer is not norm:
            continue
        if len(inputs) != images or inputs.ndim < 2 or inputs.shape[-1] != norm.normalized_shape[0]:
            return False
        expected = F.layer_norm(inputs, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        if not torch.allclose(output, expected, rtol=1e-3, atol=1e-3):
            return False
    return True


def _norm_gradients(norm: nn.LayerNorm, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Gradients of scale and shift of each image: (2, images, features)."""
    unit = F.layer_norm(inputs, norm.normalized_shape, None, None, norm.eps)
    both = torch.stack([gradient * unit, gradient])
    return both.reshape(2, len(inputs), -1, inputs.shape[-1]).sum(dim=2)


def _has_factors(layer: nn.Module) -> bool:
    """Whether A and G of a layer can be computed."""
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and layer.weight[0].numel() <= LARGEST_INPUT
    return isinstance(layer, nn.Linear) and layer.in_features <= LARGEST_INPUT


def _rows(layer: nn.Module, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's inputs and the gradients of its outputs, one row a position where it is used."""
    if isinstance(layer, nn.Conv2d):
        padding = (int(layer.padding[0]), int(layer.padding[1]))
        patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
        rows, gradients = patches.mT.flatten(0, 1), gradient.flatten(2).mT.flatten(0, 1)  # (batch · positions, inputs)
    else:
        rows, gradients = inputs.flatten(0, -2), gradient.flatten(0, -2)
    if layer.bias is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    return rows, gradients
