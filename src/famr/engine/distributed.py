"""Several processes as one: each answers its share of every batch, and all of them know all answers.

torchrun or accelerate starts the processes ("ranks"). A batch is cut into equal shares; each rank decodes and runs its
own, and the answers are gathered, so that every rank computes the same loss over the whole batch, the same metrics, and
takes the same decisions. What is left to add up is the gradient in θ: each rank has the part that its share gave. The
result is that of one process up to the order of the sums. Without other processes (`ALONE`) nothing here does anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from famr import errors
from famr.engine.devices import pick_device
from famr.errors import DataError, FamrError, RequestError

SAME = "Give every process the same command and the same files."
BUCKET = 25_000_000
"""Numbers of a gradient that are added up at once."""


@dataclass(frozen=True)
class Ranks:
    """The processes of this run, seen from one of them."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Which of the processes on its own machine it is."""
    sharded: bool = False
    """Whether each rank holds a part of every weight and not the whole, see `sharded`."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def place(self, name: str) -> torch.device:
        """The device of this rank: on CUDA each process of a machine has a GPU of its own."""
        if self.size == 1:
            return pick_device(name)
        own = f"cuda:{self.local}"
        if name == "mps" or (":" in name and name != own):
            raise RequestError(
                f"Several processes cannot share the device {name!r}.", where="--device", fix="Use auto, cuda or cpu."
            )
        if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        pick_device(name)
        if self.local >= torch.cuda.device_count():
            raise RequestError(
                f"A machine of this run has {torch.cuda.device_count()} CUDA devices, and more processes than that.",
                where=f"rank {self.rank}, process {self.local} of its machine",
                fix="Start at most one process a device (torchrun --nproc-per-node), or use --device cpu.",
            )
        torch.cuda.set_device(self.local)
        return torch.device(own)

    def share(self, places: Tensor) -> Tensor:
        """This rank's part of a batch. All parts are of one length: the last image stands in where there are too few.

        >>> [Ranks(rank, 3).share(torch.arange(4)).tolist() for rank in range(3)]
        [[0, 1], [2, 3], [3, 3]]
        """
        if self.size == 1:
            return places
        rows = -(-len(places) // self.size)
        wanted = torch.arange(self.rank * rows, (self.rank + 1) * rows)
        return places[wanted.clamp(max=len(places) - 1)]

    def gather(self, values: Tensor, count: int) -> Tensor:
        """The values of a whole batch of `count` images from each rank's values of its share, with their graph."""
        if self.size == 1:
            return values
        gathered: Tensor = _Gather.apply(values, count, self)
        return gathered

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Turn each rank's part of the gradient, as it stands in the parameters, into the gradient."""
        if self.size > 1 and not self.sharded:  # else it is added up in the backward pass
            _add_up([parameter.grad for parameter in parameters if parameter.grad is not None])

    def gradient(self, loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """The gradient of a loss over gathered values; what stands in the parameters is left as it is."""
        if self.sharded:
            return _gradient_of_parts(loss, parameters)
        found = torch.autograd.grad(loss, list(parameters), allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        if self.size > 1:
            _add_up(gradient)
        return gradient

    def tell(self, what: Any) -> list[Any]:
        """What each rank has to say, in their order."""
        every: list[Any] = [None] * self.size
        if self.size == 1:
            return [what]
        dist.all_gather_object(every, what)
        return every

    def agree(self, told: Mapping[str, Any], fix: str = SAME) -> None:
        """An error on every rank where they do not all say the same."""
        if self.size == 1:
            return
        every = self.tell({name: _digest(value) for name, value in told.items()})
        odd = {name: [rank for rank, said in enumerate(every) if said[name] != every[0][name]] for name in told}
        differing = {name: ranks for name, ranks in odd.items() if ranks}
        if differing:
            others = sorted({rank for ranks in differing.values() for rank in ranks})
            raise DataError(
                f"The processes of this run do not see the same: {', '.join(differing)}.",
                where=f"rank {', '.join(map(str, others))} against rank 0",
                fix=fix,
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """What goes wrong in this block on one rank goes wrong on all of them, and none leaves it before all have."""
        if self.size == 1:
            yield
            return
        failed: Exception | None = None
        try:
            yield
        except Exception as error:  # of whatever kind: the others wait for us
            failed = error
        every = self.tell(None if failed is None else in_words(failed, self.rank))
        if failed is not None:
            raise failed
        if found := next((words for words in every if words is not None), None):
            raise from_words(found)


ALONE = Ranks()


class _Gather(torch.autograd.Function):
    """Rows of all ranks, one after the other. Every rank has the same loss, so each takes back its own rows' part."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, count: int, ranks: Ranks) -> Tensor:
        ctx.rows, ctx.rank = len(values), ranks.rank
        every = values.new_empty(ranks.size * len(values), *values.shape[1:])
        dist.all_gather_into_tensor(every, values.contiguous())
        return every[:count].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows]
        standing_in = gradient.new_zeros(ctx.rows - len(own), *gradient.shape[1:])
        return torch.cat([own, standing_in]), None, None


@torch.no_grad()
def _add_up(tensors: Sequence[Tensor]) -> None:
    """The sum over ranks of each tensor, in place; several at once, as one message is faster than many."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat)
        for tensor, added in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
            tensor.copy_(added.view_as(tensor))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _gradient_of_parts(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The same for weights that lie in parts: only a backward pass knows how to add those up."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
    return found


def number(figure: Tensor) -> float:
    """A figure as a number; one that lies in parts on the ranks is added up."""
    whole = getattr(figure, "full_tensor", None)
    return float(figure if whole is None else whole())


def in_words(error: BaseException, rank: int) -> dict[str, str | None]:
    """An error as it is told to other ranks."""
    if isinstance(error, FamrError):
        where = f"rank {rank}" if error.where is None else f"rank {rank}: {error.where}"
        return {"kind": type(error).__name__, "what": error.what, "where": where, "fix": error.fix}
    first = (str(error).splitlines() or [""])[0]
    return {"kind": "FamrError", "what": f"{type(error).__name__}: {first}", "where": f"rank {rank}", "fix": None}


def from_words(words: Mapping[str, str | None]) -> FamrError:
    """The error that another rank told of; it ends this one with the same exit code."""
    kind = getattr(errors, str(words["kind"]), FamrError)
    error: FamrError = kind(str(words["what"]), where=words["where"], fix=words["fix"])
    return error


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
