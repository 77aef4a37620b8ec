from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from sklearn.datasets import load_digits

from famr.data import open_data
from famr.data.images import UNLABELLED
from famr.errors import DataError, RequestError

CLASSES = ("cat", "dog")


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(buffer, "PNG")
    return buffer.getvalue()


def table(labels: list[int | None], first: int = 0, names: tuple[str, ...] = CLASSES, **others: Any) -> Dataset:
    features = {"image": ImageFeature(), "label": ClassLabel(names=list(names)), **{k: v[0] for k, v in others.items()}}
    images = [{"bytes": png(first + row), "path": None} for row in range(len(labels))]
    rows = {"image": images, "label": labels, **{k: v[1] for k, v in others.items()}}
    return Dataset.from_dict(rows, features=Features(features))


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(root: Path, train: int = 6, test: int = 3, name: str = "MNIST") -> dict[str, np.ndarray]:
    written = {}
    for part, prefix, count in (("train", "train", train), ("test", "t10k", test)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28))
        written[part] = pixels
        write_idx(root / name / "raw" / f"{prefix}-images-idx3-ubyte", pixels)
        write_idx(root / name / "raw" / f"{prefix}-labels-idx1-ubyte", np.arange(count) % 10)
    return written


def refused(kind: type[DataError] | type[RequestError], spec: str, **options: Any) -> DataError | RequestError:
    with pytest.raises(kind) as caught:
        open_data(spec, **options)
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


def test_digits_are_scikit_learns_digits_in_sixteen_steps_of_grey():
    bunch = load_digits()
    data = open_data("digits", whole=True)
    assert data.labels == tuple("0123456789")
    assert len(data.train) == 1797
    assert data.train.targets.tolist() == bunch.target.tolist()
    for row in (0, 5, 1796):
        pixels = data.train.pixels(row, 1)
        assert pixels.shape == (1, 8, 8)
        np.testing.assert_allclose(pixels[0].numpy() / 255, bunch.images[row] / 16, atol=0.5 / 255 + 1e-9)


def test_digits_have_a_parity_to_try_concepts_on():
    train = open_data("digits", whole=True).train
    assert train.column("parity") == [("even", "odd")[target % 2] for target in train.targets.tolist()]


def test_digits_are_named_by_their_place_and_not_mirrored():
    data = open_data("digits", whole=True)
    assert (data.train.ids[0], data.train.ids[-1]) == ("digits/0", "digits/1796")
    assert not data.mirror


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


def test_a_saved_table_without_parts_is_all_for_training(tmp_path):
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


def test_a_saved_column_of_text_names_the_classes_where_it_is_asked_for(tmp_path):
    parts = {
        "train": table([0, 1, 0], artist=(Value("string"), ["Grace", "Ada", None])),
        "test": table([1], artist=(Value("string"), ["Grace"])),
    }
    DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}", label_column="artist", whole=True)
    assert data.labels == ("Ada", "Grace")
    assert data.train.targets.tolist() == [1, 0, UNLABELLED]
    assert data.test.targets.tolist() == [1]


def test_nested_columns_of_a_saved_table_do_no_harm(tmp_path):
    table([0, 1], place=({"x": Value("int64")}, [{"x": 1}, {"x": 2}])).save_to_disk(str(tmp_path / "saved"))
    assert open_data(f"hf:{tmp_path / 'saved'}", whole=True).train.targets.tolist() == [0, 1]


def test_the_class_column_of_a_saved_table_can_be_asked_for(tmp_path):
    style = (ClassLabel(names=["photo", "sketch"]), [1, 0, 1])
    table([0, 1, 1], style=style).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}", label_column="style", whole=True)
    assert data.labels == ("photo", "sketch")
    assert data.train.targets.tolist() == [1, 0, 1]
    error = refused(DataError, f"hf:{tmp_path / 'saved'}", label_column="genre")
    assert "'genre'" in error.what
    assert error.where == "train: class columns are label, style"


def test_a_saved_validation_part_stands_in_for_a_missing_test_part(tmp_path):
    DatasetDict(train=table([0, 1]), validation=table([1, 0, 1])).save_to_disk(str(tmp_path / "saved"))
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert data.test is not None
    assert data.test.targets.tolist() == [1, 0, 1]


