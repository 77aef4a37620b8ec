"""`famr bench speed`: what is counted, that both loops do the same, and that a failure is told. Nothing is timed."""

from __future__ import annotations

import importlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.speed_tables import draw_if_any, speed_markdown
from PIL import Image

import famr
from famr.baselines import FineTune, SalUn, Scrub
from famr.baselines.neg_grad_plus import FORGET_PART
from famr.bench import speed, speed_ceiling, speed_figure, speed_fresh, speed_loops, speed_memory, speed_page
from famr.bench.speed import Plan, Subject, run_speed
from famr.bench.speed_alternatives import DEFAULT, EPOCHS, OURS, PLAIN, Contest, reached, sample_passes, seek
from famr.bench.speed_checks import checks
from famr.bench.speed_loops import (
    apart,
    compare_loops,
    metrics,
    numbers,
    plain_loop,
    prepared_images,
    run_ours,
    run_plain,
    ties_aside,
)
from famr.bench.speed_memory import bring, compare_memory
from famr.bench.speed_process import in_a_process
from famr.bench.speed_subject import (
    LITTLE_VIT,
    POOL,
    Named,
    forgetting,
    forward_flops,
    made,
    size_named,
    synthetic,
)
from famr.cli import speed_running
from famr.data.splits import Splits
from famr.errors import NumericsError, RequestError
from famr.losses.objective import l2_penalty, target_kl, uniform_target
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from small import ARCHITECTURE, ARGUMENTS, AS_OPTIONS

CPU = torch.device("cpu")
TINY = Named("tiny", ARCHITECTURE, ARGUMENTS)
QUICK = ("--images", 12, "--epochs", 3, "--batch", 6, "--repeats", 1, "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def tiny() -> Classifier:
    return made(TINY, seed=0)


@pytest.fixture(scope="module")
def splits(tiny: Classifier) -> Splits:
    return forgetting(synthetic(tiny, forget=14, retained=40, seed=0))


def vit_flops(width: int, depth: int, tokens: int, patch_values: int, classes: int) -> int:
    """A ViT in closed form: patches, per block 12·d² a token and two products of tokens with tokens, and the head."""
    blocks = depth * (tokens * 12 * width**2 + 2 * tokens**2 * width)
    return 2 * ((tokens - 1) * patch_values * width + blocks + width * classes)


def test_operations_are_those_of_the_closed_form(tiny: Classifier) -> None:
    assert forward_flops(tiny) == vit_flops(16, 1, 5, 4 * 4 * 3, 10)
    little = made(size_named("little"), seed=0)
    assert LITTLE_VIT["depth"] == 3
    assert forward_flops(little) == vit_flops(192, 3, 17, 4 * 4 * 3, 10)
    assert next(little.module.parameters()).device.type == "cpu"


def test_operations_are_counted_whoever_is_handed_a_weight() -> None:
    """CaiT hands its class token to its last blocks, as it is."""
    small = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}
    weights = forward_flops(made(Named("CaiT", "timm:cait_xxs24_224", small), seed=0))
    assert weights > 2 * 4 * 2 * 12 * 32**2  # four patches through two blocks, and more


def test_what_our_loop_leaves_out_is_not_counted(tiny: Classifier, splits: Splits) -> None:
    """One token alone goes behind the last attention: 9·d² operations less for each of the others."""
    ours = run_ours(tiny, splits, numbers(1, 5, "fp32"), 0, CPU)
    others = 5 - 1
    assert forward_flops(tiny, ours.first_token) == forward_flops(tiny) - 2 * others * 9 * 16**2


