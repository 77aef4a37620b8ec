from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from famr.data import Data, open_data
from famr.data.images import UNLABELLED
from famr.errors import DataError

CLASSES = ("cat", "dog", "owl")
STYLES = ("photo", "sketch")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(buffer, "PNG")
    return buffer.getvalue()


def write_with_datasets(path: Path, count: int = 6, first: int = 0, names: tuple[str, ...] = CLASSES) -> None:
    features = Features(
        {
            "image": ImageFeature(),
            "label": ClassLabel(names=list(names)),
            "style": ClassLabel(names=list(STYLES)),
            "year": Value("int64"),
        }
    )
    rows = {
        "image": [Image.new("RGB", (4, 3), (first + row,) * 3) for row in range(count)],
        "label": [row % len(names) for row in range(count)],
        "style": [row % 2 for row in range(count)],
        "year": [None if row == 0 else 1900 + row for row in range(count)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(rows, features=features).to_parquet(str(path))


def write_with_pyarrow(
    path: Path,
    columns: dict[str, Any],
    features: dict[str, Any] | None,
    images: list[dict[str, Any]] | None = None,
    row_group_size: int | None = None,
) -> None:
    count = len(next(iter(columns.values())))
    stored = [{"bytes": png(row), "path": None} for row in range(count)] if images is None else images
    table = pa.table({"image": pa.array(stored, IMAGE), **columns})
    if features is not None:
        described = {"image": {"_type": "Image"}, **features}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": described}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)


def class_label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def open_parquet(path: Path, label_column: str | None = None) -> Data:
    return open_data(f"parquet:{path}", label_column=label_column, whole=True)


def refused(path: Path, label_column: str | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        open_parquet(path, label_column)
    assert caught.value.exit_code == 3
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


def test_a_file_written_by_datasets_is_read_with_its_class_names(tmp_path):
    write_with_datasets(tmp_path / "train-00000-of-00001.parquet")
    data = open_parquet(tmp_path)
    assert data.labels == CLASSES
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.train.ids == [f"train/{row}" for row in range(6)]
    for row in range(6):
        assert (data.train.pixels(row, 3) == row).all()


def test_a_file_written_by_pyarrow_alone_is_read_in_the_same_layout(tmp_path):
    path = tmp_path / "table.parquet"
    write_with_pyarrow(path, {"label": [2, 0, 1]}, {"label": class_label(*CLASSES)})
    data = open_parquet(path)
    assert data.labels == CLASSES
    assert data.train.targets.tolist() == [2, 0, 1]
    assert [int(data.train.pixels(row, 1).float().mean()) for row in range(3)] == [0, 1, 2]


def test_class_names_keep_the_order_of_the_schema(tmp_path):
    write_with_datasets(tmp_path / "train.parquet", names=("10", "9", "b", "a"))
    assert open_parquet(tmp_path).labels == ("10", "9", "b", "a")


def test_columns_are_text_and_class_columns_show_their_names(tmp_path):
    write_with_datasets(tmp_path / "train.parquet", 4)
    train = open_parquet(tmp_path).train
    assert train.column("style") == ["photo", "sketch", "photo", "sketch"]
    assert train.column("label") == ["cat", "dog", "owl", "cat"]
    assert train.column("year") == ["", "1901", "1902", "1903"]


def test_train_and_test_files_are_the_training_and_test_images(tmp_path):
    write_with_datasets(tmp_path / "data" / "train-00000-of-00002.parquet", 6, first=0)
    write_with_datasets(tmp_path / "data" / "train-00001-of-00002.parquet", 3, first=6)
    write_with_datasets(tmp_path / "data" / "test-00000-of-00001.parquet", 3, first=100)
    data = open_parquet(tmp_path)
    assert data.test is not None
    assert data.train.ids == [f"train/{row}" for row in range(9)]
    assert data.test.ids == [f"test/{row}" for row in range(3)]
    assert [int(data.train.pixels(row, 1)[0, 0, 0]) for row in range(9)] == list(range(9))
    assert [int(data.test.pixels(row, 1)[0, 0, 0]) for row in range(3)] == [100, 101, 102]


def test_parts_may_be_folders(tmp_path):
    write_with_datasets(tmp_path / "default" / "train" / "0000.parquet", 6)
    write_with_datasets(tmp_path / "default" / "test" / "0000.parquet", 3, first=100)
    data = open_parquet(tmp_path)
    assert data.test is not None
    assert len(data.train) == 6
    assert [int(data.test.pixels(row, 1)[0, 0, 0]) for row in range(3)] == [100, 101, 102]


def test_folders_above_the_opened_one_do_not_name_a_part(tmp_path):
    write_with_datasets(tmp_path / "test" / "train-0.parquet", 6)
    write_with_datasets(tmp_path / "test" / "validation-0.parquet", 3)
    write_with_datasets(tmp_path / "test" / "unused-0.parquet", 5)
    data = open_parquet(tmp_path / "test")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (6, 3)


@pytest.mark.parametrize("part", ["validation", "valid", "val"])
def test_validation_files_replace_missing_test_files(tmp_path, part):
    write_with_datasets(tmp_path / "train-0.parquet", 6)
    write_with_datasets(tmp_path / f"{part}-0.parquet", 3)
    data = open_parquet(tmp_path)
    assert data.test is not None
    assert len(data.test) == 3


def test_test_files_are_preferred_to_validation_files(tmp_path):
    for part, count in (("train", 6), ("validation", 4), ("test", 3)):
        write_with_datasets(tmp_path / f"{part}-0.parquet", count)
    data = open_parquet(tmp_path)
    assert data.test is not None
    assert len(data.test) == 3


def test_one_file_without_a_test_part_is_split(tmp_path):
    write_with_datasets(tmp_path / "anything.parquet", 15)
    data = open_data(f"parquet:{tmp_path / 'anything.parquet'}")
    assert data.test is not None
    assert len(data.train) == 12
    assert len(data.test) == 3
    assert sorted(data.test.targets.tolist()) == [0, 1, 2]


def test_rows_are_found_across_row_groups_and_files_from_many_threads(tmp_path):
    features = {"label": class_label("only")}
    counts = (41, 1, 30)
    for part, count in enumerate(counts):
        images = [{"bytes": png(100 * part + row), "path": None} for row in range(count)]
        write_with_pyarrow(tmp_path / f"train-{part}.parquet", {"label": [0] * count}, features, images, 1)
    expected = [100 * part + row for part, count in enumerate(counts) for row in range(count)]
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(len(expected)), 3)).tolist()
    for _attempt in range(40):
        train = open_parquet(tmp_path).train
        with ThreadPoolExecutor(8) as pool:
            shades = list(pool.map(lambda row, images: int(images.pixels(row, 1)[0, 0, 0]), rows, repeat(train)))
        assert shades == [expected[row] for row in rows]


@pytest.mark.parametrize("name", ["label", "labels", "fine_label"])
def test_a_usual_name_picks_the_class_among_several_class_columns(tmp_path, name):
    columns = {"coarse": [0, 0, 1], name: [0, 1, 2]}
    features = {"coarse": class_label("animal", "bird"), name: class_label(*CLASSES)}
    write_with_pyarrow(tmp_path / "train.parquet", columns, features)
    assert open_parquet(tmp_path).labels == CLASSES


def test_the_only_class_column_is_the_class_whatever_its_name(tmp_path):
    columns = {"species": [0, 1, 2], "label": ["a", "b", "c"]}
    write_with_pyarrow(tmp_path / "train.parquet", columns, {"species": class_label(*CLASSES)})
    assert open_parquet(tmp_path).labels == CLASSES


def test_the_class_column_can_be_chosen(tmp_path):
    write_with_datasets(tmp_path / "train.parquet", 4)
    data = open_parquet(tmp_path, "style")
    assert data.labels == STYLES
    assert data.train.targets.tolist() == [0, 1, 0, 1]
    assert data.train.column("label") == ["cat", "dog", "owl", "cat"]


def test_several_class_columns_of_unusual_names_are_refused(tmp_path):
    features = {"species": class_label(*CLASSES), "style": class_label(*STYLES)}
    write_with_pyarrow(tmp_path / "train.parquet", {"species": [0, 1, 2], "style": [0, 1, 0]}, features)
    error = refused(tmp_path)
    assert error.where == "train.parquet: class columns are species, style"
    assert "--label-column" in str(error.fix)
    assert open_parquet(tmp_path, "species").labels == CLASSES


def test_an_unknown_class_column_is_refused_with_the_known_ones(tmp_path):
    write_with_datasets(tmp_path / "train.parquet")
    error = refused(tmp_path, "genre")
    assert "'genre'" in error.what
    assert error.where == "train.parquet: class columns are label, style"


def test_a_column_without_class_names_is_not_a_class_column(tmp_path):
    write_with_pyarrow(tmp_path / "train.parquet", {"label": [0, 1, 2]}, None)
    assert refused(tmp_path).where == "train.parquet: class columns are none"
    write_with_datasets(tmp_path / "train.parquet")
    assert "'year'" in refused(tmp_path, "year").what


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_text_column_names_the_classes_where_it_is_the_label_column(tmp_path, kind):
    train, test = ["owl", "cat", None, "dog", "", "owl"], ["dog", "owl"]  # the test part need not have all of them
    write_with_pyarrow(tmp_path / "train.parquet", {"animal": pa.array(train, kind)}, None)
    write_with_pyarrow(tmp_path / "test.parquet", {"animal": pa.array(test, kind)}, None)
    data = open_parquet(tmp_path, "animal")
    assert data.labels == ("cat", "dog", "owl")
    assert data.train.targets.tolist() == [2, 0, UNLABELLED, 1, UNLABELLED, 2]
    assert data.test.targets.tolist() == [1, 2]
    assert data.train.column("animal") == ["owl", "cat", "", "dog", "", "owl"]
    error = refused(tmp_path)  # another text column might be picked by mistake
    assert error.where == "train.parquet: class columns are none; columns of text are animal"
    assert "or a column of text" in str(error.fix)


def test_a_class_that_only_the_test_part_has_is_refused(tmp_path):
    write_with_pyarrow(tmp_path / "train.parquet", {"animal": ["owl", "cat"]}, None)
    write_with_pyarrow(tmp_path / "test.parquet", {"animal": ["owl", "yak", "emu"]}, None)
    error = refused(tmp_path, "animal")
    assert "2 classes that the training part has not" in error.what
    assert error.where == "test.parquet: animal: emu, yak"


def test_a_class_label_without_names_is_not_a_text_column(tmp_path):
    write_with_pyarrow(tmp_path / "train.parquet", {"label": [0, 1]}, {"label": class_label()})
    assert "no name" in refused(tmp_path, "label").what


def test_missing_labels_are_unknown_classes(tmp_path):
    columns = {"label": pa.array([0, None, -1, -7, 2], pa.int64())}
    write_with_pyarrow(tmp_path / "train.parquet", columns, {"label": class_label(*CLASSES)})
    train = open_parquet(tmp_path).train
    assert train.targets.tolist() == [0, UNLABELLED, UNLABELLED, UNLABELLED, 2]
    assert train.column("label") == ["cat", "", "", "", "owl"]


def test_a_class_index_without_a_name_is_refused(tmp_path):
    write_with_pyarrow(tmp_path / "train.parquet", {"label": [0, 7, 1]}, {"label": class_label(*CLASSES)})
    error = refused(tmp_path)
    assert "7" in error.what
    assert "3 classes" in error.what
    assert error.where == "train.parquet: label"


def test_list_and_struct_columns_are_ignored(tmp_path):
    columns = {"label": [0, 1], "tags": [["a"], ["b", "c"]], "place": [{"x": 1}, {"x": 2}]}
    features = {
        "label": class_label(*CLASSES),
        "tags": [{"dtype": "string", "_type": "Value"}],
        "place": {"x": {"dtype": "int64", "_type": "Value"}},
    }
    write_with_pyarrow(tmp_path / "train.parquet", columns, features)
    train = open_parquet(tmp_path).train
    assert train.targets.tolist() == [0, 1]
    assert (train.pixels(1, 3) == 1).all()


def test_train_and_test_files_that_name_their_classes_differently_are_refused(tmp_path):
    write_with_datasets(tmp_path / "train.parquet", names=("cat", "dog"))
    write_with_datasets(tmp_path / "test.parquet", names=("dog", "cat"))
    error = refused(tmp_path)
    assert "train: ('cat', 'dog')" in str(error.where)
    assert "test: ('dog', 'cat')" in str(error.where)


def test_a_table_without_images_is_refused(tmp_path):
    pq.write_table(pa.table({"label": [0, 1]}), tmp_path / "train.parquet")
    error = refused(tmp_path)
    assert "no image column" in error.what
    assert error.where == "train.parquet"


def test_a_path_without_bytes_is_refused_when_its_row_is_read(tmp_path):
    images = [{"bytes": png(0), "path": None}, {"bytes": None, "path": "cat.png"}]
    write_with_pyarrow(tmp_path / "train.parquet", {"label": [0, 1]}, {"label": class_label(*CLASSES)}, images)
    train = open_parquet(tmp_path).train
    assert (train.pixels(0, 3) == 0).all()
    with pytest.raises(DataError, match="a path but no bytes") as caught:
        train.pixels(1, 3)
    assert caught.value.where == "train/1"


def test_an_unreadable_image_is_named_by_its_row(tmp_path):
    images = [{"bytes": png(0), "path": None}, {"bytes": b"broken", "path": None}]
    write_with_pyarrow(tmp_path / "train.parquet", {"label": [0, 1]}, {"label": class_label(*CLASSES)}, images)
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path).train.pixels(1, 3)
    assert caught.value.where == "train/1"


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    (tmp_path / "train.parquet").write_text("text")
    error = refused(tmp_path)
    assert "cannot be read" in error.what
    assert error.where == "train.parquet"


@pytest.mark.parametrize("name", ["nowhere", "nowhere.parquet", "empty"])
def test_a_path_without_parquet_files_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    error = refused(tmp_path / name)
    assert "no Parquet files" in error.what
    assert error.where == str(tmp_path / name)
