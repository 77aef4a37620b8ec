"""`famr audit`: attacks on a finished run, judged by thresholds; written into the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from famr.audit.audit import audit
from famr.audit.controls import train_never_saw
from famr.audit.costs import PartDone
from famr.audit.names import UNLEARNED
from famr.audit.references import Reference
from famr.audit.style_probe import StyleLayer
from famr.audit.verdict import Audit, read_thresholds
from famr.cli.opening import OpenedRun, load_retrained, open_run
from famr.cli.options import AlwaysResumes, Device, ForgottenRun, MovedOptions, Quiet, Seed
from famr.cli.printing import Result, print_audit, say, say_note
from famr.cli.shadow_models import ShadowTask, train_shadow_models, training_of
from famr.data.calibration import NONE_SEEN
from famr.errors import CheckpointError, GateError, RequestError
from famr.models import Classifier
from famr.runs.audits import append_audit, describe_audits, read_audits

NEVER_SAW_SEED = 2**31 - 1
"""Of the control that the audit trains itself: no seed of a user's."""


@dataclass(frozen=True, kw_only=True)
class ShadowOptions:
    """Shadow models for LiRA and U-LiRA.

    Attributes:
        shadows: Shadow models to train in all, for LiRA and U-LiRA.
        shadow_start: What their training starts from: scratch, or the checkpoint that was fine-tuned.
        shadow_cache: Folder that keeps them. None: RUN.shadows.
    """

    shadows: int | None = None
    shadow_start: str | None = None
    shadow_cache: Path | None = None


def audit_command(
    run: ForgottenRun,
    moved: MovedOptions,
    shadow: ShadowOptions,
    retrained: list[str] | None = None,
    never_saw: str | None = None,
    thresholds: Path | None = None,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    resume: AlwaysResumes = False,  # noqa: ARG001  # finished shadow models are in the cache in any case
    quiet: Quiet = False,
) -> Result:
    """Audit a run with attacks; exit code 7 where a gate fails.

    The outcome is added to the run folder; earlier audits stay. An audit that was stopped is simply started again:
    finished shadow models are not trained twice.

    Args:
        run: The run folder.
        moved: What is no longer where its records say.
        shadow: Shadow models.
        retrained: A model trained without the forget set, one for each seed; five or more for a verdict.
        never_saw: A model trained without it for a fraction of the epochs. None: one is trained, where it is known how.
        thresholds: A JSON file of thresholds, fixed before the run; none may be looser than the gate's own.
        quick: Leave out the attacks that train, rounding, export and CKA; such an audit cannot pass.
        seed: Of the audit.
        device: Where to compute.
        resume: It always resumes.
        quiet: Show no progress.
    """
    limits = None if thresholds is None else read_thresholds(thresholds)
    opened = open_run(run, moved)
    read_audits(run)  # a broken chain is an error before any work
    references = [load_retrained(spec, opened.model, opened.request) for spec in retrained or []]
    shadows = None
    if shadow.shadows is not None:
        cache = shadow.shadow_cache or Path(f"{run}.shadows")
        task = ShadowTask(shadow.shadows, shadow.shadow_start, cache, moved.original, seed, device, quiet)
        shadows = train_shadow_models(opened, task)
    outcome = audit(
        opened.model,
        opened.splits,
        original=opened.original,
        retrained=references,
        never_saw=_never_saw(opened, never_saw, shadow.shadow_start, moved, quick, device),
        shadows=shadows,
        style=_style_layer(opened),
        quick=quick,
        thresholds=limits,
        seed=seed,
        device=device,
        on_part=None if quiet else _say_part,
        held_out_seen=opened.record.get("calibration") != NONE_SEEN,
    )
    append_audit(run, outcome.to_json())
    verdicts = [each.verdict for each in read_audits(run)]

    def show() -> None:
        print_audit(outcome, str(run))
        if len(verdicts) > 1:
            say(f"in this folder: {describe_audits(verdicts)}")

    return Result(outcome.to_json(), show, failed_gates(outcome))


def _say_part(part: PartDone) -> None:
    say(f"audit: {part.done} of {part.total} done ({part.name}), about {part.seconds_left:.0f} s left")


def _never_saw(
    opened: OpenedRun, spec: str | None, start: str | None, moved: MovedOptions, quick: bool, device: str
) -> Classifier | Reference | None:
    """The model that is given, or one trained as the original was; None where it is not known how that was."""
    if spec is not None:
        return load_retrained(spec, opened.model, opened.request)
    if quick or opened.original is None or opened.splits.retain is None:
        return None
    try:
        setting = training_of(opened, moved.original, start)
    except (CheckpointError, RequestError) as error:
        say_note(f"no never-saw model is trained as a control: {error.what} {error.fix or ''}".rstrip())
        return None
    seed = NEVER_SAW_SEED
    trained = train_never_saw(setting.start, opened.splits.retain, setting.training, seed, device)
    return Reference.trained_now(trained, opened.request)


def _style_layer(opened: OpenedRun) -> StyleLayer | None:
    """The layer in which a style was forgotten; None for other requests."""
    method = opened.record["method"]
    if opened.request.style is None or method.get("style_layer") is None:
        return None
    return StyleLayer(method["style_layer"], method["style_channels_last"])


def failed_gates(outcome: Audit) -> GateError | None:
    """The gates that the unlearned model fails, as an error; None where it fails none.

    Args:
        outcome: The audit.
    """
    failed = [check.name for check in outcome.counted if check.verdicts.get(UNLEARNED) == "fail"]
    if not failed:
        return None
    return GateError(
        f"The unlearned model fails {len(failed)} of {len(outcome.counted)} gates of the audit.",
        where=", ".join(failed),
        fix="See unlearning/audit.json; forget with another target or strength, or retrain.",
    )
