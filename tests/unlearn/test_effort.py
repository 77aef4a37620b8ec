"""Effort: thorough asks a model that never saw the forget set, quick asks the original; the run says which it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import famr
from conftest import Outcome, small_vit, styled
from famr.data import Data
from famr.data.splits import EarlierRequest
from famr.engine.inference import predict
from famr.engine.plain import PlainEngine
from famr.errors import CheckpointError, RequestError
from famr.metrics.retraining import js_divergence
from famr.models.weights import read_weights
from famr.proxies.cost import AFFORDABLE, RATES, ProxyPlan
from famr.runs.events import Plan, ProxyStep
from famr.runs.folder import earlier_runs
from famr.runs.resume import ResumeState
from famr.targets import HeldOutStatistics, ProxyPredictions
from famr.targets.demotion import Demotion, LowestQuarter, OddsCeiling
from famr.targets.margins import margins
from famr.targets.masked import masked_target, without
from famr.targets.proxy import odds_ceiling, proxy_target
from famr.targets.tempered import matching_temperature
from famr.training import Trained
from famr.unlearn.history import Event, FollowedRun, follow
from famr.unlearn.inputs import Available
from famr.unlearn.problem import Problem
from famr.unlearn.resolve import resolve
from famr.unlearn.result import Unlearned

CPU = torch.device("cpu")
QUIET = famr.Monitor(track_retain=False, rows=1)
THOROUGH = famr.FAMR(effort="thorough")


@pytest.fixture(scope="module")
def recipe(trained: Trained, digits: Data) -> famr.ProxyRecipe:
    return famr.ProxyRecipe(trained.training, small_vit(digits))


@pytest.fixture(scope="module")
def calibrated(without_three: famr.Splits) -> famr.Splits:
    return famr.calibration_split(without_three).for_forgetting


@pytest.fixture(scope="module")
def thorough(original: famr.Classifier, calibrated: famr.Splits, recipe: famr.ProxyRecipe) -> Unlearned:
    return famr.forget(original, calibrated, THOROUGH, recipe=recipe, device="cpu", monitor=QUIET)


@pytest.fixture(scope="module")
def sketch(original: famr.Classifier, digits: Data, recipe: famr.ProxyRecipe) -> famr.Sketch:
    return famr.take_sketch(original, digits, images=100, proxies=10, recipe=recipe, device="cpu")


def plan(seconds: float) -> ProxyPlan:
    return ProxyPlan("a proxy trained now", seconds * RATES["cpu"], 0.15, 0.5)


def available(proxy: ProxyPlan | None = None, kind: str = "class") -> Available:
    return Available(kind, True, True, False, 100, proxy=proxy, no_proxy="" if proxy else "there is no data")  # type: ignore[arg-type]


def resolved(method: famr.FAMR, found: Available) -> tuple[str, str]:
    config, why = resolve(method, found, PlainEngine(CPU))
    return config.target, why


def distance(target: torch.Tensor, retrained: list[Trained], images: famr.Images) -> float:
    """JS of a target to retrained models, in the mean."""
    logits = target.clamp(min=1e-12).log()
    each = [js_divergence(logits, predict(run.model, images, CPU).logits).mean() for run in retrained]
    return float(torch.stack(each).mean())


def masked_and_proxy(
    original: famr.Classifier, splits: famr.Splits, proxy: ProxyPredictions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both targets for the forgotten class 3."""
    assert splits.test is not None
    forgotten = torch.tensor([3])
    held_out = HeldOutStatistics.of(predict(original, splits.test, CPU))
    logits = predict(original, splits.forget, CPU).logits
    wanted = held_out.entropy if held_out.entropy_when_wrong is None else held_out.entropy_when_wrong
    masked = masked_target(logits, forgotten, matching_temperature(without(logits, forgotten), wanted))
    return masked, proxy_target(proxy, forgotten, masked)


