"""The audits of a run: appended one after another, never replaced.

`unlearning/audits/0001.json`, `0002.json` and so on; each has the SHA-256 of the one before it, so that an earlier
audit cannot be removed or changed without a trace. `unlearning/audit.json` is the latest of them, for readers of one
file. The chain alone does not show that its last audit was taken away; a signature does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from famr._version import __version__
from famr.errors import CheckpointError
from famr.runs.folder import add_to_run
from famr.storage.digests import bytes_digest
from famr.storage.locks import locked

LATEST = "unlearning/audit.json"
AUDITS = "unlearning/audits"
WAIT_SECONDS = 60.0
"""How long an audit that is finished waits for another process that writes into the same run."""


@dataclass(frozen=True)
class RecordedAudit:
    """An audit in a run folder.

    Attributes:
        number: Its place among the audits of the run, from 1.
        name: Its file in the run folder.
        sha256: Of the file.
        content: The file.
    """

    number: int
    name: str
    sha256: str
    content: Mapping[str, Any]

    @property
    def made_at(self) -> str | None:
        """When it was made, by the clock of the machine; None for an audit of the first edition."""
        return self.content.get("made_at")

    @property
    def verdict(self) -> str | None:
        """The verdict on the unlearned model; None where the audit has none."""
        verdicts = self.content.get("verdicts")
        return verdicts.get("unlearned") if isinstance(verdicts, Mapping) else None

    @property
    def subject(self) -> Mapping[str, Any]:
        """What was audited, and how: digests of the weights, seed, quick."""
        subject = self.content.get("subject")
        return subject if isinstance(subject, Mapping) else {}

    @property
    def references(self) -> tuple[str, ...]:
        """SHA-256 of the weights of the retrained models."""
        return tuple(self.subject.get("retrained_sha256") or ())

    def is_of(self, weights_sha256: str) -> bool:
        """Whether it audited these weights.

        Args:
            weights_sha256: Of the unlearned model.
        """
        return bool(self.subject.get("unlearned_sha256") == weights_sha256)


def append_audit(run: Path, content: Mapping[str, Any]) -> Path:
    """Add an audit to a run after all earlier ones, and seal the run again.

    An `audit.json` of the first edition becomes number 1, as it is. After a kill at any moment the chain is whole.

    Args:
        run: The run folder.
        content: Of the audit; the header is put before it: number, made_at, famr, previous_sha256.

    Returns:
        The file of the audit.

    Raises:
        CheckpointError: A sealed file was changed, or an earlier audit is missing or was changed.
        StorageError: Another process writes there, or the file cannot be written.
    """
    with locked(run, wait=WAIT_SECONDS):
        earlier = read_audits(run)
        header = {
            "number": len(earlier) + 1,
            "made_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "famr": __version__,
            "previous_sha256": earlier[-1].sha256 if earlier else None,
        }
        audit = {**header, **content, **header}
        text = json.dumps(audit, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        name = _name(len(earlier) + 1)
        copied = {}
        if earlier and earlier[-1].name == LATEST:
            copied[_name(len(earlier))] = (run / LATEST).read_text(encoding="utf-8")
        add_to_run(run, {**copied, LATEST: text, name: text})  # releases the lock: nothing is done after it
    return run / name


def read_audits(run: Path) -> list[RecordedAudit]:
    """The audits of a run, the first one first.

    Args:
        run: The run folder.

    Raises:
        CheckpointError: An audit is damaged, or an earlier one is missing or was changed.
    """
    files = sorted((run / AUDITS).glob("*.json"), key=lambda file: (len(file.name), file.name))
    audits = [_read(run, f"{AUDITS}/{file.name}", number) for number, file in enumerate(files, 1)]
    if (run / LATEST).is_file():
        latest = _read(run, LATEST, len(audits) + 1)
        if not audits or latest.sha256 != audits[-1].sha256:
            audits.append(latest)  # of the first edition, or its writer was killed before it had its number
    elif audits:
        raise _broken(run / LATEST, "The latest audit is missing")
    for audit, previous in zip(audits, [None, *audits], strict=False):
        _require_next(run, audit, previous)
    return audits


def describe_audits(verdicts: Sequence[str | None]) -> str:
    """How many audits there were, and their verdicts, on one line.

    >>> describe_audits(["fail", "cannot tell", "pass"]), describe_audits(["pass"])
    ('3 audits: fail, cannot tell, pass (the latest)', '1 audit: pass')
    >>> describe_audits([])
    'no audit'

    Args:
        verdicts: On the unlearned model, the first audit first.
    """
    if not verdicts:
        return "no audit"
    names = ", ".join(verdict or "no verdict" for verdict in verdicts)
    return f"1 audit: {names}" if len(verdicts) == 1 else f"{len(verdicts)} audits: {names} (the latest)"


def _name(number: int) -> str:
    return f"{AUDITS}/{number:04d}.json"


def _read(run: Path, name: str, number: int) -> RecordedAudit:
    try:
        text = (run / name).read_bytes()
        content = dict(json.loads(text))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError("An audit of the run is damaged.", where=str(run / name), fix="Restore it.") from error
    return RecordedAudit(number, name, bytes_digest(text), content)


def _require_next(run: Path, audit: RecordedAudit, previous: RecordedAudit | None) -> None:
    """That an audit follows on the one before it; the first may be of the first edition, which wrote no header."""
    if audit.name not in (_name(audit.number), LATEST):
        raise _broken(run / _name(audit.number), "An earlier audit is missing")
    if previous is None and "previous_sha256" not in audit.content:
        return
    if audit.content.get("number") != audit.number:
        raise _broken(run / audit.name, f"An audit is missing or was replaced: this should be number {audit.number}")
    if audit.content.get("previous_sha256") != (None if previous is None else previous.sha256):
        where = run / (audit if previous is None else previous).name
        raise _broken(where, "An earlier audit was changed after the next one was made")


def _broken(file: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{what}.", where=str(file), fix="Restore the run folder from a copy; audits are never removed or replaced."
    )
