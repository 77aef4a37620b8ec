"""Open data and models: as the flags of a command name them, or as the records of a finished run do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from famr.cli.options import MovedOptions
from famr.cli.printing import say, say_note
from famr.data import Data, Images, open_data
from famr.data.calibration import (
    CalibrationSplit,
    calibration_split_or_none_seen,
    scored_splits,
    seen_splits,
)
from famr.data.images import UNLABELLED
from famr.data.request import Request
from famr.data.splits import EarlierRequest, Splits, forget_only, split
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier, load_model
from famr.models.labels import match_labels
from famr.runs.folder import read_unlearning
from famr.runs.training_record import TrainingRecord


@dataclass(frozen=True)
class DataSource:
    """How data is opened; run.json has it, so that the data can be opened in the same way again.

    Attributes:
        spec: Kind and path, as for `open_data`; None where a run, saved from Python, does not name its data.
        root: Where torchvision keeps its files.
        label_column: Name of the class column.
        split_seed: Seed of the test split, for data that has none.
        match_labels_by_name: Whether model and data may name the same classes in another order.
        forget_only: Whether all of its images are to be forgotten.
    """

    spec: str | None
    root: str | None = None
    label_column: str | None = None
    split_seed: int = 0
    match_labels_by_name: bool = False
    forget_only: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataSource:
        """The inverse of `to_json`.

        Args:
            values: Under `data` in run.json; further ones are ignored, missing ones have their defaults.
        """
        return cls(**{"spec": None, **{each.name: values[each.name] for each in fields(cls) if each.name in values}})

    def open(self) -> Data:
        """The data.

        Raises:
            DataError: It cannot be read.
            RequestError: Its kind is unknown.
        """
        return open_data(
            str(self.spec),
            root=self.root,
            label_column=self.label_column,
            split_seed=self.split_seed,
            whole=self.forget_only,
        )


def open_splits(
    model: Classifier, request: Request, source: DataSource, earlier: Sequence[EarlierRequest] = ()
) -> tuple[Classifier, Splits]:
    """The sets of a request.

    Args:
        model: The model that is to forget, or that has forgotten.
        request: What to forget.
        source: The data.
        earlier: Requests that were unlearned before this one.

    Returns:
        The model with the class names that it shares with the data, and the sets.

    Raises:
        RequestError: The request does not fit the data.
        DataError: Model and data name other classes.
    """
    data = source.open()
    if not source.forget_only:
        model, data = match_labels(model, data, by_name=source.match_labels_by_name)
        return model, split(data, request, earlier)
    if request.kind != "images":
        raise RequestError(
            "With --forget-data every image is forgotten; there is nothing to choose.",
            fix=f"Leave out the {request.kind}, or give the whole data with --data.",
        )
    if model.labels is not None:
        return model, forget_only(data.with_labels(model.labels).everything(), model.labels)
    say("the checkpoint names no classes, so the labels of the images cannot be used")
    return model, forget_only(data.everything().with_targets([UNLABELLED] * len(data.labels)))


def divide(splits: Splits) -> CalibrationSplit:
    """The sets for a run and those on which it is scored; a note is printed where there are too few images for that.

    Args:
        splits: The sets of a request.
    """
    divided = calibration_split_or_none_seen(splits)
    if splits.test is not None and divided.for_forgetting.test is None:
        say_note(
            f"{len(splits.test)} held-out images are too few to set some aside for calibration; "
            "the run sees none of them, and all are scored"
        )
    return divided


def open_style_target(spec: str | None) -> Images | None:
    """Images of a neutral style.

    Args:
        spec: As for `open_data`; all images are taken. None: there are none.
    """
    return open_data(spec, whole=True).everything() if spec else None


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A finished unlearning run, opened from its records.

    Attributes:
        model: The unlearned model.
        original: The model that it was made from; None where it cannot be found.
        request: What was forgotten.
        splits: The sets on which the run is scored: without the images that calibrated it.
        seen: The sets that the run was given.
        record: The content of run.json.
    """

    model: Classifier
    original: Classifier | None
    request: Request
    splits: Splits
    seen: Splits
    record: Mapping[str, Any]

    @property
    def style_target(self) -> str | None:
        """The images of a neutral style that the run used, as for `open_data`."""
        spec: str | None = (self.record["data"] or {}).get("style_target")
        return spec


