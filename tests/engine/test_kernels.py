"""Kernels of our own: they compile, they are tried before they are used, and they are used."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.engine.kernels import compiling, gelu, get_ready, toolchain
from famr.engine.kernels.compiling import Key, ready, source
from famr.engine.kernels.gelu import Gelu
from famr.engine.kernels.layer_norm import LANES, WARPS, WIDEST, LayerNorms, agrees, serves
from famr.engine.lean import LeanBackward, sum_to_last

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_COMING", {})


def there_is(key: Key, found: object) -> None:
    coming: Future[Any] = Future()
    coming.set_result(found)
    compiling._COMING[key] = coming


def forward(grid: Any, block: Any, given: list[Any]) -> None:
    """What the kernel does, said in torch."""
    x, weight, bias, out, mean, rstd, rows, eps = given
    wide = x.float().reshape(rows, -1)
    mean.copy_(wide.mean(1))
    rstd.copy_((wide.var(1, correction=0) + eps).rsqrt())
    out.copy_(((wide - mean[:, None]) * rstd[:, None] * weight.float() + bias.float()).reshape(x.shape))


def backward(grid: tuple[int, int, int], block: Any, given: list[Any]) -> None:
    """Each block takes the rows of its warps, in turn."""
    slope, around, x, mean, rstd, weight, of_x, of_scale, of_shift, of_sum, rows, goes_around = given
    g, unit = slope.float().reshape(rows, -1), (x.float().reshape(rows, -1) - mean[:, None]) * rstd[:, None]
    weighted = g * weight.float()
    across = (weighted * unit).mean(1, keepdim=True)
    found = rstd[:, None] * (weighted - weighted.mean(1, keepdim=True) - unit * across)
    found = found + goes_around * around.float().reshape(rows, -1)
    of_x.copy_(found.reshape(x.shape))
    for place in range(grid[0]):
        mine = torch.arange(rows) // WARPS % grid[0] == place
        of_scale[place], of_shift[place], of_sum[place] = ((each[mine]).sum(0) for each in (g * unit, g, found))


@pytest.fixture
def kernels() -> LayerNorms:
    """In the place of compiled ones, on the CPU, for rows of 64."""
    found = LayerNorms(forward, backward, processors=2)
    there_is((LayerNorms, 64, CPU), found)
    return found


def in_half(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def learnt(network: nn.Module, x: Tensor, slope: Tensor, *, lean: bool) -> list[Tensor | None]:
    """What a network says, and its gradients."""
    network.zero_grad()
    with LeanBackward() if lean else nullcontext():
        out = network(x)
    out.backward(slope)
    return [out.detach(), *(weight.grad for weight in network.parameters())]


def assert_near(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    """Up to what bf16 rounds away."""
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert float((one.float() - other.float()).norm()) <= 2**-6 * float(other.float().norm())


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each gradient had whose rows were summed for a bias."""
    found: list[int] = []
    monkeypatch.setattr("famr.engine.lean.sum_to_last", lambda given: found.append(len(given)) or sum_to_last(given))
    return found


def test_right_kernels_agree_with_the_library() -> None:
    assert agrees(LayerNorms(forward, backward, 2), 64, CPU)
    assert agrees(LayerNorms(forward, backward, 1), 200, CPU)


def no_shift(grid: Any, block: Any, given: list[Any]) -> None:
    forward(grid, block, [*given[:2], torch.zeros_like(given[2]), *given[3:]])


def a_row_too_few(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, given)
    given[6][-1] = 0


def lost_block(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, given)
    given[7][-1] = 0


def no_number(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, given)
    given[8][0, 0] = float("nan")


def unsummed(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, given)
    given[9][-1] = 0


def never_around(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, [*given[:-1], 0])


def always_around(grid: Any, block: Any, given: list[Any]) -> None:
    backward(grid, block, [*given[:-1], 1])


@pytest.mark.parametrize(
    ("ahead", "back"),
    [
        (no_shift, backward),
        *((forward, wrong) for wrong in (a_row_too_few, lost_block, no_number, unsummed, never_around, always_around)),
    ],
)
def test_wrong_ones_do_not(ahead: Callable[..., None], back: Callable[..., None]) -> None:
    assert not agrees(LayerNorms(ahead, back, 2), 64, CPU)