def test_small_networks_take_the_papers_rate_for_larger_batches(
    tiny: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan((Named("tiny", ARCHITECTURE),), images=12, epochs=1, batch=6, repeats=1, device="cpu")
    subject = Subject(plan.models[0], tiny, plan)
    assert subject.loops(None)["learning_rate"] == 1e-4
    monkeypatch.setattr(speed, "SMALL", 0)
    assert subject.loops(None)["learning_rate"] == pytest.approx(1e-4 * 64 / 6)


def test_a_size_that_nobody_knows_is_told_with_its_option_and_all_that_are() -> None:
    with pytest.raises(RequestError, match="no model 'Huge'") as caught:
        size_named("Huge")
    assert caught.value.where == "--sizes"
    assert caught.value.fix is not None
    assert {"ViT-L", "little."} <= set(caught.value.fix.replace(",", "").split())


def test_both_loops_end_with_the_same_weights(tiny: Classifier, splits: Splits) -> None:
    found = compare_loops(tiny, splits, replace(numbers(3, 5, "fp32"), learning_rate=1e-2), 3, CPU, repeats=2)
    assert (found["sample_passes"], found["steps"]) == (3 * 14, 3 * 3)
    assert [len(found[name]["calls"]) for name in ("ours", "plain")] == [2, 2]
    assert found["agreement"]["weights_apart"] < 1e-5
    assert max(found["agreement"]["gap"].values()) < 1e-5
    assert found["agreement"]["ours"] != found["agreement"]["original"]


def test_where_accuracies_differ_the_plain_loop_says_what_rounding_does(
    tiny: Classifier, splits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = replace(numbers(3, 5, "bf16"), learning_rate=1e-2)
    agreement = compare_loops(tiny, splits, method, 3, CPU, repeats=1)["agreement"]
    assert agreement["gap_of_rounding"] is None
    monkeypatch.setattr(speed_loops, "POINTS", -1.0)  # any difference is too large
    agreement = compare_loops(tiny, splits, method, 3, CPU, repeats=1)["agreement"]
    full = run_plain(tiny, prepared_images(tiny, splits, CPU), replace(method, precision="fp32"), 3)
    assert agreement["plain_in_fp32"] == metrics(tiny, full.module, splits, CPU)
    rounding = abs(agreement["plain"]["forget_entropy"] - agreement["plain_in_fp32"]["forget_entropy"])
    assert agreement["gap_of_rounding"]["forget_entropy"] == rounding > 0
    assert set(agreement["ties_aside"]) == {"forget_accuracy", "retain_accuracy"}
    exact = compare_loops(tiny, splits, replace(method, precision="fp32"), 3, CPU, repeats=1)["agreement"]
    assert exact["gap_of_rounding"] is None  # there is nothing finer to compare with
    assert exact["ties_aside"] is None


def test_what_is_left_without_ties_is_what_a_loop_over_the_images_leaves() -> None:
    draws = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (60,), generator=draws)
    plain = Predictions(torch.randn(60, 4, generator=draws), labels)
    ours, exact = (
        Predictions(plain.logits + size * torch.randn(60, 4, generator=draws), labels) for size in (1.0, 0.1)
    )

    def ahead(said: Predictions, place: int) -> float:
        own = int(labels[place])
        return float(said.logits[place, own]) - max(float(said.logits[place, k]) for k in range(4) if k != own)

    moved = max(abs(ahead(plain, place) - ahead(exact, place)) for place in range(60))
    clear = [place for place in range(60) if abs(ahead(plain, place)) > moved]
    right = [sum(ahead(said, place) > 0 for place in clear) / len(clear) for said in (ours, plain)]
    found = ties_aside(ours, plain, exact)
    assert 0 < len(clear) < 60
    assert found["share"] == pytest.approx(len(clear) / 60)
    assert found["gap"] == pytest.approx(abs(right[0] - right[1]))
    assert found["gap"] != 0
    level = Predictions(torch.zeros(60, 4), labels)
    assert ties_aside(ours, level, exact) == {"share": 0.0, "gap": None}  # nothing is known of such answers


@pytest.mark.parametrize(
    ("clear", "holds"), [((0.9, 0.0), True), ((0.9, 0.002), True), ((0.9, 0.003), False), ((0.0, None), False)]
)
def test_ties_are_left_aside_and_nothing_else(clear: tuple[float, float | None], holds: bool) -> None:
    run = content()
    agreement = _result(run, "loops")["agreement"]
    agreement["gap"]["forget_accuracy"] = 0.018
    agreement["gap_of_rounding"] = {"retain_accuracy": 0.0, "forget_accuracy": 0.004, "forget_entropy": 0.5}
    agreement["plain_in_fp32"] = agreement["plain"]
    kept = {"share": 1.0, "gap": 0.0}
    agreement["ties_aside"] = {"retain_accuracy": kept, "forget_accuracy": {"share": clear[0], "gap": clear[1]}}
    (check,) = [each for each in checks(run) if "accuracies equal" in each.claim]
    assert check.holds is holds
    assert f"{100 * clear[0]:.0f} % of the forgotten are no ties" in check.found


@pytest.mark.parametrize("own", [None, 0.001, 0.004])
def test_what_rounding_does_to_the_plain_loop_is_told_and_excuses_nothing(own: float | None) -> None:
    run = content()
    agreement = _result(run, "loops")["agreement"]
    agreement["gap"]["retain_accuracy"] = 0.003
    if own is not None:
        agreement["gap_of_rounding"] = {"retain_accuracy": own, "forget_accuracy": 0.0, "forget_entropy": 0.5}
        agreement["plain_in_fp32"] = agreement["plain"]
    (check,) = [each for each in checks(run) if "accuracies equal" in each.claim]
    assert not check.holds
    assert ("| plain in fp32 |" in speed_markdown("speed-h200", run)) is (own is not None)


def test_loops_that_differ_are_seen_to_differ(tiny: Classifier, splits: Splits) -> None:
    method = replace(numbers(3, 5, "fp32"), learning_rate=1e-2)
    ours = run_ours(tiny, splits, method, 3, CPU)
    other = tiny.copy().module
    plain_loop(other, prepared_images(tiny, splits, CPU), replace(method, strength=1.0), 3)
    assert apart(ours.module, other, tiny.module) > 1e-3
    assert apart(other, other, tiny.module) == 0


def test_the_plain_loop_takes_the_papers_step() -> None:
    generator = torch.Generator().manual_seed(1)
    module, images = torch.nn.Linear(4, 3), torch.randn(6, 4, generator=generator)
    method = replace(numbers(2, 6, "fp32"), learning_rate=0.05, strength=0.5)
    slow = torch.nn.Linear(4, 3)
    slow.load_state_dict(module.state_dict())
    start = [parameter.detach().clone() for parameter in slow.parameters()]
    for _ in range(2):  # J(θ) of Eq. (1) as a whole, differentiated by autograd
        penalty = sum((p - p0).square().sum() for p, p0 in zip(slow.parameters(), start, strict=True)) / 2  # A(θ, θ₀)
        whole = target_kl(slow(images), uniform_target(3)).sum() + 0.5 * penalty
        gradients = torch.autograd.grad(whole, list(slow.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(slow.parameters(), gradients, strict=True):
                parameter.sub_(0.05 * gradient)
    assert len(plain_loop(module, images, method, seed=0)) == 2
    assert float(l2_penalty(module.parameters(), [parameter.detach() for parameter in slow.parameters()])) < 1e-10
    assert float(l2_penalty(module.parameters(), start)) > 1e-4


def test_images_are_those_asked_for(tiny: Classifier) -> None:
    data = synthetic(tiny, forget=POOL + 1, retained=7, seed=0)
    made_of = forgetting(data)
    assert (len(made_of.forget), len(made_of.retain or ())) == (POOL + 1, 7)
    pixels = made_of.forget.pixels(0, 3)
    assert tuple(pixels.shape) == (3, 8, 8)
    assert torch.equal(pixels, made_of.forget.pixels(POOL, 3))
    assert not torch.equal(pixels, made_of.forget.pixels(1, 3))
    assert torch.equal(synthetic(tiny, 2, 2, seed=0).train.pixels(0, 3), pixels)


def test_the_result_is_a_file_a_page_and_a_figure(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_ceiling, "SIDES", {"cpu": (64, 128)})
    file = tmp_path / "speed.json"
    stages = "ceiling,retraining,loops,growth"
    arguments = ("bench", "speed", "--output", file, "--model", ARCHITECTURE, *AS_OPTIONS, *QUICK, "--stages", stages)
    outcome = run(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content == json.loads(outcome.out)
    assert [each["stage"] for each in content["stages"]] == stages.split(",")
    assert not [each for each in content["stages"] if "error" in each]
    (model,) = content["models"]
    assert model["sample_pass_flops"] == 3 * vit_flops(16, 1, 5, 48, 10)
    results = {each["stage"]: each["result"] for each in content["stages"]}
    loops, rate = results["loops"], results["ceiling"]["tflops"]
    assert loops["floor"] == pytest.approx(36 * model["sample_pass_flops"] / (rate * 1e12))
    assert loops["plain"]["share_of_ceiling"] == pytest.approx(loops["floor"] / (6 * loops["plain"]["step"]))
    assert loops["ours"]["sample_pass_flops"] == model["sample_pass_flops"] - 3 * 2 * 4 * 9 * 16**2
    at_that_rate = 36 * loops["ours"]["sample_pass_flops"] / (rate * 1e12)
    assert loops["ours"]["share_of_ceiling"] == pytest.approx(at_that_rate / (6 * loops["ours"]["step"]))
    retraining = results["retraining"]
    assert retraining["epoch_extrapolated"] == pytest.approx(retraining["step"] * 50_000 / 6)
    assert retraining["steps_measured"] == 3 * (60 // 6)
    grown = results["growth"]
    assert [point["images"] for point in grown["with_forget"]["points"]] == [6, 60, 600]
    assert [point["epochs"] for point in grown["with_forget"]["points"]] == [24, 4, 4]
    assert [point["images"] for point in grown["with_data"]["points"]] == [100, 1000, 10000]
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "0 of 4 stages failed" in page
    assert "Kernels of our own in use: none." in page
    with Image.open(file.with_suffix(".png")) as figure:
        assert figure.width > 1000
    again = run(*arguments)
    assert again.code == 2
    assert "exists already" in again.err


def test_a_stage_that_fails_is_recorded_and_the_others_go_on(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate more.")

    monkeypatch.setattr(speed, "ceiling", full)
    file = tmp_path / "speed.json"
    outcome = run(
        "bench", "speed", "-o", file, "--model", ARCHITECTURE, *AS_OPTIONS, *QUICK, "--stages", "ceiling,loops"
    )
    assert outcome.code == 0, outcome.err
    first, second = json.loads(file.read_text(encoding="utf-8"))["stages"]
    assert first["error"] == "OutOfMemoryError: CUDA out of memory."
    assert "result" not in first
    assert second["result"]["floor"] is None
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "## Stages that failed" in page
    assert "ceiling: OutOfMemoryError" in page
    assert "| not available |" in page


@pytest.mark.parametrize(
    "wrong", [("--stages", "flying"), ("--sizes", "XXL"), ("--sizes", "Ti", "--model", "timm:x"), ("--images", 0)]
)
def test_what_cannot_be_run_is_refused_before_anything_runs(
    run: Callable[..., Any], tmp_path: Path, wrong: tuple[object, ...]
) -> None:
    outcome = run("bench", "speed", "-o", tmp_path / "speed.json", "--device", "cpu", *wrong)
    assert outcome.code == 2
    assert not list(tmp_path.iterdir())


def test_memory_is_measured_with_the_images_prepared_for_both(tiny: Classifier) -> None:
    splits = forgetting(synthetic(tiny, forget=14, retained=40, seed=0))
    assert splits.forget.cache.prepared is None
    bring(tiny, splits, numbers(1, 3, "fp32"), torch.device("cpu"))
    assert splits.forget.cache.prepared is not None


def test_memory_is_measured_and_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"model": TINY.to_json(), "images": 6, "epochs": 1, "batch": 3, "precision": "fp32", "seed": 0, "threads": 1}
    for what in ("fine-tuning", "ours"):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({**task, "what": what})))
        speed_memory.measured()
        found = json.loads(capsys.readouterr().out)
        assert found["peak"] >= found["before"] > 1 << 20
    over = compare_memory({"before": 10, "peak": 110}, {"before": 50, "peak": 200}, weights=20)
    assert over["allowed"] == pytest.approx(126)
    assert over["share_of_allowed"] == pytest.approx(150 / 126)
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(NumericsError, match="did not end well"):
        speed_memory.peak_in_a_process("ours", {"model": None})


def test_the_help_names_every_stage(run: Callable[..., Any]) -> None:
    told = "".join(run("bench", "speed", "--help").out.split())
    assert ",".join(speed.STAGES) in told


def test_a_process_of_its_own_hears_its_task_and_its_last_line_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "import json, sys",
        "def measured():",
        "    print('chatter')",
        "    print(json.dumps({'told': json.load(sys.stdin)}))",
    ]
    (tmp_path / "noisy.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert in_a_process("noisy", {"seed": 3}) == {"told": {"seed": 3}}


def test_first_calls_are_those_of_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def alone(module: str, task: dict[str, Any]) -> dict[str, Any]:
        asked.append(task)
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(task)))
        importlib.import_module(module).measured()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert printed["whole"] > printed["steps"] > printed["ahead"] > 0
        return {**printed, "steps": [5.0, 1.0, 2.0][len(asked) - 1]}

    monkeypatch.setattr(speed_fresh, "in_a_process", alone)
    plan = Plan(models=(TINY,), images=6, epochs=3, batch=3, repeats=3, stages=("fresh",), device="cpu")
    (found,) = run_speed(plan, lambda _: None, lambda _: None)["stages"]
    assert [(task["epochs"], task["batch"], task["device"]) for task in asked] == [(3, 3, "cpu")] * 3
    assert (found["result"]["median"], found["result"]["calls"]) == (2.0, [5.0, 1.0, 2.0])
    assert min(found["result"]["waits"]) > 0


def test_a_first_call_comes_after_training_only_where_one_was_trained() -> None:
    found = content()
    assert speed_page.AFTER_TRAINING not in speed_markdown("speed-h200", found)
    epochs = {"step": 0.1, "steps_measured": 3, "data_images": 9, "epoch_extrapolated": 1.0}
    trained = {"stage": "retraining", "model": "ViT-B", "seconds": 1.0, "result": epochs}
    assert speed_page.AFTER_TRAINING in speed_markdown("speed-h200", {**found, "stages": [*found["stages"], trained]})


def test_a_page_tells_what_was_not_trained_and_that_nothing_was_decided() -> None:
    found = content()
    fresh = [each for each in found["stages"] if each["stage"] == "fresh"]
    page = speed_markdown(
        "speed-cpu", {**found, "stages": fresh, "environment": {**found["environment"], "hardware": "x"}}
    )
    assert "**No claim was decided; 0 of 1 stages failed.**" in page
    assert "| claim |" not in page
    assert speed_page.UNTRAINED in page
    assert speed_page.TRAINED not in page


def test_of_processes_the_one_in_the_middle_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([{"before": 10, "peak": 90}, {"before": 50, "peak": 70}, {"before": 0, "peak": 30}])
    monkeypatch.setattr(speed_memory, "peak_in_a_process", lambda *_: next(found))
    middle = speed_memory.peak_of_processes("ours", {}, 3)
    assert middle == {"before": 0, "peak": 30, "every_used": [20, 30, 80]}
    assert compare_memory({"before": 0, "peak": 30}, middle, weights=0)["share_of_allowed"] == pytest.approx(1 / 1.05)


def test_sample_passes_are_counted_as_in_closed_form(tiny: Classifier, splits: Splits) -> None:
    batch, forget, retain = 10, len(splits.forget), len(splits.retain or ())
    steps = replace(FineTune().steps, epochs=2, batch_size=batch, learning_rate=1e-4)
    each = retain // batch  # steps of an epoch; the short last batch is left out
    wanted = {
        FineTune(steps): 2 * each * batch,
        Scrub(steps, max_epochs=1): forget + 2 * each * batch,
        SalUn(steps): forget + 2 * each * (max(1, batch // FORGET_PART) + batch),
        famr.baselines.Ours(numbers(3, batch, "fp32")): 3 * forget,
    }
    for method, passes in wanted.items():
        assert sample_passes(method, method.unlearn(tiny, splits, device="cpu"), forget) == passes


class Imagined(Contest):
    """Methods whose result follows from their epochs and rate; small rates end in no number at all."""

    def unlearn(self, method: Any) -> Any:
        if method.steps.learning_rate < 2e-3:
            raise NumericsError("The loss is no longer a finite number.")
        return method

    def scores(self, outcome: Any) -> dict[str, float | None]:
        forgotten = outcome.steps.epochs >= 3 and outcome.steps.learning_rate >= self.seed / 100
        return {"forget_accuracy": 0.0 if forgotten else 0.5, "retain_accuracy": 0.95}


def test_the_first_setting_that_gets_there_is_taken(tiny: Classifier, splits: Splits) -> None:
    before = {"forget_accuracy": 1.0, "retain_accuracy": 0.955}
    found = seek(Imagined(tiny, splits, CPU, seed=1), "fine-tune", before)
    assert found.reached
    assert (found.method.steps.epochs, found.method.steps.learning_rate, found.tried) == (3, 1e-2, 6 + 3)  # type: ignore[attr-defined]
    never = seek(Imagined(tiny, splits, CPU, seed=99), "fine-tune", before)
    assert (never.reached, never.tried) == (False, 6 * len(EPOCHS))
    assert not reached({"forget_accuracy": 0.0, "retain_accuracy": 0.94}, before)


def content() -> dict[str, Any]:
    """A run in which everything holds."""
    scores = {"retain_accuracy": 0.9, "forget_accuracy": 0.0, "forget_entropy": 2.0}
    loop = {"first": 0.45, "median": 0.4, "step": 0.02, "share_of_ceiling": 0.6, "whole_call": 0.6}
    points = [{"images": count, "seconds": count / 100} for count in (10, 100, 1000)]
    passes = {OURS: 1.0, DEFAULT: 0.9, PLAIN: 1.0, "fine-tune": 1.2, "SCRUB": 1.3, "SalUn": 1.4}
    stages: dict[str, dict[str, Any]] = {
        "loops": {
            "sample_passes": 5000,
            "steps": 20,
            "floor": 0.24,
            "ours": loop,
            "plain": loop,
            "ratio": 0.5,
            "steady_ratio": 0.4,
            "feeding_seconds_an_epoch": 0.001,
            "agreement": {
                "weights_apart": 0.01,
                "tolerance": 0.05,
                **dict.fromkeys(("original", "ours", "plain"), scores),
                "gap": {"retain_accuracy": 0.001, "forget_accuracy": 0.0, "forget_entropy": 0.3},
            },
        },
        "fresh": {"median": 0.5, "calls": [0.4, 0.5, 0.6], "waits": [0.1, 0.1, 0.2], "whole_call": 2.0},
        "memory": compare_memory({"before": 0, "peak": 100}, {"before": 0, "peak": 110}, weights=20),
        "growth": {
            "with_forget": {"points": points, "exponent": 1.0, "exponent_of_last": 1.0},
            "with_data": {"points": points, "exponent": 0.0, "exponent_of_last": 0.0},
        },
        "alternatives": {
            "data": "digits",
            "model": "a ViT",
            "forgotten": "class 3",
            "forget_images": 10,
            "retained_images": 90,
            "equal_passes": {
                "sample_passes": 90,
                "batch": 5,
                "rows": [
                    {"method": name, "sample_passes": 90, "seconds": times, "calls": [times] * 4, "times_ours": times}
                    for name, times in passes.items()
                ],
            },
            "equal_result": {
                "original": scores,
                "rows": [
                    {
                        "method": name,
                        "reached": name != "SCRUB",
                        "tried": 3,
                        "seconds": times,
                        "seconds_of_steps": None,
                        "image_passes": 100,
                        "scores": scores,
                    }
                    for name, times in passes.items()
                    if name != PLAIN
                ],
            },
        },
    }
    name = "ViT-B"
    return {
        "benchmark": "speed",
        "settings": {"images": 500, "epochs": 10, "batch": 250, "repeats": 3, "precision": "bf16"},
        "environment": {"hardware": "NVIDIA H200", "device": "cuda", "threads": 2, "torch": "2", "famr": "0"},
        "models": [
            {
                "name": name,
                "spec": "timm:<script>",
                "arguments": {},
                "weights": 10,
                "image_side": [224, 224],
                "sample_pass_flops": 30,
            }
        ],
        "stages": [
            {"stage": stage, "model": None if stage == "alternatives" else name, "seconds": 1.0, "result": result}
            for stage, result in stages.items()
        ],
    }


def test_every_claim_can_fail() -> None:
    found = checks(content())
    assert all(check.holds for check in found), found
    loops = _result(content(), "loops")
    changes: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
        ("no slower than the plain loop, 5 % of noise aside", lambda c: _result(c, "loops").update(ratio=1.06)),
        ("accuracies equal", lambda c: _result(c, "loops")["agreement"]["gap"].update(retain_accuracy=0.003)),
        ("weights equal", lambda c: _result(c, "loops")["agreement"].update(weights_apart=0.06)),
        ("takes at most 1.5 s", lambda c: _result(c, "loops").update(ours={**loops["ours"], "first": 1.6})),
        ("of a fresh process takes at most 1.5 s", lambda c: _result(c, "fresh").update(median=1.6)),
        ("55 % of the ceiling", lambda c: _result(c, "loops").update(ours={**loops["ours"], "share_of_ceiling": 0.5})),
        ("peak memory", lambda c: _result(c, "memory").update(share_of_allowed=1.01)),
        ("linearly", lambda c: _result(c, "growth")["with_forget"].update(exponent_of_last=1.3)),
        ("does not grow", lambda c: _result(c, "growth")["with_data"].update(exponent=0.4)),
        (f"passes: {OURS} is faster than fine-tune", lambda c: _row(c, "equal_passes", 3).update(times_ours=0.95)),
        (f"result: {DEFAULT} is faster than SalUn", lambda c: _row(c, "equal_result", 4).update(seconds=0.5)),
    ]
    for claim, change in changes:
        changed = content()
        change(changed)
        failing = [check.claim for check in checks(changed) if not check.holds]
        assert failing, claim
        assert all(claim in each for each in failing), (claim, failing)
    assert "SCRUB did not get there" in " ".join(check.found for check in found)


def _result(found: dict[str, Any], stage: str) -> dict[str, Any]:
    return next(each["result"] for each in found["stages"] if each["stage"] == stage)


def _row(found: dict[str, Any], part: str, place: int) -> dict[str, Any]:
    row: dict[str, Any] = _result(found, "alternatives")[part]["rows"][place]
    return row


def test_the_page_shows_names_as_text_and_the_figure_every_panel(tmp_path: Path) -> None:
    hostile = content()
    for each in hostile["stages"][:4]:
        each["model"] = "$x^ <b>\n\u202e"
    page = speed_markdown("speed-h200", hostile)
    assert page.startswith("# Speed: h200\n\nMade from `speed-h200.json`")
    assert "<script>" not in page
    assert "\u202e" not in page
    assert "| 0.500 | 0.400, 0.500, 0.600 | 0.100, 0.100, 0.200 | 2 |" in page
    draw_if_any(hostile, tmp_path / "speed.png")
    with Image.open(tmp_path / "speed.png") as figure:
        assert figure.height > 1000  # two rows of panels
    draw_if_any({**hostile, "stages": []}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(("floor", "shown"), [(0.5, ["floor", "ours", "plain loop"]), (None, ["ours", "plain loop"])])
def test_a_floor_that_nobody_measured_is_not_in_the_figure(floor: float | None, shown: list[str]) -> None:
    from matplotlib.figure import Figure

    found = content()
    _result(found, "loops")["floor"] = floor
    axes = Figure().add_subplot()
    speed_figure._loops(axes, found)
    bars = [bar for group in axes.containers for bar in group]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == shown
    assert len(bars) == len(shown)
    centres = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert sum(centres) == pytest.approx(0.0)  # around the name of the network


def test_a_bench_that_is_stopped_while_it_draws_leaves_nothing_half_drawn(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_content: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(speed_running, "run_speed", lambda *_: content())
    monkeypatch.setattr(speed_running, "draw_speed", stopped)
    outcome = run("bench", "speed", "-o", tmp_path / "speed.json", "--device", "cpu")
    assert outcome.code == 130
    assert sorted(file.name for file in tmp_path.iterdir()) == ["speed.json", "speed.md"]


def test_a_plan_without_a_stage_is_refused() -> None:
    with pytest.raises(RequestError, match="no stage"):
        speed.Plan(models=(), stages=())
    assert speed.Plan(models=(), device="cpu").settled_precision == "fp32"
