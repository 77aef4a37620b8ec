"""Certified removal from a linear head: numbers against autograd, bounds against exact residuals, the guarantee against
attacks, on problems small enough to retrain exactly."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scipy import integrate, stats
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import famr
from famr.certificates import logistic
from famr.certificates.convex_head import CertifiedHead, LabelledFeatures, RemovalSettings, remove, train_certified_head
from famr.certificates.gaussian import delta_of, epsilon_of, largest_shift
from famr.data import Data
from famr.engine.features import head_features
from famr.engine.inference import predict
from famr.errors import CheckpointError, DataError, GateError, RequestError

CLASSES, LAMBDA = 3, 0.02
SETTINGS = RemovalSettings(strength=LAMBDA, sigma=1.0, epsilon=1.0, delta=1e-5)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(images: int, width: int, classes: int, seed: int = 0) -> LabelledFeatures:
    """Points around one mean a class, on the unit sphere."""
    generator = seeded(seed)
    means = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    labels = torch.arange(images) % classes
    features = means[labels] + torch.randn(images, width, generator=generator, dtype=torch.float64)
    return LabelledFeatures(nn.functional.normalize(features, dim=1), labels)


def part(data: LabelledFeatures, rows: slice | Tensor) -> LabelledFeatures:
    return LabelledFeatures(data.features[rows], data.labels[rows])


def cut(data: LabelledFeatures, count: int) -> tuple[LabelledFeatures, LabelledFeatures]:
    """The rest, and the first `count` images."""
    return part(data, slice(count, None)), part(data, slice(count))


@pytest.fixture(scope="module")
def data() -> LabelledFeatures:
    return clusters(240, 6, CLASSES)


def true_residual(weights: Tensor, data: LabelledFeatures) -> float:
    signs = logistic.signs_of(data.labels, len(weights))
    return float(logistic.head_gradient(weights, data.features, signs, LAMBDA).norm())


# Numbers


def test_gradient_and_hessian_are_those_of_autograd(data: LabelledFeatures) -> None:
    features, labels = data
    signs = logistic.signs_of(labels, CLASSES)
    weights = torch.randn(CLASSES, 6, generator=seeded(1), dtype=torch.float64)

    def loss(at: Tensor) -> Tensor:
        return logistic.head_loss(at, features, signs, LAMBDA)

    slow = torch.autograd.functional.jacobian(loss, weights)
    assert torch.allclose(logistic.head_gradient(weights, features, signs, LAMBDA), slow, rtol=1e-12, atol=1e-12)
    full = torch.autograd.functional.hessian(loss, weights)  # (class, width, class, width)
    for c in range(CLASSES):
        assert torch.allclose(
            logistic.head_hessian(weights[c], features, LAMBDA), full[c, :, c], rtol=1e-11, atol=1e-11
        )
    assert float(full[0, :, 1].abs().max()) == 0.0  # classes do not meet


def test_gamma_is_the_largest_third_derivative_of_the_logistic_loss() -> None:
    z = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    p = torch.sigmoid(z)
    third = (p * (1 - p) * (1 - 2 * p)).abs()
    assert float(third.max()) == pytest.approx(logistic.GAMMA, rel=1e-8)
    assert float(third.max()) <= logistic.GAMMA
    at = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    derivative = nn.functional.softplus(-at)
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative, at, create_graph=True)
    p = torch.sigmoid(at.detach())
    assert float(derivative.detach()) == pytest.approx(float(p * (1 - p) * (1 - 2 * p)), rel=1e-9)


def test_solver_ends_where_the_gradient_is_zero_and_where_scikit_learn_does(data: LabelledFeatures) -> None:
    features, labels = data
    signs = logistic.signs_of(labels, CLASSES)
    weights = logistic.solve_head(features, signs, LAMBDA)
    assert true_residual(weights, data) < 1e-12
    for c in range(CLASSES):
        slow = LogisticRegression(C=1 / (LAMBDA * len(features)), fit_intercept=False, tol=1e-12, max_iter=10_000)
        slow.fit(features.numpy(), signs[:, c].numpy())
        assert torch.allclose(weights[c], torch.from_numpy(slow.coef_[0]), atol=1e-6)


@pytest.mark.parametrize("strength", [1e-8, 1e-4, 10.0])
def test_solver_solves_separable_and_stiff_problems(strength: float) -> None:
    features = nn.functional.normalize(torch.randn(40, 5, generator=seeded(3), dtype=torch.float64), dim=1)
    labels = (features[:, 0] > 0).long()
    signs = logistic.signs_of(labels, 2)
    weights = logistic.solve_head(features, signs, strength)
    assert float(logistic.head_gradient(weights, features, signs, strength).norm()) < 1e-10


@pytest.mark.parametrize(("shift", "epsilon"), [(0.1, 0.05), (0.5, 1.0), (2.0, 3.0)])
def test_delta_is_the_hockey_stick_between_two_gaussians(shift: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, shift) - math.exp(epsilon) * stats.norm.pdf(x))

    edge = epsilon / shift + shift / 2
    slow = integrate.quad(excess, edge, edge + 30, epsabs=1e-13)[0]
    assert delta_of(shift, epsilon) == pytest.approx(slow, rel=1e-6)
    assert epsilon_of(shift, delta_of(shift, epsilon)) == pytest.approx(epsilon, rel=1e-6)
    assert largest_shift(epsilon, delta_of(shift, epsilon)) == pytest.approx(shift, rel=1e-6)


def test_the_papers_sigma_is_enough_up_to_epsilon_one_and_too_small_at_ten() -> None:
    delta = 1e-5
    c = math.sqrt(2 * math.log(1.5 / delta))  # δ = 1.5·exp(−c²/2), σ = cε'/ε [Guo et al. 2020, Thm. 3]
    assert all(delta_of(epsilon / c, epsilon) < delta for epsilon in (0.01, 0.1, 0.5, 1.0))
    assert delta_of(10 / c, 10) > delta


# The residual and its bounds


class Residuals(NamedTuple):
    """After a removal: the true residual, and its bounds from the data, from the worst case, from exact charges."""

    true: float
    data: float
    worst: float
    exact: float


def steps_of_removal(
    data: LabelledFeatures, sizes: list[int], sign: float = 1.0, strength: float = LAMBDA
) -> list[Residuals]:
    weights = logistic.solve_head(data.features, logistic.signs_of(data.labels, CLASSES), LAMBDA)
    bound = worst = exact = true_residual(weights, data)
    rows = []
    for size in sizes:
        left, removed = cut(data, size)
        signs = logistic.signs_of(removed.labels, CLASSES)
        step = sign * logistic.newton_step(weights, left.features, removed.features, signs, strength)
        bound += logistic.data_residual(step, left.features)
        worst += logistic.worst_case_residual(weights, size, len(left.features), LAMBDA)
        exact += logistic.exact_residual(weights, step, left.features)
        weights, data = weights + step, left
        rows.append(Residuals(true_residual(weights, left), bound, worst, exact))
    return rows


SEQUENCE = [1] * 40 + [5, 10, 1, 30, 2]


def test_the_residual_stays_below_every_bound_over_many_removals(data: LabelledFeatures) -> None:
    for row in steps_of_removal(data, SEQUENCE):
        assert row.true <= row.exact * (1 + 1e-9) + 1e-12
        assert row.exact <= row.data <= row.worst


def test_the_data_bound_is_within_a_factor_of_five_for_one_image_and_far_below_the_worst_case(
    data: LabelledFeatures,
) -> None:
    row = steps_of_removal(data, [1])[0]
    assert row.exact == pytest.approx(row.true, rel=1e-6)
    assert row.data < 5 * row.true
    assert row.data < row.worst / 100


def test_the_data_bound_is_at_most_half_of_the_papers(data: LabelledFeatures) -> None:
    features, labels = data
    weights = logistic.solve_head(features, logistic.signs_of(labels, CLASSES), LAMBDA)
    left, gone = features[4:], features[:4]
    step = logistic.newton_step(weights, left, gone, logistic.signs_of(labels[:4], CLASSES), LAMBDA)
    lengths = step.norm(dim=1) * (left @ step.mT).norm(dim=0)
    paper = float((logistic.GAMMA * torch.linalg.matrix_norm(left, ord=2) * lengths).norm())
    assert logistic.data_residual(step, left) <= paper / 2


@pytest.mark.parametrize(
    "sabotage", [{"sign": -1.0}, {"strength": 2 * LAMBDA}, {"strength": LAMBDA / 2}, {"sign": 0.9}]
)
def test_a_wrong_step_breaks_the_bound(data: LabelledFeatures, sabotage: dict[str, float]) -> None:
    row = steps_of_removal(data, [1], **sabotage)[0]
    assert row.true > row.data


# The head


def test_removal_lands_nearer_to_retraining_than_not_removing(data: LabelledFeatures) -> None:
    left, removed_data = cut(data, 12)
    head, retrained = (train_certified_head(images, CLASSES, SETTINGS) for images in (data, left))
    removed = remove(head, left, removed_data)
    assert (removed.state - retrained.state).norm() < 0.1 * (head.state - retrained.state).norm()
    assert (removed.state - retrained.state).norm() <= removed.residual / (LAMBDA * removed.count)


@pytest.mark.parametrize("account", ["bound", "exact", "worst"])
def test_the_charge_covers_the_true_residual_over_a_sequence(data: LabelledFeatures, account: Any) -> None:
    head = train_certified_head(data, CLASSES, replace(SETTINGS, sigma=1e4))
    for size in (1, 1, 7, 1, 20):
        data, removed = cut(data, size)
        head = remove(head, data, removed, account=account)
        assert true_residual(head.state, data) <= head.residual + 1e-12
    assert (head.count, head.removed) == (210, 30)


def test_a_whole_class_can_be_removed(data: LabelledFeatures) -> None:
    first = data.labels == 0
    left = part(data, ~first)
    head = train_certified_head(data, CLASSES, replace(SETTINGS, sigma=1e3))
    head = remove(head, left, part(data, first))
    assert true_residual(head.state, left) <= head.residual


def test_the_noise_is_fresh_and_of_the_stated_width(data: LabelledFeatures) -> None:
    head = train_certified_head(data, CLASSES, SETTINGS)
    images, generator = cut(data, 1), seeded(4)
    heads = [remove(head, *images, generator=generator) for _ in range(60)]
    draws = torch.cat([(one.released - one.state).flatten() for one in heads]) * (LAMBDA * heads[0].count)
    assert stats.kstest(draws.numpy(), stats.norm(scale=SETTINGS.sigma).cdf).pvalue > 1e-4
    assert torch.equal(heads[0].state, heads[1].state)
    assert not torch.equal(remove(head, *images).released, remove(head, *images).released)  # without a generator too


def test_removals_are_refused_when_the_budget_is_spent(data: LabelledFeatures) -> None:
    head = train_certified_head(data, CLASSES, replace(SETTINGS, sigma=0.1))
    while head.epsilon_spent < 0.9 * SETTINGS.epsilon:
        data, removed = cut(data, 1)
        head = remove(head, data, removed)
    assert 5 <= head.removed < 200
    assert head.residual <= head.settings.budget
    with pytest.raises(GateError, match=r"(?s)budget is spent.*Retrain") as refused:
        remove(head, *cut(data, 20))
    assert refused.value.exit_code == 7


def test_epsilon_spent_grows_to_epsilon_as_the_residual_grows_to_the_budget(data: LabelledFeatures) -> None:
    head = train_certified_head(data, CLASSES, SETTINGS)
    assert head.epsilon_spent == 0.0
    assert replace(head, residual=SETTINGS.budget).epsilon_spent == pytest.approx(SETTINGS.epsilon, rel=1e-6)


# Attacks

DELTA = 0.01


def empirical_epsilon(statistic: Tensor, reference: Tensor, delta: float, confidence: float = 0.999) -> float:
    """A lower bound for ε by the test `statistic > its median with the reference`, both ways [Clopper & Pearson]."""
    threshold, risk = (float(statistic.median()) + float(reference.median())) / 2, 1 - confidence
    best = 0.0
    for flip in (1, -1):
        hits, alarms = (int((flip * values > flip * threshold).sum()) for values in (statistic, reference))
        for more, less in ((hits, alarms), (alarms, hits)):
            low = stats.beta.ppf(risk / 2, more, len(statistic) - more + 1) if more else 0.0
            high = stats.beta.ppf(1 - risk / 2, less + 1, len(statistic) - less) if less < len(statistic) else 1.0
            best = max(best, math.log((low - delta) / high)) if low > delta else best
    return best


def attacked(sigma: float, draws: int) -> float:
    """Likelihood-ratio attack on a head from which a third was removed at once, against heads retrained without it."""
    data = clusters(24, 1, 2)
    left, removed = cut(data, 8)
    lax = RemovalSettings(strength=0.05, sigma=sigma, epsilon=1e6, delta=DELTA)
    generator = seeded(6)
    trained = train_certified_head(data, 2, lax, generator=generator)
    ours, theirs = [], []
    for _ in range(draws):
        ours.append(remove(trained, left, removed, generator=generator))
        theirs.append(train_certified_head(left, 2, lax, generator=generator))
    along = ours[0].state - theirs[0].state  # the log-likelihood ratio of two Gaussians of one width
    statistics = [torch.stack([(head.released * along).sum() for head in heads]) for heads in (ours, theirs)]
    return empirical_epsilon(*statistics, delta=DELTA)


def test_no_attack_beats_the_certified_epsilon_unless_sigma_is_too_small() -> None:
    data = clusters(24, 1, 2)
    probe = train_certified_head(data, 2, RemovalSettings(strength=0.05, sigma=1e3, epsilon=1.0, delta=DELTA))
    residual = remove(probe, *cut(data, 8), account="exact").residual
    epsilon = 0.5
    sigma = residual / largest_shift(epsilon, DELTA)  # the least noise that is still certified
    assert attacked(sigma, draws=1000) <= epsilon
    assert attacked(sigma / 60, draws=300) > 2 * epsilon


def test_noise_in_the_objective_does_not_give_the_delta_of_theorem_3() -> None:
    """Twenty images x = 1, half of each class, five of one class removed; b in the loss, no noise on the weights.

    Training with b and removing is retraining with another b; both laws of that b are known, so δ can be computed.
    """
    strength, sigma, kept, other, gone = 0.001, 10.0, 10, 10, 5

    def slope(w: Tensor, positive: int, negative: int) -> Tensor:
        return negative * torch.sigmoid(w) - positive * torch.sigmoid(-w) + strength * (positive + negative) * w

    line = torch.linspace(1, -1, 40_001, dtype=torch.float64)
    w = line.sign() * line.square() * 2e4  # from b far below zero to b far above
    tilt = -slope(w, kept, other)  # the b that trains to w
    curvature = (kept + other - gone) * (torch.sigmoid(w) * torch.sigmoid(-w) + strength)
    after = -slope(w + slope(w, 0, gone) / curvature, kept, other - gone)  # the b that retrains to the same weights
    assert bool((after.diff() > 0).all())
    shift = float((tilt - after).abs().max()) / sigma  # ε'/σ: no residual is larger, whatever b is
    removed, retrained = (torch.special.ndtr(b / sigma).diff() for b in (tilt, after))  # mass between two grid points
    epsilon = 4 * shift  # c = 4
    delta = float((retrained - math.exp(epsilon) * removed).clamp(min=0).sum())  # at most the true δ
    assert 1.5 * math.exp(-(4**2) / 2) < 0.001  # what δ should be [Guo et al. 2020, Thm. 3]
    assert delta > 0.09


# Files, features, and what is refused


def test_a_saved_head_loads_and_removes_further_images(data: LabelledFeatures, tmp_path: Path) -> None:
    left, removed = cut(data, 1)
    head = remove(train_certified_head(data, CLASSES, SETTINGS), left, removed)
    head.save(tmp_path / "head")
    again = CertifiedHead.load(tmp_path / "head")
    assert torch.equal(again.released, head.released)
    assert torch.equal(again.state, head.state)
    assert (again.count, again.removed, again.residual, again.settings) == (239, 1, head.residual, SETTINGS)
    assert (tmp_path / "head" / "state.safetensors").stat().st_mode & 0o077 == 0  # readable by its owner only
    assert remove(again, *cut(left, 1)).removed == 2


@pytest.mark.parametrize("damage", [{"residual": -1.0}, {"sigma": "much"}, {"unknown": 1}])
def test_a_damaged_folder_is_refused(data: LabelledFeatures, tmp_path: Path, damage: dict[str, Any]) -> None:
    train_certified_head(data, CLASSES, SETTINGS).save(tmp_path)
    facts = json.loads((tmp_path / "head.json").read_text(encoding="utf-8"))
    (tmp_path / "head.json").write_text(json.dumps({**facts, **damage}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="no certified head"):
        CertifiedHead.load(tmp_path)


PREPARED = famr.Preprocessing(resize=32, crop=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


def small_classifiers() -> list[tuple[nn.Module, str]]:
    import timm
    import torchvision
    from transformers import ViTConfig, ViTForImageClassification

    hf = ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, num_labels=10
    )
    return [
        (timm.create_model("resnet10t", num_classes=10), "fc"),
        (torchvision.models.mobilenet_v3_small(num_classes=10), "classifier.3"),
        (ViTForImageClassification(hf), "classifier"),
    ]


def test_features_of_every_library_give_its_logits_back_through_its_head(digits: Data) -> None:
    some, device = digits.train.take(torch.arange(5)), torch.device("cpu")
    for module, name in small_classifiers():
        classifier = famr.Classifier(module, digits.labels, PREPARED)
        features = head_features(classifier, some, device)
        logits = predict(classifier, some, device).logits.double()
        head = module.get_submodule(name)
        assert isinstance(head, nn.Linear)
        assert torch.allclose(features.norm(dim=1), torch.ones(5, dtype=torch.float64))
        through, logits = features @ head.weight.detach().double().mT, logits - head.bias.detach()
        through, logits = nn.functional.normalize(through), nn.functional.normalize(logits)
        assert torch.allclose(through, logits, atol=1e-3), name


def test_a_head_on_random_features_of_digits_is_accurate_before_and_after_removals(digits: Data) -> None:
    assert digits.test is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 64), nn.ReLU(), nn.Linear(64, 10))
    small = replace(PREPARED, resize=8, crop=(8, 8))
    classifier, device = famr.Classifier(module, digits.labels, small), torch.device("cpu")
    data = LabelledFeatures(head_features(classifier, digits.train, device), digits.train.targets)
    test = head_features(classifier, digits.test, device)
    settings = replace(SETTINGS, strength=0.01, sigma=0.3)
    head = train_certified_head(data, 10, settings, generator=seeded(8))
    for k in (1, 2, 3):
        predictions = head.scores(test).argmax(dim=1)
        assert float((predictions == digits.test.targets).double().mean()) > 0.8
        data, removed = cut(data, 1)
        head = remove(head, data, removed, generator=seeded(8 + k))


def test_a_network_without_a_linear_head_is_refused(digits: Data) -> None:
    module = nn.Sequential(nn.Conv2d(3, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    classifier = famr.Classifier(module, digits.labels, PREPARED)
    with pytest.raises(RequestError, match="linear layer"):
        head_features(classifier, digits.train.take(torch.arange(2)), torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"features": torch.full((6, 2), math.nan)}, DataError, "NaN"),
        ({"features": torch.full((6, 2), 1.0)}, DataError, "longer than 1"),
        ({"features": torch.zeros(6)}, DataError, r"\(images, width\)"),
        ({"labels": torch.zeros(6, dtype=torch.long)}, DataError, "one class"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 1])}, DataError, "from 0 to 2"),
        ({"labels": torch.tensor([0, 1, 2, -1, 0, 1])}, DataError, "from 0 to 2"),
        ({"sigma": -1.0}, RequestError, "sigma"),
        ({"sigma": math.nan}, RequestError, "sigma"),
        ({"strength": 0.0}, RequestError, "strength"),
        ({"epsilon": 0.0}, RequestError, "epsilon"),
        ({"delta": 1.0}, RequestError, "delta"),
    ],
)
def test_bad_inputs_are_refused_with_what_where_and_fix(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    arguments = {"features": torch.full((6, 2), 0.5), "labels": torch.arange(6) % 3, **asdict(SETTINGS), **change}
    data = LabelledFeatures(arguments.pop("features"), arguments.pop("labels"))
    with pytest.raises(error, match=words) as refused:
        train_certified_head(data, 3, RemovalSettings(**arguments))
    assert refused.value.where  # type: ignore[attr-defined]


def test_other_images_than_those_trained_on_are_refused(data: LabelledFeatures) -> None:
    head = train_certified_head(data, CLASSES, replace(SETTINGS, sigma=0.1))
    left, removed = cut(data, 1)
    with pytest.raises(DataError, match="240 images"):
        remove(head, cut(data, 2)[0], removed)
    with pytest.raises(DataError, match="not trained on these"):
        remove(head, left._replace(labels=left.labels.roll(1)), removed)
    with pytest.raises(DataError, match="not trained on these"):
        remove(head, left, removed._replace(features=-removed.features))


def test_features_that_are_a_little_off_are_charged_for(data: LabelledFeatures) -> None:
    head = train_certified_head(data, CLASSES, SETTINGS)
    left, removed = cut(data._replace(features=data.features * (1 - 1e-3)), 1)
    head = remove(head, left, removed)
    assert 1e-3 < true_residual(head.state, left) <= head.residual
