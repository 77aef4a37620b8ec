"""Non-members are as hard as members, shown under a model that saw neither; easy ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import famr
from famr.audit.comparison import ComparedModels
from famr.audit.gates.rmia import RmiaImages, non_member_check, rmia_auc_estimate, rmia_images
from famr.audit.measurements import ModelMeasurements
from famr.audit.non_members import auc_of_sets, match_one_to_one, why_unequal
from famr.data import Data
from famr.data.loaders import order
from famr.errors import RequestError
from famr.metrics.predictions import Predictions
from made_up import compared, measured

FORGET, TEST = 120, 1000


def confidences(count: int, mean: float, seed: int, own: int) -> Predictions:
    """Two classes, of which the first is true; hardness is shared by all models, a little is a model's own."""
    hardness = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    noise = 0.3 * torch.randn(count, generator=torch.Generator().manual_seed(1000 * own + seed))
    z = mean + hardness + noise
    return Predictions(torch.stack([z, torch.zeros(count)], dim=1), torch.zeros(count, dtype=torch.long))


def model(own: int, forget: float, test: float, forget_test: float | None = None) -> ModelMeasurements:
    """How sure a model is on average on each set, in logits."""
    held_out = None if forget_test is None else confidences(150, forget_test, 3, own)
    return measured(confidences(FORGET, forget, 1, own), confidences(TEST, test, 2, own), forget_test=held_out)


@pytest.fixture(scope="module")
def samples(digits: Data) -> famr.Splits:
    return famr.split(digits, famr.Request(samples=list(range(FORGET))))


def hard_samples(samples: famr.Splits, unlearned: float = 1.0) -> ComparedModels:
    """Forgotten samples that are harder than held-out images for every model that never saw them."""
    references = [model(own, 1.0, 2.0) for own in range(5)]
    audited = {"unlearned": model(50, unlearned, 2.0), "original": model(51, 6.0, 2.0)}
    return compared(samples, audited, references)


def test_each_member_gets_the_nearest_candidate_and_none_is_given_twice() -> None:
    members, candidates = (torch.randn(size, generator=torch.Generator().manual_seed(size)) for size in (20, 60))
    found = match_one_to_one(members, candidates, seed=4)
    assert len(set(found.tolist())) == 20
    left = list(range(60))
    for member in order(20, 4).tolist():
        nearest = min(left, key=lambda index: abs(float(candidates[index] - members[member])))
        assert int(found[member]) == nearest
        left.remove(nearest)
    with pytest.raises(RequestError, match="3 members cannot be matched one to one with 2 candidates"):
        match_one_to_one(torch.zeros(3), torch.zeros(2))


def test_matched_non_members_are_no_easier_under_a_third_model(samples: famr.Splits) -> None:
    """Unmatched ones are: an attack on them would find hardness."""
    models = hard_samples(samples)
    third = models.references[1]
    found = rmia_images(models.references, models)
    assert isinstance(found, tuple)
    images, auc = found
    assert images.matched is not None
    assert auc.low <= 0.5 <= auc.high
    members, non_members, population = images.log_p(third)
    assert (len(members), len(non_members), len(population)) == (FORGET, FORGET, TEST - FORGET)
    unmatched = auc_of_sets(members, images.log_p(third)[2])
    assert unmatched is not None
    assert unmatched.high < 0.4
    assert non_member_check(models)["non_members"] == "matched one to one by score"


def test_what_never_saw_the_samples_passes_and_what_saw_them_fails(samples: famr.Splits) -> None:
    models = hard_samples(samples)
    honest, original = (rmia_auc_estimate(models.audited[name], models.references, models) for name in models.audited)
    assert honest.low == 0.5
    assert original.low is not None
    assert original.low > 0.9


def test_standing_out_as_forgotten_gives_as_much_away_as_standing_out_as_seen(samples: famr.Splits) -> None:
    models = hard_samples(samples, unlearned=-4.0)
    found = rmia_auc_estimate(models.unlearned, models.references, models)
    assert found.low is not None
    assert found.low > 0.9


def test_easy_non_members_are_refused(without_three: famr.Splits) -> None:
    """Held-out images of the class that every model which never saw it finds easier than the forgotten ones."""
    references = [model(own, 0.0, 2.0, forget_test=3.0) for own in range(5)]
    models = compared(without_three, {"unlearned": model(50, 0.0, 2.0, forget_test=3.0)}, references)
    found = rmia_auc_estimate(models.unlearned, references, models)
    assert found.value is None
    assert "the non-members are easier than the members: AUC 0.0" in str(found.why_not)
    assert non_member_check(models)["not_available"] == found.why_not
    alike = [model(own, 0.0, 2.0, forget_test=0.0) for own in range(5)]
    models = compared(without_three, {"unlearned": alike[0]}, alike[1:])
    assert isinstance(rmia_images(alike[1:], models), tuple)
    assert non_member_check(models)["non_members"] == "held-out images of what was forgotten"


def test_harder_non_members_are_refused_as_well() -> None:
    members, non_members = torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).unbind()
    found = auc_of_sets(members + 2, non_members)
    assert found is not None
    assert str(why_unequal(found)).startswith("the non-members are harder than the members: AUC 0.9")
    assert auc_of_sets(members[:5], non_members[:5]) is None


def test_a_class_without_held_out_images_and_samples_with_one_reference_cannot_tell(
    without_three: famr.Splits, samples: famr.Splits
) -> None:
    models = compared(without_three, {"unlearned": model(50, 0.0, 2.0)}, [model(0, 0.0, 2.0)])
    assert "no held-out images" in str(rmia_auc_estimate(models.unlearned, models.references, models).why_not)
    models = replace(models, splits=samples)
    assert "it takes another to check them" in str(
        rmia_auc_estimate(models.unlearned, models.references, models).why_not
    )


def test_with_many_samples_half_of_the_held_out_images_are_left_as_population(samples: famr.Splits) -> None:
    many = measured(confidences(900, 0.0, 1, 0), confidences(TEST, 0.0, 2, 0))
    images = RmiaImages.choose(many, seed=0)
    assert images.matched is not None
    assert len(images.members) == len(images.matched) == len(images.population) == TEST // 2
    population: Tensor = images.population
    assert not set(population.tolist()) & set(images.matched.tolist())
