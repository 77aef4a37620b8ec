"""The methods of a bench under the names of the tables, looked up by these names or by their slugs."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from famr.baselines import BASELINES, Baseline, FamrMethod, Retrain
from famr.config import FAMR
from famr.errors import RequestError

FAMR_PAPER = "FAMR as in the paper"
FAMR_QUICK = "FAMR, quick"
ALL_METHODS = "all"


@dataclass(frozen=True)
class BenchMethod:
    """A method and its name in the tables.

    Attributes:
        name: Its name.
        method: The method with its numbers.
    """

    name: str
    method: Baseline

    @property
    def retrains(self) -> bool:
        """Whether it is the reference itself; its row is then a retrained model of another seed."""
        return isinstance(self.method, Retrain)


def bench_methods() -> tuple[BenchMethod, ...]:
    """Every method of `BASELINES` with its default numbers; FAMR without a proxy and as in the paper come second."""
    famr, *others = [BenchMethod(method.name, method()) for method in BASELINES.values()]
    quick, paper = FamrMethod(FAMR(effort="quick")), FamrMethod(FAMR.paper())
    return (famr, BenchMethod(FAMR_QUICK, quick), BenchMethod(FAMR_PAPER, paper), *others)


def slug(name: str) -> str:
    """A name as it can be typed, and put into a file name.

    Args:
        name: Any text.

    >>> slug("ℓ₁-sparse"), slug("Newton step on the head"), slug("<b>")
    ('l1-sparse', 'newton-step-on-the-head', 'b')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def file_stem(*names: object) -> str:
    """A readable file name that differs for different names, whatever is in them.

    Args:
        names: Parts of the name.

    >>> file_stem("SSD", "class 3", 0)
    'ssd.class-3.0.d807a9'
    """
    digest = hashlib.sha256(json.dumps([str(name) for name in names]).encode()).hexdigest()[:6]
    return ".".join([*(slug(str(name))[:40] or "x" for name in names), digest])


def methods_by_name(names: Sequence[str]) -> tuple[BenchMethod, ...]:
    """Look methods up.

    Args:
        names: Names as the tables or the slugs have them; `all` stands for every method.

    Raises:
        RequestError: A name is unknown, or there is none.
    """
    every = bench_methods()
    if ALL_METHODS in names:
        return every
    by_slug = {slug(method.name): method for method in every}
    fix = f"Use {ALL_METHODS}, or: {', '.join(by_slug)}."
    for name in names:
        if slug(name) not in by_slug:
            near = difflib.get_close_matches(slug(name), by_slug, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise RequestError(f"There is no method {name!r}.{hint}", where="--methods", fix=fix)
    if not names:
        raise RequestError("No method is named.", where="--methods", fix=fix)
    return tuple(by_slug[name] for name in dict.fromkeys(map(slug, names)))
