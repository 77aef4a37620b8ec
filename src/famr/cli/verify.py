"""`famr verify`: check a signed run, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from famr.cli.printing import Result, say
from famr.provenance.audit_history import describe_signed_audits
from famr.provenance.commitments import default_key_path
from famr.provenance.keys import read_public_key
from famr.provenance.verifying import VerifiedRun, describe_request, prove_forgotten, verify_run
from famr.report.escaping import visible


def verify_command(
    run: Annotated[Path, typer.Argument(metavar="RUN|ENVELOPE")],
    key: Annotated[Path, typer.Option()],
    ledger: Path | None = None,
    anchor: Annotated[str | None, typer.Option(metavar="ENTRIES:SHA256")] = None,
    image: Path | None = None,
    commitment_key: Path | None = None,
) -> Result:
    """Verify a signed run, offline; exit code 7 where anything is not as it was signed.

    Args:
        run: A signed run folder, or its envelope alone.
        key: The signer's public key.
        ledger: The workspace's ledger.
        anchor: An earlier head of the ledger, kept elsewhere.
        image: Show that this image was forgotten.
        commitment_key: The key of the commitments. None: beside the run.
    """
    verified = verify_run(run, read_public_key(key), ledger=ledger, anchor=anchor)
    if image is not None:
        prove_forgotten(verified, image, commitment_key or default_key_path(run if run.is_dir() else run.parent))

    def show() -> None:
        print_verified(verified)
        if image is not None:
            print(f"image       was forgotten: {visible(str(image))}")

    return Result({**verified.to_json(), "image_was_forgotten": None if image is None else True}, show)


def print_verified(verified: VerifiedRun) -> None:
    """Print what a signature covers, and what it does not show.

    Args:
        verified: A run whose signature holds.
    """
    predicate: dict[str, Any] = verified.statement["predicate"]
    if verified.files is None:
        print("SIGNATURE HOLDS, FILES NOT CHECKED: only the envelope was given")
    else:
        print(f"verified: all {verified.files} files are as they were signed, and there are no others")
    print(f"key         {verified.key}: compare it with the fingerprint from the signer")
    print(f"signed at   {visible(predicate['signed_at'])} by the signer's clock")
    print(f"request     {visible(describe_request(predicate))}")
    print(f"weights     {predicate['original']['weights_sha256'] or 'retrained'}")
    print(f"         -> {predicate['unlearned']['weights_sha256']}")
    print(f"audits      {visible(describe_signed_audits(predicate))}")
    if verified.ledger is not None:
        print(f"ledger      entry {verified.seq}; whole, with {len(verified.ledger.entries)} entries")
        print(f"anchor      {verified.ledger.anchor}")
    elif predicate["ledger"] is not None:
        print(f"ledger      NOT CHECKED: {visible(predicate['ledger'])}; give it with --ledger")
    say("A signature shows who vouches for a run and that it is unchanged; not that the model has forgotten.")
