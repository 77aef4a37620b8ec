"""Several processes as one: each computes its share of every batch, and all of them know all results.

torchrun or accelerate starts the processes ("ranks"). A batch is cut into equal shares; each rank decodes and runs its
own, and the logits are gathered, so that every rank computes the same loss over the whole batch and the same metrics,
and takes the same decisions. What is left to sum is the gradient in θ: each rank has the part that its share gave. The
result is that of one process up to the order of the sums. With one process (`ALONE`) nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from famr import errors
from famr.engine.devices import pick_device
from famr.errors import DataError, FamrError, RequestError
from famr.storage.digests import json_digest

SAME = "Give every process the same command and the same files."
BUCKET = 25_000_000
"""Numbers of a gradient that are summed in one message."""


@dataclass(frozen=True)
class Ranks:
    """The processes of this run, seen from one of them.

    Attributes:
        rank: This process, from 0.
        size: Number of processes.
        local: This process among those of its machine, from 0.
        sharded: Whether each rank holds a part of every weight, see `fsdp`.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of this rank: on CUDA each process of a machine has a GPU of its own.

        Args:
            name: `auto`, `cpu` or `cuda`.

        Raises:
            RequestError: Several processes cannot share that device, or there are too few GPUs.
        """
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

    def share(self, positions: Tensor) -> Tensor:
        """This rank's part of a batch. All parts have one length; the last image is repeated where there are too few.

        Args:
            positions: Indices of the batch's images.

        >>> [Ranks(rank, 3).share(torch.arange(4)).tolist() for rank in range(3)]
        [[0, 1], [2, 3], [3, 3]]
        """
        if self.size == 1:
            return positions
        rows = -(-len(positions) // self.size)
        own = torch.arange(self.rank * rows, (self.rank + 1) * rows)
        return positions[own.clamp(max=len(positions) - 1)]

    def gather(self, values: Tensor, count: int) -> Tensor:
        """The rows of a whole batch from each rank's rows, with their graph.

        Args:
            values: One row for each image of this rank's share.
            count: Images of the whole batch.
        """
        if self.size == 1:
            return values
        gathered: Tensor = _Gather.apply(values, count, self)
        return gathered

    def gradient(self, loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """The gradient of a loss over gathered values; `parameter.grad` is left as it is.

        Args:
            loss: A number that every rank has computed from the same gathered values.
            parameters: In which the gradient is taken.
        """
        if self.sharded:
            return _sharded_gradient(loss, parameters)
        own = torch.autograd.grad(loss, list(parameters), allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, own, strict=True)]
        if self.size > 1:
            _sum_over_ranks(gradient)
        return gradient

    def gather_objects(self, value: Any) -> list[Any]:
        """One value of each rank, in their order.

        Args:
            value: This rank's; it can be pickled.
        """
        values: list[Any] = [None] * self.size
        if self.size == 1:
            return [value]
        dist.all_gather_object(values, value)
        return values

    def agree(self, facts: Mapping[str, Any], fix: str = SAME) -> None:
        """Refuse a run whose ranks do not see the same.

        Args:
            facts: What must be the same, by the name that an error gives it.
            fix: What to do about it.

        Raises:
            DataError: Some rank sees something else; raised on every rank.
        """
        if self.size == 1:
            return
        digests = self.gather_objects({name: json_digest(value) for name, value in facts.items()})
        unlike = {name: [rank for rank, of in enumerate(digests) if of[name] != digests[0][name]] for name in facts}
        differing = {name: ranks for name, ranks in unlike.items() if ranks}
        if differing:
            ranks = sorted({rank for ranks in differing.values() for rank in ranks})
            raise DataError(
                f"The processes of this run do not see the same: {', '.join(differing)}.",
                where=f"rank {', '.join(map(str, ranks))} against rank 0",
                fix=fix,
            )

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """A block that fails on all ranks where it fails on one; none leaves it before all have reached its end.

        Raises:
            FamrError: The error of another rank, which names that rank.
        """
        if self.size == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:  # of whatever kind: the other ranks wait for this one
            own = error
        failures = self.gather_objects(None if own is None else error_to_json(own, self.rank))
        if own is not None:
            raise own
        if failure := next((failure for failure in failures if failure is not None), None):
            raise error_from_json(failure)


ALONE = Ranks()


class _Gather(torch.autograd.Function):
    """Rows of all ranks, one after another. Every rank has the same loss, so each keeps its own rows' gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, count: int, ranks: Ranks) -> Tensor:
        ctx.rows, ctx.rank = len(values), ranks.rank
        gathered = values.new_empty(ranks.size * len(values), *values.shape[1:])
        dist.all_gather_into_tensor(gathered, values.contiguous())
        return gathered[:count].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows]
        repeated = gradient.new_zeros(ctx.rows - len(own), *gradient.shape[1:])  # images that fill up the share
        return torch.cat([own, repeated]), None, None


@torch.no_grad()
def _sum_over_ranks(tensors: Sequence[Tensor]) -> None:
    """The sum over ranks of each tensor, in place; several in one message, which is faster than many."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat)
        for tensor, total in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
            tensor.copy_(total.view_as(tensor))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _sharded_gradient(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The same for sharded weights, whose gradients FSDP sums in a backward pass and nowhere else."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter, grad in zip(parameters, before, strict=True):
        parameter.grad = grad
    return gradient


def as_float(scalar: Tensor) -> float:
    """A scalar tensor as a number; one that is a partial sum on each rank is summed first.

    Args:
        scalar: The tensor.
    """
    scalar = scalar.detach()
    full_tensor = getattr(scalar, "full_tensor", None)
    return float(scalar if full_tensor is None else full_tensor())


def error_to_json(error: BaseException, rank: int) -> dict[str, str | None]:
    """An error as plain values, for other ranks.

    Args:
        error: The error.
        rank: Where it was raised.
    """
    if isinstance(error, FamrError):
        where = f"rank {rank}" if error.where is None else f"rank {rank}: {error.where}"
        return {"kind": type(error).__name__, "what": error.what, "where": where, "fix": error.fix}
    line = (str(error).splitlines() or [""])[0]
    return {"kind": "FamrError", "what": f"{type(error).__name__}: {line}", "where": f"rank {rank}", "fix": None}


def error_from_json(values: Mapping[str, str | None]) -> FamrError:
    """The error of another rank; it ends this process with the same exit code.

    Args:
        values: From `error_to_json`.
    """
    kind = getattr(errors, str(values["kind"]), FamrError)
    error: FamrError = kind(str(values["what"]), where=values["where"], fix=values["fix"])
    return error
