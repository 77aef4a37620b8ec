"""What a finished run says about itself, read from its folder, and the digests of what was read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.data.request import Request
from famr.errors import CheckpointError
from famr.runs.folder import read_unlearning
from famr.storage.digests import check_complete, file_digest

RESTS_ON = (
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
"""The files a report is made from; nothing else of the folder changes it."""


@dataclass(frozen=True)
class Facts:
    """The records of a run; None where there is no such record."""

    name: str
    request: Request
    run: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any] | None
    certificate: Mapping[str, Any] | None
    audit: Mapping[str, Any] | None
    desk: Mapping[str, Any] | None
    """The requests of the desk that the run answers."""
    digests: Mapping[str, str]

    @property
    def audit_is_of_this_model(self) -> bool:
        """Whether the audit looked at the weights that the run wrote."""
        subject = (self.audit or {}).get("subject", {})
        return bool(subject.get("unlearned_sha256") == self.run["unlearned"]["weights_sha256"])


def read_facts(folder: Path) -> Facts:
    """Everything the folder of a run records; a file that was changed since it was sealed is an error."""
    request, run = read_unlearning(folder)
    check_complete(folder)
    try:
        lines = (folder / "unlearning/history.jsonl").read_text(encoding="utf-8").splitlines()
        history = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise CheckpointError("The run's history is damaged.", where=str(folder), fix="Restore it.") from error
    return Facts(
        name=folder.resolve().name,
        request=request,
        run=run,
        history=history,
        metrics=_read(folder / "unlearning/metrics.json"),
        certificate=_read(folder / "unlearning/certificate.json"),
        audit=_read(folder / "unlearning/audit.json"),
        desk=_read(folder / "unlearning/requests.json"),
        digests={name: file_digest(folder / name) for name in RESTS_ON if (folder / name).is_file()},
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError("A record of the run is damaged.", where=str(path), fix="Restore it.") from error
    return found


def without_path(spec: str | None) -> str:
    """What was opened, without where it lay: a report goes to people whom the folders do not concern.

    >>> without_path("folder:/home/ann/photos"), without_path("timm:vit_tiny_patch16_224"), without_path("runs/a")
    ('folder:photos', 'timm:vit_tiny_patch16_224', 'a')
    >>> without_path("hf:owner/name"), without_path(None)
    ('hf:owner/name', 'not recorded')
    """
    if not spec:
        return "not recorded"
    kind, colon, place = spec.rpartition(":")
    if kind in ("hf", "timm", "torchvision") and not place.startswith(("/", ".", "~")):
        return spec
    return f"{kind}{colon}{Path(place).name}"
