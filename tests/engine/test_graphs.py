from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from famr.data.loaders import Batch
from famr.engine import graphs as captured
from famr.engine.graphs import WORTH, Captured, worth_capturing


def plan(sizes: list[tuple[int, ...]], plain: int = 1) -> list[int]:
    """Which steps of a run would be the first to be captured."""
    seen: Counter[tuple[int, ...]] = Counter()
    captured: set[tuple[int, ...]] = set()
    found = []
    for step, size in enumerate(sizes):
        due = seen[size] >= plain and size not in captured
        if due and worth_capturing(seen, size, left=len(sizes) - step):
            captured.add(size)
            found.append(step)
        seen[size] += 1
    return found


def test_the_usual_size_is_captured_at_its_second_step() -> None:
    assert plan([(128,)] * 40) == [1]


def test_the_first_step_is_captured_where_none_is_to_be_plain() -> None:
    assert plan([(128,)] * 40, plain=0) == [0]
    epoch = [(128,)] * 3 + [(116,)]
    assert plan(epoch * 12, plain=0) == [0, 7]  # of another size it is not known that it will come again


def test_a_short_last_batch_is_captured_only_where_there_are_many_epochs() -> None:
    epoch = [(128,)] * 3 + [(116,)]
    assert plan(epoch * 2) == [1]
    assert plan(epoch * 12) == [1, 7]


@pytest.mark.parametrize("steps", [1, 2, WORTH])
def test_a_short_run_is_not_captured(steps: int) -> None:
    assert plan([(64, 64)] * steps) == []
    assert plan([(64, 64)] * (steps - 1), plain=0) == []


class FakePool:
    """Memory that must not go before what was taken from it, and that one capture at a time may use."""

    id = (0, 7)
    begun = False

    @classmethod
    def begin(cls) -> None:
        if cls.begun:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        cls.begun = True

    @classmethod
    def end(cls, _device: int = 0, _pool: tuple[int, int] = id) -> None:
        if not cls.begun:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        cls.begun = False


class FakeGraph:
    """Takes no step while it is written down, and takes it again each time it is replayed."""

    writing: Callable[[], object] | None = None

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def capture_begin(self, pool: tuple[int, int] | None, capture_error_mode: str) -> None:
        assert capture_error_mode == "relaxed"  # a kernel may be loaded while it lasts
        assert pool == (FakePool.id if torch.cuda.memory.get_allocator_backend() == "native" else None)
        FakePool.begin()
        FakeGraph.writing = self._steps.append  # type: ignore[assignment]

    def capture_end(self) -> None:
        """As CUDA does it: a capture that broke off ends with an error, and leaves its pool as it is."""
        FakeGraph.writing = None
        if not self._steps:
            raise RuntimeError("operation failed due to a previous error during capture")
        FakePool.end()

    def replay(self) -> None:
        for step in self._steps:
            step()


