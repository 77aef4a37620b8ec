"""Certificates of problems that can be solved exactly: bounds hold, are not vacuous, and break when tampered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import Outcome, alg1
from famr.certificates.anchored_objective import AnchoredObjective
from famr.certificates.bounds import influence_gap
from famr.certificates.certify import certify, run_objective
from famr.certificates.claims import Assumption, Certificate, Claim, differences
from famr.certificates.comparison import retrained_claims
from famr.certificates.curvature import flat, hessian_product, shaped
from famr.certificates.deviation import deviation_claims
from famr.certificates.influence import (
    influence_step,
    retained_curvature,
    sketched_influence_step,
    summed_gradient,
)
from famr.certificates.page import certificate_page
from famr.certificates.wording import REWORDED
from famr.config import Effort, ResolvedFAMR
from famr.data import Data
from famr.data.loaders import Batches, loader_batches
from famr.engine.plain import PlainEngine
from famr.errors import CheckpointError, GateError, RequestError
from famr.unlearn.inputs import RunInputs
from famr.unlearn.problem import build_problem

CPU = torch.device("cpu")
FIRST_EDITION = Path(__file__).parents[1] / "fixtures/first_edition"
Linear = tuple[nn.Module, Tensor]
ObjectiveOf = Callable[..., AnchoredObjective]


@pytest.fixture
def objective_of() -> Iterator[ObjectiveOf]:
    """Builds Eq. (1) with the uniform target for a bare network, all images in one batch."""
    with ExitStack() as stack:

        def build(module: nn.Module, images: Tensor, strength: float = 0.3, rate: float = 1e-2) -> AnchoredObjective:
            method = alg1(strength=strength, learning_rate=rate, batch_size=len(images))
            config = ResolvedFAMR.from_json(method.to_json())
            classifier = famr.Classifier(module)
            session = stack.enter_context(PlainEngine(CPU).session(classifier, "fp32"))
            loader = [(images, torch.zeros(len(images), dtype=torch.long))]
            inputs = RunInputs.of(classifier, None, loader)
            return AnchoredObjective.of(stack.enter_context(build_problem(session, inputs, config, seed=0)))

        yield build


def dense(objective: AnchoredObjective) -> Tensor:
    product = objective.product()
    return torch.stack([product(unit) for unit in torch.eye(len(objective.start), dtype=torch.float64)], dim=1)


def exact_minimiser(objective: AnchoredObjective) -> Tensor:
    """θ* by Newton's method with the dense Hessian, to rounding."""
    objective.set_weights(objective.start)
    for _ in range(50):
        weights, value = flat(objective.parameters), objective.value()
        step, share = torch.linalg.solve(dense(objective), objective.gradient()), 1.0
        objective.set_weights(weights - step)
        while objective.value() > value and share > 1e-3:  # a full step can be too long far from θ*
            share /= 2
            objective.set_weights(weights - share * step)
    assert float(objective.gradient().norm()) < 1e-10
    return flat(objective.parameters)


def random_unit(like: Tensor) -> Tensor:
    direction = torch.randn(like.shape, generator=torch.Generator().manual_seed(3), dtype=like.dtype)
    return direction / direction.norm()


def claims_at(objective: AnchoredObjective, weights: Tensor) -> dict[str, Claim]:
    claims = deviation_claims(objective, weights, lanczos_steps=len(weights))
    return {claim.name: claim for claim in claims}


def test_all_claims_hold_at_the_exact_minimum_of_a_convex_problem(linear: Linear, objective_of: ObjectiveOf) -> None:
    objective = objective_of(*linear)
    claims = claims_at(objective, exact_minimiser(objective))
    for name in ("stationarity", "smallest_curvature", "drift", "uniformity_gap", "contraction", "step_size"):
        if name != "contraction":  # ‖∇J‖ is rounding there, and so is its ratio
            assert claims[name].holds, name
        assert all(assumption.status != "fails" for assumption in claims[name].assumptions), name
    assert claims["smallest_curvature"].value == pytest.approx(0.3, abs=1e-6)  # λ: the softmax has flat directions
    assert claims["distance_to_resting_point"].bound < 1e-9  # type: ignore[operator]


