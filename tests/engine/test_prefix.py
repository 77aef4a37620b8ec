"""The frozen front of a network: walked once, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Literal

import pytest
import timm
import torch
import torchvision
from famr.engine.unread import Unread
from famr.targets.distributions import matching_temperature, without
from famr.unlearn.forget_loss import ForgetLoss, HeldOut, Passes
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import famr
from famr.anchors import FunctionAnchor
from famr.data import Data
from famr.data.splits import sample_per_class
from famr.engine import prefix as front
from famr.engine.inference import predict
from famr.engine.prefix import Front, fits, frozen_front
from famr.errors import DataError
from famr.metrics.forgetting import correct
from famr.models.classifier import logits_of
from famr.models.layers import late_parameters, train_only
from famr.unlearn import forget as unlearning
from famr.unlearn import setting, watch

HERE = torch.device("cpu")
SOME = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def timm_vit() -> nn.Module:
    found: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=4, num_classes=10
    )
    return found


def timm_resnet() -> nn.Module:
    found: nn.Module = timm.create_model("resnet18", num_classes=10)
    return found


def torchvision_vit() -> nn.Module:
    found: nn.Module = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=3, hidden_dim=48, mlp_dim=96, num_classes=10
    )
    return found


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
    found: nn.Module = ViTForImageClassification(config)
    return found


class Remembering(nn.Module):
    """Its last block is also told what the first one said."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.head = nn.Linear(3, 10)

    def forward(self, images: Tensor) -> Tensor:
        first = self.blocks[0](images.mean(dim=(2, 3)))
        said: Tensor = self.head(self.blocks[2](self.blocks[1](first)) + first)
        return said


class Counting(Remembering):
    """It counts its answers."""

    def forward(self, images: Tensor) -> Tensor:
        said = images.mean(dim=(2, 3))
        for block in self.blocks:
            said = block(said)
        torch._assert(len(said) == len(images), "")
        out: Tensor = self.head(said)
        return out


def tried(module: nn.Module, share: float = 0.3, also: str | None = None) -> Front | None:
    """The front of a network of which a share is edited, and one weight more."""
    module.eval()
    names = late_parameters(module, lambda: module(SOME[:1]), share, head=False)

    def logits(images: Tensor) -> Tensor:
        return logits_of(module(images))

    def beyond(found: Front) -> Callable[[Tensor], Tensor]:
        def said(kept: Tensor) -> Tensor:
            with found.behind(kept):
                return logits(found.blank)

        return said

    with train_only(module, names if also is None else [*names, also]):
        return frozen_front(module, logits, beyond, SOME)


