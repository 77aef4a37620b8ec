"""Data sets of the Hugging Face hub, or saved to disk by `datasets`; needs the extra `famr[datasets]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from famr.data.dataset import Data
from famr.data.images import Images
from famr.data.parquet import TEST_PARTS, Part, class_targets, combine_parts, first_labelled, pick_label, text_column
from famr.errors import DataError
from famr.extras import require_extra


def open_hub(name: str, label_column: str | None) -> Data:
    """A data set of the hub, or of a folder that `datasets` wrote with `save_to_disk`.

    Args:
        name: Hub id or folder.
        label_column: Class column, where the table has several; None for one with a common name, or the only one.

    Raises:
        RequestError: `datasets` is not installed.
        DataError: The data set cannot be opened, or has no training part, no images or no class column.
    """
    datasets = require_extra("datasets", "datasets")
    try:
        opened = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    except Exception as error:  # the hub raises many unrelated types: offline, gated, removed, unknown
        raise DataError(
            f"The data set could not be opened ({type(error).__name__}).",
            where=f"hf:{name}",
            fix=f"Check the name and the network. {_hub_state()}",
        ) from error
    parts = dict(opened) if isinstance(opened, datasets.DatasetDict) else {"train": opened}
    if "train" not in parts:
        raise DataError(
            f"The data set has no part `train`, only {', '.join(parts)}.",
            where=f"hf:{name}",
            fix="Use a data set with a training part.",
        )
    train = _read_part(parts["train"], "train", label_column)
    tests = (_read_part(parts[part], "test", label_column, train[0]) for part in TEST_PARTS if part in parts)
    return combine_parts(name, train, first_labelled(tests))


def _hub_state() -> str:
    """Whether the hub may be used, and whether a token is set; never the token itself."""
    from huggingface_hub import constants, get_token

    offline = (
        "HF_HUB_OFFLINE is set, so only cached data sets can be used."
        if constants.HF_HUB_OFFLINE
        else "HF_HUB_OFFLINE is not set."
    )
    token = "A token is set." if get_token() else "No token is set; a gated data set needs `hf auth login`."
    return f"{offline} {token}"


def _read_part(part: Any, name: str, label_column: str | None, known: tuple[str, ...] | None = None) -> Part:
    datasets = require_extra("datasets", "datasets")
    features = {
        key: {"_type": type(value).__name__, **getattr(value, "__dict__", {})} for key, value in part.features.items()
    }
    images = [key for key, value in part.features.items() if isinstance(value, datasets.Image)]
    if not images:
        raise DataError("The data set has no image column.", where=name, fix="Use a data set of images.")
    texts = [key for key, value in features.items() if value.get("dtype") in ("string", "large_string")]
    label, names = pick_label(features, list(features), texts, label_column, name)
    plain = part.remove_columns(images)
    names, targets = class_targets(plain[label][:], names, known, f"{name}: {label}")
    return names, Images.from_source(
        decode=lambda row: part[row][images[0]],
        ids=[f"{name}/{row}" for row in range(len(part))],
        targets=targets,
        columns={key: text_column(plain[key][:], features[key]) for key in plain.features},
    )
