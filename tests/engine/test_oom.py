"""Less memory, the same result."""

from __future__ import annotations

import ctypes
import gc
import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.data.loaders import Batch
from famr.data.splits import Splits
from famr.engine.base import Engine
from famr.engine.oom import MicroBatches, derivative_batch_size, halve_on_oom
from famr.engine.plain import PlainEngine
from famr.engine.prefix import PrefixEngine
from famr.errors import NumericsError
from famr.losses.objective import Reduction

CPU = torch.device("cpu")
LIBC = ctypes.CDLL(None)
MMAP_THRESHOLD = -3
"""The number of a setting of the C library's `mallopt`."""


class Wide(nn.Module):
    """Few weights, and 6 MB of activations an image: a step takes more than earlier tests can have left free."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16 * 16, 64)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 512))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        wide = self.inner(images.flatten(1))[:, :, None] * self.scale
        for _ in range(48):
            wide = torch.tanh(wide)
        out: Tensor = self.head(wide.mean(dim=-1))
        return out


def allocated() -> int:
    """Bytes of data of this process, as the system counts them against its limit."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@pytest.fixture(scope="module", autouse=True)
def large_pieces_go_back_at_once() -> Iterator[None]:
    """Memory from a megabyte on comes from the system and returns to it, so that freed memory is not used again."""
    LIBC.mallopt(MMAP_THRESHOLD, 1 << 20)
    gc.freeze()  # what is imported is not searched for garbage again and again
    yield
    gc.unfreeze()
    LIBC.mallopt(MMAP_THRESHOLD, 32 << 20)  # the largest there is, and faster


