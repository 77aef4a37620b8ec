"""The record of an exact removal, and the certificate of kind "exact" that it supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from famr.certificates.claims import Assumption, Certificate, Claim
from famr.sisa.plan import ShardPlan, Stage
from famr.storage.digests import json_digest

SOURCE = "[Bourtoule et al. 2021]"
NOT_SHOWN = (
    "That the earlier models and checkpoints, and all copies of them, are deleted: those have seen the removed images.",
    "That no other image shows the same thing: duplicates and near-duplicates under other ids remain.",
    "What the models reveal about the remaining images, or can still infer from them.",
    "That classes and settings were chosen without the removed images in view.",
)


@dataclass(frozen=True)
class Removal:
    """What `Sisa.forget` did. It names no removed image.

    Attributes:
        removed: Number of removed images.
        remaining: Number of remaining images.
        remaining_sha256: Digest of the remaining ids, see `remaining_digest`.
        plan: Shards, slices and seed.
        stages: The stages that were retrained.
        passes: Image passes of these stages.
        passes_of_retraining: Image passes of training all shards without the removed images.
        seconds: Wall-clock time of the retraining.
        removed_trained_on: Number of removed ids among the images of the retraining; 0, or something is wrong.
        same_environment: Whether every part was trained with the same hardware, versions and threads.
        weights_sha256: Digest of each shard's weights after the removal.
    """

    removed: int
    remaining: int
    remaining_sha256: str
    plan: ShardPlan
    stages: tuple[Stage, ...]
    passes: int
    passes_of_retraining: int
    seconds: float
    removed_trained_on: int
    same_environment: bool
    weights_sha256: tuple[str, ...]

    @property
    def share(self) -> float:
        """Image passes of this removal as a fraction of those of training everything again."""
        return self.passes / self.passes_of_retraining

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            **asdict(self),
            "stages": [stage._asdict() for stage in self.stages],
            "weights_sha256": list(self.weights_sha256),
            "share": self.share,
        }

    def certificate(self) -> Certificate:
        """A certificate of kind "exact": its claims, their assumptions, and what they do not show."""
        subject = {
            "weights_sha256": list(self.weights_sha256),
            "remaining_sha256": self.remaining_sha256,
            "plan": asdict(self.plan),
        }
        return Certificate("exact", (self._unused(), self._as_retrained()), NOT_SHOWN, subject)

    def _unused(self) -> Claim:
        first: dict[int, int] = {}
        for stage in self.stages:
            first.setdefault(stage.shard, stage.slice)
        return Claim(
            name="removed_images_trained_on",
            says="No weight rests on a removed image: every shard that had one went back to its weights before the "
            "first slice that held one, and was trained on from there without it.",
            source=SOURCE,
            value=float(self.removed_trained_on),
            bound=0.0,
            holds=self.removed_trained_on == 0,
            assumptions=(
                Assumption("The initial weights were not trained on the removed images.", "stated"),
                Assumption("The data holds under each remaining id the image and label first trained on.", "stated"),
            ),
            details={
                "removed": self.removed,
                "remaining": self.remaining,
                "retrained": ", ".join(f"shard {shard} from slice {slice_} on" for shard, slice_ in first.items()),
                "passes": self.passes,
                "passes_of_retraining": self.passes_of_retraining,
                "share": self.share,
            },
        )

    def _as_retrained(self) -> Claim:
        return Claim(
            name="equal_to_retraining",
            says="The weights are, bit for bit, those of the same training without the removed images.",
            source=SOURCE,
            holds=self.same_environment and self.removed_trained_on == 0,
            assumptions=(
                Assumption.checked(
                    "Every part was trained on the same kind of hardware, with the same versions and threads.",
                    self.same_environment,
                ),
                Assumption(
                    "Shards, slices, order and seeds depend on the seed and the remaining ids alone, and training "
                    "repeats itself bit for bit, by design and tested on CPUs.",
                    "stated",
                ),
                Assumption("The data holds under each remaining id the image and label first trained on.", "stated"),
                Assumption("Requests were not chosen by looking at the models [Gupta et al. 2021].", "stated"),
            ),
        )


def remaining_digest(ids: Sequence[str]) -> str:
    """SHA-256 of ids as a sorted JSON list, which anybody with the data can compute again.

    Args:
        ids: The ids, in any order.

    >>> remaining_digest(["b", "a"]) == remaining_digest(["a", "b"]) != remaining_digest(["a"])
    True
    """
    return json_digest(sorted(ids))
