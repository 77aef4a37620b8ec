"""What holds for every baseline: it forgets, retains, repeats itself, and refuses what it does not support."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import famr
from baselines.cases import NAMES, TRAINING, DecodedError, cases, start, undecodable
from famr.baselines import (
    BASELINES,
    SSD,
    Baseline,
    BaselineResult,
    BoundaryShrink,
    Delete,
    FineTune,
    GradientAscent,
    LabelAnnealing,
    SalUn,
    Scrub,
    SisaRemoval,
    every_method,
)
from famr.data import Data
from famr.engine.inference import predict_splits
from famr.errors import RequestError
from famr.evaluation.evaluate import compare_predictions
from famr.metrics.scores import ModelScores

CPU = torch.device("cpu")
TRAINS_NORMALISATION = {"retrain", "fine-tune", "ℓ₁-sparse"}
WITHOUT_RETAIN = {"FAMR", "gradient ascent", "boundary shrink", "Forsaken", "DELETE"}
WHOLE_CLASSES = {"boundary shrink", "DELETE", "label annealing"}


@pytest.fixture(scope="module")
def methods(digits: Data) -> dict[str, Baseline]:
    return cases(digits)


@pytest.fixture(scope="module")
def model(digits: Data) -> famr.Classifier:
    return famr.fit(start(0), digits.train, TRAINING, device="cpu").model


@pytest.fixture(scope="module")
def samples(digits: Data) -> famr.Splits:
    return famr.split(digits, famr.Request(samples=list(range(0, 200, 2))))


@pytest.fixture(scope="module")
def results(
    model: famr.Classifier, methods: dict[str, Baseline], without_three: famr.Splits
) -> dict[str, tuple[BaselineResult, str]]:
    """Each method's result, with the digest that the original had before it."""
    pairs = {}
    for name, method in methods.items():
        before = model.digest()
        pairs[name] = method.unlearn(model, without_three, seed=3, device="cpu"), before
    return pairs


@pytest.fixture(scope="module")
def scores(
    model: famr.Classifier, results: dict[str, tuple[BaselineResult, str]], without_three: famr.Splits
) -> dict[str, ModelScores]:
    original = predict_splits(without_three, model, CPU)
    by_name = {"original": compare_predictions(None, original, None, without_three).unlearned}
    for name, (result, _) in results.items():
        unlearned = predict_splits(without_three, result.model, CPU)
        by_name[name] = compare_predictions(original, unlearned, None, without_three).unlearned
    return by_name


def test_every_baseline_has_a_case(methods: dict[str, Baseline]) -> None:
    assert tuple(methods) == tuple(method.name for method in every_method()) == NAMES


def test_a_baseline_is_listed_by_its_name_on_the_command_line() -> None:
    ascii_names = [unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower() for name in NAMES]
    assert [re.sub(r"[^a-z0-9]+", "-", name).strip("-") for name in ascii_names] == list(BASELINES)


@pytest.mark.parametrize("name", NAMES)
def test_it_forgets_more_than_the_original_and_retains_more_than_chance(
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
    model: famr.Classifier,
    methods: dict[str, Baseline],
    results: dict[str, tuple[BaselineResult, str]],
    without_three: famr.Splits,
) -> None:
    result, digest = results[name]
    assert digest == model.digest()
    assert not any(parameter.grad is not None for parameter in model.module.parameters())
    again = methods[name].unlearn(model, without_three, seed=3, device="cpu")
    assert again.model.digest() == result.model.digest()
    assert not result.model.module.training


@pytest.mark.parametrize("name", [name for name in NAMES if name != "SISA"])  # an ensemble of other networks
def test_only_methods_that_use_retained_images_alone_change_normalisation(
    name: str, model: famr.Classifier, results: dict[str, tuple[BaselineResult, str]]
) -> None:
    after: Any = results[name][0].model.module
    before: Any = model.module
    assert torch.equal(after[1].running_mean, before[1].running_mean) == (name not in TRAINS_NORMALISATION)


