"""What a deletion request covers: classes, or samples by id, path, position, hash or example; and what is found."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from famr.desk.duplicates import Fingerprint, fingerprints, matches
from famr.errors import RequestError
from famr.storage.digests import file_digest

if TYPE_CHECKING:
    from famr.data import Data

Kind = Literal["class", "samples"]
State = Literal["found", "not found", "forgotten before"]
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Example:
    """A picture that a person handed over; only what it takes to find it again is kept."""

    name: str
    print: Fingerprint


@dataclass(frozen=True)
class Scope:
    """Classes by name, or samples; what a person asked for, before anybody looked into the data."""

    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Ids, paths or positions in the training images."""
    hashes: tuple[str, ...] = ()
    """SHA-256 of the file (of a folder's images) or of the pixels."""
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.classes) == bool(self.names or self.hashes or self.examples):
            raise RequestError(
                "A request names either classes or samples.",
                fix="--class NAME, or --sample, --samples, --hash or --examples; make two requests for both.",
            )
        if wrong := [text for text in self.hashes if not SHA256.fullmatch(text)]:
            raise RequestError(
                f"A hash has 64 hexadecimal digits, got {wrong[0]!r}.", fix="--hash $(sha256sum FILE | cut -c -64)"
            )

    @property
    def kind(self) -> Kind:
        """Classes and samples are forgotten in different ways."""
        return "class" if self.classes else "samples"

    def describe(self) -> str:
        """In a few words, for people."""
        if self.classes:
            return f"class {self.classes[0]}" if len(self.classes) == 1 else f"classes {', '.join(self.classes)}"
        parts = {"by name": len(self.names), "by hash": len(self.hashes), "by example": len(self.examples)}
        asked = " and ".join(f"{count} {words}" for words, count in parts.items() if count)
        return f"samples, {asked}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "classes": list(self.classes),
            "names": list(self.names),
            "hashes": list(self.hashes),
            "examples": [
                {
                    "name": each.name,
                    "pixels": each.print.pixels,
                    "thumbnail": base64.b64encode(each.print.thumbnail).decode("ascii"),
                }
                for each in self.examples
            ],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scope:
        """The inverse of `to_json`."""
        examples = tuple(
            Example(each["name"], Fingerprint(each["pixels"], base64.b64decode(each["thumbnail"])))
            for each in values["examples"]
        )
        return cls(tuple(values["classes"]), tuple(values["names"]), tuple(values["hashes"]), examples)

    def digest(self) -> str:
        """The same for the same content, in whatever order and under whatever file names it came."""
        content = {
            "classes": sorted(set(self.classes)),
            "names": sorted(set(self.names)),
            "hashes": sorted(set(self.hashes)),
            "examples": sorted({each.print.pixels for each in self.examples}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def examples_in(folder: Path) -> tuple[Example, ...]:
    """The pictures below a folder."""
    from famr.data import open_data

    if not folder.is_dir():
        raise RequestError("There is no such folder of examples.", where=str(folder), fix="Check the path.")
    images = open_data(f"folder:{folder}", whole=True).everything()
    return tuple(Example(name, print_) for name, print_ in zip(images.ids, fingerprints(images), strict=True))


@dataclass(frozen=True)
class Sample:
    """One thing that was asked for and what was found: a class with its images, or an image."""

    asked: str
    state: State
    id: str | None = None
    images: int = 0
    similarity: float | None = None
    """None for an exact find."""


@dataclass(frozen=True)
class Forgotten:
    """What a chain of runs has forgotten already."""

    classes: Collection[str] = ()
    ids: Collection[str] = ()


def resolve(
    scope: Scope,
    data: Data,
    before: Forgotten,
    prints: Callable[[], Sequence[Fingerprint]],
    file_of: Callable[[str], Path | None],
) -> list[Sample]:
    """Look for everything a scope names. `prints` gives the fingerprints of the training images when they are needed,
    `file_of` the file behind an id, where there is one."""
    if scope.classes:
        return [_class(name, data, before) for name in scope.classes]
    ids = data.train.ids
    found: list[tuple[str, int, float | None]] = []
    missing: list[str] = []

    def note(asked: str, places: Sequence[tuple[int, float | None]]) -> None:
        found.extend((asked, place, similarity) for place, similarity in places)
        if not places:
            missing.append(asked)

    places = _by_name(ids)
    for name in scope.names:
        note(name, [(place, None) for place in places(name)])
    if scope.hashes:
        known: dict[str, list[int]] = {}
        for place, (id_, print_) in enumerate(zip(ids, prints(), strict=True)):
            file = file_of(id_)
            for digest in {print_.pixels, *([] if file is None else [file_digest(file)])}:
                known.setdefault(digest, []).append(place)
        for digest in scope.hashes:
            note(digest, [(place, None) for place in known.get(digest, ())])
    if scope.examples:
        same = matches([each.print for each in scope.examples], prints())
        for row, each in enumerate(scope.examples):
            note(each.name, [(match.second, match.similarity) for match in same if match.first == row])
    return [*_samples(found, data, before), *(Sample(asked, "not found") for asked in missing)]


def _class(name: str, data: Data, before: Forgotten) -> Sample:
    if name not in data.labels:
        return Sample(name, "not found")
    images = int((data.train.targets == data.labels.index(name)).sum())
    if name in before.classes:
        return Sample(name, "forgotten before", None, images)
    return Sample(name, "found" if images else "not found", None, images)


def _samples(found: Sequence[tuple[str, int, float | None]], data: Data, before: Forgotten) -> list[Sample]:
    """One entry an image, under the first name that led to it, an exact find before a near one."""
    best: dict[int, tuple[str, float | None]] = {}
    for asked, place, similarity in sorted(found, key=lambda each: each[2] is not None):
        best.setdefault(place, (asked, similarity))
    ids, targets = data.train.ids, data.train.targets.tolist()
    gone = {data.labels.index(name) for name in before.classes if name in data.labels}
    samples = []
    for place, (asked, similarity) in sorted(best.items()):
        known = ids[place] in before.ids or targets[place] in gone
        state: State = "forgotten before" if known else "found"
        samples.append(Sample(asked, state, ids[place], 1, similarity))
    return samples


def _by_name(ids: Sequence[str]) -> Callable[[str], list[int]]:
    """The places of a name: an id, a position, or the end of exactly one path."""
    exact = {id_: place for place, id_ in enumerate(ids)}
    by_last: dict[str, list[int]] = {}
    for place, id_ in enumerate(ids):
        by_last.setdefault(Path(id_).name, []).append(place)

    def places(name: str) -> list[int]:
        if name in exact:
            return [exact[name]]
        if name.isdecimal():
            return [int(name)] if int(name) < len(ids) else []
        parts = Path(name).parts
        fitting = [place for place in by_last.get(Path(name).name, ()) if _ends_alike(Path(ids[place]).parts, parts)]
        if len(fitting) > 1:
            raise RequestError(
                f"Sample {name!r} fits {len(fitting)} images.",
                where=", ".join(ids[place] for place in fitting[:5]),
                fix="Give more of the path.",
            )
        return fitting

    return places


def _ends_alike(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    shorter = min(len(ours), len(theirs))
    return ours[-shorter:] == theirs[-shorter:]
