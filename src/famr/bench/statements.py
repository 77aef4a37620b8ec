"""The paper's observations as statements, each held against the figures: confirmed, refuted or undecided.

A statement about sizes compares the mean of ViT-B and ViT-L with that of ViT-Ti and ViT-S on the same class and seed;
a 95 % interval of the difference that lies on one side of zero decides. Models of one setting are compared, no others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from famr.bench.contenders import PAPER
from famr.bench.paper_setting import LARGE, SMALL, cells_of
from famr.bench.statistics import TESTED_FROM, mean_of
from famr.bench.tables import done

Verdict = Literal["confirmed", "refuted", "undecided"]
NEAR_UNIFORM = 0.95
"""Share of ln C from which answers count as nearly uniform."""
STRONG = 0.8
"""|rank correlation| from which two quantities count as strongly correlated."""
FIRST_EPOCH = 1


@dataclass(frozen=True)
class Statement:
    """What the paper says, what our figures say to it, and why."""

    says: str
    setting: str
    verdict: Verdict
    evidence: str

    def to_json(self) -> dict[str, str]:
        """As plain values."""
        return {"says": self.says, "setting": self.setting, "verdict": self.verdict, "evidence": self.evidence}


Cell = Mapping[str, Any]
Figure = Callable[[Cell], float | None]


def statements(content: Mapping[str, Any]) -> list[Statement]:
    """Every statement on every setting of the result file, for the paper's algorithm; those about sizes where a setting
    has small and large models, if any has."""
    found = []
    sizes: dict[str, set[str]] = {}
    for run in content["runs"]:
        sizes.setdefault(run["setting"], set()).add(run["size"])
    of_both = [setting for setting, there in sizes.items() if there & {*SMALL} and there & {*LARGE}]
    for setting in sizes:
        cells = {
            run["size"]: [cell for cell in done(cells_of(content, run)) if cell["method"] == PAPER]
            for run in content["runs"]
            if run["setting"] == setting
        }
        classes = next(run["settings"]["classes"] for run in content["runs"] if run["setting"] == setting)
        sized = [
            ("Larger models forget more fully: lower forget accuracy", _forgotten, -1),
            ("Larger models keep more: higher retained accuracy", _kept, +1),
            ("Larger models pay less: they lose less retained accuracy against their originals", _paid, -1),
            (
                "Smaller models fall faster at first: less of the forget accuracy is left after one epoch (appendix; "
                "the main text gives larger models the steeper decline)",
                _left,
                +1,
            ),
        ]
        if setting in of_both or not of_both:
            found += [_by_size(says, setting, cells, figure, sign) for says, figure, sign in sized]
        every = [cell for some in cells.values() for cell in some]
        found.append(_near_zero(setting, every, classes))
        found.append(_uniform(setting, every, classes))
        for name, told in (("forget_kl", "KL divergence"), ("forget_entropy", "Entropy")):
            found.append(_correlated(f"{told} is strongly correlated with forgetting progress", setting, every, name))
    return found


def _forgotten(cell: Cell) -> float | None:
    return float(cell["unlearned"]["forget_accuracy"])


def _kept(cell: Cell) -> float | None:
    return float(cell["unlearned"]["retain_accuracy"])


def _paid(cell: Cell) -> float | None:
    return float(cell["original"]["retain_accuracy"] - cell["unlearned"]["retain_accuracy"])


def _left(cell: Cell) -> float | None:
    """Forget accuracy after the first epoch, as a share of that before."""
    rows = {row["epoch"]: row["forget_accuracy"] for row in cell["facts"].get("history", [])}
    if not rows.get(0) or rows.get(FIRST_EPOCH) is None:
        return None
    return float(rows[FIRST_EPOCH] / rows[0])


def _by_size(says: str, setting: str, cells: Mapping[str, Sequence[Cell]], figure: Figure, sign: int) -> Statement:
    """Large minus small, pair by pair; `sign` is the side that the statement claims."""
    by_key: dict[str, dict[tuple[str, int], float]] = {}
    for size, some in cells.items():
        values = {(cell["task"], cell["seed"]): figure(cell) for cell in some}
        by_key[size] = {key: value for key, value in values.items() if value is not None}
    groups = [[by_key[size] for size in group if by_key.get(size)] for group in (LARGE, SMALL)]
    if not all(groups):
        return Statement(says, setting, "undecided", "not measured: there must be small and large models")
    shared = sorted(set.intersection(*(set(values) for group in groups for values in group)))
    if len(shared) < TESTED_FROM:
        few = f"{len(shared)} pairs of class and seed are in all sizes, and {TESTED_FROM} are needed"
        return Statement(says, setting, "undecided", few)
    large, small = ([statistics.fmean(values[key] for values in group) for key in shared] for group in groups)
    found = mean_of([a - b for a, b in zip(large, small, strict=True)])
    assert found is not None
    assert found.half is not None
    verdict: Verdict = "undecided"
    if abs(found.mean) > found.half:
        verdict = "confirmed" if found.mean * sign > 0 else "refuted"
    evidence = (
        f"large {100 * statistics.fmean(large):.1f} %, small {100 * statistics.fmean(small):.1f} %, difference "
        f"{100 * found.mean:+.1f} ± {100 * found.half:.1f} points over {len(shared)} pairs of class and seed"
    )
    return Statement(says, setting, verdict, evidence)


def _near_zero(setting: str, cells: Sequence[Cell], classes: int) -> Statement:
    says = "Forget accuracy goes to near zero (at most twice chance), all sizes together"
    found = mean_of([cell["unlearned"]["forget_accuracy"] for cell in cells])
    allowed = 2 / classes
    if found is None or found.half is None or found.cells < TESTED_FROM:
        return Statement(says, setting, "undecided", f"{len(cells)} cells, and {TESTED_FROM} are needed")
    told = f"{100 * found.mean:.1f} ± {100 * found.half:.1f} %, allowed {100 * allowed:.1f} %, {found.cells} cells"
    return Statement(says, setting, _side(found.mean, found.half, allowed, below=True), told)


def _uniform(setting: str, cells: Sequence[Cell], classes: int) -> Statement:
    says = f"Answers become nearly uniform (entropy at least {100 * NEAR_UNIFORM:g} % of ln C)"
    most = math.log(classes)
    found = mean_of([cell["unlearned"]["forget_entropy"] / most for cell in cells])
    if found is None or found.half is None or found.cells < TESTED_FROM:
        return Statement(says, setting, "undecided", f"{len(cells)} cells, and {TESTED_FROM} are needed")
    told = f"entropy is {100 * found.mean:.1f} ± {100 * found.half:.1f} % of ln {classes} = {most:.2f}"
    return Statement(says, setting, _side(found.mean, found.half, NEAR_UNIFORM, below=False), told)


def _correlated(says: str, setting: str, cells: Sequence[Cell], name: str) -> Statement:
    """Spearman's rank correlation with forget accuracy over the epochs of each run; it must be strongly negative."""
    from scipy import stats

    found = []
    for cell in cells:
        rows = [row for row in cell["facts"].get("history", []) if row["forget_accuracy"] is not None]
        accuracies, values = [row["forget_accuracy"] for row in rows], [row[name] for row in rows]
        if len(set(accuracies)) > 1 and len(set(values)) > 1:
            found.append(float(stats.spearmanr(accuracies, values).statistic))
    mean = mean_of(found)
    if mean is None or mean.half is None or mean.cells < TESTED_FROM:
        return Statement(says, setting, "undecided", f"{len(found)} runs with a history, and {TESTED_FROM} are needed")
    told = f"rank correlation with forget accuracy over epochs {mean.mean:.2f} ± {mean.half:.2f}, {mean.cells} runs"
    return Statement(says, setting, _side(mean.mean, mean.half, -STRONG, below=True), told)


def _side(mean: float, half: float, limit: float, below: bool) -> Verdict:
    """Whether the whole interval lies on the claimed side of the limit, the whole on the other, or neither.

    >>> _side(0.01, 0.005, 0.02, below=True), _side(0.5, 0.1, 0.02, below=True), _side(0.02, 0.1, 0.02, below=True)
    ('confirmed', 'refuted', 'undecided')
    """
    low, high = (mean - half, mean + half) if below else (-mean - half, -mean + half)
    edge = limit if below else -limit
    if high <= edge:
        return "confirmed"
    return "refuted" if low > edge else "undecided"
