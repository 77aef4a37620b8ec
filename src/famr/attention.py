"""Speed on CUDA: attention takes the kernels that need a plan only where the plan pays.

cuDNN's, which torch prefers, are quicker once they have one, for each size of batch; a short run would have taken all
its steps before it is drawn up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from famr.devices import unplanned_attention

WORTH = 100_000_000
"""Tokens, counted for each head, image and pass, from which on a plan pays: on an H200 one takes a tenth of a second
and saves about a nanosecond of each, forwards and backwards (`benchmarks/attention.py`)."""


class Asked(TorchFunctionMode):
    """Counts the tokens that attention is asked for, for each head and image."""

    tokens = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Whatever torch is asked for."""
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else named["query"]  # (images, heads, tokens, features)
            self.tokens += query.shape[:-1].numel()
        elif func is F.multi_head_attention_forward:
            self.tokens += args[0].shape[:-1].numel() * args[4]  # (tokens, images, features), and the heads
        return func(*args, **named)


def planned(tokens: int | None, passes: int) -> bool:
    """Whether a plan pays for so many tokens a pass; where nobody counted them it is as torch has it."""
    return tokens is None or tokens * passes >= WORTH


def attention_for(tokens: int | None, passes: int) -> AbstractContextManager[None]:
    """The kernels for steps that ask attention for so many tokens, so many times."""
    return nullcontext() if planned(tokens, passes) else unplanned_attention()
