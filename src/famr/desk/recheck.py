"""Whether what an earlier request forgot is still forgotten: its images before its run, after it, and now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recheck = Literal["still forgotten", "came back", "cannot tell"]
REGAINED_SHARE = 0.1
"""Share of the rise in cross-entropy that may be undone before samples count as back."""
LEAST_RISE = 0.01
"""Least rise in cross-entropy by a request's own run, in nats, from which its undoing can be measured."""
ACCURACY_RISE = 0.01
"""Rise in accuracy on a forgotten class above which it counts as back."""


@dataclass(frozen=True)
class Measurement:
    """Predictions of a model on the images of a request.

    Attributes:
        images: Number of images still in the data.
        accuracy: Fraction of them classified correctly; None without images or labels.
        cross_entropy: Mean cross-entropy in nats; None without images or labels.
    """

    images: int
    accuracy: float | None
    cross_entropy: float | None


def stays_forgotten(
    kind: str, before: Measurement | None, after: Measurement | None, now: Measurement | None
) -> tuple[Recheck, str]:
    """Compare a request's images before its own run, right after it, and now.

    A class is back when its accuracy has risen. Samples of retained classes may be classified correctly; they are back
    when their cross-entropy has returned towards its value before they were forgotten.

    Args:
        kind: `class` or `samples`, see `Scope.kind`.
        before: Measured before the run; used for samples only.
        after: Measured right after the run.
        now: Measured on the current model.

    Returns:
        The verdict, and the figures behind it.

    >>> stays_forgotten("class", None, Measurement(9, 0.0, 5.0), Measurement(9, 0.5, 1.0))[0]
    'came back'
    >>> stays_forgotten("samples", Measurement(9, 1.0, 0.1), Measurement(9, 0.9, 1.1), Measurement(9, 0.9, 1.08))
    ('still forgotten', 'cross-entropy 0.100 before, 1.100 after its run, 1.080 now')
    >>> before, after = Measurement(9, 1.0, 0.5466), Measurement(9, 1.0, 0.5469)
    >>> stays_forgotten("samples", before, after, Measurement(9, 1.0, 0.5444))[0]
    'cannot tell'
    """
    if after is None or now is None or now.images == 0:
        return "cannot tell", "its images are not in the data any more"
    if kind == "class":
        if after.accuracy is None or now.accuracy is None:
            return "cannot tell", "its images have no labels"
        figures = f"accuracy {100 * after.accuracy:.1f} % after its run, {100 * now.accuracy:.1f} % now"
        return ("came back" if now.accuracy > after.accuracy + ACCURACY_RISE else "still forgotten"), figures
    if before is None or before.cross_entropy is None or after.cross_entropy is None or now.cross_entropy is None:
        return "cannot tell", "its images have no labels"
    rise, undone = after.cross_entropy - before.cross_entropy, after.cross_entropy - now.cross_entropy
    figures = (
        f"cross-entropy {before.cross_entropy:.3f} before, {after.cross_entropy:.3f} after its run, "
        f"{now.cross_entropy:.3f} now"
    )
    if after.cross_entropy < before.cross_entropy + LEAST_RISE:
        return "cannot tell", f"{figures}; forgetting hardly raised it"
    return ("came back" if undone / rise > REGAINED_SHARE else "still forgotten"), figures
