"""The signed statement: an in-toto Statement (version 1) with the digest of every file of a run and how it was made."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from famr._version import __version__
from famr.data.request import Request
from famr.errors import CheckpointError, RequestError
from famr.provenance.canonical import as_unicode, canonical_json, signable
from famr.provenance.commitments import ENCODING
from famr.runs.folder import read_unlearning
from famr.storage.digests import COMPLETE, check_complete, file_digest

ENVELOPE = "evidence.dsse.json"
"""The one file of a run folder that the signature does not cover: its own."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:famr:evidence:v1"
"""A name, not an address."""
RECORDS = ("request.json", "run.json", "history.jsonl", "metrics.json", "certificate.json", "audit.json", "report.html")


@dataclass(frozen=True)
class RunFiles:
    """The files of a run folder.

    Attributes:
        digests: SHA-256 of each file, by its path in the folder.
        unsignable: Links, devices and names that are not Unicode.
    """

    digests: dict[str, str]
    unsignable: list[str]


def hash_run_files(run: Path) -> RunFiles:
    """Hash every file of a run except its envelope; links are not followed.

    Args:
        run: The folder of the run.

    Raises:
        CheckpointError: A file or folder cannot be read.
    """
    digests, unsignable = {}, []
    for parent, folders, files in os.walk(run, onerror=_unreadable):
        for entry in (*folders, *files):
            path = Path(parent, entry)
            name = path.relative_to(run).as_posix()
            regular = path.is_dir() if entry in folders else path.is_file()
            if path.is_symlink() or not regular or as_unicode(name) != name:
                unsignable.append(name)
            elif entry in files and name != ENVELOPE:
                try:
                    digests[name] = file_digest(path)
                except OSError as error:
                    _unreadable(error)
    return RunFiles(dict(sorted(digests.items())), sorted(unsignable))


def _unreadable(error: OSError) -> None:
    raise CheckpointError(
        f"A part of the run cannot be read: {error.strerror}.",
        where=printable_name(str(error.filename)),
        fix="Make it readable.",
    ) from error


def printable_name(name: str) -> str:
    r"""A file name on one line; one with characters that could control a terminal or break the line is quoted.

    >>> printable_name("Käse.png"), printable_name("a\n  verified")
    ('Käse.png', "'a\\n  verified'")

    Args:
        name: The name.
    """
    return name if name.isprintable() else repr(name)


@dataclass(frozen=True)
class SignableRun:
    """The records of a finished run that forgot something.

    Attributes:
        request: What was forgotten.
        folder: Where the records are in the run folder: ``unlearning``, or ``training`` for a retrained model.
        record: ``run.json``.
        metrics: ``metrics.json``; None where the run has none.
    """

    request: Request
    folder: str
    record: Mapping[str, Any]
    metrics: Mapping[str, Any] | None

    @property
    def unlearned_weights(self) -> str:
        """SHA-256 of the weights that the run wrote."""
        return str((self.record["unlearned"] if self.folder == "unlearning" else self.record)["weights_sha256"])

    @property
    def original_weights(self) -> str | None:
        """SHA-256 of the weights that the run started from; None for a retrained model."""
        return str(self.record["original"]["weights_sha256"]) if self.folder == "unlearning" else None

    @property
    def forget_count(self) -> int | None:
        """How many images were forgotten; None where the run has no metrics."""
        return None if self.metrics is None else self.metrics.get("unlearned", {}).get("counts", {}).get("forget")


def read_signable_run(run: Path) -> SignableRun:
    """Read the records of a finished run.

    Args:
        run: A folder that `famr forget` or `famr train --without-…` wrote.

    Raises:
        CheckpointError: The run is not finished, a file changed since then, or a record is damaged.
        RequestError: The folder does not exist, or its model was trained on all data.
    """
    if not run.is_dir():
        raise RequestError("There is no such run folder.", where=str(run), fix="Give a folder that famr wrote.")
    if not (run / COMPLETE).is_file():
        raise CheckpointError(
            "This is not a finished run: it has no COMPLETE.json.", where=str(run), fix="Give a folder that famr wrote."
        )
    check_complete(run)
    try:
        if not (run / "training/run.json").is_file():
            request, record = read_unlearning(run)
            return SignableRun(request, "unlearning", record, _read_metrics(run / "unlearning/metrics.json"))
        record = json.loads((run / "training/run.json").read_text(encoding="utf-8"))
        if record["without"] is None:
            raise RequestError(
                "This model was trained on all data; it has forgotten nothing.",
                where=str(run),
                fix="Give a folder that `famr forget` or `famr train --without-…` wrote.",
            )
        request = Request.from_json(record["without"])
        return SignableRun(request, "training", record, _read_metrics(run / "training/metrics.json"))
    except (ValueError, KeyError) as error:
        raise CheckpointError("The run's records are damaged.", where=str(run), fix="Restore it.") from error


def _read_metrics(file: Path) -> Mapping[str, Any] | None:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


@dataclass(frozen=True)
class Commitments:
    """The commitments of a statement to the forget images.

    Attributes:
        values: The commitments, sorted; None where the images are not available.
        key_id: Which key they were made with.
        reason_missing: Why `values` is None.
    """

    values: Sequence[str] | None = None
    key_id: str | None = None
    reason_missing: str | None = None


def build_statement(
    run: SignableRun,
    digests: Mapping[str, str],
    commitments: Commitments,
    ledger: str | None,
    audits: Mapping[str, Any],
) -> bytes:
    """The statement to be signed; it names no sample and no path on the signer's machine.

    Args:
        run: The records of the run.
        digests: SHA-256 of each file of the run, by its path in the folder.
        commitments: The commitments to the forget images.
        ledger: Id of the ledger that the statement will be entered in; None for no ledger.
        audits: What `audit_history` returns.

    Returns:
        Canonical JSON.
    """
    record = run.record
    predicate = {
        "request": _without_names(run.request),
        "forgotten": {
            "algorithm": "HMAC-SHA256",
            "encoding": ENCODING,
            "key_id": commitments.key_id,
            "commitments": commitments.values,
            "not_available": commitments.reason_missing,
        },
        "original": {"weights_sha256": run.original_weights},
        "unlearned": {"weights_sha256": run.unlearned_weights},
        "configuration": {name: record.get(name) for name in ("method", "training", "seed", "device", "classes")},
        "environment": record.get("environment"),
        "metrics": run.metrics,
        "records": {
            name.partition(".")[0]: next((path for path in (f"{run.folder}/{name}", name) if path in digests), None)
            for name in RECORDS
        },
        "audits": audits,
        "signed_with": {"famr": __version__, "code_sha256": code_digest()},
        "signed_at": utc_now(),
        "ledger": ledger,
    }
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
            "predicateType": PREDICATE_TYPE,
            "predicate": signable(predicate),
        }
    )


def _without_names(request: Request) -> dict[str, Any]:
    """The request; samples are replaced by their number, as their names may identify people."""
    values = request.to_json()
    if "samples" in values:
        values["samples"] = len(values["samples"])
    return values


def utc_now() -> str:
    """The time of the signer's clock, to the second.

    >>> utc_now()[-1]
    'Z'
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def code_digest() -> str:
    """SHA-256 of the canonical JSON of the digests of famr's source files."""
    package = Path(__file__).parents[1]
    sources = {file.relative_to(package).as_posix(): file_digest(file) for file in sorted(package.rglob("*.py"))}
    return hashlib.sha256(canonical_json(sources)).hexdigest()
