"""Gates and the search for a strength: a run that does nothing or destroys the model is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import famr
from conftest import alg1
from famr.config import FAMR
from famr.data import Data
from famr.errors import GateError
from famr.targets import TargetInputs
from famr.targets.masked import MaskedTarget
from famr.unlearn.search import TRIALS, TrialOutcome, next_factor, require_outcome, search_strength

FINE = TrialOutcome(
    strength=1.0,
    function_strength=0.0,
    loss_before=4.0,
    loss_after=0.1,
    forget_accuracy=0.0,
    chance=0.0,
    retained_before=0.9,
    retained_after=0.9,
    predicted_drift=None,
)
BUDGET = 0.01


def trial_of(forgets_below: float, keeps_above: float) -> Callable[[float], tuple[TrialOutcome, float]]:
    """A model that forgets under weak anchors and keeps its retained accuracy under strong ones."""

    def trial(factor: float) -> tuple[TrialOutcome, float]:
        outcome = replace(
            FINE,
            strength=factor,
            forget_accuracy=0.0 if factor <= forgets_below else 0.5,
            retained_after=0.9 if factor >= keeps_above else 0.5,
        )
        return outcome, factor

    return trial


@pytest.mark.parametrize(
    ("forgets_below", "keeps_above", "trials"),
    [(1.0, 1.0, 1), (0.1, 0.01, 2), (1e3, 5.0, 2), (0.5, 0.2, 3), (1e-3, 1e-6, 4)],
)
def test_a_strength_that_forgets_within_the_budget_is_found(
    forgets_below: float, keeps_above: float, trials: int
) -> None:
    outcomes, factor = search_strength(trial_of(forgets_below, keeps_above), BUDGET, adjustable=True)
    assert keeps_above <= factor <= forgets_below
    assert len(outcomes) == trials


def test_a_budget_no_strength_meets_is_a_gate_that_lists_what_was_tried() -> None:
    with pytest.raises(GateError, match=r"budget of 0\.01") as caught:
        search_strength(trial_of(forgets_below=0.001, keeps_above=1000.0), BUDGET, adjustable=True)
    assert caught.value.exit_code == 7
    assert caught.value.where is not None
    assert caught.value.where.count("forget accuracy") >= 1


def test_the_search_ends() -> None:
    tried = [(10.0**-turn, False, True) for turn in range(TRIALS)]
    assert next_factor(tried[:-1]) == pytest.approx(10.0 ** -(TRIALS - 1))
    assert next_factor(tried) is None


def test_where_no_anchor_has_a_strength_one_trial_is_made() -> None:
    with pytest.raises(GateError) as caught:
        search_strength(trial_of(forgets_below=0.1, keeps_above=0.0), BUDGET, adjustable=False)
    assert str(caught.value.where).count("forget accuracy") == 1


def test_all_anchors_of_a_trial_change_by_the_same_factor(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    hard = FAMR(anchor="kfac", fisher_images=50, function_strength=2e4, epochs=8)  # far too strong at first
    result = famr.forget(original, without_three, hard, device="cpu", monitor=famr.Monitor(track_retain=False, rows=1))
    first, last = result.trials[0], result.trials[-1]
    assert (first.strength, first.function_strength) == (1e2, 2e4)
    assert last.strength < first.strength
    assert last.function_strength / first.function_strength == pytest.approx(last.strength / first.strength)


def test_what_counts_as_forgotten() -> None:
    assert FINE.forgot
    assert not replace(FINE, forget_accuracy=0.02).forgot
    assert replace(FINE, forget_accuracy=0.02, chance=0.01).forgot  # a uniform prediction is correct by chance
    samples = replace(FINE, forget_accuracy=None)
    assert samples.forgot
    assert not replace(samples, loss_after=2.1).forgot
    assert replace(samples, loss_before=1e-5, loss_after=1e-5).forgot  # there was nothing to forget


def test_what_counts_as_lost() -> None:
    assert replace(FINE, retained_after=0.85).lost == pytest.approx(0.05)
    blind = replace(FINE, retained_before=None, retained_after=None)
    assert blind.lost is None
    assert replace(blind, predicted_drift=0.3).lost == 0.3


@pytest.mark.parametrize(
    ("images", "lost", "within"),
    [(500, 5, True), (500, 6, False), (100, 1, True), (100, 2, False), (49, 1, True), (49, 2, False), (8, 1, True)],
)
def test_a_budget_is_one_image_at_least(images: int, lost: int, within: bool) -> None:
    right = images - 3
    outcome = replace(FINE, retained_before=right / images, retained_after=(right - lost) / images, watched=images)
    assert outcome.within(0.01) is within
    assert replace(outcome, watched=None).within(0.01) is (lost / images <= 0.01)


def test_without_retained_images_the_predicted_drift_is_compared_with_the_budget() -> None:
    blind = replace(FINE, retained_before=None, retained_after=None, watched=None)
    assert blind.within(0.01)
    assert replace(blind, predicted_drift=0.009).within(0.01)
    assert not replace(blind, predicted_drift=0.011).within(0.01)


def test_gates_of_every_run() -> None:
    require_outcome(FINE)
    with pytest.raises(GateError, match="next to nothing"):
        require_outcome(replace(FINE, loss_after=3.9))
    with pytest.raises(GateError, match="destroyed"):
        require_outcome(replace(FINE, retained_after=0.4))
    require_outcome(replace(FINE, retained_before=None, retained_after=None))


def test_a_run_that_does_nothing_is_a_gate_error_where_the_monitor_has_gates(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    still = alg1(learning_rate=1e-12, epochs=1)
    famr.forget(original, without_three, still, device="cpu", monitor=famr.Monitor(track_retain=False))
    with pytest.raises(GateError, match="next to nothing"):
        famr.forget(original, without_three, still, device="cpu", monitor=famr.Monitor(track_retain=False, gates=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--paper", "--learning-rate", "1e-12", "--epochs", 1), "next to nothing"),
        (("--paper", "--learning-rate", "3e-3", "--epochs", 3), "destroyed"),
        (("--learning-rate", "1e-9", "--epochs", 1), "No strength"),
    ],
)
def test_gates_on_the_command_line_write_nothing(
    run: Callable[..., tuple[int, str, str]],
    original_run: Path,
    tmp_path: Path,
    options: tuple[object, ...],
    words: str,
) -> None:
    common = ("--model", original_run, "--data", "digits", "--class", "3", "--device", "cpu", "-q")
    code, _, err = run("forget", *common, *options, "--output-dir", tmp_path / "run")
    assert code == 7, err
    assert words in err
    assert "to do:" in err
    assert not list(tmp_path.iterdir())


def test_the_chosen_strength_and_every_trial_are_recorded(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    result = famr.forget(original, without_three, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.strength == result.trials[-1].strength
    recorded = result.to_json()["trials"]
    assert [trial["strength"] for trial in recorded] == [trial.strength for trial in result.trials]
    assert recorded[-1]["retained_before"] is not None


def test_every_trial_has_the_target_of_the_first_which_is_built_once(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    temperatures: list[float | None] = []
    build = MaskedTarget.build

    def noted(inputs: TargetInputs) -> MaskedTarget:
        target = build(inputs)
        temperatures.append(target.temperature)
        return target

    monkeypatch.setattr(MaskedTarget, "build", noted)
    hard = FAMR(function_strength=2e4, epochs=4)  # far too strong at first
    result = famr.forget(original, without_three, hard, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert len(result.trials) > 1
    assert temperatures == [result.method.temperature]
    last = result.trials[-1]
    alone = replace(hard, strength=last.strength, function_strength=last.function_strength)
    again = famr.forget(original, without_three, alone, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert again.model.digest() == result.model.digest()
    assert again.method.temperature == result.method.temperature


def test_strength_takes_a_number_or_auto(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = run(
        "forget", "--model", "x", "--data", "digits", "--strength", "strong", "--output-dir", tmp_path / "r"
    )
    assert code == 2
    assert "a number or auto" in err


def test_without_retained_images_the_predicted_drift_is_the_budget(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    sketch = famr.take_sketch(original, digits, images=100, device="cpu")
    alone = famr.forget_only(without_three.forget)
    result = famr.forget(original, alone, sketch=sketch, device="cpu", monitor=famr.Monitor(rows=1))
    assert result.trials[-1].retained_before is None
    assert result.trials[-1].predicted_drift == result.trials[-1].lost
