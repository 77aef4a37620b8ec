"""The unlearned model as ONNX and torch.export: the same logits, or nothing is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

import famr
from audited import weights_of
from conftest import Outcome, alg1
from famr.engine.inference import predict
from famr.errors import CheckpointError, GateError, RequestError
from famr.export import exporting, programs
from famr.export.exporting import export_model
from famr.export.slots import without_slots
from famr.models.classifier import BareArchitecture
from famr.storage.digests import check_complete, file_digest, folder_digests

CPU = torch.device("cpu")
FACTS = {
    "spec": "digits",
    "root": None,
    "label_column": None,
    "split_seed": 0,
    "match_labels_by_name": False,
    "forget_only": False,
}


@pytest.fixture(scope="module")
def result(original: famr.Classifier, without_three: famr.Splits) -> famr.Unlearned:
    return famr.forget(original, without_three, famr.FAMR(), device="cpu", monitor=famr.Monitor(track_retain=False))


@pytest.fixture(scope="module")
def unlearned_run(result: famr.Unlearned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("export") / "run", data=FACTS)


def input_images(model: famr.Classifier, splits: famr.Splits) -> torch.Tensor:
    """Five retained images, as the network takes them."""
    assert splits.test is not None
    prepared = model.require_preprocessing()
    stored = [splits.test.pixels(position, prepared.channels) for position in range(5)]
    return torch.stack([prepared.normalise(prepared.fit(pixels)) for pixels in stored])


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_the_file_computes_the_logits_of_the_model_for_any_number_of_images(
    form: str, result: famr.Unlearned, without_three: famr.Splits, tmp_path: Path
) -> None:
    before = weights_of(result.model)
    written = export_model(result.model, form, tmp_path / "out", splits=without_three)
    images = input_images(result.model, without_three)
    with torch.no_grad():
        expected = result.model.logits(images)
    for count in (1, 5):
        if form == "onnx":  # as a stranger would load it, without famr
            session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
            logits = torch.from_numpy(session.run(["logits"], {"images": images[:count].numpy()})[0])
        else:
            logits = torch.export.load(tmp_path / "out/model.pt2").module()(images[:count])
        assert torch.allclose(logits, expected[:count], atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(result.model), strict=True))
    content = next((tmp_path / "out").glob("model.*")).read_bytes()
    assert str(Path(torch.__file__).parents[1]).encode() not in content
    assert str(Path(famr.__file__).parent).encode() not in content
    assert written.measured is not None
    assert written.measured.largest_difference < 1e-3


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_forgetting_is_measured_again_on_what_was_written(
    form: str, unlearned_run: Path, without_three: famr.Splits, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    outcome = run("export", unlearned_run, "--format", form, "--output-dir", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "out/export.json").read_text(encoding="utf-8"))
    printed = json.loads(outcome.out)
    assert {name: record[name] for name in printed if name != "output_dir"} == {
        name: value for name, value in printed.items() if name != "output_dir"
    }
    model = famr.load_model(str(unlearned_run))
    by_hand = predict(model, without_three.forget, CPU)
    share = float((by_hand.logits.argmax(1) == by_hand.targets).float().mean())
    assert record["measured"]["model"]["forget_accuracy"] == pytest.approx(share)
    assert record["measured"]["export"]["forget_accuracy"] == pytest.approx(share, abs=0.01)
    assert record["measured"]["export"]["retain_accuracy"] > 0.8
    assert record["measured"]["export"]["counts"] == record["measured"]["model"]["counts"]
    assert record["source_weights_sha256"] == model.digest()
    assert record["sha256"] == file_digest(tmp_path / "out" / record["file"])
    assert record["labels"] == list(model.labels or ())
    check_complete(tmp_path / "out")
    assert set(folder_digests(tmp_path / "out")) == {record["file"], "export.json"}


def test_without_its_slot_a_class_is_gone_from_head_and_labels(
    unlearned_run: Path, without_three: famr.Splits, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    outcome = run("export", unlearned_run, "--without-slot", "--output-dir", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "out/export.json").read_text(encoding="utf-8"))
    assert record["labels"] == ["0", "1", "2", "4", "5", "6", "7", "8", "9"]
    assert record["removed_classes"] == ["3"]
    model = famr.load_model(str(unlearned_run))
    images = input_images(model, without_three)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    logits = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    with torch.no_grad():
        expected = model.logits(images)[:, [0, 1, 2, 4, 5, 6, 7, 8, 9]]
    assert torch.allclose(logits, expected, atol=1e-4)
    measured = record["measured"]
    assert measured["export"]["forget_accuracy"] is None
    assert measured["export"]["retain_accuracy"] >= measured["model"]["retain_accuracy"]
    assert record["not_available"] == {"export.forget_accuracy": exporting.NO_SLOT}
    assert "without the slots of: 3" in outcome.out
    assert "not available" in outcome.out


def test_the_weights_of_a_removed_slot_are_not_in_the_copy(original: famr.Classifier) -> None:
    shrunk = without_slots(original, ["3", "7"])
    assert shrunk.labels == ("0", "1", "2", "4", "5", "6", "8", "9")
    remaining = [0, 1, 2, 4, 5, 6, 8, 9]
    full, small = original.module.state_dict(), shrunk.module.state_dict()
    assert small["head.weight"].shape == (8, 64)
    assert torch.equal(small["head.weight"], full["head.weight"][remaining])
    assert torch.equal(small["head.bias"], full["head.bias"][remaining])
    assert all(torch.equal(small[name], full[name]) for name in full if not name.startswith("head."))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_other_kinds_of_heads_lose_their_slot_too(name: str) -> None:
    """A head under another name, in a sequence, and a convolution."""
    from famr.models.from_torchvision import TorchvisionArchitecture

    torch.manual_seed(0)
    architecture = TorchvisionArchitecture(name)
    prepared = famr.Preprocessing(resize=64, crop=(64, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = famr.Classifier(architecture.build(4).eval(), ("a", "b", "c", "d"), prepared, architecture)
    shrunk = without_slots(model, ["b"])
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(shrunk.logits(images), model.logits(images)[:, [0, 2, 3]], atol=1e-5)


def test_slots_that_cannot_be_removed_are_refused(original: famr.Classifier) -> None:
    with pytest.raises(RequestError, match="no class 'three'"):
        without_slots(original, ["three"])
    with pytest.raises(RequestError, match="nothing to choose between"):
        without_slots(original, [str(digit) for digit in range(9)])
    with pytest.raises(CheckpointError, match="build this network anew"):
        without_slots(replace(original, architecture=BareArchitecture()), ["3"])

    class Mixed(torch.nn.Module):
        """Every logit depends on all classes."""

        def __init__(self, classes: int) -> None:
            super().__init__()
            self.head = torch.nn.Linear(768, classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(images.flatten(1)).log_softmax(dim=1)

    class Odd(BareArchitecture):
        def build(self, classes: int) -> torch.nn.Module:
            return Mixed(classes)

    prepared = famr.Preprocessing(resize=16, crop=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    mixed = famr.Classifier(Mixed(4), ("a", "b", "c", "d"), prepared, Odd())
    with pytest.raises(CheckpointError, match="without changing other logits"):
        without_slots(mixed, ["b"])


def test_an_export_with_other_logits_is_not_written(
    result: famr.Unlearned, without_three: famr.Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Off(torch.nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return result.model.logits(images) + self.by

    for by in (1.0, float("nan")):
        monkeypatch.setattr(exporting, "read_program", lambda *_, by=by: Off(by))
        with pytest.raises(GateError, match="computes other logits than the model"):
            export_model(result.model, "torch-export", tmp_path / "out", splits=without_three)
        assert list(tmp_path.iterdir()) == []


def test_without_data_the_export_says_that_it_was_not_measured(
    result: famr.Unlearned, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    result.save(tmp_path / "run", data={**FACTS, "spec": "folder:/gone"})
    outcome = run("export", tmp_path / "run", "--format", "torch-export")
    assert outcome.code == 0, outcome.err
    assert "NOT MEASURED: the data could not be opened" in outcome.out
    record = json.loads((tmp_path / "run-torch-export/export.json").read_text(encoding="utf-8"))
    assert record["measured"] is None
    assert "could not be opened" in record["not_available"]["measured"]
    again = run("export", tmp_path / "run", "--format", "torch-export", "--data", "folder:/also-gone", "--overwrite")
    assert again.code == 3


def test_bad_calls_are_refused_and_write_nothing(
    unlearned_run: Path,
    original_run: Path,
    tmp_path: Path,
    run: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed = folder_digests(unlearned_run)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").write_text("precious", encoding="utf-8")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((unlearned_run, "--format", "coreml"), 2, "Unknown format 'coreml'"),
        ((tmp_path / "gone",), 2, "no such run folder"),
        ((tmp_path / "taken",), 4, "not a finished run"),
        ((original_run,), 2, "forgotten nothing"),
        ((unlearned_run, "--output-dir", tmp_path / "taken"), 2, "exists already"),
        ((unlearned_run, "--output-dir", tmp_path / "taken", "--overwrite"), 2, "did not write"),
        ((unlearned_run, "--output-dir", unlearned_run / "out"), 2, "inside a finished run"),
    ]
    for arguments, code, words in cases:
        outcome = run("export", *arguments)
        assert (outcome.code, words in outcome.err) == (code, True), (arguments, outcome)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert folder_digests(unlearned_run) == sealed


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_its_packages_onnx_is_refused_and_names_the_extra(
    missing: str, unlearned_run: Path, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    outcome = run("export", unlearned_run, "--format", "onnx")
    assert outcome.code == 2
    assert missing in outcome.err
    assert "pip install 'famr[onnx]'" in outcome.err


def test_samples_have_no_slot(
    original: famr.Classifier, digits: famr.data.Data, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    splits = famr.split(digits, famr.Request(samples=digits.train.ids[:3]))
    result = famr.forget(original, splits, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))
    result.save(tmp_path / "run", data=FACTS)
    outcome = run("export", tmp_path / "run", "--without-slot")
    assert outcome.code == 2
    assert "no slot to take out" in outcome.err


def test_a_network_too_large_for_one_onnx_file_is_refused(
    result: famr.Unlearned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LARGEST_ONNX", 1000)
    with pytest.raises(RequestError, match="too large"):
        export_model(result.model, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_traced_is_refused(result: famr.Unlearned, tmp_path: Path) -> None:
    class DataDependent(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)[:, : 3 if float(images.sum()) > 0 else 4]

    untraceable = replace(result.model, module=DataDependent())
    with pytest.raises(CheckpointError, match="cannot be exported"):
        export_model(untraceable, "torch-export", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
