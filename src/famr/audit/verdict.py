"""From estimates to verdicts: pass, fail, or cannot tell, by thresholds that were fixed before the run.

An estimate passes where its whole interval is within what is allowed. It fails where its value is beyond that and its
whole interval beyond the threshold: no retrained model would show it, and it matters. Otherwise the audit cannot tell
with so few images or models. The verdict on a model rests on the gates that have power:
those that a control which must fail does fail, and that no control which must pass fails.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates import GATES
from famr.audit.gates.base import Gate, Kind
from famr.audit.names import COLLAPSED, HEAD_ONLY, NEVER_SAW, ORIGINAL, RETRAINED, UNLEARNED
from famr.audit.prediction_bound import ReferenceSpread, Upper
from famr.errors import RequestError

Verdict = Literal["pass", "fail", "cannot tell"]

FALSE_FAILS = 0.05
"""The share of truly retrained models that may fail an audit: shared out among its gates."""
FEWEST_REFERENCES = 5
"""Retrained models below which there is no bound for one more of them, and no audit passes."""


def verdict_of(estimate: Estimate, threshold: float, allowed: float) -> Verdict:
    """Pass where the whole interval is allowed; fail where the value is not and the whole interval matters.

    The bound for one more retrained model already holds for its value on these very images, so a fail takes no second
    allowance for them.

    Args:
        estimate: Of one model.
        threshold: The largest difference that does not matter.
        allowed: The largest value that passes, at least the threshold.

    >>> verdict_of(Estimate(0.01, 0.0, 0.02), 0.05, 0.05), verdict_of(Estimate(0.06, 0.04, 0.08), 0.05, 0.05)
    ('pass', 'cannot tell')
    >>> verdict_of(Estimate(0.4, 0.2, 0.6), 0.05, 0.3), verdict_of(Estimate.not_available("no images"), 0.05, 0.05)
    ('fail', 'cannot tell')
    """
    ends = estimate.ends()
    if ends is None or estimate.value is None:
        return "cannot tell"
    low, high = ends
    if high <= allowed:
        return "pass"
    return "fail" if estimate.value > allowed and low > threshold else "cannot tell"


def allowed_value(
    threshold: float, among_references: Sequence[Estimate], level: float, spread: ReferenceSpread | None = None
) -> float:
    """The threshold, or where there are enough reference models the bound for one more of them, if that is more.

    The bound is made of values, not of the ends of intervals: noise in single estimates does not loosen a gate, and
    more reference models make it tighter.

    Args:
        threshold: Of the gate: the largest difference that does not matter.
        among_references: The estimate of each reference model against the remaining ones.
        level: The probability with which one more reference model may exceed the bound.
        spread: As in `Estimates`.

    >>> allowed_value(0.25, [Estimate(0.2), Estimate(0.27, 0.0, 0.9)], 0.05)
    0.25
    >>> round(allowed_value(0.05, [Estimate(each) for each in (0.1, 0.11, 0.12, 0.13, 0.14)], 0.05), 3)
    0.157
    """
    spread = spread or Upper(_values(among_references))
    return threshold if spread.count < FEWEST_REFERENCES else max(threshold, spread.bound(level))


def retrained_verdict(
    among_references: Sequence[Estimate], threshold: float, level: float, spread: ReferenceSpread | None = None
) -> Verdict:
    """The verdict on the reference model that is farthest from the remaining ones, by the bound that those set.

    Args:
        among_references: The estimate of each reference model against the remaining ones.
        threshold: Of the gate.
        level: As in `allowed_value`; shared out among the reference models, as the farthest is chosen.
        spread: As in `Estimates`.
    """
    known = [estimate for estimate in among_references if estimate.value is not None]
    if not known:
        return "cannot tell"
    values = _values(known)
    farthest = values.index(max(values))
    others = (spread or Upper(values)).without(farthest)
    enough = others.count >= FEWEST_REFERENCES - 1
    allowed = max(threshold, others.bound(level / len(among_references))) if enough else threshold
    return verdict_of(known[farthest], threshold, allowed)


def _values(estimates: Sequence[Estimate]) -> tuple[float, ...]:
    """Of those that have one."""
    return tuple(estimate.value for estimate in estimates if estimate.value is not None)


def reason_not_to_count(kind: Kind, verdicts: Mapping[str, Verdict]) -> str | None:
    """Why a gate says nothing about the model under audit; None where it counts.

    Args:
        kind: Of the gate.
        verdicts: On all models.

    >>> reason_not_to_count("forgetting", {"unlearned": "pass", "original": "fail", "retrained": "pass"})
    >>> reason_not_to_count("forgetting", {"unlearned": "pass", "original": "pass"})
    'the original does not fail it here'
    >>> reason_not_to_count("depth", {"unlearned": "fail", "original": "fail", "never saw": "fail"})
    'a model that never saw the forget set, trained for less long, fails it: it measures the length of training'
    >>> reason_not_to_count("likeness", {"unlearned": "pass", "original": "fail", "never saw": "fail"})
    """
    if verdicts.get(RETRAINED) == "fail":
        return "retrained models fail it themselves"
    if kind not in ("utility", "likeness") and verdicts.get(NEVER_SAW) == "fail":
        return (
            "a model that never saw the forget set, trained for less long, fails it: it measures the length of training"
        )
    if verdicts.get(UNLEARNED) == "fail":
        return None  # that it can be failed is seen at this model
    if kind == "conversion":
        return "no control shows that it has power"
    if kind == "utility":
        return None if verdicts.get(COLLAPSED) == "fail" else "a model that predicts one class does not fail it here"
    if ORIGINAL not in verdicts:
        return "without the original it is not known whether it has power"
    if verdicts[ORIGINAL] == "cannot tell":
        return "it cannot tell on the original here"
    return None if verdicts[ORIGINAL] == "fail" else "the original does not fail it here"


@dataclass(frozen=True)
class GateResult:
    """A gate's estimates and verdicts in one audit.

    Attributes:
        name: Of the gate.
        description: What it measures; `says` in audit.json.
        kind: What it is about.
        threshold: What was fixed before the run.
        allowed: The largest value that passes: the threshold, or the bound for one more retrained model.
        needs_retrained: Whether the gate compares with reference models.
        figures: The estimate of each model; of the reference models, that of the farthest one.
        verdicts: The verdict on each model.
    """

    name: str
    description: str
    kind: Kind
    threshold: float
    allowed: float
    needs_retrained: bool
    figures: Mapping[str, Estimate]
    verdicts: Mapping[str, Verdict]

    @classmethod
    def of(cls, gate: Gate, estimates: Estimates, threshold: float, level: float = FALSE_FAILS) -> GateResult:
        """Judge every model.

        Controls that have to pass are judged by the gate's own threshold: a stricter one would make them fail, and the
        gate that the model under audit fails would no longer count.

        Args:
            gate: The gate.
            estimates: What it measured.
            threshold: Its own, or the user's.
            level: The probability with which one more retrained model may fail it.
        """
        among, spread = estimates.among_references, estimates.spread
        allowed, own = (allowed_value(each, among, level, spread) for each in (threshold, gate.threshold))
        figures = dict(estimates.by_model)
        verdicts = {model: verdict_of(estimate, threshold, allowed) for model, estimate in figures.items()}
        for control in (NEVER_SAW, RETRAINED):
            if control in figures:
                verdicts[control] = verdict_of(figures[control], gate.threshold, own)
        if among:
            verdicts[RETRAINED] = retrained_verdict(among, gate.threshold, level, spread)
        return cls(gate.name, gate.description, gate.kind, threshold, allowed, gate.needs_retrained, figures, verdicts)

    @property
    def not_counted(self) -> str | None:
        """Why the gate says nothing about the model under audit; None where it counts."""
        return reason_not_to_count(self.kind, self.verdicts)

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
            "kind": self.kind,
            "threshold": self.threshold,
            "allowed": self.allowed,
            "needs_retrained": self.needs_retrained,
            "figures": {model: asdict(estimate) for model, estimate in self.figures.items()},
            "verdicts": dict(self.verdicts),
            "counts": self.not_counted is None,
            "not_counted": self.not_counted,
        }


def judge(models: ComparedModels, thresholds: Mapping[str, float]) -> dict[str, list[GateResult]]:
    """The results of every gate that applies to the request and has something to measure, by method.

    The share of retrained models that may fail by chance is shared out among all gates: those that compare with them
    have a bound for one more at that level, and those with a fixed threshold may fail one as well. Whether a gate will
    count is not known before, as one that the model under audit fails always does.

    Args:
        models: Everything that was measured.
        thresholds: By the name of the gate.
    """
    measured = []
    for gate in GATES.values():
        if gate.applies(models):
            estimates = gate.measure(models.for_kind(gate.kind))
            measured += [(gate, estimates)] if estimates.by_model else []
    level = FALSE_FAILS / max(1, len(measured))
    return {
        method: [
            GateResult.of(gate, _of_one(each, method, models), thresholds[gate.name], level) for gate, each in measured
        ]
        for method in models.methods
    }


def _of_one(estimates: Estimates, method: str, models: ComparedModels) -> Estimates:
    """The estimates of one method's result, called "unlearned", and of the controls."""
    own = {UNLEARNED: estimates.by_model[method]} if method in estimates.by_model else {}
    controls = {name: estimate for name, estimate in estimates.by_model.items() if name not in models.methods}
    return replace(estimates, by_model={**own, **controls})


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


