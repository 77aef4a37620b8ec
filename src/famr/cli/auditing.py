"""What `famr audit` does, between parsing and printing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from famr.audit.audit import audit
from famr.audit.shadow_logits import ShadowLogits
from famr.audit.style_probe import StyleLayer
from famr.audit.verdict import Audit, read_thresholds
from famr.cli.commands import OpenRun, load_reference, open_run
from famr.cli.shadowing import Shadowing, shadows_of
from famr.errors import GateError
from famr.runs.folder import add_to_run


@dataclass(frozen=True)
class Places:
    """Where to find what a run does not hold itself."""

    original: str | None = None
    data: str | None = None
    data_root: str | None = None


def run_audit(
    run: Path,
    retrained: Sequence[str],
    places: Places,
    thresholds: Path | None,
    shadowing: Shadowing | None,
    quick: bool,
    seed: int,
    device: str,
) -> Audit:
    """Audit a finished run from its records, and put the outcome into its folder."""
    limits = None if thresholds is None else read_thresholds(thresholds)
    opened = open_run(run, places.original, places.data, places.data_root)
    references = [load_reference(place, opened.model, opened.request) for place in retrained]
    shadows: ShadowLogits | None = None
    if shadowing is not None:
        shadows = shadows_of(opened, shadowing, places.original, seed, device)
    found = audit(
        opened.model,
        opened.splits,
        original=opened.original,
        retrained=references,
        shadows=shadows,
        style=style_layer(opened),
        quick=quick,
        thresholds=limits,
        seed=seed,
        device=device,
    )
    content = json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    add_to_run(run, {"unlearning/audit.json": content})
    return found


def style_layer(opened: OpenRun) -> StyleLayer | None:
    """The layer in which a style was forgotten; None for other requests."""
    method = opened.record["method"]
    if opened.request.style is None or method.get("style_layer") is None:
        return None
    return StyleLayer(method["style_layer"], method["style_channels_last"])


def require_pass(found: Audit) -> None:
    """Exit code 7 where the unlearned model fails a gate."""
    failed = [check.name for check in found.checks if check.verdicts.get("unlearned") == "fail"]
    if failed:
        raise GateError(
            f"The unlearned model fails {len(failed)} of {len(found.checks)} gates of the audit.",
            where=", ".join(failed),
            fix="See unlearning/audit.json; forget with another target or strength, or retrain.",
        )
