"""From figures to verdicts: pass, fail, or cannot tell, by thresholds that were fixed before the run.

A figure comes with an interval. It passes where the whole interval is within the threshold, fails where the whole
interval is beyond it, and else nobody can tell with so few images or models. Thresholds are for the distance to a
retrained model; where several retrained models are given, none is asked to be nearer than they are to each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from famr.errors import RequestError

Verdict = Literal["pass", "fail", "cannot tell"]


@dataclass(frozen=True)
class Figure:
    """A measured value with a 95 % interval; or why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why_not: str | None = None

    @classmethod
    def not_available(cls, why: str) -> Figure:
        """A figure that cannot be had here."""
        return cls(None, why_not=why)


@dataclass(frozen=True)
class Check:
    """One gate: a figure of each model, what it may be at most, and what follows."""

    name: str
    says: str
    threshold: float
    """What was fixed before the run."""
    allowed: float
    """The same, or the farthest end of what retrained models differ by among themselves, if that is more."""
    needs_retrained: bool
    figures: Mapping[str, Figure]
    verdicts: Mapping[str, Verdict]


def verdict_of(figure: Figure, allowed: float) -> Verdict:
    """Pass or fail where the interval allows it.

    >>> verdict_of(Figure(0.01, 0.0, 0.02), 0.05), verdict_of(Figure(0.04, 0.01, 0.07), 0.05)
    ('pass', 'cannot tell')
    >>> verdict_of(Figure(0.9, 0.8, 1.0), 0.05), verdict_of(Figure.not_available("no images"), 0.05)
    ('fail', 'cannot tell')
    """
    ends = _ends(figure)
    if ends is None:
        return "cannot tell"
    low, high = ends
    if high <= allowed:
        return "pass"
    return "fail" if low > allowed else "cannot tell"


def check(
    name: str,
    says: str,
    threshold: float,
    figures: Mapping[str, Figure],
    *,
    needs_retrained: bool = True,
    among_retrained: Sequence[Figure] = (),
) -> Check:
    """A gate for every model. `among_retrained`: the figure of each retrained model against the other ones.

    Nobody has to be nearer than the farthest of them can be shown to be: with two or more, retrained models keep such
    a gate by themselves. Whether a gate can tell at all is seen at the original.
    """
    ends = [end for figure in among_retrained if (end := _ends(figure)) is not None]
    allowed = max([threshold, *(high for _, high in ends)])
    verdicts = {model: verdict_of(figure, allowed) for model, figure in figures.items()}
    return Check(name, says, threshold, allowed, needs_retrained, dict(figures), verdicts)


def _ends(figure: Figure) -> tuple[float, float] | None:
    """The interval, or the bare value; None where there is no figure."""
    if figure.value is None:
        return None
    low = figure.value if figure.low is None else figure.low
    return low, figure.value if figure.high is None else figure.high


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Fail where one gate fails, pass where all pass.

    >>> overall(["pass", "cannot tell"]), overall(["pass", "fail"]), overall(["pass", "pass"]), overall([])
    ('cannot tell', 'fail', 'pass', 'cannot tell')
    """
    if "fail" in verdicts:
        return "fail"
    return "pass" if verdicts and all(verdict == "pass" for verdict in verdicts) else "cannot tell"


@dataclass(frozen=True)
class Audit:
    """Every gate, and for each model what follows from all of them."""

    checks: tuple[Check, ...]
    subject: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What is measured and not judged, by name; each says whether it needs a retrained model."""
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Seconds by part: the one thing that differs when an audit is repeated."""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """For each model that was audited."""
        models = list(dict.fromkeys(model for each in self.checks for model in each.verdicts))
        return {
            model: overall([each.verdicts[model] for each in self.checks if model in each.verdicts]) for model in models
        }

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "verdicts": self.verdicts,
            "checks": [asdict(each) for each in self.checks],
            "subject": dict(self.subject),
            "notes": list(self.notes),
            "stated": dict(self.stated),
            "costs": dict(self.costs),
        }


def read_thresholds(file: Path | None = None) -> dict[str, float]:
    """The thresholds by name: famr's own, or those of a JSON file."""
    source = files("famr.audit").joinpath("thresholds.json") if file is None else file
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
        return {name: float(value) for name, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(
            "The thresholds cannot be read.", where=str(file), fix="Give a JSON object of names and numbers."
        ) from error
