"""Data sets that `datasets` saved to disk, with the same columns and parts as those of the hub."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from famr.data import open_data
from famr.data.images import UNLABELLED
from famr.errors import DataError, RequestError

CLASSES = ("cat", "dog")


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(buffer, "PNG")
    return buffer.getvalue()


def table(labels: list[int | None], first: int = 0, names: tuple[str, ...] = CLASSES, **columns: Any) -> Dataset:
    features = {"image": ImageFeature(), "label": ClassLabel(names=list(names))}
    features |= {name: feature for name, (feature, _) in columns.items()}
    images = [{"bytes": png(first + row), "path": None} for row in range(len(labels))]
    rows = {"image": images, "label": labels, **{name: values for name, (_, values) in columns.items()}}
    return Dataset.from_dict(rows, features=Features(features))


def refused(spec: str, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        open_data(spec, **options)
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


def test_without_the_package_datasets_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match="datasets is needed here") as caught:
        open_data("hf:some/images")
    assert caught.value.exit_code == 2
    assert caught.value.fix == "pip install 'famr[datasets]'"


def test_a_data_set_saved_by_datasets_is_read_from_disk(tmp_path):
    DatasetDict(train=table([0, 1, 1, 0]), test=table([1, 0], first=100)).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert data.test is not None
    assert data.labels == CLASSES
    assert data.train.targets.tolist() == [0, 1, 1, 0]
    assert data.train.ids == ["train/0", "train/1", "train/2", "train/3"]
    assert data.test.ids == ["test/0", "test/1"]
    assert [int(data.train.pixels(row, 3)[2, 0, 0]) for row in range(4)] == [0, 1, 2, 3]
    assert [int(data.test.pixels(row, 1)[0, 0, 0]) for row in range(2)] == [100, 101]


def test_a_saved_table_without_parts_is_training_data(tmp_path):
    table([0, 1, 1, 0]).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}", whole=True)
    assert len(data.train) == 4
    assert data.test is None


def test_saved_columns_are_text_and_class_columns_show_their_names(tmp_path):
    table(
        [0, 1, None, -1],
        style=(ClassLabel(names=["photo", "sketch"]), [1, 0, 0, 1]),
        artist=(Value("string"), ["Ada", None, "Grace", ""]),
        year=(Value("int64"), [1901, 1902, None, 1904]),
    ).save_to_disk(str(tmp_path / "saved"))
    train = open_data(f"hf:{tmp_path / 'saved'}", whole=True).train
    assert train.targets.tolist() == [0, 1, UNLABELLED, UNLABELLED]
    assert train.column("label") == ["cat", "dog", "", ""]
    assert train.column("style") == ["sketch", "photo", "photo", "sketch"]
    assert train.column("artist") == ["Ada", "", "Grace", ""]
    assert train.column("year") == ["1901", "1902", "", "1904"]


def test_a_saved_text_column_names_the_classes_where_it_is_the_label_column(tmp_path):
    parts = {
        "train": table([0, 1, 0], artist=(Value("string"), ["Grace", "Ada", None])),
        "test": table([1], artist=(Value("string"), ["Grace"])),
    }
    DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}", label_column="artist", whole=True)
    assert data.labels == ("Ada", "Grace")
    assert data.train.targets.tolist() == [1, 0, UNLABELLED]
    assert data.test.targets.tolist() == [1]


def test_nested_columns_of_a_saved_table_are_ignored(tmp_path):
    table([0, 1], place=({"x": Value("int64")}, [{"x": 1}, {"x": 2}])).save_to_disk(str(tmp_path / "saved"))
    assert open_data(f"hf:{tmp_path / 'saved'}", whole=True).train.targets.tolist() == [0, 1]


def test_the_class_column_of_a_saved_table_can_be_chosen(tmp_path):
    style = (ClassLabel(names=["photo", "sketch"]), [1, 0, 1])
    table([0, 1, 1], style=style).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}", label_column="style", whole=True)
    assert data.labels == ("photo", "sketch")
    assert data.train.targets.tolist() == [1, 0, 1]
    error = refused(f"hf:{tmp_path / 'saved'}", label_column="genre")
    assert "'genre'" in error.what
    assert error.where == "train: class columns are label, style"


def test_a_saved_validation_part_replaces_a_missing_test_part(tmp_path):
    DatasetDict(train=table([0, 1]), validation=table([1, 0, 1])).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert data.test is not None
    assert data.test.targets.tolist() == [1, 0, 1]


def test_a_saved_data_set_without_a_training_part_is_refused(tmp_path):
    DatasetDict(test=table([0, 1]), extra=table([1, 0])).save_to_disk(str(tmp_path / "saved"))
    error = refused(f"hf:{tmp_path / 'saved'}")
    assert "only test, extra" in error.what
    assert error.where == f"hf:{tmp_path / 'saved'}"


def test_saved_parts_that_name_their_classes_differently_are_refused(tmp_path):
    parts = DatasetDict(train=table([0, 1]), test=table([0, 1], names=("dog", "cat")))
    parts.save_to_disk(str(tmp_path / "saved"))
    error = refused(f"hf:{tmp_path / 'saved'}")
    assert error.where == "train: ('cat', 'dog')…, test: ('dog', 'cat')…"


def test_a_saved_table_without_images_is_refused(tmp_path):
    features = Features({"label": ClassLabel(names=list(CLASSES))})
    Dataset.from_dict({"label": [0, 1]}, features=features).save_to_disk(str(tmp_path / "saved"))
    assert "no image column" in refused(f"hf:{tmp_path / 'saved'}").what


def test_an_unreadable_image_of_a_saved_table_is_named_by_its_row(tmp_path):
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=list(CLASSES))})
    images = [{"bytes": png(0), "path": None}, {"bytes": b"broken", "path": None}]
    Dataset.from_dict({"image": images, "label": [0, 1]}, features=features).save_to_disk(str(tmp_path / "saved"))
    train = open_data(f"hf:{tmp_path / 'saved'}", whole=True).train
    assert (train.pixels(0, 3) == 0).all()
    with pytest.raises(DataError) as caught:
        train.pixels(1, 3)
    assert caught.value.where == "train/1"


def test_a_folder_that_datasets_did_not_write_is_refused(tmp_path):
    error = refused(f"hf:{tmp_path}")
    assert error.exit_code == 3
    assert error.where == f"hf:{tmp_path}"
