"""When a run counts as having forgotten: one criterion for each kind of request."""

from __future__ import annotations

from dataclasses import dataclass

FORGOTTEN = 0.01
"""Forget accuracy at which whole classes count as forgotten; twice the chance of the target, if that is more."""
HALVED = 0.5
"""Share of the way to the target, or of a distance from it, that may be left of anything but classes."""
CLOSE = 0.01
"""KL to the target, or log-odds above its own, in nats, at which there is nothing left to forget."""


@dataclass(frozen=True)
class Forgetting:
    """How much a run forgot, by the criterion of its kind of request.

    Attributes:
        criterion: What the value is, in words.
        value: The value at the end of the run.
        limit: The request counts as forgotten where the value is at most this.
    """

    criterion: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the request counts as forgotten."""
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.criterion} {self.value:.3g} (at most {self.limit:.3g})"


def class_forgetting(accuracy: float, chance: float) -> Forgetting:
    """Of whole classes: they are no longer recognised.

    Args:
        accuracy: On the forget set.
        chance: The accuracy of a model that predicts the target.

    >>> class_forgetting(0.02, chance=0.0).met, class_forgetting(0.02, chance=0.01).met
    (False, True)
    """
    return Forgetting("forget accuracy", accuracy, max(FORGOTTEN, 2 * chance))


def sample_forgetting(original: float, unlearned: float, target: float, kl: tuple[float, float]) -> Forgetting:
    """Of samples whose class stays: their log-odds have moved at least half of the way to the target's.

    A correct prediction is no failure there. Where the target asks for no move, there is nothing to forget.

    Args:
        original: Mean log-odds of the true class on the forget set, of the original.
        unlearned: The same at the end.
        target: The same of the target itself.
        kl: Mean KL to the target at the start and at the end, in nats; a target that one of them meets is reached.

    >>> sample_forgetting(8.0, 5.0, target=4.0, kl=(0.5, 0.1)).value, sample_forgetting(8.0, 8.0, 9.0, (0.5, 0.5)).value
    (0.25, 0.0)
    >>> print(sample_forgetting(8.0, 8.0, target=7.0, kl=(0.006, 0.006)))
    KL to the target in nats, the smaller of start and end 0.006 (at most 0.01)
    """
    left = 0.0 if original - target <= CLOSE else (unlearned - target) / (original - target)
    way = Forgetting("remaining share of the way from the original's log-odds to the target's", left, HALVED)
    return _reached(kl) or way


def distance_forgetting(kl: tuple[float, float] | None, gram: tuple[float, float] | None = None) -> Forgetting:
    """Of images without labels, and of styles: each distance in the loss is at most half of its start.

    Args:
        kl: Mean KL to the target at the start and at the end, in nats; None where α is 0. See `sample_forgetting`.
        gram: Mean ‖G − G_target‖² at the start and at the end; None where no style is forgotten.

    >>> print(distance_forgetting((2.0, 1.5)))
    KL to the target, share of its start 0.75 (at most 0.5)
    >>> print(distance_forgetting((2.0, 0.5), gram=(10.0, 4.0)))
    KL and Gram distance to the target, the larger share of its start 0.4 (at most 0.5)
    >>> print(distance_forgetting((2.0, 0.001), gram=(10.0, 4.0)))
    Gram distance to the target, share of its start 0.4 (at most 0.5)
    """
    reached = kl and _reached(kl)
    pairs = {"KL": None if reached else kl, "Gram distance": gram}
    shares = {name: pair[1] / pair[0] if pair[0] else 0.0 for name, pair in pairs.items() if pair is not None}
    if reached and not shares:
        return reached
    names, larger = " and ".join(shares), "the larger " if len(shares) > 1 else ""
    return Forgetting(f"{names} to the target, {larger}share of its start", max(shares.values()), HALVED)


def _reached(kl: tuple[float, float]) -> Forgetting | None:
    """The criterion that there is nothing left to forget, where it is met."""
    forgetting = Forgetting("KL to the target in nats, the smaller of start and end", min(kl), CLOSE)
    return forgetting if forgetting.met else None
