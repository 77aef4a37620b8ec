"""`famr bench methods`: the numbers of its tables, and a bench on digits that is stopped, resumed and broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import famr
from baselines.cases import start
from famr.baselines import (
    BASELINES,
    BoundaryShrink,
    Delete,
    FamrMethod,
    FineTune,
    Retrain,
    SisaRemoval,
)
from famr.baselines.base import BaselineOutput, RunSettings
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.bench import methods, running
from famr.bench.columns import AVERAGE_GAP
from famr.bench.comparison import compare_methods, rank_column
from famr.bench.gate import choose_trial, mean_figures
from famr.bench.methods import FAMR_PAPER, FAMR_QUICK, BenchMethod, bench_methods, file_stem, methods_by_name, slug
from famr.bench.plan import Bench
from famr.bench.references import BenchReference
from famr.bench.results import CellKey, ResultsFolder
from famr.bench.running import run_bench
from famr.bench.scoring import GAP_METRICS, calibration_and_scored
from famr.bench.statistics import BEST
from famr.bench.tables import methods_table, ranking_summary, results_page
from famr.bench.tasks import Task, request_task, samples_task, tuning_tasks
from famr.bench.trial_case import TrialCase
from famr.data import Data
from famr.errors import FamrError, NumericsError, RequestError
from famr.report.html import as_html
from famr.report.markdown import as_markdown

TRAINING = famr.Training(epochs=3, batch_size=64, learning_rate=3e-3, augmentation=None)
VIT = "timm:vit_tiny_patch16_224"
SMALL_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
HOSTILE = "<script>alert(1)</script> [/x] |\n\u202e"


@dataclass(frozen=True)
class Broken(WeightBaseline):
    """A method that fails."""

    error: Exception

    name = "broken"
    paper = "none"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}

    def change(self, session: BaselineSession) -> None:  # noqa: ARG002
        raise self.error


def quick(method: Any) -> BenchMethod:
    return BenchMethod(method.name, method.with_numbers(epochs=1, batch_size=64))


def bench_of(digits: Data, *compared: BenchMethod, **changes: Any) -> Bench:
    tasks = changes.pop("tasks", (request_task(famr.Request(classes=["3"])),))
    return Bench(digits, start, TRAINING, compared, tasks, device="cpu", description={"data": "digits"}, **changes)


@dataclass(frozen=True)
class Asked(FamrMethod):
    """FAMR that says which recipe it was given, and stops."""

    def run(self, original: famr.Classifier, splits: famr.Splits, settings: RunSettings) -> BaselineOutput:  # noqa: ARG002
        assert self.recipe is not None
        raise RequestError(f"The proxy trains {self.recipe.late_share} of the layers.")


@pytest.mark.parametrize(("fine_tuned", "share"), [(False, 0.5), (True, 1.0)])
def test_a_network_that_was_fine_tuned_has_a_proxy_with_all_layers_of_its_own(
    digits: Data, tmp_path: Path, fine_tuned: bool, share: float
) -> None:
    bench = bench_of(digits, BenchMethod("FAMR", Asked()), fine_tuned=fine_tuned, retrained=False)
    run_bench(bench, tmp_path / "bench", lambda _line: None)
    assert f"trains {share} of the layers" in (tmp_path / "bench/results.json").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    bench: Bench
    folder: Path
    content: dict[str, Any]
    lines: list[str]


@pytest.fixture(scope="module")
def ran(digits: Data, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Three methods and a broken one, a class and samples, two seeds, tuned."""
    tasks = (request_task(famr.Request(classes=["3"])), samples_task(digits, 0.1))
    compared = (
        BenchMethod("FAMR", FamrMethod(famr.FAMR(strength=1.0, epochs=2, edit_head=True, function_images=2))),
        BenchMethod("retrain", Retrain()),
        quick(FineTune()),
        quick(Delete()),
        BenchMethod(HOSTILE, Broken(NumericsError("The loss is not finite <b>.", where="step 3"))),
    )
    bench = bench_of(
        digits,
        *compared,
        tasks=tasks,
        seeds=(0, 1),
        trials=2,
        tuning=tuning_tasks(digits, tasks),
        seconds=60.0,
        leave_out_unserved=True,
    )
    folder = tmp_path_factory.mktemp("bench") / "out"
    lines: list[str] = []
    return Ran(bench, folder, run_bench(bench, folder, lines.append), lines)


