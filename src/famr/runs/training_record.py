"""What a training run left on record, and whether that shows that its model never saw a forget set.

The record is the word of whoever trained the model, sealed with the weights; it is no proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.data.request import Request
from famr.errors import CheckpointError, RequestError
from famr.storage.digests import bytes_digest
from famr.storage.portable_paths import with_local_paths

RECORD = "training/run.json"


def ids_digest(ids: Iterable[str]) -> str:
    """SHA-256 of the sorted ids of images, joined by newlines; their order does not matter.

    Args:
        ids: Of the images.

    >>> ids_digest(["b", "a"]) == ids_digest(["a", "b"]) != ids_digest(["a"])
    True
    """
    return bytes_digest("\n".join(sorted(ids)).encode())


@dataclass(frozen=True)
class TrainingRecord:
    """The record of a training run.

    Attributes:
        without: The request whose images were left out; None: trained on everything.
        weights_sha256: Of the weights that it wrote.
        seed: Of its random draws.
        images_count: Of its training images; None in a record of the first edition, like all that follow but the last.
        images_sha256: `ids_digest` of its training images.
        training: Its settings, as plain values.
        left_out_count: Number of images that were left out.
        left_out_sha256: Their `ids_digest`.
        start_sha256: Of the weights that it started from.
        start: How these are opened, as `famr.new_model` takes them; None where the record does not say.
    """

    without: Request | None
    weights_sha256: str
    seed: int
    images_count: int | None
    images_sha256: str | None
    training: Mapping[str, Any]
    left_out_count: int | None = None
    left_out_sha256: str | None = None
    start_sha256: str | None = None
    start: dict[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> TrainingRecord | None:
        """The record in a folder that `famr train` or `Trained.save` wrote.

        Args:
            folder: The folder; anything else, such as the name of a model on the Hub, has no record.

        Raises:
            CheckpointError: The record is damaged.
        """
        try:
            written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            content = with_local_paths(written, folder)
            images = content.get("images") or {}
            left_out, start = images.get("left_out") or {}, content.get("start") or {}
            lost = start.get("weights") != (written.get("start") or {}).get("weights") and not start.get("weights")
            return cls(
                None if content["without"] is None else Request.from_json(content["without"]),
                content["weights_sha256"],
                content["seed"],
                images.get("count"),
                images.get("sha256"),
                content["training"],
                left_out.get("count"),
                left_out.get("sha256"),
                start.get("weights_sha256"),
                start if isinstance(start.get("model"), str) and not lost else None,
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RequestError) as error:
            raise CheckpointError(
                "The record of the training is damaged.", where=str(folder / RECORD), fix="Restore it."
            ) from error


def reasons_not_a_reference(
    record: TrainingRecord | None,
    request: Request,
    retain_ids: Sequence[str],
    forget_ids: Sequence[str],
    digest: str,
    saw: Mapping[str, str] | None = None,
) -> list[str]:
    """Why a model is not shown to have never seen a forget set; empty where it is.

    Where the record has the digest of the training images, they must be exactly the retained ones, however the request
    was worded. A record of the first edition lacks it, and the request has to be the same: see `notes_on_reference`.

    Args:
        record: Of its training; None where there is none.
        request: What was forgotten.
        retain_ids: Ids of all retained training images.
        forget_ids: Ids of the forget set.
        digest: SHA-256 of the model's weights.
        saw: SHA-256 of models that saw the forget set, by name; training must not have started from one.
    """
    if record is None:
        return ["there is no record of its training"]
    reasons = []
    if record.weights_sha256 != digest:
        reasons.append("the record of its training is of other weights")
    if record.images_sha256 != ids_digest(retain_ids):
        reasons += _wrong_request(record, request)
        reasons += _wrong_images(record, retain_ids, forget_ids)
    started = [name for name, weights in (saw or {}).items() if weights == record.start_sha256]
    reasons += [f"its training started from the weights of the {name}" for name in started]
    return reasons


def notes_on_reference(record: TrainingRecord | None) -> list[str]:
    """What a record leaves open although nothing speaks against the model.

    Args:
        record: Of its training.
    """
    if record is None or record.images_sha256 is not None:
        return []
    return ["its record is of the first edition and names no images: that it never saw them rests on its request alone"]


def _wrong_request(record: TrainingRecord, request: Request) -> list[str]:
    if record.without is None:
        return ["it was trained on everything"]
    if _plain(record.without) == _plain(request):
        return []
    return [f"it was trained without {record.without.describe()}, and the request is {request.describe()}"]


def _wrong_images(record: TrainingRecord, retain_ids: Sequence[str], forget_ids: Sequence[str]) -> list[str]:
    if record.images_sha256 is None:
        return []
    if record.images_sha256 == ids_digest([*retain_ids, *forget_ids]):
        return [f"its {record.images_count} training images include the forget set"]
    return [
        f"its {record.images_count} training images are not exactly the {len(retain_ids)} retained images of this run"
    ]


def _plain(request: Request) -> Mapping[str, Any]:
    """A request without the order in which it names things."""
    return {
        name: sorted(map(str, value)) if isinstance(value, list) else value for name, value in request.to_json().items()
    }
