"""From estimates to verdicts: pass, fail, or cannot tell, by thresholds that were fixed before the run.

An estimate passes where its whole interval is within what is allowed, fails where the whole interval is beyond it, and
otherwise the audit cannot tell with so few images or models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates import GATES
from famr.audit.gates.base import Gate
from famr.errors import RequestError

Verdict = Literal["pass", "fail", "cannot tell"]


def verdict_of(estimate: Estimate, allowed: float) -> Verdict:
    """Pass or fail where the whole interval agrees.

    Args:
        estimate: Of one model.
        allowed: The largest value that passes.

    >>> verdict_of(Estimate(0.01, 0.0, 0.02), 0.05), verdict_of(Estimate(0.04, 0.01, 0.07), 0.05)
    ('pass', 'cannot tell')
    >>> verdict_of(Estimate(0.9, 0.8, 1.0), 0.05), verdict_of(Estimate.not_available("no images"), 0.05)
    ('fail', 'cannot tell')
    """
    ends = estimate.ends()
    if ends is None:
        return "cannot tell"
    low, high = ends
    if high <= allowed:
        return "pass"
    return "fail" if low > allowed else "cannot tell"


def allowed_value(threshold: float, among_references: Sequence[Estimate]) -> float:
    """The threshold, or the largest upper end among reference models where that is more.

    So two or more reference models pass such a gate by themselves. Whether a gate can show forgetting at all is seen
    at the original.

    Args:
        threshold: Of the gate.
        among_references: The estimate of each reference model against the remaining ones.

    >>> allowed_value(0.25, [Estimate(0.2), Estimate(0.27, 0.24, 0.3)])
    0.3
    """
    ends = [ends for estimate in among_references if (ends := estimate.ends()) is not None]
    return max([threshold, *(high for _, high in ends)])


@dataclass(frozen=True)
class GateResult:
    """A gate's estimates and verdicts in one audit.

    Attributes:
        name: Of the gate.
        description: What it measures; `says` in audit.json.
        threshold: What was fixed before the run.
        allowed: The largest value that passes: the threshold, or what reference models reach among themselves.
        needs_retrained: Whether the gate compares with reference models.
        figures: The estimate of each model.
        verdicts: The verdict on each model.
    """

    name: str
    description: str
    threshold: float
    allowed: float
    needs_retrained: bool
    figures: Mapping[str, Estimate]
    verdicts: Mapping[str, Verdict]

    @classmethod
    def of(cls, gate: Gate, estimates: Estimates, threshold: float) -> GateResult:
        """Judge every model.

        Args:
            gate: The gate.
            estimates: What it measured.
            threshold: Its own, or the user's.
        """
        allowed = allowed_value(threshold, estimates.among_references)
        figures = dict(estimates.by_model)
        verdicts = {model: verdict_of(estimate, allowed) for model, estimate in figures.items()}
        return cls(gate.name, gate.description, threshold, allowed, gate.needs_retrained, figures, verdicts)

    def undecided(self, reason: str) -> GateResult:
        """The same gate without estimates.

        Args:
            reason: Why none means anything.
        """
        figures = dict.fromkeys(self.figures, Estimate.not_available(reason))
        return replace(self, allowed=self.threshold, figures=figures, verdicts=dict.fromkeys(figures, "cannot tell"))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name,
            "says": self.description,
            "threshold": self.threshold,
            "allowed": self.allowed,
            "needs_retrained": self.needs_retrained,
            "figures": {model: asdict(estimate) for model, estimate in self.figures.items()},
            "verdicts": dict(self.verdicts),
        }


def judge(models: ComparedModels, thresholds: Mapping[str, float]) -> list[GateResult]:
    """The result of every gate that applies to the request and has something to measure.

    Args:
        models: Everything that was measured.
        thresholds: By the name of the gate.
    """
    measured = [(gate, gate.measure(models)) for gate in GATES.values() if gate.applies(models)]
    return [GateResult.of(gate, each, thresholds[gate.name]) for gate, each in measured if each.by_model]


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Fail where one gate fails, pass where all pass.

    Args:
        verdicts: Of one model.

    >>> overall(["pass", "cannot tell"]), overall(["pass", "fail"]), overall(["pass", "pass"]), overall([])
    ('cannot tell', 'fail', 'pass', 'cannot tell')
    """
    if "fail" in verdicts:
        return "fail"
    return "pass" if verdicts and all(verdict == "pass" for verdict in verdicts) else "cannot tell"


@dataclass(frozen=True)
class Audit:
    """Every gate, and the verdict on each model; the content of audit.json.

    Attributes:
        checks: The results of the gates.
        subject: What was audited: request, thresholds, seed, digests of the weights.
        notes: Sentences for the user.
        stated: Measurements without a threshold, by name; each says whether it needs a retrained model.
        costs: Seconds by part: the one thing that differs when an audit is repeated.
    """

    checks: tuple[GateResult, ...]
    subject: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """On each model that was audited."""
        models = list(dict.fromkeys(model for result in self.checks for model in result.verdicts))
        return {
            model: overall([result.verdicts[model] for result in self.checks if model in result.verdicts])
            for model in models
        }

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "verdicts": self.verdicts,
            "checks": [result.to_json() for result in self.checks],
            "subject": dict(self.subject),
            "notes": list(self.notes),
            "stated": dict(self.stated),
            "costs": dict(self.costs),
        }


def read_thresholds(path: Path | None = None) -> dict[str, float]:
    """Thresholds by the name of the gate.

    Args:
        path: A JSON file of names and numbers; None: the gates' own thresholds.

    Raises:
        RequestError: For a file that cannot be read.
    """
    if path is None:
        return {gate.name: gate.threshold for gate in GATES.values()}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: float(value) for name, value in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(
            "The thresholds cannot be read.", where=str(path), fix="Give a JSON object of names and numbers."
        ) from error
