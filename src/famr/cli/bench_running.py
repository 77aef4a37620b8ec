"""What `famr bench` does, between parsing and printing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from famr.bench.contenders import EVERY, PAPER, contenders_called
from famr.bench.paper_figures import draw_figure, require_figure
from famr.bench.paper_setting import DEFAULT, LITTLE, SIZES, gather, presets, printed, size_called
from famr.bench.paper_setting import Subject as Sized
from famr.bench.paper_tables import paper_page, paper_table
from famr.bench.records import write_whole
from famr.bench.running import run_bench
from famr.bench.setting import Bench
from famr.bench.tables import KINDS, first, kind_of
from famr.bench.tasks import Task, drawn_classes, request_task, samples_task, tuning_tasks
from famr.cli.commands import open_facts
from famr.cli.printing import say
from famr.cli.shadowing import SCRATCH, recorded_training
from famr.data import Data
from famr.data.request import Request
from famr.engine.distributed import ALONE, Ranks
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier, load_model, new_model
from famr.models.labels import match_labels
from famr.report.content import Report, Section
from famr.report.escaping import visible
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import atomic_file
from famr.training import Training


@dataclass(frozen=True, eq=False)
class Subject:
    """What a bench is about: data, where training starts and how it goes, or a model that is trained already."""

    data_facts: Mapping[str, Any]
    data_name: str | None
    start: str | None
    weights: Path | None
    arguments: Mapping[str, Any]
    from_scratch: bool
    training: Training
    model: str | None = None
    device: str = "auto"
    precision: str | None = None
    retry_failed: bool = False
    quiet: bool = False

    def told_data(self) -> str:
        """The data in words, without the path to it."""
        spec = str(self.data_facts["spec"])
        kind, _, place = spec.partition(":")
        return self.data_name or (f"{kind}:{Path(place).name}" if place else kind)

    def told_start(self, spec: str) -> str:
        """The starting weights in words."""
        how = "published weights"
        if self.weights is not None:
            if not self.weights.is_file():
                raise CheckpointError("There is no such file.", where=str(self.weights), fix="Check --weights.")
            digest = hashlib.sha256(self.weights.read_bytes()).hexdigest()
            how = f"weights {self.weights.name} ({digest[:12]})"
        elif self.from_scratch or spec == SCRATCH:
            how = "from scratch"
        arguments = "".join(f", {name}={value}" for name, value in self.arguments.items())
        return f"{spec}{arguments}, {how}"

    def starting(self, spec: str, labels: Sequence[str]) -> Callable[[int], Classifier]:
        """Starting weights out of a seed."""
        return lambda seed: new_model(
            spec,
            labels,
            weights=self.weights,
            arguments=self.arguments,
            from_scratch=self.from_scratch,
            seed=seed,
        )

    def trained_as(self, data: Data) -> Training:
        """Mirrored only where the data allows."""
        if self.training.augmentation is None:
            return self.training
        return replace(self.training, augmentation=replace(self.training.augmentation, mirror=data.mirror))

    def say(self, text: str) -> None:
        """A line of progress, at once."""
        if not self.quiet:
            say(text)


def run_methods(
    subject: Subject,
    output: Path,
    *,
    classes: Sequence[str],
    random_classes: int,
    concepts: Sequence[tuple[str, str]],
    shares: Sequence[float],
    methods: Sequence[str],
    seeds: tuple[int, ...],
    trials: int,
    tune_on: str | None,
    tuning_seed: int | None,
    leave_out_unserved: bool,
    shards: int,
    most_epochs: int | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Run a bench of methods in its folder, and say who is first."""
    contenders = contenders_called(methods)
    data = open_facts(subject.data_facts)
    original = None
    if subject.model is not None:
        by_name = subject.data_facts["match_labels_by_name"]
        original, data = match_labels(load_model(subject.model), data, by_name=by_name)
        training = recorded_training(Path(subject.model))
    else:
        training = subject.trained_as(data)
    if subject.start is None:
        raise RequestError(
            "Retrained models start where the original's training started, and nobody may guess it.",
            where="--start",
            fix=f"--start timm:NAME (with --weights or --from-scratch); {SCRATCH} where --model was trained so.",
        )
    tasks = _tasks(data, classes, random_classes, concepts, shares)
    tuning = tuning_tasks(data, tasks) if trials > 1 else ()
    if tune_on is not None:
        named = request_task(Request(classes=[tune_on]))
        tuning = tuple(named if task.request.kind == "class" else task for task in tuning)
    bench = Bench(
        data,
        _start_of(subject, original, data),
        training,
        contenders,
        tasks,
        seeds,
        tuning,
        trials,
        seeds[0] if tuning_seed is None else tuning_seed,
        original,
        {"data": subject.told_data(), "model": subject.told_start(subject.start)},
        leave_out_unserved or EVERY in methods,  # who asks for all means all that can
        subject.retry_failed,
        shards,
        subject.device,
        subject.precision,  # type: ignore[arg-type]  # checked by Bench
        most_epochs,
    )
    content = run_bench(bench, output, subject.say, ranks)
    cells = content["cells"]
    by_kind = {title: [c for c in cells if kind_of(c, content) == kind] for kind, title in KINDS.items()}
    return {
        "output": str(output),
        "cells": len(cells),
        "failed": sum("error" in cell for cell in cells),
        "first": [visible(f"{title}: {first(some)}") for title, some in by_kind.items() if some],
    }


