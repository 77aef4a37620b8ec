"""What nobody reads is left out, and nothing else; answers and gradients stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import famr
from famr.engine import waking
from famr.engine.attention import Asked, Layout
from famr.engine.distributed import ALONE
from famr.engine.unread import AT_ONCE, Unread, unread
from famr.engine.waking import Coming, Looking, looking
from famr.unlearn import forget as unlearning
from famr.unlearn.setting import shape_of_one

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def timm_vit(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("vit_tiny_patch16_224", **{**SMALL, **arguments})
    return network.eval()


def hugging_face_vit() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=5)).eval()


def torchvision_vit() -> nn.Module:
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=5).eval()
    nn.init.normal_(network.heads.head.weight)  # they begin at zero, and then nothing is read at all
    return network


def said_by(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def logits(images: Tensor) -> Tensor:
        out = network(images)
        found: Tensor = out if isinstance(out, Tensor) else out.logits
        return found

    return logits


def found_in(network: nn.Module, images: Tensor | None = None) -> list[str]:
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) if images is None else images
    return list(unread(network, said_by(network), images, "fp32").layers)


EVERY = {
    "timm": (timm_vit, ["blocks.1.attn.proj", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"]),
    "transformers": (hugging_face_vit, None),
    "torchvision": (torchvision_vit, ["encoder.layers.encoder_layer_1.mlp.0", "encoder.layers.encoder_layer_1.mlp.3"]),
}


@pytest.mark.parametrize("library", EVERY)
def test_answers_and_gradients_are_those_of_the_whole_network(library: str) -> None:
    make, expected = EVERY[library]
    network = make()
    layers = found_in(network)
    assert layers == expected if expected is not None else len(layers) == 3
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    seen: list[int] = []
    handle = network.get_submodule(layers[0]).register_forward_hook(
        lambda _layer, _inputs, out: seen.append(out.shape[1])
    )

    def asked() -> tuple[Tensor, list[Tensor]]:
        logits = said_by(network)(images)
        return logits.detach(), list(
            torch.autograd.grad(logits.square().sum(), network.parameters(), allow_unused=True)
        )

    whole, slopes = asked()
    with Unread(tuple(layers)).spared(network):
        said, leaner = asked()
    handle.remove()
    assert seen == [17, 1]
    torch.testing.assert_close(said, whole, rtol=1e-5, atol=1e-6)
    for one, other in zip(leaner, slopes, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any(part._forward_pre_hooks for part in network.modules())


class Long(nn.Module):
    """As many layers behind the last mixing as are asked about at once, and two more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.head = nn.Linear(48, 8), nn.Linear(8, 5)
        self.behind = nn.ModuleList(nn.Linear(8, 8) for _ in range(AT_ONCE + 2))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.cut(images.reshape(len(images), 16, 48))
        tokens = tokens + tokens.mean(1, keepdim=True)
        for layer in self.behind:
            tokens = layer(tokens)
        out: Tensor = self.head(tokens[:, 0])
        return out


def test_gradients_are_taken_no_further_back_than_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    own = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda one, some, **how: asked.append(len(some)) or own(one, some, **how)
    )
    assert len(found_in(timm_vit())) > 0
    assert asked == [AT_ONCE]  # of two blocks the last
    asked.clear()
    assert found_in(Long()) == [f"behind.{place}" for place in range(AT_ONCE + 2)]
    assert asked == [AT_ONCE, 3]


class Shared(nn.Module):
    """The layer behind the last mixing is also one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.inside, self.head = nn.Linear(48, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.cut(images.reshape(len(images), 16, 48))
        tokens = self.inside(tokens)
        tokens = tokens + tokens.mean(1, keepdim=True)
        out: Tensor = self.head((tokens + self.inside(tokens))[:, 0])
        return out


class Picky(Shared):
    """It wants as many tokens back as it gave."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.cut(images.reshape(len(images), 16, 48))
        tokens = tokens + tokens.mean(1, keepdim=True)
        out: Tensor = self.head(torch.cat([tokens, self.inside(tokens)], dim=-1)[:, 0, 8:])
        return out


