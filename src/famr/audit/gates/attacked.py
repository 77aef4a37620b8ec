"""Gaps of measures that only some models of an audit have: attacks that train are run on a few reference models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimates
from famr.audit.gates.base import Measure, SpreadOf, gap_to_references, of_gaps
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import PerImage


def attacked_models(models: ComparedModels, attack: str) -> ComparedModels:
    """The models on which an attack was run.

    Args:
        models: The whole audit.
        attack: Its field in `ModelMeasurements`.
    """

    def run_on(model: ModelMeasurements) -> bool:
        return getattr(model, attack) is not None

    audited = {name: model for name, model in models.audited.items() if run_on(model)}
    return replace(models, audited=audited, references=[each for each in models.references if run_on(each)])


def was_run(attack: str) -> Callable[[ComparedModels], bool]:
    """For gates of an attack that was run on the unlearned model.

    Args:
        attack: Its field in `ModelMeasurements`.
    """
    return lambda models: getattr(models.unlearned, attack) is not None


def gap_of_attacked(attack: str, values: PerImage, spread: SpreadOf = of_gaps) -> Measure:
    """The gap to those retrained models on which an attack was run.

    Args:
        attack: Its field in `ModelMeasurements`.
        values: The measure whose gap is taken.
        spread: How to bound that of one more reference model.
    """

    def measure(models: ComparedModels) -> Estimates:
        return gap_to_references(values, spread)(attacked_models(models, attack))

    return measure
