"""Targets: where they put probability, and how confident they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

import pytest
import torch

import famr
from conftest import alg1
from famr.data import Data
from famr.data.loaders import Batch
from famr.engine.inference import predict
from famr.engine.plain import PlainSession
from famr.errors import RequestError
from famr.metrics.forgetting import entropy
from famr.targets import TARGETS, Target, TargetInputs
from famr.targets.margins import margins
from famr.targets.masked import masked_target
from famr.targets.reference import reference_target
from famr.targets.tempered import matching_temperature, tempered_target


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("forgotten", [[2], [0, 3, 4]])
def test_masked_target_puts_no_mass_on_the_forgotten_classes(forgotten: list[int]) -> None:
    target = masked_target(random(6, 5), torch.tensor(forgotten), temperature=0.7)
    assert bool((target[:, forgotten] == 0).all())
    torch.testing.assert_close(target.sum(dim=-1), torch.ones(6, dtype=torch.float64))


def test_masked_target_at_temperature_one_is_the_prediction_renormalised() -> None:
    logits = random(6, 5)
    p = torch.softmax(logits, dim=-1)
    for row, q in zip(p, masked_target(logits, torch.tensor([1, 3]), temperature=1.0), strict=True):
        remaining = [0, 2, 4]
        torch.testing.assert_close(q[remaining], row[remaining] / row[remaining].sum())


def test_a_lower_temperature_is_more_confident_in_the_same_class() -> None:
    logits = random(6, 5)
    sharp, soft = (masked_target(logits, torch.tensor([1]), temperature=t) for t in (0.5, 2.0))
    assert torch.equal(sharp.argmax(dim=-1), soft.argmax(dim=-1))
    assert bool((sharp.amax(dim=-1) > soft.amax(dim=-1)).all())


@pytest.mark.parametrize("mean_entropy", [0.1, 0.7, 1.5])
def test_matching_temperature_gives_the_mean_entropy(mean_entropy: float) -> None:
    logits = random(40, 6)
    target = tempered_target(logits, matching_temperature(logits, mean_entropy))
    assert float(torch.special.entr(target).sum(dim=-1).mean()) == pytest.approx(mean_entropy, abs=1e-6)


def test_matching_temperature_stays_finite_where_no_temperature_fits() -> None:
    assert matching_temperature(random(4, 6), mean_entropy=99.0) == pytest.approx(64.0)
    assert matching_temperature(random(4, 6), mean_entropy=-1.0) == pytest.approx(1 / 64)


def test_margins_are_the_log_odds_of_the_true_class() -> None:
    logits, labels = random(9, 4), torch.tensor([0, 0, 1, 2, 2, 2, 1, 0, 3])
    p = torch.softmax(logits, dim=-1)[torch.arange(9), labels]
    torch.testing.assert_close(margins(logits, labels), (p / (1 - p)).log())


def test_reference_target_is_as_confident_as_held_out_images_rank_by_rank() -> None:
    """With as many held-out images as forget images the sorted log-odds are exactly theirs, if those are lower."""
    logits, labels = random(30, 4), torch.arange(30) % 4
    held_out = margins(logits, labels).min() - torch.rand(30, dtype=torch.float64)
    q = reference_target(logits, labels, held_out)
    own = margins(q.log(), labels)
    by_loop = torch.quantile(held_out, (torch.arange(30, dtype=torch.float64) + 0.5) / 30)
    torch.testing.assert_close(own.sort().values, by_loop)
    assert torch.equal(own.argsort(), margins(logits, labels).argsort())
    for z, target, y in zip(logits, q, labels, strict=True):
        remaining = [k for k in range(4) if k != y]
        torch.testing.assert_close(target[remaining] / target[remaining].sum(), torch.softmax(z[remaining], dim=-1))


def test_reference_target_makes_no_image_more_confident_than_it_was() -> None:
    logits, labels = random(20, 4), torch.arange(20) % 4
    q = reference_target(logits, labels, held_out=torch.full((7,), 50.0))
    torch.testing.assert_close(q, torch.softmax(logits, dim=-1))


MASKED = alg1(target="masked", optimiser="adam", learning_rate=3e-4, reduction="mean", batch_size=32)


def test_masked_forgetting_has_the_entropy_of_the_originals_held_out_mistakes(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    result = famr.forget(original, without_three, MASKED, device="cpu", monitor=famr.Monitor(track_retain=False))
    last = result.history[-1]
    assert without_three.test is not None
    held_out = predict(original, without_three.test, torch.device("cpu"))
    wrong = held_out.logits.argmax(dim=-1) != held_out.targets
    expected = float(entropy(held_out.logits[wrong]).mean())
    assert last.forget_accuracy < 0.05  # type: ignore[operator]
    assert last.forget_entropy == pytest.approx(expected, abs=0.35)
    assert result.method.temperature is not None


def test_several_classes_are_masked_together(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(concept=("parity", "odd")))
    assert splits.forgotten_classes() == (1, 3, 5, 7, 9)
    method = replace(MASKED, epochs=4)
    result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False, rows=1))
    predicted = predict(result.model, splits.forget, torch.device("cpu")).logits.argmax(dim=-1)
    assert float((predicted % 2 == 1).float().mean()) < 0.05


def test_samples_keep_a_likely_prediction(original: famr.Classifier, digits: Data) -> None:
    """A retrained model still knows most forgotten samples; so do the targets made for samples."""
    splits = famr.split(digits, famr.Request(samples=list(range(0, 300, 3))))
    settings = {"optimiser": "adam", "learning_rate": 1e-4, "reduction": "mean", "batch_size": 32, "epochs": 3}
    for target in ("reference", "tempered"):
        method = alg1(**{"target": target, **settings})
        result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
        assert result.history[-1].forget_accuracy > 0.8  # type: ignore[operator]
        assert result.history[-1].loss_forget < 0.2


def test_masked_for_samples_is_refused(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=[1, 2]))
    with pytest.raises(RequestError, match="forgets 0 of 10 whole"):
        famr.forget(original, splits, MASKED, device="cpu")


def test_reference_for_a_whole_class_is_refused(original: famr.Classifier, without_three: famr.Splits) -> None:
    for target in ("reference", "tempered"):
        with pytest.raises(RequestError, match="for samples"):
            famr.forget(original, without_three, alg1(target=target), device="cpu")


def test_without_held_out_images_a_temperature_must_be_given(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3))
    with pytest.raises(RequestError, match="temperature"):
        famr.forget(original, alone, alg1(target="masked"), device="cpu")
    with pytest.raises(RequestError, match="held-out images"):
        famr.forget(original, alone, alg1(target="reference"), device="cpu")
    method = alg1(target="masked", temperature=0.5, epochs=1)
    assert famr.forget(original, alone, method, device="cpu").method.temperature == 0.5


def test_a_loaders_labels_say_which_classes_are_masked() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    batches = [(torch.randn(6, 3, 2, 2), torch.full((6,), 1))]
    method = alg1(target="masked", temperature=1.0, learning_rate=0.1, epochs=100)
    result = famr.forget(module, forget=batches, method=method)
    assert float(torch.softmax(result.module(batches[0][0]).detach(), dim=-1)[:, 1].max()) < 0.1


def inputs_of(held_out_labels: list[int] | None, read: list[str]) -> TargetInputs:
    """Of a linear network; `read` gets the name of each set that a target reads."""
    session = PlainSession(famr.Classifier(torch.nn.Linear(3, 3)), torch.device("cpu"), "fp32", None)

    def batches(name: str, labels: list[int]):  # type: ignore[no-untyped-def]
        def one_pass(_seed: int | None) -> Iterator[Batch]:
            read.append(name)
            yield Batch(torch.eye(3)[: len(labels)], torch.tensor(labels), torch.arange(len(labels)))

        return one_pass

    return TargetInputs(
        session=session,
        forget_batches=batches("forget", [0, 0, 0]),
        held_out_batches=None if held_out_labels is None else batches("held out", held_out_labels),
        sketched=None,
        retained=None,
        style=None,
        forgotten=(0,),
        forgets_classes=True,
        temperature=0.5,
        overshoot=0.0,
    )


@pytest.mark.parametrize("name", ["uniform", "masked"])
def test_a_target_that_does_not_depend_on_held_out_images_leaves_them_alone(name: str) -> None:
    read: list[str] = []
    target = TARGETS[name].build(inputs_of([1, 2], read))
    assert read == ["forget"]
    torch.testing.assert_close(target.probabilities.sum(dim=-1), torch.ones(target.probabilities.shape[:-1]))


def test_predictions_are_computed_once_however_often_a_target_reads_them() -> None:
    read: list[str] = []
    inputs = inputs_of([1, 2], read)
    for _ in range(3):
        assert len(inputs.forget.logits) == 3
        assert inputs.held_out is not None
    assert sorted(read) == ["forget", "held out"]


class SecondBestTarget(Target):
    """All probability on the most likely remaining class."""

    default_demotion: ClassVar[float | None] = 0.01

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        logits = inputs.forget.logits.clone()
        logits[:, list(inputs.forgotten)] = -torch.inf
        return cls(torch.nn.functional.one_hot(logits.argmax(dim=-1), inputs.classes).float())


def test_a_target_of_your_own_takes_one_file_and_one_line(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="`target` must be one of"):
        famr.FAMR(target="second-best")
    monkeypatch.setitem(TARGETS, "second-best", SecondBestTarget)  # the line
    result = famr.forget(original, without_three, famr.FAMR(target="second-best"), device="cpu")
    assert (result.method.target, result.method.demotion, result.method.temperature) == ("second-best", 0.01, None)
    assert "demotion 0.01" in result.why
    logits = predict(original, without_three.forget, torch.device("cpu")).logits
    logits[:, 3] = -torch.inf
    predicted = predict(result.model, without_three.forget, torch.device("cpu")).logits.argmax(dim=-1)
    assert float((predicted == logits.argmax(dim=-1)).float().mean()) > 0.9
    assert famr.FAMR.from_json(result.method.to_json()).target == "second-best"
