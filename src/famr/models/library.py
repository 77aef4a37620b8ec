"""What famr needs of a model library: networks by name, with and without weights."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from famr.errors import RequestError
from famr.models.classifier import Classifier


class ModelLibrary(NamedTuple):
    """Two ways to build a classifier by its name in a library.

    Attributes:
        untrained: From a name and the constructor's arguments, with random weights and a head of two outputs.
        pretrained: The same with the published weights, head and class names.
    """

    untrained: Callable[[str, Mapping[str, Any]], Classifier]
    pretrained: Callable[[str, Mapping[str, Any]], Classifier]


def unknown_name(library: str, name: str, known: Sequence[str]) -> RequestError:
    """The error for a name that a library does not have, with the nearest names that it has.

    Args:
        library: Name of the library.
        name: What was given.
        known: All names of the library.
    """
    near = difflib.get_close_matches(name, known, n=5)
    return RequestError(
        f"{library} has no classifier {name!r}.",
        where=f"{library}:{name}",
        fix=f"Did you mean {', '.join(near)}?" if near else f"{library} has {len(known)} classifiers; list them there.",
    )
