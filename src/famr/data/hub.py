"""Data sets of the Hugging Face hub, or saved by `datasets` on disk; needs the extra `famr[datasets]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from famr.data.dataset import Data
from famr.data.images import Images
from famr.data.parquet import TEST_PARTS, Part, as_text, classes_of, first_labelled, of_two_parts, pick_label
from famr.errors import DataError


def open_hub(place: str, label_column: str | None) -> Data:
    """`place` is a hub id, or a folder that `datasets` wrote with `save_to_disk`."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "Data of the kind `hf:` needs the package `datasets`.",
            where=f"hf:{place}",
            fix="pip install 'famr[datasets]'",
        ) from error
    try:
        found = datasets.load_from_disk(place) if Path(place).is_dir() else datasets.load_dataset(place)
    except Exception as error:  # the hub raises many unrelated types: offline, gated, removed, unknown
        raise DataError(
            f"The data set could not be opened ({type(error).__name__}).",
            where=f"hf:{place}",
            fix=f"Check the name and the network. {_hub_state()}",
        ) from error
    parts = dict(found) if isinstance(found, datasets.DatasetDict) else {"train": found}
    train = parts.get("train")
    if train is None:
        raise DataError(
            f"The data set has no part `train`, only {', '.join(parts)}.",
            where=f"hf:{place}",
            fix="Use a data set with a training part.",
        )
    seen = _read_part(train, "train", label_column)
    others = (_read_part(parts[name], "test", label_column, seen[0]) for name in TEST_PARTS if name in parts)
    return of_two_parts(place, seen, first_labelled(others))


def _hub_state() -> str:
    """Whether the hub may be asked, and whether it would know the user; never the token itself."""
    from huggingface_hub import constants, get_token

    offline = (
        "HF_HUB_OFFLINE is set, so that only what is cached can be used."
        if constants.HF_HUB_OFFLINE
        else ("HF_HUB_OFFLINE is not set.")
    )
    token = "A token is set." if get_token() else "No token is set; a gated data set needs `hf auth login`."
    return f"{offline} {token}"


def _read_part(part: Any, name: str, label_column: str | None, known: tuple[str, ...] | None = None) -> Part:
    import datasets

    features = {
        key: {"_type": type(value).__name__, **getattr(value, "__dict__", {})} for key, value in part.features.items()
    }
    images = [key for key, value in part.features.items() if isinstance(value, datasets.Image)]
    if not images:
        raise DataError("The data set has no image column.", where=name, fix="Use a data set of images.")
    texts = [key for key, value in features.items() if value.get("dtype") in ("string", "large_string")]
    label, names = pick_label(features, list(features), texts, label_column, name)
    plain = part.remove_columns(images)
    names, targets = classes_of(plain[label][:], names, known, f"{name}: {label}")
    return names, Images.from_source(
        decode=lambda row: part[row][images[0]],
        ids=[f"{name}/{row}" for row in range(len(part))],
        targets=targets,
        columns={key: as_text(plain[key][:], features[key]) for key in plain.features},
    )
