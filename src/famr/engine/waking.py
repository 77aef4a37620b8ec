"""Speed on CUDA: libraries wake up while the images are still being read.

The first gradient of a process takes a second: handles are made, plans are drawn up, kernels are loaded, most of it
with no Python. Meanwhile a run has images to decode and to look at. So a copy of the network is asked beside that work
what nobody reads of it (`unread`), which takes two passes of two images, and a run begins with what it found. Libraries
have other kernels for as many images as are to come, and attention another plan, which is drawn up; then the copy takes
a step with so many, and looks at so many, unless the run is about to do so, as where its images were at hand.

Elsewhere, in later runs, and where a network was trained before, nothing has to wake: the network itself is asked, when
a run needs to know, and behind a frozen front that is a part of it; on a GPU only for a long run, which gains by it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import NamedTuple

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, FisherAnchor
from famr.config import FAMR
from famr.data.loaders import GPU_PIXEL_SHARE, Batch, evaluation_batch_size
from famr.engine.attention import Asked, Layout, planned
from famr.engine.bf16 import round_fixed
from famr.engine.devices import unplanned_attention, with_index
from famr.engine.kernels.compiling import beside
from famr.engine.prefix import ROOM
from famr.engine.unread import Unread, unread
from famr.errors import is_out_of_memory
from famr.losses.objective import uniform_target
from famr.models import Classifier
from famr.models.layers import blocks
from famr.optim.natural import natural_step
from famr.unlearn.forget_loss import ForgetLoss, Passes

SOME = 2
"""Images that are asked about."""
REHEARSED = 2
"""Blocks, the last ones, of which a copy takes gradients; what nobody reads is in the last one."""

FEW = 16
"""Images of a step, below which libraries that wake take more memory than the step will: a run waits for them before
it copies weights for its anchors, and looks at its images."""

EACH = 32
"""Bytes that are set aside for each byte of images: a ViT-L has about 25 of them in the tensors of two blocks."""

PAYS = 2_000_000_000_000
"""Weights times images of all steps, from which on a GPU gains more by leaving out what nobody reads, a twentieth of a
step at most, than Python needs to ask: on an H200 a tenth of a second or two, what a ViT-L gains in 5,000 passes."""

_AWAKE: set[torch.device] = set()
"""Devices whose libraries have woken, attention among them."""


def awake(place: torch.device) -> bool:
    """Whether a network has gone forwards and backwards there."""
    return with_index(place) in _AWAKE


@contextmanager
def wakes(place: torch.device) -> Iterator[Asked]:
    """What is done inside wakes the libraries of a device, if attention is asked for anything."""
    with Asked() as attention:
        yield attention
    if attention.tokens:
        _AWAKE.add(with_index(place))


class Coming(NamedTuple):
    """What a run will ask of its network."""

    looked_at: int
    """Images at once where nothing but answers are wanted."""
    images: int
    """Images of a step."""
    passes: int
    """Of all steps, images taken together."""

    @classmethod
    def of(cls, images: int, method: FAMR, device: torch.device) -> Coming:
        """Of a run that forgets so many."""
        in_a_step = method.images_in_a_step(images)
        return cls(min(images, evaluation_batch_size(device, in_a_step)), in_a_step, images * method.image_passes)

    @classmethod
    def of_batches(cls, sizes: Sequence[int], method: FAMR) -> Coming:
        """Of a run that forgets somebody's batches, which are taken as they come: so many images in each."""
        return cls(max(sizes), method.images_along * max(sizes), sum(sizes) * method.image_passes)


Looking = Callable[[ForgetLoss, Passes], Unread]
"""What nobody reads, once a run needs to know; its seconds are those for which the run had to wait."""


def looking(
    model: Classifier,
    method: FAMR,
    shape: tuple[int, ...],
    place: torch.device,
    lean: bool,
    coming: Coming,
    soon: Event,
) -> Looking:
    """Begin to look, where that can be done beside other work. `shape`: of one image as the network takes it.

    `soon` is set where nothing but a last look at the images comes before the steps.
    The copy is made here, of a network that is on its device, and not where that may just be changed.
    """
    ask = partial(_asked, coming)
    if not lean or method.forgets_style or awake(place):
        return ask
    try:
        tried = model.copy()
        _free_last_blocks(tried.module.eval())
        if method.settled_precision == "bf16":
            round_fixed(tried.module)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return ask
    return partial(_awaited, place, beside().submit(_woken, tried, method, shape, place, coming, soon))


def _awaited(place: torch.device, coming: Future[Unread], _loss: ForgetLoss, _passes: Passes) -> Unread:
    begun = time.perf_counter()
    found = coming.result()
    if place.type == "cuda":
        _let_go_of_work_space()
    return replace(found, seconds=time.perf_counter() - begun)