def test_a_saved_data_set_without_a_training_part_is_refused(tmp_path):
    DatasetDict(test=table([0, 1]), extra=table([1, 0])).save_to_disk(str(tmp_path / "saved"))
    error = refused(DataError, f"hf:{tmp_path / 'saved'}")
    assert "only test, extra" in error.what
    assert error.where == f"hf:{tmp_path / 'saved'}"


def test_saved_parts_that_name_their_classes_differently_are_refused(tmp_path):
    parts = DatasetDict(train=table([0, 1]), test=table([0, 1], names=("dog", "cat")))
    parts.save_to_disk(str(tmp_path / "saved"))
    error = refused(DataError, f"hf:{tmp_path / 'saved'}")
    assert error.where == "train: ('cat', 'dog')…, test: ('dog', 'cat')…"


def test_a_saved_table_without_images_is_refused(tmp_path):
    features = Features({"label": ClassLabel(names=list(CLASSES))})
    Dataset.from_dict({"label": [0, 1]}, features=features).save_to_disk(str(tmp_path / "saved"))
    assert "no image column" in refused(DataError, f"hf:{tmp_path / 'saved'}").what


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
    error = refused(DataError, f"hf:{tmp_path}")
    assert error.exit_code == 3
    assert error.where == f"hf:{tmp_path}"


def test_torchvision_data_is_read_from_the_files_in_its_root(tmp_path):
    written = write_mnist(tmp_path)
    data = open_data("torchvision:MNIST", root=str(tmp_path))
    assert data.test is not None
    assert data.spec == "torchvision:MNIST"
    assert list(data.labels) == torchvision.datasets.MNIST.classes
    assert data.train.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test.targets.tolist() == [0, 1, 2]
    assert data.train.ids[-1] == "train/5"
    assert data.test.ids[-1] == "test/2"
    for row in range(6):
        np.testing.assert_array_equal(data.train.pixels(row, 1)[0].numpy(), written["train"][row])
    np.testing.assert_array_equal(data.test.pixels(2, 1)[0].numpy(), written["test"][2])


def test_only_what_can_be_read_one_way_is_kept_from_mirroring(tmp_path):
    write_mnist(tmp_path)
    write_mnist(tmp_path, name="FashionMNIST")
    assert not open_data("torchvision:MNIST", root=str(tmp_path)).mirror
    assert open_data("torchvision:FashionMNIST", root=str(tmp_path)).mirror


@pytest.mark.parametrize("name", ["NoSuchData", "mnist", "os", "MNIST.train"])
def test_a_name_that_torchvision_does_not_have_is_refused(name):
    error = refused(RequestError, f"torchvision:{name}")
    assert error.exit_code == 2
    assert repr(name) in error.what
    assert error.where == f"torchvision:{name}"


@pytest.mark.parametrize("name", ["FakeData", "ImageFolder"])
def test_torchvision_data_without_training_and_test_parts_is_refused(tmp_path, name):
    error = refused(RequestError, f"torchvision:{name}", root=str(tmp_path))
    assert name in error.what
    assert "folder:PATH" in str(error.fix)


@pytest.mark.parametrize(("name", "reason"), [("OxfordIIITPet", "trainval"), ("HMDB51", "annotation_path")])
def test_torchvision_data_that_needs_more_than_a_name_is_refused(tmp_path, name, reason):
    error = refused(RequestError, f"torchvision:{name}", root=str(tmp_path))
    assert reason in error.what
    assert error.where == f"torchvision:{name}"


@pytest.mark.parametrize("name", ["MNIST", "ImageNet"])
def test_torchvision_data_that_cannot_be_had_is_refused_with_the_root(tmp_path, name):
    (tmp_path / "file").write_text("a root that can hold no files")
    error = refused(DataError, f"torchvision:{name}", root=str(tmp_path / "file"))
    assert error.exit_code == 3
    assert name in error.what
    assert error.where == str(tmp_path / "file")
    assert "--data-root" in str(error.fix)
