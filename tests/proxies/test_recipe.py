"""How a proxy is trained: as the folder of the original says, for a quarter of the epochs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import famr
from conftest import SHIFTS, SMALL_VIT, small_vit
from famr.data import Data
from famr.errors import RequestError
from famr.proxies.recipe import ProxyRecipe, recorded_recipe, sketch_recipe
from famr.training import Trained


def test_a_proxy_trains_for_a_quarter_of_the_epochs_on_images_as_they_are() -> None:
    short = ProxyRecipe(famr.Training(epochs=8)).short_training
    assert (short.epochs, short.augmentation) == (2, None)
    assert ProxyRecipe(famr.Training(epochs=1)).short_training.epochs == 1
    assert ProxyRecipe(famr.Training(epochs=8), epochs=5).short_training.epochs == 5


@pytest.mark.parametrize("settings", [{"late_share": 0.0}, {"late_share": 1.5}, {"epochs": 0}])
def test_a_recipe_refuses_numbers_out_of_range_at_once(settings: dict[str, float]) -> None:
    with pytest.raises(RequestError, match="must be"):
        ProxyRecipe(famr.Training(), **settings)  # type: ignore[arg-type]


def test_the_record_of_a_training_from_scratch_gives_its_settings_and_its_start(
    original_run: Path, trained: Trained, digits: Data
) -> None:
    recipe = recorded_recipe(famr.load_model(str(original_run)))
    assert (recipe.training.epochs, recipe.training.augmentation) == (trained.training.epochs, SHIFTS)
    assert recipe.start is None  # nothing is loaded before it is needed
    assert recipe.late_share == 0.5
    found = recipe.with_start(famr.load_model(str(original_run))).start
    assert found is not None
    assert found.digest() == small_vit(digits).digest()


def test_the_record_of_a_fine_tuning_names_the_checkpoint_that_it_started_from(digits: Data, tmp_path: Path) -> None:
    start = famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=SMALL_VIT, seed=5)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    start.architecture.save(start, checkpoint)
    brief = famr.Training(epochs=1, augmentation=None)
    some = digits.train.take(torch.arange(128))
    saved = famr.fit(start, some, brief, device="cpu").save(
        tmp_path / "tuned", start={"model": str(checkpoint), "weights": None, "arguments": {}, "from_scratch": False}
    )
    written = (saved / "training/run.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in written  # paths are relative to the folder
    model = famr.load_model(str(saved))
    recipe = recorded_recipe(model)
    found = recipe.with_start(model).start
    assert found is not None
    assert found.digest() == start.digest()
    assert (recipe.late_share, sketch_recipe(model).late_share) == (1.0, 0.5)
    shutil.rmtree(checkpoint)
    assert recorded_recipe(model).with_start(model).late_share == 0.5  # trained from random weights, half is nearer


def test_a_start_that_is_no_longer_there_is_said_and_late_layers_start_at_random(digits: Data, tmp_path: Path) -> None:
    brief = famr.Training(epochs=1, augmentation=None)
    some = digits.train.take(torch.arange(128))
    saved = famr.fit(small_vit(digits, seed=9), some, brief, seed=0, device="cpu").save(tmp_path / "tuned")
    model = famr.load_model(str(saved))
    recipe = recorded_recipe(model).with_start(model)
    assert recipe.start is None
    assert "late layers start at random" in recipe.source
    assert recipe.training.epochs == 1


def test_an_unlearned_model_has_the_recipe_of_the_model_it_came_from(
    original_run: Path, without_three: famr.Splits, tmp_path: Path
) -> None:
    method = famr.FAMR(effort="quick", epochs=1, strength=0.1)
    result = famr.forget(famr.load_model(str(original_run)), without_three, method, device="cpu")
    unlearned = famr.load_model(str(result.save(tmp_path / "no-3")))
    assert recorded_recipe(unlearned).training.epochs == 20


def test_a_model_without_a_record_gets_the_usual_fine_tuning(original: famr.Classifier) -> None:
    recipe = recorded_recipe(original)
    assert recipe.training == famr.Training()
    assert "no record" in recipe.source
