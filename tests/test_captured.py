from __future__ import annotations

from collections import Counter

import pytest

from famr.captured import WORTH, worth_capturing


def plan(sizes: list[tuple[int, ...]]) -> list[int]:
    """Which steps of a run would be the first to be captured."""
    seen: Counter[tuple[int, ...]] = Counter()
    captured: set[tuple[int, ...]] = set()
    found = []
    for step, size in enumerate(sizes):
        if size not in captured and worth_capturing(seen, size, left=len(sizes) - step):
            captured.add(size)
            found.append(step)
        seen[size] += 1
    return found


def test_the_usual_size_is_captured_at_its_second_step() -> None:
    assert plan([(128,)] * 40) == [1]


def test_a_short_last_batch_is_captured_only_where_there_are_many_epochs() -> None:
    epoch = [(128,)] * 3 + [(116,)]
    assert plan(epoch * 2) == []
    assert plan(epoch * 12) == [1]
    assert plan(epoch * 100) == [1, 7]


@pytest.mark.parametrize("steps", [1, 2, WORTH])
def test_a_short_run_is_not_captured(steps: int) -> None:
    assert plan([(64, 64)] * steps) == []
