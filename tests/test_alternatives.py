"""The alternatives as a bench sees them: each runs, forgets, keeps, repeats itself, and says what it cannot do."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import famr
from alternative_cases import NAMES, TRAINING, LookedError, Peek, cases, start, stepping, unseen
from famr.alternatives import (
    Alternative,
    BoundaryShrink,
    Delete,
    FineTune,
    GradientAscent,
    LabelAnnealing,
    Outcome,
    Scrub,
    SisaRemoval,
    Steps,
    compiling,
    every_method,
)
from famr.alternatives.work import PAYS_FROM_STEPS, Work
from famr.data import Data
from famr.errors import NumericsError, RequestError
from famr.evaluation import ModelScores, answers_to, compare_answers

CPU = torch.device("cpu")
TRAINS_NORMALISATION = {"retrain", "fine-tune", "ℓ₁-sparse"}
WITHOUT_RETAIN = {"FAMR", "gradient ascent", "boundary shrink", "Forsaken", "DELETE"}
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
    before = answers_to(without_three, known, CPU)
    found = {"original": compare_answers(None, before, None, without_three).unlearned}
    for name, (outcome, _) in outcomes.items():
        said = answers_to(without_three, outcome.model, CPU)
        found[name] = compare_answers(before, said, None, without_three).unlearned
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
    docs = Path(__file__).parents[1] / "docs"
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
    before = answers_to(samples, known, CPU)
    first = compare_answers(None, before, None, samples).unlearned.forget_cross_entropy
    for name in ("NegGrad+", "SalUn", "bad teacher", "Forsaken"):
        said = answers_to(samples, methods[name].unlearn(known, samples, device="cpu").model, CPU)
        assert compare_answers(before, said, None, samples).unlearned.forget_cross_entropy > first  # type: ignore[operator]


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


# compiled steps


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Calls of networks that `torch.compile` gave out: which, how many images, whether for gradients.

    The first call of each takes a thousand seconds.
    """
    calls: list[tuple[int, int, bool]] = []
    given: list[nn.Module] = []
    clock, late = time.perf_counter, [0.0]

    class Slow(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._orig_mod, self.number = module, len(given)

        def forward(self, images: torch.Tensor) -> Any:
            late[0] += 0.0 if self.number in {number for number, _, _ in calls} else 1000.0
            calls.append((self.number, len(images), torch.is_grad_enabled()))
            return self._orig_mod(images)

    def compile_(module: nn.Module, **how: Any) -> nn.Module:
        assert how == {"dynamic": False}
        assert module not in given
        given.append(module)
        return Slow(module)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(compiling, "REFUSED", set())
    return calls


@pytest.mark.parametrize("name", ["fine-tune", "NegGrad+", "SCRUB", "SSD", "Forsaken"])
def test_compiled_steps_change_nothing_but_the_speed(
    name: str,
    known: famr.Classifier,
    methods: dict[str, Alternative],
    outcomes: dict[str, tuple[Outcome, str]],
    without_three: famr.Splits,
    compiled: list[tuple[int, int, bool]],
) -> None:
    method: Any = methods[name]
    plain = outcomes[name][0]
    assert "compiled" not in plain.facts  # on a CPU nobody does unasked
    quick = replace(method, compile=True) if name == "SSD" else stepping(method, compile=True)
    outcome = quick.unlearn(known, without_three, seed=3, device="cpu")
    assert outcome.facts["compiled"] is True
    networks = {(number, gradients) for number, _, gradients in compiled}
    assert sorted(networks) == ([(1, False), (2, True)] if name == "SCRUB" else [(1, True)])  # a teacher, a student
    assert {images for _, images, _ in compiled} == {{"NegGrad+": 64 + 16, "SSD": 32}.get(name, 64)}
    assert outcome.seconds < 1000  # what was compiled serves all runs, and is not this one's
    assert outcome.image_passes == plain.image_passes
    assert all(parameter.grad is None for parameter in outcome.model.module.parameters())
    states = (outcome.model.module.state_dict(), plain.model.module.state_dict())
    assert states[0].keys() == states[1].keys()
    for weight in states[0]:
        torch.testing.assert_close(states[0][weight], states[1][weight])


def test_a_network_that_cannot_be_compiled_is_told_once_and_used_as_it_is(
    known: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def broken(module: nn.Module, **_how: Any) -> nn.Module:
        tried.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiling, "REFUSED", set())
    method = stepping(Scrub(), epochs=1, batch_size=64, compile=True)
    with pytest.warns(UserWarning, match="cannot be compiled") as told:
        outcome = method.unlearn(known, without_three, device="cpu")
    again = method.unlearn(known, without_three, device="cpu")  # a warning is an error here
    assert len(told) == len(tried) == 1
    assert outcome.facts["compiled"] is again.facts["compiled"] is False
    slow = stepping(method, compile=None).unlearn(known, without_three, device="cpu")
    assert slow.model.digest() == outcome.model.digest() == again.model.digest()


def test_steps_of_one_run_are_compiled_on_a_gpu_where_there_are_enough(
    known: famr.Classifier, without_three: famr.Splits
) -> None:
    found: dict[tuple[str, int, bool | None], bool] = {}

    def ask(work: Work) -> None:
        for place in ("cpu", "cuda"):
            for steps in (PAYS_FROM_STEPS - 1, PAYS_FROM_STEPS):
                for asked in (None, True, False):
                    there = replace(work, device=torch.device(place), compiled=None)
                    there.compile(64, steps, asked)
                    found[place, steps, asked] = there.compiled is not None

    Peek(ask).unlearn(known, without_three, device="cpu")
    unasked = [key for key, does in found.items() if key[2] is None and does]
    assert unasked == [("cuda", PAYS_FROM_STEPS, None)]
    assert all(found[key] == key[2] for key in found if key[2] is not None)
