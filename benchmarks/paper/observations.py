"""The paper's observations as statements, each tested on our figures: confirmed, refuted or undecided.

A statement about sizes compares the mean of ViT-B and ViT-L with that of ViT-Ti and ViT-S on the same class and seed;
a 95 % interval of the difference that lies on one side of zero decides. Only models of one setting are compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.paper.setting import LARGE, SMALL, run_cells
from famr.bench.columns import finished_cells
from famr.bench.methods import FAMR_PAPER
from famr.bench.statistics import FEWEST_BLOCKS, mean_of

Verdict = Literal["confirmed", "refuted", "undecided"]
NEAR_UNIFORM = 0.95
"""Share of ln C from which predictions count as nearly uniform."""
STRONG = 0.8
"""|rank correlation| from which two quantities count as strongly correlated."""
FIRST_EPOCH = 1

Cell = Mapping[str, Any]
Quantity = Callable[[Cell], float | None]


@dataclass(frozen=True)
class Observation:
    """What the paper states, whether our figures confirm it, and why."""

    statement: str
    setting: str
    verdict: Verdict
    evidence: str


def observations(content: Mapping[str, Any]) -> list[Observation]:
    """Every statement on every setting of the result file, for the paper's algorithm; those about sizes where a setting
    has small and large models, if any has."""
    found = []
    sizes: dict[str, set[str]] = {}
    for run in content["runs"]:
        sizes.setdefault(run["setting"], set()).add(run["size"])
    with_both = [setting for setting, there in sizes.items() if there & {*SMALL} and there & {*LARGE}]
    for setting in sizes:
        runs = [run for run in content["runs"] if run["setting"] == setting]
        cells = {
            run["size"]: [c for c in finished_cells(run_cells(content, run)) if c["method"] == FAMR_PAPER]
            for run in runs
        }
        classes = runs[0]["settings"]["classes"]
        if setting in with_both or not with_both:
            found += [_by_size(setting, cells, *claim) for claim in SIZE_CLAIMS]
        every = [cell for of_size in cells.values() for cell in of_size]
        found.append(_near_zero(setting, every, classes))
        found.append(_uniform(setting, every, classes))
        for name, title in (("forget_kl", "KL divergence"), ("forget_entropy", "Entropy")):
            found.append(_correlated(f"{title} is strongly correlated with forgetting progress", setting, every, name))
    return found


def _forget_accuracy(cell: Cell) -> float | None:
    return float(cell["unlearned"]["forget_accuracy"])


def _retain_accuracy(cell: Cell) -> float | None:
    return float(cell["unlearned"]["retain_accuracy"])


def _lost_accuracy(cell: Cell) -> float | None:
    return float(cell["original"]["retain_accuracy"] - cell["unlearned"]["retain_accuracy"])


def _share_left(cell: Cell) -> float | None:
    """Forget accuracy after the first epoch, as a share of that before."""
    rows = {row["epoch"]: row["forget_accuracy"] for row in cell["facts"].get("history", [])}
    if not rows.get(0) or rows.get(FIRST_EPOCH) is None:
        return None
    return float(rows[FIRST_EPOCH] / rows[0])


SIZE_CLAIMS: tuple[tuple[str, Quantity, int], ...] = (
    ("Larger models forget more fully: lower forget accuracy", _forget_accuracy, -1),
    ("Larger models keep more: higher retained accuracy", _retain_accuracy, +1),
    ("Larger models pay less: they lose less retained accuracy against their originals", _lost_accuracy, -1),
    (
        "Smaller models fall faster at first: less of the forget accuracy is left after one epoch (appendix; "
        "the main text gives larger models the steeper decline)",
        _share_left,
        +1,
    ),
)
"""The statement, the quantity, and the sign that large minus small must have."""


def _by_size(
    setting: str, cells: Mapping[str, Sequence[Cell]], statement: str, quantity: Quantity, sign: int
) -> Observation:
    """Large minus small, pair by pair."""
    by_key: dict[str, dict[tuple[str, int], float]] = {}
    for size, of_size in cells.items():
        values = {(cell["task"], cell["seed"]): quantity(cell) for cell in of_size}
        by_key[size] = {key: value for key, value in values.items() if value is not None}
    groups = [[by_key[size] for size in group if by_key.get(size)] for group in (LARGE, SMALL)]
    if not all(groups):
        return Observation(statement, setting, "undecided", "not measured: there must be small and large models")
    shared = sorted(set.intersection(*(set(values) for group in groups for values in group)))
    if len(shared) < FEWEST_BLOCKS:
        few = f"{len(shared)} pairs of class and seed are in all sizes, and {FEWEST_BLOCKS} are needed"
        return Observation(statement, setting, "undecided", few)
    large, small = ([statistics.fmean(values[key] for values in group) for key in shared] for group in groups)
    mean = mean_of([a - b for a, b in zip(large, small, strict=True)])
    assert mean is not None
    assert mean.half_width is not None
    verdict: Verdict = "undecided"
    if abs(mean.mean) > mean.half_width:
        verdict = "confirmed" if mean.mean * sign > 0 else "refuted"
    evidence = (
        f"large {100 * statistics.fmean(large):.1f} %, small {100 * statistics.fmean(small):.1f} %, difference "
        f"{100 * mean.mean:+.1f} ± {100 * mean.half_width:.1f} points over {len(shared)} pairs of class and seed"
    )
    return Observation(statement, setting, verdict, evidence)


def _near_zero(setting: str, cells: Sequence[Cell], classes: int) -> Observation:
    statement = "Forget accuracy goes to near zero (at most twice chance), all sizes together"
    mean = mean_of([cell["unlearned"]["forget_accuracy"] for cell in cells])
    allowed = 2 / classes
    if mean is None or mean.half_width is None or mean.size < FEWEST_BLOCKS:
        return Observation(statement, setting, "undecided", f"{len(cells)} cells, and {FEWEST_BLOCKS} are needed")
    figure = f"{100 * mean.mean:.1f} ± {100 * mean.half_width:.1f} %"
    evidence = f"{figure}, allowed {100 * allowed:.1f} %, {mean.size} cells"
    return Observation(statement, setting, _side(mean.mean, mean.half_width, allowed, below=True), evidence)


def _uniform(setting: str, cells: Sequence[Cell], classes: int) -> Observation:
    statement = f"Predictions become nearly uniform (entropy at least {100 * NEAR_UNIFORM:g} % of ln C)"
    most = math.log(classes)
    mean = mean_of([cell["unlearned"]["forget_entropy"] / most for cell in cells])
    if mean is None or mean.half_width is None or mean.size < FEWEST_BLOCKS:
        return Observation(statement, setting, "undecided", f"{len(cells)} cells, and {FEWEST_BLOCKS} are needed")
    evidence = f"entropy is {100 * mean.mean:.1f} ± {100 * mean.half_width:.1f} % of ln {classes} = {most:.2f}"
    return Observation(statement, setting, _side(mean.mean, mean.half_width, NEAR_UNIFORM, below=False), evidence)


def _correlated(statement: str, setting: str, cells: Sequence[Cell], name: str) -> Observation:
    """Spearman's rank correlation with forget accuracy over the epochs of each run; it must be strongly negative."""
    from scipy import stats

    correlations = []
    for cell in cells:
        rows = [row for row in cell["facts"].get("history", []) if row["forget_accuracy"] is not None]
        accuracies, values = [row["forget_accuracy"] for row in rows], [row[name] for row in rows]
        if len(set(accuracies)) > 1 and len(set(values)) > 1:
            correlations.append(float(stats.spearmanr(accuracies, values).statistic))
    mean = mean_of(correlations)
    if mean is None or mean.half_width is None or mean.size < FEWEST_BLOCKS:
        few = f"{len(correlations)} runs with a history, and {FEWEST_BLOCKS} are needed"
        return Observation(statement, setting, "undecided", few)
    evidence = (
        f"rank correlation with forget accuracy over epochs {mean.mean:.2f} ± {mean.half_width:.2f}, {mean.size} runs"
    )
    return Observation(statement, setting, _side(mean.mean, mean.half_width, -STRONG, below=True), evidence)


def _side(mean: float, half_width: float, limit: float, below: bool) -> Verdict:
    """Whether the whole interval lies on the claimed side of the limit, the whole on the other, or neither.

    >>> _side(0.01, 0.005, 0.02, below=True), _side(0.5, 0.1, 0.02, below=True), _side(0.02, 0.1, 0.02, below=True)
    ('confirmed', 'refuted', 'undecided')
    """
    sign = 1 if below else -1
    low, high, edge = sign * mean - half_width, sign * mean + half_width, sign * limit
    if high <= edge:
        return "confirmed"
    return "refuted" if low > edge else "undecided"
