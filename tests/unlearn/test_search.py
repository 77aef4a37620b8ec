"""Gates and the search for a strength: neither nothing nor ruin, and never silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import famr
from conftest import alg1
from famr.config import FAMR
from famr.data import Data
from famr.errors import GateError
from famr.unlearn import forget_loss
from famr.unlearn.search import START, TRIALS, Outcome, next_firmness, require_outcome, seek_strength, with_firmness

FINE = Outcome(
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
METHOD = FAMR(target="masked", anchor="kfac", function_strength=5.0, epochs=1)


def world(forgets_below: float, keeps_above: float) -> Callable[[FAMR], tuple[Outcome, float]]:
    """A model that forgets where it is held loosely and keeps where it is held firmly."""

    def attempt(method: FAMR) -> tuple[Outcome, float]:
        firmness = method.settled_strength / START["natural", "kfac"]
        outcome = replace(
            FINE,
            strength=method.settled_strength,
            forget_accuracy=0.0 if firmness <= forgets_below else 0.5,
            retained_after=0.9 if firmness >= keeps_above else 0.5,
        )
        return outcome, firmness

    return attempt


@pytest.mark.parametrize(
    ("forgets_below", "keeps_above", "tries"),
    [(1.0, 1.0, 1), (0.1, 0.01, 2), (1e3, 5.0, 2), (0.5, 0.2, 3), (1e-3, 1e-6, 4)],
)
def test_a_strength_that_does_both_is_found(forgets_below: float, keeps_above: float, tries: int) -> None:
    outcomes, (firmness,) = seek_strength(world(forgets_below, keeps_above), METHOD)
    assert keeps_above <= firmness <= forgets_below
    assert len(outcomes) == tries


def test_a_budget_no_strength_meets_is_a_gate_that_says_what_was_tried() -> None:
    with pytest.raises(GateError, match=r"budget of 0\.01") as caught:
        seek_strength(world(forgets_below=0.001, keeps_above=1000.0), METHOD)
    assert caught.value.exit_code == 7
    assert caught.value.where is not None
    assert caught.value.where.count("forget accuracy") >= 1


def test_the_search_ends() -> None:
    tried = [(10.0**-turn, False, True) for turn in range(TRIALS)]
    assert next_firmness(tried[:-1]) == pytest.approx(10.0 ** -(TRIALS - 1))
    assert next_firmness(tried) is None


def test_where_no_strength_matters_one_run_is_enough() -> None:
    plain = FAMR(target="uniform", optimiser="natural", anchor="l2", function_strength=0.0, epochs=1)
    with pytest.raises(GateError) as caught:
        seek_strength(lambda method: (replace(FINE, strength=method.settled_strength, forget_accuracy=0.5), 0), plain)
    assert str(caught.value.where).count("forget accuracy") == 1


def test_every_anchor_is_made_firmer_together() -> None:
    firm = with_firmness(METHOD, 10.0)
    assert firm.settled_strength == 10 * START["natural", "kfac"]
    assert firm.function_strength == 50.0


def test_what_counts_as_forgotten() -> None:
    assert FINE.forgot
    assert not replace(FINE, forget_accuracy=0.02).forgot
    assert replace(FINE, forget_accuracy=0.02, chance=0.01).forgot  # a uniform answer is right by chance
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
    ("images", "lost", "kept"),
    [(500, 5, True), (500, 6, False), (100, 1, True), (100, 2, False), (49, 1, True), (49, 2, False), (8, 1, True)],
)
def test_a_budget_is_one_image_at_least(images: int, lost: int, kept: bool) -> None:
    right = images - 3
    found = replace(FINE, retained_before=right / images, retained_after=(right - lost) / images, watched=images)
    assert found.kept(0.01) is kept
    assert replace(found, watched=None).kept(0.01) is (lost / images <= 0.01)


def test_what_is_not_seen_on_images_is_held_to_the_budget() -> None:
    blind = replace(FINE, retained_before=None, retained_after=None, watched=None)
    assert blind.kept(0.01)
    assert replace(blind, predicted_drift=0.009).kept(0.01)
    assert not replace(blind, predicted_drift=0.011).kept(0.01)


def test_gates_of_every_run() -> None:
    require_outcome(FINE)
    with pytest.raises(GateError, match="next to nothing"):
        require_outcome(replace(FINE, loss_after=3.9))
    with pytest.raises(GateError, match="destroyed"):
        require_outcome(replace(FINE, retained_after=0.4))
    require_outcome(replace(FINE, retained_before=None, retained_after=None))


def test_a_run_that_does_nothing_is_a_gate_where_gates_are_asked_for(
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


def test_the_strength_found_and_every_trial_are_recorded(original: famr.Classifier, without_three: famr.Splits) -> None:
    result = famr.forget(original, without_three, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.settled_strength == result.trials[-1].strength
    recorded = result.to_json()["trials"]
    assert [trial["strength"] for trial in recorded] == [trial.strength for trial in result.trials]
    assert recorded[-1]["retained_before"] is not None


def test_every_attempt_aims_where_the_first_did_and_nobody_asks_again(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    target = forget_loss._target

    def noted(*given: Any) -> Any:
        found = target(*given)
        asked.append(found[0].temperature)
        return found

    monkeypatch.setattr(forget_loss, "_target", noted)
    hard = FAMR(function_strength=2e4, epochs=4)  # far too firm to begin with
    result = famr.forget(original, without_three, hard, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert len(result.trials) > 1
    assert asked == [result.method.temperature]
    last = result.trials[-1]
    alone = replace(hard, strength=last.strength, function_strength=last.function_strength)
    again = famr.forget(original, without_three, alone, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert again.model.digest() == result.model.digest()
    assert again.method.temperature == result.method.temperature


def test_strength_takes_a_number_or_auto(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = run(
        "forget", "--model", "x", "--data", "digits", "--strength", "firm", "--output-dir", tmp_path / "r"
    )
    assert code == 2
    assert "a number or auto" in err


def test_without_retained_images_the_predicted_drift_is_the_budget(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    sketch = famr.take_sketch(original, digits, images=100, device="cpu")
    alone = famr.forget_only(without_three.forget)
    result = famr.forget(original, alone, sketch=sketch, device="cpu")
    assert result.trials[-1].retained_before is None
    assert result.trials[-1].predicted_drift == result.trials[-1].lost
