"""Targets: what they put where, and how sure they are."""

from __future__ import annotations

import pytest
import torch
from famr.targets.distributions import margins, masked_target, matching_temperature, reference_target, tempered_target

import famr
from conftest import alg1
from famr.data import Data
from famr.engine.inference import predict
from famr.errors import RequestError
from famr.metrics.forgetting import entropy


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("forgotten", [[2], [0, 3, 4]])
def test_masked_target_puts_no_mass_on_the_forgotten_classes(forgotten: list[int]) -> None:
    target = masked_target(random(6, 5), torch.tensor(forgotten), temperature=0.7)
    assert bool((target[:, forgotten] == 0).all())
    torch.testing.assert_close(target.sum(dim=-1), torch.ones(6, dtype=torch.float64))


def test_masked_target_at_temperature_one_is_the_answer_renormalised() -> None:
    logits = random(6, 5)
    p = torch.softmax(logits, dim=-1)
    for row, q in zip(p, masked_target(logits, torch.tensor([1, 3]), temperature=1.0), strict=True):
        kept = [0, 2, 4]
        torch.testing.assert_close(q[kept], row[kept] / row[kept].sum())


def test_a_lower_temperature_is_surer_of_the_same_class() -> None:
    logits = random(6, 5)
    sharp, soft = (masked_target(logits, torch.tensor([1]), temperature=t) for t in (0.5, 2.0))
    assert torch.equal(sharp.argmax(dim=-1), soft.argmax(dim=-1))
    assert bool((sharp.amax(dim=-1) > soft.amax(dim=-1)).all())


@pytest.mark.parametrize("wanted", [0.1, 0.7, 1.5])
def test_matching_temperature_meets_the_entropy_asked_for(wanted: float) -> None:
    logits = random(40, 6)
    found = tempered_target(logits, matching_temperature(logits, wanted))
    assert float(torch.special.entr(found).sum(dim=-1).mean()) == pytest.approx(wanted, abs=1e-6)


def test_matching_temperature_stays_finite_where_no_temperature_fits() -> None:
    assert matching_temperature(random(4, 6), wanted=99.0) == pytest.approx(64.0)
    assert matching_temperature(random(4, 6), wanted=-1.0) == pytest.approx(1 / 64)


def test_margins_are_the_log_odds_of_the_true_class() -> None:
    logits, labels = random(9, 4), torch.tensor([0, 0, 1, 2, 2, 2, 1, 0, 3])
    p = torch.softmax(logits, dim=-1)[torch.arange(9), labels]
    torch.testing.assert_close(margins(logits, labels), (p / (1 - p)).log())


def test_reference_target_is_as_sure_as_held_out_images_rank_by_rank() -> None:
    """With as many held-out images as forget images the sorted log-odds are exactly theirs, if those are lower."""
    logits, labels = random(30, 4), torch.arange(30) % 4
    held_out = margins(logits, labels).min() - torch.rand(30, dtype=torch.float64)
    q = reference_target(logits, labels, held_out)
    found = margins(q.log(), labels)
    by_loop = torch.quantile(held_out, (torch.arange(30, dtype=torch.float64) + 0.5) / 30)
    torch.testing.assert_close(found.sort().values, by_loop)
    assert torch.equal(found.argsort(), margins(logits, labels).argsort())
    for z, target, y in zip(logits, q, labels, strict=True):
        others = [k for k in range(4) if k != y]
        torch.testing.assert_close(target[others] / target[others].sum(), torch.softmax(z[others], dim=-1))


def test_reference_target_makes_no_image_surer_than_it_was() -> None:
    logits, labels = random(20, 4), torch.arange(20) % 4
    q = reference_target(logits, labels, held_out=torch.full((7,), 50.0))
    torch.testing.assert_close(q, torch.softmax(logits, dim=-1))


MASKED = alg1(target="masked", optimiser="adam", learning_rate=3e-4, reduction="mean", batch_size=32)


def test_masked_forgetting_is_as_unsure_as_the_original_is_where_it_is_wrong(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    result = famr.forget(original, without_three, MASKED, device="cpu", monitor=famr.Monitor(track_retain=False))
    last = result.history[-1]
    assert without_three.test is not None
    said = predict(original, without_three.test, torch.device("cpu"))
    wrong = said.logits.argmax(dim=-1) != said.targets
    usual = float(entropy(said.logits[wrong]).mean())
    assert last.forget_accuracy < 0.05  # type: ignore[operator]
    assert last.forget_entropy == pytest.approx(usual, abs=0.35)
    assert result.method.temperature is not None


def test_several_classes_are_masked_together(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(concept=("parity", "odd")))
    assert splits.forgotten_classes() == (1, 3, 5, 7, 9)
    result = famr.forget(original, splits, MASKED, device="cpu", monitor=famr.Monitor(track_retain=False))
    said = predict(result.model, splits.forget, torch.device("cpu")).logits.argmax(dim=-1)
    assert float((said % 2 == 1).float().mean()) < 0.05


def test_samples_keep_a_likely_answer(original: famr.Classifier, digits: Data) -> None:
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
    found = famr.forget(module, forget=batches, method=method)
    assert float(torch.softmax(found.module(batches[0][0]).detach(), dim=-1)[:, 1].max()) < 0.1
