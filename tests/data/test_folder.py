from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from famr.data import Data, open_data
from famr.data.images import UNLABELLED
from famr.errors import DataError


def write_image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(path)


def write_classes(root: Path, count: int = 2, names: tuple[str, ...] = ("cat", "dog")) -> None:
    for number, name in enumerate(names):
        for index in range(count):
            write_image(root / name / f"{index}.png", 10 * number + index)


def open_folder(root: Path) -> Data:
    return open_data(f"folder:{root}", whole=True)


def refused(root: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        open_folder(root)
    assert caught.value.exit_code == 3
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


def test_class_names_are_sorted_as_text(tmp_path):
    write_classes(tmp_path, 1, ("9", "10", "b", "B", "a b", "ä"))
    assert open_folder(tmp_path).labels == ("10", "9", "B", "a b", "b", "ä")


def test_classes_and_images_agree_with_torchvision(tmp_path):
    write_classes(tmp_path, 3, ("zebra", "10", "2", "Ant"))
    theirs = ImageFolder(str(tmp_path))
    ours = open_folder(tmp_path)
    assert list(ours.labels) == theirs.classes
    assert ours.train.ids == [Path(path).relative_to(tmp_path).as_posix() for path, _ in theirs.samples]
    assert ours.train.targets.tolist() == [target for _, target in theirs.samples]


def test_images_keep_their_pixels_and_their_path_as_id(tmp_path):
    write_classes(tmp_path)
    train = open_folder(tmp_path).train
    assert train.ids == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert train.targets.tolist() == [0, 0, 1, 1]
    for position, shade in enumerate((0, 1, 10, 11)):
        assert (train.pixels(position, 3) == shade).all()


def test_train_and_test_folders_are_the_training_and_test_images(tmp_path):
    write_classes(tmp_path / "train", 3)
    write_classes(tmp_path / "test", 1)
    data = open_data(f"folder:{tmp_path}")
    assert data.train.ids == [f"train/{name}/{index}.png" for name in ("cat", "dog") for index in range(3)]
    assert data.test is not None
    assert data.test.ids == ["test/cat/0.png", "test/dog/0.png"]
    assert data.test.targets.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["val", "validation"])
def test_a_validation_folder_replaces_a_missing_test_folder(tmp_path, name):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / name, 1)
    data = open_folder(tmp_path)
    assert data.test is not None
    assert data.test.ids == [f"{name}/cat/0.png", f"{name}/dog/0.png"]


def test_a_test_folder_is_preferred_to_a_validation_folder(tmp_path):
    for part in ("train", "val", "test"):
        write_classes(tmp_path / part, 1)
    data = open_folder(tmp_path)
    assert data.test is not None
    assert data.test.ids[0].startswith("test/")


def test_a_class_that_only_the_test_folder_has_is_refused(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "test", 1, ("cat", "owl"))
    error = refused(tmp_path)
    assert "owl" in error.what
    assert "cat" not in error.what
    assert error.where == str(tmp_path / "test")


def test_an_empty_class_folder_warns_and_keeps_its_index(tmp_path):
    write_classes(tmp_path, 2, ("ant", "cat"))
    (tmp_path / "bee").mkdir()
    with pytest.warns(UserWarning, match="'bee' has no images"):
        data = open_folder(tmp_path)
    assert data.labels == ("ant", "bee", "cat")
    assert data.train.targets.tolist() == [0, 0, 2, 2]


def test_a_class_without_test_images_warns_and_keeps_its_index(tmp_path):
    write_classes(tmp_path / "train", 1, ("ant", "bee", "cat"))
    write_classes(tmp_path / "test", 1, ("ant", "cat"))
    with pytest.warns(UserWarning, match="'bee' has no images in 'test'"):
        data = open_folder(tmp_path)
    assert data.test is not None
    assert data.test.targets.tolist() == [0, 2]


def test_hidden_files_are_ignored(tmp_path):
    write_classes(tmp_path, 1)
    write_image(tmp_path / "cat" / ".hidden.png")
    write_image(tmp_path / "cat" / ".thumbnails" / "0.png")
    write_image(tmp_path / ".cache" / "0.png")
    data = open_folder(tmp_path)
    assert data.labels == ("cat", "dog")
    assert data.train.ids == ["cat/0.png", "dog/0.png"]


def test_a_data_folder_that_is_itself_hidden_is_read(tmp_path):
    write_classes(tmp_path / ".data", 1)
    assert open_folder(tmp_path / ".data").train.ids == ["cat/0.png", "dog/0.png"]


def test_files_other_than_images_are_ignored(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "cat" / "notes.txt").write_text("text")
    (tmp_path / "README.md").write_text("text")
    (tmp_path / "cat" / "folder.png").mkdir()
    assert open_folder(tmp_path).train.ids == ["cat/0.png", "dog/0.png"]


def test_upper_case_suffixes_are_recognised(tmp_path):
    write_image(tmp_path / "cat" / "A.JPG")
    write_image(tmp_path / "cat" / "B.Png")
    assert open_folder(tmp_path).train.ids == ["cat/A.JPG", "cat/B.Png"]


def test_folders_below_a_class_belong_to_the_class(tmp_path):
    write_image(tmp_path / "cat" / "indoors" / "night" / "0.png")
    write_image(tmp_path / "dog" / "0.png")
    data = open_folder(tmp_path)
    assert data.labels == ("cat", "dog")
    assert data.train.ids == ["cat/indoors/night/0.png", "dog/0.png"]


