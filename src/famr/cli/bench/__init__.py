"""`famr bench`: methods beside each other on your model and data; each command is a module here."""

from __future__ import annotations

import typer

from famr.cli.flags import PLAIN, add_lazily

COMMANDS = {
    "methods": "Compare methods × requests × seeds, each method tuned on other requests, with retrained models.",
}
"""One line of help for each command; `NAME` is `NAME_command` in the module `famr.cli.bench.NAME`."""

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Compare methods on your model and data.",
    **PLAIN,  # type: ignore[arg-type]  # typer has no type for its settings
)
add_lazily(app, COMMANDS, "famr.cli.bench")
