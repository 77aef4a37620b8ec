"""Gates and the search for a strength: a run that does nothing or destroys the model is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import famr
from conftest import alg1, styled
from famr.config import FAMR
from famr.data import Data
from famr.errors import GateError
from famr.metrics.paired import loss_p_value
from famr.metrics.predictions import UNLABELLED
from famr.runs.resume import ResumeState
from famr.targets import TargetInputs
from famr.targets.margins import margins
from famr.targets.masked import MaskedTarget
from famr.targets.reference import ReferenceTarget
from famr.targets.uniform import UniformTarget
from famr.unlearn.criteria import class_forgetting, distance_forgetting, sample_forgetting
from famr.unlearn.history import FollowedRun, follow
from famr.unlearn.problem import Problem
from famr.unlearn.search import (
    SIGNIFICANCE,
    TRIALS,
    TrialOutcome,
    best_trial,
    next_factor,
    require_outcome,
    search_strength,
)

FINE = TrialOutcome(
    strength=1.0,
    function_strength=0.0,
    loss_before=4.0,
    loss_after=0.1,
    forget_accuracy=0.0,
    chance=0.0,
    forgetting=class_forgetting(0.0, 0.0),
    retained_before=0.9,
    retained_after=0.9,
    predicted_drift=None,
)
BUDGET = 0.01
QUIET = famr.Monitor(track_retain=False, rows=1)


def trial_of(forgets_below: float, keeps_above: float) -> Callable[[float], tuple[TrialOutcome, float]]:
    """A model that forgets under weak anchors and keeps its retained accuracy under strong ones."""

    def trial(factor: float) -> tuple[TrialOutcome, float]:
        outcome = replace(
            FINE,
            strength=factor,
            loss_after=factor,
            forgetting=class_forgetting(0.0 if factor <= forgets_below else 0.5, 0.0),
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
    assert str(caught.value.where).count("forget accuracy") == 1  # it neither forgot nor kept: no strength can help
    with pytest.raises(GateError) as caught:
        search_strength(trial_of(forgets_below=0.0, keeps_above=0.0), BUDGET, adjustable=True)
    assert str(caught.value.where).count("forget accuracy 0.5 (at most 0.01)") == TRIALS


def test_two_trials_that_end_alike_end_the_search() -> None:
    tried: list[float] = []

    def trial(factor: float) -> tuple[TrialOutcome, float]:
        tried.append(factor)
        return replace(FINE, strength=factor, forgetting=class_forgetting(0.3, 0.0)), factor

    with pytest.raises(GateError, match="best trial is 1 of 2"):
        search_strength(trial, BUDGET, adjustable=True)
    assert tried == [1.0, 0.1]


@pytest.mark.parametrize(
    "change",
    [{"loss_after": 0.11}, {"forgetting": class_forgetting(0.001, 0.0)}, {"retained_after": 0.899}],
    ids=lambda change: next(iter(change)),
)
def test_trials_end_alike_only_where_they_forgot_and_lost_the_same(change: dict[str, object]) -> None:
    assert FINE.ended_like(replace(FINE, strength=10.0))
    assert not FINE.ended_like(replace(FINE, **change))  # type: ignore[arg-type]


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
    hard = FAMR(  # far too strong at first
        effort="quick", anchor="kfac", fisher_images=50, function_strength=2e4, epochs=8
    )
    result = famr.forget(original, without_three, hard, device="cpu", monitor=famr.Monitor(track_retain=False, rows=1))
    first, last = result.trials[0], result.trials[-1]
    assert (first.strength, first.function_strength) == (1e2, 2e4)
    assert last.strength < first.strength
    assert last.function_strength / first.function_strength == pytest.approx(last.strength / first.strength)


def test_the_best_trial_forgot_with_the_smallest_loss_or_forgot_most_within_the_budget() -> None:
    little, much = class_forgetting(0.5, 0.0), class_forgetting(0.1, 0.0)
    forgot = [replace(FINE, retained_after=after) for after in (0.7, 0.8, 0.6)]
    kept = [replace(FINE, forgetting=little), replace(FINE, forgetting=much)]
    neither = replace(FINE, forgetting=class_forgetting(0.02, 0.0), retained_after=0.5)
    assert best_trial([*kept, neither, *forgot], BUDGET) == 4
    assert best_trial([neither, *kept], BUDGET) == 2
    assert best_trial([neither], BUDGET) == 0


def test_the_advice_has_all_digits_and_names_only_anchors_that_the_run_has() -> None:
    thirds = replace(FINE, strength=1 / 3, function_strength=2 / 3, forgetting=class_forgetting(0.5, 0.0))
    with pytest.raises(GateError) as caught:
        search_strength(lambda factor: (thirds, factor), BUDGET, adjustable=False)
    assert caught.value.fix is not None
    assert f"`--strength {1 / 3!r} --function-strength {2 / 3!r}`" in caught.value.fix
    with pytest.raises(GateError) as caught:
        search_strength(lambda factor: (replace(thirds, function_strength=0.0), factor), BUDGET, adjustable=False)
    assert f"`FAMR(strength={1 / 3!r})`" in str(caught.value.fix)


SEARCHES = {
    "forgot over the budget": FAMR(
        effort="quick",
        optimiser="adam",
        learning_rate=2e-3,
        function_strength=1e-3,
        strength="auto",
        epochs=2,
        budget=0.001,
    ),
    "next to nothing, within the budget": FAMR(learning_rate=1e-9, epochs=1),
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, list[Tensor]]]:
    """The strengths of each run of Alg. 1, and the weights it ended with."""
    ended: list[tuple[float, float, list[Tensor]]] = []

    def noted(problem: Problem, *arguments: Any) -> FollowedRun:
        run = follow(problem, *arguments)
        weights = [parameter.detach().clone() for parameter in problem.session.parameters]
        ended.append((problem.config.strength, problem.config.function_strength, weights))
        return run

    monkeypatch.setattr("famr.unlearn.trials.follow", noted)
    return ended


def advised(error: str, runs: list[tuple[float, float, list[Tensor]]]) -> tuple[list[str], str, list[Tensor]]:
    """The flags and the Python settings that an error advises, and the weights of the trial that it calls the best."""
    number, count = re.search(r"The best trial is (\d) of (\d)", error).groups()  # type: ignore[union-attr]
    flags, python = re.search(r"give `(.*?)`, in Python `(.*?)`", error).groups()  # type: ignore[union-attr]
    assert len(runs) == int(count)
    return flags.split(), python, runs[int(number) - 1][2]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_settings_that_the_error_advises_make_the_best_trial_again(
    original: famr.Classifier,
    without_three: famr.Splits,
    tmp_path: Path,
    runs: list[tuple[float, float, list[Tensor]]],
    name: str,
) -> None:
    method, state = SEARCHES[name], ResumeState(tmp_path / "run.unfinished", every=0.0)
    monitor = replace(QUIET, resume_state=state)
    with pytest.raises(GateError, match=name.split(", ")[-1].removeprefix("forgot ")) as caught:
        famr.forget(original, without_three, method, device="cpu", monitor=monitor)
    assert not state.folder.exists()  # else the advised run would be refused as another one
    _, python, best = advised(str(caught.value), runs)
    taken = eval(python, {"FAMR": lambda **settings: replace(method, **settings)})
    again = famr.forget(original, without_three, taken, device="cpu", monitor=monitor)
    assert again.trials == ()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(runs[-1][2], best, strict=True))


@pytest.mark.parametrize("name", SEARCHES)
def test_the_flags_that_the_error_advises_make_the_best_trial_again(
    run: Callable[..., tuple[int, str, str]],
    original_run: Path,
    tmp_path: Path,
    runs: list[tuple[float, float, list[Tensor]]],
    name: str,
) -> None:
    given = {key: value for key, value in asdict(SEARCHES[name]).items() if value != getattr(FAMR(), key)}
    options = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
    common = ("--model", original_run, "--data", "digits", "--class", "3", "--device", "cpu", "-q", *options)
    code, _, err = run("forget", *common, "--output-dir", tmp_path / "run")
    assert code == 7, err
    flags, _, best = advised(err, runs)
    assert ("--no-gates" in flags) is ("next to nothing" in name)
    code, _, err = run("forget", *common, *flags, "--output-dir", tmp_path / "run")
    assert code == 0, err
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(runs[-1][2], best, strict=True))


def test_classes_are_forgotten_where_they_are_recognised_by_chance_at_most() -> None:
    assert class_forgetting(0.01, chance=0.0).met
    assert not class_forgetting(0.02, chance=0.0).met
    assert class_forgetting(0.02, chance=0.01).met  # a uniform prediction is correct by chance


@pytest.mark.parametrize(("unlearned", "met"), [(6.0, False), (5.1, False), (5.0, True), (4.0, True), (3.0, True)])
def test_samples_are_forgotten_where_their_log_odds_went_half_of_the_way(unlearned: float, met: bool) -> None:
    forgetting = sample_forgetting(6.0, unlearned, target=4.0, kl=(0.5, 0.4))
    assert forgetting.met is met
    assert forgetting.value == pytest.approx((unlearned - 4) / 2)


def test_a_target_that_asks_for_no_move_leaves_nothing_to_forget() -> None:
    assert sample_forgetting(6.0, 6.0, target=6.5, kl=(0.5, 0.5)).met
    assert sample_forgetting(6.0, 6.1, target=5.995, kl=(0.5, 0.5)).met
    reached = sample_forgetting(6.0, 6.0, target=4.0, kl=(0.004, 0.005))
    assert reached.met
    assert reached == distance_forgetting((0.004, 0.005))
    assert (reached.value, reached.limit) == (0.004, 0.01)


@pytest.mark.parametrize(
    ("kl", "gram", "met"),
    [
        ((1.0, 0.5), None, True),
        ((1.0, 0.6), None, False),
        ((1.0, 0.4), (8.0, 5.0), False),
        ((1.0, 0.6), (8.0, 1.0), False),
        ((1.0, 0.4), (8.0, 4.0), True),
        (None, (8.0, 4.0), True),
        ((0.005, 0.02), (8.0, 5.0), False),
    ],
)
def test_each_distance_to_the_target_is_halved(
    kl: tuple[float, float] | None, gram: tuple[float, float] | None, met: bool
) -> None:
    assert distance_forgetting(kl, gram).met is met


@pytest.mark.parametrize("target", [ReferenceTarget, UniformTarget])
def test_the_log_odds_of_a_target_are_those_of_its_probabilities(target: type[ReferenceTarget | UniformTarget]) -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1])
    q = torch.full((3,), 1 / 3) if target is UniformTarget else logits.softmax(-1)
    expected = margins(torch.zeros(5, 3) if target is UniformTarget else logits, labels)
    torch.testing.assert_close(target(q).true_class_margins(labels), expected)
    certain = target(torch.eye(3)[labels]).true_class_margins(labels)
    assert torch.isfinite(certain).all()


def test_what_counts_as_lost() -> None:
    assert replace(FINE, retained_after=0.85).lost == pytest.approx(0.05)
    blind = replace(FINE, retained_before=None, retained_after=None)
    assert blind.lost is None
    assert replace(blind, predicted_drift=0.3).lost == 0.3


def with_changes(images: int, lost: int, gained: int = 0) -> TrialOutcome:
    right = images - 3
    after = (right - lost + gained) / images
    counts = {"watched": images, "lost_images": lost, "gained_images": gained}
    return replace(FINE, retained_before=right / images, retained_after=after, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "lost", "gained", "within"),
    [
        (498, 5, 0, True),
        (498, 6, 0, True),  # one image over the budget is no evidence
        (498, 9, 0, True),
        (498, 10, 0, False),
        (498, 12, 3, True),  # the more images change, the less a difference says
        (498, 30, 0, False),
        (100, 4, 0, True),
        (100, 5, 0, False),
        (8, 1, 0, True),
        (8, 3, 0, True),
        (8, 4, 0, False),
        (1, 1, 0, True),
        (498, 0, 4, True),
    ],
)
def test_only_a_loss_that_is_significantly_above_the_budget_exceeds_it(
    images: int, lost: int, gained: int, within: bool
) -> None:
    assert with_changes(images, lost, gained).within(BUDGET) is within


def test_the_p_value_of_a_loss_is_binomial_where_no_image_was_gained() -> None:
    from scipy.stats import binom

    for lost in range(10):  # up to here the most likely probability of a gain is zero
        assert loss_p_value(lost, 0, 498, 0.01) == pytest.approx(float(binom.sf(lost - 1, 498, 0.01)))


def test_the_p_value_of_a_loss_is_the_sum_over_all_outcomes_at_the_likeliest_nuisance() -> None:
    """Against the probabilities of all outcomes, and a search of the maximum of the likelihood."""
    images, lost, gained, margin = 12, 4, 1, 0.1

    def log_likelihood(p_gain: Tensor) -> Tensor:
        same = images - lost - gained
        return lost * (p_gain + margin).log() + gained * p_gain.log() + same * (1 - 2 * p_gain - margin).log()

    grid = torch.linspace(1e-4, 0.4499, 100_001, dtype=torch.float64)
    p_gain = float(grid[log_likelihood(grid).argmax()])
    outcomes = torch.distributions.Multinomial(
        images, torch.tensor([p_gain + margin, p_gain, 1 - 2 * p_gain - margin], dtype=torch.float64)
    )
    every = [(b, c) for b in range(images + 1) for c in range(images + 1 - b) if b - c >= lost - gained]
    counts = torch.tensor([[b, c, images - b - c] for b, c in every], dtype=torch.float64)
    expected = float(outcomes.log_prob(counts).exp().sum())
    assert loss_p_value(lost, gained, images, margin) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("p_gain", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("images", [8, 100, 498])
def test_a_loss_of_the_budget_itself_is_rejected_in_one_of_twenty_cases_at_most(images: int, p_gain: float) -> None:
    generator = torch.Generator().manual_seed(0)
    p_loss, draws = p_gain + BUDGET, 1000
    uniform = torch.rand(draws, images, generator=generator)
    lost = (uniform < p_loss).sum(dim=1).tolist()
    gained = ((uniform >= p_loss) & (uniform < p_loss + p_gain)).sum(dim=1).tolist()
    rejected = sum(loss_p_value(b, c, images, BUDGET) <= SIGNIFICANCE for b, c in zip(lost, gained, strict=True))
    assert rejected / draws <= SIGNIFICANCE + 0.015  # two standard errors


def test_without_retained_images_the_predicted_drift_is_compared_with_the_budget() -> None:
    blind = replace(FINE, retained_before=None, retained_after=None, watched=None)
    assert blind.within(0.01)
    assert replace(blind, predicted_drift=0.009).within(0.01)
    assert not replace(blind, predicted_drift=0.011).within(0.01)


@pytest.mark.parametrize("watched", [None, 100])
def test_a_record_without_criterion_and_counts_is_judged_as_it_was(watched: int | None) -> None:
    record = {
        name: value
        for name, value in asdict(FINE).items()
        if name not in ("forgetting", "lost_images", "gained_images")
    }
    old = TrialOutcome.from_json({**record, "watched": watched, "retained_after": 0.89})
    assert old.forgot
    assert old.within(BUDGET)
    assert old.within(0.005) is (watched == 100)  # one image of a hundred
    samples = {**record, "forget_accuracy": None}
    assert TrialOutcome.from_json({**samples, "loss_after": 2.0}).forgot
    assert not TrialOutcome.from_json({**samples, "loss_after": 2.1}).forgot


def test_a_trial_comes_back_from_its_record() -> None:
    trial = with_changes(498, lost=12, gained=1)
    assert TrialOutcome.from_json(asdict(trial)) == trial


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


def test_the_criterion_fits_the_request(original: famr.Classifier, digits: Data) -> None:
    negative = styled(digits)
    fast = {"learning_rate": 2e-3}
    by_style = {**fast, "beta": None, "style_layer": "blocks.0"}
    requests: dict[str, tuple[Data, famr.Request, dict[str, Any]]] = {
        "forget accuracy": (digits, famr.Request(classes=["3"]), {}),
        "remaining share of the way": (digits, famr.Request(samples=list(range(20))), fast),
        "remaining share of the way from the original's log-odds": (
            negative,
            famr.Request(concept=("style", "negative")),
            fast,
        ),
        "KL and Gram distance": (negative, famr.Request(style=("style", "negative")), by_style),
        "Gram distance": (negative, famr.Request(style=("style", "negative")), {**by_style, "alpha": 0.0}),
    }
    for words, (data, request, settings) in requests.items():
        method = FAMR(target="uniform", function_strength=1e-3, epochs=8, budget=0.95, **settings)
        result = famr.forget(original, famr.split(data, request), method, device="cpu", monitor=QUIET)
        forgetting = result.trials[-1].forgetting
        assert forgetting.criterion.startswith(words)
        assert result.to_json()["trials"][-1]["forgetting"] == asdict(forgetting)
        assert forgetting.value <= forgetting.limit


def test_images_without_labels_are_judged_by_their_kl(original: famr.Classifier, digits: Data) -> None:
    images = torch.rand(20, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    loader = [(images, torch.full((20,), UNLABELLED))]
    result = famr.forget(original, forget=loader, method=FAMR(epochs=20), device="cpu", monitor=QUIET)
    assert "KL to the target" in result.trials[-1].forgetting.criterion


def test_the_images_that_changed_are_counted(original: famr.Classifier, without_three: famr.Splits) -> None:
    result = famr.forget(original, without_three, device="cpu", monitor=QUIET)
    trial = result.trials[-1]
    assert trial.watched is not None
    assert trial.lost == pytest.approx((trial.lost_images - trial.gained_images) / trial.watched, abs=1e-6)  # type: ignore[operator]


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
    hard = FAMR(effort="quick", function_strength=2e4, epochs=4)  # far too strong at first
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
