"""The gates on what lies behind the answers: features, head, relearning, rounding and export, style."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from famr.audit.depth import Recognised
from famr.audit.intervals import mean_figure
from famr.audit.panel import Panel
from famr.audit.relearning import Relearned
from famr.audit.style_audit import StyleRead
from famr.audit.verdict import Check, Figure, check
from famr.audit.witness import LESSONS, Witness

PROBES = {
    "best_bias": "The best bias for the forgotten classes, at 1 % of retained accuracy",
    "probe": "A linear probe with five images a class",
    "neighbours": "Nearest neighbours among five images a class",
}


def depth_gates(panel: Panel) -> list[Check]:
    """How much more of the forgotten classes an attacker reads off the model than off retrained ones."""

    def gate(name: str, says: str) -> Check:
        def marks(witness: Witness) -> Tensor:
            found: Recognised | None = getattr(witness.depth, name)
            assert found is not None
            return found.forget.double()

        def of(witness: Witness, references: Sequence[Witness]) -> Figure:
            expected = torch.stack([marks(reference) for reference in references]).mean(dim=0)
            return mean_figure(marks(witness) - expected, panel.seed)

        return panel.against_retrained(f"{name}_excess", f"{says}: held-out forget accuracy − retrained.", of)

    checks = [gate(name, says) for name, says in PROBES.items()]
    put_back = {
        name: mean_figure(witness.depth.original_head.forget.double(), panel.seed)
        for name, witness in panel.witnesses.items()
        if witness.depth is not None and witness.depth.original_head is not None
    }
    if put_back:
        says = "Held-out forget accuracy with the original's head put back: is it forgotten in the head alone?"
        limit = panel.limits["original_head_back"]
        checks.append(check("original_head_back", says, limit, put_back, needs_retrained=False))
    return checks


def relearning_gate(panel: Panel) -> Check:
    """How much sooner than in a retrained model the forgotten is back."""

    def of(witness: Witness, references: Sequence[Witness]) -> Figure:
        theirs = [reference.relearned for reference in references if reference.relearned is not None]
        if witness.relearned is None or not theirs:
            return Figure.not_available("relearning takes the original, whose accuracy is the aim")
        return steps_saved(witness.relearned, theirs)

    says = (
        "Relearning: the share of a retrained model's steps that the model saves on the way back to 95 % of the "
        f"original's accuracy, at most {LESSONS.steps} steps."
    )
    return panel.against_retrained("relearning_saved", says, of)


def steps_saved(ours: Sequence[Relearned], theirs: Sequence[Sequence[Relearned]]) -> Figure:
    """1 − steps / steps of a retrained model, mean over models and draws of images; the interval is from the least
    to the most of them.

    Who does not get there has taken one step more than there were. Below 0 it was slower.
    """
    pairs = [(steps_taken(run), steps_taken(other[place])) for other in theirs for place, run in enumerate(ours)]
    saved = [(expected - taken) / max(expected, 1) for taken, expected in pairs]
    return Figure(sum(saved) / len(saved), min(saved), max(saved))


def steps_taken(run: Relearned) -> int:
    """Steps until the aim; one more than there were where it was not reached.

    >>> reached, not_yet = (Relearned(0, 5, 9, 0.9, curve, None) for curve in ((0.0, 1.0), (0.0, 0.5)))
    >>> steps_taken(reached), steps_taken(not_yet)
    (1, 2)
    """
    return len(run.curve) if run.steps is None else run.steps


CHANGED = {
    "int8_comes_back": (("int8",), "its weights are rounded to int8"),
    "half_comes_back": (("bf16", "fp16"), "it computes in half precision, the worse of bf16 and fp16"),
    "onnx_comes_back": (("onnx",), "it is exported to ONNX"),
}


def survival_gates(panel: Panel) -> list[Check]:
    """How much of the forget accuracy comes back when the model is rounded or exported; only what could be tried."""

    def gate(name: str, changes: Sequence[str], says: str) -> Check:
        def of(witness: Witness) -> Figure | None:
            found = witness.survived
            tried = [] if found is None else [change for change in changes if change in found.changed]
            if found is None or not tried:
                return None
            back = [mean_figure((found.changed[change] - found.as_it_is).double(), panel.seed) for change in tried]
            return max(back, key=lambda figure: figure.high or 0.0)

        return panel.alone(name, f"Forget accuracy that is back when {says}.", of)

    gates = [gate(name, changes, says) for name, (changes, says) in CHANGED.items()]
    return [each for each in gates if each.figures]


def style_gate(panel: Panel) -> Check:
    """How much better the forgotten style is read off the model than off one that never saw it."""

    def of(witness: Witness, references: Sequence[Witness]) -> Figure:
        expected = torch.stack([balanced_marks(reference.style) for reference in references]).mean(dim=0)
        return mean_figure(balanced_marks(witness.style) - expected, panel.seed)

    says = "A probe on Gram features that names the style: balanced accuracy − that of models that never saw the style."
    return panel.against_retrained("style_excess", says, of)


def balanced_marks(read: StyleRead | None) -> Tensor:
    """One value an image whose mean is the balanced accuracy.

    >>> read = StyleRead("layer", torch.tensor([1.0]), torch.tensor([1.0, 0.0, 0.0]))
    >>> round(float(balanced_marks(read).mean()), 6), round(read.balanced_accuracy, 6)
    (0.666667, 0.666667)
    """
    assert read is not None
    total = len(read.forget) + len(read.retain)
    return torch.cat([marks.double() * total / (2 * len(marks)) for marks in (read.forget, read.retain)])
