"""What `FAMR()` picks, that it says so, and how it does on digits against retraining."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import famr
from conftest import SHIFTS, small_vit
from famr.config import FAMR
from famr.data import Data
from famr.data.request import Kind
from famr.engine.inference import predict
from famr.errors import RequestError
from famr.unlearn.resolve import AtHand, enough_epochs, settle


def at_hand(kind: Kind, retained: bool = True, held_out: bool = True, sketch: bool = False) -> AtHand:
    return AtHand(kind, retained, held_out, sketch, batches=4)


@pytest.mark.parametrize(
    ("found", "target", "anchor"),
    [
        (at_hand("class"), "masked", "l2"),
        (at_hand("concept"), "masked", "l2"),
        (at_hand("samples"), "reference", "l2"),
        (at_hand("style"), "probe", "l2"),
        (at_hand("samples", retained=False, sketch=True), "reference", "kfac"),
        (at_hand("class", retained=False, held_out=False, sketch=True), "masked", "kfac"),
        (at_hand("images", retained=False, held_out=False), "uniform", "l2"),
    ],
)
def test_target_and_anchor_go_by_the_request_and_the_data(found: AtHand, target: str, anchor: str) -> None:
    method, why = settle(FAMR(), found)
    assert (method.target, method.anchor) == (target, anchor)
    assert target in why
    assert anchor in why
    assert "\n" not in why
    assert bool(method.function_strength) == found.retained


def test_curvature_is_taken_where_answers_are_not_held_or_all_layers_move() -> None:
    natural = {"optimiser": "natural"}
    for method in (FAMR(function_strength=0.0), FAMR(edited_share=1.0)):
        assert settle(replace(method, **natural), at_hand("class"))[0].anchor == "kfac"  # type: ignore[arg-type]
    assert settle(FAMR(function_strength=2.0), at_hand("class"))[0].anchor == "l2"


def test_what_the_user_said_is_left_alone() -> None:
    paper = FAMR.paper()
    assert settle(paper, at_hand("class")) == (paper, "")
    method, why = settle(FAMR(target="uniform", epochs=3), at_hand("class"))
    assert (method.target, method.epochs) == ("uniform", 3)
    assert "target" not in why


def test_another_optimiser_does_not_inherit_the_natural_step() -> None:
    rates = {
        kind: settle(FAMR(optimiser=kind), at_hand("class"))[0].learning_rate for kind in ("natural", "sgd", "adam")
    }
    assert rates == {"natural": 0.5, "sgd": 1e-4, "adam": 1e-4}


def test_small_forget_sets_are_seen_more_often() -> None:
    assert [enough_epochs(batches, "natural") for batches in (1, 2, 4, 16, 1000)] == [48, 24, 12, 3, 2]
    assert [enough_epochs(batches, "adam") for batches in (1, 4, 1000)] == [100, 25, 8]
    assert enough_epochs(1000, "adam", at_least=12) == 12


def test_samples_and_styles_move_every_layer_and_are_held_on_all_that_the_steps_see() -> None:
    found = replace(at_hand("samples"), classes=10, fewest=1000)
    method, why = settle(FAMR(), found)
    assert (method.optimiser, method.edited_share, method.edit_head) == ("adam", 1.0, True)
    assert method.function_images == 900  # 25 epochs × 4 batches × 128 images would see 1280 of each class
    assert f"{method.function_images} retained" in why
    assert settle(FAMR(), replace(found, fewest=50))[0].function_images == 45  # some are left to watch the run on
    assert settle(FAMR(), replace(found, kind="class"))[0].function_images == 20
    assert settle(FAMR(), replace(found, retained=False, sketch=True))[0].optimiser == "natural"


@pytest.mark.parametrize(("classes", "held"), [(2, 20), (100, 20), (307, 20), (400, 16), (1000, 7), (21_000, 1)])
def test_no_more_images_are_held_than_the_steps_of_a_run_can_draw(classes: int, held: int) -> None:
    found = replace(at_hand("class"), classes=classes, fewest=1000)
    method, why = settle(FAMR(), found)
    assert method.function_images == held
    assert f"answers held on {held} retained images a class" in why
    drawn = 12 * 4 * 128  # images in the steps of twelve epochs
    assert held in (1, 20) or (held - 1) * classes < drawn <= held * classes
    assert settle(FAMR(function_images=20), found)[0].function_images == 20  # whoever asks for them has them


@pytest.fixture(scope="module")
def never_saw(digits: Data, retrained: famr.Classifier) -> dict[str, famr.Classifier]:
    """Models trained without a class, by its name."""
    images = famr.split(digits, famr.Request(classes=["8"])).retain
    assert images is not None
    training = famr.Training(epochs=20, batch_size=64, learning_rate=3e-3, augmentation=SHIFTS)
    return {"3": retrained, "8": famr.fit(small_vit(digits), images, training, device="cpu").model}


@pytest.mark.parametrize("name", ["3", "8"])
def test_the_default_forgets_a_digit_and_keeps_what_retraining_keeps(
    original: famr.Classifier, digits: Data, never_saw: dict[str, famr.Classifier], name: str
) -> None:
    splits = famr.split(digits, famr.Request(classes=[name]))
    result = famr.forget(original, splits, device="cpu", monitor=famr.Monitor(track_retain=False))
    scores = famr.evaluate(result, splits, never_saw[name], device="cpu")
    assert scores.retrained is not None
    assert scores.unlearned.forget_accuracy <= 0.02  # type: ignore[operator]
    assert scores.unlearned.forget_test_accuracy <= 0.05  # type: ignore[operator]
    assert scores.unlearned.retain_accuracy >= scores.retrained.retain_accuracy - 0.01  # type: ignore[operator]


@pytest.mark.parametrize(
    ("request_", "method"),
    [
        (famr.Request(samples=[0, 1]), FAMR(demotion=0.03)),
        (famr.Request(classes=["3"]), replace(FAMR.paper(), demotion=0.03)),
        (famr.Request(style=("x", "y")), FAMR(beta=None, style_layer="blocks.0", demotion=0.03)),
    ],
)
def test_a_demotion_that_would_do_nothing_is_refused(
    original: famr.Classifier, digits: Data, request_: famr.Request, method: FAMR
) -> None:
    columns = {"x": ["y" if row % 5 == 0 else "z" for row in range(len(digits.train.all_targets))]}
    assert digits.test is not None
    data = replace(
        digits, train=replace(digits.train, all_columns=columns), test=replace(digits.test, all_columns=columns)
    )
    with pytest.raises(RequestError, match="masked target") as caught:
        famr.forget(original, famr.split(data, request_), method, device="cpu")
    assert "demotion 0.03" in str(caught.value)


def test_with_a_demotion_the_class_ends_among_the_unlikely_ones_as_in_retrained_models(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    usual, found = (
        famr.forget(
            original, without_three, famr.FAMR(demotion=gamma), device="cpu", monitor=famr.Monitor(track_retain=False)
        )
        for gamma in (0.0, None)
    )

    def likelier(model: famr.Classifier) -> float:
        """How many classes are likelier than the forgotten one, in the mean."""
        logits = predict(model, without_three.forget, torch.device("cpu")).logits
        return float((logits > logits[:, 3:4]).sum(dim=1).float().mean())

    assert likelier(found.model) > likelier(usual.model) + 1
    assert abs(likelier(found.model) - likelier(retrained)) < abs(likelier(usual.model) - likelier(retrained))
    before, after = (famr.evaluate(result, without_three, device="cpu").unlearned for result in (usual, found))
    assert after.forget_accuracy <= 0.02  # type: ignore[operator]
    assert after.retain_accuracy >= before.retain_accuracy - 0.01  # type: ignore[operator]
    assert found.method.demotion == 0.03
    assert "demotion 0.03" in found.why
    assert "demotion" not in usual.why


def test_the_default_for_samples_makes_them_like_held_out_images(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=list(range(0, 1000, 7))))
    result = famr.forget(original, splits, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.target == "reference"
    assert result.history[-1].loss_forget <= max(0.01, result.history[0].loss_forget / 2)
    assert result.history[-1].forget_accuracy > 0.9  # type: ignore[operator]


def test_a_concept_across_classes_is_forgotten_as_samples_are(original: famr.Classifier, digits: Data) -> None:
    """Its classes stay: to forget every third image is not to forget a digit."""
    third = ["yes" if row % 3 == 0 else "no" for row in range(len(digits.train.all_targets))]
    train = replace(digits.train, all_columns={"third": third})
    data = replace(digits, train=train, test=replace(digits.test, all_columns={"third": third}))  # type: ignore[type-var]
    splits = famr.split(data, famr.Request(concept=("third", "yes")))
    assert not splits.forgets_classes()
    result = famr.forget(original, splits, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.target == "reference"
    assert result.classes == ()
    assert result.history[-1].forget_accuracy > 0.9  # type: ignore[operator]


def test_with_a_sketch_images_tell_whether_they_are_whole_classes(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    sketch = famr.take_sketch(original, digits, images=60, device="cpu")
    assert sketch.covers_classes(without_three.forget.targets)
    assert not sketch.covers_classes(without_three.forget.targets[1:])
    assert not sketch.covers_classes(torch.tensor([-1]))
    whole = famr.forget(original, famr.forget_only(without_three.forget), sketch=sketch, device="cpu")
    assert whole.method.target == "masked"
    assert whole.history[-1].forget_accuracy <= 0.02  # type: ignore[operator]
    part = famr.forget_only(without_three.forget.take(torch.arange(20)))
    assert famr.forget(original, part, sketch=sketch, device="cpu").method.target == "reference"
