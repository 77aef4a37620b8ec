"""Speed within bounds: many weights at once are quicker than one after the other, all at once take a copy of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GROUP = 64 << 20
"""Bytes of weights that are taken at once; one larger weight is a group of its own."""
IN_CACHE = 256 << 10
"""The same on a CPU: what its caches hold with all that belongs to it. What is made of larger groups goes back to the
system after each of them, which hands it out again page by page, cleared: for small weights that takes as long as the
arithmetic."""


def groups(sizes: Sequence[int], most: int | None = None) -> Iterator[slice]:
    """Runs of neighbours, as long as they may be.

    >>> list(groups([3, 3, 3, 9, 1], most=6))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    most = GROUP if most is None else most
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size > most:
            yield slice(first, place)
            first, total = place, 0
        total += size
    if first < len(sizes):
        yield slice(first, len(sizes))
