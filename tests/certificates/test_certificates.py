"""Certificates on problems small enough to solve exactly: bounds hold, say something, and break when tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from famr.unlearn.forget_loss import ForgetLoss, Passes
from torch import Tensor, nn

import famr
from conftest import Outcome, alg1
from famr.anchors import L2Anchor
from famr.certificates.bounds import influence_gap
from famr.certificates.certify import certify
from famr.certificates.claims import Assumption, Certificate, Claim, differences
from famr.certificates.curvature import flat, hessian_product, shaped
from famr.certificates.deviation import deviation_claims
from famr.certificates.link import influence_step, retrained_claims
from famr.certificates.page import certificate_page
from famr.certificates.resting import RestingObjective
from famr.data import Data
from famr.data.loaders import Batches, loader_batches
from famr.errors import CheckpointError, GateError, RequestError
from famr.losses.objective import uniform_target

CPU = torch.device("cpu")
Linear = tuple[nn.Module, Tensor]


def objective_of(module: nn.Module, images: Tensor, strength: float = 0.3, rate: float = 1e-2) -> RestingObjective:
    """Eq. (1) with the uniform target on a bare network, all images in one batch."""
    method = alg1(strength=strength, learning_rate=rate, batch_size=len(images))
    forget = loader_batches([(images, torch.zeros(len(images), dtype=torch.long))], CPU)
    classes = module(images).shape[-1]
    loss = ForgetLoss(famr.Classifier(module), method, uniform_target(classes).double(), CPU)
    parameters = list(module.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    passes = Passes(forget, 1, forget, None, None, None, None, (), False)
    return RestingObjective(loss, passes, parameters, flat(start), L2Anchor(start), strength, None, 0.0)


def dense(objective: RestingObjective) -> Tensor:
    product = objective.product()
    return torch.stack([product(unit) for unit in torch.eye(len(objective.start), dtype=torch.float64)], dim=1)


def exact_minimiser(objective: RestingObjective) -> Tensor:
    """θ* by Newton's method with the dense Hessian, to rounding."""
    objective.put(objective.start)
    for _ in range(50):
        here, now = flat(objective.parameters), objective.value()
        step, share = torch.linalg.solve(dense(objective), objective.gradient()), 1.0
        objective.put(here - step)
        while objective.value() > now and share > 1e-3:  # a full step can be too long far from θ*
            share /= 2
            objective.put(here - share * step)
    assert float(objective.gradient().norm()) < 1e-10
    return flat(objective.parameters)


def claims_at(objective: RestingObjective, place: Tensor) -> dict[str, Claim]:
    found = deviation_claims(objective, place, batches=1, steps=len(place))
    return {claim.name: claim for claim in found}


def test_at_the_exact_minimum_of_a_convex_problem_everything_holds(linear: Linear) -> None:
    objective = objective_of(*linear)
    claims = claims_at(objective, exact_minimiser(objective))
    for name in ("stationarity", "smallest_curvature", "drift", "uniformity_gap", "contraction", "step_size"):
        if name != "contraction":  # ‖∇J‖ is rounding there, its ratio says nothing
            assert claims[name].holds, name
        assert all(assumption.status != "fails" for assumption in claims[name].assumptions), name
    assert claims["smallest_curvature"].value == pytest.approx(0.3, abs=1e-6)  # λ: the softmax has flat directions
    assert claims["distance_to_resting_point"].bound < 1e-9  # type: ignore[operator]


