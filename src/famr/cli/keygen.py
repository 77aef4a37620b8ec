"""`famr keygen`: a pair of keys to sign runs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli.passphrase import read_passphrase
from famr.cli.printing import Result
from famr.provenance.keys import public_key_path, write_key_pair
from famr.report.escaping import visible


def keygen_command(
    output: Annotated[Path, typer.Argument()], encrypt: Annotated[bool, typer.Option("--encrypt")] = False
) -> Result:
    """Make a pair of Ed25519 keys: one to sign runs, one for those who verify them.

    Args:
        output: The private key to write; the public one gets .pub added.
        encrypt: Encrypt it with a passphrase, from a prompt or $FAMR_KEY_PASSPHRASE.
    """
    fingerprint = write_key_pair(output, read_passphrase(confirm=True) if encrypt else None)
    public = public_key_path(output)

    def show() -> None:
        print(f"private key {visible(str(output))}: keep it to yourself")
        print(f"public key  {visible(str(public))}: hand it out")
        print(f"fingerprint {fingerprint}: pass it on by another channel than the runs")

    return Result({"private": str(output), "public": str(public), "fingerprint": fingerprint}, show)
