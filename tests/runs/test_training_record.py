"""What a training leaves on record, and why a model is not shown to have never seen a forget set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import famr
from conftest import Outcome
from famr.errors import CheckpointError
from famr.runs.training_record import (
    TrainingRecord,
    ids_digest,
    notes_on_reference,
    reasons_not_a_reference,
)
from small import ARCHITECTURE, AS_OPTIONS, save_pictures, small_model

FIRST_EDITION = Path(__file__).parents[1] / "fixtures/first_edition"
CAT = famr.Request(classes=["cat"])
RETAINED, FORGOTTEN = ["cow/1", "cow/2", "dog/1"], ["cat/1", "cat/2"]
GOOD = TrainingRecord(CAT, "ab", 0, 3, ids_digest(RETAINED), {"epochs": 1}, 2, ids_digest(FORGOTTEN), "start")


def reasons(
    record: TrainingRecord | None, request: famr.Request = CAT, digest: str = "ab", saw: dict[str, str] | None = None
) -> list[str]:
    return reasons_not_a_reference(record, request, RETAINED, FORGOTTEN, digest, saw)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pictures(tmp_path_factory.mktemp("pictures") / "data")


def test_a_training_records_its_images_and_those_left_out(
    pictures: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    where = ("--data", f"folder:{pictures}", "--device", "cpu", "--quiet")
    how = ("--model", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--epochs", 1, "--batch-size", 4)
    trained = run("train", *how, *where, "--without-class", "cat", "--output-dir", tmp_path / "no-cat")
    assert trained.code == 0, trained.err
    splits = famr.split(famr.open_data(f"folder:{pictures}"), CAT)
    assert splits.retain is not None
    content = json.loads((tmp_path / "no-cat/training/run.json").read_text(encoding="utf-8"))
    assert content["images"] == {
        "count": len(splits.retain),
        "sha256": ids_digest(splits.retain.ids),
        "left_out": {"count": len(splits.forget), "sha256": ids_digest(splits.forget.ids)},
    }
    model = famr.load_model(str(tmp_path / "no-cat"))
    record = TrainingRecord.read(tmp_path / "no-cat")
    assert record is not None
    assert (record.without, record.weights_sha256, record.seed) == (CAT, model.digest(), 0)
    assert record.training["epochs"] == 1
    assert reasons_not_a_reference(record, CAT, splits.retain.ids, splits.forget.ids, model.digest()) == []
    assert notes_on_reference(record) == []


def test_a_training_from_python_records_its_images_and_its_start(pictures: Path, tmp_path: Path) -> None:
    images, start = famr.open_data(f"folder:{pictures}").train, small_model()
    trained = famr.fit(start, images, famr.Training(epochs=1, batch_size=4, augmentation=None), device="cpu")
    record = TrainingRecord.read(trained.save(tmp_path / "all"))
    assert record is not None
    assert record.without is None
    assert (record.images_count, record.images_sha256) == (len(images), ids_digest(images.ids))
    assert (record.left_out_count, record.left_out_sha256, record.start_sha256) == (None, None, start.digest())


def test_a_model_trained_on_exactly_the_retained_images_is_a_reference() -> None:
    assert reasons(GOOD) == []
    worded_otherwise = replace(GOOD, without=famr.Request(samples=["cat/1", "cat/2"]))
    assert reasons(worded_otherwise) == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "there is no record of its training"),
        (replace(GOOD, weights_sha256="cd"), "the record of its training is of other weights"),
        (replace(GOOD, without=None, images_sha256="x"), "it was trained on everything"),
        (
            replace(GOOD, without=famr.Request(classes=["cow"]), images_sha256="x"),
            "it was trained without class cow, and the request is class cat",
        ),
        (
            replace(GOOD, images_count=2, images_sha256=ids_digest(RETAINED[:2])),
            "its 2 training images are not exactly the 3 retained images of this run",
        ),
        (
            replace(GOOD, images_count=5, images_sha256=ids_digest(RETAINED + FORGOTTEN)),
            "its 5 training images include the forget set",
        ),
        (replace(GOOD, without=None, images_count=None, images_sha256=None), "it was trained on everything"),
    ],
)
def test_every_other_model_is_refused_with_the_reason(record: TrainingRecord | None, reason: str) -> None:
    assert reason in reasons(record)


def test_a_training_that_started_from_a_model_that_saw_the_forget_set_is_refused() -> None:
    saw = {"original": "start", "unlearned model": "other"}
    assert reasons(GOOD, saw=saw) == ["its training started from the weights of the original"]
    assert reasons(replace(GOOD, start_sha256=None), saw=saw) == []


def test_a_record_of_the_first_edition_rests_on_its_request_and_says_so() -> None:
    record = TrainingRecord.read(FIRST_EDITION / "retrained")
    assert record is not None
    assert (record.images_count, record.images_sha256, record.start_sha256) == (None, None, None)
    three = famr.Request(classes=["3"])
    assert reasons_not_a_reference(record, three, ["1"], ["2"], record.weights_sha256) == []
    assert "names no images" in notes_on_reference(record)[0]
    four = famr.Request(classes=["4"])
    found = reasons_not_a_reference(record, four, ["1"], ["2"], record.weights_sha256)
    assert found == ["it was trained without class 3, and the request is class 4"]
    original = TrainingRecord.read(FIRST_EDITION / "original")
    assert original is not None
    found = reasons_not_a_reference(original, three, ["1"], ["2"], original.weights_sha256)
    assert found == ["it was trained on everything"]


def test_requests_that_name_the_same_in_another_order_are_the_same() -> None:
    record = replace(GOOD, without=famr.Request(classes=["dog", "cat"]), images_count=None, images_sha256=None)
    assert reasons(record, famr.Request(classes=["cat", "dog"])) == []


@pytest.mark.parametrize("name", ["class", "sisa", "sisa/shard-0", "certified-head", "numbers.json", "nowhere"])
def test_what_is_no_training_run_has_no_record(name: str) -> None:
    assert TrainingRecord.read(FIRST_EDITION / name) is None
    assert TrainingRecord.read(Path("timm:vit_tiny_patch16_224")) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"without": 3, "weights_sha256": "", "seed": 0, "training": {}}'])
def test_a_damaged_record_is_an_error(tmp_path: Path, content: str) -> None:
    shutil.copytree(FIRST_EDITION / "retrained/training", tmp_path / "training")
    (tmp_path / "training/run.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match="record of the training is damaged"):
        TrainingRecord.read(tmp_path)