@pytest.mark.parametrize("size", [1e-3, 1e-1, 1.0])
def test_the_distance_to_the_exact_minimum_keeps_its_bound(linear: Linear, size: float) -> None:
    objective = objective_of(*linear)
    exact = exact_minimiser(objective)
    away = torch.randn(exact.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    claim = claims_at(objective, exact + size * away / away.norm())["distance_to_resting_point"]
    assert claim.bound is not None
    assert size <= claim.bound <= 20 * size  # it holds, and it says something


def test_the_distance_bound_is_reached_along_the_flattest_direction(linear: Linear) -> None:
    """There ‖∇J‖ is μ times the distance, so the bound has nothing to give away."""
    objective = objective_of(*linear)
    exact = exact_minimiser(objective)
    flattest = torch.linalg.eigh(dense(objective)).eigenvectors[:, 0]
    claim = claims_at(objective, exact + 0.1 * flattest)["distance_to_resting_point"]
    assert claim.bound == pytest.approx(0.1, rel=1e-2)


def test_a_curvature_within_its_error_is_not_called_negative(linear: Linear) -> None:
    objective = objective_of(*linear)
    claims = deviation_claims(objective, exact_minimiser(objective) + 0.1, batches=1, steps=2)
    by_name = {claim.name: claim for claim in claims}
    assert by_name["smallest_curvature"].value > 0  # type: ignore[operator]
    assert "no larger than its error" in str(by_name["distance_to_resting_point"].not_available)


def test_the_curvature_of_the_forgetting_loss_is_that_of_the_objective_without_the_anchor(linear: Linear) -> None:
    objective = objective_of(*linear)
    place = exact_minimiser(objective)
    found = claims_at(objective, place)["step_size"].details["largest_curvature"]
    objective.put(place)
    product = objective.forget_product()
    exact = torch.stack([product(unit) for unit in torch.eye(len(place), dtype=place.dtype)])
    assert found == pytest.approx(float(torch.linalg.eigvalsh(exact)[-1]), rel=1e-6)


def test_a_bound_with_a_tampered_strength_is_broken(linear: Linear) -> None:
    """Whoever claims a firmer anchor than was used claims a nearer resting point than there is."""
    honest = objective_of(*linear)
    exact = exact_minimiser(honest)
    away = torch.randn(exact.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    place = exact + 0.1 * away / away.norm()
    forged = replace(honest, strength=30.0)
    claims = claims_at(forged, place)
    assert claims["stationarity"].holds is False
    assert claims_at(honest, exact)["stationarity"].holds is True
    forged_distance = float((place - exact_minimiser(forged)).norm())
    assert claims["distance_to_resting_point"].bound >= forged_distance  # type: ignore[operator]  # true of ITS objective
    drift = claims_at(forged, exact)["drift"]
    assert drift.holds is False or any(a.status == "fails" for a in drift.assumptions)


@pytest.mark.parametrize("what", ["weights", "data"])
def test_other_weights_or_other_images_are_not_stationary(linear: Linear, what: str) -> None:
    module, images = linear
    objective = objective_of(module, images)
    exact = exact_minimiser(objective)
    if what == "weights":
        exact = exact + 0.01
    else:
        objective.put(objective.start)
        objective = objective_of(module, images + 0.1)
    assert claims_at(objective, exact)["stationarity"].holds is False


def test_contraction_is_measured_and_keeps_its_rate_where_the_theorem_applies(linear: Linear) -> None:
    objective = objective_of(*linear, rate=1e-3)
    claims = claims_at(objective, objective.start.clone())
    assert claims["contraction"].holds
    assert claims["contraction"].bound == pytest.approx(1 - 1e-3 * 0.3)
    assert claims["contraction"].proved
    too_long = claims_at(objective_of(*linear, rate=10.0), objective.start.clone())
    assert too_long["step_size"].holds is False
    assert not too_long["contraction"].proved


def test_the_smallest_curvature_is_that_of_the_dense_hessian() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    images = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objective = objective_of(module, images, strength=0.01)
    place = objective.start + 0.1
    claim = claims_at(objective, place)["smallest_curvature"]
    objective.put(place)
    values = torch.linalg.eigvalsh(dense(objective))
    assert claim.value == pytest.approx(float(values[0]), abs=1e-6)
    assert claim.details["largest"] == pytest.approx(float(values[-1]), abs=1e-6)
    assert claim.holds is bool(values[0] > 0)


def test_where_j_curves_downwards_no_distance_is_claimed() -> None:
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


def test_the_uniformity_gap_is_the_l1_distance_and_keeps_pinskers_bound(linear: Linear) -> None:
    module, images = linear
    claim = claims_at(objective_of(module, images), flat(list(module.parameters())))["uniformity_gap"]
    p = torch.softmax(module(images), dim=-1).detach()
    gaps = [sum(abs(float(x) - 0.25) for x in row) for row in p]
    assert claim.value == pytest.approx(max(gaps))
    assert claim.details["mean"] == pytest.approx(sum(gaps) / len(gaps))
    assert claim.value <= claim.bound <= 2  # type: ignore[operator]


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

        def pieces() -> list[Tensor]:
            return [nn.functional.cross_entropy(module(b.images), b.labels, reduction="sum") for b in batches(None)]

        for _ in range(60):
            here = flat(parameters)
            slope = flat(torch.autograd.grad(pieces()[0], parameters)) + ridge * here
            product = hessian_product(pieces, parameters)
            matrix = torch.stack([product(unit) for unit in torch.eye(15, dtype=torch.float64)])
            step = torch.linalg.solve(matrix + ridge * torch.eye(15, dtype=torch.float64), slope)
            with torch.no_grad():
                for parameter, piece in zip(parameters, shaped(here - step, parameters), strict=True):
                    parameter.copy_(piece)
        return flat(parameters)

    minimise(everything)
    return module, forget, retain, minimise


def test_the_influence_step_with_its_right_sign_goes_where_retraining_goes() -> None:
    ridge = 1.0
    module, forget, retain, minimise = softmax_regression(ridge)
    before = flat(list(module.parameters()))
    found = influence_step(module, list(module.parameters()), forget, retain, 35, damping=ridge / 35)
    truth = minimise(retain) - before
    assert float(nn.functional.cosine_similarity(found.x, truth, dim=0)) > 0.95
    assert float((found.x - truth).norm()) < 0.5 * float(truth.norm())
    assert float((-found.x - truth).norm()) > 1.5 * float(truth.norm())  # the sign that Eq. (7) prints


def test_the_corrected_bound_of_eq_9_holds_over_a_sweep() -> None:
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
    worst = torch.linalg.eigh(H).eigenvectors[:, 0]  # along it the bound is reached
    gap = float((torch.linalg.solve(H + 0.1 * identity, worst) - torch.linalg.solve(H, worst)).norm())
    assert gap == pytest.approx(float(influence_gap(0.1, 1.0, smallest)))  # type: ignore[arg-type]
    assert gap > 0.9 * float(influence_gap(0.1, 1.0, smallest / 0.95))  # type: ignore[arg-type]


def test_eq_10_with_the_measured_constant_holds_between_two_networks() -> None:
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
    said = [network.module(images).detach() for network in networks]
    assert answers.value == pytest.approx(float((said[0] - said[1]).norm(dim=-1).mean()))
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
def test_a_certificate_from_nothing_is_refused(
    certified: tuple[famr.Unlearned, Certificate], without_three: famr.Splits, option: str
) -> None:
    with pytest.raises(RequestError, match=f"`{option}` must be at least 1, got 0"):
        certify(certified[0], without_three, device="cpu", **{option: 0})


def test_a_network_gets_every_claim_or_a_reason(certified: tuple[famr.Unlearned, Certificate]) -> None:
    result, certificate = certified
    assert certificate.kind == "deviation"
    for claim in certificate.claims:
        assert (claim.not_available is None) == (claim.value is not None or claim.bound is not None), claim.name
    assert certificate["drift"].value == pytest.approx(result.drift, rel=1e-4)
    assert certificate["drift"].holds
    assert certificate["smallest_curvature"].holds is False  # a deep network is not convex, and the page says so
    assert "fails" in {assumption.status for claim in certificate.claims for assumption in claim.assumptions}
    assert certificate["distance_to_retrained"].not_available == "no retrained checkpoint was given"
    page = certificate_page(certificate)
    assert "not strongly convex" in page
    assert "What this does not show" in page


def test_a_certificate_survives_json_and_notices_changes(certified: tuple[famr.Unlearned, Certificate]) -> None:
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


def test_the_default_method_is_certified_too(original: famr.Classifier, without_three: famr.Splits) -> None:
    method = famr.FAMR(strength=100.0, epochs=2, function_images=2)
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


def test_the_command_writes_checks_and_notices_forgery(
    original_run: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    folder = tmp_path / "no-3"
    asked = ["--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *asked, "--paper", "--epochs", "1", "--quiet").code == 0
    few = ["--device", "cpu", "--lanczos-steps", "3", "--retained-images", "10"]
    made = run("certify", folder, *few, "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["kind"] == "deviation"
    assert "# Certificate" in (folder / "unlearning/certificate.md").read_text(encoding="utf-8")
    assert run("evaluate", folder, "--device", "cpu").code == 0  # the folder is sealed anew
    assert run("certify", folder, "--check", "--device", "cpu").code == 0
    file = folder / "unlearning/certificate.json"
    forged = json.loads(file.read_text(encoding="utf-8"))
    forged["claims"][0]["value"] /= 2
    file.write_text(json.dumps(forged), encoding="utf-8")
    caught = run("certify", folder, "--check", "--device", "cpu")
    assert caught.code == 4  # the seal notices; the numbers are the next test's


def test_a_forged_certificate_is_a_gate_even_under_a_new_seal(
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
    small = ["--epochs", "1", "--output-dir", folder, "--device", "cpu", "--quiet"]
    assert run("train", "--model", original_run, "--data", "digits", "--without-class", "3", *small).code == 0
    made = run("certify", folder, "--json", "--device", "cpu")
    assert made.code == 0, made.err
    certificate = Certificate.from_json(json.loads(made.out))
    assert certificate.kind == "exact"
    assert certificate["removed_images_trained_on"].proved
    assert run("certify", folder, "--check", "--device", "cpu").code == 0
    refused = run("certify", original_run)
    assert refused.code == 2
    assert "forgotten nothing" in refused.err


def test_a_sketch_gives_an_influence_step_too(original: famr.Classifier, digits: Data) -> None:
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
    from famr.anchors.kfac import Factors, KFACAnchor
    from famr.certificates.link import sketched_influence_step

    module, forget, _retain, _minimise = softmax_regression(ridge=1.0)
    parameters = list(module.parameters())
    draws = torch.Generator().manual_seed(4)
    roots = [torch.randn(size, size, generator=draws, dtype=torch.float64) for size in (5, 3)]
    A, G = (root @ root.T for root in roots)
    start = [parameter.detach().clone() for parameter in parameters]
    anchor = KFACAnchor(start, [Factors(0, 1, A, G)], [torch.zeros_like(p) for p in start])
    found = sketched_influence_step(module, parameters, forget, anchor, retain_count=35, damping=0.1)
    batch = next(iter(forget(None)))
    loss = nn.functional.cross_entropy(module(batch.images), batch.labels, reduction="sum")
    weight, bias = torch.autograd.grad(loss, parameters)
    g = torch.cat([weight, bias[:, None]], dim=1).reshape(-1)  # (outputs × inputs), row by row
    H = 35 * torch.kron(G, A) + 0.1 * 35 * torch.eye(15, dtype=torch.float64)
    slow = torch.linalg.solve(H, g).reshape(3, 5)
    assert torch.allclose(found.x, torch.cat([slow[:, :4].reshape(-1), slow[:, 4]]), atol=1e-10)
