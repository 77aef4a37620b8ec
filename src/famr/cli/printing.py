"""What the command line prints: results as tables or as one JSON object, progress and notes on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from famr.cli.ranked import is_first_process
from famr.metrics.tables import COLUMNS, NOT_AVAILABLE, in_percent
from famr.report.escaping import visible

if TYPE_CHECKING:
    from rich.table import Table

    from famr.audit.verdict import Audit
    from famr.errors import GateError
    from famr.metrics.scores import Scores

METRICS_OF_AN_EPOCH = {
    "loss": "loss",
    "accuracy": "train acc",
    "loss_total": "J",
    "forget_accuracy": "For-Acc",
    "retain_accuracy": "Ret-Acc",
    "forget_kl": "KL",
    "forget_entropy": "Ent",
}
"""Names in a progress line, by the attribute of a history row."""


@dataclass(frozen=True)
class Result:
    """The result of a command, which `main` prints.

    Attributes:
        content: The object that `--json` prints.
        show: Prints the same for people.
        failed: A gate that was not met although there is a result: the exit code is its code.
    """

    content: Mapping[str, Any]
    show: Callable[[], None]
    failed: GateError | None = None


def say(text: str) -> None:
    """Print a note on standard error, where it mixes with no result.

    Args:
        text: Lines of plain text; characters that a terminal would act on are escaped.
    """
    print("\n".join(visible(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def say_note(text: str) -> None:
    """Print a note that the user did not ask for; of several processes, only the first prints it.

    Args:
        text: Without "famr: note".
    """
    if is_first_process():
        say(f"famr: note: {text}")


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output.

    Args:
        content: Plain values; NaN is an error.
    """
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], whole: Collection[str] = ()) -> None:
    """Print a table in which user text stays text and nothing is cut.

    Args:
        title: Above the table.
        columns: Headings.
        rows: One cell a column; None is an empty cell.
        whole: Columns that stay on one line.
    """
    from rich.console import Console
    from rich.text import Text

    table = _table(title)
    for name in columns:
        table.add_column(Text(name.replace("_", " ")), overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*(Text("" if cell is None else visible(str(cell))) for cell in row))
    Console().print(table)


def print_scores(scores: Scores, title: str, beside: Mapping[str, Scores] | None = None) -> None:
    """Print the five metrics of each model, and the gap to the retrained model where there is one.

    Args:
        scores: Of one run.
        title: Above the table.
        beside: Scores of further methods by name; their unlearned models get a row each.
    """
    from rich.console import Console

    table = _table(title)
    table.add_column("model", no_wrap=True)
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    further = {name: method.unlearned for name, method in (beside or {}).items()}
    models = {"original": scores.original, "unlearned": scores.unlearned, **further, "retrained": scores.retrained}
    for name, model in models.items():
        if model is not None:
            table.add_row(name, *(in_percent(column, getattr(model, column, None)) for column in COLUMNS))
    if scores.gap is not None:
        table.add_row("gap", *(in_percent(column, scores.gap.get(column)) for column in COLUMNS))
    Console().print(table)
    if scores.gap is not None:
        for name, method in {"unlearned": scores, **(beside or {})}.items():
            js = None if method.gap is None else method.gap["forget_js_divergence"]
            print(f"Jensen-Shannon divergence of {name} to retrained on the forget set: {in_percent('js', js)} nats")
    words = {"retain": "held-out retained", "forget": "forget", "forget_test": "held-out forgotten"}
    counts = ", ".join(f"{words[name]} {n}" for name, n in scores.unlearned.counts.items() if n is not None)
    print(f"Images: {counts}. CE, Ent and KL in nats, on the forget set.")
    for request, accuracy in scores.earlier.items():
        print(f"Forgotten before, {visible(request)}: accuracy {in_percent('forget_accuracy', accuracy)} %")
    for reason in dict.fromkeys(scores.not_available.values()):
        names = [name for name, why in scores.not_available.items() if why == reason]
        print(f"{NOT_AVAILABLE}: {', '.join(names)} ({reason})")


