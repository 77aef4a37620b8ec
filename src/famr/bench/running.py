"""A bench at work: train the models that are missing, run the cells that are missing, save every cell at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from famr.baselines import Baseline, FamrMethod, Retrain, SisaRemoval
from famr.bench.cells import Case, progress_line
from famr.bench.gate import choose_trial, mean_figures
from famr.bench.limit import Costs, Fitted, fit_into, longest_seconds
from famr.bench.methods import BenchMethod, file_stem
from famr.bench.plan import Bench, require_served
from famr.bench.references import BenchReference
from famr.bench.results import CellKey, ResultsFolder, json_text, write_atomic
from famr.bench.scoring import ScoredBatches, calibration_and_scored, predict_scored
from famr.bench.spreading import Spread, divide_work
from famr.bench.tables import results_page
from famr.bench.tasks import Task
from famr.bench.trial_case import TrialCase, trial_line
from famr.data.loaders import evaluation_batches
from famr.data.splits import Splits
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import on_device, predict_batches
from famr.models import Classifier
from famr.models.weights import load_weights, read_weights, save_weights
from famr.proxies.recipe import ALL_LAYERS, LATE_SHARE, ProxyRecipe
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import atomic_file, environment
from famr.sisa.ensemble import train_sisa
from famr.training import fit

Log = Callable[[str], None]
OURS = BenchMethod(FamrMethod.name, FamrMethod())
"""The method whose seconds are the limit of the others."""


def run_bench(bench: Bench, path: Path, log: Log = print, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Run every cell that the folder does not hold; write results.json, .md and .html of all that it holds.

    Args:
        bench: What to run.
        path: The folder. Several ranks share the work in this one folder, each on its own device.
        log: Takes lines of progress.
        ranks: The processes that share the work.

    Returns:
        The content of results.json.

    Raises:
        RequestError: A method cannot serve a request, or the folder holds something else.
    """
    with ranks.fail_together():
        if ranks.size > 1:
            bench = replace(bench, device=str(ranks.device(bench.device)))
        splits = bench.split_tasks()
        unserved = require_served(bench, splits)
        start = bench.start(bench.seeds[0])
        start.require_preprocessing()  # a start that cannot be loaded must not leave a folder behind
        folder = ResultsFolder(path, bench.settings())
        keys = [key for key in bench.cells() if (key.method, key.task) not in unserved]
        numbers = {method.name: method.method.to_json() for method in bench.methods}
        not_served = {f"{method} · {task}": reason for (method, task), reason in unserved.items()}
        folder.content["environment"] = environment(str(bench.torch_device))
        folder.plan(numbers, {task.label: dict(task.facts) for task in bench.tasks}, keys, not_served)
    if ranks.size > 1:
        folder.content["environment"] |= {"device": bench.torch_device.type, "processes": ranks.size}
        ranks.agree(shared_facts(bench, folder, start))
    with ranks.fail_together():
        if ranks.first:
            folder.save_plan()
            for pair, reason in not_served.items():
                log(f"not served: {pair}: {reason}")
    with ranks.fail_together():
        folder.require_saved()
    with divide_work(ranks) as work:
        try:
            _BenchRun(bench, folder, splits, log, work, {bench.seeds[0]: start}).run(keys)
        finally:  # an interrupted bench has a page too, which names the missing cells
            content = folder.results()
            if ranks.first:
                page = results_page(content)
                write_atomic(path / "results.json", json_text(content))
                write_atomic(path / "results.md", as_markdown(page))
                write_atomic(path / "results.html", as_html(page))
    return content


def shared_facts(bench: Bench, folder: ResultsFolder, start: Classifier) -> dict[str, Any]:
    """What must be the same on every rank.

    Args:
        bench: What is to run.
        folder: Its folder.
        start: What training starts from.

    Returns:
        Plain values by the name under which an error calls them.
    """
    planned = {name: value for name, value in folder.content.items() if name != "environment"}
    sets = [images for images in (bench.data.train, bench.data.test) if images is not None]
    return {
        "the bench and what its folder holds": planned,
        "the machine and the versions": folder.content["environment"],
        "the weights that training starts from": start.digest(),
        "the images": [[list(images.ids), images.targets.tolist()] for images in sets],
    }


