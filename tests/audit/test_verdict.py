"""Verdicts: equivalence within a margin, a bound that noise does not loosen, and only gates that controls vouch for."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

import famr
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates import GATES, Gate
from famr.audit.gates.base import Kind
from famr.audit.prediction_bound import Distances, Folded, Gaps, Shares, gap_prediction_bound, upper_prediction_bound
from famr.audit.verdict import (
    FALSE_FAILS,
    FEWEST_REFERENCES,
    Audit,
    GateResult,
    Verdict,
    allowed_value,
    head_only_escapes,
    judge,
    overall,
    read_thresholds,
    reason_not_to_count,
    retrained_verdict,
    stricter_thresholds,
    verdict_of,
)
from famr.errors import RequestError
from made_up import compared, measured, right_for


def gate(threshold: float, kind: Kind = "forgetting") -> Gate:
    return Gate("gap", "a gap", "A gap.", threshold, measure=lambda _models: Estimates({}), kind=kind)


def judged(
    threshold: float,
    by_model: Mapping[str, Estimate],
    among: Sequence[Estimate] = (),
    *,
    kind: Kind = "forgetting",
    asked: float | None = None,
) -> GateResult:
    """The result of a gate with these estimates; `asked`: by a user's threshold."""
    return GateResult.of(gate(threshold, kind), Estimates(by_model, among), threshold if asked is None else asked)


def exactly(*values: float) -> list[Estimate]:
    return [Estimate(value) for value in values]


# one estimate


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(0.05), "pass"),
        (Estimate(0.050001), "fail"),
        (Estimate(0.02, 0.01, 0.05), "pass"),
        (Estimate(0.02, 0.0, 0.06), "cannot tell"),
        (Estimate(0.2, 0.05, 0.3), "cannot tell"),
        (Estimate(0.2, 0.06, 0.3), "fail"),
        (Estimate.not_available("too few images"), "cannot tell"),
    ],
)
def test_a_verdict_needs_the_whole_interval(estimate: Estimate, expected: str) -> None:
    assert verdict_of(estimate, threshold=0.05, allowed=0.05) == expected


def test_a_difference_that_a_retrained_model_may_show_is_no_failure_and_one_that_matters_not_is_none() -> None:
    assert verdict_of(Estimate(0.2, 0.1, 0.25), threshold=0.05, allowed=0.3) == "pass"
    assert verdict_of(Estimate(0.29, 0.2, 0.4), threshold=0.05, allowed=0.3) == "cannot tell"
    assert verdict_of(Estimate(0.31, 0.2, 0.4), threshold=0.05, allowed=0.3) == "fail"
    assert verdict_of(Estimate(0.31, 0.04, 0.4), threshold=0.05, allowed=0.3) == "cannot tell"


# what is allowed


def test_the_bound_is_exceeded_by_one_more_draw_as_often_as_it_says() -> None:
    draws = torch.Generator().manual_seed(0)
    for count in (5, 12):
        sets = torch.randn(3000, count + 1, generator=draws).tolist()
        above = statistics.fmean(more > upper_prediction_bound(values, 0.1) for *values, more in sets)
        assert above == pytest.approx(0.1, abs=0.02)


def gaps_of(values: Tensor) -> list[float]:
    """|value − mean of the others|, one after the other."""
    return [float(abs(each - values[torch.arange(len(values)) != row].mean())) for row, each in enumerate(values)]


