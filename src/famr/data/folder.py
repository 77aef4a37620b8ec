"""Images in class folders: `PATH/train/CLASS/…` and `PATH/test/CLASS/…`, or `PATH/CLASS/…`, or a flat folder.

Class names are sorted as text, as torchvision and Hugging Face do (timm sorts them naturally: `9` before `10`).
A `metadata.csv` with a `file_name` column (Hugging Face's convention) adds columns. Names that begin with a dot are
ignored. Links to folders, which would add classes by accident, and links out of the data folder are ignored with a
warning.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from famr.data.dataset import Data
from famr.data.images import UNLABELLED, Images, open_image
from famr.errors import DataError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEST_FOLDERS = ("test", "val", "validation")


def open_folder(path: str) -> Data:
    """Images below a folder; each image's class is the name of its class folder.

    Args:
        path: A folder with `train` (and `test`, `val` or `validation`) folders, with class folders, or with images
            only, which then have no class.

    Raises:
        DataError: The folder is missing, its test part has other classes, or its metadata.csv is wrong.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError("There is no such folder.", where=path, fix="Check the path after `folder:`.")
    if not (root / "train").is_dir() or not _class_names(root / "train"):  # a class may be called "train"
        labels = _class_names(root)
        return Data(path, labels, _read_part(root, root, labels), None)
    test = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    labels = _class_names(root / "train")
    if test is not None and (extra := sorted(set(_class_names(test)) - set(labels))):
        raise DataError(
            f"The test folder has classes that the training folder lacks: {', '.join(extra[:10])}.",
            where=str(test),
            fix="Give both folders the same class folders.",
        )
    train = _read_part(root, root / "train", labels)
    return Data(path, labels, train, None if test is None else _read_part(root, test, labels))


def _class_names(folder: Path) -> tuple[str, ...]:
    children = [child for child in folder.iterdir() if child.is_dir() and child.name[0] != "."]
    for link in sorted(child.name for child in children if child.is_symlink()):
        warnings.warn(f"{link!r} is a link to a folder and not a class folder; ignored.", stacklevel=2)
    return tuple(sorted(child.name for child in children if not child.is_symlink()))


def _read_part(root: Path, folder: Path, labels: tuple[str, ...]) -> Images:
    files, targets = [], []
    for target, label in enumerate(labels):
        members = _image_files(root, folder / label) if (folder / label).is_dir() else []
        if not members:
            warnings.warn(f"Class {label!r} has no images in {folder.name!r}; it keeps its index.", stacklevel=2)
        files += members
        targets += [target] * len(members)
    if not labels:  # a flat folder: images without a class
        files = _image_files(root, folder)
        targets = [UNLABELLED] * len(files)
    ids = [file.relative_to(root).as_posix() for file in files]
    for name in (*labels, *ids):
        if not _is_unicode(name):
            raise DataError(
                "A name is not Unicode text, so it cannot be stored in a record.",
                where=name.encode("utf-8", "backslashreplace").decode(),
                fix="Rename the file or folder.",
            )
    return Images.from_source(
        decode=_unchanged_reader(files),
        ids=ids,
        targets=torch.tensor(targets, dtype=torch.long),
        columns=_read_metadata(folder, root, ids),
    )


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unchanged_reader(files: list[Path]) -> Callable[[int], Image.Image]:
    """decode(row) that refuses a file changed since the data was opened, so that a run reads one state of the data."""
    states = [_size_and_time(file) for file in files]

    def decode(row: int) -> Image.Image:
        if _size_and_time(files[row]) != states[row]:
            raise ValueError("the file was changed while it was in use")
        return open_image(files[row])

    return decode


def _size_and_time(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _image_files(root: Path, folder: Path) -> list[Path]:
    resolved_root = root.resolve()
    files = []
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
        if hidden or file.suffix.lower() not in SUFFIXES or not file.is_file():
            continue
        if not file.resolve().is_relative_to(resolved_root):
            warnings.warn(f"{file.name!r} is a link that leads out of the data folder; ignored.", stacklevel=2)
            continue
        files.append(file)
    return files


def _read_metadata(folder: Path, root: Path, ids: list[str]) -> dict[str, list[str]]:
    """Columns from metadata.csv beside the class folders; an image without a row has empty values."""
    path = next((file for file in (folder / "metadata.csv", root / "metadata.csv") if file.is_file()), None)
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("metadata.csv is not UTF-8 text.", where=str(path), fix="Save it as UTF-8.") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        return _columns(reader, path, root, ids)
    except csv.Error as error:
        raise DataError(
            f"metadata.csv cannot be read: {error}.", where=f"{path}, line {reader.line_num}", fix="Correct the line."
        ) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system
        return False


def _columns(reader: csv.DictReader[str], path: Path, root: Path, ids: list[str]) -> dict[str, list[str]]:
    names = list(reader.fieldnames or [])
    if "file_name" not in names:
        raise DataError(
            "metadata.csv has no column `file_name`.",
            where=str(path),
            fix="Add it: the image's path relative to metadata.csv.",
        )
    rows = {}
    for row in reader:
        name = row["file_name"] or ""
        file = path.parent / name
        if not name or ".." in Path(name).parts or not file.is_relative_to(root) or not _is_file(file):
            raise DataError(
                f"metadata.csv names no image of this folder: {name!r}.",
                where=f"{path}, line {reader.line_num}",
                fix="Give the image's path relative to metadata.csv.",
            )
        rows[file.relative_to(root).as_posix()] = row
    return {name: [rows.get(id_, {}).get(name) or "" for id_ in ids] for name in names if name != "file_name"}