def _start_of(subject: Subject, original: Classifier | None, data: Data) -> Callable[[int], Classifier]:
    assert subject.start is not None
    if subject.start != SCRATCH:
        return subject.starting(subject.start, data.labels)
    if original is None:
        raise RequestError(
            "From scratch needs an architecture.", where="--start", fix="--start timm:NAME --from-scratch"
        )
    from famr.baselines.untrained import untrained

    return lambda seed: untrained(original, seed)


def _tasks(
    data: Data,
    classes: Sequence[str],
    random_classes: int,
    concepts: Sequence[tuple[str, str]],
    shares: Sequence[float],
) -> tuple[Task, ...]:
    """What is asked for, a request each."""
    drawn = drawn_classes(data.labels, random_classes, but_not=classes)
    requests = [Request(classes=[name]) for name in (*classes, *drawn)]
    requests += [Request(concept=pair) for pair in concepts]
    found = [*(request_task(request) for request in requests), *(samples_task(data, share) for share in shares)]
    if not found:
        raise RequestError("Nothing is to be forgotten.", where="famr bench", fix="--class NAME or --samples-share 0.1")
    return tuple(found)


def run_paper(
    subject: Subject | None,
    output: Path,
    *,
    table: int | None,
    figure: int | None,
    sizes: Sequence[str],
    little: bool,
    classes: Sequence[str],
    random_classes: int,
    seeds: tuple[int, ...],
    of_paper: bool,
    retrained: bool = True,
    default: bool = True,
) -> dict[str, Any]:
    """Run what is missing for the paper's table, then write the table or draw the figure from all there is."""
    if figure is not None:
        require_figure(figure)
    facts = _facts(output, subject, table)
    if subject is not None:
        data = open_facts(subject.data_facts)
        tasks = _tasks(data, classes, 0 if classes else random_classes, (), ())
        for size in [size_called(name) for name in sizes] or list(SIZES):
            spoken = replace(subject, arguments=LITTLE[size], from_scratch=True) if little else subject
            sized = Sized(size, _setting(spoken, little))
            told = {"data": facts["data"], "setting": sized.setting, "model": spoken.told_start(SIZES[size])}
            bench = Bench(
                data,
                spoken.starting(SIZES[size], data.labels),
                spoken.trained_as(data),
                presets() if default else presets()[:1],
                tasks,
                seeds,
                told=told,
                retry_failed=spoken.retry_failed,
                device=spoken.device,
                retrained=retrained,
            )
            spoken.say(f"{size}, {sized.setting}")
            try:
                run_bench(bench, output / sized.folder, spoken.say)
            finally:  # what there is can be shown, wherever a run was stopped
                if (output / sized.folder).is_dir():
                    gather(output, facts)
    content = gather(output, facts)
    if not content["runs"]:
        raise RequestError("The folder holds no runs.", where=str(output), fix="Give --data, and they are run.")
    if figure is not None:
        file = output / f"figure-{figure}{'' if of_paper else '-default'}.png"
        with atomic_file(file) as staging:
            draw_figure(content, figure, staging, PAPER if of_paper else DEFAULT)
        return {"lines": [], "files": [str(file)]}
    page = paper_page(content)
    files = {
        output / f"table-{facts['table']}.md": as_markdown(page),
        output / f"table-{facts['table']}.html": as_html(page),
    }
    for file, text in files.items():
        write_whole(file, text)
    short = Report(page.title, page.outcome, page.verdict, (Section("Rows", (paper_table(content),)),))
    return {"lines": as_markdown(short).splitlines(), "files": [str(file) for file in files]}


def _facts(output: Path, subject: Subject | None, table: int | None) -> dict[str, Any]:
    """Which table a folder is about, and on which data."""
    if table is not None and str(table) not in printed()["tables"]:
        raise RequestError(f"The paper has no table {table}.", where="--table", fix="Use 1 or 2.")
    kept: dict[str, Any] = {}
    if (output / "results.json").is_file():
        stored = json.loads((output / "results.json").read_text(encoding="utf-8"))
        kept = {name: stored.get(name) for name in ("table", "data")}
    elif subject is None:
        raise RequestError("The folder holds no runs.", where=str(output), fix="Give --data, and they are run.")
    now = {
        "table": table or kept.get("table") or 1,
        "data": kept.get("data") if subject is None else subject.told_data(),
    }
    if kept and kept != now:
        raise RequestError(
            f"The folder is of table {kept['table']} on {kept['data']}, not of table {now['table']} on {now['data']}.",
            where=str(output),
            fix="Name another folder.",
        )
    return now


def _setting(subject: Subject, little: bool) -> str:
    """How the four models are made alike: only models of one setting are compared."""
    if little:
        return "tiny stand-ins, from scratch"
    start = "from scratch" if subject.from_scratch else "pretrained"
    return ", ".join([start, *(f"{name} {value}" for name, value in subject.arguments.items())])
