"""Parquet files in Hugging Face's layout: an `image` column of {bytes, path}, class names in the schema or as text.

Only pyarrow is needed. Labels and columns are read at once, image bytes one row group at a time.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Iterable
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
ROW_GROUPS_KEPT = 256


def open_parquet(place: str, label_column: str | None) -> Data:
    """`place` is a folder with train-*.parquet and test-*.parquet (or train/*.parquet …), or one file."""
    path = Path(place)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise DataError("There are no Parquet files.", where=place, fix="Check the path after `parquet:`.")
    train = [file for file in files if _is_of(file, path, "train")] or files
    rest = [file for file in files if file not in train]
    candidates = [found for part in TEST_PARTS if (found := [f for f in rest if _is_of(f, path, part)])]
    seen = _read_part(train, "train", label_column)
    others = (_read_part(test, "test", label_column, seen[0]) for test in candidates)
    return of_two_parts(place, seen, first_labelled(others))


Part = tuple[tuple[str, ...], Images]
"""The class names of a part, and its images."""


def first_labelled(parts: Iterable[Part]) -> Part | None:
    """The first part with a class for every image (published test parts often hide theirs), else the first."""
    first = None
    for part in parts:
        if part[1].labelled:
            return part
        first = first or part
    return first


def of_two_parts(place: str, train: Part, test: Part | None) -> Data:
    """One data set of a training and a test part that name their classes alike."""
    labels, images = train
    if test is None:
        return Data(place, labels, images, None)
    if test[0] != labels:
        raise DataError(
            "Training and test part name their classes differently.",
            where=f"train: {labels[:5]}…, test: {test[0][:5]}…",
            fix="Write both with the same ClassLabel feature.",
        )
    return Data(place, labels, images, test[1])


def _is_of(file: Path, root: Path, part: str) -> bool:
    """Whether a file belongs to a part by its name, or by a folder it lies in."""
    return file.name.startswith(part) or part in file.relative_to(root).parts[:-1]


def _read_part(files: list[Path], part: str, label_column: str | None, known: tuple[str, ...] | None = None) -> Part:
    """`known` are the classes of the training part, where a column of text does not name its own."""
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
    others = [name for name in schema.names if name != image and not _is_nested(schema, name)]
    table = pyarrow.concat_tables([parquet.read(columns=others) for parquet in parquets])
    columns = {name: as_text(table[name].to_pylist(), features.get(name)) for name in others}
    names, targets = classes_of(table[label].to_pylist(), names, known, f"{files[0].name}: {label}")
    images = Images.from_source(
        decode=_row_reader(parquets, image),
        ids=[f"{part}/{row}" for row in range(table.num_rows)],
        targets=targets,
        columns=columns,
    )
    return names, images


def pick_label(
    features: dict[str, Any], columns: list[str], texts: list[str], label_column: str | None, where: str
) -> tuple[str, tuple[str, ...] | None]:
    """The class column and its names: the one asked for, a usual one, or the only one.

    A column of text can be asked for, too; its names are None, as there are no others than those that occur in it.
    """
    classes = [name for name in columns if features.get(name, {}).get("_type") == "ClassLabel"]
    if label_column in texts:
        return str(label_column), None
    usual = [name for name in LABEL_COLUMNS if name in classes]
    chosen = label_column or (usual[0] if usual else classes[0] if len(classes) == 1 else None)
    if chosen is None or chosen not in classes:
        also = f"; columns of text are {', '.join(texts)}" if texts else ""
        raise DataError(
            f"No class column {label_column!r}." if label_column else "It is not clear which column is the class.",
            where=f"{where}: class columns are {', '.join(classes) or 'none'}{also}",
            fix="Name one with --label-column: a ClassLabel, with its names in the schema, or a column of text.",
        )
    return chosen, tuple(features[chosen]["names"])


def _features(schema: Any) -> dict[str, Any]:
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        features = dict(json.loads(stored)["info"]["features"]) if stored else {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            "The schema's note on its features is damaged.", where="huggingface", fix="Write the table anew."
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
    import pyarrow.types as kinds

    kind = schema.field(name).type
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def classes_of(
    values: list[Any], names: tuple[str, ...] | None, known: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], torch.Tensor]:
    """The names of the classes and the index of each value; a missing or negative one is `UNLABELLED`.

    Without `names` the values are text, and name them: all that occur, in the order of the alphabet, or those `known`
    from the training part, beside which there may be no others.

    >>> classes_of(["owl", "cat", None, "owl"], None, None, "here")
    (('cat', 'owl'), tensor([ 1,  0, -1,  1]))
    """
    if names is None:
        occurring = {value for value in values if value}
        names = tuple(sorted(occurring)) if known is None else known
        index = {name: place for place, name in enumerate(names)}
        if strange := sorted(occurring - index.keys()):
            raise DataError(
                f"The test part has {len(strange)} classes that the training part has not.",
                where=f"{where}: {', '.join(strange[:5])}",
                fix="Leave these rows out, or name another column.",
            )
        values = [index[value] if value else None for value in values]
    targets = torch.tensor([UNLABELLED if value is None or value < 0 else value for value in values], dtype=torch.long)
    if len(targets) and int(targets.max()) >= len(names):
        raise DataError(
            f"A class index has no name: {int(targets.max())}, with {len(names)} classes.",
            where=where,
            fix="Write the table anew with every class in its ClassLabel feature.",
        )
    return names, targets


def as_text(values: list[Any], feature: dict[str, Any] | None) -> list[str]:
    """A column as text, class indices by their names, empty where there is no value."""
    names = (feature or {}).get("names")
    if names:
        known = range(len(names))
        return [names[value] if value in known else "" for value in values]
    return ["" if value is None else str(value) for value in values]


def _row_reader(parquets: list[Any], image: str) -> Callable[[int], Image.Image]:
    """decode(row): find the row group, read its compressed images (kept), decode one."""
    groups = [(parquet, group) for parquet in parquets for group in range(parquet.num_row_groups)]
    ends = list(accumulate(parquet.metadata.row_group(group).num_rows for parquet, group in groups))
    reading = threading.Lock()

    @lru_cache(maxsize=ROW_GROUPS_KEPT)
    def compressed(position: int) -> Any:
        parquet, group = groups[position]
        return parquet.read_row_group(group, columns=[image])[image]

    def decode(row: int) -> Image.Image:
        position = bisect.bisect_right(ends, row)
        first = ends[position - 1] if position else 0
        with reading:  # one file's reader in two threads at a time crashes or hangs
            column = compressed(position)
        content = column[row - first]["bytes"].as_py()
        if content is None:
            raise ValueError("the table holds a path but no bytes")
        return open_image(content)

    return decode
