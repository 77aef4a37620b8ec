"""How far a run has come, so that it can be resumed: finished trials, and epochs of the unfinished one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from famr.errors import RequestError
from famr.runs.resume import ResumeState, State
from famr.targets import ProxyPredictions
from famr.unlearn.loop import Epoch

if TYPE_CHECKING:
    from famr.unlearn.history import HistoryRow

PROXY = "proxy."
"""Before the names of the tensors of a proxy's predictions."""


@dataclass
class Progress:
    """How far a run has come; without a `store` nothing is saved.

    Attributes:
        store: Saves the state; None: it is not saved.
        state: State of the unfinished trial that an earlier process left.
        trials: Outcomes of the finished trials, as plain values.
        resumed: Whether an earlier process left a state.
        kept: Tensors that are part of every state: the predictions of proxies.
    """

    store: ResumeState | None = None
    state: State | None = None
    trials: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    kept: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def open(
        cls, store: ResumeState | None, forget_ids: Sequence[str] | None, facts: Callable[[], Mapping[str, Any]]
    ) -> Progress:
        """Load the state that an earlier process of the same run left, if there is one.

        Args:
            store: Saves the state; None: it is not saved.
            forget_ids: Ids of the forget images; a loader has none, and its run cannot be resumed.
            facts: Computes what identifies the run, where a state is kept; the state of another run is refused.

        Raises:
            RequestError: The forget set has no ids, or the state is of another run.
        """
        if store is None:
            return cls()
        if forget_ids is None:
            raise RequestError("Only a run on named images can be resumed.", where="resume_state", fix="Give splits.")
        state = store.begin(forget=list(forget_ids), **facts())
        if state is None:
            return cls(store)
        kept = {name: tensor for name, tensor in state.tensors.items() if name.startswith(PROXY)}
        begun = state if state.facts["epoch"] is not None else None  # only the proxy was trained
        return cls(store, begun, [*state.facts["trials"]], resumed=True, kept=kept)

    def facts(self) -> dict[str, Any] | None:
        """The state that an earlier process left, without tensors; None without one."""
        return None if self.state is None else self.state.facts

    def position(self) -> tuple[Epoch | None, list[dict[str, Any]]]:
        """The last epoch of the unfinished trial, and its rows; None and no rows where it starts from θ₀."""
        if self.state is None:
            return None, []
        facts = self.state.facts
        return Epoch(facts["epoch"], facts["steps"], facts["seconds"], self.state.tensors), facts["history"]

    def proxy(self) -> ProxyPredictions | None:
        """The predictions of proxies that an earlier process kept; None without them."""
        if not self.kept:
            return None
        return ProxyPredictions(*(self.kept[f"{PROXY}{name}"] for name in ("logits", "known", "temperature")))

    def keep_proxy(self, proxy: ProxyPredictions) -> None:
        """Save the predictions of proxies, if that is due, and with every later state.

        Args:
            proxy: The predictions.
        """
        self.kept = {f"{PROXY}{name}": tensor for name, tensor in vars(proxy).items()}
        if self.store is not None and self.store.due():
            facts = {"epoch": None, "steps": 0, "seconds": 0.0, "history": [], "trials": self.trials}
            self.store.keep(self.kept, facts)

    def finish_trial(self, outcome: dict[str, Any]) -> None:
        """Record the outcome of a trial; the next one starts from θ₀.

        Args:
            outcome: As plain values.
        """
        self.trials.append(outcome)
        self.state = None

    def discard(self) -> None:
        """Remove the state: what comes next is another run."""
        if self.store is not None:
            self.store.discard()

    def keep(self, epoch: Epoch, history: Sequence[HistoryRow]) -> None:
        """Save the state, if that is due.

        Args:
            epoch: The last epoch.
            history: Rows of the trial so far.
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
        self.store.keep({**epoch.state, **self.kept}, facts)
