"""RFC 8785: one spelling of every JSON value, so that the same content always has the same bytes to sign."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from famr.errors import RequestError

LARGEST = 2**53 - 1
"""The largest integer that every reader of JSON takes to be the same number."""


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value.

    >>> canonical({"b": [1e21, 4.50, 2e-3], "a": "€"}).decode()
    '{"a":"€","b":[1e+21,4.5,0.002]}'
    """
    try:
        import rfc8785
    except ImportError as error:
        raise missing_package("rfc8785") from error
    try:
        return rfc8785.dumps(value)
    except ValueError as error:  # also raised for text that is not Unicode
        raise RequestError(f"This has no canonical JSON: {error}.", fix="Pass it through `signable` first.") from error


def parse(content: bytes) -> Any:
    """JSON to plain values, such that `canonical(parse(content)) == content` where content is canonical.

    >>> canonical(parse(b"[100000000000000000000,1]"))
    b'[100000000000000000000,1]'
    """
    try:
        return json.loads(content.decode("utf-8"), parse_int=_number, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _number(text: str) -> int | float:
    """An integer too large to be exact was a float when it was written."""
    value = float(text)
    return int(text) if abs(value) <= LARGEST else value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def signable(value: Any) -> Any:
    """A value in the part of JSON that has a canonical form: no NaN, no huge integer, no broken Unicode.

    >>> signable({"seed": 2**63, "gap": float("nan"), "counts": (1, 2)})
    {'seed': '9223372036854775808', 'gap': None, 'counts': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {signable(str(name)): signable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [signable(item) for item in value]
    if isinstance(value, str):
        return as_unicode(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return str(value)
    return value


def as_unicode(text: str) -> str:
    r"""Text in which bytes that are no Unicode are spelled out.

    >>> as_unicode("caf\udce9")
    'caf\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def missing_package(name: str) -> RequestError:
    """Evidence needs packages that nothing else in famr needs."""
    return RequestError(f"Evidence needs the package {name}, which is not installed.", fix=f"pip install {name}")
