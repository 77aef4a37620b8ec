"""What a run of `famr bench speed` is asked to show, decided from its figures alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from famr.bench.speed import done
from famr.bench.speed_alternatives import DEFAULT, OURS, PLAIN
from famr.bench.speed_loops import POINTS, largest_of_accuracies

NOISE = 0.05
"""By how much two times of a run may differ where they are called alike."""
NO_SLOWER = f"our loop is no slower than the plain loop, {100 * NOISE:.0f} % of noise aside"
NEAR = 0.1
"""How far an exponent of growth may lie from what it should be."""
OF_CEILING = 0.55
H200_SECONDS = {"ViT-Ti": 0.5, "ViT-B": 1.5, "ViT-L": 4.0}
"""For 5,000 sample passes at 224 px on an H200."""
AS_ASKED = {"images": 500, "epochs": 10}


class Check(NamedTuple):
    """A claim, what was found, and whether it holds."""

    claim: str
    found: str
    holds: bool


def checks(content: Mapping[str, Any]) -> list[Check]:
    """Every claim that the stages which were run can decide."""
    return [
        *_loops(content),
        *_fresh(content),
        *(_memory(each) for each in done(content, "memory")),
        *(check for each in done(content, "growth") for check in _growth(each)),
        *(check for each in done(content, "alternatives") for check in _alternatives(each["result"])),
    ]


def _on_h200(content: Mapping[str, Any]) -> bool:
    return "H200" in content["environment"]["hardware"]


def _seconds_allowed(content: Mapping[str, Any], name: str) -> float | None:
    """For the whole optimisation of that network, where the run is the one for which a limit was set."""
    as_asked = all(content["settings"][setting] == value for setting, value in AS_ASKED.items())
    return H200_SECONDS.get(name) if _on_h200(content) and as_asked else None


def _loops(content: Mapping[str, Any]) -> Iterator[Check]:
    for each in done(content, "loops"):
        name, found = each["model"], each["result"]
        ours, agreement = found["ours"], found["agreement"]
        yield Check(
            f"{name}: {NO_SLOWER}",
            f"{found['ratio']:.2f} of its time; {found['steady_ratio']:.2f} once settled",
            found["ratio"] <= 1 + NOISE,
        )
        yield same_accuracies(name, agreement)
        yield Check(
            f"{name}: weights equal the plain loop's within {agreement['tolerance']:g} of the way they went",
            f"{agreement['weights_apart']:.1e}",
            agreement["weights_apart"] <= agreement["tolerance"],
        )
        if allowed := _seconds_allowed(content, name):
            yield Check(
                f"{name}: the whole optimisation takes at most {allowed:g} s, its first call included",
                f"{ours['first']:.2f} s",
                ours["first"] <= allowed,
            )
            if late := found.get("late"):
                yield Check(
                    f"{name}: so does editing the last layers, as the default method does",
                    f"{late['first']:.2f} s",
                    late["first"] <= allowed,
                )
        if _on_h200(content) and name in ("ViT-B", "ViT-L") and found["floor"] is not None:
            share = ours["share_of_ceiling"]
            yield Check(
                f"{name}: steps reach {100 * OF_CEILING:.0f} % of the ceiling",
                f"{100 * share:.0f} %",
                share >= OF_CEILING,
            )


NO_TIE = (
    "It is no tie where the plain loop has the right class ahead or behind by more than rounding moved that lead on "
    "any image."
)


def same_accuracies(name: str, agreement: Mapping[str, Any]) -> Check:
    """Within what was asked; where they are not, on the images at least whose answer rounding does not decide."""
    apart, clear = largest_of_accuracies(agreement["gap"]), agreement.get("ties_aside")
    claim = f"{name}: accuracies equal the plain loop's within {100 * POINTS:g} points"
    if not clear:
        return Check(claim, f"{100 * apart:.2f} points apart", apart <= POINTS)
    told = {"forget_accuracy": "forgotten", "retain_accuracy": "retained"}
    parts = [
        f"{100 * each['share']:.0f} % of the {told[which]} are no ties"
        + ("" if each["gap"] is None else f", {100 * each['gap']:.2f} points apart")
        for which, each in clear.items()
    ]
    return Check(
        f"{claim}, ties aside",
        f"{100 * apart:.2f} points apart; {'; '.join(parts)}",
        all(each["gap"] is not None and each["gap"] <= POINTS for each in clear.values()),
    )


def _fresh(content: Mapping[str, Any]) -> Iterator[Check]:
    for each in done(content, "fresh"):
        if allowed := _seconds_allowed(content, each["model"]):
            took = each["result"]["median"]
            yield Check(
                f"{each['model']}: the first call of a fresh process takes at most {allowed:g} s",
                f"{took:.3f} s",
                took <= allowed,
            )


def _memory(each: Mapping[str, Any]) -> Check:
    share = each["result"]["share_of_allowed"]
    return Check(
        f"{each['model']}: peak memory at most that of fine-tuning and one copy of the weights, and 5 %",
        "not measurable" if share is None else f"{100 * share:.0f} % of that",
        share is not None and share <= 1,
    )


def _growth(each: Mapping[str, Any]) -> Iterator[Check]:
    forget, data = each["result"]["with_forget"], each["result"]["with_data"]
    yield Check(
        f"{each['model']}: cost grows linearly with the images to forget",
        f"exponent {forget['exponent_of_last']:.2f} over the last decade, {forget['exponent']:.2f} over two",
        abs(forget["exponent_of_last"] - 1) <= NEAR,
    )
    yield Check(
        f"{each['model']}: cost does not grow with the data that is retained",
        f"exponent {data['exponent']:+.2f} over two decades",
        data["exponent"] <= NEAR,
    )


def _alternatives(result: Mapping[str, Any]) -> Iterator[Check]:
    rows = {row["method"]: row for row in result["equal_passes"]["rows"]}
    others = [name for name in rows if name not in (OURS, DEFAULT, PLAIN)]
    yield Check(
        f"digits: {NO_SLOWER}",
        f"{1 / rows[PLAIN]['times_ours']:.2f} of its time",
        rows[PLAIN]["times_ours"] >= 1 / (1 + NOISE),
    )
    for ours in (OURS, DEFAULT):
        for name in others:
            times = rows[name]["times_ours"] / rows[ours]["times_ours"]
            yield Check(f"digits, as many sample passes: {ours} is faster than {name}", f"{times:.2f} times", times > 1)
    by_result = {row["method"]: row for row in result["equal_result"]["rows"]}
    ours = by_result[DEFAULT]
    for name in others:
        other = by_result[name]
        if not (ours["reached"] and other["reached"]):
            missing = name if ours["reached"] else DEFAULT
            found = f"{missing} did not get there in {by_result[missing]['tried']} tries"
        else:
            found = f"{other['seconds'] / ours['seconds']:.2f} times"
        faster = not other["reached"] or other["seconds"] > ours["seconds"]
        yield Check(
            f"digits, the same result: {DEFAULT} is faster than {name}", found, bool(ours["reached"] and faster)
        )
