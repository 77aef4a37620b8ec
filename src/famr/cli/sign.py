"""`famr sign`: sign a finished run with everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli.opening import earlier_requests, open_splits, recorded_source
from famr.cli.options import DataRoot, MovedData, RemovedRun
from famr.cli.passphrase import read_passphrase
from famr.cli.printing import Result
from famr.data import Images
from famr.errors import CheckpointError
from famr.extras import require_extra
from famr.models import load_model
from famr.provenance.keys import read_private_key
from famr.provenance.signing import SignedRun, require_outside, sign_run
from famr.provenance.statement import read_signable_run
from famr.report.escaping import visible


def sign_command(
    run: RemovedRun,
    key: Annotated[Path, typer.Option()],
    ledger: Path | None = None,
    commitment_key: Path | None = None,
    data: MovedData = None,
    data_root: DataRoot = None,
    without_data: Annotated[bool, typer.Option("--without-data")] = False,
) -> Result:
    """Sign a finished run with everything in it; do this last, as any later change breaks the signature.

    Args:
        run: The run folder.
        key: The private key, as `famr keygen` makes it.
        ledger: The workspace's ledger.
        commitment_key: The key of the commitments. None: beside the run.
        data: Where the data is now.
        data_root: Where torchvision keeps its files now.
        without_data: The forgotten images are gone: sign without commitments to them.
    """
    for package in ("cryptography", "rfc8785"):
        require_extra(package, "evidence")
    read_signable_run(run)
    require_outside(run, key)
    signed = sign_run(
        run,
        read_private_key(key, read_passphrase),
        None if without_data else forgotten_images(run, data, data_root),
        reason_missing="the forgotten images were not available" if without_data else None,
        commitment_key=commitment_key,
        ledger=ledger,
    )
    return Result(signed.to_json(), lambda: print_signed(signed))


def forgotten_images(run: Path, data: str | None, data_root: str | None) -> Images:
    """The images that a run forgot, opened as its records say.

    Args:
        run: The run folder.
        data: Where the data is now; None: where the records say.
        data_root: Where torchvision keeps its files now; None: where the records say.

    Raises:
        CheckpointError: The weights are not those of the record.
    """
    facts, model = read_signable_run(run), load_model(str(run))
    if model.digest() != facts.unlearned_weights:
        raise CheckpointError(
            "The run's weights are not those its record speaks of.", where=str(run), fix="Restore the folder."
        )
    source = recorded_source(run, facts.record, data, data_root)
    return open_splits(model, facts.request, source, earlier_requests(facts.record))[1].forget


def print_signed(signed: SignedRun) -> None:
    """Print what was signed, and which files belong to the signature.

    Args:
        signed: The outcome.
    """
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
