"""The alternatives as a bench sees them: each runs, forgets, keeps, repeats itself, and says what it cannot do."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from famr.engine.lean import one_pass
from torch import Tensor
from traced import Traced

import famr
from alternative_cases import NAMES, TRAINING, LookedError, Peek, cases, start, stepping, unseen
from famr.baselines import (
    Alternative,
    BoundaryShrink,
    Delete,
    FineTune,
    GradientAscent,
    LabelAnnealing,
    Outcome,
    SisaRemoval,
    Steps,
    every_method,
    repeated,
    work,
)
from famr.baselines.alternative import Meter
from famr.baselines.descent import Descent
from famr.baselines.work import Work
from famr.data import Data, Images
from famr.data.loaders import device_pixels
from famr.engine.inference import predict_splits
from famr.errors import NumericsError, RequestError
from famr.evaluation.evaluate import compare_predictions
from famr.metrics.scores import ModelScores

CPU = torch.device("cpu")
TRAINS_NORMALISATION = {"retrain", "fine-tune", "ℓ₁-sparse"}
WITHOUT_RETAIN = {"FAMR", "gradient ascent", "boundary shrink", "Forsaken", "DELETE"}
UNCAPTURED = {"FAMR", "retrain", "SISA", "Newton step on the head"}
WHOLE_CLASSES = {"boundary shrink", "DELETE", "label annealing"}


@pytest.fixture(scope="module")
def known(digits: Data) -> famr.Classifier:
    return famr.fit(start(0), digits.train, TRAINING, device="cpu").model


@pytest.fixture(scope="module")
def methods(digits: Data) -> dict[str, Alternative]:
    return cases(digits)


@pytest.fixture(scope="module")
def samples(digits: Data) -> famr.Splits:
    return famr.split(digits, famr.Request(samples=list(range(0, 200, 2))))


@pytest.fixture(scope="module")
def outcomes(
    known: famr.Classifier, methods: dict[str, Alternative], without_three: famr.Splits
) -> dict[str, tuple[Outcome, str]]:
    """Each method's outcome, with the digest that the original had before it."""
    found = {}
    for name, method in methods.items():
        before = known.digest()
        found[name] = method.unlearn(known, without_three, seed=3, device="cpu"), before
    return found


@pytest.fixture(scope="module")
def scores(
    known: famr.Classifier, outcomes: dict[str, tuple[Outcome, str]], without_three: famr.Splits
) -> dict[str, ModelScores]:
    before = predict_splits(without_three, known, CPU)
    found = {"original": compare_predictions(None, before, None, without_three).unlearned}
    for name, (outcome, _) in outcomes.items():
        said = predict_splits(without_three, outcome.model, CPU)
        found[name] = compare_predictions(before, said, None, without_three).unlearned
    return found


