"""Accuracy after int8 weights, half precision and export."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import famr
from audited import same_weights, weights_of, with_low_bias
from famr.audit.conversions import (
    hits_after_conversion,
    in_half_precision,
    quantised,
    round_to_grid,
    through_onnx,
)
from famr.engine.inference import predict
from famr.errors import NumericsError
from famr.models import onnx
from famr.models.layers import head_of

CPU = torch.device("cpu")


def test_rounding_is_torchs_own_quantisation_a_row() -> None:
    weight = torch.randn(7, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    scales = weight.flatten(1).abs().amax(dim=1) / 127
    zeros = torch.zeros(7, dtype=torch.int32)
    torchs = torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -127, 127)
    assert torch.allclose(round_to_grid(weight), torchs, atol=1e-6)
    slow = torch.stack([torch.round(row / row.abs().max() * 7) * row.abs().max() / 7 for row in weight])
    assert torch.allclose(round_to_grid(weight, bits=4), slow, atol=1e-6)
    assert all(len(row.unique()) <= 255 for row in round_to_grid(torch.randn(2, 5000)))


def test_an_edit_below_half_a_step_is_lost_in_rounding(original: famr.Classifier) -> None:
    on_grid = quantised(original)
    edited = on_grid.copy()
    weight = head_of(edited).weight
    step = weight.detach().abs().amax(dim=1) / 127
    with torch.no_grad():  # every weight of the row but the largest moves by 0.4 steps
        small = weight[3].abs() < weight[3].abs().max()
        weight[3, small] += 0.4 * step[3]
    assert not same_weights(weights_of(edited), weights_of(on_grid))
    back = quantised(edited)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights_of(back), weights_of(on_grid), strict=True))


def test_forgetting_that_rounding_undoes_is_caught(original: famr.Classifier, without_three: famr.Splits) -> None:
    """A head of many small edits that add up at full precision, and are all rounded away at eight bits."""

    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = original.copy().module
            self.fine = torch.nn.Linear(4000, 10, bias=False)
            with torch.no_grad():
                self.fine.weight.zero_()
                self.fine.weight[:, 0] = 1.0  # sets the scale of each row; its input is 0
                self.fine.weight[3, 1:] = -0.003  # below 1/254: rounded away

        def forward(self, images: Tensor) -> Tensor:
            ones = torch.ones(len(images), 4000, dtype=images.dtype)
            ones[:, 0] = 0.0
            logits: Tensor = self.body(images) + 2 * self.fine(ones)
            return logits

    fragile = replace(original, module=Summed())
    assert without_three.test is not None
    found = hits_after_conversion(fragile, without_three.forget, conversions=("int8", "bf16"), device="cpu")
    retained = hits_after_conversion(fragile, without_three.test, conversions=("int8",), device="cpu")
    assert float(found.unconverted.mean()) == 0
    assert float(retained.unconverted.mean()) == pytest.approx(retained.accuracy("int8"), abs=0.02)
    assert found.accuracy("int8") > 0.9
    assert found.accuracy("bf16") == 0


def test_each_conversion_is_evaluated_on_the_given_images(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    hidden, before = with_low_bias(original), weights_of(original)
    found = {
        "o": hits_after_conversion(original, without_three.forget, device="cpu"),
        "h": hits_after_conversion(hidden, without_three.forget, conversions=("int8", "bf16", "fp16"), device="cpu"),
    }
    assert set(found["o"].converted) == {"int8", "bf16", "fp16", "onnx"}
    assert found["o"].accuracy("onnx") == pytest.approx(float(found["o"].unconverted.mean()), abs=0.01)
    scores = famr.evaluation.evaluate.compare(None, original, None, without_three, device="cpu").unlearned
    assert float(found["o"].unconverted.mean()) == scores.forget_accuracy
    for conversion in ("int8", "bf16", "fp16"):
        assert found["o"].accuracy(conversion) == pytest.approx(scores.forget_accuracy, abs=0.03)
        assert found["h"].accuracy(conversion) == 0  # a low bias survives all of them
    assert same_weights(before, weights_of(original))
    assert json.loads(json.dumps(found["h"].to_json()))["as_it_is"] == 0


def test_half_precision_is_in_the_weights_and_the_arithmetic(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    half = in_half_precision(original, torch.bfloat16)
    assert {parameter.dtype for parameter in half.module.parameters()} == {torch.bfloat16}
    fine, coarse = (predict(model, without_three.forget, CPU).logits for model in (original, half))
    assert coarse.dtype == torch.float32
    assert 0 < float((fine - coarse).abs().max()) < 0.5


def test_an_overflow_is_reported_and_has_no_accuracy(original: famr.Classifier, without_three: famr.Splits) -> None:
    overflowing = original.copy()
    with torch.no_grad():
        head_of(overflowing).bias[0] += 1e6
    with pytest.raises(NumericsError, match="overflows in float16"):
        predict(in_half_precision(overflowing, torch.float16), without_three.forget, CPU)
    found = hits_after_conversion(overflowing, without_three.forget, conversions=("bf16", "fp16"), device="cpu")
    assert "fp16" not in found.converted
    assert found.not_available["fp16"] == "not available: the network overflows in float16"
    assert "bf16" in found.converted


def test_without_onnx_the_result_says_so(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx.importlib.util, "find_spec", lambda _name: None)
    found = hits_after_conversion(original, without_three.forget, conversions=("onnx",), device="cpu")
    assert found.not_available["onnx"] == "not available: onnx is not installed"
    assert not found.converted


def test_an_exported_model_predicts_as_the_model_does(original: famr.Classifier) -> None:
    prepared = original.require_preprocessing()
    images = torch.randn(5, prepared.channels, *prepared.crop)
    assert torch.allclose(through_onnx(original).logits(images), original.logits(images), atol=1e-4)
