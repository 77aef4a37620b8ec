"""RMIA: against the paper's formula in a slow loop, and where the answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from famr.audit.rmia import log_marginal, rmia_scores, true_log_probability
from famr.audit.roc import AttackScores, auc, roc_summary
from famr.audit.shadows import halves
from famr.errors import NumericsError, RequestError


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def log_p(margin: Tensor) -> Tensor:
    """log p of an answer whose log-odds are `margin`."""
    return -torch.nn.functional.softplus(-margin)


IMAGES, POPULATION = 300, 500
LEVEL, POPULATION_LEVEL = 3 * draws(IMAGES, seed=1), 3 * draws(POPULATION, seed=2)
MEMBER = torch.arange(IMAGES) % 2 == 0


def attacked(leak: float, references: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An attacked model that is more confident about members, references that saw nothing, and both on a population."""
    target = log_p(LEVEL + 0.5 * draws(IMAGES, seed=3) + leak * MEMBER)
    reference = log_p(LEVEL + 0.5 * draws(references, IMAGES, seed=4))
    population_target = log_p(POPULATION_LEVEL + 0.5 * draws(POPULATION, seed=5))
    population_references = log_p(POPULATION_LEVEL + 0.5 * draws(references, POPULATION, seed=6))
    return target, reference, population_target, population_references


@pytest.mark.parametrize("references", [1, 2, 4])
@pytest.mark.parametrize(("gamma", "a"), [(1.0, 1.0), (2.0, 0.3), (1.5, 0.0)])
def test_scores_against_the_papers_formula_in_a_loop(references: int, gamma: float, a: float) -> None:
    parts = attacked(1.0, references)
    x, x_refs, z, z_refs = (part.exp().tolist() for part in parts)

    def ratio(p: float, among: list[float]) -> float:
        out = sum(among) / len(among)
        return p / (0.5 * ((1 + a) * out + (1 - a)))

    of_population = [ratio(z[i], [row[i] for row in z_refs]) for i in range(POPULATION)]
    expected = []
    for i in range(IMAGES):
        own = ratio(x[i], [row[i] for row in x_refs])
        expected.append(sum(own / other >= gamma for other in of_population) / POPULATION)
    assert rmia_scores(*parts, gamma=gamma, a=a).tolist() == pytest.approx(expected, abs=1e-9)


def test_with_references_that_saw_the_image_both_halves_weigh_the_same() -> None:
    references, seen = log_p(draws(4, 10)), halves(10, 4, 0)
    seen[0] = True  # three or two that saw it against one or two that did not
    seen[1] = False
    found = log_marginal(references, seen).exp()
    for image in range(10):
        p = references[:, image].exp()
        expected = 0.5 * (p[seen[:, image]].mean() + p[~seen[:, image]].mean())
        assert float(found[image]) == pytest.approx(float(expected))


@pytest.mark.parametrize("references", [1, 4])
def test_a_leak_is_found_and_none_is_not(references: int) -> None:
    leaking = rmia_scores(*attacked(2.0, references))
    assert auc(leaking, MEMBER) > 0.8
    assert auc(leaking, MEMBER) == pytest.approx(roc_auc_score(MEMBER, leaking))
    tight = roc_summary(AttackScores.of_one_model(rmia_scores(*attacked(0.0, references)), MEMBER), draws=200).auc
    assert tight is not None
    assert tight.low < 0.5 < tight.high


def test_references_help() -> None:
    """Without them the attack mostly sees which images are hard."""
    parts = attacked(1.0, 4)
    assert auc(rmia_scores(*parts, a=1.0), MEMBER) > auc(parts[0], MEMBER) + 0.1


def test_with_shuffled_membership_the_attack_guesses() -> None:
    scores = rmia_scores(*attacked(3.0))
    shuffled = MEMBER[torch.randperm(IMAGES, generator=torch.Generator().manual_seed(3))]
    assert auc(scores, MEMBER) > 0.85
    assert auc(scores, shuffled) == pytest.approx(0.5, abs=0.08)


def test_the_population_only_calibrates() -> None:
    """All images meet the same population: another one changes ties, never the order."""
    target, references, z, z_refs = attacked(1.0)
    whole = rmia_scores(target, references, z, z_refs)
    half = rmia_scores(target, references, z[:100], z_refs[:, :100])
    order = (target - log_marginal(references)).argsort()
    for scores in (whole, half):
        assert bool((scores[order].diff() >= 0).all())
    assert half.unique().numel() <= 101


def test_an_image_that_is_just_as_likely_counts() -> None:
    """LR ≥ γ, not LR > γ: at γ = 1 an image beats its own likeness."""
    one = torch.tensor([-1.0], dtype=torch.double)
    assert rmia_scores(one, one[None], one, one[None], gamma=1.0).tolist() == [1.0]


def test_sure_answers_do_not_tie() -> None:
    """As float32 probabilities all of them are 1, and so are their ratios."""
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0]])
    targets = torch.zeros(3, dtype=torch.long)
    assert torch.softmax(logits, dim=-1)[:, 0].tolist() == [1.0, 1.0, 1.0]
    found = true_log_probability(logits, targets)
    assert found.tolist() == pytest.approx([-math.exp(-20), -math.exp(-25), -math.exp(-30)], rel=1e-3)
    several = true_log_probability(logits.expand(2, 3, 2), targets)
    assert several.tolist() == [found.tolist()] * 2


def test_bad_input_is_refused() -> None:
    target, references, z, z_refs = attacked(1.0)
    with pytest.raises(RequestError, match="at least one reference"):
        rmia_scores(target, references[:0], z, z_refs)
    with pytest.raises(RequestError, match="population images"):
        rmia_scores(target, references, z[:0], z_refs[:, :0])
    with pytest.raises(RequestError, match="from 0 to 1"):
        rmia_scores(target, references, z, z_refs, a=1.5)
    with pytest.raises(RequestError, match="above 0"):
        rmia_scores(target, references, z, z_refs, gamma=0.0)
    with pytest.raises(RequestError, match="either no reference"):
        rmia_scores(target, references, z, z_refs, seen=MEMBER[None])
    with pytest.raises(RequestError, match="class of every image"):
        true_log_probability(torch.zeros(1, 2), torch.tensor([-1]))
    with pytest.raises(NumericsError, match="finite"):
        true_log_probability(torch.tensor([[math.inf, 0.0]]), torch.tensor([0]))