class Checking(Shared):
    """It counts the tokens it gets back, as timm's CoaT does."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.cut(images.reshape(len(images), 16, 48))
        inside = self.inside(tokens + tokens.mean(1, keepdim=True))
        torch._assert(inside.shape[1] == 16, "")
        out: Tensor = self.head(inside[:, 0])
        return out


@pytest.mark.parametrize(
    "network",
    [
        timm_vit(global_pool="avg"),
        timm_vit(global_pool="avg", init_values=1e-9),  # what the others say is there, though it hardly counts
        timm.create_model("deit_tiny_distilled_patch16_224", **SMALL).eval(),  # two tokens are read
        timm.create_model("resnet10t", num_classes=5).eval(),
        Shared(),
        Picky(),
        Checking(),
        timm_vit().requires_grad_(False),
    ],
    ids=["mean", "little of it", "two", "none", "shared", "picky", "checking", "frozen"],
)
def test_elsewhere_everything_is_computed(network: nn.Module) -> None:
    assert found_in(network) == []
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())


def test_a_run_forgets_as_without_it(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Unread] = []
    looking = unlearning.looking

    def noting(*given: Any) -> Looking:
        look = looking(*given)
        return lambda *asked: found.append(look(*asked)) or found[-1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(unlearning, "looking", noting)
    short = famr.FAMR(epochs=3, strength=0.0)  # in long runs any rounding grows
    spared = famr.forget(original, without_three, short, seed=0, device="cpu")
    assert len(found) == 1
    assert len(found[0].layers) == 2  # of the last block, what the default edits
    assert spared.history[0].seconds >= found[0].seconds > 0  # what makes steps fast is counted with them
    monkeypatch.setattr(unlearning, "looking", lambda *_given: lambda *_asked: Unread())
    whole = famr.forget(original, without_three, short, seed=0, device="cpu")
    pairs = list(zip(spared.module.parameters(), whole.module.parameters(), original.module.parameters(), strict=True))
    apart = sum(float((a - b).detach().square().sum()) for a, b, _ in pairs) ** 0.5
    went = sum(float((b - c).detach().square().sum()) for _, b, c in pairs) ** 0.5
    assert apart < 1e-5 * went
    assert not any(part._forward_pre_hooks for part in spared.module.modules())


def test_what_a_run_waited_for_is_counted_with_its_steps(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlearning, "looking", lambda *_given: lambda *_asked: Unread(seconds=1000.0))
    found = famr.forget(original, without_three, famr.FAMR(epochs=1, strength=1.0), seed=0, device="cpu")
    assert [1000 < row.seconds < 1100 for row in found.history] == [True, True]


FEW_IMAGES = Coming(looked_at=9, images=9, passes=9)


def test_a_style_is_read_off_all_tokens(original: famr.Classifier, without_three: famr.Splits) -> None:
    from famr.unlearn.forget_loss import ForgetLoss, forget_loss
    from famr.unlearn.setting import passes_of

    place = torch.device("cpu")
    for style, layers in ((False, 3), (True, 0)):
        method = famr.FAMR(target="uniform", beta=1.0 if style else 0.0, style_layer="blocks.0" if style else None)
        method = replace(method, precision="fp32")
        passes = passes_of(original, without_three, None, None, method, place)
        with forget_loss(ForgetLoss.without_target(original, method, place), passes) as loss:
            look = looking(original, method, (3, 12, 12), place, style, FEW_IMAGES, Event())
            assert len(look(loss, passes).layers) == layers  # not even where it is done beside


@pytest.fixture(autouse=True)
def asleep(monkeypatch: pytest.MonkeyPatch) -> set[torch.device]:
    """Nothing has woken yet."""
    none: set[torch.device] = set()
    monkeypatch.setattr(waking, "_AWAKE", none)
    return none


def test_a_copy_that_is_asked_beside_finds_the_same(
    original: famr.Classifier, without_three: famr.Splits, asleep: set[torch.device]
) -> None:
    from famr.unlearn.forget_loss import ForgetLoss, forget_loss
    from famr.unlearn.setting import passes_of

    place = torch.device("cpu")
    method = replace(famr.FAMR(), target="uniform", precision="fp32")
    original = original.copy()
    still = next(original.module.parameters()).requires_grad_(False)
    before = original.digest()
    passes = passes_of(original, without_three, None, None, method, place)
    shape = shape_of_one(original, passes)
    assert shape == (3, 12, 12)
    with forget_loss(ForgetLoss.without_target(original, method, place), passes) as loss:
        here, beside = (
            looking(original, method, shape, place, lean, FEW_IMAGES, Event())(loss, passes) for lean in (False, True)
        )
        assert len(here.layers) == 3
        assert beside.layers == here.layers
        asleep.clear()
        nothing = looking(original, method, (3, 5, 5), place, True, FEW_IMAGES, Event())(
            loss, passes
        )  # it cannot take such images
        assert nothing.layers == ()
    assert original.digest() == before
    assert not still.requires_grad
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in original.module.modules())


@pytest.mark.parametrize(
    ("network", "attends"), [(timm_vit(), True), (timm.create_model("resnet10t", num_classes=5).eval(), False)]
)
def test_only_networks_with_attention_have_its_kernels_loaded(network: nn.Module, attends: bool) -> None:
    with torch.no_grad(), Asked() as attention:
        network(torch.zeros(1, 3, 16, 16))
    assert bool(attention.tokens) is attends


@pytest.mark.parametrize(
    ("kind", "passes", "asked"),
    [("cuda", 5000, False), ("cuda", waking.PAYS, True), ("cpu", 5000, True)],
)
def test_a_network_on_a_gpu_is_asked_where_a_run_is_long_enough_to_gain(
    kind: str, passes: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "unread", lambda *_: Unread(("head",)))
    model, how = SimpleNamespace(module=timm_vit()), SimpleNamespace(settled_precision="fp32")
    loss = SimpleNamespace(tap=None, ranks=ALONE, device=torch.device(kind), model=model, logits=None, method=how)
    images = SimpleNamespace(forget=lambda _seed: [SimpleNamespace(images=torch.zeros(3, 1))])
    found = waking._asked(Coming(9, 9, passes), loss, images)  # type: ignore[arg-type]
    assert bool(found.layers) is asked


def test_a_copy_is_small_and_has_gradients_where_it_needs_them(
    original: famr.Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded, but for its last blocks, whose steps are rehearsed, and what is never rounded; the network itself stays
    as it is."""
    copies: list[nn.Module] = []
    monkeypatch.setattr(waking, "_woken", lambda tried, *_: copies.append(tried.module) or Unread())
    before = original.digest()
    method = famr.FAMR(precision="bf16")
    look = looking(original, method, (3, 12, 12), torch.device("cpu"), True, FEW_IMAGES, Event())
    look(None, None)  # type: ignore[arg-type]
    (copy,) = copies
    kinds = {name: (weight.dtype, weight.requires_grad) for name, weight in copy.named_parameters()}
    last = [f"blocks.{place}." for place in range(len(copy.blocks))][-waking.REHEARSED :]  # type: ignore[arg-type]
    for name, kind in kinds.items():
        late, wide = name.startswith(tuple(last)), name.startswith(("norm.", "head."))
        assert kind == (torch.float32 if late or wide else torch.bfloat16, late), name
    assert original.digest() == before
    assert all(weight.requires_grad for weight in original.module.parameters())


