"""A certificate: claims with their bounds, the assumptions of each, and what the certificate does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from famr.certificates.wording import in_current_wording

Status = Literal["checked", "stated", "fails"]
Kind = Literal["deviation", "exact", "certified"]
KINDS: dict[Kind, str] = {
    "deviation": "distances of the unlearned network from the original, from a stationary point of its objective and "
    "from its target; no statement about a retrained network",
    "exact": "every part that was trained on the data was retrained without it",
    "certified": "(ε, δ)-certified removal for a convex head on frozen features",
}
PRECISION_DETAILS = frozenset({"residual", "steps", "error", "largest_error", "largest_curvature_error"})
"""Details that say how precisely a number was computed; they depend on rounding and differ from machine to machine."""


@dataclass(frozen=True)
class Assumption:
    """Something that a claim assumes.

    Attributes:
        says: The assumption as a sentence.
        status: "checked" where it was computed and is true, "fails" where it was computed and is false, "stated" where
            it was not computed.
    """

    says: str
    status: Status

    @classmethod
    def checked(cls, says: str, holds: bool) -> Assumption:
        """An assumption that was computed.

        Args:
            says: The assumption as a sentence.
            holds: Whether it is true.
        """
        return cls(says, "checked" if holds else "fails")


@dataclass(frozen=True)
class Claim:
    """A measured value and its bound; or why there is none.

    Attributes:
        name: The claim's name in certificate.json.
        says: What `value` and `bound` are.
        source: The equation or theorem.
        value: The measured value; None without one.
        bound: What it is compared with; None without one.
        holds: Whether the value is within the bound, or is as `says` requires; None where neither applies.
        assumptions: What the claim assumes.
        details: Further numbers by name.
        not_available: Why the claim cannot be made; None where it is made.
    """

    name: str
    says: str
    source: str
    value: float | None = None
    bound: float | None = None
    holds: bool | None = None
    assumptions: tuple[Assumption, ...] = ()
    details: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    not_available: str | None = None

    @property
    def proved(self) -> bool:
        """Whether the bound holds and none of the assumptions fails."""
        return self.holds is True and all(assumption.status != "fails" for assumption in self.assumptions)


@dataclass(frozen=True)
class Statement:
    """What a claim is about, before anything is computed.

    Attributes:
        name: See `Claim.name`.
        says: See `Claim.says`.
        source: See `Claim.source`.
    """

    name: str
    says: str
    source: str

    def claim(
        self,
        value: float | None = None,
        bound: float | None = None,
        *,
        holds: bool | None = None,
        assumptions: tuple[Assumption, ...] = (),
        details: Mapping[str, float | int | str | bool] | None = None,
    ) -> Claim:
        """The claim with its numbers.

        Args:
            value: See `Claim.value`.
            bound: See `Claim.bound`.
            holds: See `Claim.holds`; None: whether the value is within the bound, where both are given.
            assumptions: See `Claim.assumptions`.
            details: See `Claim.details`.
        """
        if holds is None and value is not None and bound is not None:
            holds = value <= bound * (1 + 1e-6)
        return Claim(self.name, self.says, self.source, value, bound, holds, assumptions, details or {})

    def unavailable(self, why: str) -> Claim:
        """The claim where it cannot be made.

        Args:
            why: The reason.
        """
        return Claim(self.name, self.says, self.source, not_available=why)


@dataclass(frozen=True)
class Certificate:
    """Claims about a run.

    Attributes:
        kind: What is claimed in general, see `KINDS`.
        claims: The claims.
        not_shown: What the claims do not show.
        subject: Digests of the weights, the request, the method, how the numbers were computed.
    """

    kind: Kind
    claims: tuple[Claim, ...]
    not_shown: tuple[str, ...]
    subject: dict[str, Any]

    def __getitem__(self, name: str) -> Claim:
        return next(claim for claim in self.claims if claim.name == name)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for certificate.json."""
        return {
            "kind": self.kind,
            "means": KINDS[self.kind],
            "subject": self.subject,
            "claims": [asdict(claim) for claim in self.claims],
            "not_shown": list(self.not_shown),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Certificate:
        """The inverse of `to_json`; sentences of earlier versions get today's wording.

        Args:
            values: The content of certificate.json.
        """
        claims = tuple(
            Claim(**{**claim, "assumptions": tuple(Assumption(**assumption) for assumption in claim["assumptions"])})
            for claim in in_current_wording(values["claims"])
        )
        return cls(values["kind"], claims, tuple(values["not_shown"]), values["subject"])


def differences(old: Certificate, new: Certificate, tolerance: float) -> list[str]:
    """Where a certificate differs from one that was computed again.

    Args:
        old: The stored certificate.
        new: The certificate that was computed again.
        tolerance: Relative difference up to which numbers count as equal.

    Returns:
        One line a difference; empty if there is none. `PRECISION_DETAILS` are not compared.
    """
    lines = [
        f"{name}: {old.subject.get(name)} before, {new.subject.get(name)} now"
        for name in {**old.subject, **new.subject}
        if old.subject.get(name) != new.subject.get(name)
    ]
    old_names, new_names = ([claim.name for claim in certificate.claims] for certificate in (old, new))
    if old_names != new_names:
        return [*lines, f"claims: {old_names} before, {new_names} now"]
    for before, after in zip(old.claims, new.claims, strict=True):
        old_parts, new_parts = _parts(before), _parts(after)
        lines += [
            f"{before.name}, {part}: {old_parts.get(part)} before, {new_parts.get(part)} now"
            for part in {**old_parts, **new_parts}
            if not _near(old_parts.get(part), new_parts.get(part), tolerance)
        ]
    return lines


def _parts(claim: Claim) -> dict[str, Any]:
    """What is compared of a claim, by name."""
    names = ("value", "bound", "holds", "says", "assumptions", "not_available")
    details = {name: value for name, value in claim.details.items() if name not in PRECISION_DETAILS}
    return {**{name: getattr(claim, name) for name in names}, **details}


def _near(old: Any, new: Any, tolerance: float) -> bool:
    if isinstance(old, float) and isinstance(new, (int, float)):
        return abs(old - new) <= tolerance * max(abs(old), abs(new), 1e-12)
    return bool(old == new)
