from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from famr.data import Data, Images, open_data
from famr.data.images import UNLABELLED
from famr.errors import DataError, RequestError


def write_classes(root: Path, **counts: int) -> str:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for index in range(count):
            Image.new("L", (2, 2)).save(root / name / f"{index}.png")
    return f"folder:{root}"


def in_memory(labels: tuple[str, ...], targets: list[int]) -> Data:
    def images(part: str) -> Images:
        ids = [f"{part}/{row}" for row in range(len(targets))]
        return Images.from_source(lambda row: Image.new("L", (2, 2), row), ids, torch.tensor(targets))

    return Data("memory", labels, images("train"), images("test"))


@pytest.mark.parametrize("spec", ["", "cifar10", "digits:8", "folder:", "parquet", "hf:", "torchvision", "Folder:x"])
def test_an_unknown_kind_of_data_is_refused_with_the_known_ones(spec):
    with pytest.raises(RequestError) as caught:
        open_data(spec)
    assert caught.value.exit_code == 2
    assert repr(spec) in caught.value.what
    assert "where: the data specification" in str(caught.value)
    for kind in ("digits", "folder:PATH", "parquet:PATH", "hf:ID-or-folder", "torchvision:NAME"):
        assert kind in str(caught.value.fix)


def test_a_path_may_hold_colons(tmp_path):
    spec = write_classes(tmp_path / "a:b", cat=1)
    assert open_data(spec, whole=True).train.ids == ["cat/0.png"]


def test_data_has_the_spec_that_opened_it(tmp_path):
    spec = write_classes(tmp_path, cat=5)
    assert open_data(spec).spec == spec
    assert open_data("digits").spec == "digits"


def test_a_fifth_of_every_class_is_held_out_for_testing(tmp_path):
    counts = {"ant": 10, "bee": 5, "cat": 23}
    data = open_data(write_classes(tmp_path, **counts))
    assert data.test is not None
    held_out = Counter(data.test.targets.tolist())
    assert held_out == {index: round(0.2 * count) for index, count in enumerate(counts.values())}
    assert len(data.train) + len(data.test) == 38


def test_training_and_test_images_are_disjoint_and_complete(tmp_path):
    spec = write_classes(tmp_path, ant=10, bee=7)
    data, whole = open_data(spec), open_data(spec, whole=True)
    assert data.test is not None
    assert whole.test is None
    assert not set(data.train.ids) & set(data.test.ids)
    assert sorted(data.train.ids + data.test.ids) == whole.train.ids
    for part in (data.train, data.test):
        assert [data.labels[target] for target in part.targets.tolist()] == [id_.split("/")[0] for id_ in part.ids]


def test_the_same_seed_holds_out_the_same_images(tmp_path):
    spec = write_classes(tmp_path, ant=20, bee=20)
    first, second = open_data(spec, split_seed=7), open_data(spec, split_seed=7)
    assert first.test is not None
    assert second.test is not None
    assert first.test.ids == second.test.ids
    assert first.train.ids == second.train.ids


def test_other_seeds_hold_out_other_images(tmp_path):
    spec = write_classes(tmp_path, ant=20, bee=20)
    held_out = set()
    for seed in range(5):
        test = open_data(spec, split_seed=seed).test
        assert test is not None
        held_out.add(tuple(test.ids))
    assert len(held_out) == 5


def test_splitting_does_not_change_the_global_random_state(tmp_path):
    spec = write_classes(tmp_path, ant=20)
    before = torch.get_rng_state()
    open_data(spec, split_seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_class_of_one_image_keeps_it_for_training_and_a_class_of_two_gives_one(tmp_path):
    data = open_data(write_classes(tmp_path, ant=1, bee=2))
    assert data.test is not None
    assert sorted(data.train.targets.tolist()) == [0, 1]
    assert data.test.targets.tolist() == [1]


def test_images_without_labels_are_split(tmp_path):
    for index in range(10):
        Image.new("L", (2, 2)).save(tmp_path / f"{index}.png")
    data = open_data(f"folder:{tmp_path}")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.test.targets.tolist() == [UNLABELLED, UNLABELLED]


def test_data_with_test_images_is_not_split(tmp_path):
    write_classes(tmp_path / "train", ant=10, bee=10)
    write_classes(tmp_path / "test", ant=1, bee=1)
    for whole in (False, True):
        data = open_data(f"folder:{tmp_path}", whole=whole)
        assert data.test is not None
        assert (len(data.train), len(data.test)) == (20, 2)


def test_columns_follow_their_images_through_the_split():
    data = open_data("digits")
    assert data.test is not None
    for part in (data.train, data.test):
        assert part.column("parity") == [("even", "odd")[target % 2] for target in part.targets.tolist()]


def test_classes_are_matched_by_name_to_another_order():
    data = in_memory(("cat", "dog", "owl"), [0, 1, 2, 1, UNLABELLED])
    other = data.with_labels(["owl", "cat", "fox", "dog"])
    assert other.labels == ("owl", "cat", "fox", "dog")
    assert other.test is not None
    for before, after in ((data.train, other.train), (data.test, other.test)):
        assert before is not None
        names = [None if t == UNLABELLED else other.labels[t] for t in after.targets.tolist()]
        assert names == [None if t == UNLABELLED else data.labels[t] for t in before.targets.tolist()]
        assert after.ids == before.ids
    assert data.train.targets.tolist() == [0, 1, 2, 1, UNLABELLED]


def test_classes_are_matched_without_test_images(tmp_path):
    data = open_data(write_classes(tmp_path, ant=1, bee=1), whole=True).with_labels(["bee", "ant"])
    assert data.test is None
    assert data.train.targets.tolist() == [1, 0]


def test_classes_missing_in_the_other_list_are_named():
    data = in_memory(("cat", "dog", "owl"), [0, 1, 2])
    with pytest.raises(DataError) as caught:
        data.with_labels(["dog", "fox"])
    assert caught.value.exit_code == 3
    assert "cat, owl" in caught.value.what
    assert "dog" not in caught.value.what
    assert "where: memory" in str(caught.value)
    assert "to do: Use the data the checkpoint was trained on" in str(caught.value)


def test_a_name_shared_by_two_classes_cannot_be_matched():
    data = in_memory(("crane", "crane", "owl"), [0, 1, 2])
    with pytest.raises(DataError) as caught:
        data.with_labels(["owl", "crane", "crane"])
    assert "share a name" in caught.value.what
    assert "crane" in caught.value.what
    assert "owl" not in caught.value.what
    assert caught.value.where == "memory"
    assert caught.value.fix
