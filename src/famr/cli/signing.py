"""The commands of evidence: keygen, sign and verify."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say, visible

if TYPE_CHECKING:
    from famr.data import Images
    from famr.provenance.verifying import VerifiedRun

PASSPHRASE = "FAMR_KEY_PASSPHRASE"
LedgerFile = Annotated[Path | None, typer.Option("--ledger", help="The workspace's ledger.")]
CommitmentKey = Annotated[Path | None, typer.Option(help="The key of the commitments; default: beside the run.")]


def keygen(
    output: Annotated[Path, typer.Argument(help="The private key to write; the public one gets .pub added.")],
    encrypt: Annotated[bool, typer.Option("--encrypt", help=f"Lock it: asks, or takes {PASSPHRASE}.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Make a pair of Ed25519 keys: one to sign runs with, one for those who verify them."""
    from famr.provenance.keys import public_key_path, write_key_pair

    fingerprint = write_key_pair(output, _passphrase(confirm=True) if encrypt else None)
    if as_json:
        print_json({"private": str(output), "public": str(public_key_path(output)), "fingerprint": fingerprint})
    else:
        print(f"private key {visible(str(output))}: keep it to yourself")
        print(f"public key  {visible(str(public_key_path(output)))}: hand it out")
        print(f"fingerprint {fingerprint}: tell it by another way than the runs go")


def sign(
    run: Annotated[Path, typer.Argument(help="A folder that `famr forget` or `famr train --without-…` wrote.")],
    key: Annotated[Path, typer.Option(help="The private key, as `famr keygen` makes it.")],
    ledger: LedgerFile = None,
    commitment_key: CommitmentKey = None,
    data: Annotated[str | None, typer.Option(help="The data, if it has moved.")] = None,
    data_root: opt.DataRoot = None,
    without_data: Annotated[
        bool, typer.Option("--without-data", help="The forgotten images are gone: sign without commitments to them.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Sign a finished run with everything in it; do this last, as any later change breaks the signature."""
    from famr.provenance import signing
    from famr.provenance.keys import read_private_key
    from famr.provenance.statement import read_signable_run

    read_signable_run(run)
    signing.require_outside(run, key)
    private = read_private_key(key, _passphrase)
    signed = signing.sign_run(
        run,
        private,
        None if without_data else _forgotten_images(run, data, data_root),
        reason_missing="the forgotten images were not at hand" if without_data else None,
        commitment_key=commitment_key,
        ledger=ledger,
    )
    if as_json:
        print_json(signed.to_json())
        return
    print(f"signed{' before, and unchanged since' if signed.kept else ''}: {signed.files} files")
    print(f"envelope    {visible(str(signed.envelope))}")
    print(f"key         {signed.key}")
    if signed.commitments is None:
        print("commitments none: nobody can show later that an image was among the forgotten ones")
    else:
        print(f"commitments {signed.commitments} images; their key, not to be handed out with the run:")
        print(f"            {visible(str(signed.commitment_key))}")
    if signed.ledger is None:
        print("ledger      none: nothing shows that no signed run was left out")
    else:
        print(f"ledger      entry {signed.seq} of {visible(str(signed.ledger.path))}")
        print(f"anchor      {signed.ledger.anchor}: keep it elsewhere")


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN|ENVELOPE", help="A signed run folder, or its envelope alone.")],
    key: Annotated[Path, typer.Option(help="The signer's public key.")],
    ledger: LedgerFile = None,
    anchor: Annotated[
        str | None, typer.Option(metavar="ENTRIES:SHA256", help="An earlier head of the ledger, kept elsewhere.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Show that this image was forgotten.")] = None,
    commitment_key: CommitmentKey = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check a signed run, offline; exit code 7 where anything is not as it was signed."""
    from famr.provenance import verifying
    from famr.provenance.commitments import default_key_path
    from famr.provenance.keys import read_public_key

    verified = verifying.verify_run(run, read_public_key(key), ledger=ledger, anchor=anchor)
    if image is not None:
        verifying.prove_forgotten(
            verified, image, commitment_key or default_key_path(run if run.is_dir() else run.parent)
        )
    if as_json:
        print_json({**verified.to_json(), "image_was_forgotten": None if image is None else True})
        return
    _tell(verified)
    if image is not None:
        print(f"image       was forgotten: {visible(str(image))}")


def _tell(verified: VerifiedRun) -> None:
    from famr.provenance.verifying import describe_request

    predicate: dict[str, Any] = verified.statement["predicate"]
    if verified.files is None:
        print("SIGNATURE HOLDS, FILES NOT CHECKED: only the envelope was given")
    else:
        print(f"verified: all {verified.files} files are as they were signed, and there are no others")
    print(f"key         {verified.key}: compare it with what the signer told you")
    print(f"signed at   {visible(predicate['signed_at'])} by the signer's clock")
    print(f"request     {visible(describe_request(predicate))}")
    print(f"weights     {predicate['original']['weights_sha256'] or 'trained anew'}")
    print(f"         -> {predicate['unlearned']['weights_sha256']}")
    if verified.ledger is not None:
        print(f"ledger      entry {verified.seq}; whole, with {len(verified.ledger.entries)} entries")
        print(f"anchor      {verified.ledger.anchor}")
    elif predicate["ledger"] is not None:
        print(f"ledger      NOT CHECKED: {visible(predicate['ledger'])}; give it with --ledger")
    say("A signature shows who vouches for a run and that it is unchanged; not that the model has forgotten.")


def _forgotten_images(run: Path, data: str | None, data_root: str | None) -> Images:
    """The images that a run forgot, opened as its records say."""
    from famr.cli.commands import recorded_facts, splits_for
    from famr.data.splits import EarlierRequest
    from famr.errors import CheckpointError
    from famr.models import load_model
    from famr.provenance.statement import read_signable_run

    facts, model = read_signable_run(run), load_model(str(run))
    if model.digest() != facts.unlearned_weights:
        raise CheckpointError(
            "The run's weights are not those its record speaks of.", where=str(run), fix="Restore the folder."
        )
    earlier = [EarlierRequest.from_json(values) for values in facts.record.get("earlier", [])]
    opened = recorded_facts(run, facts.record, data, data_root)
    return splits_for(model, facts.request, opened, earlier)[1].forget


def _passphrase(confirm: bool = False) -> str:
    """From the environment, or asked for; never from the command line, where others could read it."""
    from famr.errors import RequestError

    given = os.environ.get(PASSPHRASE)
    if given:
        return given
    if not sys.stdin.isatty():
        raise RequestError("The key needs a passphrase.", fix=f"Set {PASSPHRASE}, or run this on a terminal.")
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True))


COMMANDS = (keygen, sign, verify)
