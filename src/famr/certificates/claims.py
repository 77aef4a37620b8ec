"""A certificate: claims with their bounds, the assumptions each rests on, and what it does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["checked", "stated", "fails"]
Kind = Literal["deviation", "exact", "certified"]
KINDS: dict[Kind, str] = {
    "deviation": "how far the edited network is from the original, from the objective's resting point and from its "
    "target; no statement about what a retrained network would be",
    "exact": "the parts that had seen the data were trained again without it",
    "certified": "(ε, δ)-certified removal for a convex head on frozen features",
}


@dataclass(frozen=True)
class Assumption:
    """Something a claim rests on: checked by a computation, only stated, or found not to hold."""

    says: str
    status: Status

    @classmethod
    def found(cls, says: str, holds: bool) -> Assumption:
        """One that was looked into."""
        return cls(says, "checked" if holds else "fails")


@dataclass(frozen=True)
class Claim:
    """A measured value and the bound it must keep; or why there is none."""

    name: str
    says: str
    source: str
    value: float | None = None
    bound: float | None = None
    holds: bool | None = None
    """Whether the value keeps the bound, or is what `says` asks for; None where neither is there."""
    assumptions: tuple[Assumption, ...] = ()
    details: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    not_available: str | None = None

    @property
    def proved(self) -> bool:
        """Whether the bound holds and none of its assumptions fails."""
        return self.holds is True and all(assumption.status != "fails" for assumption in self.assumptions)


def bounded(value: float, bound: float | None) -> dict[str, Any]:
    """Value, bound and whether it holds, to a part in a million."""
    return {"value": value, "bound": bound, "holds": None if bound is None else value <= bound * (1 + 1e-6)}


@dataclass(frozen=True)
class Certificate:
    """What can be said about a run."""

    kind: Kind
    claims: tuple[Claim, ...]
    not_shown: tuple[str, ...]
    subject: dict[str, Any]
    """Digests of the weights, the request, the method, how the numbers were computed."""

    def __getitem__(self, name: str) -> Claim:
        return next(claim for claim in self.claims if claim.name == name)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "kind": self.kind,
            "means": KINDS[self.kind],
            "subject": self.subject,
            "claims": [asdict(claim) for claim in self.claims],
            "not_shown": list(self.not_shown),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Certificate:
        """The inverse of `to_json`."""
        claims = tuple(
            Claim(**{**claim, "assumptions": tuple(Assumption(**each) for each in claim["assumptions"])})
            for claim in values["claims"]
        )
        return cls(values["kind"], claims, tuple(values["not_shown"]), values["subject"])


def differences(old: Certificate, new: Certificate, tolerance: float) -> list[str]:
    """Where a certificate, computed anew, does not say what it said: a line each, empty if all is the same."""
    found = [f"{name}: {old.subject.get(name)} before, {new.subject.get(name)} now" for name in _changed(old, new)]
    names = [claim.name for claim in old.claims]
    if names != [claim.name for claim in new.claims]:
        return [*found, f"claims: {names} before, {[claim.name for claim in new.claims]} now"]
    for before, after in zip(old.claims, new.claims, strict=True):
        for part in ("value", "bound"):
            was, is_ = getattr(before, part), getattr(after, part)
            if not _near(was, is_, tolerance):
                found.append(f"{before.name}, {part}: {was} before, {is_} now")
        for part in ("holds", "says", "assumptions", "not_available"):
            if getattr(before, part) != getattr(after, part):
                found.append(f"{before.name}, {part}: {getattr(before, part)} before, {getattr(after, part)} now")
        found += [
            f"{before.name}, {name}: {before.details.get(name)} before, {after.details.get(name)} now"
            for name in {**before.details, **after.details}
            if not _near(before.details.get(name), after.details.get(name), tolerance)
        ]
    return found


def _changed(old: Certificate, new: Certificate) -> list[str]:
    return [name for name in {**old.subject, **new.subject} if old.subject.get(name) != new.subject.get(name)]


def _near(was: Any, is_: Any, tolerance: float) -> bool:
    if isinstance(was, float) and isinstance(is_, (int, float)):
        return abs(was - is_) <= tolerance * max(abs(was), abs(is_), 1e-12)
    return bool(was == is_)
