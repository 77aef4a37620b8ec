"""The frozen prefix: activations are computed once an image, and nothing else changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import famr
from famr.data import Data, Images
from famr.engine import prefix as prefixes
from famr.engine.ddp import DistributedEngine
from famr.engine.inference import predict
from famr.engine.plain import PlainEngine
from famr.engine.prefix import Prefix, PrefixEngine, PrefixSession, block_input, find_prefix, replaced_input
from famr.errors import DataError
from famr.models.classifier import logits_of
from famr.models.layers import late_parameters, train_only

CPU = torch.device("cpu")
IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
BYTES = 4 * 17 * 48
"""Of the activations of one image in `small_vit`: 16 patches and the class token."""


def timm_vit() -> nn.Module:
    module: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=4, num_classes=10
    )
    return module


def timm_resnet() -> nn.Module:
    module: nn.Module = timm.create_model("resnet18", num_classes=10)
    return module


def torchvision_vit() -> nn.Module:
    module: nn.Module = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=3, hidden_dim=48, mlp_dim=96, num_classes=10
    )
    return module


def hf_vit() -> nn.Module:
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=96,
        num_labels=10,
    )
    module: nn.Module = ViTForImageClassification(config)
    return module


class Row(nn.Module):
    """Linear blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.head = nn.Linear(3, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images.mean(dim=(2, 3)))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(hidden)
        return out


class Skipping(Row):
    """The head also reads the first block."""

    def forward(self, images: Tensor) -> Tensor:
        first = self.blocks[0](images.mean(dim=(2, 3)))
        out: Tensor = self.head(self.blocks[2](self.blocks[1](first)) + first)
        return out


class Counting(Row):
    """It compares the number of its logits with that of its images."""

    def forward(self, images: Tensor) -> Tensor:
        out = super().forward(images)
        torch._assert(len(out) == len(images), "")
        return out


class Tied(Row):
    """The stem and the last block share a weight."""

    def __init__(self) -> None:
        super().__init__()
        last = self.blocks[2]
        del self.stem
        self.early = nn.Linear(3, 3)
        self.early.weight = last.weight  # type: ignore[assignment]
        self.stem = lambda images: self.early(images)  # type: ignore[assignment]


