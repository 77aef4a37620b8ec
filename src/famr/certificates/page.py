"""A certificate as a page in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from famr.certificates.claims import KINDS, Certificate, Claim
from famr.data.request import Request


def certificate_page(certificate: Certificate) -> str:
    """The kind in words, the claims, the assumptions of each, and what the certificate does not show.

    Args:
        certificate: Any kind.

    Returns:
        Markdown.
    """
    subject = certificate.subject
    parts = [
        "# Certificate",
        f"Kind: **{certificate.kind}**, that is: {KINDS[certificate.kind]}.",
        *([_request_line(subject)] if "request" in subject else []),
        "| claim | value | bound | holds | source |\n|---|---|---|---|---|\n"
        + "\n".join(_row(claim) for claim in certificate.claims),
        "## Each claim and its assumptions",
        *[_paragraph(claim) for claim in certificate.claims],
        "## What this does not show",
        "\n".join(f"- {line}" for line in certificate.not_shown),
        "## Subject",
        "\n".join(f"- {name}: `{subject[name]}`" for name in subject if name.endswith("_sha256")),
    ]
    return "\n\n".join(parts) + "\n"


def _request_line(subject: Mapping[str, Any]) -> str:
    return f"Forgotten: {Request.from_json(subject['request']).describe()} ({subject['forget_images']} images)."


def _row(claim: Claim) -> str:
    if claim.not_available is not None:
        return f"| {claim.name} | not available | – | – | {claim.source} |"
    verdict = {None: "–", True: "yes", False: "no"}[claim.holds]
    if claim.holds and not claim.proved:
        verdict = "measured, not proved: an assumption fails"
    return (
        f"| {claim.name} | {format_number(claim.value)} | {format_number(claim.bound)} | {verdict} | {claim.source} |"
    )


def _paragraph(claim: Claim) -> str:
    lines = [f"- {assumption.status}: {assumption.says}" for assumption in claim.assumptions]
    if claim.not_available is not None:
        lines.insert(0, f"Not available: {claim.not_available}.")
    if claim.details:
        details = (f"{name.replace('_', ' ')} {format_number(value)}" for name, value in claim.details.items())
        lines.append("- " + "; ".join(details))
    return "\n\n".join([f"**{claim.name}.** {claim.says}", *(["\n".join(lines)] if lines else [])])


def format_number(value: Any) -> str:
    """Floats in four digits, everything else as text, None as a dash.

    Args:
        value: A value of a certificate or an audit.

    >>> format_number(0.0123), format_number(None), format_number(3), format_number("why")
    ('0.0123', '–', '3', 'why')
    """
    if value is None:
        return "–"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)
