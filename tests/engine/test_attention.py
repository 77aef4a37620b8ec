"""Attention is planned where that pays, which is known from what a network asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

import famr
from famr.data.loaders import EVALUATION_RATIO, GPU_EVALUATION_BATCH
from famr.engine import waking
from famr.engine.attention import WORTH, Asked, Layout, attention_for, planned
from famr.engine.unread import Unread
from famr.engine.waking import Coming, Looking
from famr.models.layers import late_parameters
from famr.unlearn import forget as unlearning
from famr.unlearn.forget_loss import ForgetLoss

BLOCKS, HEADS, TOKENS = 3, 2, 17  # sixteen patches and the class token
CPU = torch.device("cpu")


def timm_vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=BLOCKS, num_heads=HEADS, num_classes=5
    )


def hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(num_hidden_layers=BLOCKS, num_attention_heads=HEADS, **sizes))


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(16, 4, BLOCKS, HEADS, 32, 64, num_classes=5)


def resnet() -> nn.Module:
    return timm.create_model("resnet10t", num_classes=5)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("build", "expected"),
    [(timm_vit, 1), (hf_vit, 1), (torchvision_vit, 1), (resnet, 0)],
)
def test_tokens_are_counted_for_each_head_block_and_image(
    build: Callable[[], nn.Module], expected: int, gradients: bool
) -> None:
    network = build().eval()
    with torch.set_grad_enabled(gradients), Asked() as asked:
        network(torch.zeros(7, 3, 16, 16))
    assert asked.tokens == expected * 7 * BLOCKS * HEADS * TOKENS


def test_a_plan_pays_from_so_many_tokens_on_and_where_nobody_counted() -> None:
    assert planned(WORTH // 10, 10)
    assert not planned(WORTH // 10 - 1, 10)
    assert not planned(0, 10)
    assert planned(None, 10)


@pytest.mark.parametrize(("tokens", "enabled"), [(WORTH, True), (1, False), (None, True)])
def test_steps_take_the_kernels_that_pay(tokens: int | None, enabled: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with attention_for(tokens, 1):
            assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
        assert torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, int]]:
    """What runs said about their steps: tokens a pass, and passes."""
    found: list[tuple[int | None, int]] = []
    own = unlearning.attention_for
    monkeypatch.setattr(unlearning, "attention_for", lambda *said: found.append(said) or own(*said))
    return found


@pytest.mark.parametrize("held", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_run_counts_what_its_steps_will_ask_for(
    original: famr.Classifier,
    without_three: famr.Splits,
    told: list[tuple[int | None, int]],
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    held: float,
) -> None:
    """Behind a frozen front, that is what the edited blocks ask for."""
    monkeypatch.setattr(unlearning, "lean_pays", lambda _place: True)
    method = famr.FAMR(edited_share=share, function_strength=held, strength=1.0, epochs=3, precision="fp32")
    famr.forget(original, without_three, method, seed=0, device="cpu", track_retain=False, rows=1)
    blocks = original.module.blocks
    assert isinstance(blocks, nn.Sequential)
    names = late_parameters(original.module, lambda: original.module(torch.zeros(1, 3, 12, 12)), share, head=False)
    first = min(int(name.split(".")[1]) for name in names if name.startswith("blocks."))
    heads, tokens = blocks[0].attn.num_heads, original.module.pos_embed.shape[1]  # type: ignore[union-attr, index]
    assert first == (0 if share == 1 else len(blocks) - 1)
    assert told == [(len(without_three.forget) * (len(blocks) - first) * heads * tokens, 6 if held else 3)]


def test_without_leaner_ways_nobody_counts(
    original: famr.Classifier, without_three: famr.Splits, told: list[tuple[int | None, int]]
) -> None:
    famr.forget(original, without_three, famr.FAMR(epochs=1, strength=1.0), seed=0, device="cpu", rows=1)
    assert [tokens for tokens, _ in told] == [None]


class Seen:
    """A network's images at a time, and which weights had gradients then; it may break off at so many."""

    def __init__(self, network: nn.Module, most: int) -> None:
        self.network, self.most = network, most
        self.images: list[tuple[int, set[str]]] = []
        network.register_forward_pre_hook(self.note)

    def note(self, network: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if len(inputs[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        blocks = [each for each in network.named_parameters() if each[0].startswith("blocks.")]
        free = {name.split(".")[1] for name, weight in blocks if weight.requires_grad}
        self.images.append((len(inputs[0]), free if torch.is_grad_enabled() else set()))


COMING = Coming(looked_at=50, images=20, passes=100)


def woken(
    network: nn.Module, coming: Coming, most: int = 99, soon: Event | None = None
) -> tuple[Unread, list[tuple[int, set[str]]]]:
    seen, method = Seen(network, most), famr.FAMR(precision="fp32")
    waking._free_last_blocks(network)
    found = waking._woken(famr.Classifier(network), method, (3, 16, 16), CPU, coming, soon or Event())
    return found, seen.images


@pytest.fixture(autouse=True)
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_AWAKE", set())


def test_a_copy_takes_a_step_of_the_size_to_come() -> None:
    """With gradients for the last blocks; after that it looks at as many images as a run will look at."""
    network = timm_vit()
    found, seen = woken(network, COMING)
    assert found.layers
    assert [images for images, _ in seen] == [
        waking.SOME,
        waking.SOME,
        1,
        20,
        50,
    ]  # one says how many classes there are
    assert [free for _, free in seen[-2:]] == [{"1", "2"}, set()]  # of three blocks
    assert {name for name, weight in network.named_parameters() if weight.grad is not None} >= {
        "blocks.1.attn.qkv.weight",
        "blocks.2.mlp.fc2.weight",
    }
    assert network.blocks[0].attn.qkv.weight.grad is None  # type: ignore[union-attr, index]


@pytest.mark.parametrize("most", [30, 5])
def test_what_memory_does_not_hold_is_not_rehearsed(most: int) -> None:
    whole, every = woken(timm_vit(), COMING)
    found, seen = woken(timm_vit(), COMING, most)
    assert found.layers == whole.layers
    assert [images for images, _ in seen] == [images for images, _ in every if images <= most]


def test_a_rehearsal_leaves_most_of_the_memory_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which goes on meanwhile, and may need it."""
    enough = 4 * (20 * 3 * 16 * 16 * 4 * waking.EACH)  # twenty images take a fourth of it
    whole, _ = woken(timm_vit(), COMING)
    for room, most in ((enough, 20), (enough - 4, waking.SOME)):
        monkeypatch.setattr(waking, "ROOM", room)
        found, seen = woken(timm_vit(), COMING)
        assert max(images for images, _ in seen) == most
        assert found.layers == whole.layers


def test_no_step_is_rehearsed_once_a_run_is_about_to_take_one() -> None:
    whole, _ = woken(timm_vit(), COMING)
    soon = Event()
    soon.set()
    found, seen = woken(timm_vit(), COMING, soon=soon)
    assert found.layers == whole.layers
    assert [images for images, _ in seen] == [waking.SOME, waking.SOME]


@pytest.mark.parametrize(
    ("images", "first"),
    [
        (waking.FEW, ["anchors, not yet", "forgotten, soon", "asks, soon"]),
        (waking.FEW - 1, ["asks, soon", "anchors, soon", "forgotten, soon"]),
    ],
)
def test_a_run_says_when_nothing_but_a_last_look_comes_before_its_steps(
    images: int,
    first: list[str],
    original: famr.Classifier,
    without_three: famr.Splits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at its forget images while what nobody reads is being found, and asks for that last.

    With few images a step it waits for that first: all at once would take more memory than steps do.
    """
    came: list[str] = []

    def beside(*given: Any) -> Looking:
        soon = given[-1]
        assert isinstance(soon, Event)

        def noted(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                came.append(f"{name}, {'soon' if soon.is_set() else 'not yet'}")
                return own(*given)

            return call

        monkeypatch.setattr(unlearning, "anchors_for", noted("anchors", unlearning.anchors_for))
        monkeypatch.setattr(ForgetLoss, "measure", noted("forgotten", ForgetLoss.measure))
        return noted("asks", lambda *_: Unread())

    monkeypatch.setattr(unlearning, "looking", beside)
    method = replace(famr.FAMR.paper(), epochs=1, precision="fp32", batch_size=images)
    famr.forget(original, without_three, method, device="cpu")
    assert came[:3] == first
    assert sum(each.startswith("asks") for each in came) == 1


def test_what_is_to_come_is_known_of_somebodys_batches(
    original: famr.Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Coming] = []

    def beside(*given: Any) -> Looking:
        known.append(given[-2])
        return lambda *_: Unread()

    monkeypatch.setattr(unlearning, "looking", beside)
    method = replace(famr.FAMR.paper(), epochs=2)
    batches = [(torch.rand(size, 3, 12, 12), torch.zeros(size, dtype=torch.long)) for size in (3, 5)]
    famr.forget(original, forget=batches, method=method, device="cpu")
    assert known == [Coming(looked_at=5, images=5, passes=2 * 8)]
    assert Coming.of_batches([3, 5], replace(method, function_strength=1.0)) == (5, 10, 2 * 2 * 8)


A_PASS = BLOCKS * HEADS * TOKENS
"""Tokens of an image."""


@pytest.mark.parametrize(("passes", "drawn"), [(-(-WORTH // A_PASS), True), (WORTH // A_PASS - 1, False)])
@pytest.mark.parametrize(("room", "images"), [(None, 20), (4096, 1)])
def test_a_plan_is_drawn_where_it_pays_for_as_many_images_as_a_step_has(
    passes: int, drawn: bool, room: int | None, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or for one, which loads what plans are made of, where memory is scarce."""
    found: list[tuple[Layout, int, torch.device]] = []
    if room is not None:
        monkeypatch.setattr(waking, "ROOM", room)
    monkeypatch.setattr(waking, "_draw_plan", lambda *given: found.append(given))
    woken(timm_vit(), COMING._replace(passes=passes))
    assert [(asked.shape[1:3], for_images, place) for asked, for_images, place in found] == drawn * [
        ((HEADS, TOKENS), images, CPU)
    ]


@pytest.mark.parametrize("build", [timm_vit, hf_vit, torchvision_vit])
def test_a_plan_is_for_queries_that_lie_as_those_of_a_step(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked about two images, known for seven."""
    network, queries = build().eval(), []
    with Asked() as asked:
        network(torch.zeros(2, 3, 16, 16))
    own = F.scaled_dot_product_attention

    def attends(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        queries.append(query)
        return own(query, *rest, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attends)
    network(torch.zeros(7, 3, 16, 16))
    assert asked.layout is not None
    found = asked.layout.zeros(7 / 2, CPU)
    assert len(queries) == BLOCKS
    for query in queries:
        assert (found.shape, found.stride(), found.dtype) == (query.shape, query.stride(), query.dtype)
    assert not found.any()


def test_windows_are_as_many_as_the_images_have() -> None:
    """An image is seen in four windows here."""
    windows = torch.zeros(2 * 4, 3, 5, 8)
    with Asked() as asked:
        F.scaled_dot_product_attention(windows, windows, windows)
    assert asked.layout is not None
    assert asked.layout.zeros(7 / 2, CPU).shape == (7 * 4, 3, 5, 8)


def test_attention_may_be_asked_about_one_image_that_is_in_no_batch() -> None:
    with Asked() as asked:
        nn.MultiheadAttention(8, 2)(*3 * [torch.zeros(5, 8)], need_weights=False)
    assert asked.tokens == 2 * 5
    assert asked.layout is not None
    assert asked.layout.shape == (1, 2, 5, 4)


@pytest.mark.parametrize("order", [(5, 1), (1, 5)])
def test_the_plan_is_for_the_attention_that_is_asked_most(order: tuple[int, int]) -> None:
    """Some networks end with one that is asked about a single token."""
    with Asked() as asked:
        for tokens in order:
            F.scaled_dot_product_attention(torch.zeros(2, 3, tokens, 8), *2 * [torch.zeros(2, 3, 5, 8)])
    assert asked.layout == Layout((2, 3, 5, 8), (120, 40, 8, 1), torch.float32)


def test_a_plan_is_drawn_up_forwards_and_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, ...]] = []

    class Attends(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return query + key + value

        @staticmethod
        def backward(_ctx: Any, slope: torch.Tensor) -> Any:
            taken.append(tuple(slope.shape))
            return slope, slope, slope

    def cudnn(query: Any, key: Any, value: Any, bias: None, statistics: bool) -> list[torch.Tensor]:
        assert bias is None
        assert statistics  # else there is no backward pass
        return [Attends.apply(query, key, value)]

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", cudnn)
    with torch.no_grad():  # as where a copy was looking
        waking._draw_plan(Layout((2, 3, 5, 8), (120, 40, 8, 1), torch.float32), 4, CPU)
    assert taken == [(4, 3, 5, 8)]


def test_what_is_to_come_of_a_run() -> None:
    method = famr.FAMR(epochs=12, function_strength=1.0)
    assert Coming.of(500, method, torch.device("cuda")) == (500, 250, 12_000)
    assert Coming.of(5000, method, torch.device("cuda")).looked_at == EVALUATION_RATIO * 250
    assert Coming.of(5000, replace(method, batch_size=512), torch.device("cuda")).looked_at == GPU_EVALUATION_BATCH
    assert Coming.of(500, famr.FAMR(epochs=10, function_strength=0.0), torch.device("cuda")) == (500, 125, 5000)
