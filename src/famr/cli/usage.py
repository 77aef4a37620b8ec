"""Mistakes in the command line itself, told like every other error: what, where, what to do; or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from famr.cli.guarding import Stopped
from famr.errors import RequestError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer exports no other of its kind, and has it from one library or another."""


def parsed(app: Callable[..., object]) -> Callable[[], None]:
    """The command line as a command that ends with its exit code, or with one of famr's errors."""

    def command() -> None:
        try:
            code = app(prog_name="famr", standalone_mode=False)
        except UsageError as error:
            raise _in_words(error) from error
        except typer.Abort as error:  # an answer that was asked for and not given
            raise Stopped from error
        sys.exit(code if isinstance(code, int) else 0)

    return command


def _in_words(error: Exception) -> RequestError:
    context = getattr(error, "ctx", None)
    command = "famr" if context is None else str(context.command_path)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]  # no mistake yet: somebody wants to know what there is
        sys.exit(RequestError.exit_code)
    what = str(error.format_message())  # type: ignore[attr-defined]
    return RequestError(what if what.endswith((".", ")")) else f"{what}.", where=command, fix=f"{command} --help")
