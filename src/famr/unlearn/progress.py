"""How far a run of `forget` has come, so that it can go on: trials of a strength, epochs of the last of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from famr.config import FAMR
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.models import Classifier
from famr.runs.resume import ResumeState, State
from famr.unlearn.loop import Epoch
from famr.unlearn.search import Outcome

if TYPE_CHECKING:
    from famr.unlearn.history import HistoryRow


@dataclass
class Progress:
    """Where a run stands; without a place to keep it, nothing is kept."""

    place: ResumeState | None
    state: State | None = None
    trials: list[Outcome] = field(default_factory=list)
    """Strengths whose whole run is behind us."""

    @classmethod
    def begin(
        cls,
        place: ResumeState | None,
        original: Classifier,
        splits: Splits | None,
        method: FAMR,
        seed: int,
        device: torch.device,
        processes: int = 1,
    ) -> Progress:
        """Say which run it is, and find what is left of it."""
        if place is None:
            return cls(None)
        if splits is None:
            raise RequestError("Only a run on named images can go on.", where="resume_state", fix="Give splits.")
        state = place.begin(
            original=original.digest(),
            request=splits.request.to_json(),
            forget=splits.forget.ids,
            method=method.to_json(),
            seed=seed,
            device=device.type,
            processes=processes,
        )
        trials = [] if state is None else [Outcome(**trial) for trial in state.facts["trials"]]
        return cls(place, state, trials)

    def remembering(
        self, attempt: Callable[[FAMR], tuple[Outcome, Any, Any]]
    ) -> Callable[[FAMR], tuple[Outcome, Any, Any]]:
        """The same attempts, but those that are behind us are not made again: only the last one's weights count."""
        behind = list(self.trials)

        def remembered(method: FAMR) -> tuple[Outcome, Any, Any]:
            if behind:
                return behind.pop(0), (), method
            outcome, history, settled = attempt(method)
            self.trials.append(outcome)
            self.state = None
            return outcome, history, settled

        return remembered

    def at(self) -> dict[str, Any] | None:
        """What is left of an earlier run, in figures; None where there is nothing."""
        return None if self.state is None else self.state.facts

    def begun(self) -> tuple[Epoch | None, list[dict[str, Any]]]:
        """Where the epochs of this trial stand, and their rows."""
        if self.state is None:
            return None, []
        facts, tensors = self.state.facts, self.state.tensors
        return Epoch(facts["epoch"], facts["steps"], facts["seconds"], tensors), facts["history"]

    def keep(self, epoch: Epoch, history: Sequence[HistoryRow]) -> None:
        """Write down where the run stands, if it is time to."""
        if self.place is None or not self.place.due():
            return
        facts = {
            "epoch": epoch.epoch,
            "steps": epoch.steps,
            "seconds": epoch.seconds,
            "history": [asdict(row) for row in history],
            "trials": [asdict(trial) for trial in self.trials],
        }
        self.place.keep(epoch.state, facts)
