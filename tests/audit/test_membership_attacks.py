"""The membership attacks end to end: models of the digits that saw the audited images, and models that did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.audit.lira import THRESHOLD, ShadowConfidences, leave_one_out_scores, lira_scores, scaled_confidence
from famr.audit.rmia import rmia_scores, true_log_probability
from famr.audit.roc import AttackScores, auc, roc_summary
from famr.audit.shadows import Setting, halves, train_shadows
from famr.data import Data
from famr.engine.devices import pick_device
from famr.engine.inference import predict

CPU = pick_device("cpu")


def tiny(seed: int) -> famr.Classifier:
    """One hidden layer on 8×8 pixels."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    preparation = famr.Preprocessing(resize=8, crop=(8, 8), mean=(0.5,), std=(0.5,))
    return famr.Classifier(network, tuple("0123456789"), preparation)


OVERFIT = famr.Training(epochs=40, batch_size=50, learning_rate=1e-2, weight_decay=0.0, augmentation=None)
POOL = 200


class Audited:
    """An original that memorised half of the pool, and a model retrained on images outside of it."""

    def __init__(self, digits: Data, cache: Path) -> None:
        noise = torch.Generator().manual_seed(0)
        targets = digits.train.all_targets.clone()
        wrong = torch.rand(len(targets), generator=noise) < 0.3  # a wrong label can only be memorised
        targets[wrong] = torch.randint(10, (int(wrong.sum()),), generator=noise)
        images = replace(digits.train, all_targets=targets)
        pool = images.take(torch.arange(POOL))
        outside = images.take(torch.arange(POOL, POOL + 100))
        population = images.take(torch.arange(400, 800))
        setting = Setting(tiny, pool, None, population, OVERFIT)
        self.shadows = train_shadows(setting, 16, cache, device="cpu")
        self.member = torch.arange(POOL) % 2 == 0
        self.logits: dict[str, tuple[Tensor, Tensor]] = {}
        for name, known in (("original", pool.where(self.member)), ("retrained", outside)):
            model = famr.fit(tiny(99), known, OVERFIT, seed=99, device="cpu").model
            self.logits[name] = (predict(model, pool, CPU).logits, predict(model, population, CPU).logits)


@pytest.fixture(scope="module")
def audited(digits: Data, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return Audited(digits, tmp_path_factory.mktemp("shadows"))


@pytest.mark.parametrize("attack", ["online", "offline"])
def test_lira_tells_the_original_from_the_retrained(audited: Audited, attack: str) -> None:
    found = audited.shadows
    shadows = ShadowConfidences.of_trained(scaled_confidence(found.logits, found.targets), found.seen)
    figures = {}
    for name, (logits, _) in audited.logits.items():
        scores = lira_scores(scaled_confidence(logits, found.targets), shadows, attack)  # type: ignore[arg-type]
        figures[name] = roc_summary(AttackScores.of_one_model(scores, audited.member), threshold=THRESHOLD, draws=300)
    original, retrained = figures["original"].auc, figures["retrained"].auc
    assert original is not None
    assert retrained is not None
    assert original.low > 0.6
    assert retrained.low < 0.5 < retrained.high
    assert figures["original"].tpr_at_01_percent is None  # 100 non-members
    assert figures["original"].tpr_at_1_percent is not None


def test_the_population_of_shadows_leaks_and_shuffled_it_does_not(audited: Audited) -> None:
    found = audited.shadows
    phi = scaled_confidence(found.logits, found.targets)
    figures = roc_summary(
        leave_one_out_scores(ShadowConfidences.of_trained(phi, found.seen)), threshold=THRESHOLD, draws=100
    )
    assert figures.auc is not None
    assert figures.accuracy is not None
    assert figures.auc.low > 0.6
    assert figures.accuracy.low > 0.55
    shuffled = halves(POOL, 16, seed=5)
    none = roc_summary(leave_one_out_scores(ShadowConfidences.of_trained(phi, shuffled)), draws=100).auc
    assert none is not None
    assert none.low < 0.5 < none.high


@pytest.mark.parametrize("references", [2, 4])
def test_rmia_tells_the_original_from_the_retrained(audited: Audited, references: int) -> None:
    found = audited.shadows
    pool = true_log_probability(found.logits[:references], found.targets)
    outside = true_log_probability(found.held_out_logits[:references], found.held_out_targets)
    figures = {}
    for name, (logits, population) in audited.logits.items():
        target = true_log_probability(logits, found.targets)
        population_target = true_log_probability(population, found.held_out_targets)
        scores = rmia_scores(target, pool, population_target, outside, seen=found.seen[:references])
        figures[name] = roc_summary(AttackScores.of_one_model(scores, audited.member), draws=300).auc
    original, retrained = figures["original"], figures["retrained"]
    assert original is not None
    assert retrained is not None
    assert original.low > 0.6
    assert retrained.low < 0.5 < retrained.high


def test_with_shuffled_membership_the_attack_on_the_original_guesses(audited: Audited) -> None:
    found = audited.shadows
    shadows = ShadowConfidences.of_trained(scaled_confidence(found.logits, found.targets), found.seen)
    scores = lira_scores(scaled_confidence(audited.logits["original"][0], found.targets), shadows)
    draws = torch.Generator().manual_seed(0)
    shuffled = [auc(scores, audited.member[torch.randperm(POOL, generator=draws)]) for _ in range(20)]
    assert sum(shuffled) / 20 == pytest.approx(0.5, abs=0.03)
