from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

from famr.data import Data, Images
from famr.data.splits import Request, split
from famr.data.transforms import Preprocessing
from famr.errors import DataError
from famr.models import Classifier
from famr.models.labels import match_labels, require_same_labels


def make_model(labels: tuple[str, ...] | None, outputs: int = 3, knows_its_size: bool = True) -> Classifier:
    preprocessing = Preprocessing((2, 2), (2, 2), (0.5,), (0.5,)) if knows_its_size else None
    return Classifier(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, outputs)), labels, preprocessing)


def make_data(*labels: str) -> Data:
    ids = [f"train/{row}" for row in range(len(labels))]
    images = Images.from_source(lambda row: Image.new("L", (2, 2), row), ids, torch.arange(len(labels)))
    return Data("memory", labels, images, None)


def refused(model: Classifier, data: Data, by_name: bool = False) -> DataError:
    with pytest.raises(DataError) as caught:
        match_labels(model, data, by_name=by_name)
    assert caught.value.exit_code == 3
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


def test_equal_names_in_equal_order_change_nothing():
    model, data = make_model(("cat", "dog", "owl")), make_data("cat", "dog", "owl")
    matched = match_labels(model, data)
    assert matched[0] is model
    assert matched[1] is data


def test_a_checkpoint_without_names_takes_those_of_the_data():
    model, data = make_model(None), make_data("cat", "dog", "owl")
    named, same = match_labels(model, data)
    assert named.labels == ("cat", "dog", "owl")
    assert named.module is model.module
    assert same is data
    assert model.labels is None


def test_a_head_of_another_size_than_the_data_is_refused():
    error = refused(make_model(None, outputs=5), make_data("cat", "dog", "owl"))
    assert "3 classes" in error.what
    assert "5 outputs" in error.what
    assert error.where == "data: [cat, dog, owl]"
    assert "famr train" in str(error.fix)


def test_counting_the_outputs_leaves_the_network_in_its_mode():
    for training in (True, False):
        model = make_model(None)
        model.module.train(training)
        match_labels(model, make_data("cat", "dog", "owl"))
        assert all(part.training is training for part in model.module.modules())


def test_a_network_of_unknown_input_size_takes_the_names_unchecked():
    model = make_model(None, outputs=5, knows_its_size=False)
    assert match_labels(model, make_data("cat", "dog"))[0].labels == ("cat", "dog")


def test_another_order_is_refused_and_both_orders_shown():
    error = refused(make_model(("owl", "cat", "dog")), make_data("cat", "dog", "owl"))
    assert "in another order" in error.what
    assert error.where == "data: [cat, dog, owl]; checkpoint: [owl, cat, dog]"
    assert "--match-labels-by-name" in str(error.fix)


def test_another_order_is_matched_by_name_on_request():
    model, data = make_model(("owl", "cat", "dog")), make_data("cat", "dog", "owl")
    same, matched = match_labels(model, data, by_name=True)
    assert same is model
    assert matched.labels == model.labels
    assert matched.train.targets.tolist() == [("owl", "cat", "dog").index(name) for name in data.labels]


def test_data_with_fewer_classes_is_matched_by_name_on_request():
    model, data = make_model(("owl", "cat", "dog")), make_data("dog", "owl")
    matched = match_labels(model, data, by_name=True)[1]
    assert matched.labels == ("owl", "cat", "dog")
    assert matched.train.targets.tolist() == [2, 0]


def test_data_with_fewer_classes_is_refused_by_default():
    error = refused(make_model(("cat", "dog", "owl")), make_data("cat", "dog"))
    assert "Data (2 classes) and checkpoint (3)" in error.what
    assert str(error.where).endswith("; only in the checkpoint: [owl]")
    assert "--match-labels-by-name" in str(error.fix)


@pytest.mark.parametrize("by_name", [False, True])
def test_names_that_the_checkpoint_lacks_are_always_refused(by_name):
    error = refused(make_model(("cat", "dog", "owl")), make_data("cat", "fox", "owl"), by_name)
    assert str(error.where).endswith("; only in the data: [fox]; only in the checkpoint: [dog]")
    assert "--match-labels-by-name" not in str(error.fix)


def test_a_shared_name_is_not_matched_by_name():
    error = refused(make_model(("owl", "crane", "crane")), make_data("crane", "owl", "crane"), by_name=True)
    assert "crane" in error.what


def test_errors_shorten_long_lists_of_names():
    many = tuple(f"class {index:03}" for index in range(100))
    error = refused(make_model(many, 100), make_data(*reversed(many)))
    assert "class 007, … 100 in all]" in str(error.where)
    assert "class 050" not in str(error.where)


def test_the_fix_for_splits_of_another_order_works():
    model, data = make_model(("owl", "cat", "dog")), make_data("cat", "dog", "owl")
    request = Request(classes=["dog"])
    with pytest.raises(DataError, match="in the same order") as caught:
        require_same_labels(model, split(data, request))
    statement = str(caught.value.fix).partition(": ")[2].removesuffix(".")
    names = {"model": model, "data": data}
    exec(statement, names)
    splits = split(names["data"], request)
    require_same_labels(model, splits)
    assert splits.forget.ids == ["train/1"]
    assert splits.forget.targets.tolist() == [2]