def test_every_method_has_a_case() -> None:
    assert tuple(method.name for method in every_method()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_forgets_more_than_the_original_and_keeps_more_than_chance(
    name: str, scores: dict[str, ModelScores]
) -> None:
    before, after = scores["original"], scores[name]
    assert before.retain_accuracy > 0.9  # type: ignore[operator]
    assert after.forget_cross_entropy > before.forget_cross_entropy + 0.5  # type: ignore[operator]
    assert after.forget_accuracy < 0.9 * before.forget_accuracy  # type: ignore[operator]
    assert after.retain_accuracy > 0.3  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_the_original_is_unchanged_and_the_same_seed_gives_the_same_weights(
    name: str,
    known: famr.Classifier,
    methods: dict[str, Alternative],
    outcomes: dict[str, tuple[Outcome, str]],
    without_three: famr.Splits,
) -> None:
    outcome, digest = outcomes[name]
    assert digest == known.digest()
    assert not any(parameter.grad is not None for parameter in known.module.parameters())
    again = methods[name].unlearn(known, without_three, seed=3, device="cpu")
    assert again.model.digest() == outcome.model.digest()
    assert not outcome.model.module.training


@pytest.mark.parametrize("name", [name for name in NAMES if name != "SISA"])  # an ensemble of other networks
def test_only_methods_that_see_retained_images_alone_change_normalisation(
    name: str, known: famr.Classifier, outcomes: dict[str, tuple[Outcome, str]]
) -> None:
    after: Any = outcomes[name][0].model.module
    before: Any = known.module
    assert torch.equal(after[1].running_mean, before[1].running_mean) == (name not in TRAINS_NORMALISATION)


@pytest.mark.parametrize("name", NAMES)
def test_an_outcome_can_be_stored(name: str, outcomes: dict[str, tuple[Outcome, str]]) -> None:
    outcome, _ = outcomes[name]
    stored = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert stored["method"]["name"] == name
    assert stored["request"] == {"kind": "class", "classes": ["3"]}
    assert stored["seconds"] > 0
    assert stored["image_passes"] >= 146
    assert stored["peak_memory"] is None
    assert all(math.isfinite(row.loss) for row in outcome.history)


@pytest.mark.parametrize("name", NAMES)
def test_methods_without_need_of_retained_images_never_look_at_one(
    name: str, known: famr.Classifier, methods: dict[str, Alternative], without_three: famr.Splits
) -> None:
    assert without_three.retain is not None
    blind = replace(without_three, retain=unseen(without_three.retain))
    if name in WITHOUT_RETAIN - {"FAMR"}:  # FAMR looks at some where there are any
        methods[name].unlearn(known, blind, device="cpu")
    else:
        with pytest.raises(LookedError):
            methods[name].unlearn(known, blind, device="cpu")


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_tuning_is_a_handful_of_valid_variants_of_the_same_method(method: Alternative) -> None:
    variants = list(method.trials())
    assert len(variants) in (1, 6)
    assert len({json.dumps(variant.to_json()) for variant in variants}) == len(variants)
    assert all(type(variant) is type(method) for variant in variants)
    assert method in variants
    fixed = {"FAMR", "retrain", "SISA"}
    assert (len(variants) == 1) == (method.name in fixed)


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_a_method_says_what_it_cannot_serve(method: Alternative) -> None:
    assert method.serves("class") is None
    assert method.serves("concept") is None
    assert (method.serves("samples") is None) == (method.name not in WHOLE_CLASSES)
    assert (method.serves("style") is None) == (method.name not in {"FAMR", "boundary shrink", "DELETE"})
    assert (method.serves("images") is None) == (method.name in WITHOUT_RETAIN - {"Forsaken"})


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_a_method_is_documented_and_its_paper_cited(method: Alternative) -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert f"| {method.name} |" in (docs / "alternatives.md").read_text(encoding="utf-8")
    if method.paper != "none":
        assert f"**{method.paper}**" in (docs / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", [BoundaryShrink(), Delete(), LabelAnnealing()], ids=lambda method: method.name)
def test_a_request_that_cannot_be_served_is_refused_before_anything_runs(
    method: Alternative, known: famr.Classifier, samples: famr.Splits
) -> None:
    assert samples.retain is not None
    blind = replace(samples, forget=unseen(samples.forget), retain=unseen(samples.retain))
    with pytest.raises(RequestError, match=f"{method.name} cannot serve this request"):
        method.unlearn(known, blind, device="cpu")


def test_a_concept_that_leaves_its_classes_behind_is_a_matter_of_samples(known: famr.Classifier, digits: Data) -> None:
    half = replace(digits.train, all_columns={"half": ["a" if row % 2 else "b" for row in range(1797)]})
    splits = famr.split(replace(digits, train=half, test=None), famr.Request(concept=("half", "a")))
    with pytest.raises(RequestError, match="the classes of the forgotten images stay"):
        BoundaryShrink().unlearn(known, splits, device="cpu")
    whole = famr.split(digits, famr.Request(concept=("parity", "odd")))
    outcome = stepping(Delete(), epochs=5, learning_rate=1e-2).unlearn(known, whole, device="cpu")
    assert outcome.history[-1].loss < outcome.history[0].loss


def test_nothing_but_forget_images_is_enough_for_some(known: famr.Classifier, without_three: famr.Splits) -> None:
    alone = famr.forget_only(without_three.forget, without_three.labels)
    outcome = stepping(GradientAscent(), epochs=1).unlearn(known, alone, device="cpu")
    assert outcome.image_passes == 146
    with pytest.raises(RequestError, match="works on retained images"):
        FineTune().unlearn(known, alone, device="cpu")


def test_samples_are_forgotten_by_methods_that_serve_them(
    known: famr.Classifier, methods: dict[str, Alternative], samples: famr.Splits
) -> None:
    before = predict_splits(samples, known, CPU)
    first = compare_predictions(None, before, None, samples).unlearned.forget_cross_entropy
    for name in ("NegGrad+", "SalUn", "bad teacher", "Forsaken"):
        said = predict_splits(samples, methods[name].unlearn(known, samples, device="cpu").model, CPU)
        assert compare_predictions(before, said, None, samples).unlearned.forget_cross_entropy > first  # type: ignore[operator]


def test_sisa_without_an_ensemble_says_what_it_needs(known: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="trained in shards") as caught:
        SisaRemoval().unlearn(known, without_three, device="cpu")
    assert "train_sisa" in str(caught.value.fix)


def test_a_loss_that_explodes_is_an_error(known: famr.Classifier, without_three: famr.Splits) -> None:
    wild = stepping(GradientAscent(), learning_rate=1e30)
    with pytest.raises(NumericsError, match="of gradient ascent is no longer a finite") as caught:
        wild.unlearn(known, without_three, device="cpu")
    assert "Lower its learning rate, now 1e+30" in str(caught.value.fix)


@pytest.mark.parametrize(
    "numbers", [{"epochs": 0}, {"learning_rate": 0.0}, {"momentum": 1.0}, {"batch_size": 0}, {"optimiser": "lion"}]
)
def test_impossible_numbers_fail_when_they_are_given(numbers: dict[str, float]) -> None:
    with pytest.raises(RequestError, match="must be"):
        Steps(**{"epochs": 1, "learning_rate": 0.1, **numbers})  # type: ignore[arg-type]


# steps on a GPU


@pytest.fixture
def again(
    known: famr.Classifier,
    methods: dict[str, Alternative],
    outcomes: dict[str, tuple[Outcome, str]],
    without_three: famr.Splits,
) -> Callable[[str], tuple[Outcome, Outcome]]:
    """Run a method once more; what it comes to now, and what it came to."""
    return lambda name: (methods[name].unlearn(known, without_three, seed=3, device="cpu"), outcomes[name][0])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNCAPTURED])
