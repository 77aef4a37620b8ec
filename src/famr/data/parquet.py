"""Parquet files in Hugging Face's layout: an `image` column of {bytes, path}, class names in the schema or as text.

Only pyarrow is needed. Labels and columns are read at once, image bytes one row group at a time.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from famr.data.dataset import Data
from famr.data.images import UNLABELLED, Images, open_image
from famr.errors import DataError

LABEL_COLUMNS = ("label", "labels", "fine_label")
TEST_PARTS = ("test", "validation", "valid", "val")
CACHED_ROW_GROUPS = 256

Part = tuple[tuple[str, ...], Images]
"""The class names and the images of a training or test part."""


def open_parquet(path: str, label_column: str | None) -> Data:
    """A data set of Parquet files.

    Args:
        path: A folder with train-*.parquet and test-*.parquet (or train/*.parquet …), or one file.
        label_column: Class column, where the table has several; None for one with a common name, or the only one.

    Raises:
        DataError: There are no such files, or one is unreadable or has no images or no class column.
    """
    root = Path(path)
    files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
    if not files or not files[0].is_file():
        raise DataError("There are no Parquet files.", where=path, fix="Check the path after `parquet:`.")
    train_files = [file for file in files if _belongs_to(file, root, "train")] or files
    rest = [file for file in files if file not in train_files]
    test_files = [members for part in TEST_PARTS if (members := [f for f in rest if _belongs_to(f, root, part)])]
    train = _read_part(train_files, "train", label_column)
    tests = (_read_part(members, "test", label_column, train[0]) for members in test_files)
    return combine_parts(path, train, first_labelled(tests))


def first_labelled(parts: Iterable[Part]) -> Part | None:
    """The first part with a class for every image, else the first: published test parts often hide their classes.

    Args:
        parts: Candidates in the order of preference; read one after the other.

    Returns:
        None where there are no candidates.
    """
    first = None
    for part in parts:
        if part[1].labelled:
            return part
        first = first or part
    return first


def combine_parts(spec: str, train: Part, test: Part | None) -> Data:
    """One data set of a training and a test part.

    Args:
        spec: The data's name.
        train: Training part.
        test: Test part; None where there is none.

    Raises:
        DataError: The parts have different class names.
    """
    labels, images = train
    if test is None:
        return Data(spec, labels, images, None)
    if test[0] != labels:
        raise DataError(
            "Training and test part name their classes differently.",
            where=f"train: {labels[:5]}…, test: {test[0][:5]}…",
            fix="Write both with the same ClassLabel feature.",
        )
    return Data(spec, labels, images, test[1])


def _belongs_to(file: Path, root: Path, part: str) -> bool:
    """Whether a file belongs to a part by its name, or by a folder below the root."""
    return file.name.startswith(part) or part in file.relative_to(root).parts[:-1]


def _read_part(files: list[Path], part: str, label_column: str | None, known: tuple[str, ...] | None = None) -> Part:
    """`known` are the classes of the training part, for a text column, which has no list of names of its own."""
    import pyarrow
    import pyarrow.parquet

    try:
        parquets = [pyarrow.parquet.ParquetFile(file) for file in files]
    except (pyarrow.ArrowException, OSError) as error:
        where = ", ".join(file.name for file in files)
        raise DataError(f"A Parquet file cannot be read: {error}.", where=where, fix="Fetch the file again.") from error
    schema = parquets[0].schema_arrow
    features = _features(schema)
    image = _image_column(schema, files[0])
    texts = [name for name in schema.names if _is_text(schema, name)]
    label, names = pick_label(features, schema.names, texts, label_column, files[0].name)
    columns = [name for name in schema.names if name != image and not _is_nested(schema, name)]
    table = pyarrow.concat_tables([parquet.read(columns=columns) for parquet in parquets])
    names, targets = class_targets(table[label].to_pylist(), names, known, f"{files[0].name}: {label}")
    images = Images.from_source(
        decode=_row_reader(parquets, image),
        ids=[f"{part}/{row}" for row in range(table.num_rows)],
        targets=targets,
        columns={name: text_column(table[name].to_pylist(), features.get(name)) for name in columns},
    )
    return names, images


def pick_label(
    features: dict[str, Any], columns: Sequence[str], texts: Sequence[str], label_column: str | None, where: str
) -> tuple[str, tuple[str, ...] | None]:
    """The class column and its class names: the column that is named, else one with a common name, else the only one.

    Args:
        features: Hugging Face's description of each column.
        columns: Names of all columns.
        texts: Names of the text columns; one of them is the class column only if it is named.
        label_column: Name of the class column; None to pick it.
        where: File or part, for the error.

    Returns:
        Name of the column, and its class names; None for a text column, whose values are the class names.

    Raises:
        DataError: There is no such column, or none or several that could be picked.
    """
    if label_column in texts:
        return str(label_column), None
    classes = [name for name in columns if features.get(name, {}).get("_type") == "ClassLabel"]
    common = [name for name in LABEL_COLUMNS if name in classes]
    chosen = label_column or (common[0] if common else classes[0] if len(classes) == 1 else None)
    if chosen is None or chosen not in classes:
        text_columns = f"; columns of text are {', '.join(texts)}" if texts else ""
        raise DataError(
            f"No class column {label_column!r}." if label_column else "It is not clear which column is the class.",
            where=f"{where}: class columns are {', '.join(classes) or 'none'}{text_columns}",
            fix="Name one with --label-column: a ClassLabel, with its names in the schema, or a column of text.",
        )
    return chosen, tuple(features[chosen]["names"])


def _features(schema: Any) -> dict[str, Any]:
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        features = dict(json.loads(stored)["info"]["features"]) if stored else {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            "The schema's `huggingface` metadata is damaged.", where="huggingface", fix="Write the table anew."
        ) from error
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}  # no lists


def _image_column(schema: Any, file: Path) -> str:
    for field in schema:
        if _is_nested(schema, field.name) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    raise DataError(
        "There is no image column.",
        where=file.name,
        fix="Write images as a struct {bytes, path}, as Hugging Face does.",
    )


def _is_nested(schema: Any, name: str) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_struct(schema.field(name).type))


def _is_text(schema: Any, name: str) -> bool:
    import pyarrow.types

    kind = schema.field(name).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def class_targets(
    values: list[Any], names: tuple[str, ...] | None, known: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], torch.Tensor]:
    """Class names of a column and the class index of each row; `UNLABELLED` for a missing or negative value.

    Args:
        values: The column: class indices, or class names where `names` is None.
        names: Class names by index; None for a text column, whose sorted values are the class names.
        known: Class names of the training part, for the text column of a test part; None for the training part.
        where: File or part and column, for the errors.

    Raises:
        DataError: A test part has a class that the training part lacks, or an index has no name.

    >>> class_targets(["owl", "cat", None, "owl"], None, None, "here")
    (('cat', 'owl'), tensor([ 1,  0, -1,  1]))
    """
    if names is None:
        occurring = {value for value in values if value}
        names = tuple(sorted(occurring)) if known is None else known
        index_of = {name: index for index, name in enumerate(names)}
        if unknown := sorted(occurring - index_of.keys()):
            raise DataError(
                f"The test part has {len(unknown)} classes that the training part has not.",
                where=f"{where}: {', '.join(unknown[:5])}",
                fix="Leave these rows out, or name another column.",
            )
        values = [index_of[value] if value else None for value in values]
    targets = torch.tensor([UNLABELLED if value is None or value < 0 else value for value in values], dtype=torch.long)
    if len(targets) and int(targets.max()) >= len(names):
        raise DataError(
            f"A class index has no name: {int(targets.max())}, with {len(names)} classes.",
            where=where,
            fix="Write the table anew with every class in its ClassLabel feature.",
        )
    return names, targets


def text_column(values: list[Any], feature: dict[str, Any] | None) -> list[str]:
    """A column as text: class names for class indices, empty text for missing values.

    Args:
        values: The column.
        feature: Hugging Face's description of the column; None where there is none.
    """
    names = (feature or {}).get("names")
    if names:
        indices = range(len(names))
        return [names[value] if value in indices else "" for value in values]
    return ["" if value is None else str(value) for value in values]


def _row_reader(parquets: list[Any], image: str) -> Callable[[int], Image.Image]:
    """decode(row): find the row group, read and cache its compressed images, decode one."""
    groups = [(parquet, group) for parquet in parquets for group in range(parquet.num_row_groups)]
    ends = list(accumulate(parquet.metadata.row_group(group).num_rows for parquet, group in groups))
    lock = threading.Lock()

    @lru_cache(maxsize=CACHED_ROW_GROUPS)
    def compressed(index: int) -> Any:
        parquet, group = groups[index]
        return parquet.read_row_group(group, columns=[image])[image]

    def decode(row: int) -> Image.Image:
        index = bisect.bisect_right(ends, row)
        first = ends[index - 1] if index else 0
        with lock:  # one file's reader in two threads at a time crashes or hangs
            column = compressed(index)
        content = column[row - first]["bytes"].as_py()
        if content is None:
            raise ValueError("the table holds a path but no bytes")
        return open_image(content)

    return decode
