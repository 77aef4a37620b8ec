"""The bench at work: train what is missing, run what is missing, keep every cell as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from famr.alternatives import Alternative, Retrain, SisaRemoval
from famr.bench.cells import Case
from famr.bench.contenders import Contender, file_stem
from famr.bench.looks import Views, apart, look
from famr.bench.records import Key, Records, as_json, write_whole
from famr.bench.references import Reference
from famr.bench.setting import Bench, require_served, splits_of
from famr.bench.tables import results_page
from famr.bench.tasks import Task, tuned_on
from famr.bench.tuning import best_trial, variants
from famr.models import Classifier
from famr.models.weights import load_weights, read_weights, save_weights
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs import environment, whole_file
from famr.sisa import train_sisa
from famr.splits import Splits
from famr.train import fit

Say = Callable[[str], None]


def run_bench(bench: Bench, folder: Path, say: Say = print) -> dict[str, Any]:
    """Run every cell that the folder does not hold yet; results.json, .md and .html are of all that it holds."""
    splits = splits_of(bench)
    unserved = require_served(bench, splits)
    bench.start(bench.seeds[0]).prepared_by()  # a start that cannot be loaded must not leave a folder behind
    records = Records(folder, bench.settings())
    keys = [key for key in bench.cells() if (key.method, key.task) not in unserved]
    methods = {contender.name: contender.method.to_json() for contender in bench.contenders}
    not_served = {f"{method} · {task}": reason for (method, task), reason in unserved.items()}
    records.content["environment"] = environment(str(bench.place))
    records.plan(methods, {task.label: dict(task.facts) for task in bench.tasks}, keys, not_served)
    work = _Work(bench, records, splits, say)
    try:
        work.cells(keys)
    finally:  # also what was interrupted has a page, with the missing cells named
        content = results(records)
        page = results_page(content)
        write_whole(folder / "results.json", as_json(content))
        write_whole(folder / "results.md", as_markdown(page))
        write_whole(folder / "results.html", as_html(page))
    return content


def results(records: Records) -> dict[str, Any]:
    """All that a folder holds, as one object: planned cells in their order, a missing one as a key alone."""
    cells = []
    for method, task, seed in records.content["planned"]:
        key = Key(method, task, seed)
        cells.append(records.get("cells", key) or {"method": method, "task": task, "seed": seed, "missing": True})
    return {"benchmark": "methods", **records.content, "tuning": records.all("tuning"), "cells": cells}


class _Work:
    """What is shared between cells: originals, references, splits, ensembles."""

    def __init__(self, bench: Bench, records: Records, splits: Mapping[str, Splits], say: Say) -> None:
        self.bench, self.records, self.splits, self.say = bench, records, splits, say
        self.device = bench.place
        self._original: tuple[int, Classifier, str] | None = None
        self._ensemble: tuple[int, SisaRemoval] | None = None
        self._case: Case | None = None
        self._tuned: dict[tuple[str, str], Alternative] = {}

    def cells(self, keys: list[Key]) -> None:
        """Run what is missing, case by case."""
        tasks = {task.label: task for task in self.bench.tasks}
        by_name = {contender.name: contender for contender in self.bench.contenders}
        missing = [key for key in keys if not self._done(key)]
        self.say(f"{len(keys) - len(missing)} of {len(keys)} cells are there, {len(missing)} to run")
        for key in missing:  # all tuning first: going to and fro between requests would load images again and again
            self.tuned(by_name[key.method], tasks[key.task])
        for done, key in enumerate(missing, start=1):
            contender, task = by_name[key.method], tasks[key.task]
            method = self.tuned(contender, task)
            case = self.case(task, key.seed)
            if contender.retrains:
                other = self.reference(task, self._next(key.seed))
                cell = case.retrained_again(key.method, other, Retrain(self.bench.training).to_json())
            else:
                cell = case.cell(key.method, self.ready(method, key.seed))
            self.records.keep("cells", key, cell)
            self.say(f"[{done}/{len(missing)}] {line(cell)}")

    def _done(self, key: Key) -> bool:
        cell = self.records.get("cells", key)
        return cell is not None and not ("error" in cell and self.bench.retry_failed)

    def _next(self, seed: int) -> int:
        seeds = self.bench.seeds
        return seeds[(seeds.index(seed) + 1) % len(seeds)]

    def ready(self, method: Alternative, seed: int) -> Alternative:
        """SISA gets the ensemble that it needs; the others are as they are."""
        if not isinstance(method, SisaRemoval):
            return method
        if self._ensemble is None or self._ensemble[0] != seed:
            bench = self.bench
            self.say(f"seed {seed}: training {bench.shards} shards for SISA")
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

    def tuned(self, contender: Contender, task: Task) -> Alternative:
        """The method with the numbers that did best on the tuning request of this kind."""
        kind = tuned_on(task)
        if (contender.name, kind) not in self._tuned:
            self._tuned[contender.name, kind] = self._tune(contender, kind)
        return self._tuned[contender.name, kind]

    def _tune(self, contender: Contender, kind: str) -> Alternative:
        bench = self.bench
        other = next((task for task in bench.tuning if tuned_on(task) == kind), None)
        if other is None or not bench.tunes(contender):
            return contender.method
        tried = variants(contender.method, bench.trials)
        runs = []
        for trial, variant in enumerate(tried):
            key = Key(contender.name, other.label, bench.tuning_seed, trial)
            run = self.records.get("tuning", key)
            if run is None:
                run = self.case(other, bench.tuning_seed).cell(contender.name, variant) | {"trial": trial}
                self.records.keep("tuning", key, run)
                self.say(f"tuning, trial {trial + 1} of {len(tried)}: {line(run)}")
            runs.append(run)
        best = best_trial(runs)
        return contender.method if best is None else tried[best]

    def case(self, task: Task, seed: int) -> Case:
        """A request with its original and its reference; kept until another one is asked for."""
        if self._case is None or (self._case.task.label, self._case.seed) != (task.label, seed):
            bench = self.bench
            original, digest = self.original(seed)
            seen, scored = apart(self.splits[task.label])
            views = Views.of(scored, original.prepared_by(), self.device)
            reference = self.reference(task, seed, views)
            said = look(original, views, self.device, bench.precise)
            self._case = Case(
                task,
                seed,
                original,
                digest,
                seen,
                views,
                said,
                reference,
                len(bench.data.train),
                self.device,
                bench.precise,
            )
        return self._case

    def original(self, seed: int) -> tuple[Classifier, str]:
        """The model that is to forget, and the digest of its weights: given, trained before, or trained now."""
        if self._original is None or self._original[0] != seed:
            model = self.bench.original or self._trained_original(seed)
            self._original = seed, model, model.digest()
        return self._original[1:]

    def _trained_original(self, seed: int) -> Classifier:
        bench, file = self.bench, self.records.folder / f"originals/seed-{seed}.safetensors"
        start = bench.start(seed)
        if file.is_file():
            load_weights(start.module, read_weights(file), file.name)
            start.module.eval()
            return start
        self.say(f"seed {seed}: training the original on {len(bench.data.train)} images")
        trained = fit(start, bench.data.train, bench.training, seed=seed, device=str(self.device))
        self.say(f"seed {seed}: trained in {trained.seconds:.1f} s")
        with whole_file(file) as staging:
            save_weights(trained.model.module, staging)
        return trained.model

    def reference(self, task: Task, seed: int, views: Views | None = None) -> Reference:
        """The same training without the forget set, by its answers."""
        bench = self.bench
        file = self.records.folder / f"references/{file_stem(task.label, seed)}.safetensors"
        facts = {"task": dict(task.facts), "seed": seed, "precision": bench.precise}
        if (known := Reference.load(file, facts)) is not None:
            return known
        self.say(f"seed {seed}: retraining without {task.label}")
        splits = self.splits[task.label]
        start = bench.start(seed)
        made = Retrain(bench.training, lambda _seed: start).unlearn(
            start, splits, seed=seed, device=str(self.device), precision=bench.training.precision
        )
        if views is None:
            views = Views.of(apart(splits)[1], start.prepared_by(), self.device)
        said = look(made.model, views, self.device, bench.precise)
        found = Reference(said, made.seconds, made.image_passes, made.peak_memory)
        found.save(file, facts)
        self.say(f"seed {seed}: retrained in {made.seconds:.1f} s")
        return found


def line(cell: Mapping[str, Any]) -> str:
    """A cell in one line."""
    head = f"{cell['method']}, {cell['task']}, seed {cell['seed']}: "
    if "error" in cell:
        return head + f"failed: {cell['error']['kind']}: {cell['error']['what']}"
    found, truth = cell["unlearned"], cell["retrained"]
    return head + (
        f"Ret {100 * found['retain_accuracy']:.1f} of {100 * truth['retain_accuracy']:.1f}, "
        f"For {100 * found['forget_accuracy']:.1f} of {100 * truth['forget_accuracy']:.1f}, "
        f"Avg. Gap {found['average_gap']:.4f}, JS {found['js_to_retrained']:.3f}, {cell['seconds']:.2f} s"
    )