@pytest.mark.parametrize("name", ["SalUn", "SCRUB", "DELETE"])
def test_in_training_mode_as_its_authors_run_it_a_method_updates_normalisation(
    name: str, model: famr.Classifier, methods: dict[str, Baseline], without_three: famr.Splits
) -> None:
    numbers = {"training_mode": True, "most_steps": 6}
    after: Any = methods[name].with_numbers(**numbers).unlearn(model, without_three, device="cpu").model.module
    before: Any = model.module
    assert not torch.equal(after[1].running_mean, before[1].running_mean)
    assert not after.training


@pytest.mark.parametrize("name", NAMES)
def test_a_result_can_be_stored(name: str, results: dict[str, tuple[BaselineResult, str]]) -> None:
    result, _ = results[name]
    stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert stored["method"]["name"] == name
    assert stored["request"] == {"kind": "class", "classes": ["3"]}
    assert stored["seconds"] > 0
    assert stored["image_passes"] >= 146
    assert stored["peak_memory"] is None
    assert all(math.isfinite(row.loss) for row in result.history)


@pytest.mark.parametrize("name", NAMES)
def test_methods_that_need_no_retained_images_never_decode_one(
    name: str, model: famr.Classifier, methods: dict[str, Baseline], without_three: famr.Splits
) -> None:
    assert without_three.retain is not None
    splits = replace(without_three, retain=undecodable(without_three.retain))
    if name in WITHOUT_RETAIN - {"FAMR"}:  # FAMR uses some where there are any
        methods[name].unlearn(model, splits, device="cpu")
    else:
        with pytest.raises(DecodedError):
            methods[name].unlearn(model, splits, device="cpu")


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_tuning_is_six_valid_variants_of_the_same_method_or_the_method_alone(method: Baseline) -> None:
    variants = list(method.trials())
    assert len(variants) == (1 if method.name in {"FAMR", "retrain", "SISA"} else 6)
    assert len({json.dumps(variant.to_json()) for variant in variants}) == len(variants)
    assert all(type(variant) is type(method) for variant in variants)
    assert variants[0] == method
    assert method.as_published() in variants


@pytest.mark.parametrize("method", [each for each in every_method() if hasattr(each, "steps")], ids=lambda m: m.name)
def test_every_gradient_baseline_is_tried_with_both_optimisers(method: Any) -> None:
    assert {variant.steps.optimiser for variant in method.trials()} == {"sgd", "adam"}


