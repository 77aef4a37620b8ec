"""A certificate as a page for people, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from famr.certificates.claims import KINDS, Certificate, Claim
from famr.data.request import Request


def certificate_page(certificate: Certificate) -> str:
    """Kind in words, the claims, what each rests on, and what none of it shows."""
    subject = certificate.subject
    rows = [_row(claim) for claim in certificate.claims]
    parts = [
        "# Certificate",
        f"Kind: **{certificate.kind}**, that is: {KINDS[certificate.kind]}.",
        *([_forgotten(subject)] if "request" in subject else []),
        "| claim | value | bound | holds | source |\n|---|---|---|---|---|\n" + "\n".join(rows),
        "## What each claim says and rests on",
        *[_explained(claim) for claim in certificate.claims],
        "## What this does not show",
        "\n".join(f"- {line}" for line in certificate.not_shown),
        "## Subject",
        "\n".join(f"- {name}: `{subject[name]}`" for name in subject if name.endswith("_sha256")),
    ]
    return "\n\n".join(parts) + "\n"


def _forgotten(subject: Mapping[str, Any]) -> str:
    return f"Forgotten: {Request.from_json(subject['request']).describe()} ({subject['forget_images']} images)."


def _row(claim: Claim) -> str:
    if claim.not_available is not None:
        return f"| {claim.name} | not available | – | – | {claim.source} |"
    verdict = "–" if claim.holds is None else "yes" if claim.holds else "no"
    failing = [assumption for assumption in claim.assumptions if assumption.status == "fails"]
    if failing and verdict == "yes":
        verdict = "measured, not proved: an assumption fails"
    return f"| {claim.name} | {figure(claim.value)} | {figure(claim.bound)} | {verdict} | {claim.source} |"


def _explained(claim: Claim) -> str:
    lines = [f"**{claim.name}.** {claim.says}"]
    if claim.not_available is not None:
        lines.append(f"Not available: {claim.not_available}.")
    lines += [f"- {assumption.status}: {assumption.says}" for assumption in claim.assumptions]
    if claim.details:
        lines.append("- " + "; ".join(f"{name.replace('_', ' ')} {figure(v)}" for name, v in claim.details.items()))
    head, *rest = lines
    return head if not rest else head + "\n\n" + "\n".join(rest)


def figure(value: Any) -> str:
    """A number in four digits, words as they are.

    >>> figure(0.0123), figure(None), figure(3), figure("why")
    ('0.0123', '–', '3', 'why')
    """
    if value is None:
        return "–"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)
