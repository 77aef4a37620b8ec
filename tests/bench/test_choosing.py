"""How numbers are chosen: trials, the gate, and the limit in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import famr
from baselines.cases import TRAINING, start
from famr.baselines import Baseline, Delete, FamrMethod, FineTune, NewtonHead, Retrain, SalUn, Scrub, SisaRemoval
from famr.bench import running
from famr.bench.gate import MARGIN, TrialFigures, choose_trial, gate_distance, mean_figures
from famr.bench.limit import PROBES, REPEATS, StepCost, fit_into
from famr.bench.methods import BenchMethod, bench_methods
from famr.bench.plan import Bench
from famr.bench.running import run_bench
from famr.bench.tasks import request_task
from famr.bench.tuning import tuning_variants
from famr.bench.tuning_tables import limit_line, tuning_table
from famr.data import Data


def class_task(name: str) -> Any:
    return request_task(famr.Request(classes=[name]))


def bench_of(digits: Data, *methods: BenchMethod, **changes: Any) -> Bench:
    description = {"data": "digits"}
    return Bench(digits, start, TRAINING, methods, (class_task("3"),), device="cpu", description=description, **changes)


# Trials


def test_trials_stay_within_the_limit_and_include_the_methods_own_numbers_and_its_papers() -> None:
    for method in bench_methods():
        for most in (1, 2, 3, 6, 9):
            variants = tuning_variants(method.method, most)
            assert len(variants) <= most
            assert variants[0] == method.method
            assert most == 1 or method.method.as_published() in variants
            assert not any(variant in variants[:index] for index, variant in enumerate(variants))


def test_few_trials_of_a_gradient_method_still_have_both_optimisers() -> None:
    for method in (FineTune(), SalUn(), Delete(), Scrub()):
        assert {variant.steps.optimiser for variant in tuning_variants(method, 4)} == {"sgd", "adam"}  # type: ignore[attr-defined]


# The gate


def figures(forget: float, held_out: float, original: float = 0.9) -> TrialFigures:
    return TrialFigures(forget, held_out, original)


def test_of_the_trials_that_forget_the_one_that_keeps_most_is_chosen() -> None:
    remembers, forgets, forgets_more = figures(0.5, 0.9), figures(0.01, 0.88), figures(0.0, 0.85)
    assert choose_trial("class", [remembers, forgets_more, forgets], classes=100) == 2
    near, far, below = figures(0.91, 0.85), figures(0.99, 0.9), figures(0.6, 0.89)
    assert choose_trial("samples", [far, below, near], classes=100) == 2


def test_a_destroyed_model_does_not_pass_however_well_it_forgets() -> None:
    destroyed, half_way = figures(0.0, 0.01), figures(0.3, 0.85)
    assert gate_distance("class", destroyed, classes=100) == pytest.approx(0.44)
    assert choose_trial("class", [destroyed, half_way], classes=100) == 1
    assert choose_trial("samples", [figures(0.9, 0.4), figures(0.94, 0.8)], classes=100) == 1


def test_where_none_passes_the_nearest_to_the_gate_is_chosen() -> None:
    assert choose_trial("class", [figures(0.4, 0.9), figures(0.1, 0.7), figures(0.2, 0.9)], classes=100) == 1
    assert choose_trial("samples", [figures(1.0, 0.9), figures(0.96, 0.7), figures(0.7, 0.9)], classes=100) == 1
    assert choose_trial("class", [None, None], classes=100) is None


def test_chance_is_that_of_the_number_of_classes_and_the_edges_of_the_gate_pass() -> None:
    assert gate_distance("class", figures(0.1, 0.9), classes=10) == 0
    assert gate_distance("class", figures(0.1, 0.9), classes=100) == pytest.approx(0.09)
    assert gate_distance("class", figures(0.01, 0.45), classes=1000) == 0
    for edge in (0.9 - MARGIN, 0.9 + MARGIN):
        assert gate_distance("samples", figures(edge, 0.9), classes=100) == 0


def test_a_trials_figures_are_the_means_over_its_requests_and_it_fails_if_one_run_failed() -> None:
    run = {"forget_accuracy": 0.0, "held_out_accuracy": 0.8, "original_accuracy": 0.9}
    other = {"forget_accuracy": 0.3, "held_out_accuracy": 0.9, "original_accuracy": 0.9}
    mean = mean_figures([run, run, other])
    assert mean == pytest.approx((0.1, 0.8333, 0.9), abs=1e-4)
    assert mean_figures([run, {"error": {}}, other]) is None


# The limit


def test_steps_are_cut_to_whole_epochs_or_to_a_part_of_one() -> None:
    def run_of(seconds_a_step: float) -> Any:
        def run(method: Any) -> Mapping[str, Any]:
            taken = min(method.steps.most_steps, 200)
            return {"seconds": 0.5 + seconds_a_step * taken, "facts": {"steps": taken, "steps_planned": 200}}

        return run

    method = FineTune().with_numbers(epochs=10)
    for step, limit, epochs, most in ((0.01, 60.0, 10, None), (0.01, 1.35, 4, None), (0.1, 1.35, 10, 8)):
        fitted = fit_into(method, limit, run_of(step))
        assert fitted.method == method.with_numbers(epochs=epochs, most_steps=most)
        taken = most or epochs * 20
        assert 0.5 + taken * step <= limit
        assert fitted.record["planned"] == 200
        assert (fitted.record["cut"] == "uncut") == (taken == 200)


def test_noise_in_a_short_run_takes_no_steps_away() -> None:
    calls: list[int] = []

    def run(method: Any) -> Mapping[str, Any]:
        taken = method.steps.most_steps
        calls.append(taken)
        seconds = 0.01 * taken + (5.0 if len(calls) in (2, 3) else 0.0)  # the first two short runs are disturbed
        return {"seconds": seconds, "facts": {"steps": taken, "steps_planned": 200}}

    measured: Any = {}
    assert fit_into(FineTune(), 1.0, run, measured).record["steps"] == 100
    before = len(calls)
    slow = FineTune().with_numbers(learning_rate=1e-3)
    assert fit_into(slow, 0.5, run, measured).record["steps"] == 50
    assert calls[before:] == [1]  # of another rate only the number of steps is asked for


def test_a_method_shorter_than_the_short_runs_is_not_cut_by_noise() -> None:
    assert StepCost.of((5, 0.9), (5, 0.5), planned=5).steps_within(0.6) == 5
    assert StepCost.of((8, 0.9), (24, 0.8), planned=100).steps_within(1.0) == 100


def test_what_cannot_be_cut_and_what_fails_stays_as_it_is() -> None:
    for method in (NewtonHead(), Retrain(), SisaRemoval(), FamrMethod()):
        assert fit_into(method, 0.1, pytest.fail).method is method
    failed = fit_into(FineTune(), 0.1, lambda _method: {"error": {"what": "full"}})
    assert failed.method == FineTune()
    assert failed.record["cut"] == "not measured: full"


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Baseline]]:
    """Runs in which a step takes 10 ms and FAMR half a second, by a clock that is not the machine's."""
    ran: list[tuple[str, str, Baseline]] = []

    def on(case: Any, name: str, method: Any) -> dict[str, Any]:
        ran.append((name, case.task.label, method))
        planned = 0 if isinstance(method, FamrMethod) else method.steps.epochs * 10
        taken = min(planned, getattr(getattr(method, "steps", None), "most_steps", None) or planned)
        head = {"method": name, "task": case.task.label, "kind": case.task.tuning_kind, "seed": 0}
        accuracies = {"forget_accuracy": 0.0, "held_out_accuracy": 0.9, "original_accuracy": 0.9}
        facts = {"steps": taken, "steps_planned": planned}
        seconds = {"5": 0.4, "0": 0.5}.get(case.task.label[-1], 0.3) if planned == 0 else 0.01 * taken
        return head | accuracies | {"numbers": method.to_json(), "seconds": seconds, "facts": facts}

    monkeypatch.setattr(running.TrialCase, "run", on)
    monkeypatch.setattr(running.Case, "cell", lambda case, name, method: on(case, name, method) | {"error": FAILED})
    monkeypatch.setattr(running._BenchRun, "reference", lambda *_given: None)
    return ran