def test_a_link_out_of_the_folder_is_ignored_with_a_warning(tmp_path):
    write_classes(tmp_path / "data", 1)
    write_image(tmp_path / "private.png")
    (tmp_path / "data" / "cat" / "out.png").symlink_to(tmp_path / "private.png")
    with pytest.warns(UserWarning, match=r"'out\.png' is a link that leads out"):
        data = open_folder(tmp_path / "data")
    assert data.train.ids == ["cat/0.png", "dog/0.png"]


def test_a_link_within_the_folder_is_followed(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "cat" / "again.png").symlink_to(tmp_path / "dog" / "0.png")
    data = open_folder(tmp_path)
    assert data.train.ids == ["cat/0.png", "cat/again.png", "dog/0.png"]
    assert (data.train.pixels(1, 3) == 10).all()


def test_flat_folder_gives_images_without_labels(tmp_path):
    for index in range(3):
        write_image(tmp_path / f"{index}.png", index)
    data = open_folder(tmp_path)
    assert data.labels == ()
    assert data.train.ids == ["0.png", "1.png", "2.png"]
    assert data.train.targets.tolist() == [UNLABELLED] * 3
    assert not data.train.labelled


def test_metadata_csv_adds_columns(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "metadata.csv").write_text(
        "style,file_name,artist\nsketch,dog/0.png,Ada\nphoto,./cat/0.png,\nphoto,cat/1.png,Grace\noil,dog/1.png,Ada\n"
    )
    train = open_folder(tmp_path).train
    assert train.ids == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert train.column("style") == ["photo", "photo", "sketch", "oil"]
    assert train.column("artist") == ["", "Grace", "Ada", "Ada"]


def test_an_image_without_a_row_of_metadata_has_empty_values(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "metadata.csv").write_text("file_name,style\ndog/0.png,sketch\n")
    assert open_folder(tmp_path).train.column("style") == ["", "sketch"]


def test_metadata_saved_by_a_spreadsheet_is_read(tmp_path):
    write_classes(tmp_path, 1)
    text = 'file_name,style\r\ncat/0.png,"pen, ink"\r\ndog/0.png,"an ""etching"""\r\n'
    (tmp_path / "metadata.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert open_folder(tmp_path).train.column("style") == ["pen, ink", 'an "etching"']


def test_each_part_may_have_its_own_metadata(tmp_path):
    for part in ("train", "test"):
        write_classes(tmp_path / part, 1)
        (tmp_path / part / "metadata.csv").write_text(f"file_name,part\ncat/0.png,{part}\ndog/0.png,{part}\n")
    data = open_folder(tmp_path)
    assert data.test is not None
    assert data.train.column("part") == ["train", "train"]
    assert data.test.column("part") == ["test", "test"]


def test_metadata_beside_the_parts_has_paths_relative_to_itself(tmp_path):
    for part in ("train", "test"):
        write_classes(tmp_path / part, 1, ("cat",))
    (tmp_path / "metadata.csv").write_text("file_name,part\ntrain/cat/0.png,first\ntest/cat/0.png,second\n")
    data = open_folder(tmp_path)
    assert data.test is not None
    assert data.train.column("part") == ["first"]
    assert data.test.column("part") == ["second"]


def test_metadata_without_file_names_is_refused(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "metadata.csv").write_text("path,style\ncat/0.png,photo\n")
    error = refused(tmp_path)
    assert "file_name" in error.what
    assert error.where == str(tmp_path / "metadata.csv")


@pytest.mark.parametrize(("row", "shown"), [("photo,/elsewhere/0.png", "'/elsewhere/0.png'"), ("photo", "''")])
def test_a_row_of_metadata_that_names_no_image_of_the_folder_is_refused(tmp_path, row, shown):
    write_classes(tmp_path, 1)
    (tmp_path / "metadata.csv").write_text(f"style,file_name\nphoto,cat/0.png\n{row}\n")
    error = refused(tmp_path)
    assert shown in error.what
    assert error.where == f"{tmp_path / 'metadata.csv'}, line 3"


def test_metadata_that_is_not_utf8_is_refused(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "metadata.csv").write_bytes("file_name,style\ncat/0.png,naïf\n".encode("latin-1"))
    assert "not UTF-8" in refused(tmp_path).what


def test_a_missing_folder_is_named(tmp_path):
    error = refused(tmp_path / "nowhere")
    assert error.where == str(tmp_path / "nowhere")
    assert "folder:" in str(error.fix)


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    error = refused(tmp_path)
    assert "no training images" in error.what
    assert error.where == f"folder:{tmp_path}"


def test_an_unreadable_image_is_named_by_its_path_within_the_folder(tmp_path):
    write_classes(tmp_path, 1)
    (tmp_path / "dog" / "1.png").write_bytes(b"broken")
    train = open_folder(tmp_path).train
    assert len(train) == 3
    with pytest.raises(DataError) as caught:
        train.pixels(2, 3)
    assert caught.value.where == "dog/1.png"


def test_mirrored_photographs_still_show_their_class(tmp_path):
    write_classes(tmp_path, 1)
    data = open_folder(tmp_path)
    assert data.mirror
    assert data.spec == f"folder:{tmp_path}"
    assert data.train.targets.dtype == torch.long