def test_the_numbers_of_the_papers_are_among_the_trials() -> None:
    scrub = Scrub().as_published()
    assert (scrub.steps.optimiser, scrub.steps.learning_rate, scrub.max_epochs) == ("adam", 5e-4, 3)
    assert (scrub.alpha, scrub.gamma, scrub.temperature) == (0.5, 1.0, 4.0)
    assert len({variant.max_epochs for variant in Scrub().trials()}) > 2
    assert SSD().as_published().alpha == 5.0  # a ViT, classes
    delete = Delete().as_published().steps
    assert (delete.learning_rate, delete.epochs, delete.schedule) == (5e-5, 20, "constant")
    salun = SalUn().as_published().steps
    assert (salun.learning_rate, salun.epochs, salun.training_mode) == (0.1, 10, True)


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_a_method_refuses_the_kinds_of_requests_that_it_does_not_support(method: Baseline) -> None:
    assert method.refusal("class") is None
    assert method.refusal("concept") is None
    assert (method.refusal("samples") is None) == (method.name not in WHOLE_CLASSES)
    assert (method.refusal("style") is None) == (method.name not in {"FAMR", "boundary shrink", "DELETE"})
    assert (method.refusal("images") is None) == (method.name in WITHOUT_RETAIN - {"Forsaken"})


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.name)
def test_a_method_is_documented_and_its_paper_cited(method: Baseline) -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert f"| {method.name} |" in (docs / "baselines.md").read_text(encoding="utf-8")
    if method.paper != "none":
        assert f"**{method.paper}**" in (docs / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", [BoundaryShrink(), Delete(), LabelAnnealing()], ids=lambda method: method.name)
def test_an_unsupported_request_is_refused_before_anything_is_computed(
    method: Baseline, model: famr.Classifier, samples: famr.Splits
) -> None:
    assert samples.retain is not None
    splits = replace(samples, forget=undecodable(samples.forget), retain=undecodable(samples.retain))
    with pytest.raises(RequestError, match=f"{method.name} cannot serve this request"):
        method.unlearn(model, splits, device="cpu")


def test_a_concept_whose_classes_keep_other_images_is_a_request_for_samples(
    model: famr.Classifier, digits: Data
) -> None:
    half = replace(digits.train, all_columns={"half": ["a" if row % 2 else "b" for row in range(1797)]})
    splits = famr.split(replace(digits, train=half, test=None), famr.Request(concept=("half", "a")))
    with pytest.raises(RequestError, match="the classes of the forgotten images stay"):
        BoundaryShrink().unlearn(model, splits, device="cpu")
    whole = famr.split(digits, famr.Request(concept=("parity", "odd")))
    result = Delete().with_numbers(epochs=5, learning_rate=1e-2).unlearn(model, whole, device="cpu")
    assert result.history[-1].loss < result.history[0].loss


def test_forget_images_alone_are_enough_for_methods_without_retained_images(
    model: famr.Classifier, without_three: famr.Splits
) -> None:
    alone = famr.forget_only(without_three.forget, without_three.labels)
    result = GradientAscent().with_numbers(epochs=1).unlearn(model, alone, device="cpu")
    assert result.image_passes == 146
    with pytest.raises(RequestError, match="works on retained images"):
        FineTune().unlearn(model, alone, device="cpu")


@pytest.mark.parametrize("name", ["NegGrad+", "SalUn", "bad teacher", "Forsaken"])
def test_samples_are_forgotten_by_methods_that_support_them(
    name: str, model: famr.Classifier, methods: dict[str, Baseline], samples: famr.Splits
) -> None:
    original = predict_splits(samples, model, CPU)
    before = compare_predictions(None, original, None, samples).unlearned.forget_cross_entropy
    unlearned = predict_splits(samples, methods[name].unlearn(model, samples, device="cpu").model, CPU)
    after = compare_predictions(original, unlearned, None, samples).unlearned.forget_cross_entropy
    assert after > before  # type: ignore[operator]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"retrain", "SISA"}])  # `famr.fit` is tested
def test_every_method_runs_in_bf16_and_keeps_float32_weights(
    name: str, model: famr.Classifier, methods: dict[str, Baseline], without_three: famr.Splits
) -> None:
    method = methods[name]
    short = method.with_numbers(epochs=1) if hasattr(method, "steps") else method
    result = short.unlearn(model, without_three, device="cpu", precision="bf16")
    assert result.precision == "bf16"
    assert all(parameter.dtype == torch.float32 for parameter in result.model.module.parameters())


def test_sisa_without_an_ensemble_is_refused(model: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="trained in shards") as caught:
        SisaRemoval().unlearn(model, without_three, device="cpu")
    assert "train_sisa" in str(caught.value.fix)


def test_numbers_are_set_by_name_on_the_method_or_on_its_steps() -> None:
    method = FineTune().with_numbers(epochs=2, learning_rate=0.5)
    assert (method.steps.epochs, method.steps.learning_rate, method.steps.batch_size) == (2, 0.5, 256)
    assert FineTune().steps.epochs == 10
    with pytest.raises(TypeError, match="nonsense"):
        FineTune().with_numbers(nonsense=1)
    with pytest.raises(TypeError, match="epochs"):
        BASELINES["ssd"]().with_numbers(epochs=1)
