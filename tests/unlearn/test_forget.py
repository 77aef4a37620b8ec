"""`forget` as its callers use it: bare modules, styles, histories, what it refuses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import alg1, styled
from famr.anchors import L2Anchor
from famr.data import Data
from famr.data.loaders import Batch
from famr.engine import prefix
from famr.errors import CheckpointError, DataError, RequestError
from famr.losses.objective import gram_matrix
from famr.models.activations import capture_layer, mean_gram
from famr.runs.events import Plan
from famr.targets.masked import MaskedTarget
from famr.unlearn.history import HistoryRow
from famr.unlearn.objective import ForgetObjective


def loader(classes: int = 4) -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(5)
    images, labels = torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % classes
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=8, shuffle=True, generator=generator
    )


def network(classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, classes))


def test_three_lines_are_enough_in_a_script_of_your_own() -> None:
    module = network()
    result = famr.forget(module, forget=loader(), method=alg1(learning_rate=1e-2))
    first, last = result.history[0], result.history[-1]
    assert last.forget_entropy > first.forget_entropy
    assert isinstance(result.module, nn.Sequential)
    assert last.forget_kl > 0
    assert last.retain_accuracy is None


def test_predictions_are_compared_image_by_image_although_the_loader_shuffles() -> None:
    still = famr.forget(network(), forget=loader(), method=alg1(learning_rate=1e-12, epochs=3))
    assert all(abs(row.forget_kl) < 1e-6 for row in still.history)


def test_a_generator_serves_every_epoch() -> None:
    batches = [(torch.randn(4, 3, 8, 8), torch.arange(4))]
    method = alg1(learning_rate=1e-2, epochs=3)
    once = famr.forget(network(), forget=(batch for batch in batches), method=method)
    stored = famr.forget(network(), forget=batches, method=method)
    assert once.history[-1].step == 3
    assert once.model.digest() == stored.model.digest()


def test_logits_wrapped_in_an_object_are_read() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, images: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(images))

    method = alg1(learning_rate=1e-2, epochs=1)
    batches = [(torch.randn(4, 3, 8, 8), torch.arange(4))]
    wrapped, plain = (famr.forget(module, forget=batches, method=method) for module in (Wrapped(), network()))
    assert wrapped.history[-1].loss_forget == plain.history[-1].loss_forget


def test_a_network_that_returns_no_logits_is_refused() -> None:
    with pytest.raises(CheckpointError, match="must return logits"):
        famr.forget(nn.Conv2d(3, 4, 3), forget=loader())


@pytest.mark.parametrize("batches", [[], [(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long))]])
def test_an_empty_forget_set_is_an_error_and_not_a_nan(batches: list[tuple[Tensor, Tensor]]) -> None:
    with pytest.raises(RequestError, match="empty"):
        famr.forget(network(), forget=batches)


def test_splits_and_loader_exclude_each_other(without_three: famr.Splits) -> None:
    for splits, batches in ((None, None), (without_three, loader())):
        with pytest.raises(RequestError, match="either"):
            famr.forget(network(), splits, forget=batches)


def test_there_is_an_event_for_every_step_and_every_row(original: famr.Classifier, without_three: famr.Splits) -> None:
    events: list[object] = []
    method = alg1(epochs=2, batch_size=64)
    famr.forget(
        original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False, on_event=events.append)
    )
    rows = [event for event in events if isinstance(event, HistoryRow)]
    assert [row.epoch for row in rows] == [0, 1, 2]
    assert events[0] == Plan(why="", steps=6)
    assert len(events) - len(rows) - 1 == 2 * 3  # 146 images are three batches of 64


def test_about_so_many_epochs_are_evaluated_and_evaluation_changes_nothing(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    method = alg1(epochs=7, learning_rate=1e-5, strength=0.01)
    every = famr.forget(original, without_three, method, device="cpu")
    assert [row.epoch for row in every.history] == list(range(8))
    for rows, expected in ((3, [0, 1, 3, 6, 7]), (2, [0, 1, 4, 7]), (1, [0, 7])):
        result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(rows=rows))
        assert [row.epoch for row in result.history] == expected
        timeless = [replace(row, seconds=0.0) for row in result.history]
        assert timeless == [replace(row, seconds=0.0) for row in every.history if row.epoch in expected]
        assert result.model.digest() == every.model.digest()


def test_a_history_without_rows_is_refused() -> None:
    with pytest.raises(RequestError, match="`rows` must be at least 1"):
        famr.Monitor(rows=0)


def test_total_loss_is_forget_loss_plus_anchor(original: famr.Classifier, without_three: famr.Splits) -> None:
    method = alg1(epochs=2, strength=7.0)
    result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    for row in result.history:
        assert row.loss_anchor == pytest.approx(7.0 / 2 * row.drift**2)
        assert row.loss_total == pytest.approx(row.loss_forget + row.loss_anchor)
    moved = torch.cat(
        [(a - b).flatten() for a, b in zip(result.module.parameters(), original.module.parameters(), strict=True)]
    )
    assert result.drift == pytest.approx(float(moved.detach().norm()), rel=1e-4)


def test_a_concept_is_a_column_with_a_value(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(concept=("parity", "odd")))
    assert set(splits.forget.targets.tolist()) == {1, 3, 5, 7, 9}
    result = famr.forget(original, splits, alg1(learning_rate=5e-5, epochs=2), device="cpu")
    assert result.history[-1].forget_accuracy < result.history[0].forget_accuracy  # type: ignore[operator]


@pytest.mark.parametrize("layer", ["blocks.0", "blocks.1.mlp", "patch_embed"])
def test_style_forgetting_brings_any_layer_to_the_neutral_style(
    original: famr.Classifier, digits: Data, layer: str
) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = alg1(alpha=0.0, beta=None, style_layer=layer, learning_rate=1e-5, epochs=5)
    result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    first, last = result.history[0], result.history[-1]
    assert last.style_distance < 0.8 * first.style_distance  # type: ignore[operator]
    assert result.method.beta is not None
    assert result.method.beta > 0


def test_balanced_beta_gives_both_losses_the_same_weight(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = alg1(beta=None, style_layer="blocks.0", learning_rate=1e-9, epochs=1)
    first = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False)).history[0]
    only_kl = alg1(learning_rate=1e-9, epochs=1)
    plain = famr.split(styled(digits), famr.Request(concept=("style", "negative")))
    alone = famr.forget(original, plain, only_kl, device="cpu", monitor=famr.Monitor(track_retain=False)).history[0]
    assert first.loss_forget == pytest.approx(2 * alone.loss_forget, rel=1e-3)


def test_the_neutral_style_is_the_mean_gram_matrix() -> None:
    module = network()
    images = torch.randn(7, 3, 8, 8)
    with capture_layer(module, "0", channels_last=False) as layer:
        gram = mean_gram(module, layer, [Batch(images[:4], images, images), Batch(images[4:], images, images)])
    expected = gram_matrix(module[0](images).flatten(2)).mean(dim=0)  # type: ignore[index]
    torch.testing.assert_close(gram, expected)
    assert not module[0]._forward_hooks  # type: ignore[index]


def test_neutral_images_can_be_given(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = alg1(alpha=0.0, beta=1e-6, style_layer="blocks.0", epochs=1)
    distances = {
        famr.forget(
            original, splits, method, style_target=target, device="cpu", monitor=famr.Monitor(track_retain=False)
        )
        .history[0]
        .style_distance
        for target in (None, splits.retain, digits.train.take(torch.arange(5)))
    }
    assert len(distances) == 2  # the retained images are the default; five others give another target


def test_style_needs_a_layer_and_neutral_images(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    with pytest.raises(RequestError, match="needs β > 0 and a style layer"):
        famr.forget(original, splits, alg1(), device="cpu")
    with pytest.raises(RequestError, match="layer to read the style from"):
        alg1(beta=1.0)
    with pytest.raises(RequestError, match=r"no layer .blocks\.9.") as caught:
        famr.forget(original, splits, alg1(beta=1.0, style_layer="blocks.9"), device="cpu")
    assert "blocks.1" in str(caught.value.fix)
    alone = famr.forget_only(splits.forget)
    with pytest.raises(RequestError, match="neutral style"):
        famr.forget(original, alone, alg1(beta=1.0, style_layer="blocks.0"), device="cpu")


def test_a_device_that_is_not_there_is_refused(original: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="no device 'cuda:99'"):
        famr.forget(original, without_three, device="cuda:99")
    with pytest.raises(RequestError, match="Unknown device"):
        famr.forget(original, without_three, device="abacus")


def test_images_of_other_labels_are_refused_in_python_too(original: famr.Classifier, digits: Data) -> None:
    other = replace(digits, labels=tuple(reversed(digits.labels)))
    splits = famr.split(other, famr.Request(classes=["3"]))
    with pytest.raises(DataError, match="do not name the same classes"):
        famr.forget(original, splits, device="cpu")


def test_a_style_layer_that_splits_its_images_is_refused() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Identity(), nn.Linear(3, 4)

        def forward(self, images: Tensor) -> Tensor:
            windows = self.inner(images.unfold(2, 4, 4).permute(0, 2, 1, 3, 4).flatten(0, 1))
            return self.head(windows.mean(dim=(2, 3)).unflatten(0, (len(images), 2)).mean(dim=1))  # type: ignore[no-any-return]

    method = alg1(beta=1.0, style_layer="inner")
    with pytest.raises(RequestError, match="16 rows for 8 images"):
        famr.forget(Windows(), forget=loader(), style_target=loader(), method=method)


def test_a_loader_in_place_of_splits_is_refused() -> None:
    with pytest.raises(RequestError, match="must be Splits"):
        famr.forget(network(), loader())  # type: ignore[arg-type]


def test_seconds_are_of_everything_but_evaluation(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seconds` are of the steps and of what makes them fast; `seconds_of_all` of the whole method, every trial."""
    clock, late = time.perf_counter, [0.0]
    calls: Counter[str] = Counter()

    def slow(name: str, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slower(*arguments: Any, **named: Any) -> Any:
            late[0] += seconds
            calls[name] += 1
            return function(*arguments, **named)

        return slower

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    monkeypatch.setattr(ForgetObjective, "measure", slow("evaluation", 1e6, ForgetObjective.measure))
    monkeypatch.setattr(MaskedTarget, "build", slow("target", 1e4, MaskedTarget.build))
    monkeypatch.setattr(L2Anchor, "build", slow("anchor", 1e3, L2Anchor.build))
    monkeypatch.setattr(prefix, "block_input", slow("prefix", 10.0, prefix.block_input))
    hard = famr.FAMR(effort="quick", function_strength=2e4, epochs=4)  # far too strong at first
    result = famr.forget(original, without_three, hard, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert len(result.trials) > 1
    assert (calls["target"], calls["anchor"]) == (1, 1)
    assert calls["prefix"] > 0
    assert result.seconds_of_all is not None
    assert result.seconds < 10 * calls["prefix"] + 9  # steps of the last trial, after the prefix cache
    whole = 1e4 + 1e3 + 10 * calls["prefix"]
    assert whole < result.seconds_of_all < whole + 9
    assert result.to_json()["seconds_of_all"] == result.seconds_of_all


def most_at_once(original: famr.Classifier, splits: famr.Splits, method: famr.FAMR, gates: bool) -> int:
    """The most images that any part of a network gets at once in a run, evaluation included."""
    sizes: list[int] = []
    watched = original.copy()
    for part in (watched.module.blocks[0], watched.module.blocks[-1], watched.module.head):  # type: ignore[index,union-attr]
        part.register_forward_pre_hook(lambda _part, inputs: sizes.append(len(inputs[0])))  # type: ignore[operator]
    famr.forget(watched, splits, method, device="cpu", monitor=famr.Monitor(gates=gates))
    return max(sizes)


@pytest.mark.parametrize("function_strength", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_evaluation_gives_the_network_no_more_images_at_once_than_a_step(
    original: famr.Classifier, without_three: famr.Splits, share: float, function_strength: float
) -> None:
    """Else evaluation would take more memory than fine-tuning with batches of that size."""
    anchors = {"function_strength": function_strength, "strength": 1.0}
    method = famr.FAMR(effort="quick", edited_share=share, epochs=1, batch_size=16, **anchors)  # type: ignore[arg-type]
    assert most_at_once(original, without_three, method, gates=True) == (30 if function_strength else 15)


@pytest.mark.parametrize("target", ["uniform", "probe"])
def test_neither_does_the_evaluation_of_a_style(original: famr.Classifier, digits: Data, target: str) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = alg1(target=target, beta=None, style_layer="blocks.0", learning_rate=1e-9, epochs=1, batch_size=16)
    assert most_at_once(original, splits, method, gates=False) == 16
