"""`famr evaluate`: the metrics of a finished run, computed again."""

from __future__ import annotations

from famr.cli.opening import load_retrained, open_run
from famr.cli.options import Device, ForgottenRun, MovedOptions, Retrained
from famr.cli.printing import Result, print_scores
from famr.evaluation.evaluate import compare


def evaluate_command(
    run: ForgottenRun, moved: MovedOptions, retrained: Retrained = None, device: Device = "auto"
) -> Result:
    """Evaluate a finished run again: the five metrics, and the gaps to a retrained model.

    Args:
        run: The run folder.
        moved: What is no longer where its records say.
        retrained: The retrained model.
        device: Where to compute.
    """
    opened = open_run(run, moved)
    reference = load_retrained(retrained, opened.model, opened.request) if retrained else None
    scores = compare(opened.original, opened.model, reference, opened.splits, device=device)
    return Result(scores.to_json(), lambda: print_scores(scores, str(run)))
