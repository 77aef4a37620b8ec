"""Less memory, the same result."""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from famr.engine.lean import LeanBackward
from torch import Tensor, nn

import famr
from famr.data.splits import Splits
from famr.engine.bf16 import halved
from famr.engine.oom import Scarce, halve_on_oom, part_size, recomputed
from famr.errors import NumericsError
from famr.models.layers import blocks
from small import ARCHITECTURE

LIBC = ctypes.CDLL(None)
MMAP_THRESHOLD = -3
"""The number of a setting of the C library's `mallopt`."""
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 2}


class Wide(nn.Module):
    """Few weights, and 1.5 MB of activations an image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16 * 16, 64)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 512))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        wide = self.inner(images.flatten(1))[:, :, None] * self.scale
        for _ in range(12):
            wide = torch.tanh(wide)
        out: Tensor = self.head(wide.mean(dim=-1))
        return out


def allocated() -> int:
    """Bytes of data of this process, as the system counts them against its limit."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@pytest.fixture(scope="module", autouse=True)
def large_pieces_go_back_at_once() -> Iterator[None]:
    """What takes a megabyte comes from the system and returns to it, so that little is there to be taken again."""
    LIBC.mallopt(MMAP_THRESHOLD, 1 << 20)
    yield
    LIBC.mallopt(MMAP_THRESHOLD, 32 << 20)  # the largest there is, and quicker


@contextmanager
def memory_for(more: int) -> Iterator[None]:
    """The system gives this process only so many bytes more; whoever asks beyond that is refused."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()  # the first one loads a good part of torch
    gc.collect()
    LIBC.malloc_trim(0)  # what others freed goes back to the system, or it would be there for us
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (allocated() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.fixture(scope="module")
def wide() -> tuple[famr.Classifier, Splits]:
    data = famr.open_data("digits")
    splits = famr.split(data, famr.Request(samples=list(range(96))))
    torch.manual_seed(0)
    return famr.Classifier(Wide(), data.labels, famr.Preprocessing(16, (16, 16), (0.5,), (0.5,))), splits


OPTIMISERS = ("sgd", "natural", "adam", "adamw")
METHOD = famr.FAMR(target="uniform", optimiser="sgd", strength=0.1, epochs=1, batch_size=96, learning_rate=1e-3)


@pytest.mark.parametrize("function_strength", [0.0, 1.0])
def test_a_run_that_runs_out_of_memory_takes_its_batches_in_parts_and_ends_the_same(
    wide: tuple[famr.Classifier, Splits], function_strength: float
) -> None:
    model, splits = wide
    method = famr.FAMR.from_json({**METHOD.to_json(), "function_strength": function_strength, "function_images": 20})
    with memory_for(70 << 20), pytest.warns(UserWarning, match=r"Memory ran out; each batch is taken in \d+ parts"):
        scarce = famr.forget(model, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    whole = famr.forget(model, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    for one, other in zip(scarce.module.parameters(), whole.module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert scarce.history[-1].loss_forget == pytest.approx(whole.history[-1].loss_forget, rel=1e-4)


class Greedy(nn.Module):
    """A row of blocks that refuses batches above a size."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3))
        self.most = most

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        out: Tensor = self.body(images)
        return out


def test_where_one_image_is_too_much_the_error_says_so_and_the_network_is_as_it_was() -> None:
    net = Greedy(most=0)
    scarce = Scarce(net)
    with (
        pytest.warns(UserWarning, match="Memory ran out"),
        pytest.raises(NumericsError, match="even for one image"),
    ):
        scarce.taken(lambda: net(torch.zeros(1, 4)).sum(), images=4)
    assert scarce.parts == 4
    scarce.close()
    assert not any("forward" in vars(module) for module in net.modules())


def test_a_step_that_had_begun_to_change_the_weights_is_not_taken_again() -> None:
    scarce, taken = Scarce(Greedy(most=9)), []

    def step() -> Tensor:
        taken.append(1)
        scarce.about_to_move()
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        scarce.taken(step, images=4)
    assert len(taken) == 1


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_every_step_says_when_it_begins_to_move_the_weights(
    wide: tuple[famr.Classifier, Splits], optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, splits = wide
    kept: list[list[Tensor]] = []

    def about_to_move(self: Scarce) -> None:
        kept.append([parameter.detach().clone() for parameter in self._module.parameters()])

    monkeypatch.setattr(Scarce, "about_to_move", about_to_move)
    changed = {"optimiser": optimiser, "strength": 1.0, "edited_share": 1.0, "fisher_images": 16}
    famr.forget(
        model,
        splits,
        famr.FAMR.from_json({**METHOD.to_json(), **changed}),
        device="cpu",
        monitor=famr.Monitor(track_retain=False),
    )
    assert kept
    for parameter, before in zip(model.module.parameters(), kept[0], strict=True):
        assert torch.equal(parameter, before)


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    def step() -> Tensor:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        Scarce(nn.Linear(1, 1)).taken(step, images=4)


def test_answers_in_halves_are_the_answers() -> None:
    net = Greedy(most=3)
    images = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(halve_on_oom(net, images), net.body(images))
    net.most = 0
    with pytest.raises(torch.OutOfMemoryError):
        halve_on_oom(net, images)


@pytest.mark.parametrize("way", ["plain", "lean", "half"])
def test_blocks_that_are_computed_twice_keep_less_and_give_the_same_gradient(way: str) -> None:
    module = famr.new_model(ARCHITECTURE, ("a", "b"), from_scratch=True, arguments=VIT).module.eval()
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def answered() -> Tensor:
        with ExitStack() as ways:
            if way == "half":
                ways.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
                ways.enter_context(halved(module))
            if way != "plain":
                ways.enter_context(LeanBackward())
            out: Tensor = module(images).float()
        return out

    def gradients() -> tuple[list[Tensor], int]:
        kept: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = answered().square().sum()
        return list(torch.autograd.grad(loss, list(module.parameters()))), sum(kept)

    assert len(list(blocks(module))) == VIT["depth"]
    usual, much = gradients()
    with recomputed(module):
        again, little = gradients()
    assert little < much / 3
    for one, other in zip(again, usual, strict=True):
        torch.testing.assert_close(one, other)
    assert not any("forward" in vars(part) for part in module.modules())


@pytest.mark.parametrize(("free", "images"), [(1, 32), (9, 64), (500, 512)])
def test_a_gpu_with_memory_to_spare_takes_more_images_at_a_time(
    free: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free << 30, 500 << 30))
    assert part_size(32, torch.device("cuda")) == images
    assert part_size(32, torch.device("cpu")) == 32
