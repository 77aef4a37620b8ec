"""The bench at work: train what is missing, run what is missing, keep every cell as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from famr.baselines import Baseline as Alternative
from famr.baselines import Retrain, SisaRemoval
from famr.bench.cells import Case, in_a_line
from famr.bench.contenders import Contender, file_stem
from famr.bench.looks import TUNING_SCORED, Views, apart, look
from famr.bench.records import Key, Records, as_json, results, write_whole
from famr.bench.references import Reference
from famr.bench.setting import Bench, require_served, splits_of
from famr.bench.spreading import Spread, spread
from famr.bench.tables import results_page
from famr.bench.tasks import Task, tuned_on
from famr.bench.tuning import best_trial, within
from famr.data.loaders import evaluation_batches
from famr.data.splits import Splits
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import on_device, predict_batches
from famr.models import Classifier
from famr.models.weights import load_weights, read_weights, save_weights
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import atomic_file, environment
from famr.sisa.ensemble import train_sisa
from famr.training import fit

Say = Callable[[str], None]


def run_bench(bench: Bench, folder: Path, say: Say = print, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Run every cell that the folder does not hold yet; results.json, .md and .html are of all that it holds.

    Several ranks share the work, each on its own device, and all of them in the one folder.
    """
    with ranks.together():
        if ranks.size > 1:
            bench = replace(bench, device=str(ranks.place(bench.device)))
        splits = splits_of(bench)
        unserved = require_served(bench, splits)
        start = bench.start(bench.seeds[0])
        start.require_preprocessing()  # a start that cannot be loaded must not leave a folder behind
        records = Records(folder, bench.settings())
        keys = [key for key in bench.cells() if (key.method, key.task) not in unserved]
        methods = {each.name: within(each.method, bench.most_epochs).to_json() for each in bench.contenders}
        not_served = {f"{method} · {task}": reason for (method, task), reason in unserved.items()}
        records.content["environment"] = environment(str(bench.place))
        records.plan(methods, {task.label: dict(task.facts) for task in bench.tasks}, keys, not_served)
    if ranks.size > 1:
        records.content["environment"] |= {"device": bench.place.type, "processes": ranks.size}
        ranks.agree(what_all_see(bench, records, start))
    with ranks.together():
        if ranks.first:
            records.write()
            for pair, reason in not_served.items():
                say(f"not served: {pair}: {reason}")
    with ranks.together():
        records.require_written()
    with spread(ranks) as work:
        try:
            _Work(bench, records, splits, say, work, {bench.seeds[0]: start}).cells(keys)
        finally:  # also what was interrupted has a page, with the missing cells named
            content = results(records)
            if ranks.first:
                page = results_page(content)
                write_whole(folder / "results.json", as_json(content))
                write_whole(folder / "results.md", as_markdown(page))
                write_whole(folder / "results.html", as_html(page))
    return content


def what_all_see(bench: Bench, records: Records, start: Classifier) -> dict[str, Any]:
    """What must be the same on every rank, by the name under which an error calls it."""
    planned = {name: value for name, value in records.content.items() if name != "environment"}
    sets = [images for images in (bench.data.train, bench.data.test) if images is not None]
    return {
        "the bench and what its folder holds": planned,
        "the machine and the versions": records.content["environment"],
        "the weights that training starts from": start.digest(),
        "the images": [[list(images.ids), images.targets.tolist()] for images in sets],
    }


class _Wanted(NamedTuple):
    """A cell that is not there."""

    key: Key
    contender: Contender
    task: Task


class _Trial(NamedTuple):
    """A method with the numbers of one trial."""

    key: Key
    task: Task
    contender: Contender
    method: Alternative
    of: int