AUDIT_COLUMNS = ("unlearned", "original", "retrained", "never saw")
"""Models that the table of an audit shows; audit.json has all controls."""


def print_audit(audit: Audit, title: str) -> None:
    """Print the verdict, what it rests on, and a row for each gate.

    Args:
        audit: All gates of a run.
        title: Above the table.
    """
    from rich.console import Console

    from famr.audit.sentence import first_questions

    record = audit.to_json()
    for line in (record["sentence"], *first_questions(record)):
        print(visible(line))
    models = [name for name in AUDIT_COLUMNS if name in audit.verdicts]
    table = _table(title)
    table.add_column("gate", no_wrap=True)
    table.add_column("at most", justify="right")
    for model in models:
        table.add_column(model)
    table.add_column("counts")
    for check in audit.checks:
        cells = []
        for model in models:
            figure = check.figures.get(model)
            text = "–" if figure is None or figure.value is None else f"{figure.value:.3f}"
            if figure is not None and figure.low is not None:
                text += f" [{figure.low:.3f}, {figure.high:.3f}]"
            cells.append(f"{text} {check.verdicts.get(model, '')}")
        table.add_row(check.name, f"{check.allowed:.3f}", *cells, "yes" if check.not_counted is None else "no")
    table.add_row("verdict", "", *(audit.verdicts[model] for model in models))
    Console().print(table)
    reasons = [figure.why_not for check in audit.checks for figure in check.figures.values() if figure.why_not]
    for line in (*dict.fromkeys(reasons), *audit.notes):
        print(visible(line))


def _table(title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    return Table(title=Text(visible(title)), title_justify="left")


@contextmanager
def progress(total_steps: int | None, title: str, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """Show the events of a run on standard error: a bar on a terminal, elsewhere a line for each epoch.

    Args:
        total_steps: Steps of the whole run; None: its `Plan` says how many.
        title: Beside the bar.
        quiet: Show nothing.

    Yields:
        The function to call with each event.
    """
    from famr.runs.events import Plan, ProxyStep, Step

    if quiet:
        yield lambda _event: None
        return
    if not sys.stderr.isatty():

        def print_row(event: Any) -> None:
            if isinstance(event, Plan):
                say_plan(event)
            elif isinstance(event, ProxyStep) and event.step in (1, event.steps):
                say(f"{title}: {'training a proxy' if event.step == 1 else 'the proxy is trained'}")
            elif not isinstance(event, (Step, ProxyStep)):
                say(f"{title}: epoch {event.epoch}: {epoch_metrics(event)}")

        yield print_row
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[metrics]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(escape(visible(title)), total=total_steps, metrics="")

        def update(event: Any) -> None:
            nonlocal total_steps
            if isinstance(event, Plan):
                say_plan(event)
                total_steps = event.steps
                bar.update(task, total=total_steps)
            elif isinstance(event, ProxyStep):
                bar.update(task, completed=event.step, total=event.steps, metrics="training a proxy")
            elif isinstance(event, Step):
                bar.update(task, completed=event.step, total=total_steps)
            else:
                bar.update(task, metrics=epoch_metrics(event))

        yield update
        bar.update(task, completed=total_steps)


def say_plan(plan: Any) -> None:
    """Print which settings a run picked, why, and what they cost, before it starts.

    Args:
        plan: A `Plan`.
    """
    if plan.why:
        say(f"picked: {plan.why}")


def epoch_metrics(row: Any) -> str:
    """The metrics of an epoch in one line.

    Args:
        row: A row of the history of training or of forgetting.
    """
    values = {name: getattr(row, name, None) for name in METRICS_OF_AN_EPOCH}
    return "  ".join(
        f"{METRICS_OF_AN_EPOCH[name]} {in_percent(name, value)}" for name, value in values.items() if value is not None
    )