def test_a_proxy_that_takes_minutes_is_trained_unasked_and_one_that_takes_hours_is_not() -> None:
    target, why = resolved(famr.FAMR(), available(plan(AFFORDABLE / 2)))
    assert target == "proxy"
    assert "15 % of a retraining, 2 min" in why
    target, why = resolved(famr.FAMR(), available(plan(20 * AFFORDABLE)))
    assert target == "masked"
    assert "--effort thorough is nearer to a retrained model" in why
    assert "1.7 h" in why


def test_whoever_asks_gets_what_they_ask_for() -> None:
    assert resolved(famr.FAMR(effort="thorough"), available(plan(20 * AFFORDABLE)))[0] == "proxy"
    assert resolved(famr.FAMR(effort="quick"), available(plan(1.0)))[0] == "masked"
    assert resolved(famr.FAMR(target="masked"), available(plan(1.0)))[0] == "masked"


def test_a_demotion_brings_the_odds_of_a_class_below_those_that_its_proxy_gives(
    original: famr.Classifier, calibrated: famr.Splits, recipe: famr.ProxyRecipe, thorough: Unlearned
) -> None:
    assert thorough.method.demotion == 0.03
    merely = replace(THOROUGH, demotion=0.0)
    without = famr.forget(original, calibrated, merely, recipe=recipe, device="cpu", monitor=QUIET)
    assert thorough.proxy is not None
    ceiling = odds_ceiling(thorough.proxy, torch.tensor([3])).highest

    def above(run: Unlearned) -> float:
        logits = predict(run.model, calibrated.forget, CPU).logits
        return float((margins(logits, calibrated.forget.targets) - ceiling).clamp(min=0).square().mean())

    assert above(thorough) < 0.5 * above(without)


