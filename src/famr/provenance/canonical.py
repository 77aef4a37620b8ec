"""Canonical JSON (RFC 8785): the same content always has the same bytes to sign."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from famr.errors import RequestError
from famr.extras import require_extra

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of a value.

    >>> canonical_json({"b": [1e21, 4.50, 2e-3], "a": "€"}).decode()
    '{"a":"€","b":[1e+21,4.5,0.002]}'

    Args:
        value: Plain values; `signable` converts what has no canonical form.

    Raises:
        RequestError: The value has no canonical form, or rfc8785, of the extra ``famr[evidence]``, is not installed.
    """
    require_extra("rfc8785", "evidence")
    import rfc8785

    try:
        return rfc8785.dumps(value)
    except ValueError as error:  # also raised for text that is not Unicode
        raise RequestError(f"This has no canonical JSON: {error}.", fix="Pass it through `signable` first.") from error


def parse_json(content: bytes) -> Any:
    """Parse JSON such that ``canonical_json(parse_json(content)) == content`` if the content is canonical.

    >>> canonical_json(parse_json(b"[100000000000000000000,1]"))
    b'[100000000000000000000,1]'

    Args:
        content: JSON in UTF-8.

    Raises:
        ValueError: The content is not JSON.
    """
    try:
        return json.loads(content.decode("utf-8"), parse_int=_number, parse_constant=_reject)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _number(text: str) -> int | float:
    """An integer that is too large to be exact was a float when it was written."""
    value = float(text)
    return int(text) if abs(value) <= MAX_INTEGER else value


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def signable(value: Any) -> Any:
    """Convert a value to the part of JSON that has a canonical form: no NaN, huge integer or lone surrogate.

    >>> signable({"seed": 2**63, "gap": float("nan"), "counts": (1, 2)})
    {'seed': '9223372036854775808', 'gap': None, 'counts': [1, 2]}

    Args:
        value: Plain values, nested to any depth.

    Returns:
        A copy in which non-finite numbers are None and integers beyond `MAX_INTEGER` are text.
    """
    if isinstance(value, Mapping):
        return {signable(str(name)): signable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [signable(item) for item in value]
    if isinstance(value, str):
        return as_unicode(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_INTEGER:
        return str(value)
    return value


def as_unicode(text: str) -> str:
    r"""Replace lone surrogates, which stand for bytes that are not UTF-8, by their escapes.

    >>> as_unicode("caf\udce9")
    'caf\\udce9'

    Args:
        text: Any text.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
