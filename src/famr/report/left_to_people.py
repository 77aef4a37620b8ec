"""What no tool can know of a deletion: who decided, where else the data lies, who signs. Lines to fill in by hand."""

from __future__ import annotations

from famr.report.content import Bullets, Section, Table, Text
from famr.report.facts import Facts

BLANK = "………………"
BOX = "☐"
DECISION = ("legal basis of the request", "approved by, on", "keep this report until", "next review on")
PLACES = (
    "source of the data",
    "backups",
    "caches, embeddings and augmented copies",
    "older checkpoints, averaged weights and optimiser states",
    "exports and converted models",
    "revisions on a model hub",
    "endpoints that serve the original weights, and a block against going back to them",
    "whoever was given the original weights",
)
ROLES = ("operator", "reviewer", "data protection officer")


def left_to_people(facts: Facts) -> Section:
    """Empty lines; famr neither did these things nor looked whether they were done."""
    digest = facts.run["original"]["weights_sha256"]
    return Section(
        "For people to fill in and sign",
        (
            Text("famr edits the model and nothing else. What follows was neither done nor seen by it."),
            Table("Decision", ("what", "entry"), tuple((what, BLANK) for what in DECISION), words=2),
            Table(
                "Where else the data, or the original weights, may be",
                ("place", "done", "scheduled", "out of scope", "remark"),
                tuple((place, BOX, BOX, BOX, BLANK) for place in PLACES),
                words=5,
            ),
            Table(
                "Signatures", ("role", "name", "date", "signature"), tuple((r, *[BLANK] * 3) for r in ROLES), words=4
            ),
            Text(f"The original weights are known by their SHA-256, {digest}."),
            Text("With the run folder at hand anybody can look again:"),
            Bullets(
                (
                    "famr verify RUN --key PUBLIC_KEY: whether anything was changed since it was signed",
                    "famr evaluate RUN: the figures above, measured again",
                    "famr certify RUN --check: the certificate, computed again",
                )
            ),
        ),
    )
