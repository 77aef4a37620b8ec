"""What a run knows about the data before it starts."""

from __future__ import annotations

import pytest
import torch

from famr.data import Data, Images
from famr.data.request import Request
from famr.data.splits import split
from famr.unlearn.inputs import RunInputs


def test_labels_are_read_as_often_with_many_classes_as_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """With millions of images in thousands of classes, one read per class would take minutes."""
    reads: list[int] = []
    targets = Images.targets.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Images, "targets", property(lambda images: reads.append(1) or targets(images)))
    counts = []
    for classes in (2, 50):
        names = tuple(f"class {index}" for index in range(classes))
        train = Images.from_source(None, [str(row) for row in range(400)], torch.arange(400) % classes)  # type: ignore[arg-type]
        splits = split(Data("here", names, train, None), Request(classes=["class 1"]))
        reads.clear()
        available = RunInputs(splits).available()
        counts.append(len(reads))
        assert (available.classes, available.fewest) == (classes - 1, 400 // classes)
    assert counts[0] == counts[1]