@pytest.mark.parametrize("distance", [1e-3, 1e-1, 1.0])
def test_distance_to_the_exact_minimum_is_within_its_bound(
    linear: Linear, objective_of: ObjectiveOf, distance: float
) -> None:
    objective = objective_of(*linear)
    exact = exact_minimiser(objective)
    claim = claims_at(objective, exact + distance * random_unit(exact))["distance_to_resting_point"]
    assert claim.bound is not None
    assert distance <= claim.bound <= 20 * distance  # it holds, and is not vacuous


def test_distance_bound_is_tight_along_the_flattest_direction(linear: Linear, objective_of: ObjectiveOf) -> None:
    """There ‖∇J‖ is μ times the distance."""
    objective = objective_of(*linear)
    exact = exact_minimiser(objective)
    flattest = torch.linalg.eigh(dense(objective)).eigenvectors[:, 0]
    claim = claims_at(objective, exact + 0.1 * flattest)["distance_to_resting_point"]
    assert claim.bound == pytest.approx(0.1, rel=1e-2)


def test_a_curvature_within_its_error_is_not_called_negative(linear: Linear, objective_of: ObjectiveOf) -> None:
    objective = objective_of(*linear)
    claims = deviation_claims(objective, exact_minimiser(objective) + 0.1, lanczos_steps=2)
    by_name = {claim.name: claim for claim in claims}
    assert by_name["smallest_curvature"].value > 0  # type: ignore[operator]
    assert "no larger than its error" in str(by_name["distance_to_resting_point"].not_available)


def test_smoothness_of_the_forgetting_loss_excludes_the_anchor(linear: Linear, objective_of: ObjectiveOf) -> None:
    objective = objective_of(*linear)
    weights = exact_minimiser(objective)
    largest = claims_at(objective, weights)["step_size"].details["largest_curvature"]
    objective.set_weights(weights)
    product = objective.forget_product()
    matrix = torch.stack([product(unit) for unit in torch.eye(len(weights), dtype=weights.dtype)])
    assert largest == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-6)


def test_a_tampered_strength_breaks_the_bounds(linear: Linear, objective_of: ObjectiveOf) -> None:
    """A claimed anchor that is stronger than the true one moves the stationary point towards θ₀."""
    honest = objective_of(*linear)
    exact = exact_minimiser(honest)
    weights = exact + 0.1 * random_unit(exact)
    forged = replace(honest, strength=30.0)
    claims = claims_at(forged, weights)
    assert claims["stationarity"].holds is False
    assert claims_at(honest, exact)["stationarity"].holds is True
    forged_distance = float((weights - exact_minimiser(forged)).norm())
    assert claims["distance_to_resting_point"].bound >= forged_distance  # type: ignore[operator]  # of the forged J
    drift = claims_at(forged, exact)["drift"]
    assert drift.holds is False or any(a.status == "fails" for a in drift.assumptions)


@pytest.mark.parametrize("tampered", ["weights", "data"])
def test_tampered_weights_or_images_are_not_stationary(
    linear: Linear, objective_of: ObjectiveOf, tampered: str
) -> None:
    module, images = linear
    objective = objective_of(module, images)
    exact = exact_minimiser(objective)
    if tampered == "weights":
        exact = exact + 0.01
    else:
        objective = objective_of(module, images + 0.1)
    assert claims_at(objective, exact)["stationarity"].holds is False


def test_contraction_is_within_its_rate_where_the_theorem_applies(linear: Linear, objective_of: ObjectiveOf) -> None:
    objective = objective_of(*linear, rate=1e-3)
    claims = claims_at(objective, objective.start.clone())
    assert claims["contraction"].holds
    assert claims["contraction"].bound == pytest.approx(1 - 1e-3 * 0.3)
    assert claims["contraction"].proved
    too_long = claims_at(objective_of(*linear, rate=10.0), objective.start.clone())
    assert too_long["step_size"].holds is False
    assert not too_long["contraction"].proved


def test_smallest_curvature_is_that_of_the_dense_hessian(objective_of: ObjectiveOf) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    images = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objective = objective_of(module, images, strength=0.01)
    weights = objective.start + 0.1
    claim = claims_at(objective, weights)["smallest_curvature"]
    objective.set_weights(weights)
    values = torch.linalg.eigvalsh(dense(objective))
    assert claim.value == pytest.approx(float(values[0]), abs=1e-6)
    assert claim.details["largest"] == pytest.approx(float(values[-1]), abs=1e-6)
    assert claim.holds is bool(values[0] > 0)


