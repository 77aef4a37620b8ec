"""Speed on CUDA: libraries wake up while the images are still being read.

The first gradient of a process takes a second: handles are made, plans are drawn up, kernels are loaded, most of it
with no Python. Meanwhile a run has images to decode. So a copy of the network is asked beside that work what nobody
reads of it (`unread`), which takes two passes of two images, and a run begins with what it found.
Elsewhere, and in later runs, nothing has to wake: the network itself is asked, when a run needs to know, and behind a
frozen front that is a part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from famr.devices import unplanned_attention
from famr.errors import is_out_of_memory
from famr.forget_loss import ForgetLoss, Passes
from famr.kernels.compiling import beside
from famr.method import FAMR
from famr.models import Classifier
from famr.unread import Unread, unread

SOME = 2
"""Images that are asked about."""

_AWAKE: set[torch.device] = set()
"""Devices whose libraries have woken, attention among them."""

Looking = Callable[[ForgetLoss, Passes], Unread]
"""What nobody reads, once a run needs to know; its seconds are those for which the run had to wait."""


def looking(model: Classifier, method: FAMR, shape: tuple[int, ...], place: torch.device, lean: bool) -> Looking:
    """Begin to look, where that can be done beside other work. `shape`: of one image as the network takes it.

    The copy is made here, of a network that is on its device, and not where that may just be changed.
    """
    if not lean or method.forgets_style or place in _AWAKE:
        return _asked
    try:
        tried = model.copy()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _asked
    return partial(_awaited, beside().submit(_woken, tried, method, shape, place))


def _awaited(coming: Future[Unread], loss: ForgetLoss, passes: Passes) -> Unread:  # noqa: ARG001
    begun = time.perf_counter()
    return replace(coming.result(), seconds=time.perf_counter() - begun)


def _asked(loss: ForgetLoss, passes: Passes) -> Unread:
    """By the network of the run; a style is read off all tokens, and parts of a network say nothing of the whole."""
    if loss.tap is not None or loss.ranks.size > 1:
        return Unread()
    some = next(iter(passes.forget(None))).images[:SOME]
    with unplanned_attention():  # a plan for two images would serve nobody else
        return unread(loss.model.module, loss.logits, some, loss.method.settled_precision)


def _woken(tried: Classifier, method: FAMR, shape: tuple[int, ...], place: torch.device) -> Unread:
    """By a copy, and noise in the place of images; nothing where that fails, as where memory is scarce."""
    try:
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
            tried.module.eval()
            for weight in tried.module.parameters():
                weight.requires_grad_(weight.is_floating_point())
            noise = torch.randn(SOME, *shape, generator=torch.Generator().manual_seed(0)).to(place)
            asking = ForgetLoss.without_target(tried, method, place, lean=True)
            with unplanned_attention(), _Attention() as attention:
                found = unread(tried.module, asking.logits, noise, method.settled_precision)
            if attention.asked:
                _load_attention(place)
                _AWAKE.add(place)
            return found
    except Exception:  # of whatever kind: the run itself will tell what is wrong
        return Unread()


class _Attention(TorchFunctionMode):
    """Notes whether a network asks for attention."""

    asked = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Whatever torch is asked for."""
        self.asked = self.asked or func is F.scaled_dot_product_attention
        return func(*args, **dict(kwargs or {}))


def _load_attention(place: torch.device) -> None:
    """Steps take attention from cuDNN, half a gigabyte of kernels that are read from the disk when one is wanted."""
    some = torch.zeros(1, 1, 16, 64, dtype=torch.bfloat16, device=place)
    with suppress(RuntimeError), torch.no_grad():  # a device that cuDNN has no attention for
        torch.ops.aten._scaled_dot_product_cudnn_attention(some, some, some, None, True)
