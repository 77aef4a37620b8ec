"""What is signed: an in-toto Statement (version 1) that names every file of a run and says how it came about."""

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
from famr.provenance.canonical import as_unicode, canonical, signable
from famr.provenance.commitments import ENCODING
from famr.runs.folder import read_unlearning
from famr.storage.digests import COMPLETE, check_complete, file_digest

ENVELOPE = "evidence.dsse.json"
"""The one file of a run folder that a signature cannot cover: itself."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:famr:evidence:v1"
"""A name, not an address."""
RECORDS = ("request.json", "run.json", "history.jsonl", "metrics.json", "certificate.json", "audit.json", "report.html")


@dataclass(frozen=True)
class Files:
    """The files of a folder by digest, and what in it cannot be signed: links, devices, names that are no text."""

    digests: dict[str, str]
    odd: list[str]


def files_of(run: Path) -> Files:
    """SHA-256 of every file of a run but its envelope, by its path in the folder; links are not followed."""
    digests, odd = {}, []
    for parent, folders, files in os.walk(run, onerror=_unreadable):
        for entry in (*folders, *files):
            path = Path(parent, entry)
            name = path.relative_to(run).as_posix()
            plain = path.is_dir() if entry in folders else path.is_file()
            if path.is_symlink() or not plain or as_unicode(name) != name:
                odd.append(name)
            elif entry in files and name != ENVELOPE:
                try:
                    digests[name] = file_digest(path)
                except OSError as error:
                    _unreadable(error)
    return Files(dict(sorted(digests.items())), sorted(odd))


def _unreadable(error: OSError) -> None:
    raise CheckpointError(
        f"A part of the run cannot be read: {error.strerror}.",
        where=as_shown(str(error.filename)),
        fix="Make it readable.",
    ) from error


def as_shown(name: str) -> str:
    r"""A file's name on one line: one that could steer a terminal or pass for another line is spelled out.

    >>> as_shown("Käse.png"), as_shown("a\n  verified")
    ('Käse.png', "'a\\n  verified'")
    """
    return name if name.isprintable() else repr(name)


@dataclass(frozen=True)
class Facts:
    """What a finished run says about itself."""

    request: Request
    place: str
    """The folder of its records: `unlearning`, or `training` where a model was trained anew without something."""
    record: Mapping[str, Any]
    metrics: Mapping[str, Any] | None

    @property
    def unlearned_weights(self) -> str:
        """SHA-256 of the weights that the run arrived at."""
        return str((self.record["unlearned"] if self.place == "unlearning" else self.record)["weights_sha256"])

    @property
    def original_weights(self) -> str | None:
        """SHA-256 of the weights that the run started from; a retraining starts from none that matter."""
        return str(self.record["original"]["weights_sha256"]) if self.place == "unlearning" else None

    @property
    def forget_count(self) -> int | None:
        """How many images were forgotten, where that was measured."""
        return None if self.metrics is None else self.metrics.get("unlearned", {}).get("counts", {}).get("forget")


def facts_of(run: Path) -> Facts:
    """The records of a finished run that forgot something; any other folder is refused."""
    if not run.is_dir():
        raise RequestError("There is no such run folder.", where=str(run), fix="Name a folder that famr wrote.")
    if not (run / COMPLETE).is_file():
        raise CheckpointError(
            "This is no finished run: it has no COMPLETE.json.", where=str(run), fix="Name a folder that famr wrote."
        )
    check_complete(run)
    try:
        if not (run / "training/run.json").is_file():
            request, record = read_unlearning(run)
            return Facts(request, "unlearning", record, _metrics(run / "unlearning/metrics.json"))
        record = json.loads((run / "training/run.json").read_text(encoding="utf-8"))
        if record["without"] is None:
            raise RequestError(
                "This model was trained on everything; it has forgotten nothing.",
                where=str(run),
                fix="Name a folder that `famr forget` or `famr train --without-…` wrote.",
            )
        request = Request.from_json(record["without"])
        return Facts(request, "training", record, _metrics(run / "training/metrics.json"))
    except (ValueError, KeyError) as error:
        raise CheckpointError("The run's records are damaged.", where=str(run), fix="Restore it.") from error


def _metrics(file: Path) -> Mapping[str, Any] | None:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def statement(
    facts: Facts,
    files: Mapping[str, str],
    commitments: Sequence[str] | None,
    key_id: str | None,
    why_none: str | None,
    ledger: str | None,
) -> bytes:
    """The canonical bytes to be signed. Names no sample and no place on the signer's machine."""
    record = facts.record
    predicate = {
        "request": _without_names(facts.request),
        "forgotten": {
            "algorithm": "HMAC-SHA256",
            "encoding": ENCODING,
            "key_id": key_id,
            "commitments": commitments,
            "not_available": why_none,
        },
        "original": {"weights_sha256": facts.original_weights},
        "unlearned": {"weights_sha256": facts.unlearned_weights},
        "configuration": {name: record.get(name) for name in ("method", "training", "seed", "device", "classes")},
        "environment": record.get("environment"),
        "metrics": facts.metrics,
        "records": {
            name.partition(".")[0]: next((place for place in (f"{facts.place}/{name}", name) if place in files), None)
            for name in RECORDS
        },
        "signed_with": {"famr": __version__, "code_sha256": code_digest()},
        "signed_at": now(),
        "ledger": ledger,
    }
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()],
            "predicateType": PREDICATE_TYPE,
            "predicate": signable(predicate),
        }
    )


def _without_names(request: Request) -> dict[str, Any]:
    """The request; of samples only their number, as their names may be people's."""
    values = request.to_json()
    if "samples" in values:
        values["samples"] = len(values["samples"])
    return values


def now() -> str:
    """The signer's clock, to the second.

    >>> now()[-1]
    'Z'
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def code_digest() -> str:
    """SHA-256 of the canonical JSON of the digests of famr's own source files."""
    package = Path(__file__).parents[1]
    sources = {file.relative_to(package).as_posix(): file_digest(file) for file in sorted(package.rglob("*.py"))}
    return hashlib.sha256(canonical(sources)).hexdigest()
