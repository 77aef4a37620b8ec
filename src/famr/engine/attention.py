"""Speed on CUDA: attention takes the kernels that need a plan only where the plan pays.

cuDNN's, which torch prefers, are quicker once they have one, for each size of batch; a short run would have taken all
its steps before it is drawn up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from famr.engine.devices import unplanned_attention

WORTH = 100_000_000
"""Tokens, counted for each head, image and pass, from which on a plan pays: on an H200 one takes a tenth of a second
and saves about a nanosecond of each, forwards and backwards (`benchmarks/attention.py`)."""


class Layout(NamedTuple):
    """How queries lie in memory: (images or windows of them, heads, tokens, features). A plan is for one layout."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def tokens(self) -> int:
        """For each head and image."""
        return math.prod(self.shape[:-1])

    def zeros(self, times: float, place: torch.device) -> Tensor:
        """Queries of so many times as many images that lie alike."""
        sizes = (round(self.shape[0] * times), *self.shape[1:])
        if self.strides[0] == max(self.strides):  # one image after the other
            return torch.empty_strided(sizes, self.strides, dtype=self.dtype, device=place).zero_()
        inwards = sorted(range(len(sizes)), key=lambda side: -self.strides[side])
        dense = torch.zeros([sizes[side] for side in inwards], dtype=self.dtype, device=place)
        return dense.permute([inwards.index(side) for side in range(len(sizes))])


class Asked(TorchFunctionMode):
    """Counts the tokens that attention is asked for, for each head and image; knows how most of them lay."""

    tokens = 0
    layout: Layout | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Whatever torch is asked for."""
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else named["query"]  # (images, heads, tokens, features)
            self._count(Layout(tuple(query.shape), query.stride(), query.dtype))
        elif func is F.multi_head_attention_forward:
            (tokens, *images, features), heads = args[0].shape, args[4]
            images, each = math.prod(images), features // heads
            strides = (features, each, images * features, 1)
            self._count(Layout((images, heads, tokens, each), strides, args[0].dtype))
        return func(*args, **named)

    def _count(self, asked: Layout) -> None:
        self.tokens += asked.tokens
        if self.layout is None or asked.tokens > self.layout.tokens:
            self.layout = asked


def planned(tokens: int | None, passes: int) -> bool:
    """Whether a plan pays for so many tokens a pass; where nobody counted them it is as torch has it."""
    return tokens is None or tokens * passes >= WORTH


def attention_for(tokens: int | None, passes: int) -> AbstractContextManager[None]:
    """The kernels for steps that ask attention for so many tokens, so many times."""
    return nullcontext() if planned(tokens, passes) else unplanned_attention()
