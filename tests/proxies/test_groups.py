"""Who leaves out what: near classes apart, every image left out by some proxy that knows its class."""

from __future__ import annotations

import pytest
import torch

import famr
from famr.data import Data
from famr.errors import RequestError
from famr.proxies.groups import class_groups, class_similarity, folds


def similarity(pairs: list[tuple[int, int]], classes: int) -> torch.Tensor:
    matrix = torch.zeros(classes, classes)
    for first, second in pairs:
        matrix[first, second] = matrix[second, first] = 1.0
    return matrix


def test_similar_classes_are_left_out_by_different_proxies() -> None:
    pairs = [(index, index + 1) for index in range(0, 20, 2)]
    groups = class_groups(similarity(pairs, 20), 5)
    assert all(groups[first] != groups[second] for first, second in pairs)


@pytest.mark.parametrize(("classes", "count"), [(10, 10), (100, 10), (7, 3), (2, 3)])
def test_groups_have_about_the_same_size(classes: int, count: int) -> None:
    draws = torch.rand(classes, classes, generator=torch.Generator().manual_seed(0))
    groups = class_groups((draws + draws.T).fill_diagonal_(0), count)
    sizes = torch.bincount(torch.tensor(groups), minlength=count)
    assert len(groups) == classes
    assert int(sizes.max()) <= -(-classes // count)


def test_two_groups_are_refused_as_one_proxy_would_see_next_to_nothing() -> None:
    with pytest.raises(RequestError, match="at least 3"):
        class_groups(torch.zeros(4, 4), 2)


def test_similarity_is_how_often_classes_are_confused() -> None:
    targets = torch.tensor([0, 0, 1, 2])
    p = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = class_similarity(p, targets, 3)
    by_hand = (p[:2, 1].mean() + p[2, 0]) / 2
    torch.testing.assert_close(found[0, 1], by_hand)
    assert torch.equal(found, found.T)


def test_a_sample_is_left_out_by_a_proxy_that_knows_its_class(digits: Data) -> None:
    some = digits.train.take(torch.arange(300))
    groups = tuple(range(10))
    fold = folds(some, 1, groups, 10)
    assert bool((fold != some.targets).all())
    shares = torch.bincount(fold, minlength=10) / len(some)
    assert 0.04 < float(shares.min()) <= float(shares.max()) < 0.2


def test_the_fold_of_an_image_follows_from_its_pixels_and_not_from_its_place_or_name(digits: Data) -> None:
    some = digits.train.take(torch.arange(40))
    backwards = digits.train.take(torch.arange(39, -1, -1))
    renamed = famr.open_data("digits").train.take(torch.arange(40))
    renamed.all_ids[:] = [f"copy of {id_}" for id_ in renamed.all_ids]  # type: ignore[index]
    groups = tuple(range(10))
    fold = folds(some, 1, groups, 10)
    assert torch.equal(folds(backwards, 1, groups, 10).flip(0), fold)
    assert torch.equal(folds(renamed, 1, groups, 10), fold)
