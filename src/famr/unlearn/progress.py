"""How far a run has come, so that it can be resumed: trials of a strength, epochs of the last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from famr.errors import RequestError
from famr.runs.resume import ResumeState, State
from famr.unlearn.loop import Epoch

if TYPE_CHECKING:
    from famr.unlearn.history import HistoryRow


@dataclass
class Progress:
    """Where a run stands; without a `store` nothing is kept.

    Attributes:
        store: Where the state is kept.
        state: What an earlier process left.
        trials: Outcomes of strengths whose run is done, as plain values.
    """

    store: ResumeState | None = None
    state: State | None = None
    trials: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, store: ResumeState | None, forget_ids: Sequence[str] | None, facts: Mapping[str, Any]) -> Progress:
        """Find what is left of an earlier process.

        Args:
            store: Where the state is kept; None: nowhere.
            forget_ids: Ids of the forget images; a loader has none and cannot be resumed.
            facts: What the state belongs to; the state of another run is refused.

        Raises:
            RequestError: The forget set has no ids, or the state is of another run.
        """
        if store is None:
            return cls()
        if forget_ids is None:
            raise RequestError("Only a run on named images can be resumed.", where="resume_state", fix="Give splits.")
        state = store.begin(forget=list(forget_ids), **facts)
        return cls(store, state, [] if state is None else list(state.facts["trials"]))

    @property
    def resumed(self) -> bool:
        """Whether an earlier process left something."""
        return self.state is not None or bool(self.trials)

    def facts(self) -> dict[str, Any] | None:
        """What an earlier process left, without tensors; None where there is nothing."""
        return None if self.state is None else self.state.facts

    def position(self) -> tuple[Epoch | None, list[dict[str, Any]]]:
        """The last epoch of the unfinished trial, and its rows; None and none where it starts from θ₀."""
        if self.state is None:
            return None, []
        facts = self.state.facts
        return Epoch(facts["epoch"], facts["steps"], facts["seconds"], self.state.tensors), facts["history"]

    def finish_trial(self, outcome: dict[str, Any]) -> None:
        """A trial is done; the next one starts from θ₀.

        Args:
            outcome: Its numbers.
        """
        self.trials.append(outcome)
        self.state = None

    def keep(self, epoch: Epoch, history: Sequence[HistoryRow]) -> None:
        """Write the state, if it is time to.

        Args:
            epoch: The last one.
            history: Its rows so far.
        """
        if self.store is None or not self.store.due():
            return
        facts = {
            "epoch": epoch.epoch,
            "steps": epoch.steps,
            "seconds": epoch.seconds,
            "history": [asdict(row) for row in history],
            "trials": self.trials,
        }
        self.store.keep(epoch.state, facts)
