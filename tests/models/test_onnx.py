"""Networks as ONNX; what ONNX runtime computes is tested with the export."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from famr.data.transforms import Preprocessing
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.onnx import OnnxNetwork, to_onnx


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_onnx_the_error_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    model = Classifier(nn.Flatten(), None, Preprocessing(2, (2, 2), (0.5,), (0.5,)))
    with pytest.raises(RequestError, match=f"{package} is needed here") as caught:
        to_onnx(model)
    assert caught.value.fix == "pip install 'famr[onnx]'"


def test_without_onnx_runtime_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RequestError, match="onnxruntime is needed here") as caught:
        OnnxNetwork(b"")
    assert caught.value.fix == "pip install 'famr[onnx]'"
