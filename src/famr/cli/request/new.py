"""`famr request new`: record a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from famr.cli.opening import DataSource
from famr.cli.options import ByName, DataRoot, LabelColumn, SplitSeed
from famr.cli.printing import Result, say
from famr.cli.request.backend import ModelBackend
from famr.cli.request.options import DEFAULT_WORKSPACE, Workspace
from famr.data.request import Request, read_samples
from famr.data.splits import split
from famr.desk.chain import Budget
from famr.desk.deadlines import one_month_after, read_date, today
from famr.desk.lookup import find_samples
from famr.desk.records import forgotten_so_far, samples_of, submit_request
from famr.desk.scope import Scope, examples_in
from famr.desk.summaries import request_summary
from famr.desk.workspace import FILE, Settings, create_workspace, open_workspace
from famr.errors import RequestError
from famr.report.escaping import visible

Date = Annotated[str | None, typer.Option(metavar="DATE")]


@dataclass(frozen=True, kw_only=True)
class ScopeOptions:
    """What a request names.

    Attributes:
        class_: A class, by name.
        sample: A sample: id, path or index.
        samples: A CSV or TXT file of samples.
        hash_: SHA-256 of a file or of pixels.
        examples: A folder of pictures to search for; near copies are found, too.
    """

    class_: Annotated[list[str] | None, typer.Option("--class")] = None
    sample: list[str] | None = None
    samples: Path | None = None
    hash_: Annotated[list[str] | None, typer.Option("--hash")] = None
    examples: Path | None = None

    def scope(self) -> Scope:
        """The scope.

        Raises:
            RequestError: It is empty, or names both classes and samples.
        """
        names = [*(self.sample or []), *(read_samples(self.samples) if self.samples else [])]
        return Scope(
            classes=tuple(dict.fromkeys(self.class_ or ())),
            names=tuple(dict.fromkeys(names)),
            hashes=tuple(dict.fromkeys(text.lower() for text in self.hash_ or ())),
            examples=examples_in(self.examples) if self.examples else (),
        )


@dataclass(frozen=True, kw_only=True)
class NewWorkspaceOptions:
    """What a workspace is about; given with its first request.

    Attributes:
        model: To begin a workspace: the model in use.
        data: To begin a workspace: the data it was trained on.
        loss_budget: Retained accuracy that all runs together may lose, as a fraction.
        drift_budget: How far all runs together may move the weights. None: any distance.
    """

    model: str | None = None
    data: str | None = None
    data_root: DataRoot = None
    label_column: LabelColumn = None
    split_seed: SplitSeed = 0
    match_labels_by_name: ByName = False
    loss_budget: float | None = 0.02
    drift_budget: float | None = None

    def settings(self) -> Settings | None:
        """The settings of a new workspace; None where none is to begin.

        Raises:
            RequestError: Only the model or only the data is given.
        """
        if self.model is None and self.data is None:
            return None
        if self.model is None or self.data is None:
            raise RequestError("A workspace begins with both --model and --data.", fix="Give both, or neither.")
        source = DataSource(
            _absolute(self.data), self.data_root, self.label_column, self.split_seed, self.match_labels_by_name
        )
        return Settings(_absolute(self.model), source.to_json(), Budget(self.loss_budget, self.drift_budget))


def new_command(
    scope: ScopeOptions,
    begin: NewWorkspaceOptions,
    workspace: Workspace = DEFAULT_WORKSPACE,
    received: Date = None,
    deadline: Date = None,
) -> Result:
    """Record a request and search the data for what it names.

    The same request twice is one; nothing is forgotten yet. The first request of a workspace begins it, with --model
    and --data.

    Args:
        scope: What the request names.
        begin: What a new workspace is about.
        workspace: Its folder.
        received: When it was received. None: today.
        deadline: Until when it must be carried out. None: one month after it was received.

    Raises:
        RequestError: The dates or the workspace do not fit.
    """
    named = scope.scope()
    received_on = today() if received is None else read_date(received, "--received")
    until = one_month_after(received_on) if deadline is None else read_date(deadline, "--deadline")
    if until < received_on:
        raise RequestError(
            "The deadline lies before the request.", where=f"{received_on}, {until}", fix="Check the dates."
        )
    given = begin.settings()
    if not (workspace / FILE).is_file() and given is not None:
        ModelBackend.of(given).data()  # model and data can be opened and fit together
        create_workspace(workspace, given)
    with open_workspace(workspace) as desk:
        if given is not None and (given.model, given.data) != (desk.settings.model, desk.settings.data):
            raise RequestError(
                "The workspace is about another model or other data.",
                where=f"{workspace}: {desk.settings.model}, {desk.settings.data['spec']}",
                fix="Leave out --model and --data, or name another workspace.",
            )
        backend = ModelBackend.of(desk.settings)
        if named.classes:
            split(backend.data(), Request(classes=named.classes))  # an unknown class is an error, not "not found"
        samples = find_samples(named, backend, forgotten_so_far(desk))
        record, is_new = submit_request(desk, named, samples, received_on, until)
        summary = request_summary(desk, record.number)
        missing = [sample.asked for sample in samples_of(desk, record.number) if sample.state == "not found"]

    def show() -> None:
        print(f"{record.id}: {visible(summary['asks'])}, {record.status}, deadline {record.deadline}")
        print(
            f"found {summary['found']}, not found {summary['not_found']}, "
            f"forgotten before {summary['forgotten_before']}"
        )
        for name in missing:
            print(f"not found: {visible(name)}")
        if not is_new:
            say("the same request is recorded already; nothing was added")

    status = {"status": record.status, "note": record.note, "new": is_new}
    return Result({**summary, **status, "names_not_found": missing}, show)


def _absolute(spec: str) -> str:
    """A model or data that lies in a folder, from whatever folder the desk is used later."""
    kind, colon, path = spec.rpartition(":")
    return f"{kind}{colon}{Path(path).resolve()}" if Path(path).exists() and path else spec
