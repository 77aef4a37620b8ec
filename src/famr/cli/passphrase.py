"""The passphrase of a private key."""

from __future__ import annotations

import os
import sys

import typer

from famr.errors import RequestError

VARIABLE = "FAMR_KEY_PASSPHRASE"


def read_passphrase(confirm: bool = False) -> str:
    """The passphrase, from the environment or a prompt; never from the command line, where others could read it.

    Args:
        confirm: Whether the prompt wants it twice.

    Raises:
        RequestError: The variable is not set, and there is no terminal for a prompt.
    """
    passphrase = os.environ.get(VARIABLE)
    if passphrase:
        return passphrase
    if not sys.stdin.isatty():
        raise RequestError("The key needs a passphrase.", fix=f"Set {VARIABLE}, or run this on a terminal.")
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True))
