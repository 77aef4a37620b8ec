"""The last section of a report: what famr cannot know about a deletion, as forms to fill in by hand."""

from __future__ import annotations

from famr.report.content import Bullets, Section, Table, Text
from famr.report.records import RunRecords

BLANK = "………………"
BOX = "☐"
DECISIONS = ("legal basis of the request", "approved by, on", "keep this report until", "next review on")
LOCATIONS = (
    "source of the data",
    "backups",
    "caches, embeddings and augmented copies",
    "older checkpoints, averaged weights and optimiser states",
    "exports and converted models",
    "revisions on a model hub",
    "endpoints that serve the original weights, and a block against a rollback to them",
    "recipients of the original weights",
)
ROLES = ("operator", "reviewer", "data protection officer")


def sign_off_section(records: RunRecords) -> Section:
    """Empty forms; famr did none of what they list and did not check whether it was done.

    Args:
        records: The records of the run.
    """
    digest = records.run["original"]["weights_sha256"]
    decisions = tuple((decision, BLANK) for decision in DECISIONS)
    locations = tuple((location, BOX, BOX, BOX, BLANK) for location in LOCATIONS)
    signatures = tuple((role, BLANK, BLANK, BLANK) for role in ROLES)
    return Section(
        "For people to fill in and sign",
        (
            Text("famr edits the model and nothing else. It neither did nor checked what is listed here."),
            Table("Decision", ("item", "entry"), decisions, words=2),
            Table(
                "Other locations of the data or of the original weights",
                ("location", "done", "scheduled", "out of scope", "remark"),
                locations,
                words=5,
            ),
            Table("Signatures", ("role", "name", "date", "signature"), signatures, words=4),
            Text(f"SHA-256 of the original weights: {digest}."),
            Text("The run folder lets anybody check this report:"),
            Bullets(
                (
                    "famr verify RUN --key PUBLIC_KEY: whether a file changed since the run was signed",
                    "famr evaluate RUN: the metrics above, measured again",
                    "famr certify RUN --check: the certificate, computed again",
                )
            ),
        ),
    )