@pytest.fixture
def in_the_pool(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Captured steps on a CPU, by fakes; which plain steps had the pool."""
    used: list[bool] = []

    @contextmanager
    def use(pool: FakePool) -> Iterator[None]:
        used.append(isinstance(pool, FakePool))
        FakePool.begin()
        yield
        FakePool.end()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "MemPool", FakePool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", FakePool.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda _device, _pool: None, raising=False)
    monkeypatch.setattr(FakePool, "begun", False)
    return used


def batches(count: int, images: int = 4) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randn(images, 3, generator=draw),
            torch.randn(images, generator=draw),
            torch.randperm(9, generator=draw)[:images],
        )
        for _ in range(count)
    ]


def walk(weight: Tensor) -> Callable[..., Tensor]:
    """A step that depends on the images, on their labels and places, and on all steps before."""
    loss = torch.zeros(())

    def step(images: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        def work() -> None:
            slope = (images * (positions + labels)[:, None]).mean(0)
            loss.copy_((weight * slope).sum())
            weight.mul_(0.9).sub_(0.1 * slope)

        if FakeGraph.writing is not None:  # a graph leaves its loss in one place
            FakeGraph.writing(work)  # type: ignore[call-arg]
            return loss
        work()
        return loss.clone()

    return step


@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync"])
def test_replayed_steps_are_the_plain_ones(
    in_the_pool: list[bool], monkeypatch: pytest.MonkeyPatch, allocator: str
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: allocator)
    plain, replayed = torch.ones(3), torch.ones(3)
    usual, taken = walk(plain), Captured(walk(replayed), torch.device("cpu"))
    every = batches(30)
    losses = [usual(*batch) for batch in every]
    found = [taken(batch, (4,), left=30 - place) for place, batch in enumerate(every)]
    assert torch.equal(torch.stack(found), torch.stack(losses))
    assert torch.equal(replayed, plain)
    # the first step alone is plain, and its memory is the graph's; another allocator has no pools
    assert in_the_pool == ([True] if allocator == "native" else [])


@pytest.mark.parametrize("settling", [0, 1, 3])
def test_as_many_steps_are_plain_as_a_network_needs_to_settle(in_the_pool: list[bool], settling: int) -> None:
    plain, replayed = torch.ones(3), torch.ones(3)
    usual, taken = walk(plain), Captured(walk(replayed), torch.device("cpu"), plain=settling)
    for place, batch in enumerate(batches(12)):
        usual(*batch)
        taken(batch, (4,), left=12 - place)
    assert in_the_pool == [True] * settling
    assert torch.equal(replayed, plain)


@pytest.mark.parametrize("plain", [1, 2])
@pytest.mark.parametrize("behind", [False, True])
def test_the_next_step_may_be_captured_while_the_device_is_at_the_last_plain_one(
    in_the_pool: list[bool], plain: int, behind: bool
) -> None:
    """Which changes no step."""
    usual, replayed = torch.ones(3), torch.ones(3)
    step, taken = walk(usual), Captured(walk(replayed), torch.device("cpu"), plain, behind)
    for place, batch in enumerate(batches(12)):
        loss = step(*batch)
        assert torch.equal(taken(batch, (4,), left=12 - place), loss)
        assert torch.equal(replayed, usual)
        assert ((4,) in taken._graphs) is (place + 1 >= plain + (not behind))
    assert in_the_pool == [True] * plain


@pytest.mark.parametrize(("steps", "captured"), [(WORTH + 1, False), (WORTH + 2, True)])
def test_none_is_captured_behind_the_last_plain_step_where_too_few_are_left(
    in_the_pool: list[bool], steps: int, captured: bool
) -> None:
    taken = Captured(walk(torch.ones(3)), torch.device("cpu"), plain=2, behind=True)
    for place, batch in enumerate(batches(steps)):
        taken(batch, (4,), left=steps - place)
    assert bool(taken._graphs) is captured
    assert in_the_pool == [True] * (2 if captured else steps)


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_captured_at_once_is_after_a_plain_step(in_the_pool: list[bool]) -> None:
    """As where a library makes something on its first call that it may not make while a step is captured."""
    plain, replayed = torch.ones(3), torch.ones(3)
    usual, other = walk(plain), walk(replayed)
    woken: list[bool] = []

    def wakes(*given: Tensor) -> Tensor:
        if FakeGraph.writing is None:
            woken.append(True)
        elif not woken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return other(*given)

    taken = Captured(wakes, torch.device("cpu"), plain=0)
    every = batches(20)
    losses = [usual(*batch) for batch in every]
    found = [taken(batch, (4,), left=20 - place) for place, batch in enumerate(every)]
    assert torch.equal(torch.stack(found), torch.stack(losses))
    assert torch.equal(replayed, plain)
    assert woken == [True]
    assert in_the_pool == [True]  # another one than that of the capture that broke off
    assert not FakePool.begun


def test_the_loss_of_a_plain_step_does_not_stay_where_a_graph_may_write(
    in_the_pool: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = torch.tensor(2.0)  # as of a size that comes too rarely to be captured, between replays of the usual one
    copied_in_pool: list[bool] = []
    own = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda loss: copied_in_pool.append(FakePool.begun) or own(loss))
    found = Captured(lambda *_given: kept, torch.device("cpu"))(batches(1)[0], (4,), left=1)
    kept.fill_(torch.nan)
    assert float(found) == 2
    assert copied_in_pool == [False]
    assert in_the_pool == [True]


@pytest.mark.parametrize("settling", [0, 1])
def test_a_network_that_cannot_be_captured_is_stepped_plainly(in_the_pool: list[bool], settling: int) -> None:
    weight = torch.ones(3)
    usual = walk(weight)

    def asks(*given: Tensor) -> Tensor:
        if FakeGraph.writing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return usual(*given)

    taken = Captured(asks, torch.device("cpu"), settling)
    first, *others = batches(20)
    taken(first, (4,), left=20)
    with pytest.warns(UserWarning, match="one by one.*not permitted"):
        taken(others[0], (4,), left=19)
    for place, batch in enumerate(others[1:]):
        taken(batch, (4,), left=18 - place)
    assert in_the_pool == [True]  # what a capture broke off with is not used again
    assert not FakePool.begun


def test_the_pool_goes_after_its_graphs_whoever_holds_them(in_the_pool: list[bool]) -> None:
    """A pool that goes while it is in use ends the process."""
    gone: list[str] = []
    taken = Captured(walk(torch.ones(3)), torch.device("cpu"))
    every = batches(20)
    for place, batch in enumerate(every[:3]):
        taken(batch, (4,), left=20 - place)
    graph = taken._graphs[(4,)]
    assert graph is not None
    weakref.finalize(graph._graph, gone.append, "graph")
    weakref.finalize(taken._pool, gone.append, "pool")
    del taken
    assert gone == []  # as in a traceback
    del graph
    assert gone == ["graph", "pool"]


def test_elsewhere_there_is_no_other_stream() -> None:
    with captured.aside(torch.device("cpu")):
        assert captured._STREAMS == {}
