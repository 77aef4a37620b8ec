"""Data sets of torchvision, read from files in its root."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets

from famr.data import open_data
from famr.errors import DataError, RequestError


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


def test_digits_are_not_mirrored_and_clothes_are(tmp_path):
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
def test_torchvision_data_that_cannot_be_downloaded_is_refused_with_the_root(tmp_path, name):
    (tmp_path / "file").write_text("a root that can hold no files")
    error = refused(DataError, f"torchvision:{name}", root=str(tmp_path / "file"))
    assert error.exit_code == 3
    assert name in error.what
    assert error.where == str(tmp_path / "file")
    assert "--data-root" in str(error.fix)
