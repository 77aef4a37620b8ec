"""`famr request`: the deletion desk on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say, visible

if TYPE_CHECKING:
    from famr.desk.scope import Scope
    from famr.desk.workspace import Settings

app = typer.Typer(
    name="request",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Deletion requests: record them, carry them out, look after them.",
)

Place = Annotated[Path, typer.Option("--workspace", "-w", help="The folder of the desk's records and runs.")]
Id = Annotated[str, typer.Argument(help="A request, such as R-0001.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print a table for a spreadsheet.")]
Paper = Annotated[bool, typer.Option("--paper", help="The paper's algorithm and numbers, not the default method.")]
Method = Annotated[Path | None, typer.Option(help="Settings of the method as JSON, such as a run.json's.")]
Duplicates = Annotated[
    bool, typer.Option("--include-duplicates", help="Also forget copies of the samples that are asked for.")
]
Beyond = Annotated[bool, typer.Option("--beyond-budget", help="Go on although the chain's budget is spent.")]
HERE = Path("desk")


@app.command()
def new(
    workspace: Place = HERE,
    class_: Annotated[list[str] | None, typer.Option("--class", help="A class, by name. Repeatable.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="A sample: id, path or position. Repeatable.")] = None,
    samples: Annotated[Path | None, typer.Option(help="A CSV or TXT file of samples.")] = None,
    hash_: Annotated[list[str] | None, typer.Option("--hash", help="SHA-256 of a file or of pixels.")] = None,
    examples: Annotated[Path | None, typer.Option(help="A folder of pictures to look for, nearly too.")] = None,
    received: Annotated[str | None, typer.Option(metavar="DATE", help="When it came in; default: today.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="DATE", help="Default: one month later.")] = None,
    model: Annotated[str | None, typer.Option(help="To begin a workspace: the model in use.")] = None,
    data: Annotated[str | None, typer.Option(help="To begin a workspace: the data it was trained on.")] = None,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    match_labels_by_name: opt.ByName = False,
    loss_budget: Annotated[
        float | None, typer.Option(help="Retained accuracy that all runs may lose, as a share.")
    ] = 0.02,
    drift_budget: Annotated[float | None, typer.Option(help="How far all runs may move the weights.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Record a request and look for what it names. The same request twice is one; nothing is forgotten yet."""
    from famr.cli.desk_hands import RealHands
    from famr.desk.chain import Budget
    from famr.desk.deadlines import one_month_after, read_date, today
    from famr.desk.lookup import find_samples
    from famr.desk.records import forgotten_so_far, samples_of, submit_request
    from famr.desk.summaries import request_summary
    from famr.desk.workspace import FILE, Settings, create_workspace, open_workspace
    from famr.errors import RequestError

    scope = _scope(class_, sample, samples, hash_, examples)
    came = today() if received is None else read_date(received, "--received")
    until = one_month_after(came) if deadline is None else read_date(deadline, "--deadline")
    if until < came:
        raise RequestError("The deadline lies before the request.", where=f"{came}, {until}", fix="Check the dates.")
    given: Settings | None = None
    if model is not None and data is not None:
        facts = opt.data_facts(_absolute(data), data_root, label_column, split_seed, by_name=match_labels_by_name)
        given = Settings(_absolute(model), facts, Budget(loss_budget, drift_budget))
    elif model is not None or data is not None:
        raise RequestError("A workspace begins with both --model and --data.", fix="Give both, or neither.")
    if not (workspace / FILE).is_file() and given is not None:
        RealHands(given.model, given.data).data()  # both can be opened and belong together
        create_workspace(workspace, given)
    with open_workspace(workspace) as desk:
        if given is not None and (given.model, given.data) != (desk.settings.model, desk.settings.data):
            raise RequestError(
                "The workspace is about another model or other data.",
                where=f"{workspace}: {desk.settings.model}, {desk.settings.data['spec']}",
                fix="Leave out --model and --data, or name another workspace.",
            )
        hands = RealHands(desk.settings.model, desk.settings.data)
        _require_known(scope, hands)
        found = find_samples(scope, hands, forgotten_so_far(desk))
        record, is_new = submit_request(desk, scope, found, came, until)
        told = {**request_summary(desk, record.number), "status": record.status, "note": record.note, "new": is_new}
        missing = [each.asked for each in samples_of(desk, record.number) if each.state == "not found"]
    if as_json:
        print_json({**told, "names_not_found": missing})
        return
    print(f"{record.id}: {visible(told['asks'])}, {record.status}, deadline {record.deadline}")
    print(f"found {told['found']}, not found {told['not_found']}, forgotten before {told['forgotten_before']}")
    for name in missing:
        print(f"not found: {visible(name)}")
    if not is_new:
        say("the same request is recorded already; nothing was added")


def _scope(
    classes: list[str] | None,
    sample: list[str] | None,
    samples: Path | None,
    hashes: list[str] | None,
    examples: Path | None,
) -> Scope:
    from famr.data.request import read_samples
    from famr.desk.scope import Scope, examples_in

    names = [*(sample or []), *(read_samples(samples) if samples else [])]
    return Scope(
        classes=tuple(dict.fromkeys(classes or ())),
        names=tuple(dict.fromkeys(names)),
        hashes=tuple(dict.fromkeys(text.lower() for text in hashes or ())),
        examples=examples_in(examples) if examples else (),
    )