FAILED = {"kind": "Made", "what": "by the test", "where": None}


def test_the_limit_is_the_longest_run_of_ours_and_every_trial_keeps_to_it(
    digits: Data, tmp_path: Path, clocked: list[tuple[str, str, Baseline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = tuple(class_task(name) for name in ("5", "0", "4"))
    methods = BenchMethod("fine-tune", FineTune()), BenchMethod("FAMR", FamrMethod())
    bench = bench_of(digits, *methods, tuning=tuning, trials=3, retrained=False)
    monkeypatch.setattr(running, "fit", fit_short)
    content = run_bench(bench, tmp_path / "out", lambda _line: None)
    assert {record["limit"] for record in content["limits"]} == {0.5}  # of 0.4, 0.5 and 0.3
    taken = [method.steps.epochs for name, _, method in clocked if name == "fine-tune" and not method.steps.most_steps]  # type: ignore[attr-defined]
    assert taken == [5] * (3 * 3 + 1)  # ten epochs of 0.1 s: five fit; three trials on three requests, and the cell
    probes = [method.steps.most_steps for name, _, method in clocked if name == "fine-tune" and method.steps.most_steps]  # type: ignore[attr-defined]
    assert probes == [1, *PROBES * REPEATS, 1, 1]  # measured once: the three differ in the schedule and the rate alone
    assert {label for name, label, _ in clocked if name == "fine-tune"} == {"class 5", "class 0", "class 4", "class 3"}
    assert "Limit in seconds: class 0.50; the longest that FAMR takes" in (limit_line(content) or "")
    before = len(clocked)
    run_bench(replace(bench, retry_failed=True), tmp_path / "out", lambda _line: None)
    assert len(clocked) == before + 2  # the cells alone: what was measured once is kept


def test_seconds_that_are_given_need_no_run_of_ours(
    digits: Data, tmp_path: Path, clocked: list[tuple[str, str, Baseline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "fit", fit_short)
    bench = bench_of(digits, BenchMethod("fine-tune", FineTune()), seconds=0.025, retrained=False)
    content = run_bench(bench, tmp_path / "out", lambda _line: None)
    assert [name for name, _, _ in clocked] == ["fine-tune"] * 6  # five short runs and the cell; nothing is tuned
    assert clocked[-1][2].steps.most_steps == 2  # type: ignore[attr-defined]
    assert content["limits"][0]["steps"] == 2
    assert "class 0.03; as given" in (limit_line(content) or "")
    clocked.clear()
    free = bench_of(digits, BenchMethod("fine-tune", FineTune()), retrained=False)
    assert limit_line(run_bench(free, tmp_path / "free", lambda _line: None)) is None
    assert clocked[-1][2] == FineTune()


def fit_short(*given: Any, **named: Any) -> Any:
    model, images, training, *rest = given
    return famr.fit(model, images.take(slice(0, 64)), replace(training, epochs=1), *rest, **named)


# Tables


def test_the_table_shows_steps_gate_and_reason() -> None:
    head = {"method": "SCRUB", "kind": "class"}
    worked = {"forget_accuracy": 0.0, "held_out_accuracy": 0.8, "original_accuracy": 0.9, "seconds": 0.4}
    tried = [
        {**head, "task": "class 3", "trial": 0, "numbers": {"rate": 0.5}} | worked,
        {**head, "task": "class 3", "trial": 1, "numbers": {"rate": 1.0}, "error": {"what": "The loss is not finite."}},
    ]
    table = tuning_table(tried, [{**head, "trial": 0, "steps": 24, "planned": 100}], classes=100)
    assert table.rows == (
        ("SCRUB", "class", "rate 0.5", "24 of 100", "passes, chosen", "0.0", "80.0", "0.40"),
        ("SCRUB", "class", "rate 1.0", "not limited", "failed: The loss is not finite.", "–", "–", "–"),
    )
    assert table.words == 5


def test_benches_from_before_the_gate_are_still_shown() -> None:
    trial = {"method": "SCRUB", "task": "class 3"}
    failed = {**trial, "trial": 0, "numbers": {"rate": 1.0}, "error": {"what": "The loss is not finite."}}
    ended = {**trial, "trial": 1, "numbers": {"rate": 0.5}, "unlearned": {"average_gap": 0.1234}}
    table = tuning_table([ended, failed], [], classes=100)
    assert table.rows == (
        ("SCRUB", "class 3", "rate 1.0", "failed: The loss is not finite.", "–"),
        ("SCRUB", "class 3", "rate 0.5", "chosen", "12.34"),
    )
