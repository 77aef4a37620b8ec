"""The sets that a request makes of the data."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from famr.data import Data, Images
from famr.data.images import UNLABELLED
from famr.data.request import Request
from famr.data.splits import Splits, forget_only, sample_per_class, split
from famr.errors import RequestError

LABELS = ("Cat", "dog", "owl", "oak tree", "pine tree", "rose")


def make_images(part: str, count: int, styles: tuple[str, ...] = ("photo", "sketch", "photo", "oil")) -> Images:
    return Images.from_source(
        lambda row: Image.new("L", (2, 2), row),
        [f"{part}/{LABELS[row % 6]}/{row}.png" for row in range(count)],
        torch.arange(count) % 6,
        {"style": [styles[row % len(styles)] for row in range(count)]},
    )


def make_data(train: int = 24, test: int | None = 12) -> Data:
    return Data("memory", LABELS, make_images("train", train), None if test is None else make_images("test", test))


def ids(images: Images | None) -> set[str]:
    return set() if images is None else set(images.ids)


def refused(data: Data, **request) -> RequestError:
    with pytest.raises(RequestError) as caught:
        split(data, Request(**request))
    assert caught.value.exit_code == 2
    assert caught.value.where
    assert caught.value.fix
    assert f"where: {caught.value.where}" in str(caught.value)
    assert f"to do: {caught.value.fix}" in str(caught.value)
    return caught.value


EVERY_KIND = [
    Request(classes=["dog"]),
    Request(classes=["rose", "Cat"]),
    Request(samples=[0, 5, "train/dog/7.png"]),
    Request(concept=("style", "photo")),
    Request(style=("style", "oil")),
]


@pytest.mark.parametrize("request_", EVERY_KIND, ids=Request.describe)
def test_forget_retain_and_test_are_disjoint(request_):
    splits = split(make_data(), request_)
    sets = [ids(splits.forget), ids(splits.retain), ids(splits.test), ids(splits.forget_test)]
    assert sum(len(part) for part in sets) == len(set().union(*sets))


@pytest.mark.parametrize("request_", EVERY_KIND, ids=Request.describe)
def test_no_image_is_lost(request_):
    data = make_data()
    splits = split(data, request_)
    assert ids(splits.forget) | ids(splits.retain) == ids(data.train)
    assert ids(splits.test) | ids(splits.forget_test) == ids(data.test)


@pytest.mark.parametrize("test", [12, None])
def test_a_class_is_forgotten_in_training_and_held_out_images(test):
    data = make_data(test=test)
    splits = split(data, Request(classes=["rose", "Cat"]))
    classes = {"rose", "Cat"}
    assert ids(splits.forget) == {id_ for id_ in data.train.ids if id_.split("/")[1] in classes}
    assert ids(splits.forget_test) == {id_ for id_ in ids(data.test) if id_.split("/")[1] in classes}
    assert ids(splits.test) == {id_ for id_ in ids(data.test) if id_.split("/")[1] not in classes}
    if test is None:
        assert splits.test is None
        assert splits.forget_test is None


@pytest.mark.parametrize("kind", ["concept", "style"])
def test_a_concept_or_style_is_every_image_with_the_value_in_the_column(kind):
    data = make_data()
    splits = split(data, Request(**{kind: ("style", "photo")}))
    assert ids(splits.forget) == {
        i for i, s in zip(data.train.ids, data.train.column("style"), strict=True) if s == "photo"
    }
    assert splits.forget.column("style") == ["photo"] * 12
    assert splits.forget_test is not None
    assert splits.test is not None
    assert splits.forget_test.column("style") == ["photo"] * 6
    assert "photo" not in splits.test.column("style")


def test_a_concept_without_held_out_images_has_no_forget_test_set():
    data = Data("memory", LABELS, make_images("train", 8), make_images("test", 6, ("photo",)))
    splits = split(data, Request(concept=("style", "oil")))
    assert splits.forget_test is None
    assert splits.test is not None
    assert len(splits.test) == 6


def test_samples_can_be_named_by_index_id_or_path():
    data = make_data()
    expected = {"train/dog/7.png"}
    for name in (7, "7", "train/dog/7.png", "dog/7.png", "7.png", "/home/ada/images/train/dog/7.png", "./dog/7.png"):
        assert ids(split(data, Request(samples=[name])).forget) == expected


def test_an_index_counts_the_training_images_and_not_the_source():
    data = make_data()
    later = Data("memory", LABELS, data.train.where(torch.arange(24) >= 10), None)
    assert ids(split(later, Request(samples=[0])).forget) == {"train/pine tree/10.png"}


def test_a_request_for_samples_leaves_all_test_images():
    data = make_data()
    splits = split(data, Request(samples=[0]))
    assert ids(splits.test) == ids(data.test)
    assert splits.forget_test is None


def test_no_test_images_are_none_and_not_an_empty_set():
    data = Data("memory", LABELS, make_images("train", 12), make_images("test", 0))
    assert split(data, Request(samples=[0])).test is None
    assert split(data, Request(classes=["dog"])).test is None


def test_unknown_class_shows_the_nearest_names():
    error = refused(make_data(), classes=["cat"])
    assert error.what == "Unknown class 'cat'. Did you mean 'Cat'?"
    assert error.where == "6 classes are known, from 'Cat' to 'rose'"
    assert "case-sensitive" in str(error.fix)
    assert "'pine tree' or 'oak tree'" in refused(make_data(), classes=["pin tree"]).what


def test_nearest_names_ignore_case():
    data = Data("memory", ("DOG", "EEL", "FOX", "GNU", "HEN", "IBIS"), make_images("train", 6), None)
    assert "Did you mean 'GNU'?" in refused(data, classes=["gnu"]).what
    assert "Did you mean 'GNU'?" in refused(data, classes=["Gnus"]).what


def test_an_unknown_class_that_resembles_no_other_is_shown_alone():
    assert refused(make_data(), classes=["xylophone"]).what == "Unknown class 'xylophone'."


def test_a_class_request_on_images_without_classes_is_refused():
    images = Images.from_source(
        lambda row: Image.new("L", (2, 2), row), ["a", "b"], torch.tensor([UNLABELLED, UNLABELLED])
    )
    error = refused(Data("flat", (), images, None), classes=["dog"])
    assert "'dog'" in error.what
    assert error.where == "0 classes are known"


def test_a_name_that_two_classes_share_is_refused():
    data = Data("memory", ("crane", "crane"), make_images("train", 6), None)
    assert "'crane'" in refused(data, classes=["crane"]).what


def test_a_class_without_training_images_is_refused():
    data = make_data(train=5)
    error = refused(data, classes=["rose"])
    assert "forget set is empty" in error.what
    assert error.where == "class rose"


def test_an_unknown_column_is_refused_with_the_known_ones():
    error = refused(make_data(), concept=("colour", "red"))
    assert "'colour'" in error.what
    assert error.where == "columns: style"


def test_an_unknown_value_is_refused_with_the_values_of_the_column():
    error = refused(make_data(), style=("style", "sketchy"))
    assert "style = 'sketchy' (24 rows searched)" in error.what
    assert error.where == "style: 'sketch'"
    assert refused(make_data(), style=("style", "xyz")).where == "style: 'oil' or 'photo' or 'sketch'"


def test_a_value_that_only_test_images_have_is_refused():
    data = Data("memory", LABELS, make_images("train", 6, ("photo",)), make_images("test", 6, ("photo", "oil")))
    assert "'oil'" in refused(data, concept=("style", "oil")).what


@pytest.mark.parametrize("request_", [{"classes": LABELS}, {"samples": range(24)}, {"concept": ("all", "yes")}])
def test_a_request_that_covers_everything_is_refused(request_):
    train = make_images("train", 24)
    train = Images.from_source(train.decode, train.all_ids, train.all_targets, {"all": ["yes"] * 24})
    error = refused(Data("memory", LABELS, train, None), **request_)
    assert "all 24 training images" in error.what
    assert error.where == Request(**request_).describe()


def test_a_request_that_names_nothing_is_refused():
    with pytest.raises(RequestError, match="names nothing") as caught:
        split(make_data(), Request())
    assert "Name classes, samples, a concept or a style" in str(caught.value)


@pytest.mark.parametrize("name", ["24", "-1", -1, "train/dog/8.png", "no.png", "²"])
def test_missing_samples_are_listed_and_nothing_is_forgotten(name):
    error = refused(make_data(), samples=[0, name])
    assert "1 of 2 samples" in error.what
    assert "positions 0 to 23" in error.what
    assert "'train/Cat/0.png'" in error.what
    assert error.where == str(name)
    assert "nothing was forgotten" in str(error.fix)


def test_a_sample_that_fits_several_images_is_refused_with_all_of_them():
    names = ["train/cat/0.png", "train/dog/0.png", "train/dog/1.png"]
    images = Images.from_source(lambda row: Image.new("L", (2, 2), row), names, torch.tensor([0, 1, 1]))
    data = Data("memory", ("cat", "dog"), images, None)
    error = refused(data, samples=["0.png"])
    assert "'0.png' fits 2 images" in error.what
    assert error.where == "train/cat/0.png, train/dog/0.png"
    assert ids(split(data, Request(samples=["dog/0.png"])).forget) == {"train/dog/0.png"}


@pytest.mark.parametrize("names", [[7, "train/dog/7.png"], ["7.png", "dog/7.png"]])
def test_one_image_under_two_names_is_a_duplicate(names):
    error = refused(make_data(), samples=names)
    assert repr(names[1]) in error.what
    assert error.where == "train/dog/7.png"


def test_images_passed_whole_are_the_forget_set():
    images = make_images("given", 3)
    splits = forget_only(images)
    assert splits.forget is images
    assert (splits.retain, splits.test, splits.forget_test) == (None, None, None)
    assert splits.request.kind == "images"


def test_labels_are_read_as_often_with_many_classes_as_with_few(monkeypatch):
    """With millions of images in thousands of classes, one read per class would take minutes."""
    reads = []
    targets = Images.targets.fget
    monkeypatch.setattr(Images, "targets", property(lambda images: reads.append(1) or targets(images)))
    counts = []
    for classes in (2, 50):
        names = tuple(f"class {index}" for index in range(classes))
        train = Images.from_source(None, [str(row) for row in range(400)], torch.arange(400) % classes)
        splits = split(Data("here", names, train, None), Request(classes=["class 1"]))
        reads.clear()
        sample = sample_per_class(splits.retain, 2, seed=0)
        assert splits.forgotten_classes() == (1,)
        counts.append(len(reads))
        assert len(sample) == 2 * (classes - 1)
    assert counts[0] == counts[1]


def test_a_class_with_retained_images_is_not_forgotten():
    images = Images.from_source(None, list("abcdef"), torch.tensor([0, 0, 1, 1, 2, 2]))
    data = Data("here", ("x", "y", "z"), images, None)
    assert split(data, Request(samples=["a", "c", "d"])).forgotten_classes() == (1,)
    assert split(data, Request(samples=["a"])).forgotten_classes() == ()


def test_class_counts_leave_out_unlabelled_images():
    images = Images.from_source(None, list("abcdef"), torch.tensor([4, UNLABELLED, 1, 4, UNLABELLED, 4]))
    assert images.class_counts() == {1: 1, 4: 3}
    assert list(images.class_counts()) == [1, 4]
    assert images.take(torch.tensor([1, 4])).class_counts() == {}


def test_an_empty_forget_set_is_refused():
    with pytest.raises(RequestError, match="forget set is empty") as caught:
        forget_only(make_images("given", 0))
    assert "where: the given images" in str(caught.value)


def test_an_image_in_two_sets_is_refused_by_name():
    with pytest.raises(RequestError) as caught:
        Splits(Request(), make_images("a", 2), make_images("b", 2), test=make_images("a", 1))
    assert "two sets, forget and test" in caught.value.what
    assert "where: a/Cat/0.png" in str(caught.value)
    assert caught.value.fix
