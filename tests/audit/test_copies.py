"""Reference models that are copies are refused, however they are disguised; models trained on their own are not."""

from __future__ import annotations

import pytest
import torch
from test_shadows import tiny
from torch import Tensor

from famr.audit.copies import CENTRE, centrality, require_own_models, require_own_predictions
from famr.audit.measurements import ModelMeasurements
from famr.errors import RequestError
from famr.metrics.predictions import Predictions
from made_up import measured, random_logits

IMAGES, CLASSES = 300, 10
TARGETS = torch.arange(IMAGES) % CLASSES
COMMON = random_logits(IMAGES, CLASSES, seed=99, scale=3.0)
"""What all trainings learn."""


def predicts(logits: Tensor) -> ModelMeasurements:
    return measured(Predictions(logits, TARGETS), Predictions(logits, TARGETS))


def trained(seed: int) -> Tensor:
    """The logits of one training: what all learn, and what is its own."""
    return COMMON + random_logits(IMAGES, CLASSES, seed, scale=0.7)


def noisy(logits: Tensor, seed: int, scale: float = 0.05) -> Tensor:
    return logits + random_logits(len(logits), CLASSES, 1000 + seed, scale)


UNLEARNED, ORIGINAL = trained(100), trained(101)
HONEST = [trained(seed) for seed in range(5)]


def check(references: list[Tensor], never_saw: Tensor | None = None, methods: tuple[str, ...] = ("unlearned",)) -> None:
    """Of one or more methods, the last one predicts as `UNLEARNED` does."""
    models = {name: predicts(trained(200 + number)) for number, name in enumerate(methods)}
    models |= {methods[-1]: predicts(UNLEARNED), "original": predicts(ORIGINAL)}
    alone = {f"retrained {index}": predicts(each) for index, each in enumerate(references)}
    alone |= {} if never_saw is None else {"never saw": predicts(never_saw)}
    require_own_predictions({**models, **alone}, list(alone), [*methods, "original"])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_models_trained_on_their_own_are_accepted(count: int) -> None:
    check(HONEST[:count])


def test_an_under_trained_control_does_not_make_honest_references_look_like_copies() -> None:
    """It is far from all others, which must not become the scale."""
    check(HONEST[:2], never_saw=random_logits(IMAGES, CLASSES, seed=7, scale=3.0))


def test_a_training_that_failed_does_not_make_the_others_look_like_copies() -> None:
    """Next to a model that says one class for everything, all others are near their mean."""
    failed = torch.zeros(IMAGES, CLASSES)
    failed[:, 0] = 20.0
    check([*HONEST[:4], failed])


def test_copies_with_noise_are_found_beside_an_honest_model() -> None:
    with pytest.raises(RequestError, match="copies of the unlearned one with noise"):
        check([HONEST[0], *(noisy(UNLEARNED, seed, 0.4) for seed in range(4))])


@pytest.mark.parametrize(
    ("copied", "name"), [(UNLEARNED, "unlearned"), (ORIGINAL, "original"), (HONEST[0], "retrained 0")]
)
def test_a_copy_with_a_little_noise_is_refused(copied: Tensor, name: str) -> None:
    with pytest.raises(RequestError, match=f"copy of the {name} one|model is a copy of the retrained 4"):
        check([*HONEST[:4], noisy(copied, 0)])


def test_a_copy_with_its_units_in_another_order_is_refused_also_as_the_only_reference() -> None:
    """Its predictions are equal but for rounding; there is no second training to compare the difference with."""
    with pytest.raises(RequestError, match="retrained 0 model is a copy of the unlearned one"):
        check([UNLEARNED + 1e-6])


@pytest.mark.parametrize("scale", [0.05, 0.3, 0.6])
@pytest.mark.parametrize("count", [4, 5])
def test_references_that_are_all_copies_with_noise_of_their_own_are_refused(scale: float, count: int) -> None:
    """They differ from each other more than from their model, so that no pair looks like a copy."""
    for copied, name in ((UNLEARNED, "unlearned"), (ORIGINAL, "original")):
        with pytest.raises(RequestError, match=f"copies of the {name} one with noise"):
            check([noisy(copied, seed, scale) for seed in range(count)])


def test_one_training_and_its_noisy_copies_are_refused() -> None:
    with pytest.raises(RequestError, match="copies of the retrained 0 one with noise"):
        check([HONEST[0], *(noisy(HONEST[0], seed, 0.3) for seed in range(4))])


def test_every_model_under_audit_is_compared_with_whatever_it_is_called() -> None:
    with pytest.raises(RequestError, match="copy of the SCRUB one"):
        check([*HONEST[:4], noisy(UNLEARNED, 0)], methods=("FAMR", "SCRUB"))
    with pytest.raises(RequestError, match="copies of the SCRUB one with noise"):
        check([noisy(UNLEARNED, seed, 0.3) for seed in range(5)], methods=("FAMR", "SCRUB"))


def test_a_never_saw_control_that_is_a_copy_is_refused() -> None:
    with pytest.raises(RequestError, match="never saw model is a copy of the unlearned one"):
        check(HONEST, never_saw=noisy(UNLEARNED, 0))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_centrality_is_its_closed_form_for_copies_and_for_models_trained_alike(count: int) -> None:
    others = [noisy(UNLEARNED, seed, 0.01) for seed in range(count)]
    assert centrality(UNLEARNED, others) == pytest.approx((count - 1) / count**2, rel=0.1)
    alike = [noisy(UNLEARNED, 50 + seed, 0.01) for seed in range(count)]
    assert centrality(others[0], alike) == pytest.approx((1 + 1 / count) / (1 + 1 / (count - 1)), rel=0.15)
    assert (count - 1) / count**2 < CENTRE < (1 + 1 / count) / (1 + 1 / (count - 1))


def test_a_model_that_is_given_twice_is_refused() -> None:
    first, second = tiny(0), tiny(1)
    digests = require_own_models({"unlearned": first, "retrained 0": second}, ["retrained 0"])
    assert digests == {"unlearned": first.digest(), "retrained 0": second.digest()}
    for name in ("unlearned", "original", "retrained 1"):
        with pytest.raises(RequestError, match=f"retrained 0 model is the {name} one: the same weights"):
            require_own_models({name: first, "retrained 0": first.copy()}, ["retrained 0"])
    require_own_models({"FAMR": first, "original": first.copy()}, [])  # doing nothing may be audited