def test_a_network_uses_them_for_rows_in_half_and_gets_the_same_gradients(kernels: LayerNorms) -> None:
    layer = nn.LayerNorm(64).bfloat16()
    nn.init.normal_(layer.weight)
    x, slope = in_half(3, 5, 64).requires_grad_(), in_half(3, 5, 64)
    found = []
    for lean in (True, False):
        layer.zero_grad()
        x.grad = None
        if lean:
            with LeanBackward():
                out = layer(x)
            assert out.grad_fn.own is kernels
        else:
            out = layer(x)
        out.backward(slope)
        found.append([out.detach(), x.grad, layer.weight.grad, layer.bias.grad])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert float((one.float() - other.float()).norm()) <= 2**-6 * float(other.float().norm())


class Block(nn.Module):
    """x + f(norm(x)), said in the ways of several libraries."""

    def __init__(self, way: str, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer, self.way = nn.LayerNorm(width), nn.Linear(width, width), way
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm(x)
        if self.way == "unread":
            return x + 1
        branch = self.layer(inside)
        ways: dict[str, Callable[[], Tensor]] = {
            "before": lambda: x + branch,
            "after": lambda: branch + x,
            "by name": lambda: torch.add(input=x, other=branch),
            "named": lambda: torch.add(branch, x),
            "twice": lambda: x + x + branch,
            "in parts": lambda: x + branch[:, :1],
            "scaled": lambda: x.add(branch, alpha=0.5),
            "not at all": lambda: branch,
            "elsewhere": lambda: x * 2 - branch,
        }
        return ways[self.way]()


AROUND = ("before", "after", "named", "twice", "in parts", "scaled")


@pytest.mark.parametrize("way", [*AROUND, "by name", "not at all", "elsewhere", "unread"])
def test_what_goes_around_a_normalisation_has_its_gradient_added_there(way: str) -> None:
    seen: list[int] = []

    def spied(grid: Any, block: Any, given: list[Any]) -> None:
        seen.append(given[-1])
        backward(grid, block, given)

    there_is((LayerNorms, 64, CPU), LayerNorms(forward, spied, processors=2))
    network = nn.Sequential(nn.Linear(64, 64), Block(way), Block(way)).bfloat16()
    given = in_half(3, 5, 64), in_half(3, 5, 64)
    assert_near(learnt(network, *given, lean=True), learnt(network, *given, lean=False))
    assert seen == ([] if way == "unread" else 2 * [int(way in AROUND)])


@pytest.mark.parametrize(("way", "sums"), [("before", 1), ("after", 1), ("in parts", 3), ("scaled", 3)])
def test_a_bias_that_is_added_to_what_is_normalised_gets_sums_that_were_taken_on_the_way(
    way: str, sums: int, kernels: LayerNorms, summed: list[int]
) -> None:
    """But for the last, behind which nothing is normalised."""
    network = nn.Sequential(Block(way), Block(way), nn.LayerNorm(64), Block("not at all")).bfloat16()
    given = in_half(3, 5, 64), in_half(3, 5, 64)
    assert_near(learnt(network, *given, lean=True), learnt(network, *given, lean=False))
    assert len(summed) == sums


def test_a_gradient_that_goes_around_is_copied_where_it_lies_badly() -> None:
    def spied(grid: Any, block: Any, given: list[Any]) -> None:
        assert all(compiling.fits(each) for each in given[:3])
        backward(grid, block, given)

    there_is((LayerNorms, 64, CPU), LayerNorms(forward, spied, processors=2))
    network, x = Block("before").bfloat16(), in_half(3, 5, 64).requires_grad_()
    with LeanBackward():
        out = network(x)
    (found,) = torch.autograd.grad(out.sum(), x)  # one number, which stands for all
    (expected,) = torch.autograd.grad(network(x).sum(), x)
    assert float((found - expected).norm()) <= 2**-6 * float(expected.norm())


def test_nothing_is_kept_of_what_went_around(kernels: LayerNorms) -> None:
    context = LeanBackward()
    with context:
        Block("not at all").bfloat16()(in_half(3, 5, 64).requires_grad_())
        assert len(context._around) == 1
    assert not context._around


def test_anything_else_is_left_to_the_library(kernels: LayerNorms) -> None:
    weight, bias = in_half(64), in_half(64)

    def found(x: Tensor, weight: Tensor = weight, bias: Tensor = bias) -> LayerNorms | None:
        return ready(LayerNorms, x.shape[-1], (x, weight, bias))

    assert found(in_half(2, 64)) is kernels
    assert found(in_half(2, 64).float()) is None
    assert found(in_half(2, 64), weight.float()) is None
    assert found(in_half(0, 64)) is None
    assert found(in_half(64, 2).mT) is None  # rows that do not lie one after the other
    assert found(in_half(2 * 64 + 1)[1:].view(2, 64)) is None  # and do not begin at a whole piece
    assert found(in_half(2, 32), in_half(32), in_half(32)) is None  # nobody asked for this width


def test_where_they_cannot_be_compiled_the_library_does_it() -> None:
    """As on a machine without CUDA."""
    network = nn.Sequential(nn.LayerNorm(24), nn.LayerNorm(12), nn.LayerNorm(24, elementwise_affine=False), nn.GELU())
    get_ready(network)
    assert [key[:2] for key in compiling._COMING] == [(Gelu, 0), (LayerNorms, 24)]  # each width that can be served
    assert ready(LayerNorms, 24, [in_half(2, 24)]) is None
    first = network[0].bfloat16()
    with LeanBackward():
        out = F.gelu(first(in_half(2, 24)))
    assert torch.equal(out, F.gelu(F.layer_norm(in_half(2, 24), (24,), first.weight, first.bias)))


def test_a_gradient_that_lies_badly_is_copied() -> None:
    for slope in (in_half(64, 2).mT, in_half(2 * 64 + 1)[1:].view(2, 64), in_half(2, 64)):
        found = compiling.fitting(slope)
        assert compiling.fits(found)
        assert torch.equal(found, slope)
        assert (found is slope) is compiling.fits(slope)


def gelu_forward(grid: Any, block: Any, given: list[Any]) -> None:
    x, out, pieces = given
    assert pieces * 8 == x.numel()
    assert grid[0] * block[0] >= pieces
    out.copy_(x.float() * (1 + torch.erf(x.float() / 2**0.5)) / 2)


def gelu_backward(grid: Any, block: Any, given: list[Any]) -> None:
    """Each row of blocks takes so many rows, and keeps their sum."""
    slope, x, of_x, sums, pieces, rows, each = given
    assert pieces * 8 == x.shape[-1]
    assert grid[0] * block[0] >= pieces > (grid[0] - 1) * block[0]
    assert grid[1] * each >= rows > (grid[1] - 1) * each
    wide = x.double()
    normal = torch.distributions.Normal(0.0, 1.0)
    found = slope * (normal.cdf(wide) + wide * normal.log_prob(wide).exp())
    of_x.copy_(found)
    for place, some in enumerate(found.reshape(rows, -1).split(each)):
        sums[place] = some.sum(0)


def of_the_tail(grid: Any, block: Any, given: list[Any]) -> None:
    """Good to three digits of the largest answers, and wrong where they are next to nothing."""
    gelu_forward(grid, block, given)
    given[1][given[0] < -4] = -0.01


def halved_slope(grid: Any, block: Any, given: list[Any]) -> None:
    gelu_backward(grid, block, [given[0] / 2, *given[1:]])


def a_block_unsummed(grid: Any, block: Any, given: list[Any]) -> None:
    gelu_backward(grid, block, given)
    given[3][-1] = 0


@pytest.mark.parametrize("processors", [1, 2, 132])
def test_a_right_gelu_agrees_with_the_library_and_wrong_ones_do_not(processors: int) -> None:
    assert gelu.agrees(Gelu(gelu_forward, gelu_backward, processors), CPU)
    assert not gelu.agrees(Gelu(of_the_tail, gelu_backward, processors), CPU)
    assert not gelu.agrees(Gelu(gelu_forward, halved_slope, processors), CPU)
    assert not gelu.agrees(Gelu(gelu_forward, a_block_unsummed, processors), CPU)


class Mlp(nn.Module):
    """A layer, GELU, and perhaps somebody else who reads what the layer said, or changes its gradient."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.way = nn.Linear(16, 64), way

    def forward(self, x: Tensor) -> Tensor:
        inside = self.layer(x)
        if self.way == "changed":
            inside.register_hook(lambda slope: slope.mul_(2))
        out = F.gelu(inside)
        return out + inside if self.way == "read twice" else out


@pytest.mark.parametrize("way", ["alone", "read twice", "changed"])
def test_a_bias_before_a_gelu_gets_the_sums_that_were_taken_on_the_way(way: str, summed: list[int]) -> None:
    there_is((Gelu, 0, CPU), Gelu(gelu_forward, gelu_backward, 1))
    network, given = Mlp(way).bfloat16(), (in_half(5, 3, 16), in_half(5, 3, 64))
    *_, found = learnt(network, *given, lean=True)
    *_, expected = learnt(network, *given, lean=False)
    assert (not summed) is (way == "alone")  # else they would be those of another gradient
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


def test_rows_that_are_not_whole_pieces_are_left_to_the_library() -> None:
    there_is((Gelu, 0, CPU), Gelu(gelu_forward, gelu_backward, 1))
    with LeanBackward():
        found = [F.gelu(in_half(*shape).requires_grad_()) for shape in ((4, 8), (8, 4))]
    assert [hasattr(each.grad_fn, "own") for each in found] == [True, False]


def test_a_network_uses_it_where_there_are_gradients_in_half() -> None:
    own = Gelu(gelu_forward, gelu_backward, 1)
    there_is((Gelu, 0, CPU), own)
    x, slope = in_half(3, 64).requires_grad_(), in_half(3, 64)
    with LeanBackward():
        out = nn.GELU()(x)
        others = nn.GELU("tanh")(x), F.gelu(x.float()), F.gelu(x.detach())
        with torch.no_grad():
            assert F.gelu(x).grad_fn is None
    assert out.grad_fn.own is own
    assert not any(hasattr(other.grad_fn, "own") for other in others)
    out.backward(slope)
    assert x.grad is not None
    torch.testing.assert_close(out, F.gelu(x), rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(x.grad, torch.ops.aten.gelu_backward(slope, x.detach()), rtol=2e-2, atol=1e-2)


def by_a_torch_with_cuda() -> AbstractContextManager[object]:
    """One that was built without has no compiler, which has to be an error."""
    return nullcontext() if torch.version.cuda is not None else pytest.raises(OSError, match="nvrtc")


@pytest.mark.parametrize(("name", "width"), [("gelu", None), *(("layer_norm", width) for width in (192, 768, WIDEST))])
def test_the_kernels_compile(name: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a GPU that need not be there."""
    loaded: list[bytes] = []
    monkeypatch.setattr(compiling, "architecture", {CPU: "sm_90"}.get)
    monkeypatch.setattr(compiling, "loaded", lambda binary, *names: loaded.append(binary) or names)
    with by_a_torch_with_cuda():
        found = compiling.launches(name, CPU, **({} if width is None else {"WIDTH": width}))
        assert found == ("forward", "backward")
        (binary,) = loaded  # compiled once
        assert binary.startswith(b"\x7fELF")
        assert b".text.forward\0" in binary
        assert b".text.backward\0" in binary


def test_a_torch_without_cuda_leaves_everything_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(toolchain, "_compiler", toolchain._compiler.__wrapped__)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(compiling, "architecture", {CPU: "sm_90"}.get)
    with pytest.raises(OSError, match="nvrtc"):
        compiling.launches("gelu", CPU)
    get_ready(nn.LayerNorm(64))
    assert ready(LayerNorms, 64, [in_half(2, 64)]) is None
    assert compiling.in_use() == []


def test_compiling_loads_nothing_of_torch_that_takes_long() -> None:
    """A fresh process would wait for it: `torch.cuda._compile_kernel` needs a third of a second for its imports."""
    code = """
        import contextlib, sys, torch
        from famr.engine.kernels import compiling
        compiling.architecture, compiling.loaded = lambda device: "sm_90", lambda *given: given[1:]
        with contextlib.suppress(OSError) if torch.version.cuda is None else contextlib.nullcontext():
            compiling.launches("gelu", torch.device("cpu"))
        assert "torch.utils.cpp_extension" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=100)


@pytest.mark.parametrize(("text", "kind", "why"), [("nonsense", "sm_90", "error: "), ("", "sm_1", "invalid value")])
def test_what_does_not_compile_is_an_error_that_says_why(text: str, kind: str, why: str) -> None:
    with by_a_torch_with_cuda(), pytest.raises(RuntimeError, match=why):
        toolchain.compiled(text, kind)


def test_the_architecture_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {CPU: SimpleNamespace(major=9, minor=0), torch.device("cuda", 3): SimpleNamespace(major=12, minor=1)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", kinds.get)
    assert [toolchain.architecture(device) for device in kinds] == ["sm_90", "sm_121"]


class Driver:
    """In the place of CUDA's: modules and functions are numbers, and one call may fail."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.loaded = fails, b""
        self.launched: list[tuple[Any, ...]] = []

    def cuModuleLoadData(self, module: Any, binary: bytes) -> int:  # noqa: N802
        module._obj.value, self.loaded = 7, binary
        return 218 if self.fails == "load" else 0

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:  # noqa: N802
        assert module.value == 7
        function._obj.value = {b"forward": 70, b"backward": 71}[name]
        return 500 if self.fails == "find" else 0

    def cuLaunchKernel(self, function: ctypes.c_void_p, *given: Any) -> int:  # noqa: N802
        *sizes, shared, stream, places, extra = given
        kinds = (ctypes.c_void_p, ctypes.c_int, ctypes.c_double)
        read = [ctypes.cast(place, ctypes.POINTER(kind))[0] for place, kind in zip(places, kinds, strict=True)]
        self.launched.append((function.value, sizes, shared, stream.value, read, extra))
        return 700 if self.fails == "launch" else 0


@pytest.mark.parametrize(("fails", "error"), [("", 0), ("load", 218), ("find", 500), ("launch", 700)])
def test_a_kernel_is_loaded_and_launched_with_the_places_of_its_arguments(
    fails: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(fails)
    monkeypatch.setattr(toolchain, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match=f"CUDA error {error}: could not {fails}") if fails else nullcontext():
        for kernel in toolchain.loaded(b"binary", "forward", "backward"):
            kernel((2, 1, 1), (64, 1, 1), [x, 5, 0.25])
    assert driver.loaded == b"binary"
    launched = [(place, [2, 1, 1, 64, 1, 1], 0, 77, [x.data_ptr(), 5, 0.25], None) for place in (70, 71)]
    assert driver.launched == launched[: {"": 2, "launch": 1}.get(fails, 0)]


def test_waiting_for_a_kernel_is_counted_once() -> None:
    x, found = in_half(3, 64), Gelu(gelu_forward, gelu_backward, 1)
    there_is((Gelu, 0, CPU), found)
    before = compiling.waited()
    assert ready(Gelu, 0, [x]) is found
    assert compiling.waited() == before  # it was there
    coming: Future[Any] = Future()
    compiling._COMING[(Gelu, 0, CPU)] = coming
    threading.Timer(0.2, coming.set_result, [found]).start()
    assert ready(Gelu, 0, [x]) is found
    assert compiling.waited() - before > 0.15
    after = compiling.waited()
    assert ready(Gelu, 0, [x]) is found
    assert compiling.waited() == after


def test_both_sides_mean_the_same_by_a_block_and_by_a_piece() -> None:
    said = dict(re.findall(r"constexpr int (LANES|WARPS|PIECE) = (\d+)", source("layer_norm")))
    assert said == {"LANES": str(LANES), "WARPS": str(WARPS), "PIECE": str(compiling.PIECE)}
    assert serves(WIDEST)
    assert WARPS * WIDEST * 4 <= 48 << 10  # bytes that a block may share without asking


def test_what_is_in_use_is_told(kernels: LayerNorms) -> None:
    there_is((Gelu, 0, CPU), Gelu(gelu_forward, gelu_backward, 1))
    there_is((LayerNorms, 192, CPU), None)  # did not compile, or was wrong
    assert compiling.in_use() == ["Gelu", "LayerNorms 64"]


def test_the_thread_that_compiles_makes_itself_known_to_the_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that nothing can be loaded there."""
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda _device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("known"))
    compiling.begin((Gelu, 0, CPU), lambda: done.append("made"), lambda _found: not done.append("tried"))
    compiling._COMING[(Gelu, 0, CPU)].result()
    assert done == ["known", "made", "tried"]