@contextmanager
def memory_for(more: int) -> Iterator[None]:
    """The system gives this process only so many bytes more, and refuses what goes beyond that."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()  # the first one loads a good part of torch
    gc.collect()
    LIBC.malloc_trim(0)  # what was freed goes back to the system, or it would be available
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (allocated() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.fixture(scope="module")
def wide() -> tuple[famr.Classifier, Splits]:
    data = famr.open_data("digits")
    splits = famr.split(data, famr.Request(samples=list(range(32))))
    torch.manual_seed(0)
    return famr.Classifier(Wide(), data.labels, famr.Preprocessing(16, (16, 16), (0.5,), (0.5,))), splits


METHOD = famr.FAMR(
    target="uniform",
    optimiser="sgd",
    strength=0.1,
    epochs=1,
    batch_size=32,
    learning_rate=1e-3,
    function_strength=1.0,
    function_images=8,
)


def test_a_run_that_runs_out_of_memory_splits_its_batches_and_ends_the_same(
    wide: tuple[famr.Classifier, Splits],
) -> None:
    model, splits = wide
    with memory_for(40 << 20), pytest.warns(UserWarning, match="Memory ran out") as caught:
        limited = famr.forget(model, splits, METHOD, device="cpu", monitor=famr.Monitor(track_retain=False))
    (message,) = [str(warning.message) for warning in caught]
    assert "micro-batches, or more if it runs out again. The result is the same, it takes longer." in message
    whole = famr.forget(model, splits, METHOD, device="cpu", monitor=famr.Monitor(track_retain=False))
    for ours, theirs in zip(limited.module.parameters(), whole.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert limited.history[-1].loss_forget == pytest.approx(whole.history[-1].loss_forget, rel=1e-4)


class Greedy(nn.Module):
    """A row of blocks that refuses batches above a size; with gradients, above a smaller one."""

    def __init__(self, most: int, most_with_gradient: int | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8))
        self.head = nn.Linear(8, 10)
        self.most, self.most_with_gradient = most, most if most_with_gradient is None else most_with_gradient

    def forward(self, images: Tensor) -> Tensor:
        hidden = images.mean(dim=(2, 3))
        for block in self.body:
            hidden = block(hidden)
            if len(hidden) > (self.most_with_gradient if hidden.requires_grad else self.most):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        out: Tensor = self.head(hidden)
        return out


def greedy(most: int, most_with_gradient: int | None = None) -> famr.Classifier:
    torch.manual_seed(0)
    module = Greedy(most, most_with_gradient)
    return famr.Classifier(
        module, famr.open_data("digits").labels, famr.Preprocessing(8, (8, 8), (0.5,) * 3, (0.5,) * 3)
    )


class SquaredLogits:
    """A loss that splits over micro-batches."""

    def __init__(self, logits: Callable[[Batch], Tensor], reduction: Reduction) -> None:
        self._logits, self.reduction = logits, reduction

    def __call__(self, batch: Batch) -> Tensor:
        rows = (self._logits(batch) * batch.labels[:, None]).square().sum(dim=1)
        return rows.mean() if self.reduction == "mean" else rows.sum()


def some_batch(images: int) -> Batch:
    draws = torch.Generator().manual_seed(0)
    return Batch(torch.randn(images, 3, 8, 8, generator=draws), torch.arange(images), torch.arange(images))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("most", [1, 6])
def test_the_gradient_of_micro_batches_is_that_of_the_batch_with_one_warning(reduction: Reduction, most: int) -> None:
    model, batch = greedy(100, most), some_batch(11)
    parameters = list(model.module.parameters())
    loss = SquaredLogits(lambda part: model.logits(part.images), reduction)
    micro_batches = MicroBatches()
    with pytest.warns(UserWarning, match="Memory ran out") as caught:
        value, gradient = micro_batches.gradient(loss, batch, parameters)
    assert len(caught) == 1
    assert f"split into {micro_batches.parts} micro-batches" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, _ = micro_batches.gradient(loss, batch, parameters)  # at once in as many parts
    model.module.most_with_gradient = 100  # type: ignore[assignment]
    whole = loss(batch)
    torch.testing.assert_close(value, whole.detach())
    torch.testing.assert_close(again, value)
    for ours, theirs in zip(gradient, torch.autograd.grad(whole, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("engine", [PlainEngine(CPU), PrefixEngine(CPU)])
def test_a_whole_run_with_little_memory_is_the_run_with_much(engine: Engine) -> None:
    splits = famr.split(famr.open_data("digits"), famr.Request(samples=list(range(40))))
    method = famr.FAMR(
        effort="quick",
        strength=1.0,
        epochs=2,
        edited_share=0.4,
        function_images=3,
        fisher_images=20,
        optimiser="natural",
    )
    with pytest.warns(UserWarning, match=r"split into \d micro-batches") as caught:
        limited = famr.forget(greedy(7, 5), splits, method, engine=engine)
    assert len(caught) == 1
    whole = famr.forget(greedy(10_000), splits, method, engine=engine)
    for ours, theirs in zip(limited.module.parameters(), whole.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_where_one_image_is_too_much_the_error_says_so_and_the_network_is_as_it_was() -> None:
    model = greedy(100, 0)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    splits = famr.split(famr.open_data("digits"), famr.Request(samples=list(range(4))))
    method = famr.FAMR(strength=1.0, epochs=1, function_strength=0.0, anchor="l2", optimiser="natural")
    with pytest.raises(NumericsError, match="even for one image") as caught:
        famr.forget(model, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert "CUDA out of memory" in str(caught.value.where)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.module.state_dict().items())
    assert not any(vars(part)["_forward_pre_hooks"] or "forward" in vars(part) for part in model.module.modules())


def test_before_it_gives_up_on_a_gpu_the_activations_of_one_image_go_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_host: list[bool] = []
    weight, save_on_cpu = nn.Parameter(torch.ones(())), torch.autograd.graph.save_on_cpu

    def loss(_batch: Batch) -> Tensor:
        if not on_host:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return weight.square()

    def noted() -> Any:
        on_host.append(True)
        return save_on_cpu()

    loss.reduction = "sum"  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", noted)
    two = torch.zeros(2, device="meta")
    with pytest.warns(UserWarning, match="split into 2 micro-batches"):
        value, (gradient,) = MicroBatches().gradient(loss, Batch(two, two, two), [weight])  # type: ignore[arg-type]
    assert (float(value), float(gradient)) == (2, 4)


def test_a_step_whose_update_runs_out_of_memory_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some weights may have moved already."""
    from famr.optim.sgd import SGD

    updates = []

    def fails(*_: object) -> None:
        updates.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(SGD, "step", fails)
    splits = famr.split(famr.open_data("digits"), famr.Request(samples=list(range(4))))
    with pytest.raises(torch.OutOfMemoryError):
        famr.forget(greedy(100), splits, famr.FAMR.paper(), device="cpu", monitor=famr.Monitor(track_retain=False))
    assert len(updates) == 1


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    def loss(_batch: Batch) -> Tensor:
        raise RuntimeError("shapes do not match")

    loss.reduction = "sum"  # type: ignore[attr-defined]
    micro_batches = MicroBatches()
    with pytest.raises(RuntimeError, match="shapes"):
        micro_batches.gradient(loss, some_batch(4), [])  # type: ignore[arg-type]
    assert micro_batches.parts == 1


def test_predictions_in_halves_are_the_predictions() -> None:
    model, images = greedy(3), some_batch(10).images
    whole = greedy(100)
    torch.testing.assert_close(halve_on_oom(model.module, images), whole.module(images))
    model.module.most = 0  # type: ignore[assignment]
    with torch.no_grad(), pytest.raises(torch.OutOfMemoryError):
        halve_on_oom(model.module, images)


@pytest.mark.parametrize(("free", "images"), [(1, 32), (9, 64), (500, 512)])
def test_a_gpu_with_free_memory_computes_more_derivatives_at_a_time(
    free: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free << 30, 500 << 30))
    assert derivative_batch_size(32, torch.device("cuda")) == images
    assert derivative_batch_size(32, CPU) == 32
