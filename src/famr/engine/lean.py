"""The same gradients with less traffic: what the library's kernels do slowly on a GPU.

- The gradient of a bias is a sum over thousands of rows: first those of each image, then over the images, so that
  there is work for all of the device. Behind a GELU of `kernels` it has been summed on the way.
- So are those of the scale and shift of a layer normalisation, where each row has a weight: one matrix product.
- Queries, keys and values are cut out of one tensor; their gradients go straight to where they were cut from, not
  into a stack that is then copied into place.
- Layer normalisation and GELU are done by `kernels`, where those are ready.
- In x + f(norm(x)) two gradients of x have to be added up. What goes around the normalisation takes its way through it,
  so that its gradient comes by where the other is made, which takes it along.
- A convolution whose patches do not overlap, as the first layer of a ViT, is one matrix product; the library reorders
  the images for it several times.

While the context lasts, networks of any library use them: they stand in for `F.linear`, `F.layer_norm`, `F.gelu`,
`F.conv2d`, `unbind` and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from famr.engine.bf16 import halved
from famr.engine.devices import Precision, autocast
from famr.engine.kernels import Gelu, LayerNorms
from famr.engine.kernels.compiling import fitting, ready
from famr.engine.kernels.gelu import serves


def lean_pays(device: torch.device) -> bool:
    """Whether the library's own ways are the slower ones there."""
    return device.type == "cuda"


@contextmanager
def one_pass(
    module: nn.Module, device: torch.device, precision: Precision, *, lean: bool, round_all: bool = True
) -> Iterator[None]:
    """A forward pass in the precision of a run, where wanted by the leaner ways; in bf16 then throughout (`half`).

    `round_all`: not where what is between the layers is wanted in full precision.
    """
    with ExitStack() as ways:
        ways.enter_context(autocast(device, precision))
        if lean and precision == "bf16" and round_all:
            ways.enter_context(halved(module))
        if lean:  # last: it hears of whatever torch is asked for, were it the type of a weight
            ways.enter_context(LeanBackward())
        yield


SUMS = (torch.Tensor.add, torch.add)


class LeanBackward(TorchFunctionMode):
    """The context."""

    lasting: ClassVar[int] = 0
    """How many of them last."""

    def __init__(self) -> None:
        super().__init__()
        self._around: dict[int, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> LeanBackward:
        LeanBackward.lasting += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        LeanBackward.lasting -= 1
        self._around.clear()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Whatever torch is asked for, while the context lasts."""
        named = dict(kwargs or {})
        if func is F.layer_norm:
            out, around = layer_norm(*args, **named)
            if around is not None:
                x: Tensor = args[0] if args else named["input"]
                self._around[id(x)] = x, around  # held, so that no other tensor gets its number
            return out
        if func in SUMS and self._around:
            args = [self._around.pop(id(each), (None, each))[1] for each in args]
        if func is F.conv2d:
            return conv2d(*args, **named)
        if torch.is_grad_enabled():
            if func is F.linear:
                return linear(*args, **named)
            if func is F.gelu:
                return gelu(*args, **named)
            if func is torch.Tensor.unbind and (*args[1:], *named.values()) in ((), (0,)):
                found: tuple[Tensor, ...] = _Unbind.apply(args[0])
                return found
        return func(*args, **named)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, in the precision that autocast wants."""
    if bias is None or not bias.requires_grad:
        return F.linear(input, weight, bias)
    kind = input.device.type
    if torch.is_autocast_enabled(kind):
        wanted = torch.get_autocast_dtype(kind)
        input, weight, bias = input.to(wanted), weight.to(wanted), bias.to(wanted)
    out: Tensor = _Linear.apply(input, weight, bias)
    return out


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None]:
    """Over the last dimension; under autocast in float32, as the library has it, unless all of it is in half.

    Second, the input for whoever adds something to it, if its gradient is wanted.
    """
    if weight is None or bias is None or len(normalized_shape) != 1:
        return F.layer_norm(input, normalized_shape, weight, bias, eps), None
    kind = input.device.type
    choosing = torch.is_autocast_enabled(kind) and input.dtype != weight.dtype
    if not (weight.requires_grad and torch.is_grad_enabled()):
        with torch.autocast(kind, enabled=choosing):
            return F.layer_norm(input, normalized_shape, weight, bias, eps), None
    itself = input.requires_grad and not choosing
    if choosing:
        input, weight, bias = input.float(), weight.float(), bias.float()
    out, around = _LayerNorm.apply(input, weight, bias, eps)
    return out, around if itself else None


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x·Φ(x), by our own kernel where there is one."""
    own = ready(Gelu, 0, (input,)) if approximate == "none" and input.requires_grad and serves(input) else None
    if own is None:
        return F.gelu(input, approximate=approximate)
    out: Tensor = _Gelu.apply(input, own)
    return out


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """By one matrix product where the patches do not overlap and leave nothing over."""
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and groups == 1
    if plain and patches_apart(input.shape, weight.shape, _pair(stride)):
        return patch_products(input, weight, bias)
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


def patches_apart(images: Sequence[int], weight: Sequence[int], stride: Sequence[int | str]) -> bool:
    """Whether kernels of this shape cut images of that one into patches side by side.

    >>> images, kernels = (1, 3, 8, 8), (5, 3, 4, 4)
    >>> patches_apart(images, kernels, (4, 4)), patches_apart(images, kernels, (2, 2))
    (True, False)
    """
    sides = tuple(weight[2:])
    whole = len(images) == 4 and all(size % side == 0 for size, side in zip(images[2:], sides, strict=True))
    return whole and tuple(stride) == sides and sides != (1, 1)


def _pair(value: str | int | Sequence[int]) -> tuple[int | str, ...]:
    return (value, value) if isinstance(value, (int, str)) else tuple(value)


def patch_products(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Such a convolution as one matrix product; the channels of the result lie next to each other.

    >>> images, kernels = torch.arange(16.0).reshape(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    >>> patch_products(images, kernels, torch.zeros(1)).tolist()
    [[[[10.0, 18.0], [42.0, 50.0]]]]
    """
    kind = images.device.type
    if torch.is_autocast_enabled(kind):
        images = images.to(torch.get_autocast_dtype(kind))
    channels, high, wide = weight.shape[1:]
    rows, columns = images.shape[2] // high, images.shape[3] // wide
    cut = images.reshape(len(images), channels, rows, high, columns, wide).permute(0, 2, 4, 1, 3, 5)
    patches = cut.reshape(len(images), rows, columns, channels * high * wide)
    return linear(patches, weight.flatten(1), bias).permute(0, 3, 1, 2)