def head_only_escapes(checks: Sequence[GateResult]) -> str | None:
    """Why an edit of the head alone would not be noticed; None where a gate that counts notices it, or none was tried.

    Args:
        checks: The results of the gates.
    """
    tried = [check for check in checks if check.kind == "depth" and HEAD_ONLY in check.verdicts]
    if not tried or any(check.verdicts[HEAD_ONLY] == "fail" and check.not_counted is None for check in tried):
        return None
    return (
        "An edit of the head alone fails no gate on depth that counts: hiding would not be told from forgetting here."
    )


@dataclass(frozen=True)
class Audit:
    """Every gate, and the verdict on each model; the content of audit.json.

    Attributes:
        checks: The results of the gates.
        subject: What was audited: request, thresholds, seed, digests of the weights, images.
        notes: Sentences for the user.
        stated: Measurements without a threshold, by name; each says whether it needs a retrained model.
        costs: Seconds by part: the one thing that differs when an audit is repeated.
        obstacles: Why the model under audit cannot pass, whatever the gates say; each a sentence.
    """

    checks: tuple[GateResult, ...]
    subject: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)
    obstacles: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[GateResult, ...]:
        """The gates that the verdict rests on."""
        return tuple(check for check in self.checks if check.not_counted is None)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """On each model that was audited, by the gates that count."""
        names = list(dict.fromkeys(model for result in self.checks for model in result.verdicts))
        found = {
            model: overall([result.verdicts[model] for result in self.counted if model in result.verdicts])
            for model in names
        }
        if self.obstacles and found.get(UNLEARNED) == "pass":
            found[UNLEARNED] = "cannot tell"
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        from famr.audit.sentence import verdict_sentence

        return {
            "verdicts": self.verdicts,
            "sentence": verdict_sentence(self),
            "obstacles": list(self.obstacles),
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
        RequestError: For a file that cannot be read, an unknown gate, or a threshold above the gate's own.
    """
    if path is None:
        return {gate.name: gate.threshold for gate in GATES.values()}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        thresholds = {name: float(value) for name, value in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(
            "The thresholds cannot be read.", where=str(path), fix="Give a JSON object of names and numbers."
        ) from error
    return stricter_thresholds(thresholds, str(path))


def stricter_thresholds(thresholds: Mapping[str, float], where: str = "thresholds") -> dict[str, float]:
    """Thresholds of a user; they may ask for more than the gates' own, not for less.

    Args:
        thresholds: By the name of the gate.
        where: They come from, for errors.

    Raises:
        RequestError: For an unknown gate, or a threshold above the gate's own.
    """
    for name, value in thresholds.items():
        if name not in GATES:
            near = difflib.get_close_matches(name, GATES, n=1)
            raise RequestError(
                f"There is no gate {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
                where=where,
                fix="docs/audits.md lists the gates.",
            )
        if not 0 <= value <= GATES[name].threshold:
            raise RequestError(
                f"The threshold of {name} may be stricter than {GATES[name].threshold}, not looser: got {value}.",
                where=where,
                fix="Leave it out, and say beside the report which failed gate you accept and why.",
            )
    return dict(thresholds)