@pytest.mark.parametrize("make", [timm_vit, timm_resnet, torchvision_vit, hf_vit])
def test_networks_of_every_library_answer_and_learn_the_same_behind_their_front(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    found = tried(module)
    assert found is not None
    names = late_parameters(module, lambda: module(SOME[:1]), 0.3, head=False)
    with train_only(module, names):
        slopes = []
        for behind in (False, True):
            module.zero_grad()
            if behind:
                with found.behind(found.walked(SOME)):
                    said = logits_of(module(found.blank))
            else:
                said = logits_of(module(SOME))
            said.square().sum().backward()  # type: ignore[no-untyped-call]
            slopes.append([parameter.grad for parameter in module.parameters() if parameter.requires_grad])
    assert slopes[0]
    for plain, kept in zip(*slopes, strict=True):
        assert plain is not None
        torch.testing.assert_close(kept, plain, rtol=0, atol=0)
    assert not any("forward" in vars(part) for part in module.modules())  # the network is as it was


@pytest.mark.parametrize("make", [Remembering, Counting])
def test_a_network_whose_late_layers_read_early_ones_is_left_alone(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert tried(make()) is None


def test_nothing_is_skipped_where_an_early_weight_may_change() -> None:
    torch.manual_seed(0)
    assert tried(timm_vit(), also="blocks.0.norm1.weight") is None
    assert tried(timm_vit(), also="pos_embed") is None
    assert tried(timm_vit(), share=1.0) is None


def test_an_error_inside_leaves_the_network_whole() -> None:
    torch.manual_seed(0)
    module = timm_vit()
    found = tried(module)
    assert found is not None
    with pytest.raises(RuntimeError), found.behind(torch.zeros(1, 2, 3)):
        module(SOME)
    with torch.no_grad():
        assert module(SOME).shape == (3, 10)


def test_what_would_take_too_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    found = tried(timm_vit())
    assert found is not None
    each = 4 * 17 * 48  # bytes of 16 patches and the class token
    monkeypatch.setattr(front, "ROOM", 100 * each)
    assert fits(found, 100)
    assert not fits(found, 101)


@pytest.mark.parametrize("for_steps", [True, False])
def test_only_what_is_walked_for_the_steps_is_counted_with_them(digits: Data, for_steps: bool) -> None:
    torch.manual_seed(0)
    found = tried(timm_vit())
    assert found is not None
    how = famr.Preprocessing(32, (32, 32), (0.5,) * 3, (0.5,) * 3)
    some = digits.train.take(torch.arange(4))
    (batch,) = found.passes(some, how, 8, torch.device("cpu"), for_steps=for_steps)(None)
    assert batch.images.shape == (4, 17, 48)
    assert (found.seconds > 0) is for_steps


@pytest.fixture(scope="module")
def knows_digits(digits: Data) -> famr.Classifier:
    torch.manual_seed(0)
    module = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=4, num_heads=3, num_classes=10
    )
    model = famr.Classifier(module, digits.labels, famr.Preprocessing(16, (16, 16), (0.5,) * 3, (0.5,) * 3))
    training = famr.Training(epochs=4, batch_size=64, learning_rate=2e-3, compile=False)
    return famr.fit(model, digits.train, training, seed=0, device="cpu").model


@pytest.mark.parametrize("method", [famr.FAMR(strength=1e-3), famr.FAMR(strength=1e-3, function_strength=0.0)])
def test_forgetting_ends_with_the_same_weights_and_walks_the_front_once(
    knows_digits: famr.Classifier, digits: Data, method: famr.FAMR, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlearning, "looking", lambda *_: lambda *_: Unread())  # looking for them is counted, too
    splits = famr.split(digits, famr.Request(classes=["3"]))
    walks: Counter[int] = Counter()
    seen: list[int] = []
    kind = type(knows_digits.module.get_submodule("blocks.0"))
    own = kind.forward

    def counted(block: nn.Module, hidden: Tensor, *rest: object) -> Tensor:
        seen.append(len(hidden))
        said: Tensor = own(block, hidden, *rest)
        return said

    monkeypatch.setattr(kind, "forward", counted)
    ends = []
    for epochs in (2, 4):
        seen.clear()
        result = famr.forget(
            knows_digits,
            splits,
            replace(method, epochs=epochs),
            seed=1,
            device="cpu",
            monitor=famr.Monitor(track_retain=False),
        )
        walks[epochs] = sum(seen)
        ends.append(result)
    edited = 2  # the fourth block, and the late half of the third
    steps_and_looks = 2 * len(splits.forget) * 2 * edited
    held = 2 * 2 * 128 * edited if method.function_strength is None else 0
    assert walks[4] - walks[2] <= steps_and_looks + held + 2 * 256 * edited
    monkeypatch.setattr(unlearning, "front_of", lambda *_: None)
    seen.clear()
    plain = famr.forget(
        knows_digits, splits, replace(method, epochs=4), seed=1, device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    assert sum(seen) > 1.3 * walks[4]
    for ours, theirs in zip(ends[1].module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ends[1].history[0].seconds > 0 == plain.history[0].seconds  # the walk is counted


@pytest.mark.parametrize("strength", [1.0, "auto"])
def test_whatever_a_run_asks_every_image_walks_the_front_once(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch, strength: float | Literal["auto"]
) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.test is not None
    seen: list[int] = []
    first = knows_digits.module.get_submodule("blocks.0")
    own = type(first).forward

    def counted(block: nn.Module, hidden: Tensor, *rest: object) -> Tensor:
        if torch.equal(next(block.parameters()), next(first.parameters())):  # frozen: a copy has the same weights
            seen.append(len(hidden))
        said: Tensor = own(block, hidden, *rest)
        return said

    monkeypatch.setattr(type(first), "forward", counted)
    result = famr.forget(
        knows_digits, splits, famr.FAMR(strength=strength, epochs=3), device="cpu", monitor=famr.Monitor(gates=True)
    )
    attempts = max(1, len(result.trials))
    held, watched, tried = 9 * 20, 9 * (500 // 9), 4
    once = len(splits.forget) + held + watched + len(splits.test)
    assert sum(seen) == once + 2 * tried + attempts  # and one image an attempt, which tells the order of the layers


@pytest.mark.parametrize("room", [True, False])
def test_answers_from_behind_the_front_are_those_of_the_whole_network(
    knows_digits: famr.Classifier, digits: Data, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not room:
        monkeypatch.setattr(front, "ROOM", 0)
    method = famr.FAMR(target="uniform", precision="fp32", edited_share=0.3, function_strength=0.0)
    images = digits.train.take(torch.arange(300))
    loss = ForgetLoss.without_target(knows_digits, method, HERE)
    with train_only(knows_digits.module, ["blocks.3.mlp.fc2.weight"]):
        monkeypatch.setattr(setting, "fits", lambda *_: True)
        found = setting.front_of(loss, images, None)
        assert found is not None
        said = replace(loss, front=found).predict(images)
        assert len(found._kept) == room  # without room the whole network is asked, and nothing kept
        torch.testing.assert_close(said.logits, predict(knows_digits, images, HERE).logits)
        assert torch.equal(said.targets, images.targets)
        assert found.seconds == 0  # it is not for the sake of the steps
        if room:
            beyond = replace(images, all_targets=images.all_targets + 5)
            with pytest.raises(DataError, match="class index 14, the head only 10 outputs"):
                replace(loss, front=found).predict(beyond)


@pytest.mark.parametrize("room", [True, False])
def test_held_out_images_walk_the_front_once_and_are_answered_the_same(
    knows_digits: famr.Classifier, digits: Data, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.test is not None
    method = famr.FAMR(strength=1e-3, epochs=4, function_strength=0.0)
    if not room:
        each = 4 * 17 * 48
        monkeypatch.setattr(front, "ROOM", (len(splits.test) - 1) * each)
    walked: list[int] = []
    own = front.Front.walked
    monkeypatch.setattr(front.Front, "walked", lambda self, images: walked.append(len(images)) or own(self, images))
    ours = famr.forget(knows_digits, splits, method, seed=1, device="cpu")
    once = sum(walked)
    assert (once >= len(splits.forget) + len(splits.test)) is room
    assert once < len(splits.forget) + 2 * len(splits.test)  # though they are asked after each of four epochs
    monkeypatch.setattr(unlearning, "front_of", lambda *_: None)
    plain = famr.forget(knows_digits, splits, method, seed=1, device="cpu")
    followed = [row.retain_accuracy for row in ours.history]
    assert len(followed) == 5
    assert followed == pytest.approx([row.retain_accuracy for row in plain.history], abs=1.5 / len(splits.test))


def test_images_are_read_before_the_walk_is_timed(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def reads(*_given: object) -> None:
        now[0] += 1000  # seconds

    monkeypatch.setattr(front, "gpu_pixels", reads)
    monkeypatch.setattr(front.time, "perf_counter", lambda: now[0])
    splits = famr.split(digits, famr.Request(classes=["3"]))
    method = famr.FAMR(strength=1.0, epochs=1)
    result = famr.forget(knows_digits, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert now[0] == 2000  # those to forget, and those that are held
    assert result.history[0].seconds == 0


def test_held_out_images_are_asked_before_the_walk_that_is_counted(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read while libraries wake; who walks meanwhile waits for them."""
    done: list[object] = []
    asked, timed = ForgetLoss.held_out, front.Front._timed

    def held_out(loss: ForgetLoss, passes: Passes) -> object:
        said = asked(loss, passes)
        done.append("asked")
        return said

    def walk(found: Front, images: Tensor, for_steps: bool) -> Tensor:
        done.append(for_steps)
        return timed(found, images, for_steps)

    monkeypatch.setattr(ForgetLoss, "held_out", held_out)
    monkeypatch.setattr(front.Front, "_timed", walk)
    splits = famr.split(digits, famr.Request(classes=["3"]))
    famr.forget(knows_digits, splits, famr.FAMR(strength=1.0, epochs=1), device="cpu")
    assert done.index("asked") < done.index(True)


def test_waiting_for_kernels_is_counted_with_the_steps(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    ever = chain([3.0], repeat(5.5))  # before the run, and from then on
    monkeypatch.setattr(unlearning, "waited", lambda: next(ever))
    monkeypatch.setattr(unlearning, "looking", lambda *_: lambda *_: Unread(seconds=0.25))
    splits = famr.split(digits, famr.Request(classes=["3"]))
    result = famr.forget(
        knows_digits,
        splits,
        replace(famr.FAMR.paper(), epochs=1),
        device="cpu",
        monitor=famr.Monitor(track_retain=False),
    )
    first, last = result.history
    assert first.seconds == 2.75
    assert last.seconds > 2.75


def test_the_steps_of_an_epoch_are_of_one_size_where_they_can_be(knows_digits: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert len(splits.forget) == 146
    sizes = []
    for method in (famr.FAMR(batch_size=100), replace(famr.FAMR.paper(), batch_size=100)):
        found = setting.passes_of(knows_digits, splits, None, None, method, HERE)
        sizes.append([len(batch.images) for batch in found.steps(0)])
        assert len(sizes[-1]) == found.steps_per_epoch
    assert sizes == [[73, 73], [100, 46]]  # a sum is taken as the paper says


def test_some_held_out_images_tell_how_sure_a_target_is(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.test is not None
    method = famr.FAMR(target="masked", strength=1.0, epochs=1)
    found = []
    for count in (50, 10_000):
        monkeypatch.setattr(setting, "SHOWN", count)
        passes = setting.passes_of(knows_digits, splits, None, None, method, HERE)
        assert passes.held_out is not None
        assert sum(len(batch.labels) for batch in passes.held_out(None)) == min(count, len(splits.test))
        result = famr.forget(knows_digits, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
        found.append(result.method.temperature)
    unsure = HeldOut.of(predict(knows_digits, splits.test, HERE)).entropy_when_wrong
    assert unsure is not None
    masked = without(predict(knows_digits, splits.forget, HERE).logits, torch.tensor([3]))
    assert found[1] == pytest.approx(matching_temperature(masked, unsure), rel=1e-4)
    assert found[0] != pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("share", [None, 1.0])
def test_a_run_is_followed_on_some_held_out_images_and_measured_on_all(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    monkeypatch.setattr(setting, "SHOWN", 50)
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.test is not None
    shown = setting.shown_of(splits.test)
    assert shown is not None
    assert len(set(shown.ids)) == 50
    method = famr.FAMR(strength=1.0, epochs=2, edited_share=share)
    result = famr.forget(knows_digits, splits, method, device="cpu")
    for row, model in ((result.history[0], knows_digits), (result.history[-1], result.model)):
        said = predict(model, shown, HERE)
        assert row.retain_accuracy == pytest.approx(float(correct(said.logits, said.targets).mean()))
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.unlearned.counts["retain"] == len(splits.test)


@pytest.mark.parametrize(("most", "found"), [(500, 495), (50, 45), (4, 4)])
def test_a_run_is_watched_on_retained_images_that_do_not_hold_it(
    digits: Data, monkeypatch: pytest.MonkeyPatch, most: int, found: int
) -> None:
    monkeypatch.setattr(watch, "IMAGES", most)
    splits = famr.split(digits, famr.Request(classes=["3"]))
    assert splits.retain is not None
    watched = watch.watched_images(splits, famr.FAMR(function_images=20), seed=1)
    assert watched is not None
    assert len(watched) == len(set(watched.ids)) == found
    assert set(watched.ids) <= set(splits.retain.ids)
    assert not set(watched.ids) & set(sample_per_class(splits.retain, 20, seed=1).ids)
    every = watch.watched_images(splits, famr.FAMR(function_images=1000), seed=1)
    assert every is not None
    assert len(every) == found  # where all of them hold it, there are no others
    assert watch.watched_images(famr.forget_only(splits.forget), famr.FAMR(), seed=1) is None


@pytest.mark.parametrize("share", [None, 1.0])
def test_held_images_come_in_rounds_of_even_batches(
    knows_digits: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    sizes: set[int] = set()
    own = FunctionAnchor.draw

    def noted(anchor: FunctionAnchor) -> int:
        found = own(anchor)
        sizes.add(found)
        return found

    monkeypatch.setattr(FunctionAnchor, "draw", noted)
    splits = famr.split(digits, famr.Request(classes=["3"]))
    method = famr.FAMR(strength=1.0, epochs=2, edited_share=share)
    famr.forget(knows_digits, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert sizes == {90}  # twenty of each of nine classes, at most 128 at a time


def test_a_loader_and_several_processes_go_without(knows_digits: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    loss = ForgetLoss(knows_digits, replace(famr.FAMR.paper(), edited_share=0.3), torch.ones(10) / 10, HERE)
    with train_only(knows_digits.module, ["blocks.3.mlp.fc2.weight"]):
        assert setting.front_of(loss, splits.forget, None) is not None
        held = replace(loss, method=replace(loss.method, function_strength=1.0, function_images=2))
        assert setting.front_of(held, splits.forget, splits.retain) is not None
        assert setting.front_of(held, splits.forget, [(SOME, torch.zeros(3))]) is None
        assert setting.front_of(replace(loss, ranks=replace(loss.ranks, size=2)), splits.forget, None) is None
    assert setting.front_of(replace(loss, method=famr.FAMR.paper()), splits.forget, None) is None


class Streaming:
    """A loader that does not know how long it is, as one over a stream of images."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(4, 3, 16, 16), torch.arange(4)

    def __len__(self) -> int:
        raise TypeError("a stream has no length")


def test_anchor_images_may_come_from_a_stream(knows_digits: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(classes=["3"]))
    method = famr.FAMR(strength=1e-3, epochs=1)
    result = famr.forget(
        knows_digits, splits, method, anchor_images=Streaming(), device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    assert result.history[-1].step > 0