class Repeating(Row):
    """Its last block is called twice."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = images.mean(dim=(2, 3))
        for block in (*self.blocks, self.blocks[2]):
            hidden = block(hidden)
        out: Tensor = self.head(hidden)
        return out


def logits_function(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: logits_of(module(images))


def prefix_of(module: nn.Module, share: float = 0.3, also: str | None = None) -> Prefix | None:
    """The prefix where the last share of the layers may change, and one parameter more."""
    module.eval()
    names = late_parameters(module, lambda: module(IMAGES[:1]), share, head=False)
    with train_only(module, names if also is None else [*names, also]):
        return find_prefix(module, logits_function(module), IMAGES)


def hooks_of(module: nn.Module) -> int:
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in module.modules())


@pytest.mark.parametrize("make", [timm_vit, timm_resnet, torchvision_vit, hf_vit])
def test_networks_of_every_library_give_the_same_gradient_from_the_cached_prefix(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    prefix = prefix_of(module)
    assert prefix is not None
    names = late_parameters(module, lambda: module(IMAGES[:1]), 0.3, head=False)
    with train_only(module, names):
        late = [parameter for parameter in module.parameters() if parameter.requires_grad]
        with torch.no_grad():
            activations = block_input(prefix.first_trainable, lambda: module(IMAGES))
        whole = torch.autograd.grad(logits_of(module(IMAGES)).square().sum(), late, allow_unused=True)
        with replaced_input(prefix.first_trainable, activations):
            cached = torch.autograd.grad(logits_of(module(prefix.blank)).square().sum(), late, allow_unused=True)
    assert late
    for ours, theirs in zip(cached, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert activations.shape[1:] == prefix.shape
    assert activations.nbytes == 3 * prefix.nbytes
    assert hooks_of(module) == 0


def test_a_row_of_blocks_has_a_prefix() -> None:
    torch.manual_seed(0)
    module = Row()
    prefix = prefix_of(module)
    assert prefix is not None
    assert prefix.first_trainable is module.blocks[2]


@pytest.mark.parametrize("make", [Skipping, Counting, Repeating, Tied])
def test_a_network_that_is_no_row_of_blocks_has_none(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    assert prefix_of(module) is None
    assert hooks_of(module) == 0


@pytest.mark.parametrize("early", ["blocks.0.norm1.weight", "pos_embed", "patch_embed.proj.bias", "all"])
def test_there_is_none_where_an_early_weight_may_change(early: str) -> None:
    torch.manual_seed(0)
    assert prefix_of(timm_vit(), share=1.0 if early == "all" else 0.3, also=None if early == "all" else early) is None


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), torch.OutOfMemoryError("CUDA out of memory.")])
def test_hooks_are_removed_whatever_the_network_raises(error: Exception) -> None:
    torch.manual_seed(0)
    module = timm_vit().eval()
    last = module.get_submodule("blocks.3")

    def fails(*_: object) -> None:
        raise error

    for name in ("norm", "blocks.1"):
        handle = module.get_submodule(name).register_forward_pre_hook(fails)
        with pytest.raises(type(error)), replaced_input(last, torch.zeros(3, 17, 48)):
            module(IMAGES)
        with train_only(module, ["blocks.3.mlp.fc2.weight"]):
            assert find_prefix(module, logits_function(module), IMAGES) is None
        handle.remove()
        assert hooks_of(module) == 0
    handle = module.get_submodule("blocks.1").register_forward_pre_hook(fails)
    with pytest.raises(type(error)):
        block_input(last, lambda: module(IMAGES))
    handle.remove()
    assert hooks_of(module) == 0
    with torch.no_grad():
        assert module(IMAGES).shape == (3, 10)


@cache
def small_vit() -> famr.Classifier:
    torch.manual_seed(0)
    module = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=4, num_heads=3, num_classes=10
    )
    labels = famr.open_data("digits").labels
    return famr.Classifier(module, labels, famr.Preprocessing(16, (16, 16), (0.5,) * 3, (0.5,) * 3))


def late_session(names: tuple[str, ...] = ("blocks.3.mlp.fc2.weight",)) -> PrefixSession:
    session = PrefixSession(small_vit(), CPU, "fp32", None)
    session.train_only(set(names))
    return session


def cached_shape(session: PrefixSession, images: Images) -> tuple[int, ...]:
    return tuple(next(iter(session.batches(images, 8)(None))).images.shape)


def test_a_set_is_cached_only_where_it_fits_beside_those_before_it(
    digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "CPU_CACHE_BYTES", 100 * BYTES)
    session = late_session()
    images = digits.train
    assert cached_shape(session, images.take(torch.arange(101))) == (8, 3, 16, 16)
    assert cached_shape(session, images.take(torch.arange(60))) == (8, 17, 48)
    assert cached_shape(session, images.take(torch.arange(60))) == (8, 17, 48)  # the same set
    assert cached_shape(session, images.take(torch.arange(50))) == (8, 3, 16, 16)
    assert cached_shape(session, images.take(torch.arange(40))) == (8, 17, 48)


def test_sets_of_two_sources_with_the_same_rows_are_two_sets() -> None:
    session = late_session()
    last, normalise = session.model.module.get_submodule("blocks.3"), small_vit().require_preprocessing().normalise
    for seed in range(2):
        pixels = random_pixels(seed)
        expected = block_input(last, lambda pixels=pixels: session.model.module(normalise(pixels)))
        (batch,) = session.batches(images_of(pixels), 4)(None)
        torch.testing.assert_close(batch.images, expected.detach())


def test_a_source_lives_as_long_as_its_activations_so_that_no_other_can_have_its_id() -> None:
    session, images = late_session(), images_of(random_pixels(0))
    list(session.batches(images, 4)(None))
    source = weakref.ref(images.cache)
    del images
    gc.collect()
    assert source() is not None
    session.close()
    gc.collect()
    assert source() is None


def random_pixels(seed: int) -> Tensor:
    return torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def images_of(pixels: Tensor) -> Images:

    arrays = [image.permute(1, 2, 0).numpy() for image in pixels]
    names = [str(index) for index in range(len(arrays))]
    return Images.from_source(
        lambda row: Image.fromarray(arrays[row]), names, torch.zeros(len(arrays), dtype=torch.long)
    )


def test_only_activations_that_steps_use_are_counted_with_the_steps(digits: Data) -> None:
    session = late_session()
    evaluated, stepped = digits.train.take(torch.arange(4)), digits.train.take(torch.arange(4, 8))
    session.predict(session.evaluation_batches(evaluated))
    assert session.setup_seconds == 0
    session.predict(session.evaluation_batches(stepped))
    assert session.setup_seconds == 0
    batches = session.batches(stepped, 4)  # from here on steps use what the evaluation computed
    before = session.setup_seconds
    assert before > 0
    list(batches(None))
    assert session.setup_seconds == before


def test_the_time_to_read_images_is_not_counted(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    session, images = late_session(), digits.train.take(torch.arange(4))
    read = images.decode

    def slow(row: int) -> Any:
        now[0] += 1000  # seconds
        return read(row)

    monkeypatch.setattr(prefixes.time, "perf_counter", lambda: now[0])
    list(session.batches(replace(images, decode=slow, cache=type(images.cache)()), 4)(None))
    assert now[0] >= 4000
    assert session.setup_seconds == 0


def test_one_image_alone_does_not_show_that_a_network_is_a_row_of_blocks(digits: Data) -> None:
    torch.manual_seed(0)
    model = famr.Classifier(Counting(), digits.labels, famr.Preprocessing(16, (16, 16), (0.5,) * 3, (0.5,) * 3))
    session = PrefixSession(model, CPU, "fp32", None)
    session.train_only({"blocks.2.weight"})
    for count in (1, 5):
        images = digits.train.take(torch.arange(count))
        assert len(session.predict(session.evaluation_batches(images)).logits) == count


METHOD = famr.FAMR(effort="quick", strength=1e-3, epochs=3, function_images=6)


def first_block_images(
    monkeypatch: pytest.MonkeyPatch, method: famr.FAMR, splits: famr.Splits, **monitor: Any
) -> tuple[int, famr.Unlearned]:
    """How many images went through the frozen first block in a run with a prefix cache."""
    first = small_vit().module.get_submodule("blocks.0")
    weight, own = first.get_parameter("attn.qkv.weight"), type(first).forward
    counts: list[int] = []

    def counted(block: nn.Module, hidden: Tensor, *rest: object) -> Tensor:
        if torch.equal(block.get_parameter("attn.qkv.weight"), weight):  # a copy has the same weights
            counts.append(len(hidden))
        out: Tensor = own(block, hidden, *rest)
        return out

    monkeypatch.setattr(type(first), "forward", counted)
    result = famr.forget(small_vit(), splits, method, engine=PrefixEngine(CPU), monitor=famr.Monitor(**monitor))
    monkeypatch.setattr(type(first), "forward", own)
    return sum(count for count in counts if count > 1), result  # of single images: the blank one, and one for the order


@pytest.mark.parametrize("strength", [1.0, "auto"])
def test_every_image_goes_through_the_prefix_once_however_often_a_run_reads_it(
    digits: Data, monkeypatch: pytest.MonkeyPatch, strength: float | Literal["auto"]
) -> None:
    """In each step, each evaluation and each trial of a search."""
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.test is not None
    method = replace(METHOD, strength=strength, budget=0.9)
    images, result = first_block_images(monkeypatch, method, splits)
    watched = 9 * (500 // 9) if strength == "auto" else 0
    checked = 4 * prefixes.CHECKED_IMAGES  # in the order of calls, for a graph, plainly, and up to the block
    assert result.method.function_images == 6
    assert images == len(splits.forget) + 9 * 6 + watched + len(splits.test) + checked


def test_cached_and_whole_predictions_are_the_same(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    images = digits.train.take(torch.arange(300))
    session = late_session()
    cached = session.predict(session.evaluation_batches(images))
    monkeypatch.setattr(prefixes, "CPU_CACHE_BYTES", 0)
    whole = late_session().predict(late_session().evaluation_batches(images))
    for predictions in (cached, whole):
        torch.testing.assert_close(predictions.logits, predict(small_vit(), images, CPU).logits)
        assert torch.equal(predictions.targets, images.targets)


def test_a_class_beyond_the_head_is_an_error_also_from_the_cache(digits: Data) -> None:
    images = digits.train.take(torch.arange(30))
    beyond = replace(images, all_targets=images.all_targets + 5)
    session = late_session()
    with pytest.raises(DataError, match="class index 14, the head only 10 outputs"):
        session.predict(session.evaluation_batches(beyond))


def test_a_run_without_room_for_the_cache_ends_with_the_same_weights(
    digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    cached = famr.forget(small_vit(), splits, METHOD, engine=PrefixEngine(CPU))
    assert cached.history[0].seconds > 0  # the time to fill the cache
    monkeypatch.setattr(prefixes, "CPU_CACHE_BYTES", (len(splits.forget) + 10) * BYTES)
    partly = famr.forget(small_vit(), splits, METHOD, engine=PrefixEngine(CPU))
    plain = famr.forget(small_vit(), splits, METHOD, engine=PlainEngine(CPU))
    assert plain.history[0].seconds == 0
    for result in (cached, partly):
        for ours, theirs in zip(result.module.parameters(), plain.module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        assert [row.retain_accuracy for row in result.history] == pytest.approx(
            [row.retain_accuracy for row in plain.history], abs=1.5 / len(splits.test or [])
        )


def loader(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 3, 16, 16, generator=draws), torch.randint(10, (n,), generator=draws)) for n in sizes]


def test_pixels_of_a_loader_and_cached_activations_of_stored_images_can_be_in_one_run(digits: Data) -> None:
    method = replace(METHOD, anchor="l2", target="uniform", strength=1.0, function_strength=5.0)
    stored = digits.train.take(torch.arange(40))
    results = [
        famr.forget(small_vit(), forget=loader(6, 6, 3), method=method, anchor_images=stored, engine=engine)
        for engine in (PrefixEngine(CPU), PlainEngine(CPU))
    ]
    assert results[0].history[0].seconds > results[1].history[0].seconds == 0  # the anchor's images are cached
    for ours, theirs in zip(results[0].module.parameters(), results[1].module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_style_layer_is_read_in_every_pass_so_nothing_is_cached(digits: Data) -> None:
    session = PrefixSession(small_vit(), CPU, "fp32", None)
    session.train_only({"blocks.3.mlp.fc2.weight"}, cache_prefix=False)
    assert cached_shape(session, digits.train.take(torch.arange(8))) == (8, 3, 16, 16)


def test_several_processes_cache_nothing(digits: Data) -> None:
    with DistributedEngine(CPU).session(small_vit()) as session:
        session.train_only({"blocks.3.mlp.fc2.weight"})
        batch = next(iter(session.batches(digits.train.take(torch.arange(8)), 8)(None)))
        assert batch.images.shape == (8, 3, 16, 16)


def test_other_trainable_layers_start_a_new_cache(digits: Data) -> None:
    session, images = late_session(), digits.train.take(torch.arange(8))
    assert cached_shape(session, images) == (8, 17, 48)
    session.train_only({"blocks.0.mlp.fc2.weight"})
    assert cached_shape(session, images) == (8, 3, 16, 16)
