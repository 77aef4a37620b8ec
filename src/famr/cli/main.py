"""`famr`: the commands, each in a module of its own that is imported when the command is invoked."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated

import typer

from famr._version import __version__
from famr.cli import bench, request
from famr.cli.flags import PLAIN, add_lazily
from famr.cli.guarding import guarded, parsed, show_own_warnings
from famr.cli.ranked import exit_at_once, is_first_process, require_multi_process

COMMANDS = {
    "demo": "Train, forget a class, retrain without it, and compare, on embedded data.",
    "train": "Train or fine-tune a classifier.",
    "forget": "Make a model forget a class, samples, a concept or a style.",
    "sketch": "Take from the training data what targets and anchors need; a later `forget --sketch` needs none of it.",
    "evaluate": "Evaluate a finished run again: the five metrics, and the gaps to a retrained model.",
    "certify": "Certify a run: claims with bounds and assumptions, written into the run folder.",
    "audit": "Audit a run with attacks; exit code 7 where a gate fails.",
    "classes": "List the class names of a model or of a data set.",
    "keygen": "Make a pair of Ed25519 keys: one to sign runs, one for those who verify them.",
    "sign": "Sign a finished run with everything in it; do this last, as any later change breaks the signature.",
    "verify": "Verify a signed run, offline; exit code 7 where anything is not as it was signed.",
    "export": "Export the unlearned model as ONNX or torch.export, and evaluate forgetting again on what was written.",
    "report": "Write the report of a run: request, method, results, certificate, audit, and what they do not show.",
}
"""One line of help for each command; `NAME` is `NAME_command` in the module `famr.cli.NAME`."""

app = typer.Typer(
    name="famr",
    no_args_is_help=True,
    help="Make a trained image classifier forget, and show how well it did.",
    epilog="Exit codes: 0 done, 2 usage or request, 3 data, 4 checkpoint, 5 numerics, 6 storage, 7 gate, 130 stopped.",
    **PLAIN,  # type: ignore[arg-type]  # typer has no type for its settings
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"famr {__version__}")
        raise typer.Exit


@app.callback()
def options_for_all(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,  # noqa: ARG001
) -> None:
    """Flags that stand before the command.

    Args:
        context: Of the group.
        version: Show the version.
        debug: Show where an error was raised.
    """
    require_multi_process(context.invoked_subcommand)


add_lazily(app, COMMANDS, "famr.cli")
app.add_typer(request.app)
app.add_typer(bench.app)


def main() -> None:
    """Run the command line; print its result or its error, and exit with its code.

    Raises:
        SystemExit: Always.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # C++ stack traces are not for users
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for terminals that cannot show every character
    as_json, debug = "--json" in sys.argv and is_first_process(), "--debug" in sys.argv
    if not debug:
        warnings.showwarning = show_own_warnings
    with exit_at_once():
        guarded(parsed(app), as_json=as_json, debug=debug)