def test_no_distance_is_claimed_where_the_objective_is_not_convex(objective_of: ObjectiveOf) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    images = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(4)
    objective = objective_of(module, images, strength=1e-6)
    claims = claims_at(objective, objective.start.clone())
    assert claims["smallest_curvature"].holds is False
    assert claims["distance_to_resting_point"].bound is None
    assert "not strongly convex" in str(claims["distance_to_resting_point"].not_available)


def test_uniformity_gap_is_the_l1_distance_and_within_pinskers_bound(linear: Linear, objective_of: ObjectiveOf) -> None:
    module, images = linear
    claim = claims_at(objective_of(module, images), flat(module.parameters()))["uniformity_gap"]
    p = torch.softmax(module(images), dim=-1).detach()
    gaps = [sum(abs(float(x) - 0.25) for x in row) for row in p]
    assert claim.value == pytest.approx(max(gaps))
    assert claim.details["mean"] == pytest.approx(sum(gaps) / len(gaps))
    assert claim.value <= claim.bound <= 2  # type: ignore[operator]


@pytest.mark.parametrize("anchor", ["l2", "fisher", "kfac"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_objective_of_a_run_has_each_anchor_once_per_batch_of_the_sum(
    original: famr.Classifier, without_three: famr.Splits, anchor: str, reduction: str
) -> None:
    strengths = {"strength": 0.5, "function_strength": 2.0, "function_images": 2}
    method = alg1(anchor=anchor, reduction=reduction, epochs=1, batch_size=64, fisher_images=50, **strengths)
    few = replace(without_three, forget=without_three.forget.take(torch.arange(100)))
    result = famr.forget(original, few, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    with run_objective(result, RunInputs.of(original, few, None), CPU) as objective:
        problem, steps = objective.problem, 2 if reduction == "sum" else 1
        weights = objective.start + 0.5 * random_unit(objective.start)
        objective.set_weights(weights)
        weight_anchor, function_anchor = (term.anchor for term in problem.anchors)
        kl = problem.objective.measure(problem.forget(None)).kl
        assert objective.forget_value() == pytest.approx(float(kl.sum() if reduction == "sum" else kl.mean()), rel=1e-5)
        for term, anchored in (
            ({"function_anchor": None}, 0.5 * weight_anchor.penalty(objective.parameters)),
            ({"penalty": None}, 2 * function_anchor.penalty(objective.parameters)),
        ):
            penalty = replace(objective, **term).value() - objective.forget_value()
            assert penalty == pytest.approx(steps * float(anchored), rel=0.01)
        assert objective.rate == pytest.approx(1e-4 / steps)

        direction, values = random_unit(weights), []
        slope = float(objective.gradient() @ direction)
        for sign in (1, -1):
            objective.set_weights(weights + sign * 1e-2 * direction)
            values.append(objective.value())
        assert slope == pytest.approx((values[0] - values[1]) / 2e-2, rel=0.02, abs=1e-3)


def softmax_regression(ridge: float) -> tuple[nn.Linear, Batches, Batches, Callable[[Batches], Tensor]]:
    """Images of three classes, some to forget; and the exact minimiser of Σℓ + ½ρ‖θ‖² on any of them."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(40, 4, generator=draws, dtype=torch.float64)
    labels = (images[:, :3] + 0.5 * torch.randn(40, 3, generator=draws, dtype=torch.float64)).argmax(dim=-1)
    everything = loader_batches([(images, labels)], CPU)
    forget, retain = loader_batches([(images[:5], labels[:5])], CPU), loader_batches([(images[5:], labels[5:])], CPU)
    module = nn.Linear(4, 3).double()

    def minimise(batches: Batches) -> Tensor:
        parameters = list(module.parameters())

        def losses() -> list[Tensor]:
            return [nn.functional.cross_entropy(module(b.images), b.labels, reduction="sum") for b in batches(None)]

        for _ in range(60):
            weights = flat(parameters)
            gradient = flat(torch.autograd.grad(losses()[0], parameters)) + ridge * weights
            product = hessian_product(losses, parameters)
            matrix = torch.stack([product(unit) for unit in torch.eye(15, dtype=torch.float64)])
            step = torch.linalg.solve(matrix + ridge * torch.eye(15, dtype=torch.float64), gradient)
            with torch.no_grad():
                for parameter, part in zip(parameters, shaped(weights - step, parameters), strict=True):
                    parameter.copy_(part)
        return flat(parameters)

    minimise(everything)
    return module, forget, retain, minimise


def test_influence_step_with_the_corrected_sign_approximates_retraining() -> None:
    ridge = 1.0
    module, forget, retain, minimise = softmax_regression(ridge)
    parameters = list(module.parameters())
    before = flat(parameters)
    curvature = retained_curvature(module, parameters, retain, retain_count=35)
    x = influence_step(summed_gradient(module, parameters, forget), curvature, damping=ridge).x
    truth = minimise(retain) - before
    assert float(nn.functional.cosine_similarity(x, truth, dim=0)) > 0.95
    assert float((x - truth).norm()) < 0.5 * float(truth.norm())
    assert float((-x - truth).norm()) > 1.5 * float(truth.norm())  # the sign that Eq. (7) prints


def test_corrected_bound_of_eq_9_holds_for_every_damping() -> None:
    module, forget, retain, _minimise = softmax_regression(ridge=1.0)
    parameters = list(module.parameters())
    product = hessian_product(
        lambda: [nn.functional.cross_entropy(module(b.images), b.labels, reduction="sum") for b in retain(None)],
        parameters,
    )
    identity = torch.eye(15, dtype=torch.float64)
    H = torch.stack([product(unit) for unit in identity]) + 0.5 * identity
    batch = next(iter(forget(None)))
    g = flat(torch.autograd.grad(nn.functional.cross_entropy(module(batch.images), batch.labels), parameters))
    smallest = float(torch.linalg.eigvalsh(H)[0])
    exact = torch.linalg.solve(H, g)
    for damping in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0):
        gap = float((torch.linalg.solve(H + damping * identity, g) - exact).norm())
        bound = influence_gap(damping, float(g.norm()), smallest)
        assert bound is not None
        assert gap <= bound * (1 + 1e-9)
    worst = torch.linalg.eigh(H).eigenvectors[:, 0]  # the bound is tight along it
    gap = float((torch.linalg.solve(H + 0.1 * identity, worst) - torch.linalg.solve(H, worst)).norm())
    assert gap == pytest.approx(float(influence_gap(0.1, 1.0, smallest)))  # type: ignore[arg-type]
    assert gap > 0.9 * float(influence_gap(0.1, 1.0, smallest / 0.95))  # type: ignore[arg-type]


def test_eq_10_holds_between_two_networks_with_the_measured_constant() -> None:
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(6, 4, generator=draws)
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(famr.Classifier(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))))
    sets = {"forget": loader_batches([(images, torch.zeros(6, dtype=torch.long))], CPU)}
    distance, answers, lipschitz = retrained_claims(*networks, sets, CPU)
    weights = [flat(list(network.module.parameters())) for network in networks]
    assert distance.value == pytest.approx(float((weights[0] - weights[1]).norm()))
    logits = [network.module(images).detach() for network in networks]
    assert answers.value == pytest.approx(float((logits[0] - logits[1]).norm(dim=-1).mean()))
    assert lipschitz.holds
    assert lipschitz.value > 0.01 * lipschitz.bound  # type: ignore[operator]  # not vacuous
    other = famr.Classifier(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    with pytest.raises(CheckpointError, match=r"2\.weight is \(4, 8\)"):
        retrained_claims(networks[0], other, sets, CPU)


@pytest.fixture(scope="module")
def certified(original: famr.Classifier, without_three: famr.Splits) -> tuple[famr.Unlearned, Certificate]:
    result = famr.forget(
        original, without_three, alg1(epochs=2), device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    return result, certify(result, without_three, device="cpu", lanczos_steps=5, retained_images=20)


@pytest.mark.parametrize("option", ["lanczos_steps", "retained_images"])
def test_a_certificate_without_steps_or_images_is_refused(
    certified: tuple[famr.Unlearned, Certificate], without_three: famr.Splits, option: str
) -> None:
    with pytest.raises(RequestError, match=f"`{option}` must be at least 1, got 0"):
        certify(certified[0], without_three, device="cpu", **{option: 0})


def test_every_claim_has_a_number_or_a_reason(certified: tuple[famr.Unlearned, Certificate]) -> None:
    result, certificate = certified
    assert certificate.kind == "deviation"
    for claim in certificate.claims:
        assert (claim.not_available is None) == (claim.value is not None or claim.bound is not None), claim.name
    assert certificate["drift"].value == pytest.approx(result.drift, rel=1e-4)
    assert certificate["drift"].holds
    assert certificate["smallest_curvature"].holds is False  # a deep network is not convex
    assert "fails" in {assumption.status for claim in certificate.claims for assumption in claim.assumptions}
    assert certificate["distance_to_retrained"].not_available == "no retrained checkpoint was given"
    page = certificate_page(certificate)
    assert "not strongly convex" in page
    assert "What this does not show" in page


def test_a_certificate_equals_its_json_and_differs_from_forgeries(
    certified: tuple[famr.Unlearned, Certificate],
) -> None:
    _, certificate = certified
    again = Certificate.from_json(json.loads(json.dumps(certificate.to_json())))
    assert differences(certificate, again, tolerance=1e-9) == []
    for forged in (
        replace(again, subject={**again.subject, "unlearned_sha256": "0" * 64}),
        replace(again, claims=(replace(again.claims[0], value=again.claims[0].value * 1.1), *again.claims[1:])),  # type: ignore[operator]
        replace(again, claims=(replace(again.claims[0], holds=True), *again.claims[1:])),
        replace(again, claims=(replace(again.claims[0], assumptions=(Assumption("x", "checked"),)), *again.claims[1:])),
        replace(again, claims=again.claims[1:]),
    ):
        assert differences(again, forged, tolerance=0.01)


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_the_default_methods_are_certified(
    original: famr.Classifier, without_three: famr.Splits, effort: Effort
) -> None:
    method = famr.FAMR(effort=effort, strength=100.0, epochs=2, function_images=2)
    result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    certificate = certify(result, without_three, device="cpu", lanczos_steps=4, retained_images=20)
    assert certificate["target_gap"].holds
    assert certificate["contraction"].not_available is not None
    assert certificate["drift"].bound is None


def test_weights_that_the_run_did_not_edit_are_refused(original: famr.Classifier, without_three: famr.Splits) -> None:
    method = famr.FAMR(strength=100.0, epochs=1, function_strength=0.0, anchor="l2")
    result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    with torch.no_grad():
        next(result.model.module.parameters()).add_(1.0)  # an early layer
    with pytest.raises(RequestError, match="did not edit"):
        certify(result, without_three, device="cpu", lanczos_steps=2)


def test_the_command_writes_and_checks_a_certificate_and_detects_forgery(
    original_run: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = tmp_path / "no-3"
    arguments = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *arguments, "--paper", "--epochs", "1", "--quiet").code == 0
    few = ["--device", "cpu", "--lanczos-steps", "3", "--retained-images", "10"]
    outcome = run("certify", folder, *few, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["kind"] == "deviation"
    assert "# Certificate" in (folder / "unlearning/certificate.md").read_text(encoding="utf-8")
    assert run("evaluate", folder, "--device", "cpu").code == 0  # the folder is sealed anew
    assert run("certify", folder, "--check", "--device", "cpu").code == 0
    file = folder / "unlearning/certificate.json"
    forged = json.loads(file.read_text(encoding="utf-8"))
    forged["claims"][0]["value"] /= 2
    file.write_text(json.dumps(forged), encoding="utf-8")
    assert run("certify", folder, "--check", "--device", "cpu").code == 4  # the seal; the next test is of the numbers


def test_a_forged_certificate_fails_the_gate_under_a_new_seal(
    certified: tuple[famr.Unlearned, Certificate], tmp_path: Path
) -> None:
    from famr.cli.certify import require_same

    _, certificate = certified
    forged = replace(certificate, claims=(replace(certificate.claims[0], value=0.0), *certificate.claims[1:]))
    with pytest.raises(GateError, match="stationarity, value"):
        require_same(tmp_path, forged, certificate)


def test_a_run_without_certificate_cannot_be_checked(original_run: Path, run: Callable[..., Outcome]) -> None:
    outcome = run("certify", original_run, "--check")
    assert outcome.code == 2
    assert "no certificate" in outcome.err


def test_a_retrained_model_gets_an_exact_certificate(
    original_run: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = tmp_path / "never-3"
    short = ["--epochs", "1", "--output-dir", folder, "--device", "cpu", "--quiet"]
    assert run("train", "--model", original_run, "--data", "digits", "--without-class", "3", *short).code == 0
    outcome = run("certify", folder, "--json", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    certificate = Certificate.from_json(json.loads(outcome.out))
    assert certificate.kind == "exact"
    assert certificate["removed_images_trained_on"].proved
    assert run("certify", folder, "--check", "--device", "cpu").code == 0
    refused = run("certify", original_run)
    assert refused.code == 2
    assert "forgotten nothing" in refused.err


def test_a_sketch_replaces_retained_images_in_the_influence_step(original: famr.Classifier, digits: Data) -> None:
    sketch = famr.take_sketch(original, digits, images=60, device="cpu")
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3), digits.labels)
    method = famr.FAMR(strength=1.0, epochs=1)
    result = famr.forget(original, alone, method, sketch=sketch, device="cpu", monitor=famr.Monitor(track_retain=False))
    certificate = certify(result, alone, sketch=sketch, device="cpu", lanczos_steps=2)
    claim = certificate["influence_step"]
    assert claim.value is not None
    assert claim.details["residual"] < 1e-2  # type: ignore[operator]
    assert any("sketch" in assumption.says for assumption in claim.assumptions)
    without = certify(result, alone, device="cpu", lanczos_steps=2)["influence_step"]
    assert without.not_available == "neither retained images nor a sketch were given"
    with pytest.raises(CheckpointError, match="other weights"):
        certify(replace(result, original=result.model), alone, sketch=sketch, device="cpu")


def test_the_sketched_influence_step_solves_its_system() -> None:
    """Against a dense solve with the Kronecker product written out."""
    from famr.anchors.kfac import KFACAnchor
    from famr.anchors.statistics import LayerFisher

    module, forget, _retain, _minimise = softmax_regression(ridge=1.0)
    parameters = list(module.parameters())
    draws = torch.Generator().manual_seed(4)
    roots = [torch.randn(size, size, generator=draws, dtype=torch.float64) for size in (5, 3)]
    A, G = (root @ root.T for root in roots)
    start = [parameter.detach().clone() for parameter in parameters]
    anchor = KFACAnchor(
        start, [LayerFisher(0, 1, *torch.linalg.eigh(A), *torch.linalg.eigh(G))], [torch.zeros_like(p) for p in start]
    )
    gradient = summed_gradient(module, parameters, forget)
    solution = sketched_influence_step(gradient, anchor, parameters, retain_count=35, damping=3.5)
    batch = next(iter(forget(None)))
    loss = nn.functional.cross_entropy(module(batch.images), batch.labels, reduction="sum")
    weight, bias = torch.autograd.grad(loss, parameters)
    g = torch.cat([weight, bias[:, None]], dim=1).reshape(-1)  # (outputs × inputs), row by row
    H = 35 * torch.kron(G, A) + 0.1 * 35 * torch.eye(15, dtype=torch.float64)
    slow = torch.linalg.solve(H, g).reshape(3, 5)
    assert torch.allclose(solution.x, torch.cat([slow[:, :4].reshape(-1), slow[:, 4]]), atol=1e-10)


def test_a_certificate_of_the_first_edition_matches_its_files(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    """Numbers, bounds, statuses, and sentences in their present wording."""
    for name in ("original", "class", "retrained"):
        shutil.copytree(FIRST_EDITION / name, tmp_path / name)
    told = run("certify", tmp_path / "class", "--retrained", tmp_path / "retrained", "--check", "--device", "cpu")
    assert told.code == 0, told.err


def test_no_certificate_has_a_sentence_that_was_reworded(certified: tuple[famr.Unlearned, Certificate]) -> None:
    text = json.dumps(certified[1].to_json(), ensure_ascii=False)
    assert not [earlier for earlier in REWORDED if json.dumps(earlier, ensure_ascii=False) in text]