def test_a_captured_step_is_told_all_that_changes(
    name: str, again: Callable[[str], tuple[Outcome, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning rates, numbers of a loss, labels: what is not handed over would stay as it was when it was captured."""
    monkeypatch.setattr(repeated, "Captured", Traced)
    monkeypatch.setattr(Work, "captures", True)
    monkeypatch.setattr(Traced, "repeated", 0)
    outcome, plain = again(name)
    assert Traced.repeated > 2
    assert outcome.image_passes == plain.image_passes
    assert all(parameter.grad is None for parameter in outcome.model.module.parameters())
    torch.testing.assert_close([row.loss for row in outcome.history], [row.loss for row in plain.history])
    torch.testing.assert_close(outcome.model.module.state_dict(), plain.model.module.state_dict())


def test_a_step_that_is_not_told_would_be_seen(
    known: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check on the check above: a number that goes past it stays."""

    def fall(work: Work) -> None:
        descent = Descent(work, Steps(epochs=1, learning_rate=1e-9), 4)

        def loss(images: Tensor, told: Tensor) -> Tensor:
            return work.logits(images).square().mean() * 0 + told + number

        for number in (1.0, 2.0, 3.0, 4.0):
            descent.step(loss, torch.zeros(2, 1, 8, 8), torch.tensor(number))
        descent.end_of("all")

    monkeypatch.setattr(repeated, "Captured", Traced)
    told = Peek(fall)
    assert told.unlearn(known, without_three, device="cpu").history[0].loss == pytest.approx(5.0)
    monkeypatch.setattr(Work, "captures", True)
    stale = told.unlearn(known, without_three, device="cpu").history[0].loss
    assert stale == pytest.approx((2 + 4 + (3 + 2) + (4 + 2)) / 4)


def test_a_weight_that_is_no_number_is_noticed_though_the_loss_is_one(
    known: famr.Classifier, without_three: famr.Splits
) -> None:
    def fall(work: Work) -> None:
        last = list(work.model.module.parameters())[-1]

        def spoil() -> None:
            with torch.no_grad():
                last[0] = torch.inf

        descent = Descent(work, Steps(epochs=1, learning_rate=1e-9), 1, after=spoil)
        descent.step(lambda images: work.logits(images).mean(), torch.zeros(2, 1, 8, 8))
        descent.end_of("epoch 1")

    with pytest.raises(NumericsError, match="or a weight of peek is no longer a finite"):
        Peek(fall).unlearn(known, without_three, device="cpu")


def test_a_descent_lets_go_of_its_steps(known: famr.Classifier, without_three: famr.Splits) -> None:
    """Captured steps hold much of a GPU's memory, which the next run needs."""
    gone: list[str] = []

    def fall(work: Work) -> None:
        descent = Descent(work, Steps(epochs=1, learning_rate=0.1), 1)
        descent.step(lambda images: work.logits(images).mean(), torch.zeros(2, 1, 8, 8))
        weakref.finalize(next(iter(descent._ways.values())), gone.append, "steps")

    gc.disable()
    try:
        Peek(fall).unlearn(known, without_three, device="cpu")
        assert gone == ["steps"]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["fine-tune", "SCRUB", "SSD", "SalUn", "boundary shrink", "Forsaken"])
def test_the_leaner_ways_of_a_gpu_lead_to_the_same_weights(
    name: str, again: Callable[[str], tuple[Outcome, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[bool] = []

    def noted(*given: Any, lean: bool) -> AbstractContextManager[None]:
        passes.append(lean)
        return one_pass(*given, lean=lean)

    monkeypatch.setattr(work, "lean_pays", lambda _device: True)
    monkeypatch.setattr(work, "one_pass", noted)
    outcome, plain = again(name)
    expected = {
        "SCRUB": {True, False},
        "boundary shrink": {True, False},
        "Forsaken": {False},
    }  # no gradients, no own weights
    assert set(passes) == expected.get(name, {True})
    states = outcome.model.module.state_dict(), plain.model.module.state_dict()
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["random labels", "bad teacher", "SSD", "Forsaken"])
def test_images_that_wait_on_the_device_are_the_same_images(
    name: str,
    again: Callable[[str], tuple[Outcome, Outcome]],
    without_three: famr.Splits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def kept(images: Images, prepared: famr.Preprocessing, device: torch.device) -> Tensor | None:
        asked.append(len(images))
        return device_pixels(images, prepared, device, 1 << 30)

    monkeypatch.setattr(work, "gpu_pixels", kept)
    outcome, plain = again(name)
    assert asked[0] == len(without_three.forget)
    states = outcome.model.module.state_dict(), plain.model.module.state_dict()
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-5)


def test_memory_is_counted_beyond_what_lay_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lying, most = [100], [900]  # bytes now, and at most since they were last counted anew

    def count_anew(_device: torch.device) -> None:
        most[0] = lying[0]

    def let_go() -> int:
        lying[0] = 40  # another method left 60 that nobody needs
        return 0

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", count_anew)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: lying[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: most[0])
    monkeypatch.setattr("famr.baselines.alternative.gc.collect", let_go)
    with Meter(torch.device("cuda")) as meter:
        most[0] = 500
        lying[0] = 45
    assert meter.peak_memory == 460


def test_nobody_counts_memory_on_a_cpu() -> None:
    with Meter(torch.device("cpu")) as meter:
        torch.zeros(1000)
    assert meter.peak_memory is None
    assert meter.seconds >= 0