def cells_of(content: dict[str, Any], **key: Any) -> list[dict[str, Any]]:
    return [cell for cell in content["cells"] if all(cell.get(name) == value for name, value in key.items())]


# numbers


def test_methods_are_looked_up_by_slug() -> None:
    assert [c.name for c in methods_by_name(["l1-sparse", "FAMR", "newton step on the head"])] == [
        "ℓ₁-sparse",
        "FAMR",
        "Newton step on the head",
    ]
    assert len(methods_by_name(["all"])) == len(bench_methods())
    assert [slug(method.name) for method in bench_methods() if method.name not in (FAMR_PAPER, FAMR_QUICK)] == list(
        BASELINES
    )
    with pytest.raises(RequestError, match="Did you mean salun"):
        methods_by_name(["salum"])


def test_file_names_are_safe_and_differ() -> None:
    names = {file_stem("m", name, 0) for name in ("../../etc", "..-..-etc", HOSTILE, "")}
    assert len(names) == 4
    assert all("/" not in name and "\n" not in name and len(name) < 120 for name in names)


def test_tuning_requests_are_not_scored(digits: Data) -> None:
    tasks = (
        request_task(famr.Request(classes=["3"])),
        request_task(famr.Request(concept=("parity", "odd"))),
        samples_task(digits, 0.3),
    )
    drawn = tuning_tasks(digits, tasks)
    assert [task.tuning_kind for task in drawn] == ["class"] * 3 + ["samples"] * 3
    names = [task.request.classes[0] for task in drawn[:3]]
    assert len(set(names)) == 3
    assert set(names) <= set("02468")
    for some in drawn[3:]:
        assert not {*some.request.samples} & {*tasks[2].request.samples}
        assert len(some.request.samples) == len(tasks[2].request.samples)
    assert len({task.request.samples for task in drawn[3:]}) == 3
    assert [task.label for task in tuning_tasks(digits, tasks)] == [task.label for task in drawn]  # a fixed seed
    with pytest.raises(RequestError, match="may not be tuned on"):
        bench_of(digits, quick(FineTune()), tuning=(request_task(famr.Request(classes=["3"])),))
    with pytest.raises(RequestError, match="between 0 and 1"):
        samples_task(digits, 1.5)


def test_methods_never_see_a_scored_image(without_three: famr.Splits) -> None:
    calibration, scored = calibration_and_scored(without_three)
    assert calibration.test is not None
    assert scored.test is not None
    assert not {*calibration.test.ids} & {*scored.test.ids}
    assert calibration.forget_test is None


# a bench


def test_figures_of_a_cell_are_consistent(ran: Ran) -> None:
    done = [cell for cell in ran.content["cells"] if "unlearned" in cell]
    assert len(done) == 4 * 2 + 3 * 2  # DELETE does not serve samples
    for cell in done:
        gaps = [abs(cell["unlearned"][name] - cell["retrained"][name]) for name in GAP_METRICS]
        assert cell["unlearned"]["average_gap"] == pytest.approx(sum(gaps) / 4)
        assert cell["share_of_retraining"] == pytest.approx(cell["seconds"] / cell["retraining"]["seconds"])
        assert cell["fde"] == cell["image_passes"] / 1438
        assert cell["peak_memory"] is None  # not counted on a CPU
    (fine_tune,) = cells_of(ran.content, method="fine-tune", task="class 3", seed=0)
    assert fine_tune["fde"] == pytest.approx(1.0, abs=0.15)  # one epoch over what is retained
    assert fine_tune["retrained"]["forget_accuracy"] == 0


