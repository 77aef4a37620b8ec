"""The gate on relearning."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates.attacked import attacked_models, was_run
from famr.audit.gates.base import Gate, gap_to_references
from famr.audit.measurements import RELEARNING, ModelMeasurements
from famr.audit.names import RETRAINED

NO_ORIGINAL = "relearning takes the original, whose accuracy it is measured by"
NO_HITS = "the original recognises none of the images that relearning is measured on"


def relearned_area(model: ModelMeasurements) -> Tensor:
    """One value for each checked image, whose mean is the area of the relearning curve, averaged over draws.

    Args:
        model: The model.
    """
    assert model.relearning is not None
    of_runs = [
        torch.tensor(run.by_image, dtype=torch.float64) * run.checked / run.original_hits for run in model.relearning
    ]
    return torch.stack(of_runs).mean(dim=0)


def steps_suffice(models: ComparedModels) -> bool:
    """Whether a retrained model has 95 % of the original's hits in any run, or an audited one that began below them.

    An audited model that is at the mark before the first step, as the original, shows nothing about the steps.

    Args:
        models: Those that relearned.
    """
    references = [run.steps for model in models.references for run in model.relearning or ()]
    audited = [run.steps for model in models.audited.values() for run in model.relearning or ()]
    return any(steps is not None for steps in references) or any(audited)


def relearning_gaps(models: ComparedModels) -> Estimates:
    """Gaps of the areas; where no model of the audit comes back, too few steps were taken to tell.

    Args:
        models: The whole audit.
    """
    attacked = attacked_models(models, "relearning")
    runs = [run for model in attacked.audited.values() for run in model.relearning or ()]
    if not runs:
        return _not_available(models, NO_ORIGINAL)
    if not all(run.original_hits for run in runs):
        return _not_available(models, NO_HITS)
    if attacked.references and not steps_suffice(attacked):
        steps = runs[0].measured[-1]
        reason = (
            f"no model came back to 95 % of the original's accuracy within {steps} steps, so that all curves are cut "
            "off; it takes more steps, more images or a higher learning rate"
        )
        names = (*attacked.audited, RETRAINED)
        return Estimates({name: Estimate.not_available(reason) for name in names})
    return gap_to_references(relearned_area)(attacked)


def _not_available(models: ComparedModels, reason: str) -> Estimates:
    return Estimates({name: Estimate.not_available(reason) for name in models.audited})


RELEARNING_GAP = Gate(
    name="relearning_gap",
    title="the forgotten data is relearned at another pace than by retrained models",
    description="|area under the relearning curve − retrained|: mean accuracy on other forget images over "
    f"{RELEARNING.steps} steps of fine-tuning on a few, as a share of the original's.",
    threshold=0.1,
    measure=relearning_gaps,
    kind="depth",
    applies=was_run("perturbed"),  # in every audit that is not quick, also without the original
)
