"""What the command line shows: a bar on a terminal, plain lines elsewhere, tables, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from famr.metrics.tables import COLUMNS, NOT_AVAILABLE, in_percent
from famr.report.escaping import visible as visible

if TYPE_CHECKING:
    from famr.audit.verdict import Audit
    from famr.errors import FamrError
    from famr.metrics.scores import Scores


def say(text: str) -> None:
    """One line for people, on standard error; never read as markup."""
    print("\n".join(visible(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def print_error(error: FamrError, as_json: bool) -> None:
    """What, where and what to do: on standard error, and as an object where JSON was asked for."""
    say(f"famr: {error}")
    if as_json:
        kind = type(error).__name__
        where_and_fix = {"what": error.what, "where": error.where, "fix": error.fix}
        print_json({"error": {"kind": kind, "exit_code": error.exit_code, **where_and_fix}})


def print_scores(scores: Scores, title: str, beside: Mapping[str, Scores] | None = None) -> None:
    """The five metrics of each model, and the gap where a retrained model was given; `beside` adds other methods."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    others = {name: found.unlearned for name, found in (beside or {}).items()}
    rows = {"original": scores.original, "unlearned": scores.unlearned, **others, "retrained": scores.retrained}
    for name, found in rows.items():
        if found is not None:
            table.add_row(name, *(in_percent(column, getattr(found, column, None)) for column in COLUMNS))
    if scores.gap is not None:
        table.add_row("gap", *(in_percent(column, scores.gap.get(column)) for column in COLUMNS))
    Console().print(table)
    if scores.gap is not None:
        for name, said in {"unlearned": scores, **(beside or {})}.items():
            js = None if said.gap is None else said.gap["forget_js_divergence"]
            print(f"Jensen-Shannon divergence of {name} to retrained on the forget set: {in_percent('js', js)} nats")
    words = {"retain": "held-out retained", "forget": "forget", "forget_test": "held-out forgotten"}
    counts = ", ".join(f"{words[name]} {n}" for name, n in scores.unlearned.counts.items() if n is not None)
    print(f"Images: {counts}. CE, Ent and KL in nats, on the forget set.")
    for what, accuracy in scores.earlier.items():
        print(f"Forgotten before, {visible(what)}: accuracy {in_percent('forget_accuracy', accuracy)} %")
    for reason in dict.fromkeys(scores.not_available.values()):
        names = [name for name, why in scores.not_available.items() if why == reason]
        print(f"{NOT_AVAILABLE}: {', '.join(names)} ({reason})")


def print_audit(audit: Audit, title: str) -> None:
    """A row a gate: each model's figure with its interval, and its verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    models = list(audit.verdicts)
    table = Table(title=Text(visible(title)), title_justify="left")
    table.add_column("gate", no_wrap=True)
    table.add_column("at most", justify="right")
    for model in models:
        table.add_column(model)
    for check in audit.checks:
        cells = []
        for model in models:
            figure = check.figures.get(model)
            shown = "–" if figure is None or figure.value is None else f"{figure.value:.3f}"
            if figure is not None and figure.low is not None:
                shown += f" [{figure.low:.3f}, {figure.high:.3f}]"
            cells.append(f"{shown} {check.verdicts.get(model, '')}")
        table.add_row(check.name, f"{check.allowed:.3f}", *cells)
    table.add_row("verdict", "", *audit.verdicts.values())
    Console().print(table)
    reasons = [figure.why_not for check in audit.checks for figure in check.figures.values() if figure.why_not]
    for line in (*dict.fromkeys(reasons), *audit.notes):
        print(visible(line))


@contextmanager
def progress(total_steps: int, title: str, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """Turn the events of a run into a bar with its running metrics, or into a line an epoch."""
    from famr.unlearn.loop import Step

    if quiet:
        yield lambda _event: None
        return
    if not sys.stderr.isatty():

        def line(event: Any) -> None:
            if not isinstance(event, Step):
                say(f"{title}: epoch {event.epoch}: {running(event)}")

        yield line
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[metrics]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(escape(visible(title)), total=total_steps, metrics="")

        def move(event: Any) -> None:
            if isinstance(event, Step):
                bar.update(task, completed=event.step)
            else:
                bar.update(task, metrics=running(event))

        yield move
        bar.update(task, completed=total_steps)


def running(row: Any) -> str:
    """The metrics of an epoch in a few words, whichever kind of epoch it was."""
    names = {
        "loss": "loss",
        "accuracy": "train acc",
        "loss_total": "J",
        "forget_accuracy": "For-Acc",
        "retain_accuracy": "Ret-Acc",
        "forget_kl": "KL",
        "forget_entropy": "Ent",
    }
    found = {name: getattr(row, name, None) for name in names}
    return "  ".join(f"{names[name]} {in_percent(name, value)}" for name, value in found.items() if value is not None)