def _let_go_of_work_space() -> None:
    """cuBLAS has 32 MiB for each thread that asked for a product, also for that in which it woke, which is idle now.

    All of it goes, and whoever needs some gets it back; but not where somebody has a graph, which has memory in a pool
    of its own: it may have been captured with a work space, and would go on using it.
    """
    if torch.cuda.memory.get_allocator_backend() != "native":  # another cannot tell
        return
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    if all(tuple(segment["segment_pool_id"]) == (0, 0) for segment in segments):
        torch._C._cuda_clearCublasWorkspaces()


def _asked(coming: Coming, loss: ForgetLoss, passes: Passes) -> Unread:
    """By the network of the run; a style is read off all tokens, and parts of a network say nothing of the whole."""
    if loss.tap is not None or loss.ranks.size > 1:
        return Unread()
    weights = sum(weight.numel() for weight in loss.model.module.parameters() if weight.requires_grad)
    if loss.device.type == "cuda" and weights * coming.passes < PAYS:
        return Unread()
    some = next(iter(passes.forget(None))).images[:SOME]
    with unplanned_attention():  # a plan for two images would serve nobody else
        return unread(loss.model.module, loss.logits, some, loss.method.settled_precision)


def _woken(
    tried: Classifier, method: FAMR, shape: tuple[int, ...], place: torch.device, coming: Coming, soon: Event
) -> Unread:
    """By a copy, and noise in the place of images; nothing where that fails, as where memory is scarce.

    What the run itself will do as quickly is left to it once it is to begin `soon`.
    """
    try:
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext(), unplanned_attention():
            noise = torch.randn(SOME, *shape, generator=torch.Generator().manual_seed(0)).to(place)
            asking = ForgetLoss.without_target(tried, method, place, lean=True)
            with wakes(place) as attention:
                found = unread(tried.module, asking.logits, noise, method.settled_precision)
            room = _room(coming.images, shape, place)
            passes = 2 if found.layers else 1  # with all tokens, and without those that nobody reads
            tokens = attention.tokens // (passes * SOME)
            if attention.layout is not None and planned(tokens, coming.passes):
                _draw_plan(attention.layout, coming.images if room else 1, place)
            if room and not soon.is_set():
                with suppress(RuntimeError), found.spared(tried.module):
                    _rehearse(asking, noise[:1].expand(coming.images, *shape))
            if not soon.is_set() and _room(coming.looked_at, shape, place):
                with suppress(RuntimeError), torch.no_grad():
                    asking.logits(noise[:1].expand(coming.looked_at, *shape))
            return found
    except Exception:  # of whatever kind: the run itself will tell what is wrong
        return Unread()


def _room(images: int, shape: tuple[int, ...], place: torch.device) -> bool:
    """Whether so many leave most of the memory to the run itself, which goes on meanwhile."""
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else ROOM
    return images * math.prod(shape) * torch.float32.itemsize * EACH <= free // GPU_PIXEL_SHARE


def _free_last_blocks(module: nn.Module) -> None:
    """Gradients for these alone, and for what is behind them, so that a copy takes little memory.

    A head may be a row of blocks too, so that those are counted which most are like; a network that is no row of blocks
    is one.
    """
    row = list(blocks(module)) or [module]
    kind = Counter(map(type, row)).most_common(1)[0][0]
    alike = [place for place, block in enumerate(row) if type(block) is kind]
    module.requires_grad_(False)
    for block in row[alike[-REHEARSED:][0] :]:
        for weight in block.parameters():
            weight.requires_grad_(weight.is_floating_point())


def _rehearse(asking: ForgetLoss, images: Tensor) -> None:
    """A step, which leads nowhere."""
    module = asking.model.module
    with torch.no_grad():
        classes = asking.logits(images[:1]).shape[-1]
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    loss = replace(asking, target=uniform_target(classes).to(images.device), forgotten=labels[:1])
    lost = loss(Batch(images, labels, labels))
    lost.backward()  # type: ignore[no-untyped-call]
    moved = [weight for weight in module.parameters() if weight.grad is not None]
    natural_step(
        moved, [AnchorTerm(FisherAnchor(moved, [torch.zeros_like(weight) for weight in moved]), 1.0)], lost, 0.0
    )
    if images.is_cuda:
        torch.cuda.synchronize(images.device)


def _draw_plan(asked: Layout, images: int, place: torch.device) -> None:
    """Steps take attention from cuDNN: half a gigabyte of kernels is read from the disk, and a plan drawn up.

    `asked`: how queries lay when it was asked about `SOME` images.

    Each thread has plans of its own. That of the backward pass stays: one thread takes the gradients of all others.
    """
    with suppress(RuntimeError), torch.enable_grad():  # a device or a precision that cuDNN has no attention for
        some = asked.zeros(images / SOME, place).requires_grad_()
        said = torch.ops.aten._scaled_dot_product_cudnn_attention(some, some, some, None, True)[0]
        torch.autograd.grad(said, some, torch.zeros_like(said))
