"""`famr request`: the deletion desk on the command line; each command is a module here."""

from __future__ import annotations

import typer

from famr.cli.flags import PLAIN, add_lazily

COMMANDS = {
    "new": "Record a request and search the data for what it names.",
    "list": "List every request with its status and deadline, and what the chain of runs has cost.",
    "show": "Show one request: what it names, what was found, and the run that carries it out.",
    "run": "Carry out one request, or finish what a process that died had begun.",
    "batch": "Carry out several requests: one run for the classes, one for the samples.",
    "check": "Evaluate whether every finished request is still forgotten; exit code 7 where one came back.",
}
"""One line of help for each command; `NAME` is `NAME_command` in the module `famr.cli.request.NAME`."""

app = typer.Typer(
    name="request",
    no_args_is_help=True,
    help="Record deletion requests, carry them out, check that they stay forgotten.",
    **PLAIN,  # type: ignore[arg-type]  # typer has no type for its settings
)
add_lazily(app, COMMANDS, "famr.cli.request")
