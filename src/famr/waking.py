"""Speed on CUDA: libraries wake up while the images are still being read.

The first gradient of a process takes a second: handles are made, plans are drawn up, kernels are loaded, most of it
with no Python. Meanwhile a run has images to decode. So a copy of the network is asked beside that work what nobody
reads of it (`unread`), which takes a forward and a backward pass of two images, and a run begins with what it found.
Elsewhere nothing has to wake, and the network itself is asked, when a run needs to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch

from famr.forget_loss import ForgetLoss, Passes
from famr.kernels.compiling import beside
from famr.method import FAMR
from famr.models import Classifier
from famr.unread import Unread, unread

SOME = 2
"""Images that are asked about."""

Looking = Callable[[ForgetLoss, Passes], Unread]
"""What nobody reads, once a run needs to know; its seconds are those for which the run had to wait."""


def looking(original: Classifier, method: FAMR, shape: tuple[int, ...], place: torch.device, lean: bool) -> Looking:
    """Begin to look, where that can be done beside other work. `shape`: of one image as the network takes it."""
    if not lean or method.forgets_style:
        return _asked
    return partial(_awaited, beside().submit(_woken, original, method, shape, place))


def _awaited(coming: Future[Unread], loss: ForgetLoss, passes: Passes) -> Unread:  # noqa: ARG001
    begun = time.perf_counter()
    return replace(coming.result(), seconds=time.perf_counter() - begun)


def _asked(loss: ForgetLoss, passes: Passes) -> Unread:
    """By the network of the run; a style is read off all tokens, and parts of a network say nothing of the whole."""
    if loss.tap is not None or loss.ranks.size > 1:
        return Unread()
    some = next(iter(passes.forget(None))).images[:SOME]
    return unread(loss.model.module, loss.logits, some, loss.method.settled_precision)


def _woken(original: Classifier, method: FAMR, shape: tuple[int, ...], place: torch.device) -> Unread:
    """By a copy, and noise in the place of images; nothing where that fails, as where memory is scarce."""
    try:
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
            tried = original.copy()
            tried.module.to(place).eval()
            for weight in tried.module.parameters():
                weight.requires_grad_(weight.is_floating_point())
            noise = torch.randn(SOME, *shape, generator=torch.Generator().manual_seed(0)).to(place)
            asking = ForgetLoss(tried, method, torch.zeros(0, device=place), place, lean=True)
            return unread(tried.module, asking.logits, noise, method.settled_precision)
    except Exception:  # of whatever kind: the run itself will tell what is wrong
        return Unread()
