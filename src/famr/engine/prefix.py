"""Speed: what lies before the first layer that may change makes the same of an image each time; it does so once.

Where late layers are edited, most of a network is never touched. Its frozen front is walked once for each image, and
what comes out is kept; steps and looks begin there. No gradient ever went further.

To begin there the network is given one blank image. The frozen blocks let it pass, and where the first edited block
begins, what was kept takes its place. That is done only with networks that answer the same this way, to the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import GPU_PIXEL_SHARE, Batch, Batches, evaluation_batches, gpu_pixels, order
from famr.data.transforms import Preprocessing
from famr.engine.oom import halve_on_oom
from famr.models.layers import blocks, call_order

ROOM = 1 << 30
"""Bytes that may be kept on a CPU."""

Logits = Callable[[Tensor], Tensor]
"""The answers of a network to images, in the precision of the run."""


class _Reached(Exception):  # noqa: N818
    """The edited part begins; what it is given is known."""


class Front:
    """The frozen beginning of a network."""

    def __init__(self, logits: Logits, frozen: list[nn.Module], edited: nn.Module, blank: Tensor) -> None:
        self._logits, self._frozen, self._edited = logits, frozen, edited
        self.blank = blank
        """One image, which stands for all that was kept."""
        self.each = 0
        """Bytes that are kept of an image."""
        self.a_step: int | None = None
        """Images of a step, where it is known: walking them may take no more memory."""
        self.seconds = 0.0
        """What walking it for the sake of the steps has taken so far."""
        self._kept: dict[tuple[int, bytes], Tensor] = {}

    @torch.no_grad()
    def walked(self, images: Tensor) -> Tensor:
        """What the first edited block is given for these images."""
        found: list[Tensor] = []

        def stop(_block: nn.Module, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0])
            raise _Reached

        handle = self._edited.register_forward_pre_hook(stop)
        try:
            self._logits(images)
        except _Reached:
            pass
        finally:
            handle.remove()
        return found[0]

    @contextmanager
    def behind(self, kept: Tensor) -> Iterator[None]:
        """The network begins with what was kept, whatever image it is given."""

        def instead(_block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (kept, *inputs[1:])

        before = [vars(block).get("forward") for block in self._frozen]
        handle = self._edited.register_forward_pre_hook(instead)
        for block in self._frozen:
            block.forward = _let_pass
        try:
            yield
        finally:
            handle.remove()
            for block, own in zip(self._frozen, before, strict=True):
                if own is None:
                    del block.forward
                else:
                    block.forward = own

    def passes(
        self,
        images: Images,
        preprocessing: Preprocessing,
        batch_size: int,
        device: torch.device,
        *,
        for_steps: bool = True,
    ) -> Batches:
        """Passes over images as `image_batches` makes them, with what was kept in the place of pixels."""
        source = (id(images.cache), images.rows.numpy().tobytes())

        def one_pass(seed: int | None) -> Iterator[Batch]:
            if source not in self._kept:
                gpu_pixels(images, preprocessing, device)  # reading them is not what this saves
                every = evaluation_batches(images, preprocessing, device, step_size=self.a_step)(None)
                self._kept[source] = torch.cat([self._timed(batch.images, for_steps) for batch in every])
            targets, places = images.targets.to(device), order(len(images), seed).to(device)
            for positions in torch.split(places, batch_size):
                yield Batch(self._kept[source][positions], targets[positions], positions)

        return one_pass

    def _timed(self, images: Tensor, for_steps: bool) -> Tensor:
        begun = time.perf_counter()
        kept = halve_on_oom(self.walked, images)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        self.seconds += for_steps * (time.perf_counter() - begun)
        return kept


def frozen_front(module: nn.Module, logits: Logits, beyond: Callable[[Front], Logits], some: Tensor) -> Front | None:
    """The blocks before the first one with a weight that may change; None where there are none, or that will not do.

    `beyond` gives the answers of the same network that begins behind its front. `some` are a few images to try it on.
    """
    said: list[Tensor] = []
    rank = call_order(module, lambda: said.append(logits(some)))
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    edited = [rank[name] for name, parameter in module.named_parameters() if parameter.requires_grad]
    used = {block: [rank[names[id(weight)]] for weight in block.parameters()] for block in blocks(module)}
    row = sorted((block for block in used if used[block]), key=lambda block: min(used[block]))
    free = [block for block in row if any(weight.requires_grad for weight in block.parameters())]
    if not free:
        return None
    frozen = [block for block in row if max(used[block]) < min(used[free[0]])]
    if not frozen or min(edited) < min(used[free[0]]):
        return None
    front = Front(logits, frozen, free[0], torch.zeros_like(some[:1]))
    try:
        with torch.no_grad():
            kept = front.walked(some)
            same = torch.equal(beyond(front)(kept), said[0])
    except Exception:  # of whatever kind: it is built in another way than a row of blocks
        return None
    front.each = kept.nbytes // len(some)
    return front if same else None


def fits(front: Front, images: int) -> bool:
    """Whether what is kept of so many images is little beside the memory there is."""
    place = front.blank.device
    room = torch.cuda.mem_get_info(place)[0] // GPU_PIXEL_SHARE if place.type == "cuda" else ROOM
    return front.each * images <= room


def _let_pass(hidden: Any, *_others: Any, **_named: Any) -> Any:
    return hidden