class _Planned(NamedTuple):
    """A cell that is to be run."""

    key: CellKey
    method: BenchMethod
    task: Task


class _Variant(NamedTuple):
    """Numbers of a method that are tried for a kind of request; the key has their place among its trials."""

    key: CellKey
    method: BenchMethod
    kind: str
    variant: Baseline


class _Trial(NamedTuple):
    """A variant on one tuning request. The variant is cut to the limit when the trial is run."""

    key: CellKey
    task: Task
    variant: _Variant


class _BenchRun:
    """A bench with what its cells share: originals, references, splits, ensembles.

    Args:
        bench: What to run.
        folder: Where cells are saved.
        splits: The sets of every task, by label.
        log: Takes lines of progress.
        work: Divides the work among the processes.
        starts: What training starts from, by seed, as far as it was made already.
    """

    def __init__(
        self,
        bench: Bench,
        folder: ResultsFolder,
        splits: Mapping[str, Splits],
        log: Log,
        work: Spread,
        starts: Mapping[int, Classifier] | None = None,
    ) -> None:
        self.bench, self.folder, self.splits, self.log, self.work = bench, folder, splits, log, work
        self.device = bench.torch_device
        self._starts = dict(starts or {})
        self._has_run: set[str] = set()
        self._original: tuple[int, Classifier, str] | None = None
        self._ensemble: tuple[int, SisaRemoval] | None = None
        self._cases: dict[tuple[str, int], Case] = {}
        self._trial_cases: dict[tuple[str, int], TrialCase] = {}
        self._costs: dict[str, Costs] = {}
        self._tuned: dict[tuple[str, str], Baseline] = {}

    def run(self, keys: list[CellKey]) -> None:
        """Run the missing cells in the order of the plan, each method tuned before its first cell."""
        missing = [self.planned(key) for key in keys if not self._is_done(key)]
        kinds = {(planned.method.name, planned.task.tuning_kind): planned.method for planned in missing}
        ours = [trial for kind in dict.fromkeys(kind for _, kind in kinds) for trial in self.our_runs(kind)]
        variants = [variant for (_, kind), method in kinds.items() for variant in self.variants(method, kind)]
        trials = [
            trial for variant in variants if self.chosen_by_trials(variant.method) for trial in self.trials(variant)
        ]
        needed = self._needed(missing, bool(ours or trials))
        if missing and self.device.type == "cuda":
            sisa = any(isinstance(planned.method.method, SisaRemoval) for planned in missing)
            self.warm_up(trains=sisa or not all(self._file(*model).is_file() for model in needed))
        self.log(f"{len(keys) - len(missing)} of {len(keys)} cells are there, {len(missing)} to run")
        if self.work.ranks.size > 1:  # a single process makes and tunes what a cell needs when it comes to it
            for seed, task in self.work.divided(needed):
                if task is None:
                    self.original(seed)
                else:
                    self.reference(task, seed)
            for trial in self.work.divided([trial for trial in ours if self.folder.get("tuning", trial.key) is None]):
                self.run_trial(trial)
            for variant in self.work.divided([v for v in variants if self.folder.get("limits", v.key) is None]):
                self.fitted(variant)
            for trial in self.work.divided([t for t in trials if self.folder.get("tuning", t.key) is None]):
                self.run_trial(trial)
        numbers = {planned.key: number for number, planned in enumerate(missing, start=1)}
        for piece in self.work.divided(self._pieces(missing)):
            for planned in piece:
                cell = self.run_cell(planned)
                self.folder.save_cell("cells", planned.key, cell)
                self.log(f"[{numbers[planned.key]}/{len(missing)}] {progress_line(cell)}")

    def warm_up(self, trains: bool = True) -> None:
        """An evaluation pass, a step as methods take it and one as training does: what a process does once is in no
        method's seconds."""
        training, start = replace(self.bench.training, epochs=1), self.start(self.bench.seeds[0])
        images = self.bench.data.train.take(torch.arange(min(training.batch_size, len(self.bench.data.train))))
        with on_device(start.module, self.device):  # first: it sets a state of torch that compiled networks depend on
            batches = evaluation_batches(images, start.require_preprocessing(), self.device)
            predict_batches(start, batches(None), self.device, self.bench.run_precision)
        for compiled in sorted({False, self.bench.compiles and trains}):
            fit(start, images, replace(training, compile=compiled), device=str(self.device))

    def run_untimed(self, method: BenchMethod, variant: Baseline) -> None:
        """On a GPU, run a method once before it is timed, on a tuning request; not one that was tuned in this process.
        Where nothing is tuned, methods are timed as they come."""
        if self.device.type != "cuda" or method.name in self._has_run or not self.bench.tunes:
            return
        self._has_run.add(method.name)
        task = next((task for task in self.bench.tuning if variant.refusal(task.request.kind) is None), None)
        if task is not None and not isinstance(variant, SisaRemoval):  # it trains, and first steps matter little there
            prepared = self._with_recipe(variant, self.bench.tuning_seed)
            self.trial_case(task, self.bench.tuning_seed).run(method.name, prepared)

    def planned(self, key: CellKey) -> _Planned:
        """A cell with its method and task."""
        method = next(method for method in self.bench.methods if method.name == key.method)
        return _Planned(key, method, next(task for task in self.bench.tasks if task.label == key.task))

    def _needed(self, missing: Sequence[_Planned], tunes: bool) -> list[tuple[int, Task | None]]:
        """Originals (without a task) and references that the cells and the tuning need, each once."""
        pairs = []
        for key, method, task in missing:
            pairs.append((key.seed, task))
            if method.retrains:
                pairs.append((self._next_seed(key.seed), task))
        of_tuning = [self.bench.tuning_seed] if tunes else []
        seeds = dict.fromkeys([*of_tuning, *(seed for seed, _ in pairs)]) if self.bench.original is None else ()
        references = {(seed, task.label): (seed, task) for seed, task in pairs} if self.bench.retrained else {}
        return [*((seed, None) for seed in seeds), *references.values()]

    def _file(self, seed: int, task: Task | None) -> Path:
        """The file of an original, or of the reference of a task."""
        if task is None:
            return self.folder.path / f"originals/seed-{seed}.safetensors"
        return self.folder.path / f"references/{file_stem(task.label, seed)}.safetensors"

    def _pieces(self, missing: Sequence[_Planned]) -> list[list[_Planned]]:
        """Cells one by one; with several ranks, all cells of one SISA ensemble go to the rank that trains it."""
        if self.work.ranks.size == 1:
            return [[planned] for planned in missing]
        ensembles: dict[int, list[_Planned]] = {}
        single = []
        for planned in missing:
            if isinstance(planned.method.method, SisaRemoval):
                ensembles.setdefault(planned.key.seed, []).append(planned)
            else:
                single.append([planned])
        return [*ensembles.values(), *single]

    def run_cell(self, planned: _Planned) -> dict[str, Any]:
        """Run one cell."""
        key, method, task = planned
        if method.retrains:
            other, numbers = self.reference(task, self._next_seed(key.seed)), Retrain(self.bench.training).to_json()
            return self.case(task, key.seed).retrained_cell(key.method, other, numbers)
        variant = self.tuned(method, task)
        self.run_untimed(method, variant)
        return self.case(task, key.seed).cell(
            key.method, self._with_ensemble(self._with_recipe(variant, key.seed), key.seed)
        )

    def _is_done(self, key: CellKey) -> bool:
        cell = self.folder.get("cells", key)
        return cell is not None and not ("error" in cell and self.bench.retry_failed)

    def _next_seed(self, seed: int) -> int:
        seeds = self.bench.seeds
        return seeds[(seeds.index(seed) + 1) % len(seeds)]

    def _with_recipe(self, method: Baseline, seed: int) -> Baseline:
        """FAMR with how originals are trained here, for its proxy."""
        if not isinstance(method, FamrMethod) or method.recipe is not None:
            return method
        share = ALL_LAYERS if self.bench.fine_tuned else LATE_SHARE
        source = "the bench's training"
        recipe = ProxyRecipe(self.bench.training, self.start(seed), late_share=share, source=source)
        return replace(method, recipe=recipe)

    def _with_ensemble(self, method: Baseline, seed: int) -> Baseline:
        """SISA with the ensemble that it needs; other methods as they are."""
        if not isinstance(method, SisaRemoval):
            return method
        if self._ensemble is None or self._ensemble[0] != seed:
            bench = self.bench
            self.log(f"seed {seed}: training {bench.shards} shards for SISA")
            sisa = train_sisa(
                bench.start,
                bench.data.train,
                shards=bench.shards,
                slices=1,
                training=bench.training,
                seed=seed,
                device=str(self.device),
            )
            self._ensemble = seed, replace(method, sisa=sisa)
        return self._ensemble[1]

    def tuned(self, method: BenchMethod, task: Task) -> Baseline:
        """The method with the numbers that the gate chooses on the tuning requests of this kind, within the limit."""
        kind = task.tuning_kind
        if (method.name, kind) not in self._tuned:
            variants, best = self.variants(method, kind), None
            if self.chosen_by_trials(method):
                figures = [mean_figures([self.run_trial(t) for t in self.trials(each)]) for each in variants]
                best = choose_trial(kind, figures, len(self.bench.data.labels))
            self._tuned[method.name, kind] = self.fitted(variants[best or 0]).method
        return self._tuned[method.name, kind]

    def chosen_by_trials(self, method: BenchMethod) -> bool:
        """Whether there is anything to choose among a method's variants."""
        return self.bench.tunes and len(self.bench.variants(method)) > 1

    def variants(self, method: BenchMethod, kind: str) -> list[_Variant]:
        """What is tried of a method for a kind of request, its own numbers first."""
        seed = self.bench.tuning_seed
        every = self.bench.variants(method)
        return [_Variant(CellKey(method.name, kind, seed, n), method, kind, each) for n, each in enumerate(every)]

    def trials(self, variant: _Variant) -> list[_Trial]:
        """A variant on each tuning request of its kind."""
        return [
            _Trial(variant.key._replace(task=task.label), task, variant) for task in self.bench.tuning_of(variant.kind)
        ]

    def our_runs(self, kind: str) -> list[_Trial]:
        """The runs whose seconds are the limit for a kind of request; none where a limit is given or nothing tuned."""
        if self.bench.seconds is not None or not self.bench.tunes:
            return []
        ours = next((method for method in self.bench.methods if method.name == OURS.name), OURS)
        return self.trials(_Variant(CellKey(OURS.name, kind, self.bench.tuning_seed, 0), ours, kind, ours.method))

    def limit(self, kind: str) -> float | None:
        """The limit in seconds for a kind of request; None: there is none."""
        if self.bench.seconds is not None:
            return self.bench.seconds
        return longest_seconds([self.run_trial(trial) for trial in self.our_runs(kind)])

    def fitted(self, variant: _Variant) -> Fitted:
        """A variant cut to the limit. The seconds of its steps are measured once and kept: every run of it takes the
        same number of steps."""
        method = variant.variant
        if isinstance(method, (FamrMethod, Retrain, SisaRemoval)) or (limit := self.limit(variant.kind)) is None:
            return Fitted(method, {})
        record = self.folder.get("limits", variant.key)
        if record is None:
            task = self._probed_task(variant)
            case = self.trial_case(task, self.bench.tuning_seed)
            costs = self._costs.setdefault(variant.kind, {})
            fitted = fit_into(method, limit, lambda short: case.run(variant.method.name, short), costs)
            facts = {"method": variant.method.name, "kind": variant.kind, "trial": variant.key.trial}
            self.folder.save_cell("limits", variant.key, facts | fitted.record)
            return fitted
        if "steps" not in record:
            return Fitted(method, record)
        return Fitted(method.shortened(int(record["steps"]), int(record["planned"])), record)

    def _probed_task(self, variant: _Variant) -> Task:
        """The request on which seconds are measured: a tuning request, or the first one where nothing is tuned."""
        tasks = (*self.bench.tuning_of(variant.kind), *self.bench.tasks)
        return next(task for task in tasks if task.tuning_kind == variant.kind)

    def run_trial(self, trial: _Trial) -> dict[str, Any]:
        """A trial's record, run now if it is not there."""
        key = trial.key
        run = self.folder.get("tuning", key)
        if run is None:
            method = self.fitted(trial.variant).method
            if isinstance(method, FamrMethod):  # its seconds are a limit
                self.run_untimed(trial.variant.method, method)
            self._has_run.add(key.method)
            prepared = self._with_recipe(method, key.seed)
            run = self.trial_case(trial.task, key.seed).run(key.method, prepared) | {"trial": key.trial}
            self.folder.save_cell("tuning", key, run)
            self.log(f"tuning, trial {(key.trial or 0) + 1}: {trial_line(run)}")
        return run

    def trial_case(self, task: Task, seed: int) -> TrialCase:
        """A tuning request with its original; kept, as trials alternate between the requests."""
        if (task.label, seed) not in self._trial_cases:
            original, digest = self.original(seed)
            self._trial_cases[task.label, seed] = TrialCase(
                task=task,
                seed=seed,
                original=original,
                original_digest=digest,
                splits=calibration_and_scored(self.splits[task.label])[0],
                device=self.device,
                precision=self.bench.run_precision,
            )
        return self._trial_cases[task.label, seed]

    def case(self, task: Task, seed: int) -> Case:
        """A request with its original and its reference; the last one is kept."""
        if (task.label, seed) not in self._cases:
            bench = self.bench
            original, digest = self.original(seed)
            batches = self._scored_batches(task, original)
            reference = self.reference(task, seed, batches) if bench.retrained else None
            case = Case(
                task=task,
                seed=seed,
                original=original,
                original_digest=digest,
                splits=calibration_and_scored(self.splits[task.label])[0],
                batches=batches,
                original_predictions=predict_scored(original, batches, self.device, bench.run_precision),
                reference=reference,
                train_images=len(bench.data.train),
                device=self.device,
                precision=bench.run_precision,
            )
            self._cases = {(task.label, seed): case}
        return self._cases[task.label, seed]

    def _scored_batches(self, task: Task, model: Classifier) -> ScoredBatches:
        scored = calibration_and_scored(self.splits[task.label])[1]
        return ScoredBatches.of(scored, model.require_preprocessing(), self.device)

    def start(self, seed: int) -> Classifier:
        """What training starts from. Drawing the weights of a large network takes seconds, so it is kept."""
        if seed not in self._starts:
            self._starts = {seed: self.bench.start(seed)}
        return self._starts[seed]

    def original(self, seed: int) -> tuple[Classifier, str]:
        """The model that is to forget, and the digest of its weights: given, trained before, or trained now."""
        if self._original is None or self._original[0] != seed:
            model = self.bench.original or self._trained_original(seed)
            self._original = seed, model, model.digest()
        return self._original[1:]

    def _trained_original(self, seed: int) -> Classifier:
        bench, file = self.bench, self._file(seed, None)
        start = self.start(seed)
        if file.is_file():
            model = start.copy()
            load_weights(model.module, read_weights(file), file.name)
            model.module.eval()
            return model
        self.log(f"seed {seed}: training the original on {len(bench.data.train)} images")
        trained = fit(start, bench.data.train, bench.training, seed=seed, device=str(self.device))
        self.log(f"seed {seed}: trained in {trained.seconds:.1f} s")
        with atomic_file(file) as staging:
            save_weights(trained.model.module, staging)
        return trained.model

    def reference(self, task: Task, seed: int, batches: ScoredBatches | None = None) -> BenchReference:
        """The same training without the forget set: kept from before, or trained now."""
        bench, file = self.bench, self._file(seed, task)
        facts = {"task": dict(task.facts), "seed": seed, "precision": bench.run_precision}
        if (stored := BenchReference.load(file, facts)) is not None:
            return stored
        self.log(f"seed {seed}: retraining without {task.label}")
        start = self.start(seed)
        outcome = Retrain(bench.training, lambda _seed: start).unlearn(
            start, self.splits[task.label], seed=seed, device=str(self.device), precision=bench.training.precision
        )
        batches = batches or self._scored_batches(task, start)
        predictions = predict_scored(outcome.model, batches, self.device, bench.run_precision)
        reference = BenchReference(predictions, outcome.seconds, outcome.image_passes, outcome.peak_memory)
        reference.save(file, facts)
        self.log(f"seed {seed}: retrained in {outcome.seconds:.1f} s")
        return reference
