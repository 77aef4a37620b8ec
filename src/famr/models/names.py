"""Names that a library does not know, and the nearest ones that it does."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from famr.errors import RequestError


def unknown_name(library: str, name: str, known: Sequence[str]) -> RequestError:
    """The error for a name that is none of the known ones."""
    near = difflib.get_close_matches(name, known, n=5)
    return RequestError(
        f"{library} has no classifier {name!r}.",
        where=f"{library}:{name}",
        fix=f"Did you mean {', '.join(near)}?" if near else f"{library} knows {len(known)} names; list them there.",
    )
