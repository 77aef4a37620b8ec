"""What `FAMR()` picks, that it says so, and how it compares with retraining on digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import famr
from conftest import SHIFTS, small_vit
from famr.config import FAMR, Effort, ResolvedFAMR
from famr.data import Data
from famr.data.request import Kind
from famr.engine.inference import predict
from famr.engine.plain import PlainEngine
from famr.errors import RequestError
from famr.targets import TARGETS
from famr.training import Trained
from famr.unlearn.inputs import Available
from famr.unlearn.resolve import enough_epochs, resolve

FORGET_IMAGES = 4 * 128
"""Four steps a pass."""


def available(kind: Kind, retained: bool = True, held_out: bool = True, sketch: bool = False) -> Available:
    return Available(kind, retained, held_out, sketch, FORGET_IMAGES)


def resolved(method: FAMR, found: Available, sharded: bool = False) -> tuple[ResolvedFAMR, str]:
    engine = PlainEngine(torch.device("cpu"))
    return resolve(method, found, ShardedEngine(engine.device) if sharded else engine)


class ShardedEngine(PlainEngine):
    """One that divides weights among processes."""

    @property
    def sharded(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("data", "target", "anchor"),
    [
        (available("class"), "masked", "l2"),
        (available("concept"), "masked", "l2"),
        (available("samples"), "reference", "l2"),
        (available("style"), "probe", "l2"),
        (available("samples", retained=False, sketch=True), "reference", "kfac"),
        (available("class", retained=False, held_out=False, sketch=True), "masked", "kfac"),
        (available("images", retained=False, held_out=False), "uniform", "l2"),
    ],
)
def test_target_and_anchor_follow_from_the_request_and_the_data(data: Available, target: str, anchor: str) -> None:
    method = FAMR(beta=None, style_layer="x") if data.kind == "style" else FAMR()
    config, why = resolved(method, data)
    assert (config.target, config.anchor) == (target, anchor)
    assert target in why
    assert anchor in why
    assert "\n" not in why
    assert bool(config.function_strength) == data.retained


def test_curvature_is_used_without_a_function_space_anchor_or_where_all_layers_change() -> None:
    natural = {"optimiser": "natural"}
    for method in (FAMR(function_strength=0.0), FAMR(edited_share=1.0)):
        assert resolved(replace(method, **natural), available("class"))[0].anchor == "kfac"  # type: ignore[arg-type]
    assert resolved(FAMR(function_strength=2.0), available("class"))[0].anchor == "l2"


def test_settings_of_the_user_are_not_changed() -> None:
    paper = FAMR.paper()
    config, why = resolved(paper, available("class"))
    assert (config.to_json(), why) == (paper.to_json(), "")
    config, why = resolved(FAMR(target="uniform", epochs=3), available("class"))
    assert (config.target, config.epochs) == ("uniform", 3)
    assert "target" not in why


def test_every_optimiser_has_a_rate_of_its_own() -> None:
    rates = {
        kind: resolved(FAMR(optimiser=kind), available("class"))[0].learning_rate for kind in ("natural", "sgd", "adam")
    }
    assert rates == {"natural": 0.5, "sgd": 1e-4, "adam": 1e-4}


def test_a_temperature_is_for_targets_that_have_one() -> None:
    temperatures = {
        name: resolved(FAMR(target=name, temperature=0.4), available("class"))[0].temperature
        for name, target in TARGETS.items()
        if not target.needs_proxy
    }
    assert temperatures == {"uniform": None, "masked": 0.4, "reference": None, "tempered": 0.4, "probe": None}


def test_small_forget_sets_are_seen_more_often() -> None:
    assert [enough_epochs(steps, natural=True) for steps in (1, 2, 4, 16, 1000)] == [48, 24, 12, 3, 2]
    assert [enough_epochs(steps, natural=False) for steps in (1, 4, 1000)] == [100, 25, 8]
    assert enough_epochs(1000, natural=False, least=12) == 12


def test_samples_and_styles_change_every_layer_and_are_anchored_on_all_images_that_the_steps_use() -> None:
    data = replace(available("samples"), classes=10, fewest=1000)
    config, why = resolved(FAMR(), data)
    assert (config.optimiser, config.edited_share, config.edit_head) == ("adam", 1.0, True)
    assert config.function_images == 900  # 25 epochs × 4 batches × 128 images would use 1280 of each class
    assert f"{config.function_images} retained" in why
    assert resolved(FAMR(), replace(data, fewest=50))[0].function_images == 45  # some are left to watch the run on
    assert resolved(FAMR(), replace(data, kind="class"))[0].function_images == 20
    assert resolved(FAMR(), replace(data, retained=False, sketch=True))[0].optimiser == "natural"


@pytest.mark.parametrize(("classes", "per_class"), [(2, 20), (100, 20), (307, 20), (400, 16), (1000, 7), (21_000, 1)])
def test_no_more_images_are_anchored_than_the_steps_of_a_run_can_draw(classes: int, per_class: int) -> None:
    data = replace(available("class"), classes=classes, fewest=1000)
    config, why = resolved(FAMR(), data)
    assert config.function_images == per_class
    assert f"function-space anchor on {per_class} retained images a class" in why
    drawn = 12 * 4 * 128  # images in the steps of twelve epochs
    assert per_class in (1, 20) or (per_class - 1) * classes < drawn <= per_class * classes
    assert resolved(FAMR(function_images=20), data)[0].function_images == 20  # the user's number is not changed


def test_where_weights_are_divided_only_an_anchor_that_needs_no_whole_layers_serves() -> None:
    config, why = resolved(FAMR(edited_share=1.0), available("class"), sharded=True)
    assert config.anchor == "l2"
    assert "divided" in why
    for anchor in ("fisher", "kfac"):
        with pytest.raises(RequestError, match=f"The {anchor} anchor needs whole layers"):
            resolved(FAMR(anchor=anchor), available("class"), sharded=True)


QUIET = famr.Monitor(track_retain=False, rows=1)


@pytest.fixture(scope="module")
def retrained(
    digits: Data, without_three: famr.Splits, once: Callable[[str, Callable[[], Trained]], Trained]
) -> famr.Classifier:
    """A model that was trained without threes: the first of `retrained_runs`, without the others."""

    def train() -> Trained:
        assert without_three.retain is not None
        training = famr.Training(epochs=20, batch_size=64, learning_rate=3e-3, augmentation=SHIFTS)
        return famr.fit(small_vit(digits), without_three.retain, training, device="cpu")

    return once("without-3-0", train).model


def test_the_default_forgets_a_digit_and_keeps_what_retraining_keeps(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    result = famr.forget(original, without_three, device="cpu", monitor=QUIET)
    scores = famr.evaluate(result, without_three, retrained, device="cpu")
    assert scores.retrained is not None
    assert scores.unlearned.forget_accuracy <= 0.02  # type: ignore[operator]
    assert scores.unlearned.forget_test_accuracy <= 0.05  # type: ignore[operator]
    assert scores.unlearned.retain_accuracy >= scores.retrained.retain_accuracy - 0.01  # type: ignore[operator]


def test_the_default_forgets_another_digit_and_keeps_what_the_original_knows(
    original: famr.Classifier, digits: Data
) -> None:
    splits = famr.split(digits, famr.Request(classes=["8"]))
    result = famr.forget(original, splits, device="cpu", monitor=QUIET)
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.original is not None
    assert scores.unlearned.forget_accuracy <= 0.02  # type: ignore[operator]
    assert scores.unlearned.forget_test_accuracy <= 0.05  # type: ignore[operator]
    assert scores.unlearned.retain_accuracy >= scores.original.retain_accuracy - 0.01  # type: ignore[operator]


@pytest.mark.parametrize(
    ("request_", "method"),
    [
        (famr.Request(samples=[0, 1]), FAMR(demotion=0.03)),
        (famr.Request(samples=list(range(20))), FAMR(effort="thorough", demotion=0.03)),
        (famr.Request(classes=["3"]), replace(FAMR.paper(), demotion=0.03)),
        (famr.Request(style=("x", "y")), FAMR(beta=None, style_layer="blocks.0", demotion=0.03)),
    ],
)
def test_a_demotion_is_refused_for_a_target_that_takes_none(
    original: famr.Classifier, digits: Data, request_: famr.Request, method: FAMR
) -> None:
    columns = {"x": ["y" if row % 5 == 0 else "z" for row in range(len(digits.train.all_targets))]}
    assert digits.test is not None
    data = replace(
        digits, train=replace(digits.train, all_columns=columns), test=replace(digits.test, all_columns=columns)
    )
    with pytest.raises(RequestError, match="masked or proxy target") as caught:
        famr.forget(original, famr.split(data, request_), method, device="cpu")
    assert "demotion 0.03" in str(caught.value)


def test_with_a_demotion_the_class_ends_among_the_unlikely_ones_as_in_retrained_models(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    without, demoted = (
        famr.forget(original, without_three, famr.FAMR(effort="quick", demotion=gamma), device="cpu", monitor=QUIET)
        for gamma in (0.0, None)
    )

    def likelier(model: famr.Classifier) -> float:
        """How many classes are likelier than the forgotten one, in the mean."""
        logits = predict(model, without_three.forget, torch.device("cpu")).logits
        return float((logits > logits[:, 3:4]).sum(dim=1).float().mean())

    assert likelier(demoted.model) > likelier(without.model) + 1
    assert abs(likelier(demoted.model) - likelier(retrained)) < abs(likelier(without.model) - likelier(retrained))
    before, after = (famr.evaluate(result, without_three, device="cpu").unlearned for result in (without, demoted))
    assert after.forget_accuracy <= 0.02  # type: ignore[operator]
    assert after.retain_accuracy >= before.retain_accuracy - 0.01  # type: ignore[operator]
    assert demoted.method.demotion == 0.03
    assert "demotion 0.03" in demoted.why
    assert "demotion" not in without.why


@pytest.mark.parametrize(("effort", "target"), [("quick", "reference"), ("thorough", "proxy")])
def test_samples_are_brought_to_the_confidence_of_images_that_were_never_seen(
    original: famr.Classifier, digits: Data, effort: Effort, target: str
) -> None:
    splits = famr.split(digits, famr.Request(samples=list(range(0, 1000, 14))))
    result = famr.forget(original, splits, FAMR(effort=effort), device="cpu", monitor=QUIET)
    assert result.method.target == target
    assert result.history[-1].loss_forget <= max(0.01, result.history[0].loss_forget / 2)
    assert result.history[-1].forget_accuracy > 0.9  # type: ignore[operator]


def test_a_concept_across_classes_is_forgotten_as_samples_are(original: famr.Classifier, digits: Data) -> None:
    """Its classes stay: to forget every ninth image is not to forget a digit."""
    ninth = ["yes" if row % 9 == 0 else "no" for row in range(len(digits.train.all_targets))]
    train = replace(digits.train, all_columns={"ninth": ninth})
    data = replace(digits, train=train, test=replace(digits.test, all_columns={"ninth": ninth}))  # type: ignore[type-var]
    splits = famr.split(data, famr.Request(concept=("ninth", "yes")))
    assert not splits.forgets_classes()
    method = famr.FAMR(effort="quick", strength=1e-4, epochs=8)
    result = famr.forget(original, splits, method, device="cpu", monitor=QUIET)
    assert result.method.target == "reference"
    assert result.classes == ()
    assert result.history[-1].forget_accuracy > 0.9  # type: ignore[operator]


def test_with_a_sketch_the_number_of_images_tells_whether_they_are_whole_classes(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    sketch = famr.take_sketch(original, digits, images=60, device="cpu")
    assert sketch.covers_classes(without_three.forget.targets)
    assert not sketch.covers_classes(without_three.forget.targets[1:])
    assert not sketch.covers_classes(torch.tensor([-1]))
    whole = famr.forget(original, famr.forget_only(without_three.forget), sketch=sketch, device="cpu", monitor=QUIET)
    assert whole.method.target == "masked"
    assert whole.history[-1].forget_accuracy <= 0.02  # type: ignore[operator]
    part = famr.forget_only(without_three.forget.take(torch.arange(20)))
    result = famr.forget(original, part, famr.FAMR(strength=1.0, epochs=1), sketch=sketch, device="cpu", monitor=QUIET)
    assert result.method.target == "reference"