def _require_known(scope: Scope, hands: Any) -> None:
    """A class nobody knows is a mistake, not a sample that was not found."""
    from famr.data.request import Request
    from famr.data.splits import split

    if scope.classes:
        split(hands.data(), Request(classes=scope.classes))


def _absolute(spec: str) -> str:
    """A model or data that lies in a folder, from wherever the desk is used later."""
    kind, colon, place = spec.rpartition(":")
    return f"{kind}{colon}{Path(place).resolve()}" if Path(place).exists() and place else spec


@app.command("list")
def list_requests(workspace: Place = HERE, as_csv: AsCsv = False, as_json: opt.AsJson = False) -> None:
    """Every request with its status and deadline, and what the chain of runs has cost."""
    from famr.cli.desk_printing import print_table
    from famr.desk.deadlines import time_left, today
    from famr.desk.records import all_requests
    from famr.desk.summaries import chain_status, request_summary
    from famr.desk.workspace import open_workspace
    from famr.report.escaping import as_csv as csv_of

    with open_workspace(workspace) as desk:
        told = chain_status(desk)
        entries = []
        for record in all_requests(desk):
            left = "" if record.is_closed else time_left(record.deadline, today())
            extra = {"status": record.status, "due": left, "note": record.note}
            entries.append({**request_summary(desk, record.number), **extra})
    columns = ["id", "status", "received", "deadline", "due", "asks", "found", "not_found", "forgotten_before", "note"]
    if as_json:
        print_json({"requests": entries, "chain": told})
    elif as_csv:
        print(csv_of(columns, [[entry[name] for name in columns] for entry in entries]), end="")
    else:
        few = ["id", "status", "deadline", "due", "asks", "found", "not_found"]
        rows = [[entry[name] for name in few] for entry in entries]
        print_table(str(workspace), few, rows, whole=few[:4])
        for entry in entries:
            if entry["note"]:
                print(f"{entry['id']}: {visible(entry['note'])}")
        print(told)


@app.command()
def show(id_: Id, workspace: Place = HERE, as_csv: AsCsv = False, as_json: opt.AsJson = False) -> None:
    """One request: what it names, what was found, copies among the images that stay, and the run that answers it."""
    from dataclasses import asdict

    from famr.cli.desk_printing import print_table
    from famr.desk.records import duplicates_of, find_request, job_of, samples_of
    from famr.desk.summaries import recheck_after, request_summary
    from famr.desk.workspace import open_workspace
    from famr.report.escaping import as_csv as csv_of

    with open_workspace(workspace) as desk:
        record = find_request(desk, id_)
        told = {**request_summary(desk, record.number), "status": record.status, "note": record.note}
        job = job_of(desk, record.number)
        folder = None if job is None else desk.run_folder(job)
        found = samples_of(desk, record.number)
        copies = [] if job is None else duplicates_of(desk, job)
        own = {each.id for each in found}
        classes = bool(record.scope.classes)
        copies = [each for each in copies if classes or each.forgotten in own]
        earlier = {} if job is None else recheck_after(desk, job)
    columns = ["asked", "state", "id", "images", "similarity"]
    rows = [[each.asked, each.state, each.id, each.images, each.similarity] for each in found]
    if as_json:
        listed = {"samples": [asdict(each) for each in found], "duplicates": [asdict(each) for each in copies]}
        back = [{"id": name, "verdict": verdict, "says": says} for name, (verdict, says) in earlier.items()]
        print_json({**told, **listed, "run": None if folder is None else str(folder), "earlier": back})
    elif as_csv:
        print(csv_of(columns, rows), end="")
    else:
        print_table(
            f"{record.id}: {told['asks']}", ["what", "value"], [[name.replace("_", " "), told[name]] for name in told]
        )
        print_table("Samples", columns, rows)
        if copies:
            some = [[each.forgotten, each.retained, each.similarity, each.included] for each in copies]
            print_table("Copies among the images that stay", ["forgotten", "copy", "similarity", "forgotten too"], some)
        for name, (verdict, says) in earlier.items():
            print(f"{name}: {verdict} ({says})")
        if folder is not None:
            print(f"run: {visible(str(folder))}")


@app.command()
def run(
    id_: Id,
    workspace: Place = HERE,
    paper: Paper = False,
    method: Method = None,
    include_duplicates: Duplicates = False,
    beyond_budget: Beyond = False,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Carry out one request, or finish what a process that died had begun. A request is carried out once."""
    from famr.cli.desk_running import carry_out, manner_of

    manner = manner_of(paper, method, seed, include_duplicates, beyond_budget)
    carry_out(workspace, [id_], manner, device, quiet, as_json)


@app.command()
def batch(
    ids: Annotated[list[str] | None, typer.Argument(help="Requests; default: all that are open.")] = None,
    workspace: Place = HERE,
    paper: Paper = False,
    method: Method = None,
    include_duplicates: Duplicates = False,
    beyond_budget: Beyond = False,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Carry out several requests together: one run for the classes, one for the samples."""
    from famr.cli.desk_running import carry_out, manner_of

    manner = manner_of(paper, method, seed, include_duplicates, beyond_budget)
    carry_out(workspace, ids or None, manner, device, quiet, as_json)


@app.command()
def check(
    workspace: Place = HERE,
    model: Annotated[str | None, typer.Option(help="The model in use; default: the last run's.")] = None,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    """Measure whether every request that is done is still forgotten; exit code 7 where one came back."""
    from famr.cli.desk_running import look_back

    look_back(workspace, model, device, as_json)
