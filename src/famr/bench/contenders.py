"""Who takes part: methods under the names of the tables, found by those names or by what can be typed of them."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from famr.baselines import Baseline as Alternative
from famr.baselines import FamrMethod as Ours
from famr.baselines import Retrain, every_method
from famr.config import FAMR
from famr.errors import RequestError

PAPER = "FAMR as in the paper"
EVERY = "all"


@dataclass(frozen=True)
class Contender:
    """A method, and what the tables call it."""

    name: str
    method: Alternative

    @property
    def retrains(self) -> bool:
        """Whether it is the truth itself; its row is then that of a retrained model of another seed."""
        return isinstance(self.method, Retrain)


def every_contender() -> tuple[Contender, ...]:
    """All alternatives with their default numbers, and FAMR with the paper's."""
    ours, *others = [Contender(method.name, method) for method in every_method()]
    return (ours, Contender(PAPER, Ours(FAMR.paper())), *others)


def slug(name: str) -> str:
    """A name as it can be typed, and put into a file name.

    >>> slug("ℓ₁-sparse"), slug("Newton step on the head"), slug("<b>")
    ('l1-sparse', 'newton-step-on-the-head', 'b')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def file_stem(*names: object) -> str:
    """Readable, and different for different names, whatever is in them.

    >>> file_stem("SSD", "class 3", 0)
    'ssd.class-3.0.d807a9'
    """
    digest = hashlib.sha256(json.dumps([str(name) for name in names]).encode()).hexdigest()[:6]
    return ".".join([*(slug(str(name))[:40] or "x" for name in names), digest])


def contenders_called(names: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders of these names; `all` is everyone."""
    every = every_contender()
    if EVERY in names:
        return every
    by_slug = {slug(contender.name): contender for contender in every}
    found: dict[str, Contender] = {}
    for name in names:
        if slug(name) not in by_slug:
            near = difflib.get_close_matches(slug(name), by_slug, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise RequestError(
                f"There is no method {name!r}.{hint}", where="--methods", fix=f"Use {EVERY}, or: {', '.join(by_slug)}."
            )
        found[slug(name)] = by_slug[slug(name)]
    if not found:
        raise RequestError("No method is named.", where="--methods", fix=f"Use {EVERY}, or: {', '.join(by_slug)}.")
    return tuple(found.values())
