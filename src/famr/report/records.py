"""The records of a finished run, read from its folder, with the digests of the files they were read from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.data.request import Request
from famr.errors import CheckpointError
from famr.runs.audits import RecordedAudit, read_audits
from famr.runs.folder import read_unlearning
from famr.storage.digests import check_complete, file_digest

SOURCES = (
    "model.safetensors",
    "config.json",
    "unlearning/request.json",
    "unlearning/run.json",
    "unlearning/history.jsonl",
    "unlearning/metrics.json",
    "unlearning/requests.json",
    "unlearning/certificate.json",
    "unlearning/audit.json",
)
"""The files a report is made from; no other file of the folder changes it."""


@dataclass(frozen=True)
class RunRecords:
    """The records of an unlearning run; None where a record does not exist.

    Attributes:
        name: Name of the run folder.
        request: What the run was asked to forget.
        run: ``run.json``: method, seed, steps, digests of the weights, environment.
        history: ``history.jsonl``: one row an evaluation during training, the first before the first step.
        metrics: ``metrics.json``.
        certificate: ``certificate.json``.
        audits: All audits of the run, the first one first.
        desk: ``requests.json``: the desk's requests that the run serves.
        digests: SHA-256 of each file of `SOURCES` that exists, by its path in the folder.
    """

    name: str
    request: Request
    run: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any] | None
    certificate: Mapping[str, Any] | None
    audits: Sequence[RecordedAudit]
    desk: Mapping[str, Any] | None
    digests: Mapping[str, str]

    @property
    def audit(self) -> Mapping[str, Any] | None:
        """The latest audit."""
        return self.audits[-1].content if self.audits else None

    @property
    def audit_matches_weights(self) -> bool:
        """Whether the audit evaluated the weights that the run wrote."""
        subject = (self.audit or {}).get("subject", {})
        return bool(subject.get("unlearned_sha256") == self.run["unlearned"]["weights_sha256"])


def read_run_records(folder: Path) -> RunRecords:
    """Read every record of a run folder.

    Args:
        folder: A folder that `famr forget` or `famr request run` wrote.

    Raises:
        CheckpointError: A record is damaged, or a file changed since the run was finished.
        RequestError: The folder does not exist.
    """
    request, run = read_unlearning(folder)
    check_complete(folder)
    try:
        lines = (folder / "unlearning/history.jsonl").read_text(encoding="utf-8").splitlines()
        history = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise CheckpointError("The run's history is damaged.", where=str(folder), fix="Restore it.") from error
    return RunRecords(
        name=folder.resolve().name,
        request=request,
        run=run,
        history=history,
        metrics=_read(folder / "unlearning/metrics.json"),
        certificate=_read(folder / "unlearning/certificate.json"),
        audits=read_audits(folder),
        desk=_read(folder / "unlearning/requests.json"),
        digests={name: file_digest(folder / name) for name in SOURCES if (folder / name).is_file()},
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError("A record of the run is damaged.", where=str(path), fix="Restore it.") from error
    return record


def without_folder(spec: str | None) -> str:
    """The source of a model or of data without the folders above it, which do not concern the report's readers.

    >>> without_folder("folder:/home/ann/photos"), without_folder("timm:vit_tiny_patch16_224"), without_folder("runs/a")
    ('folder:photos', 'timm:vit_tiny_patch16_224', 'a')
    >>> without_folder("hf:owner/name"), without_folder(None)
    ('hf:owner/name', 'not recorded')

    Args:
        spec: ``source:name`` or a path; None where the run recorded none.
    """
    if not spec:
        return "not recorded"
    source, colon, name = spec.rpartition(":")
    if source in ("hf", "timm", "torchvision") and not name.startswith(("/", ".", "~")):
        return spec
    return f"{source}{colon}{Path(name).name}"