@pytest.mark.parametrize("count", [5, 12])
def test_one_more_model_has_a_gap_beyond_the_bound_as_often_as_it_says(count: int) -> None:
    """The one-sided bound of the gaps themselves, which are folded at 0, is exceeded far more often than it says."""
    draws = torch.randn(2000, count + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    beyond, beyond_one_sided = 0, 0
    for values in draws:
        gap, gaps = float(abs(values[-1] - values[:-1].mean())), gaps_of(values[:-1])
        beyond += gap > gap_prediction_bound(gaps, 0.02)
        beyond_one_sided += gap > upper_prediction_bound(gaps, 0.02)
    assert beyond / len(draws) == pytest.approx(0.02, abs=0.01)
    assert beyond_one_sided / len(draws) > 0.04


def test_the_bound_of_gaps_is_the_two_sided_one_of_the_values_behind_them() -> None:
    values = torch.tensor([0.3, 0.1, 0.9, 0.35, 0.2, 0.4], dtype=torch.float64)
    quantile = 2.5706  # of Student's t, 5 degrees of freedom, 97.5 %
    expected = quantile * float(values.std()) * math.sqrt(1 + 1 / 6)
    assert gap_prediction_bound(gaps_of(values), 0.05) == pytest.approx(expected, rel=1e-4)
    others = values[values != 0.9]
    without = Gaps(tuple(gaps_of(values))).without(2)
    assert without.count == 5
    assert without.bound(0.05) == pytest.approx(gap_prediction_bound(gaps_of(others), 0.05))
    assert Gaps((0.0, 0.0, 0.0)).without(0).bound(0.05) == 0.0


def test_a_gate_on_gaps_judges_by_their_bound() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    among = exactly(*gaps_of(values))
    spread = Gaps(tuple(gaps_of(values)))
    bounds = [
        GateResult.of(gate(0.05), Estimates({"unlearned": Estimate(0.7)}, among, each), 0.05).allowed
        for each in (spread, None)
    ]
    values_of = [each.value or 0.0 for each in among]
    assert bounds == [gap_prediction_bound(values_of, 0.05), upper_prediction_bound(values_of, 0.05)]
    assert retrained_verdict(among, 0.05, 0.5, spread) == "fail"
    assert retrained_verdict(among, 0.05, 0.05, spread) == "pass"


@pytest.mark.parametrize("count", [5, 12])
def test_one_more_model_is_beyond_the_bound_of_folded_values_as_often_as_it_says(count: int) -> None:
    """An AUC is folded at ½: the one-sided bound of folded values is exceeded far more often than it says."""
    draws = 0.5 + 0.02 * torch.randn(2000, count + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    beyond, beyond_one_sided = 0, 0
    for *values, more in draws.tolist():
        beyond += 0.5 + abs(more - 0.5) > Folded(tuple(values), 0.5).bound(0.02)
        beyond_one_sided += abs(more - 0.5) > upper_prediction_bound([abs(value - 0.5) for value in values], 0.02)
    assert beyond / len(draws) <= 0.025
    assert beyond_one_sided / len(draws) > 0.04
    assert Folded((0.4, 0.5, 0.6), 0.5).without(0) == Folded((0.5, 0.6), 0.5)


@pytest.mark.parametrize("count", [5, 10])
def test_one_more_model_is_beyond_the_bound_of_small_shares_as_often_as_it_says(count: int) -> None:
    """Of shares of 40 images, most of which are 0; by their gaps one more model would exceed its bound too often."""
    generator, sets, level, images = torch.Generator().manual_seed(0), 1500, 0.02, 40
    score = torch.randn(sets, count + 1, generator=generator, dtype=torch.float64) * 0.6 - 1.9
    recovered = torch.distributions.Normal(0.0, 1.0).cdf(score)
    shares = (torch.rand(sets, count + 1, images, generator=generator) < recovered[..., None]).double().mean(dim=-1)
    beyond, beyond_gaps = 0, 0
    for each in shares:
        gap = float(abs(each[0] - each[1:].mean()))
        beyond += gap > max(0.05, Shares(tuple(each[1:].tolist()), images).bound(level))
        beyond_gaps += gap > max(0.05, gap_prediction_bound(gaps_of(each[1:]), level))
    assert beyond / sets <= 0.025
    assert beyond_gaps / sets > 0.04


def test_a_bound_of_shares_is_that_of_their_scores_and_ends_at_all_images() -> None:
    shares = Shares((0.45, 0.5, 0.55, 0.5, 0.5), 100_000)
    assert shares.bound(0.05) == pytest.approx(
        gap_prediction_bound(gaps_of(torch.tensor(shares.values, dtype=torch.float64)), 0.05), rel=0.01
    )
    assert Shares((0.0, 0.9, 0.5, 0.1, 0.5), 40).bound(0.001) == pytest.approx(0.6, abs=0.001)
    assert shares.without(0) == Shares((0.5, 0.55, 0.5, 0.5), 100_000)


def excesses(distance: Tensor) -> tuple[float, list[float]]:
    """Of the first model to the others, less the mean between them; of each of these against the remaining ones."""

    def excess(row: int, others: Sequence[int]) -> float:
        between = distance[others][:, others].sum() / (len(others) * (len(others) - 1))
        return float(distance[row, others].mean() - between)

    rest = range(1, len(distance))
    return excess(0, rest), [excess(row, [other for other in rest if other != row]) for row in rest]


@pytest.mark.parametrize("count", [10, 19])
def test_one_more_model_is_beyond_the_bound_of_distances_as_often_as_it_says(count: int) -> None:
    """Where some models are far from all others a normal bound of excesses is exceeded far more often than it says."""
    generator, sets, level = torch.Generator().manual_seed(0), 1000, 0.02
    beyond, beyond_normal = 0, 0
    for _ in range(sets):
        far = torch.randn(count + 1, generator=generator, dtype=torch.float64).mul(0.4).exp()
        distance = torch.outer(far, far).fill_diagonal_(0.0)
        value, among = excesses(distance)
        beyond += value > Distances(tuple(map(tuple, distance[1:, 1:].tolist()))).bound(level)
        beyond_normal += value > upper_prediction_bound(among, level)
    assert beyond / sets == pytest.approx(level, abs=0.01)
    assert beyond_normal / sets > 1.5 * level


def test_mean_distances_share_comparisons_and_their_spread_is_raised_to_that_of_single_models() -> None:
    """dᵢⱼ = 1 + αᵢ + αⱼ with small α: the bound is that of the α themselves."""
    own = torch.tensor([0.010, -0.004, 0.002, 0.007, -0.008, -0.001], dtype=torch.float64)
    distance = (1 + own[:, None] + own).fill_diagonal_(0.0)
    expected = upper_prediction_bound(own.tolist(), 0.05) - float(own.mean())
    found = Distances(tuple(map(tuple, distance.tolist())))
    assert found.bound(0.05) == pytest.approx(expected, rel=0.05)
    others = own[own != 0.010]
    assert found.without(0).bound(0.05) == pytest.approx(
        upper_prediction_bound(others.tolist(), 0.05) - float(others.mean()), rel=0.05
    )


@pytest.mark.parametrize("count", [5, 19])
def test_one_more_retrained_model_fails_at_most_5_percent_of_audits_with_18_gates(count: int) -> None:
    """Each gate with a threshold of 0, so that only the bound protects it, and with values of its own."""
    gates, audits = 18, 300
    draws = torch.randn(audits, gates, count + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    failed = 0
    for audit in draws:
        verdicts = []
        for values in audit:
            gap = Estimate(float(abs(values[-1] - values[:-1].mean())))
            gaps = gaps_of(values[:-1])
            estimates = Estimates({"unlearned": gap}, exactly(*gaps), Gaps(tuple(gaps)))
            found = GateResult.of(gate(0.0), estimates, 0.0, FALSE_FAILS / gates)
            verdicts.append(found.verdicts["unlearned"])
        failed += "fail" in verdicts
    assert failed / audits == pytest.approx(FALSE_FAILS, abs=0.03)


def test_the_bound_tightens_with_more_references_of_the_same_spread() -> None:
    """The mean bound of the first edition, the largest upper end, only grew."""

    def bound(count: int) -> float:
        draws = torch.Generator().manual_seed(1)
        sets = (0.1 + 0.02 * torch.randn(400, count, generator=draws)).tolist()
        return statistics.fmean(allowed_value(0.0, exactly(*values), 0.01) for values in sets)

    bounds = [bound(count) for count in (5, 8, 20, 50)]
    assert bounds == sorted(bounds, reverse=True)
    normal = 0.1 + 0.02 * 2.326  # of ever so many
    assert bounds[0] > normal + 0.02
    assert bounds[-1] == pytest.approx(normal, abs=0.005)


def test_noise_in_the_estimates_of_references_does_not_loosen_a_gate() -> None:
    """By the largest upper end of their intervals 0.9 would be allowed here."""
    values = (0.10, 0.11, 0.12, 0.13, 0.14)
    known, noisy = exactly(*values), [Estimate(value, 0.0, 0.9) for value in values]
    assert allowed_value(0.05, noisy, 0.05) == allowed_value(0.05, known, 0.05) < 0.16
    assert judged(0.05, {"unlearned": Estimate(0.4, 0.3, 0.5)}, noisy).verdicts["unlearned"] == "fail"


def test_with_fewer_than_five_references_the_threshold_is_all_that_is_allowed() -> None:
    far = exactly(0.5, 0.6, 0.7, 0.8)
    assert len(far) < FEWEST_REFERENCES
    assert allowed_value(0.05, far, 0.05) == 0.05
    assert allowed_value(0.05, [*far, Estimate.not_available("no images")], 0.05) == 0.05
    assert allowed_value(0.05, [*far, Estimate(0.9)], 0.05) > 0.9


def test_the_farthest_reference_is_judged_by_the_others() -> None:
    near = (0.10, 0.11, 0.12, 0.13)
    assert retrained_verdict(exactly(*near, 0.9), 0.05, 0.05) == "fail"
    assert retrained_verdict(exactly(*near, 0.14), 0.05, 0.05) == "pass"
    assert retrained_verdict([Estimate.not_available("none")] * 5, 0.05, 0.05) == "cannot tell"


def test_missing_estimates_of_retrained_models_leave_the_threshold_as_it_is() -> None:
    far = Estimate(0.2, 0.1, 0.3)
    missing = judged(0.05, {"unlearned": far}, [Estimate.not_available("none")] * 5)
    assert (missing.allowed, missing.verdicts["unlearned"]) == (0.05, "fail")


def test_the_share_of_false_fails_is_that_of_all_gates(
    without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those with a fixed threshold: a retrained model may fail them, and a gate that it fails counts."""
    among = exactly(0.10, 0.11, 0.12, 0.13, 0.14)
    compares = replace(gate(0.05), measure=lambda _: Estimates({"unlearned": Estimate(0.1)}, among))
    fixed = replace(gate(0.05), name="fixed", measure=lambda _: Estimates({"unlearned": Estimate(0.1)}))
    for name in list(GATES):
        monkeypatch.delitem(GATES, name)
    for each in (compares, fixed):
        monkeypatch.setitem(GATES, each.name, each)
    predictions = right_for(0.0, torch.arange(40) % 5)
    models = compared(without_three, {"unlearned": measured(predictions, predictions)}, [])
    first, _ = judge(models, {"gap": 0.05, "fixed": 0.05})["unlearned"]
    assert first.allowed == allowed_value(0.05, among, FALSE_FAILS / 2)


# which gates count

GOOD: dict[str, Verdict] = {"unlearned": "pass", "original": "fail", "never saw": "pass", "retrained": "pass"}


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        ("forgetting", {}, None),
        ("forgetting", {"original": "pass"}, "the original does not fail it here"),
        ("forgetting", {"original": "cannot tell"}, "it cannot tell on the original here"),
        ("forgetting", {"original": None}, "without the original it is not known whether it has power"),
        ("forgetting", {"original": None, "unlearned": "fail"}, None),
        ("forgetting", {"retrained": "fail"}, "retrained models fail it themselves"),
        ("forgetting", {"retrained": "fail", "unlearned": "fail"}, "retrained models fail it themselves"),
        ("depth", {"never saw": "fail"}, "trained for less long, fails it"),
        ("depth", {"never saw": "fail", "unlearned": "fail"}, "trained for less long, fails it"),
        ("depth", {"never saw": "cannot tell"}, None),
        ("depth", {"never saw": None}, None),
        ("utility", {"never saw": "fail", "original": "pass", "collapsed": "fail"}, None),
        ("utility", {"original": "pass", "collapsed": "pass"}, "predicts one class does not fail it"),
        ("utility", {"original": "pass"}, "predicts one class does not fail it"),
        ("conversion", {}, "no control shows that it has power"),
        ("conversion", {"unlearned": "fail"}, None),
    ],
)
def test_a_gate_counts_where_its_controls_vouch_for_it(
    kind: Kind, changed: dict[str, Verdict | None], reason: str | None
) -> None:
    verdicts = {name: verdict for name, verdict in {**GOOD, **changed}.items() if verdict is not None}
    found = reason_not_to_count(kind, verdicts)
    assert found is None if reason is None else reason in str(found)


def test_the_verdict_rests_on_the_gates_that_count_and_names_the_others() -> None:
    counts = judged(0.1, {"unlearned": Estimate(0.0), "original": Estimate(0.9), "retrained": Estimate(0.0)})
    powerless = judged(0.1, {"unlearned": Estimate(0.0, 0.0, 0.5), "original": Estimate(0.0)})
    length = judged(0.1, {"unlearned": Estimate(0.9), "original": Estimate(0.9), "never saw": Estimate(0.5)})
    audit = Audit((counts, replace(powerless, name="other"), replace(length, name="epochs")), {})
    assert audit.counted == (counts,)
    assert audit.verdicts["unlearned"] == "pass"
    record = json.loads(json.dumps(audit.to_json()))
    assert [check["counts"] for check in record["checks"]] == [True, False, False]
    assert record["sentence"] == "Passed: 1 of 1 gates with power pass. This is evidence, not proof."
    assert record["checks"][1]["not_counted"] == "the original does not fail it here"
    assert "measures the length of training" in record["checks"][2]["not_counted"]
    assert Audit((powerless,), {}).verdicts["unlearned"] == "cannot tell"  # no gate has power: nothing is shown


def test_a_stricter_threshold_cannot_take_a_gate_out_of_the_verdict() -> None:
    """By a threshold of 0 the never-saw and the retrained models would fail the gate, and it would not count."""
    among = exactly(0.01, 0.01, 0.01, 0.01, 0.04)
    figures = {"unlearned": Estimate(0.4), "original": Estimate(0.9), "never saw": Estimate(0.049)}
    figures["retrained"] = among[-1]
    for asked in (0.05, 0.0):
        found = judged(0.05, figures, among, asked=asked)
        assert found.not_counted is None
        assert found.verdicts == {"unlearned": "fail", "original": "fail", "never saw": "pass", "retrained": "pass"}
    almost = {**figures, "unlearned": Estimate(0.045)}
    assert judged(0.05, almost, asked=0.05).verdicts["unlearned"] == "pass"
    assert judged(0.05, almost, asked=0.01).verdicts["unlearned"] == "fail"


def test_an_edit_of_the_head_must_fail_a_depth_gate_that_counts() -> None:
    caught = {"unlearned": Estimate(0.0), "original": Estimate(0.9), "head only": Estimate(0.8)}
    assert head_only_escapes([judged(0.1, caught, kind="depth")]) is None
    assert head_only_escapes([judged(0.1, {**caught, "head only": Estimate(0.0)}, kind="depth")]) is not None
    assert head_only_escapes([judged(0.1, caught, kind="forgetting")]) is None  # none was tried
    by_length = judged(0.1, {**caught, "never saw": Estimate(0.5)}, kind="depth")
    assert by_length.verdicts["head only"] == "fail"
    assert "gate on depth that counts" in str(head_only_escapes([by_length]))


def test_an_obstacle_keeps_an_audit_from_passing_and_never_from_failing() -> None:
    def audit(value: float) -> Audit:
        check = judged(0.1, {"unlearned": Estimate(value), "original": Estimate(0.9)})
        return Audit((check,), {}, obstacles=("There are 2 retrained models.",))

    assert audit(0.0).verdicts == {"unlearned": "cannot tell", "original": "fail"}
    assert audit(0.5).verdicts["unlearned"] == "fail"
    assert audit(0.0).to_json()["sentence"].endswith("There are 2 retrained models.")


def test_an_audit_fails_where_one_gate_fails_and_passes_where_all_pass() -> None:
    one = judged(0.1, {"unlearned": Estimate(0.0), "original": Estimate(0.9), "retrained": Estimate(0.0)})
    two = judged(0.1, {"unlearned": Estimate(0.0, 0.0, 0.5), "original": Estimate(0.9), "retrained": Estimate(0.05)})
    audit = Audit((one, two), {})
    assert audit.verdicts == {"unlearned": "cannot tell", "original": "fail", "retrained": "pass"}
    assert json.loads(json.dumps(audit.to_json()))["checks"][1]["figures"]["unlearned"]["high"] == 0.5
    assert overall(["pass"]) == "pass"


# the record


def test_an_undecided_gate_has_no_estimates() -> None:
    result = judged(0.05, {"unlearned": Estimate(0.9), "original": Estimate(0.0)}, exactly(*[0.1] * 5))
    undecided = result.undecided("too few")
    assert (result.allowed, undecided.allowed) == (pytest.approx(0.1), 0.05)
    assert set(undecided.verdicts.values()) == {"cannot tell"}
    assert {estimate.why_not for estimate in undecided.figures.values()} == {"too few"}


def test_the_costs_of_an_audit_are_recorded_and_not_compared() -> None:
    first, second = (Audit((), {"seed": 0}, costs={"answers": seconds}) for seconds in (1.0, 2.0))
    assert first == second
    assert first.to_json()["costs"] == {"answers": 1.0}


def test_the_record_of_a_gate_has_the_fields_of_the_first_edition_and_says_whether_it_counts() -> None:
    record = judged(0.1, {"unlearned": Estimate(0.0, 0.0, 0.5)}).to_json()
    first_edition = Path(__file__).parents[1] / "fixtures/first_edition/class/unlearning/audit.json"
    old = json.loads(first_edition.read_text(encoding="utf-8"))["checks"][0]
    assert record.keys() == old.keys() | {"kind", "counts", "not_counted"}
    assert list(record["figures"]["unlearned"]) == ["value", "low", "high", "why_not"]


def test_every_gate_has_a_name_of_its_own_and_words_for_a_report() -> None:
    assert all(gate.name == name for name, gate in GATES.items())
    for words in ("title", "description"):
        assert len({getattr(gate, words) for gate in GATES.values()}) == len(GATES)
    assert all(gate.description.endswith(".") and not gate.title.endswith(".") for gate in GATES.values())
    assert {gate.kind for gate in GATES.values()} == set(get_args(Kind))


# thresholds


def test_thresholds_are_the_gates_own_or_those_of_a_file(tmp_path: Path) -> None:
    own = read_thresholds()
    assert own["tell_tale_auc"] == 0.65
    assert list(own) == list(GATES)
    file = tmp_path / "mine.json"
    file.write_text('{"tell_tale_auc": 0.6}', encoding="utf-8")
    assert read_thresholds(file) == {"tell_tale_auc": 0.6}
    file.write_text('["no"]', encoding="utf-8")
    with pytest.raises(RequestError, match="cannot be read"):
        read_thresholds(file)


@pytest.mark.parametrize("value", [0.66, 1.0, math.inf, math.nan, -0.1])
def test_no_threshold_may_be_looser_than_the_gates_own(value: float) -> None:
    with pytest.raises(RequestError, match=r"may be stricter than 0\.65, not looser"):
        stricter_thresholds({"tell_tale_auc": value})
    assert stricter_thresholds({"tell_tale_auc": 0.65}) == {"tell_tale_auc": 0.65}


def test_a_threshold_of_an_unknown_gate_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match="Did you mean 'tell_tale_auc'"):
        stricter_thresholds({"tell_tail_auc": 0.5})
