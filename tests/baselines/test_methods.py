"""What each baseline's paper claims, checked on a small problem."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import famr
from baselines.cases import TRAINING, cases, plain, session_of, start, undecodable
from famr.baselines import (
    SSD,
    BadTeacher,
    BoundaryShrink,
    Delete,
    FamrMethod,
    FineTune,
    Forsaken,
    GradientAscent,
    L1Sparse,
    LabelAnnealing,
    NegGradPlus,
    NewtonHead,
    RandomLabels,
    Retrain,
    SalUn,
    Scrub,
    SisaRemoval,
)
from famr.baselines.bad_teacher import bad_teacher_loss, bad_teacher_target
from famr.baselines.boundary_shrink import nearest_class
from famr.baselines.delete import delete_loss
from famr.baselines.forsaken import forsaken_loss, non_member_target
from famr.baselines.label_annealing import annealed_labels, class_quotas
from famr.baselines.neg_grad_plus import neg_grad_plus_loss
from famr.baselines.newton_head import newton_removal, softmax_gradient, softmax_hessian_product
from famr.baselines.random_labels import draw_wrong_labels, other_labels
from famr.baselines.salun import saliency_masks
from famr.baselines.scrub import max_step_loss, min_step_loss, teacher_kl
from famr.baselines.session import BaselineSession
from famr.baselines.ssd import dampened
from famr.baselines.untrained import untrained
from famr.data import Data
from famr.data.loaders import Batch
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions
from famr.targets.masked import masked_target


@pytest.fixture(scope="module")
def simple(digits: Data) -> famr.Classifier:
    """Without BatchNorm and dropout: two methods with the same loss take the same steps."""
    return famr.fit(start(0, plain), digits.train, replace(TRAINING, epochs=6), device="cpu").model


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 5, generator=generator), torch.randn(6, 5, generator=generator)


def run(method: Any, model: famr.Classifier, splits: famr.Splits) -> nn.Module:
    return method.unlearn(model, splits, seed=2, device="cpu").model.module  # type: ignore[no-any-return]


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def forget_gradient(model: famr.Classifier, splits: famr.Splits) -> Tensor:
    """∇CE(D_f) of all weights."""
    (batch,) = session_of(model, splits).batches(splits.forget, len(splits.forget))
    loss = F.cross_entropy(model.logits(batch.images), batch.labels)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.module.parameters()))])


def slow_kl(p: Tensor, q: Tensor) -> float:
    """KL(p ‖ q) of two distributions."""
    return sum(float(a) * (float(a.log()) - float(b.log())) for a, b in zip(p, q, strict=True) if a > 0)


# Retraining and fine-tuning


def test_retraining_is_training_without_the_forget_set(without_three: famr.Splits, simple: famr.Classifier) -> None:
    assert without_three.retain is not None
    short = replace(TRAINING, epochs=1)
    expected = famr.fit(start(2, plain), without_three.retain, short, seed=2, device="cpu").model
    result = Retrain(short, lambda seed: start(seed, plain)).unlearn(simple, without_three, seed=2, device="cpu")
    assert result.model.digest() == expected.digest()


@pytest.mark.parametrize("method", [Retrain(replace(TRAINING, epochs=1)), FineTune().with_numbers(epochs=1)])
def test_retraining_and_fine_tuning_never_decode_a_forget_image(
    method: Any, simple: famr.Classifier, without_three: famr.Splits
) -> None:
    splits = replace(without_three, forget=undecodable(without_three.forget))
    assert method.unlearn(simple, splits, device="cpu").image_passes in (1280, 1292)


def test_an_untrained_network_shares_no_weights_with_the_trained_one(simple: famr.Classifier) -> None:
    fresh, again, other = untrained(simple, 1), untrained(simple, 1), untrained(simple, 2)
    assert fresh.digest() == again.digest() != other.digest()
    assert not bool((flat(fresh.module) == flat(simple.module)).any())


def test_a_module_that_cannot_draw_new_weights_is_named() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(CheckpointError, match="Fixed"):
        untrained(famr.Classifier(nn.Sequential(nn.Linear(2, 2), Fixed())), 0)


def test_fine_tuning_lowers_the_retained_loss(simple: famr.Classifier, without_three: famr.Splits) -> None:
    result = FineTune().with_numbers(epochs=3, batch_size=64).unlearn(simple, without_three, device="cpu")
    assert result.history[-1].loss < result.history[0].loss


# Gradient ascent and NegGrad+


def test_one_step_of_gradient_ascent_is_the_gradient_with_a_plus(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    method = GradientAscent().with_numbers(epochs=1, learning_rate=0.1, momentum=0.0, batch_size=146)
    step = flat(run(method, simple, without_three)) - flat(simple.module)
    torch.testing.assert_close(step, 0.1 * forget_gradient(simple, without_three), rtol=1e-3, atol=1e-6)


def test_gradient_ascent_raises_the_loss_without_bound(simple: famr.Classifier, without_three: famr.Splits) -> None:
    result = GradientAscent().with_numbers(learning_rate=1e-2).unlearn(simple, without_three, device="cpu")
    losses = [row.loss for row in result.history]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < -1


def test_neg_grad_plus_at_alpha_one_is_fine_tuning(simple: famr.Classifier, without_three: famr.Splits) -> None:
    steps = {"epochs": 2, "learning_rate": 0.05, "batch_size": 64}
    both = NegGradPlus(alpha=1.0).with_numbers(**steps), FineTune().with_numbers(**steps)
    first, second = (flat(run(method, simple, without_three)) for method in both)
    assert torch.equal(first, second)
    third = flat(run(NegGradPlus(alpha=0.9).with_numbers(**steps), simple, without_three))
    assert not torch.equal(first, third)


def test_neg_grad_plus_weighs_down_and_up(logits: tuple[Tensor, Tensor]) -> None:
    retain, forget = logits
    labels = torch.arange(6) % 5
    expected = 0.8 * F.cross_entropy(retain, labels) - 0.2 * F.cross_entropy(forget, labels)
    torch.testing.assert_close(neg_grad_plus_loss(retain, labels, forget, labels, alpha=0.8), expected)


# Random labels and SalUn


def test_drawn_labels_are_wrong_uniform_and_of_classes_that_stay() -> None:
    labels, allowed = torch.arange(30_000) % 4, torch.tensor([0, 1, 3])
    drawn = other_labels(labels, allowed, torch.rand(30_000, generator=torch.Generator().manual_seed(3)))
    assert not bool((drawn == labels).any())
    for label in range(4):
        counts = Counter(drawn[labels == label].tolist())
        others = set(allowed.tolist()) - {label}
        assert set(counts) == others
        assert all(abs(count / 7_500 - 1 / len(others)) < 0.03 for count in counts.values())


def test_a_label_is_drawn_once_for_each_image_from_the_seed(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    session = session_of(simple, without_three)
    labels = draw_wrong_labels(session)
    assert torch.equal(labels, draw_wrong_labels(session))
    assert len(labels) == 146
    assert 3 not in labels.tolist()
    assert len(set(labels.tolist())) == 9


def test_random_labels_are_learned(simple: famr.Classifier, without_three: famr.Splits) -> None:
    method = RandomLabels().with_numbers(epochs=30, learning_rate=0.1, batch_size=64)
    result = method.unlearn(simple, without_three, seed=2, device="cpu")
    session = session_of(simple, without_three)
    (batch,) = session.batches(without_three.forget, 146)
    predicted = result.model.logits(batch.images).argmax(dim=-1)
    assert float((predicted == draw_wrong_labels(session)).float().mean()) > 0.3  # chance is 1/9


def test_salun_without_a_mask_is_random_labels(simple: famr.Classifier, without_three: famr.Splits) -> None:
    """Both sets in their proportion: with as much weight on a small forget set as on the rest, the rest is lost."""
    numbers = {"epochs": 1, "learning_rate": 1e-2, "batch_size": 64}
    whole, plain_ = SalUn(share=1.0).with_numbers(**numbers), RandomLabels().with_numbers(**numbers)
    first, second = (flat(run(method, simple, without_three)) for method in (whole, plain_))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_salun_moves_the_salient_weights_and_no_others(
    share: float, simple: famr.Classifier, without_three: famr.Splits
) -> None:
    method = SalUn(share=share).with_numbers(epochs=1, batch_size=64, weight_decay=0.1)
    result = method.unlearn(simple, without_three, device="cpu")
    moved = flat(result.model.module) != flat(simple.module)
    assert result.facts["share_of_weights"] == round(share * len(moved)) / len(moved)
    assert int(moved.sum()) <= round(share * len(moved))
    assert float(moved.float().mean()) > 0.8 * share
    gradient = forget_gradient(simple, without_three).abs()
    assert float(gradient[moved].min()) >= float(gradient.quantile(1 - share)) * 0.99


def test_the_saliency_mask_has_exactly_its_share_even_among_equals() -> None:
    generator = torch.Generator().manual_seed(4)
    gradients = [torch.randn(7, 3, generator=generator), torch.zeros(20), torch.randn(9, generator=generator)]
    for share in (0.1, 0.5, 0.9):
        masks = saliency_masks(gradients, share)
        assert sum(int(mask.sum()) for mask in masks) == round(share * 50)
    ranked = sorted((float(g) for g in torch.cat([g.abs().flatten() for g in gradients])), reverse=True)
    chosen = torch.cat([g.abs()[m] for g, m in zip(gradients, saliency_masks(gradients, 0.2), strict=True)])
    assert sorted(chosen.tolist(), reverse=True) == ranked[:10]


# Teachers: SCRUB, bad teacher, DELETE


def test_scrub_measures_the_kl_from_teacher_to_student(logits: tuple[Tensor, Tensor]) -> None:
    teacher, student = logits
    expected = [slow_kl(a, b) for a, b in zip(teacher.softmax(-1), student.softmax(-1), strict=True)]
    assert teacher_kl(teacher, student).tolist() == pytest.approx(expected, rel=1e-4)
    assert teacher_kl(student, teacher).tolist() != pytest.approx(expected, rel=1e-2)
    labels = torch.zeros(6, dtype=torch.long)
    assert float(max_step_loss(teacher, student)) == pytest.approx(-sum(expected) / 6, rel=1e-4)
    min_loss = float(min_step_loss(teacher, student, labels, alpha=0.5, gamma=2.0))
    assert min_loss == pytest.approx(0.5 * sum(expected) / 6 + 2 * float(F.cross_entropy(student, labels)), rel=1e-4)


def test_the_temperature_of_scrub_softens_both_and_keeps_the_size_of_the_gradient(
    logits: tuple[Tensor, Tensor],
) -> None:
    teacher, student = logits
    expected = [16 * slow_kl(a, b) for a, b in zip((teacher / 4).softmax(-1), (student / 4).softmax(-1), strict=True)]
    assert teacher_kl(teacher, student, temperature=4.0).tolist() == pytest.approx(expected, rel=1e-3)
    assert float(max_step_loss(teacher, student, 4.0)) == pytest.approx(-sum(expected) / 6, rel=1e-3)
    zero = min_step_loss(teacher, student, torch.zeros(6, dtype=torch.long), alpha=1.0, gamma=0.0, temperature=4.0)
    assert float(zero) == pytest.approx(sum(expected) / 6, rel=1e-3)


def test_scrub_alternates_and_ends_with_min_steps(simple: famr.Classifier, without_three: famr.Splits) -> None:
    method = Scrub(max_epochs=2, forget_batch_size=64).with_numbers(epochs=3, learning_rate=3e-3, batch_size=64)
    history = method.unlearn(simple, without_three, device="cpu").history
    assert [row.phase for row in history] == [
        "max-steps 1",
        "min-steps 1",
        "max-steps 2",
        "min-steps 2",
        "min-steps 3",
    ]
    assert [row.steps for row in history] == [3, 23, 26, 46, 66]
    assert abs(history[0].loss) < 1e-6  # student and teacher still agree
    assert history[2].loss < 0


def test_the_last_epochs_of_scrub_have_a_tenth_of_the_learning_rate(
    simple: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    monkeypatch.setattr("famr.training.steps.set_learning_rate", lambda _optimiser, rate: rates.append(rate))
    numbers = {"epochs": 3, "learning_rate": 1e-2, "batch_size": 64}
    method = Scrub(max_epochs=2, slow_after=1, forget_batch_size=64).with_numbers(**numbers)
    method.unlearn(simple, without_three, device="cpu")
    assert rates == pytest.approx([1e-2] * 23 + [1e-3] * 43)


def test_scrub_within_a_limit_keeps_its_epochs_and_ends_with_min_steps(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    """One epoch cannot forget: its max-steps start where student and teacher agree."""
    method = Scrub().with_numbers(batch_size=64)
    planned = 2 * 5 + 5 * 20
    for steps in (2, 7, 22, 50):
        result = method.shortened(steps, planned).unlearn(simple, without_three, device="cpu")
        assert result.facts["steps"] <= max(2, steps)
        assert result.facts["steps_planned"] == planned
        assert result.history[-1].phase.startswith("min-steps")
    assert [row.phase for row in result.history][:4] == ["max-steps 1", "min-steps 1", "max-steps 2", "min-steps 2"]
    assert method.shortened(planned, planned) is method


def test_a_bad_teacher_is_random_on_forget_and_the_original_on_retained_images(logits: tuple[Tensor, Tensor]) -> None:
    good, bad = logits
    forgotten = torch.tensor([True, False, True, False, False, True])
    target = bad_teacher_target(good, bad, forgotten)
    torch.testing.assert_close(target[forgotten], bad[forgotten].softmax(-1))
    torch.testing.assert_close(target[~forgotten], good[~forgotten].softmax(-1))
    assert float(bad_teacher_loss(target.log(), target)) == pytest.approx(0.0, abs=1e-6)
    assert float(bad_teacher_loss(good, target)) > 0


def test_the_student_of_a_bad_teacher_approaches_it_on_the_forget_set(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    method = BadTeacher().with_numbers(epochs=10, learning_rate=3e-3, batch_size=64)
    result = method.unlearn(simple, without_three, seed=2, device="cpu")
    (batch,) = session_of(simple, without_three).batches(without_three.forget, 146)
    teacher = untrained(simple, 2).logits(batch.images)
    before, after = (teacher_kl(teacher, model.logits(batch.images)).mean() for model in (simple, result.model))
    assert bool(after < 0.2 * before)


def test_a_bad_teacher_uses_three_tenths_of_the_retained_images(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    result = BadTeacher().with_numbers(batch_size=50).unlearn(simple, without_three, device="cpu")
    # 388 of 1,292 retained beside 146 forget images: 14 and 36 a batch, 10 batches, through student and both teachers
    assert result.image_passes == 3 * 10 * 50


def test_the_target_of_delete_has_no_mass_on_the_forgotten_class_and_the_rest_in_proportion(
    logits: tuple[Tensor, Tensor],
) -> None:
    teacher, student = logits
    target = masked_target(teacher, torch.tensor([2]), 1.0)
    p = teacher.softmax(-1)
    others = [0, 1, 3, 4]
    assert bool((target[:, 2] == 0).all())
    torch.testing.assert_close(target[:, others], p[:, others] / (1 - p[:, [2]]))
    expected = sum(slow_kl(q, r) for q, r in zip(target, student.softmax(-1), strict=True)) / 6
    assert float(delete_loss(teacher, student, torch.tensor([2]))) == pytest.approx(expected, rel=1e-4)


def test_delete_approaches_the_masked_predictions_with_forget_images_alone(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    alone = famr.forget_only(without_three.forget, without_three.labels)
    method = Delete().with_numbers(epochs=20, learning_rate=2e-2, batch_size=64)
    first = method.unlearn(simple, alone, seed=2, device="cpu")
    assert first.history[-1].loss < 0.1 * first.history[0].loss
    assert first.model.digest() == method.unlearn(simple, without_three, seed=2, device="cpu").model.digest()


# Dampening, boundary, sparsity


def test_dampening_is_that_of_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(5)
    weight, own, whole = (torch.rand(40, generator=generator) for _ in range(3))
    own[:3], whole[:3] = 0.0, 0.0
    for alpha, lam in ((1.0, 1.0), (2.0, 0.5), (0.5, 3.0)):
        expected = []
        for w, f, d in zip(weight.tolist(), own.tolist(), whole.tolist(), strict=True):
            expected.append(w * min(lam * d / f, 1.0) if f > alpha * d else w)
        assert dampened(weight, own, whole, alpha, lam).tolist() == pytest.approx(expected, rel=1e-5)


def test_importance_is_the_mean_of_the_squared_gradients_of_batches(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    session = session_of(simple, without_three)
    module = session.model.module
    for importance, batches in zip(
        SSD(batch_size=32).importances(session),
        (session.batches(session.forget, 32), [*by_class(session), *session.batches(session.forget, 32)]),
        strict=True,
    ):
        squares = []
        for batch in batches:
            module.zero_grad()
            F.cross_entropy(module(batch.images), batch.labels).backward()
            squares.append([parameter.grad.square() for parameter in module.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(importance, [torch.stack(layer).mean(0) for layer in zip(*squares, strict=True)])


def by_class(session: BaselineSession) -> list[Batch]:
    """Batches of 32 retained images, one class after another."""
    return list(session.batches(session.retain.take(torch.argsort(session.retain.targets, stable=True)), 32))


def test_ssd_goes_through_samples_in_random_order(simple: famr.Classifier, digits: Data) -> None:
    """As its authors do: class by class for a class alone."""
    orders = []
    for request in (famr.Request(classes=["3"]), famr.Request(samples=list(range(0, 200, 2)))):
        session, seen = session_of(simple, famr.split(digits, request)), []
        batches = session.batches
        session.batches = lambda *given, _all=batches, _seen=seen: (  # type: ignore[method-assign]
            _seen.append(batch.labels) or batch for batch in _all(*given)
        )
        SSD().importances(session)
        labels = torch.cat(seen).tolist()
        orders.append(sum(a != b for a, b in itertools.pairwise(labels)))
    assert orders[0] == 10  # the class itself, nine other ones, and the class again
    assert orders[1] > 500


def test_ssd_within_a_limit_uses_images_of_all_classes(simple: famr.Classifier, without_three: famr.Splits) -> None:
    method = SSD(batch_size=32)
    whole = method.unlearn(simple, without_three, device="cpu").facts
    assert whole["steps"] == whole["steps_planned"] == 2 * 5 + 41
    cut = method.shortened(20, whole["steps_planned"]).unlearn(simple, without_three, device="cpu")
    assert cut.facts["steps"] <= 20 < cut.facts["steps_planned"] == 51
    assert method.shortened(51, 51) is method


def test_ssd_leaves_weights_that_matter_as_much_to_the_rest(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    method = SSD(alpha=4.0, lam=0.5, batch_size=32)
    importances = method.importances(session_of(simple, without_three))
    own, whole = (torch.cat([part.flatten() for part in parts]) for parts in importances)
    before, after = flat(simple.module), flat(run(method, simple, without_three))
    chosen = own > 4.0 * whole
    assert 0 < int(chosen.sum()) < len(chosen)
    assert torch.equal(before[~chosen], after[~chosen])
    assert bool((after[chosen].abs() <= before[chosen].abs() / 8).all())  # λ·I_D/I_f < ½·¼
    everything = SSD(alpha=1e9, batch_size=32)
    assert torch.equal(flat(run(everything, simple, without_three)), before)


def test_the_nearest_class_is_the_prediction_for_the_attacked_image_and_never_the_forgotten_class(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    session = session_of(simple, without_three)
    batch = next(iter(session.batches(without_three.forget, 40)))
    nearest = BoundaryShrink(epsilon=0.2).nearest_classes(session, batch.images, batch.labels)
    for image, label in zip(batch.images[:10], nearest[:10].tolist(), strict=True):  # one by one
        image = image[None].clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(simple.logits(image), torch.tensor([3])), image)
        attacked = simple.logits(image.detach() + 0.2 / 0.4 * gradient.sign())[0].detach()
        remaining = [(float(score), index) for index, score in enumerate(attacked) if index != 3]
        assert max(remaining)[1] == label
    assert 3 not in nearest.tolist()
    assert nearest_class(torch.tensor([[9.0, 8.0, 1.0]]), torch.tensor([0, 1])).tolist() == [2]


def test_boundary_shrink_learns_the_nearest_classes(simple: famr.Classifier, without_three: famr.Splits) -> None:
    result = BoundaryShrink().with_numbers(learning_rate=1e-2).unlearn(simple, without_three, device="cpu")
    assert result.history[-1].loss < 0.5 * result.history[0].loss


def test_more_gamma_leaves_more_weights_near_zero(simple: famr.Classifier, without_three: famr.Splits) -> None:
    near_zero = []
    for gamma in (0.0, 1e-3, 1e-2):
        method = L1Sparse(gamma=gamma).with_numbers(epochs=4, learning_rate=0.05, batch_size=64)
        near_zero.append(float((flat(run(method, simple, without_three)).abs() < 1e-2).float().mean()))
    assert near_zero[0] + 0.02 < near_zero[1]
    assert near_zero[1] + 0.2 < near_zero[2]


def test_no_gamma_is_fine_tuning(simple: famr.Classifier, without_three: famr.Splits) -> None:
    steps = {"epochs": 1, "learning_rate": 0.05, "batch_size": 64}
    first = flat(run(L1Sparse(gamma=0.0).with_numbers(**steps), simple, without_three))
    assert torch.equal(first, flat(run(FineTune().with_numbers(**steps), simple, without_three)))


# The head


def test_a_newton_step_on_ridge_regression_is_exact_retraining() -> None:
    generator = torch.Generator().manual_seed(6)
    X = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(30, generator=generator, dtype=torch.float64)
    ridge = 0.7 * torch.eye(4, dtype=torch.float64)

    def solution(rows: slice) -> Tensor:
        return torch.linalg.solve(X[rows].mT @ X[rows] + ridge, X[rows].mT @ y[rows])

    full, left = solution(slice(0, 30)), slice(7, 30)
    removed = X[:7].mT @ (X[:7] @ full - y[:7])
    step = newton_removal(removed, lambda v: X[left].mT @ (X[left] @ v), damping=0.7)
    torch.testing.assert_close(full + step.x, solution(left), rtol=1e-5, atol=1e-7)


def test_gradient_and_curvature_of_the_softmax_head_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(7)
    W = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    X = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(9) % 3

    def loss(flat_weights: Tensor) -> Tensor:
        return F.cross_entropy(X @ flat_weights.view(3, 4).mT, labels, reduction="sum")

    torch.testing.assert_close(
        softmax_gradient(W, X, labels).flatten(), torch.autograd.functional.jacobian(loss, W.flatten())
    )
    hessian = torch.autograd.functional.hessian(loss, W.flatten())
    product = softmax_hessian_product(W, X)
    torch.testing.assert_close(torch.stack([product(row) for row in torch.eye(12).double()]), hessian)


def test_a_newton_step_brings_a_softmax_head_close_to_its_retrained_self() -> None:
    generator = torch.Generator().manual_seed(8)
    X = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    labels = (X[:, :3] + 0.5 * torch.randn(400, 3, generator=generator)).argmax(dim=1)
    weights = {}
    for name, rows in (("full", slice(0, 400)), ("left", slice(20, 400))):
        W = torch.zeros(3, 6, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([W], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def closure(W: Tensor = W, rows: slice = rows, solver: torch.optim.LBFGS = solver) -> Tensor:
            solver.zero_grad()
            loss = F.cross_entropy(X[rows] @ W.mT, labels[rows], reduction="sum") + W.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(closure)  # type: ignore[arg-type]
        weights[name] = W.detach()
    full, retrained = weights["full"], weights["left"]
    gone = softmax_gradient(full, X[:20], labels[:20])
    step = newton_removal(gone, softmax_hessian_product(full, X[20:]), damping=2.0)
    after = (full + step.x.view(3, 6) - retrained).norm()
    assert float(after) < 0.2 * float((full - retrained).norm())


def test_only_the_head_takes_a_newton_step(simple: famr.Classifier, without_three: famr.Splits) -> None:
    result = NewtonHead(strength=0.1).unlearn(simple, without_three, device="cpu")
    before, after = simple.module.state_dict(), result.model.module.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"3.weight", "3.bias"}
    assert result.facts["residual"] < 1e-5
    noisy = [run(NewtonHead(strength=0.1, noise=s), simple, without_three)[3].weight.detach() for s in (0.0, 0.5)]  # type: ignore[index]
    assert float((noisy[1] - noisy[0]).std()) == pytest.approx(0.5, rel=0.2)


# Ensembles and masks


def test_sisa_equals_the_removal_of_the_ensemble_itself(
    simple: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    method = cases(digits)["SISA"]
    assert isinstance(method, SisaRemoval)
    assert method.sisa is not None
    assert without_three.retain is not None
    left, removal = method.sisa.forget(without_three.retain, without_three.forget.ids, device="cpu")
    result = method.unlearn(simple, without_three, device="cpu")
    assert result.model.digest() == left.classifier().digest()
    assert result.image_passes == removal.passes
    assert result.facts["share_of_retraining"] == removal.share


def test_the_famr_method_is_famr_forget(simple: famr.Classifier, without_three: famr.Splits) -> None:
    method = replace(famr.FAMR.paper(), epochs=2)
    expected = famr.forget(
        simple, without_three, method, seed=4, device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    result = FamrMethod(method).unlearn(simple, without_three, seed=4, device="cpu")
    assert result.model.digest() == expected.model.digest()
    assert result.image_passes == 3 * 146
    assert result.facts["seconds_of_steps"] <= result.seconds


def test_forsaken_only_scales_neurons(simple: famr.Classifier, without_three: famr.Splits) -> None:
    module: Any = run(Forsaken(penalty=0.0).with_numbers(learning_rate=3e-2), simple, without_three)
    original: Any = simple.module
    for layer in (1, 3):
        before = torch.cat([original[layer].weight, original[layer].bias[:, None]], dim=1).detach()
        after = torch.cat([module[layer].weight, module[layer].bias[:, None]], dim=1).detach()
        mask = (before * after).sum(dim=1) / before.square().sum(dim=1)
        torch.testing.assert_close(after, mask[:, None] * before)
        assert float((mask - 1).abs().max()) > 0.1


def test_a_large_penalty_keeps_the_masks_at_one(simple: famr.Classifier, without_three: famr.Splits) -> None:
    changes = []
    for penalty in (0.0, 1e3):
        method = Forsaken(penalty=penalty).with_numbers(learning_rate=1e-2)
        changes.append(method.unlearn(simple, without_three, device="cpu").facts["mean_change_of_masks"])
    assert changes[1] < 0.1 * changes[0]
    assert float(forsaken_loss(torch.zeros(1, 2), torch.tensor([0.5, 0.5]), [torch.tensor([1.0, 0.5])], 2.0)) == 0.5


def test_the_non_member_target_is_the_mean_of_the_class_or_of_all_classes_if_it_is_forgotten() -> None:
    held_out = Predictions(torch.tensor([[2.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 0, 1]))
    target = non_member_target(held_out, torch.tensor([0, 2]), forgotten=(2,))
    p = held_out.logits.softmax(-1)
    torch.testing.assert_close(target, torch.stack([p[:2].mean(dim=0), p.mean(dim=0)]))


def test_forsaken_without_held_out_images_is_refused(simple: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="held-out"):
        Forsaken().unlearn(simple, replace(without_three, test=None), device="cpu")


def test_annealed_labels_fill_every_class_with_its_share() -> None:
    generator = torch.Generator().manual_seed(9)
    counts = torch.tensor([40, 0, 35, 25])
    quotas = class_quotas(counts, 33)
    labels = annealed_labels(torch.rand(33, 4, generator=generator), quotas)
    assert torch.bincount(labels, minlength=4).tolist() == quotas.tolist() == [13, 0, 12, 8]


def test_the_most_probable_image_gets_a_contested_label() -> None:
    scores = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.7, 0.3], [0.8, 0.2]])
    assert annealed_labels(scores, torch.tensor([2, 2])).tolist() == [1, 0, 1, 0]


def test_label_annealing_spreads_the_forgotten_class_over_the_remaining_ones(
    simple: famr.Classifier, without_three: famr.Splits
) -> None:
    method = LabelAnnealing().with_numbers(epochs=10, learning_rate=0.1, batch_size=64)
    result = method.unlearn(simple, without_three, seed=2, device="cpu")
    assert [row.phase for row in result.history[:2]] == ["round 1", "round 2"]
    predictions = session_of(result.model, without_three).predictions(without_three.forget)
    counts = Counter(predictions.logits.argmax(dim=-1).tolist())
    assert counts[3] == 0
    assert sum(count >= 5 for count in counts.values()) >= 6