class _Work:
    """What is shared between cells: originals, references, splits, ensembles."""

    def __init__(
        self,
        bench: Bench,
        records: Records,
        splits: Mapping[str, Splits],
        say: Say,
        shared: Spread,
        starts: Mapping[int, Classifier] | None = None,
    ) -> None:
        """`starts`: what training begins with, by seed, where somebody has made it already."""
        self.bench, self.records, self.splits, self.say, self.shared = bench, records, splits, say, shared
        self._starts = dict(starts or {})
        self._ran: set[str] = set()
        self.device = bench.place
        self._original: tuple[int, Classifier, str] | None = None
        self._ensemble: tuple[int, SisaRemoval] | None = None
        self._cases: dict[tuple[str, int], Case] = {}
        self._tuned: dict[tuple[str, str], Alternative] = {}

    def cells(self, keys: list[Key]) -> None:
        """Run what is missing in the order of the plan, each method tuned before its first cell."""
        missing = [self._wanted(key) for key in keys if not self._done(key)]
        every = [trial for _, contender, task in missing for trial in self.trials(contender, tuned_on(task))]
        trials = [trial for trial in {trial.key: trial for trial in every}.values() if not self._tried(trial)]
        needed = self._needed(missing, trials)
        if missing and self.device.type == "cuda":
            sisa = any(isinstance(wanted.contender.method, SisaRemoval) for wanted in missing)
            self.warm_up(trains=sisa or not all(self._kept(*each).is_file() for each in needed))
        self.say(f"{len(keys) - len(missing)} of {len(keys)} cells are there, {len(missing)} to run")
        if self.shared.ranks.size > 1:  # one rank makes and tunes what a cell needs when it comes to it
            for seed, task in self.shared.divided(needed):
                if task is None:
                    self.original(seed)
                else:
                    self.reference(task, seed)
            for trial in self.shared.divided(trials):
                self.attempt(trial)
        numbers = {wanted.key: number for number, wanted in enumerate(missing, start=1)}
        for piece in self.shared.divided(self._pieces(missing)):
            for wanted in piece:
                cell = self.scored(wanted)
                self.records.keep("cells", wanted.key, cell)
                self.say(f"[{numbers[wanted.key]}/{len(missing)}] {in_a_line(cell)}")

    def warm_up(self, trains: bool = True) -> None:
        """A look, a step as methods and one as trainings take it: what a process does once is in nobody's seconds."""
        training, start = replace(self.bench.training, epochs=1), self.start(self.bench.seeds[0])
        some = self.bench.data.train.take(torch.arange(min(training.batch_size, len(self.bench.data.train))))
        with on_device(start.module, self.device):  # first: it sets a state of torch that compiled networks depend on
            predict_batches(
                start,
                evaluation_batches(some, start.require_preprocessing(), self.device)(None),
                self.device,
                self.bench.precise,
            )
        for compiled in sorted({False, self.bench.compiles and trains}):
            fit(start, some, replace(training, compile=compiled), device=str(self.device))

    def run_untimed(self, contender: Contender, method: Alternative) -> None:
        """On a GPU every method has run in this process before it is timed: one that was not just tuned runs once on
        what methods are tuned on. Where nobody is tuned, all are timed as they come."""
        if self.device.type != "cuda" or contender.name in self._ran or not self.bench.tuning or self.bench.trials < 2:
            return
        self._ran.add(contender.name)
        task = next((task for task in self.bench.tuning if method.refusal(task.request.kind) is None), None)
        if task is not None and not isinstance(method, SisaRemoval):  # the first steps of a training matter little
            self.case(task, self.bench.tuning_seed).cell(contender.name, method)

    def _wanted(self, key: Key) -> _Wanted:
        contender = next(contender for contender in self.bench.contenders if contender.name == key.method)
        return _Wanted(key, contender, next(task for task in self.bench.tasks if task.label == key.task))

    def _needed(self, missing: Sequence[_Wanted], trials: Sequence[_Trial]) -> list[tuple[int, Task | None]]:
        """Originals (without a task) and references that are to be there before the cells, by seed; each once."""
        pairs = [(self.bench.tuning_seed, trial.task) for trial in trials]
        for key, contender, task in missing:
            pairs.append((key.seed, task))
            if contender.retrains:
                pairs.append((self._next(key.seed), task))
        seeds = () if self.bench.original is not None else dict.fromkeys(seed for seed, _ in pairs)
        references = {(seed, task.label): (seed, task) for seed, task in pairs} if self.bench.retrained else {}
        return [*((seed, None) for seed in seeds), *references.values()]

    def _kept(self, seed: int, task: Task | None) -> Path:
        """Where the original of a seed is kept, or the reference of a request."""
        if task is None:
            return self.records.folder / f"originals/seed-{seed}.safetensors"
        return self.records.folder / f"references/{file_stem(task.label, seed)}.safetensors"

    def _pieces(self, missing: Sequence[_Wanted]) -> list[list[_Wanted]]:
        """Cells one by one; but several ranks leave all that use one SISA ensemble to one of them, which trains it."""
        if self.shared.ranks.size == 1:
            return [[wanted] for wanted in missing]
        ensembles: dict[int, list[_Wanted]] = {}
        others = []
        for wanted in missing:
            if isinstance(wanted.contender.method, SisaRemoval):
                ensembles.setdefault(wanted.key.seed, []).append(wanted)
            else:
                others.append([wanted])
        return [*ensembles.values(), *others]

    def scored(self, wanted: _Wanted) -> dict[str, Any]:
        """Run a cell."""
        key, contender, task = wanted
        if contender.retrains:
            other, numbers = self.reference(task, self._next(key.seed)), Retrain(self.bench.training).to_json()
            return self.case(task, key.seed).retrained_again(key.method, other, numbers)
        method = self.tuned(contender, task)
        self.run_untimed(contender, method)
        return self.case(task, key.seed).cell(key.method, self.ready(method, key.seed))

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
            trials = self.trials(contender, kind)
            best = best_trial([self.attempt(trial) for trial in trials])
            own = within(contender.method, self.bench.most_epochs)
            self._tuned[contender.name, kind] = own if best is None else trials[best].method
        return self._tuned[contender.name, kind]

    def trials(self, contender: Contender, kind: str) -> list[_Trial]:
        """What is tried of a method on the tuning request of a kind; nothing where there is nothing to choose."""
        bench = self.bench
        other = next((task for task in bench.tuning if tuned_on(task) == kind), None)
        tried = bench.variants(contender)
        if other is None or len(tried) < 2:
            return []
        keys = [Key(contender.name, other.label, bench.tuning_seed, trial) for trial in range(len(tried))]
        return [_Trial(key, other, contender, method, len(tried)) for key, method in zip(keys, tried, strict=True)]

    def _tried(self, trial: _Trial) -> bool:
        return self.records.get("tuning", trial.key) is not None

    def attempt(self, trial: _Trial) -> dict[str, Any]:
        """A trial's run, made now where it is not there."""
        key = trial.key
        run = self.records.get("tuning", key)
        if run is None:
            case = self.case(trial.task, key.seed)
            self._ran.add(trial.contender.name)
            run = case.cell(key.method, trial.method) | {"trial": key.trial}
            self.records.keep("tuning", key, run)
            self.say(f"tuning, trial {(key.trial or 0) + 1} of {trial.of}: {in_a_line(run)}")
        return run

    def case(self, task: Task, seed: int) -> Case:
        """A request with its original and its reference; the last two are kept, as tuning and scoring take turns."""
        if (task.label, seed) not in self._cases:
            bench = self.bench
            original, digest = self.original(seed)
            seen, _ = apart(self.splits[task.label])
            views = self._views(task, original)
            reference = self.reference(task, seed, views) if bench.retrained else None
            said = look(original, views, self.device, bench.precise)
            for old in list(self._cases)[:-1]:
                del self._cases[old]
            sides = original, digest, seen, views, said, reference
            self._cases[task.label, seed] = Case(task, seed, *sides, len(bench.data.train), self.device, bench.precise)
        return self._cases[task.label, seed]

    def _views(self, task: Task, model: Classifier) -> Views:
        scored = apart(self.splits[task.label])[1]
        return Views.of(scored, model.require_preprocessing(), self.device, tuning=task in self.bench.tuning)

    def start(self, seed: int) -> Classifier:
        """What training begins with; it takes seconds to draw the weights of a large network, and nobody changes it."""
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
        bench, file = self.bench, self._kept(seed, None)
        start = self.start(seed)
        if file.is_file():
            found = start.copy()
            load_weights(found.module, read_weights(file), file.name)
            found.module.eval()
            return found
        self.say(f"seed {seed}: training the original on {len(bench.data.train)} images")
        trained = fit(start, bench.data.train, bench.training, seed=seed, device=str(self.device))
        self.say(f"seed {seed}: trained in {trained.seconds:.1f} s")
        with atomic_file(file) as staging:
            save_weights(trained.model.module, staging)
        return trained.model

    def reference(self, task: Task, seed: int, views: Views | None = None) -> Reference:
        """The same training without the forget set, by its answers."""
        bench, file = self.bench, self._kept(seed, task)
        facts = {"task": dict(task.facts), "seed": seed, "precision": bench.precise}
        if task in bench.tuning:
            facts["scored"] = TUNING_SCORED  # its answers are not those that a scored request needs
        if (known := Reference.load(file, facts)) is not None:
            return known
        self.say(f"seed {seed}: retraining without {task.label}")
        splits = self.splits[task.label]
        start = self.start(seed)
        made = Retrain(bench.training, lambda _seed: start).unlearn(
            start, splits, seed=seed, device=str(self.device), precision=bench.training.precision
        )
        said = look(made.model, views or self._views(task, start), self.device, bench.precise)
        found = Reference(said, made.seconds, made.image_passes, made.peak_memory)
        found.save(file, facts)
        self.say(f"seed {seed}: retrained in {made.seconds:.1f} s")
        return found
