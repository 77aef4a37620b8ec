"""What a deletion request covers: classes by name, or samples by id, path, position, hash or example image."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from famr.desk.duplicates import Fingerprint, fingerprints
from famr.errors import RequestError
from famr.storage.digests import json_digest

ScopeKind = Literal["class", "samples"]
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Example:
    """An image that a person handed in, reduced to what is needed to find it in the data.

    Attributes:
        name: File name.
        print: Fingerprint of its pixels.
    """

    name: str
    print: Fingerprint


@dataclass(frozen=True)
class Scope:
    """Classes or samples as the person named them, before the data was searched.

    Attributes:
        classes: Class names; then everything else is empty.
        names: Ids, paths or positions in the training images.
        hashes: SHA-256 of an image's file (for `folder:` data) or of its pixels.
        examples: Images to search for, near copies included.

    Raises:
        RequestError: Both classes and samples are named, or neither; or a hash is malformed.
    """

    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.classes) == bool(self.names or self.hashes or self.examples):
            raise RequestError(
                "A request names either classes or samples.",
                fix="--class NAME, or --sample, --samples, --hash or --examples; make two requests for both.",
            )
        if malformed := [text for text in self.hashes if not SHA256.fullmatch(text)]:
            raise RequestError(
                f"A hash has 64 hexadecimal digits, got {malformed[0]!r}.",
                fix="--hash $(sha256sum FILE | cut -c -64)",
            )

    @property
    def kind(self) -> ScopeKind:
        """`class` or `samples`, which are forgotten in different ways."""
        return "class" if self.classes else "samples"

    def describe(self) -> str:
        """A short description for people."""
        if self.classes:
            return f"class {self.classes[0]}" if len(self.classes) == 1 else f"classes {', '.join(self.classes)}"
        counts = {"by name": len(self.names), "by hash": len(self.hashes), "by example": len(self.examples)}
        return "samples, " + " and ".join(f"{count} {words}" for words, count in counts.items() if count)

    def to_json(self) -> dict[str, Any]:
        """As plain values; the inverse is `from_json`."""
        return {
            "classes": list(self.classes),
            "names": list(self.names),
            "hashes": list(self.hashes),
            "examples": [
                {
                    "name": example.name,
                    "pixels": example.print.pixels,
                    "thumbnail": base64.b64encode(example.print.thumbnail).decode("ascii"),
                }
                for example in self.examples
            ],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scope:
        """The inverse of `to_json`.

        Args:
            values: What `to_json` returned.
        """
        examples = tuple(
            Example(example["name"], Fingerprint(example["pixels"], base64.b64decode(example["thumbnail"])))
            for example in values["examples"]
        )
        return cls(tuple(values["classes"]), tuple(values["names"]), tuple(values["hashes"]), examples)

    def digest(self) -> str:
        """SHA-256 of the content, whatever its order and the file names of its examples."""
        return json_digest(
            {
                "classes": sorted(set(self.classes)),
                "names": sorted(set(self.names)),
                "hashes": sorted(set(self.hashes)),
                "examples": sorted({example.print.pixels for example in self.examples}),
            }
        )


def examples_in(folder: Path) -> tuple[Example, ...]:
    """The images below a folder as examples.

    Args:
        folder: A folder of image files.

    Raises:
        RequestError: The folder does not exist.
        DataError: A file in it is not an image.
    """
    from famr.data import open_data

    if not folder.is_dir():
        raise RequestError("There is no such folder of examples.", where=str(folder), fix="Check the path.")
    images = open_data(f"folder:{folder}", whole=True).everything()
    return tuple(Example(name, print_) for name, print_ in zip(images.ids, fingerprints(images), strict=True))