TALL = 8
"""Rows of a product that is not a vector's: libraries have slower ways for fewer."""


def column_sums(rows: Tensor, weights: Tensor) -> Tensor:
    """Each of the (k, rows) weights times the (rows, columns), summed over rows: (k, columns), as one product.

    >>> column_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(1, 2))
    tensor([[4., 6.]])
    """
    count = len(weights)
    tall = F.pad(weights.to(rows.dtype), (0, 0, 0, max(0, TALL - count)))
    return (tall @ rows)[:count]


def sum_to_last(slope: Tensor) -> Tensor:
    """Over all dimensions but the last, one after the other, in float32 in between.

    >>> sum_to_last(torch.ones(2, 3, 4))
    tensor([6., 6., 6., 6.])
    """
    total = slope
    while total.ndim > 1:
        total = total.sum(-2, dtype=torch.promote_types(slope.dtype, torch.float32))
    return total.to(slope.dtype)


def note_sum(slope: Tensor, total: Tensor) -> None:
    """The sum over its rows goes with a gradient to whoever is handed it."""
    slope.sum_of_rows = total, slope._version  # type: ignore[attr-defined]


def summed(slope: Tensor) -> Tensor:
    """`sum_to_last`; the sum that goes with it, unless it was changed on the way."""
    total, version = getattr(slope, "sum_of_rows", (None, None))
    return sum_to_last(slope) if total is None or version != slope._version else total


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        rows = slope.reshape(-1, slope.shape[-1])
        of_x = (rows @ weight).reshape(x.shape) if ctx.needs_input_grad[0] else None
        of_weight = rows.mT @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, summed(slope)


class _LayerNorm(torch.autograd.Function):
    """The rows, normalised; and the rows as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.own = own = ready(LayerNorms, weight.shape[0], (x, weight, bias))
        if own is not None:
            out, mean, rstd = own.forward(x, weight, bias, eps)
        else:
            with torch.autocast(x.device.type, enabled=False):
                out, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, around: Tensor | None) -> tuple[Tensor | None, ...]:
        """Σ g·(x − μ)/σ = Σ (g·x)/σ − Σ g·μ/σ for the scale, Σ g for the shift."""
        x, weight, mean, rstd = ctx.saved_tensors
        if slope is None:  # nobody asked for the normalised ones
            return around, None, None, None
        if ctx.own is not None:
            past = None if around is None else fitting(around)
            of_x, of_weight, of_bias, total = ctx.own.backward(fitting(slope), past, x, mean, rstd, weight)
            note_sum(of_x, total)
            return of_x, of_weight, of_bias, None
        slope = slope.contiguous()
        wanted = [True, False, False]  # the gradient in x alone
        of_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            slope, x, weight.shape, mean, rstd, weight, weight, wanted
        )
        width = weight.shape[0]
        rows, mean, rstd = slope.reshape(-1, width), mean.reshape(-1), rstd.reshape(-1)
        of_bias, less = column_sums(rows, torch.stack([torch.ones_like(mean), mean * rstd]))
        (more,) = column_sums(rows * x.reshape(-1, width), rstd[None])
        of_x = of_x if around is None else of_x + around
        return of_x, (more - less).to(weight.dtype), of_bias.to(weight.dtype), None


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Gelu) -> Tensor:
        ctx.own = own
        ctx.save_for_backward(x)
        return own.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        of_x, total = ctx.own.backward(fitting(slope), x)
        note_sum(of_x, total)
        return of_x, None


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> tuple[Tensor, ...]:
        ctx.strides = whole.stride()
        return whole.unbind(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return stacked_as(ctx.strides, slopes)


def stacked_as(strides: Sequence[int], parts: Sequence[Tensor]) -> Tensor:
    """The parts along a new first dimension, in memory in the order of these strides; one pass, no copy after.

    >>> stacked_as((1, 2), [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]).stride()
    (1, 2)
    """
    outward = sorted(range(len(strides)), key=lambda dimension: (-strides[dimension], dimension))
    of_parts = [dimension - 1 for dimension in outward if dimension]
    together = torch.stack([part.permute(of_parts) for part in parts], dim=outward.index(0))
    return together.permute([outward.index(dimension) for dimension in range(len(strides))])