def test_all_methods_share_one_reference_and_retrain_is_compared_with_another_seed(ran: Ran) -> None:
    for task in ran.content["tasks"]:
        for seed in (0, 1):
            cells = [c for c in cells_of(ran.content, task=task, seed=seed) if "unlearned" in c]
            assert len({json.dumps(cell["retrained"]) for cell in cells}) == 1
            assert len({cell["original_sha256"] for cell in cells}) == 1
        first, second = (cells_of(ran.content, method="retrain", task=task, seed=s)[0] for s in (0, 1))
        assert first["unlearned"]["forget_accuracy"] == second["retrained"]["forget_accuracy"]
        assert first["unlearned"]["retain_accuracy"] == second["retrained"]["retain_accuracy"]
        assert first["unlearned"]["js_to_retrained"] == pytest.approx(second["unlearned"]["js_to_retrained"])
    assert len(list((ran.folder / "references").iterdir())) == 2 * 2  # none for tuning


def test_tuning_picks_what_the_gate_chooses_on_three_other_requests(ran: Ran) -> None:
    runs = [run for run in ran.content["tuning"] if run["method"] == "fine-tune"]
    assert len(runs) == 2 * 2 * 3
    assert not {run["task"] for run in runs} & set(ran.content["tasks"])
    for kind in ("class", "samples"):
        tried = [[run for run in runs if (run["kind"], run["trial"]) == (kind, trial)] for trial in (0, 1)]
        best = choose_trial(kind, [mean_figures(of_trial) for of_trial in tried], classes=10)
        assert best is not None
        for cell in cells_of(ran.content, method="fine-tune", kind=kind):
            assert cell["numbers"] == tried[best][0]["numbers"]
    assert not [run for run in ran.content["tuning"] if run["method"] in ("FAMR", "retrain")]


def test_tuning_sees_no_scored_image_and_no_retrained_model(ran: Ran) -> None:
    for splits in ran.bench.split_tasks().values():
        calibration, scored = calibration_and_scored(splits)
        case = TrialCase(ran.bench.tuning[0], 0, start(0), "", calibration, torch.device("cpu"), "fp32")
        assert scored.test is not None
        assert not {*case._held_out.ids} & {*scored.test.ids}
    for run in ran.content["tuning"]:
        assert not {"retrained", "unlearned", "retraining"} & set(run)


def test_a_failed_cell_is_shown_with_its_reason_and_affects_no_other(ran: Ran) -> None:
    failed = cells_of(ran.content, method=HOSTILE)
    assert len(failed) == 4
    assert all(cell["error"]["what"] == "The loss is not finite <b>." for cell in failed)
    text = (ran.folder / "results.md").read_text(encoding="utf-8")
    assert "4 failed" in text
    assert text.count("NumericsError: The loss is not finite") == 4
    table = methods_table(cells_of(ran.content, kind="class"), "")
    row = next(row for row in table.rows if row[0].startswith(HOSTILE))
    assert "failed: The loss is not finite" in row[0]
    assert row[-1] == "0 of 2"
    assert "Not served: DELETE" in text


def test_the_page_begins_with_what_was_run_what_marks_mean_and_what_is_not_shown(ran: Ran) -> None:
    page = (ran.folder / "results.md").read_text(encoding="utf-8")
    beginning, _, tables = page.partition("\n|")
    assert "**5 methods, 2 requests, 2 seeds: " in beginning
    for word in (
        "Data: digits",
        "Model: ",
        "Forgotten: class 3; 10 ",
        "Seeds 0, 1: an original for each",
        "Methods: FAMR",
    ):
        assert f"\n- {word}" in beginning
    for word in ("Marks", "Intervals", "Tests", "Not ranked", "Not shown"):
        assert f"\n- {word}: " in beginning
    assert "Not tested: 1 request and 2 seeds" in beginning
    assert "Differences to the best method" in tables


def test_results_json_has_the_comparison_of_its_cells(ran: Ran) -> None:
    assert ran.content["comparisons"] == compare_methods(ran.content)
    assert ran.content["comparisons"].keys() == {"class", "samples"}
    gap = ran.content["comparisons"]["class"]["average_gap"]
    assert gap["methods"].keys() == {"FAMR", "fine-tune", "DELETE"}  # not the one that failed, nor retraining
    assert (gap["blocks"], gap["comparisons"]) == (2, 0)


