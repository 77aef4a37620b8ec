"""Gates on forget accuracy that comes back when a model is rounded or exported."""

from __future__ import annotations

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, mean_estimate
from famr.audit.gates.base import Gate, MeasureOne, each_model
from famr.audit.measurements import ModelMeasurements


def has_conversions(models: ComparedModels) -> bool:
    """For gates on conversions.

    Args:
        models: Of the audit.
    """
    return models.unlearned.conversions is not None


def recovered_by_conversion(*conversions: str) -> MeasureOne:
    """Forget accuracy after the worst of some conversions − before, by the upper end of its interval.

    Args:
        conversions: Names in `ConversionHits.converted`; a model for which none was tried is left out.
    """

    def estimate(model: ModelMeasurements, models: ComparedModels) -> Estimate | None:
        hits = model.conversions
        tried = [] if hits is None else [name for name in conversions if name in hits.converted]
        if hits is None or not tried:
            return None
        changes = [mean_estimate((hits.converted[name] - hits.unconverted).double(), models.seed) for name in tried]
        return max(changes, key=lambda change: change.high or 0.0)

    return estimate


INT8_COMES_BACK = Gate(
    name="int8_comes_back",
    title="rounding to 8 bits recovers the forgotten data",
    description="Forget accuracy that is back when its weights are rounded to int8.",
    threshold=0.05,
    measure=each_model(recovered_by_conversion("int8")),
    kind="conversion",
    applies=has_conversions,
    needs_retrained=False,
)

HALF_COMES_BACK = Gate(
    name="half_comes_back",
    title="half precision recovers the forgotten data",
    description="Forget accuracy that is back when it computes in half precision, the worse of bf16 and fp16.",
    threshold=0.05,
    measure=each_model(recovered_by_conversion("bf16", "fp16")),
    kind="conversion",
    applies=has_conversions,
    needs_retrained=False,
)

ONNX_COMES_BACK = Gate(
    name="onnx_comes_back",
    title="export to ONNX recovers the forgotten data",
    description="Forget accuracy that is back when it is exported to ONNX.",
    threshold=0.05,
    measure=each_model(recovered_by_conversion("onnx")),
    kind="conversion",
    applies=has_conversions,
    needs_retrained=False,
)
