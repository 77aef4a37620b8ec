"""What `famr audit` does, between parsing and printing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from famr.audits.audit import audit
from famr.audits.verdict import Audit, read_thresholds
from famr.cli.commands import load_reference, open_run
from famr.errors import GateError
from famr.runs import add_to_run


def run_audit(
    run: Path,
    retrained: Sequence[str],
    original: str | None,
    data: str | None,
    data_root: str | None,
    thresholds: Path | None,
    seed: int,
    device: str,
) -> Audit:
    """Audit a finished run from its records, and put the outcome into its folder."""
    limits = None if thresholds is None else read_thresholds(thresholds)
    opened = open_run(run, original, data, data_root)
    found = audit(
        opened.model,
        opened.splits,
        original=opened.original,
        retrained=[load_reference(place, opened.model, opened.request) for place in retrained],
        thresholds=limits,
        seed=seed,
        device=device,
    )
    content = json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    add_to_run(run, {"unlearning/audit.json": content})
    return found


def require_pass(found: Audit) -> None:
    """Exit code 7 where the unlearned model fails a gate."""
    failed = [check.name for check in found.checks if check.verdicts.get("unlearned") == "fail"]
    if failed:
        raise GateError(
            f"The unlearned model fails {len(failed)} of {len(found.checks)} gates of the audit.",
            where=", ".join(failed),
            fix="See unlearning/audit.json; forget with another target or strength, or retrain.",
        )
