"""Find the classes and samples of a request in the training images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from famr.data import Data
from famr.desk.duplicates import Fingerprint, matches
from famr.desk.scope import Scope
from famr.errors import RequestError
from famr.storage.digests import file_digest

SampleState = Literal["found", "not found", "forgotten before"]


@dataclass(frozen=True)
class Sample:
    """One class or image that a request names, and the result of the search for it.

    Attributes:
        asked: Its name in the request: a class, an id, a path, a position, a hash or the file name of an example.
        state: Result of the search.
        id: Id of the training image; None for a class, or where nothing was found.
        images: Number of training images it stands for.
        similarity: Correlation with the example; None for anything but a near copy.
    """

    asked: str
    state: SampleState
    id: str | None = None
    images: int = 0
    similarity: float | None = None


@dataclass(frozen=True)
class Forgotten:
    """What a chain of runs has forgotten already.

    Attributes:
        classes: Names of whole classes.
        ids: Ids of training images.
    """

    classes: Collection[str] = ()
    ids: Collection[str] = ()


class SearchableData(Protocol):
    """The training images of a workspace, with their fingerprints and files."""

    def data(self) -> Data:
        """The training data, with the class names of the model."""

    def fingerprints(self) -> Sequence[Fingerprint]:
        """Fingerprints of the training images, in their order."""

    def file_of(self, id_: str) -> Path | None:
        """The file of a training image.

        Args:
            id_: Id of the image.

        Returns:
            None where the data does not lie in files.
        """


def find_samples(scope: Scope, searchable: SearchableData, before: Forgotten) -> list[Sample]:
    """Search the training images for everything a scope names.

    Args:
        scope: The classes or samples of the request.
        searchable: The training images; fingerprints are computed only for hashes and examples.
        before: What the chain has forgotten already.

    Returns:
        For classes one entry each; for samples one entry per image found, in the order of the data, under the first
        name that led to it; then one entry per name that led to none.

    Raises:
        RequestError: A path fits several images.
    """
    data = searchable.data()
    if scope.classes:
        return [_find_class(name, data, before) for name in scope.classes]
    ids = data.train.ids
    hits: list[_Hit] = []
    missing: list[str] = []

    def record(asked: str, hits_of_name: Sequence[_Hit]) -> None:
        hits.extend(hits_of_name)
        if not hits_of_name:
            missing.append(asked)

    indices_of = _name_index(ids)
    for name in scope.names:
        record(name, [_Hit(name, index) for index in indices_of(name)])
    if scope.hashes:
        by_digest = _digest_index(ids, searchable)
        for digest in scope.hashes:
            record(digest, [_Hit(digest, index) for index in by_digest.get(digest, ())])
    if scope.examples:
        copies = matches([example.print for example in scope.examples], searchable.fingerprints())
        for row, example in enumerate(scope.examples):
            record(example.name, [_Hit(example.name, m.second, m.similarity) for m in copies if m.first == row])
    return [*_samples(hits, data, before), *(Sample(asked, "not found") for asked in missing)]


@dataclass(frozen=True)
class _Hit:
    """A name in a request and the index of an image it led to."""

    asked: str
    index: int
    similarity: float | None = None


def _find_class(name: str, data: Data, before: Forgotten) -> Sample:
    if name not in data.labels:
        return Sample(name, "not found")
    images = int((data.train.targets == data.labels.index(name)).sum())
    if name in before.classes:
        return Sample(name, "forgotten before", None, images)
    return Sample(name, "found" if images else "not found", None, images)


def _samples(hits: Sequence[_Hit], data: Data, before: Forgotten) -> list[Sample]:
    """One entry per image, under the first name that led to it, an exact hit before a near one."""
    best: dict[int, _Hit] = {}
    for hit in sorted(hits, key=lambda hit: hit.similarity is not None):
        best.setdefault(hit.index, hit)
    ids, targets = data.train.ids, data.train.targets.tolist()
    forgotten_targets = {data.labels.index(name) for name in before.classes if name in data.labels}
    samples = []
    for index, hit in sorted(best.items()):
        is_forgotten = ids[index] in before.ids or targets[index] in forgotten_targets
        state: SampleState = "forgotten before" if is_forgotten else "found"
        samples.append(Sample(hit.asked, state, ids[index], 1, hit.similarity))
    return samples


def _digest_index(ids: Sequence[str], searchable: SearchableData) -> dict[str, list[int]]:
    """Indices of the images by the SHA-256 of their pixels and of their files."""
    by_digest: dict[str, list[int]] = {}
    for index, (id_, print_) in enumerate(zip(ids, searchable.fingerprints(), strict=True)):
        file = searchable.file_of(id_)
        for digest in {print_.pixels, *([] if file is None else [file_digest(file)])}:
            by_digest.setdefault(digest, []).append(index)
    return by_digest


def _name_index(ids: Sequence[str]) -> Callable[[str], list[int]]:
    """A function from a name to indices: an id, a position, or the end of exactly one path."""
    exact = {id_: index for index, id_ in enumerate(ids)}
    by_last_part: dict[str, list[int]] = {}
    for index, id_ in enumerate(ids):
        by_last_part.setdefault(Path(id_).name, []).append(index)

    def indices_of(name: str) -> list[int]:
        if name in exact:
            return [exact[name]]
        if name.isdecimal():
            return [int(name)] if int(name) < len(ids) else []
        parts, candidates = Path(name).parts, by_last_part.get(Path(name).name, ())
        fitting = [index for index in candidates if _same_ending(Path(ids[index]).parts, parts)]
        if len(fitting) > 1:
            raise RequestError(
                f"Sample {name!r} fits {len(fitting)} images.",
                where=", ".join(ids[index] for index in fitting[:5]),
                fix="Give more of the path.",
            )
        return fitting

    return indices_of


def _same_ending(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether the shorter of two paths is the end of the longer."""
    length = min(len(first), len(second))
    return first[-length:] == second[-length:]