def test_the_demotion_of_a_thorough_run_is_its_proxys_and_that_of_a_quick_one_the_lowest_quarter(
    original: famr.Classifier, calibrated: famr.Splits, recipe: famr.ProxyRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    demotions: list[Demotion | None] = []

    def noted(problem: Problem, *arguments: Any) -> FollowedRun:
        demotions.append(problem.objective.demotion)
        return follow(problem, *arguments)

    monkeypatch.setattr("famr.unlearn.trials.follow", noted)
    brief = famr.FAMR(epochs=1, strength=1.0)
    _, run = (
        famr.forget(original, calibrated, replace(brief, effort=effort), recipe=recipe, device="cpu", monitor=QUIET)
        for effort in ("quick", "thorough")
    )
    quick, thorough = demotions
    assert isinstance(quick, LowestQuarter)
    assert isinstance(thorough, OddsCeiling)
    assert run.proxy is not None
    assert torch.equal(thorough.highest, odds_ceiling(run.proxy, torch.tensor([3])).highest)


def test_a_demotion_is_for_classes_and_not_for_samples() -> None:
    engine = PlainEngine(CPU)
    assert resolve(THOROUGH, available(plan(1.0)), engine)[0].demotion == 0.03
    assert resolve(THOROUGH, available(plan(1.0), kind="samples"), engine)[0].demotion == 0.0


def test_without_data_for_a_proxy_thorough_is_refused_and_auto_is_quick() -> None:
    assert resolved(famr.FAMR(), available())[0] == "masked"
    with pytest.raises(RequestError, match="never saw the forget set, and none can be trained: there is no data"):
        resolved(famr.FAMR(effort="thorough"), available())
    with pytest.raises(RequestError, match="never saw the forget set"):
        resolved(famr.FAMR(target="proxy"), available())


def test_too_few_images_for_a_proxy_are_an_error_where_it_was_asked_for_and_else_make_the_run_quick(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    assert without_three.retain is not None
    few = replace(without_three, retain=without_three.retain.take(torch.arange(100)))
    with pytest.raises(RequestError, match="100 training images of 9 classes are too few, it takes 20 a class"):
        famr.forget(original, few, THOROUGH, device="cpu", monitor=QUIET)
    method = famr.FAMR(epochs=1, strength=1.0)
    assert famr.forget(original, few, method, device="cpu", monitor=QUIET).method.target == "masked"


def test_the_target_of_a_thorough_run_is_nearer_to_retrained_models_than_that_of_a_quick_one(
    original: famr.Classifier, calibrated: famr.Splits, thorough: Unlearned, retrained_runs: list[Trained]
) -> None:
    assert thorough.proxy is not None
    masked, proxy = masked_and_proxy(original, calibrated, thorough.proxy)
    forget = calibrated.forget
    assert distance(proxy, retrained_runs, forget) < 0.9 * distance(masked, retrained_runs, forget)


def test_a_thorough_run_forgets_and_arrives_near_its_target(thorough: Unlearned) -> None:
    first, last = thorough.history[0], thorough.history[-1]
    assert last.forget_accuracy is not None
    assert last.forget_accuracy < 0.01
    assert last.loss_forget < 0.02 * first.loss_forget
    assert thorough.method.effort == "thorough"


def test_the_run_says_what_it_takes_before_it_starts(
    original: famr.Classifier, calibrated: famr.Splits, recipe: famr.ProxyRecipe
) -> None:
    events: list[Event] = []
    monitor = replace(QUIET, on_event=events.append)
    method = replace(THOROUGH, epochs=1, strength=0.0)
    result = famr.forget(original, calibrated, method, recipe=replace(recipe, epochs=1), device="cpu", monitor=monitor)
    first = events[0]
    assert isinstance(first, Plan)
    assert "proxy" in first.why
    assert first.steps == result.history[-1].step
    trained = [event for event in events if isinstance(event, ProxyStep)]
    assert [event.step for event in trained] == list(range(1, trained[0].steps + 1))


def test_the_time_of_the_proxy_is_part_of_the_time_of_the_run(thorough: Unlearned) -> None:
    assert thorough.seconds_of_all is not None
    assert thorough.seconds_of_all > thorough.seconds
    assert thorough.proxy_source is not None
    assert thorough.proxy_source["trained"] == "for this run"
    assert thorough.proxy_source["start_sha256"]


def test_the_predictions_of_the_proxy_are_in_the_run_folder_and_come_back(
    thorough: Unlearned, original: famr.Classifier, tmp_path: Path
) -> None:
    folder = thorough.save(tmp_path / "no-3")
    assert thorough.proxy is not None
    stored = read_weights(folder / "unlearning/proxy.safetensors")
    assert torch.equal(stored["logits"], thorough.proxy.logits)
    again = Unlearned.load(folder, famr.load_model(str(folder)), original)
    assert again.proxy is not None
    assert torch.equal(again.proxy.known, thorough.proxy.known)
    assert again.method == thorough.method


def test_a_thorough_run_is_certified_from_what_its_proxy_predicted(
    thorough: Unlearned, calibrated: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("famr.proxies.source.own_proxy", None)  # nothing is trained again
    found = famr.certify(thorough, calibrated, device="cpu", lanczos_steps=2, retained_images=20)
    assert found.claims


def test_a_sketch_answers_without_data_and_without_training(
    original: famr.Classifier, sketch: famr.Sketch, calibrated: famr.Splits, retrained_runs: list[Trained]
) -> None:
    alone = famr.forget_only(calibrated.forget, original.labels)
    result = famr.forget(original, alone, sketch=sketch, device="cpu", monitor=QUIET)
    assert result.method.target == "proxy"
    assert result.history[-1].forget_accuracy == 0.0
    assert result.proxy_source is not None
    assert result.proxy_source["trained"] == "for the sketch"
    assert "no training" in result.why
    assert result.proxy is not None
    masked, proxy = masked_and_proxy(original, calibrated, result.proxy)
    assert distance(proxy, retrained_runs, alone.forget) < 0.9 * distance(masked, retrained_runs, alone.forget)


def test_a_sketch_with_proxies_comes_back_from_its_file(sketch: famr.Sketch, tmp_path: Path) -> None:
    sketch.save(tmp_path / "a.safetensors")
    again = famr.Sketch.load(tmp_path / "a.safetensors")
    assert again.proxies is not None
    assert sketch.proxies is not None
    assert again.proxies.facts() == sketch.proxies.facts()


def test_a_sketch_serves_samples_too(
    original: famr.Classifier, sketch: famr.Sketch, digits: Data, recipe: famr.ProxyRecipe
) -> None:
    some = famr.Request(samples=[*range(0, 300, 3)])
    splits = famr.calibration_split(famr.split(digits, some)).for_forgetting
    method = famr.FAMR(epochs=2, strength=1e-4)
    result = famr.forget(original, splits, method, sketch=sketch, recipe=recipe, device="cpu", monitor=QUIET)
    assert result.method.target == "proxy"
    assert result.proxy is not None
    rows = torch.arange(len(splits.forget))
    assert bool(result.proxy.known[rows, splits.forget.targets].all())  # by proxies that know the class
    right = result.proxy.logits.argmax(dim=-1) == splits.forget.targets
    assert 0.5 < float(right.float().mean()) < 1.0


def test_requests_one_after_the_other_are_answered_by_one_sketch(
    original_run: Path, sketch: famr.Sketch, digits: Data, tmp_path: Path
) -> None:
    original = famr.load_model(str(original_run))
    first = famr.split(digits, famr.Request(classes=["3"]))
    folder = famr.forget(original, first, sketch=sketch, device="cpu", monitor=QUIET).save(
        tmp_path / "no-3", original={"model": str(original_run), "weights": None, "arguments": {}}
    )
    unlearned, earlier = famr.load_model(str(folder)), earlier_runs(folder)
    assert earlier[0].original_sha256 == sketch.weights_sha256
    second = famr.split(digits, famr.Request(classes=["5"]), earlier)
    result = famr.forget(unlearned, second, sketch=sketch, device="cpu", monitor=QUIET)
    assert (result.method.target, result.classes) == ("proxy", ("5",))
    predicted = predict(result.model, digits.train, CPU).logits.argmax(dim=-1)
    assert not bool(
        torch.isin(predicted[torch.isin(digits.train.targets, torch.tensor([3, 5]))], torch.tensor([3, 5])).any()
    )
    with pytest.raises(CheckpointError, match="other weights"):
        famr.forget(unlearned, first, sketch=sketch, device="cpu", monitor=QUIET)  # no record that it came from these


def test_a_style_is_not_what_a_sketch_left_out(
    original: famr.Classifier, sketch: famr.Sketch, digits: Data, recipe: famr.ProxyRecipe
) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = replace(THOROUGH, beta=None, style_layer="blocks.0", epochs=1, strength=0.0)
    with pytest.raises(RequestError, match="the proxies of the sketch saw the style"):
        famr.forget(original, replace(splits, retain=None), method, sketch=sketch, device="cpu")
    result = famr.forget(
        original, splits, method, sketch=sketch, recipe=replace(recipe, epochs=1), device="cpu", monitor=QUIET
    )
    assert result.proxy_source is not None
    assert result.proxy_source["trained"] == "for this run"
    assert result.proxy_source["late_share"] == 1.0  # a style is read off early layers


def test_where_an_earlier_request_changed_the_early_layers_the_next_best_source_is_taken(
    original: famr.Classifier, sketch: famr.Sketch, without_three: famr.Splits, recipe: famr.ProxyRecipe
) -> None:
    moved = original.copy()
    with torch.no_grad():
        next(moved.module.parameters()).add_(1e-3)
    earlier = (EarlierRequest(famr.Request(samples=["gone"]), (), 0.1, sketch.weights_sha256),)
    whole, alone = replace(without_three, earlier=earlier), replace(without_three, earlier=earlier, retain=None)
    brief = famr.FAMR(epochs=1, strength=1.0)
    own = famr.forget(moved, whole, brief, sketch=sketch, recipe=replace(recipe, epochs=1), device="cpu", monitor=QUIET)
    assert own.proxy_source is not None
    assert own.proxy_source["trained"] == "for this run"
    assert famr.forget(moved, alone, brief, sketch=sketch, device="cpu", monitor=QUIET).method.target == "masked"
    with pytest.raises(RequestError, match="an earlier request changed the early layers"):
        famr.forget(moved, alone, THOROUGH, sketch=sketch, device="cpu", monitor=QUIET)


def test_a_stopped_run_does_not_train_its_proxy_again(
    original: famr.Classifier,
    calibrated: famr.Splits,
    recipe: famr.ProxyRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = replace(THOROUGH, epochs=3, strength=0.0)
    brief = replace(recipe, epochs=1)
    whole = famr.forget(original, calibrated, method, recipe=brief, device="cpu", monitor=QUIET)

    class StoppedError(Exception):
        pass

    def stop(event: Event) -> None:
        if not isinstance(event, (Plan, ProxyStep)):
            raise StoppedError

    stopped = replace(QUIET, resume_state=ResumeState(tmp_path / "state", every=0.0), on_event=stop)
    with pytest.raises(StoppedError):
        famr.forget(original, calibrated, method, recipe=brief, device="cpu", monitor=stopped)
    monkeypatch.setattr("famr.proxies.source.own_proxy", None)
    resumed = replace(QUIET, resume_state=ResumeState(tmp_path / "state", every=0.0))
    with pytest.raises(RequestError, match="it differs in proxies"):
        famr.forget(original, calibrated, method, recipe=replace(recipe, epochs=2), device="cpu", monitor=resumed)
    again = famr.forget(original, calibrated, method, recipe=brief, device="cpu", monitor=resumed)
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name
    assert again.proxy_source == whole.proxy_source


def test_train_sketch_and_forget_from_the_command_line(run: Callable[..., Outcome], tmp_path: Path) -> None:
    small = ["--model-arg", "img_size=8", "--model-arg", "patch_size=4", "--model-arg", "embed_dim=16"]
    shape = [*small, "--model-arg", "depth=2", "--model-arg", "num_heads=2"]
    original = tmp_path / "original"
    trained = run(
        *("train", "--model", "timm:vit_tiny_patch16_224", "--from-scratch", *shape, "--data", "digits"),
        *("--output-dir", original, "--epochs", 4, "--batch-size", 64, "--learning-rate", 3e-3, "--device", "cpu"),
        "--sketch",
    )
    assert trained.code == 0, trained.err
    file = tmp_path / "original.sketch.safetensors"
    assert file.is_file()
    assert "10 proxies, about" in trained.err
    again = run("sketch", original, "--data", "digits", "--device", "cpu")
    assert again.code == 2
    assert "exists already" in again.err
    command = ["forget", "--model", original, "--data", "digits", "--class", "3", "--sketch", file]
    rest = ["--output-dir", tmp_path / "no-3", "--device", "cpu", "--strength", 0, "--epochs", 2, "--no-gates"]
    done = run(*command, *rest)
    assert done.code == 0, done.err
    assert "picked: thorough: target proxy" in done.err
    assert done.err.index("picked") < done.err.index("epoch")
    record = json.loads((tmp_path / "no-3/unlearning/run.json").read_text(encoding="utf-8"))
    assert record["proxy"]["trained"] == "for the sketch"
    assert record["method"]["effort"] == "thorough"
    assert run("report", tmp_path / "no-3", "--device", "cpu").code == 0
    page = (tmp_path / "no-3/unlearning/report.md").read_text(encoding="utf-8")
    assert "a model that never saw the forget set, trained for the sketch" in " ".join(page.split())
    refused = run(
        "train", "--model", original, "--data", "digits", "--without-class", "3", "--sketch", "-o", tmp_path / "x"
    )
    assert refused.code == 2
    assert "trained on everything" in refused.err