def open_run(run: Path, moved: MovedOptions) -> OpenedRun:
    """Open a finished run: its model, its original and its images.

    Args:
        run: The run folder.
        moved: What is no longer where the records say.

    Raises:
        CheckpointError: The folder is of another kind or damaged, or the original has other weights than it had.
        RequestError: The records do not name the data.
        DataError: The data cannot be read.
    """
    request, record = read_unlearning(run)
    model = load_model(str(run))
    source = recorded_source(run, record, moved.data, moved.data_root)
    model, splits = open_splits(model, request, source, earlier_requests(record))
    original = find_original(moved.original, record["original"])
    if original is not None:
        original = replace(original, labels=model.labels)
    scored, seen = scored_splits(record, splits), seen_splits(record, splits)
    return OpenedRun(model, original, request, scored, seen, record)


def earlier_requests(record: Mapping[str, Any]) -> list[EarlierRequest]:
    """Requests that the model of a run had unlearned before it.

    Args:
        record: The content of run.json.
    """
    return [EarlierRequest.from_json(values) for values in record.get("earlier", [])]


def recorded_source(run: Path, record: Mapping[str, Any], spec: str | None, root: str | None) -> DataSource:
    """How the data of a run is opened.

    Args:
        run: The run folder.
        record: The content of its run.json.
        spec: Where the data is now; None: where the record says.
        root: Where torchvision keeps its files now; None: where the record says.

    Raises:
        RequestError: Neither the record nor the user names the data.
    """
    source = DataSource.from_json(record["data"] or {})
    source = replace(source, spec=source.spec if spec is None else spec, root=source.root if root is None else root)
    if not source.spec:
        raise RequestError("The run does not say which data it used.", where=str(run), fix="Give --data.")
    return source


def find_original(given: str | None, record: Mapping[str, Any]) -> Classifier | None:
    """The model that a run started from.

    Args:
        given: Where it is now; None: where the record says.
        record: Under `original` in run.json.

    Returns:
        None where it is not where the record says.

    Raises:
        CheckpointError: It cannot be read, or has other weights than it had.
    """
    try:
        if given:
            model = load_model(given)
        else:
            model = load_model(record["model"], weights=record["weights"], arguments=record["arguments"])
    except CheckpointError:
        if given or Path(record["model"]).exists():
            raise
        say_note(f"the original is not at {record['model']}; name it with --original")
        return None
    if model.digest() != record["weights_sha256"]:
        raise CheckpointError(
            "The original has other weights than those the run started from.",
            where=given or record["model"],
            fix="Name the right one with --original.",
        )
    return model


def load_retrained(spec: str, model: Classifier, request: Request) -> Classifier:
    """A retrained model; a note is printed where its record says that it was trained without something else.

    Args:
        spec: As for `load_model`.
        model: The model that it is compared with.
        request: What it should have been trained without.

    Raises:
        CheckpointError: It cannot be read, or names other classes.
    """
    retrained = load_model(spec)
    if retrained.labels is None:
        retrained = replace(retrained, labels=model.labels)
    if model.labels is not None and retrained.labels != model.labels:
        raise CheckpointError(
            "The retrained model names other classes.", where=spec, fix="Compare models of the same classes."
        )
    record = TrainingRecord.read(Path(spec))
    if record is not None and record.without != request:
        trained_on = "everything" if record.without is None else f"all but {record.without.describe()}"
        say_note(f"{spec} says that it was trained on {trained_on}; the request is {request.describe()}")
    return retrained