def test_names_are_escaped_in_the_pages(ran: Ran) -> None:
    html = (ran.folder / "results.html").read_text(encoding="utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; [/x] |\\n\\u202e" in html
    text = (ran.folder / "results.md").read_text(encoding="utf-8")
    assert "<script>" not in text.replace("\\<", "")
    assert "\u202e" not in text
    for line in text.splitlines():
        if line.startswith("| FAMR | class 3"):
            assert line.replace("\\|", "").count("|") == 3 + 12 + 1


def test_a_finished_bench_runs_nothing_again(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "fit", pytest.fail)
    monkeypatch.setattr(running.Case, "cell", pytest.fail)
    assert run_bench(ran.bench, ran.folder, lambda _line: None) == ran.content
    assert json.loads((ran.folder / "results.json").read_text(encoding="utf-8")) == ran.content


def test_costs_are_ranked_among_methods_that_forget(ran: Ran) -> None:
    cells = cells_of(json.loads(json.dumps(ran.content)), kind="class")
    for cell in cells:
        if "unlearned" in cell:
            forgets = cell["method"] in ("FAMR", "fine-tune", "retrain")
            cell["unlearned"]["forget_accuracy"] = 0.01 if forgets else 0.03
            cell["seconds"] = {"FAMR": 2.0, "fine-tune": 3.0, "DELETE": 1.0, "retrain": 0.5}[cell["method"]]
    table = methods_table(cells, "")
    rows = {row[0]: row for row in table.rows}
    seconds = table.columns.index("seconds")
    assert rows["FAMR"][seconds] == f"2.00 ± 0.00 {BEST}"
    assert rows["DELETE †"][seconds] == "1.00 ± 0.00"
    assert BEST not in "".join(rows["retrain"] + rows["retrained"] + rows["original"])
    cells_of({"cells": cells}, method="FAMR")[0].pop("unlearned")  # a method with a failed cell is not ranked
    rows = {row[0]: row for row in methods_table(cells, "").rows}
    assert BEST not in "".join(rows["FAMR"])
    assert BEST in rows["fine-tune"][seconds]


# stopped, resumed, refused


def test_a_stopped_bench_resumes_with_the_missing_cells(
    digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(digits, quick(FineTune()), quick(Delete()), quick(BoundaryShrink()))
    real, ran = running.Case.cell, []

    def stopping(case: Any, name: str, method: Any) -> dict[str, Any]:
        ran.append(name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return real(case, name, method)

    monkeypatch.setattr(running.Case, "cell", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_bench(bench, tmp_path / "out", lambda _line: None)
    page = (tmp_path / "out/results.md").read_text(encoding="utf-8")
    assert "1 of 3 cells have figures, 0 failed, 2 not run yet" in page
    assert "Not run yet: class 3, seed 0: DELETE, boundary shrink" in page
    first = sorted((tmp_path / "out/cells").iterdir())
    before = first[0].stat().st_mtime_ns
    trained: list[int] = []
    fit = running.fit
    monkeypatch.setattr(running, "fit", lambda *given, **named: trained.append(1) or fit(*given, **named))
    content = run_bench(bench, tmp_path / "out", lambda _line: None)
    assert ran == ["fine-tune", "DELETE", "DELETE", "boundary shrink"]
    assert not trained  # neither the original nor the reference
    assert first[0].stat().st_mtime_ns == before
    assert len(cells_of(content)) == 3
    more = replace(bench, methods=(*bench.methods, BenchMethod("broken", Broken(ValueError("full")))))
    content = run_bench(more, tmp_path / "out", lambda _line: None)
    assert ran[4:] == ["broken"]
    assert cells_of(content, method="broken")[0]["error"] == {"kind": "ValueError", "what": "full", "where": None}
    run_bench(more, tmp_path / "out", lambda _line: None)
    assert ran[4:] == ["broken"]
    run_bench(replace(more, retry_failed=True), tmp_path / "out", lambda _line: None)
    assert ran[4:] == ["broken", "broken"]
    with pytest.raises(RequestError, match="other settings: training"):
        run_bench(replace(bench, training=replace(TRAINING, epochs=2)), tmp_path / "out")
    with pytest.raises(RequestError, match="other numbers for 'DELETE'"):
        run_bench(replace(bench, methods=(BenchMethod("DELETE", Delete()),)), tmp_path / "out")


def test_each_method_is_tuned_before_its_first_cell_so_that_a_stop_leaves_whole_methods(
    digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = (request_task(famr.Request(classes=["3"])),)
    tuning = (request_task(famr.Request(classes=["5"])),)
    compared = quick(Delete()), quick(BoundaryShrink())
    bench = bench_of(digits, *compared, tasks=tasks, tuning=tuning, trials=2)
    monkeypatch.setattr(running._BenchRun, "limit", lambda _run, _kind: None)
    score, tune, ran, evaluated = running.Case.cell, running.TrialCase.run, [], []

    def noted(real: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def run(case: Any, name: str, method: Any) -> dict[str, Any]:
            ran.append((name, case.task.label))
            if len(ran) == 5:
                raise KeyboardInterrupt
            return real(case, name, method)

        return run

    monkeypatch.setattr(running.Case, "cell", noted(score))
    monkeypatch.setattr(running.TrialCase, "run", noted(tune))
    predict_scored = running.predict_scored
    monkeypatch.setattr(running, "predict_scored", lambda *given: evaluated.append(1) or predict_scored(*given))
    with pytest.raises(KeyboardInterrupt):
        run_bench(bench, tmp_path / "out", lambda _line: None)
    of_one = ["class 5", "class 5", "class 3"]
    assert ran == [("DELETE", label) for label in of_one] + [("boundary shrink", "class 5")] * 2
    assert len(evaluated) == 2  # original and reference, once, though tuning and scoring alternate


def test_warm_up_runs_before_anything_is_timed(digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(digits, quick(Delete()))
    compiled: list[int] = []
    monkeypatch.setattr(torch, "compile", lambda module: compiled.append(1) or module)
    work = running._BenchRun(
        replace(bench, training=replace(TRAINING, compile=True)), ResultsFolder(tmp_path, {}), {}, print, None
    )  # type: ignore[arg-type]
    fitted: list[tuple[int, bool | None]] = []
    fit = running.fit

    def noted(model: Any, images: Any, training: famr.Training, **named: Any) -> Any:
        fitted.append((training.epochs * len(images), training.compile))
        return fit(model, images, training, **named)

    evaluated: list[int] = []
    predict_batches = running.predict_batches

    def noted_batches(*given: Any) -> Any:
        evaluated.append(len(fitted))
        return predict_batches(*given)

    monkeypatch.setattr(running, "fit", noted)
    monkeypatch.setattr(running, "predict_batches", noted_batches)
    work.warm_up()
    assert fitted == [(64, False), (64, True)]  # one step each
    assert evaluated == [0]  # evaluation comes first: it sets what compiled networks depend on
    fitted.clear()
    work.warm_up(trains=False)  # all originals and references are there
    assert fitted == [(64, False)]
    assert compiled == [1]
    assert not bench.compiles  # never by default on a CPU


def test_the_start_of_training_is_made_once_a_seed_and_not_changed(digits: Data, tmp_path: Path) -> None:
    made: list[famr.Classifier] = []

    def noted(seed: int) -> famr.Classifier:
        made.append(start(seed))
        return made[-1]

    bench = replace(bench_of(digits, quick(Delete()), seeds=(4, 5)), start=noted)
    first = run_bench(bench, tmp_path / "out", lambda _line: None)
    fresh = [start(seed).digest() for seed in (4, 5)]
    assert [each.digest() for each in made] == fresh  # an original and a reference were trained from each
    run_bench(replace(bench, methods=(quick(FineTune()),)), tmp_path / "out", lambda _line: None)
    assert [each.digest() for each in made] == fresh * 2  # originals were read, and not into these
    assert len(first["cells"]) == 2


def test_on_a_gpu_every_method_runs_once_before_it_is_timed(digits: Data, tmp_path: Path) -> None:
    tuning = (request_task(famr.Request(classes=["5"])),)
    bench = bench_of(digits, BenchMethod("FAMR", FamrMethod()), quick(Delete()), tuning=tuning, trials=2, seeds=(0, 1))

    def runs(some: Bench, records: ResultsFolder, device: str = "cuda") -> list[tuple[str, str]]:
        ran: list[tuple[str, str]] = []

        @dataclass
        class Noted:
            task: Task

            def cell(self, name: str, _method: Any) -> dict[str, Any]:
                ran.append((name, self.task.label))
                failed = {"kind": "Noted", "what": "nothing was done"}
                return {"method": name, "task": self.task.label, "seed": 0, "error": failed}

            run = cell

        work: Any = running._BenchRun(some, records, {}, lambda _line: None, None)  # type: ignore[arg-type]
        work.device, work.case = torch.device(device), lambda task, _seed: Noted(task)
        work.trial_case, work.limit = work.case, lambda _kind: None
        for key in some.cells():
            work.run_cell(work.planned(key))
        return ran

    ours, delete = ("FAMR", "class 3"), ("DELETE", "class 3")
    warm, tuned = ("FAMR", "class 5"), ("DELETE", "class 5")
    kept = ResultsFolder(tmp_path / "a", {})
    assert runs(bench, kept) == [warm, ours, tuned, tuned, delete, ours, delete]
    assert runs(bench, kept) == [warm, ours, tuned, delete, ours, delete]  # another process: tuned before
    assert runs(bench, ResultsFolder(tmp_path / "b", {}), "cpu") == [ours, tuned, tuned, delete, ours, delete]
    for untuned in (replace(bench, trials=1), replace(bench, tuning=())):
        assert runs(untuned, ResultsFolder(tmp_path / "c", {})) == [ours, delete, ours, delete]


def test_the_quickest_method_is_also_named_among_those_that_keep_accuracy() -> None:
    def cell(method: str, seed: int, seconds: float, kept: float, forgotten: float = 0.0) -> dict[str, Any]:
        truth = {"forget_accuracy": 0.0, "retain_accuracy": 0.9}
        return {
            "method": method,
            "task": "class 3",
            "seed": seed,
            "seconds": seconds,
            "original": {"retain_accuracy": 0.9},
            "unlearned": {"forget_accuracy": forgotten, "retain_accuracy": kept, "average_gap": 1 - kept},
            "retrained": truth,
        }

    three = [(seed, 0.01 * seed) for seed in range(3)]
    quick_but_empty = [cell("ascent", seed, 0.1 + more, 0.1) for seed, more in three]
    whole = [cell("whole", seed, 0.5 + more, 0.89) for seed, more in three]
    slow = [cell("slow", seed, 5.0 + more, 0.881) for seed, more in three]
    remembers = [cell("none", seed, 0.01, 0.9, 1.0) for seed, _ in three]
    text = ranking_summary([*quick_but_empty, *whole, *slow, *remembers])
    assert "seconds among methods that forget: ascent" in text
    assert "among methods that forget and lose at most 2 points of Ret-Acc: whole (0.51 s); all others" in text
    assert "of Ret-Acc: whole (0.51 s), the only one." in ranking_summary([*quick_but_empty, *whole, *remembers])
    assert "lose at most" not in ranking_summary(
        [*whole, *slow, *remembers]
    )  # every method that forgets keeps accuracy
    assert "lose at most" not in ranking_summary([*quick_but_empty, *remembers])
    unsteady = [cell("unsteady", seed, 0.5, 0.2 if seed else 0.89) for seed, _ in three]
    near = [cell("near", seed, 0.5, 0.889 + (-more if seed < 2 else more)) for seed, more in three]
    text = ranking_summary([*unsteady, *whole, *near])  # three cells cannot separate methods that are far apart
    assert "Smallest Avg. Gap: near (10.77 %); not significantly worse: whole (11.00 %), unsteady (57.00 %)." in text


def test_without_retrained_models_their_figures_are_not_available(digits: Data, tmp_path: Path) -> None:
    bench = bench_of(digits, quick(Delete()), retrained=False)
    lines: list[str] = []
    content = run_bench(bench, tmp_path / "out", lines.append)
    (cell,) = content["cells"]
    assert cell["retrained"] is cell["retraining"] is cell["share_of_retraining"] is None
    assert cell["unlearned"]["average_gap"] is cell["unlearned"]["js_to_retrained"] is None
    assert cell["unlearned"]["forget_accuracy"] < cell["original"]["forget_accuracy"]
    assert not (tmp_path / "out/references").exists()
    assert " of " not in lines[-1]
    (original, row) = methods_table(content["cells"], "").rows  # no row of a retrained model
    assert original[6] == row[6] == "–"
    assert BEST not in "".join(row)
    with pytest.raises(RequestError, match="no models are retrained"):
        run_bench(bench_of(digits, BenchMethod("retrain", Retrain()), retrained=False, seeds=(0, 1)), tmp_path / "no")


def test_a_seed_that_has_just_begun_does_not_unrank_methods(ran: Ran) -> None:
    cells = [cell for cell in cells_of(ran.content, kind="class") if cell["method"] != HOSTILE]

    def without(*names: str) -> list[dict[str, Any]]:
        gone = [c for c in cells if c["seed"] == 1 and c["method"] in names]
        left = {name: cells[0][name] for name in ("task", "kind")}
        return [left | {"method": c["method"], "seed": 1, "missing": True} if c in gone else c for c in cells]

    def marks(cells: list[dict[str, Any]]) -> dict[str, str]:
        return rank_column(cells, AVERAGE_GAP).marks()

    of_all = marks(cells)
    assert list(of_all.values()) == [BEST]
    begun = marks(without("fine-tune", "DELETE", "retrain"))
    assert begun == marks([cell for cell in cells if cell["seed"] == 0])
    late = marks(without("DELETE"))
    assert late == marks([cell for cell in cells if cell["method"] != "DELETE"])
    assert marks(without(*of_all)).keys() != of_all.keys()  # the best has no second cell


def test_a_method_that_cannot_serve_a_request_is_refused_before_anything_runs(
    digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "fit", pytest.fail)
    original = start(0)
    tasks = (request_task(famr.Request(classes=["3"])), samples_task(digits, 0.1))
    for method, reason, changes in (
        (quick(BoundaryShrink()), "boundary shrink cannot serve 10 % of the samples", {"tasks": tasks}),
        (BenchMethod("retrain", Retrain()), "this very model", {}),
        (BenchMethod("SISA", SisaRemoval()), "trained in shards", {"original": original}),
    ):
        with pytest.raises(RequestError, match=reason):
            run_bench(bench_of(digits, quick(FineTune()), method, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for name, value in (
        ("precision", "half"),
        ("seeds", ()),
        ("seeds", (0, 0)),
        ("trials", 0),
        ("tasks", ()),
        ("seconds", 0),
    ):
        with pytest.raises(RequestError, match=f"`{name}` must be"):
            bench_of(digits, quick(FineTune()), **{name: value})
    with pytest.raises(RequestError, match="one seed"):
        bench_of(digits, quick(FineTune()), original=original, seeds=(0, 1))


def test_results_folder_refuses_other_content(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/COMPLETE.json").write_text("{}", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/precious.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(RequestError, match="something else"):
        ResultsFolder(tmp_path / "other", {})
    with pytest.raises(RequestError, match="inside a finished run"):
        ResultsFolder(tmp_path / "run/bench", {})
    records = ResultsFolder(tmp_path / "bench", {})
    records.plan({}, {}, [], {})
    records.save_plan()
    records.save_cell("cells", CellKey("a", "b", 0), {"x": 1})
    next((tmp_path / "bench/cells").iterdir()).write_text("{", encoding="utf-8")
    with pytest.raises(FamrError, match="damaged"):
        records.get("cells", CellKey("a", "b", 0))


def test_a_damaged_reference_is_not_loaded(ran: Ran, tmp_path: Path) -> None:
    file = next((ran.folder / "references").iterdir())
    torn = tmp_path / file.name
    torn.write_bytes(file.read_bytes()[:-100])
    assert BenchReference.load(torn, {}) is None
    assert BenchReference.load(tmp_path / "none", {}) is None
    assert BenchReference.load(file, {"another": "request"}) is None


def test_models_trained_by_another_bench_are_reused(
    ran: Ran, digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("originals", "references"):
        shutil.copytree(ran.folder / part, tmp_path / "out" / part)
    monkeypatch.setattr(running, "fit", pytest.fail)
    monkeypatch.setattr(Retrain, "unlearn", pytest.fail)
    content = run_bench(bench_of(digits, quick(Delete())), tmp_path / "out", lambda _line: None)
    (before,) = cells_of(ran.content, method="DELETE", task="class 3", seed=0)
    assert content["cells"][0]["original_sha256"] == before["original_sha256"]
    assert content["cells"][0]["retrained"] == before["retrained"]


def test_originals_trained_more_than_once_are_reported(ran: Ran) -> None:
    content = json.loads(json.dumps(ran.content))
    assert "trained more than once" not in as_markdown(results_page(content))
    cells_of(content, method="fine-tune", seed=1)[0]["original_sha256"] = "0" * 64
    assert "The original of seed 1 was trained more than once" in as_html(results_page(content))


# on the command line


def test_all_methods_means_those_that_can_serve_the_request(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = (quick(Delete()), quick(FineTune()))
    monkeypatch.setattr(methods, "bench_methods", lambda: both)
    common = ["bench", "methods", "--data", "digits", "--start", VIT, "--from-scratch", "--class", "3"]
    common += [f"--model-arg={name}={value}" for name, value in SMALL_VIT.items()]
    common += ["--samples-share", "0.1", "--trials", 1, "--epochs", 1, "--no-augment", "--device", "cpu"]
    done = run(*common, "--output", tmp_path / "bench")
    assert done.code == 0, done.err
    printed = done.out + done.err
    assert printed.index("not served: DELETE · 10 % of the samples") < printed.index("training the original")
    content = json.loads((tmp_path / "bench/results.json").read_text(encoding="utf-8"))
    ran = [(cell["method"], cell["task"][:5]) for cell in content["cells"]]
    assert ran == [("DELETE", "class"), ("fine-tune", "class"), ("fine-tune", "10 % ")]
    assert len(content["not_served"]) == 1
    assert run(*common, "--methods", "delete,fine-tune", "--output", tmp_path / "named").code == 2


def test_the_command_runs_a_trained_model(run: Callable[..., Any], digits: Data, tmp_path: Path) -> None:
    blank = famr.new_model(VIT, digits.labels, from_scratch=True, arguments=SMALL_VIT)
    trained = famr.fit(blank, digits.train, replace(TRAINING, epochs=1), device="cpu").save(tmp_path / "original")
    common = ["bench", "methods", "--data", "digits", "--model", trained, "--start", "scratch", "--class", "3"]
    out = tmp_path / "bench"
    refused = run(*common, "--samples-share", "0.1", "--methods", "delete,ssd", "--trials", 1, "--output", out)
    assert refused.code == 2
    assert "DELETE cannot serve 10 % of the samples" in refused.err
    assert not out.exists()
    done = run(*common, "--methods", "delete,ssd", "--trials", 1, "--device", "cpu", "--output", out, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["cells"], report["failed"]) == (2, 0)
    assert "Smallest Avg. Gap" in report["first"][0]
    assert {path.name for path in out.glob("results.*")} == {"results.json", "results.md", "results.html"}
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert content["settings"]["training"]["epochs"] == 1  # as the run's record says
    assert run("bench", "methods", "--data", "digits", "--class", "3", "--output", out).code == 2  # without --start
    assert run(*common, "--methods", "nonsense", "--output", out).code == 2
    fresh = ["bench", "methods", "--data", "digits", "--class", "3", "--methods", "ssd", "--output", tmp_path / "fresh"]
    assert run(*fresh, "--start", "timm:no_such_network", "--from-scratch").code == 2
    assert run(*fresh, "--start", VIT, "--weights", tmp_path / "none.safetensors").code == 4
    assert run(*fresh, "--start", VIT, "--from-scratch", "--random-classes", -1).code == 2
    assert not (tmp_path / "fresh").exists()