def test_a_copy_of_a_network_whose_head_is_a_row_too_is_asked_about_its_last_blocks() -> None:
    network = timm_vit(depth=4)
    network.head = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 5))
    whole = unread(network, network, torch.randn(2, 3, 16, 16), "fp32")
    waking._free_last_blocks(network)
    free = {name.rpartition(".")[0] for name, weight in network.named_parameters() if weight.requires_grad}
    assert {name.split(".")[1] for name in free if name.startswith("blocks.")} == {"2", "3"}
    assert {"head.0", "head.2"} <= free
    assert "patch_embed.proj" not in free
    assert unread(network, network, torch.randn(2, 3, 16, 16), "fp32").layers == whole.layers != ()


@pytest.mark.parametrize(("kind", "times"), [("cpu", 0), ("cuda", 1)])
def test_who_waited_for_a_copy_lets_go_of_its_work_space(
    kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[bool] = []
    monkeypatch.setattr(waking, "_let_go_of_work_space", lambda: gone.append(coming.done()))
    coming: Future[Unread] = Future()
    coming.set_result(Unread(("head",)))
    assert waking._awaited(torch.device(kind), coming, None, None).layers == ("head",)  # type: ignore[arg-type]
    assert gone == times * [True]


@pytest.mark.parametrize(
    ("pools", "allocator", "goes"),
    [([(0, 0), (0, 0)], "native", True), ([(0, 0), (0, 7)], "native", False), ([], "cudaMallocAsync", False)],
)
def test_work_space_goes_unless_a_graph_may_use_it(
    pools: list[tuple[int, int]], allocator: str, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[bool] = []
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: allocator)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [{"segment_pool_id": pool} for pool in pools])
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cleared.append(True), raising=False)
    waking._let_go_of_work_space()
    assert bool(cleared) is goes


def test_a_device_without_such_kernels_is_no_error() -> None:
    waking._draw_plan(Layout((2, 3, 5, 8), (120, 40, 8, 1), torch.bfloat16), 4, torch.device("cpu"))


def test_a_copy_is_woken_once_and_then_the_network_itself_is_asked(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    from famr.unlearn.forget_loss import ForgetLoss, forget_loss
    from famr.unlearn.setting import passes_of

    method, place = replace(famr.FAMR(), target="uniform", precision="fp32"), torch.device("cpu")
    copies: list[famr.Classifier] = []
    own = famr.Classifier.copy
    monkeypatch.setattr(famr.Classifier, "copy", lambda model: copies.append(model) or own(model))
    unplanned: list[int] = []
    monkeypatch.setattr(waking, "unplanned_attention", lambda: unplanned.append(1) or nullcontext())
    passes = passes_of(original, without_three, None, None, method, place)
    with forget_loss(ForgetLoss.without_target(original, method, place), passes) as loss:
        given = (original, method, (3, 12, 12), place, True, FEW_IMAGES, Event())
        found = [looking(*given)(loss, passes) for _ in range(3)]
    assert len(copies) == 1
    assert len(unplanned) == 3  # a plan of attention for two images would serve nobody
    assert len(found[0].layers) == 3
    assert [each.layers for each in found] == 3 * [found[0].layers]


def test_a_network_without_attention_leaves_it_asleep(asleep: set[torch.device]) -> None:
    place = torch.device("cpu")
    for network, awake in ((timm.create_model("resnet10t", num_classes=5), set()), (timm_vit(), {place})):
        method = replace(famr.FAMR(), precision="fp32")
        waking._woken(famr.Classifier(network), method, (3, 16, 16), place, FEW_IMAGES, Event())
        assert asleep == awake
