"""A data set: training and test images with one list of class names, opened by a `kind:path` string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from famr.data.images import UNLABELLED, Images, concatenate_images
from famr.errors import DataError, RequestError

KINDS = "digits, folder:PATH, parquet:PATH, hf:ID-or-folder, torchvision:NAME"
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Data:
    """Training and test images with their class names.

    Attributes:
        spec: The string that opened the data.
        labels: Class names in the order of the class indices.
        train: Training images.
        test: Test images; None where the source has none and none were split off.
        mirror: Whether a mirrored image still shows its class (not so for digits).
    """

    spec: str
    labels: tuple[str, ...]
    train: Images
    test: Images | None
    mirror: bool = True

    def everything(self) -> Images:
        """Training and test images together."""
        return self.train if self.test is None else concatenate_images(self.train, self.test)

    def with_labels(self, labels: Sequence[str]) -> Data:
        """The same images with their classes matched by name to another list of class names.

        Args:
            labels: Class names, such as those of a checkpoint; all of the data's names must be among them.

        Raises:
            DataError: A class of the data is not among `labels`, or several classes share its name.
        """
        unknown = sorted(set(self.labels) - set(labels))
        if unknown:
            raise DataError(
                f"The data has classes that the checkpoint does not know: {', '.join(unknown[:10])}.",
                where=self.spec,
                fix="Use the data the checkpoint was trained on, or rename the classes.",
            )
        if duplicates := [name for name, count in Counter(labels).items() if count > 1 and name in self.labels]:
            raise DataError(
                f"Several classes share a name, so they cannot be matched by it: {', '.join(duplicates[:10])}.",
                where=self.spec,
                fix="Give every class a name of its own.",
            )
        mapping = [list(labels).index(name) for name in self.labels]
        return replace(
            self,
            labels=tuple(labels),
            train=self.train.with_targets(mapping),
            test=None if self.test is None else self.test.with_targets(mapping),
        )


def open_data(
    spec: str,
    *,
    root: str | None = None,
    label_column: str | None = None,
    split_seed: int = 0,
    whole: bool = False,
) -> Data:
    """Open a data set by name.

    Args:
        spec: `digits`, `folder:PATH`, `parquet:PATH`, `hf:ID-or-folder` or `torchvision:NAME`.
        root: Folder of torchvision's files; None for `data`.
        label_column: Class column of a table that has several; None for one with a common name, or the only one.
        split_seed: Of the split of a source without test images: 20 % of each class, at least one image of a class that
            has two.
        whole: Keep every image of such a source in `train`.

    Raises:
        RequestError: `spec` is of no known kind, or needs a package that is not installed.
        DataError: The data is missing, unreadable or without training images.
    """
    kind, _, path = spec.partition(":")
    if kind == "digits" and not path:
        from famr.data.digits import open_digits

        data = open_digits()
    elif kind == "folder" and path:
        from famr.data.folder import open_folder

        data = open_folder(path)
    elif kind == "parquet" and path:
        from famr.data.parquet import open_parquet

        data = open_parquet(path, label_column)
    elif kind == "hf" and path:
        from famr.data.hub import open_hub

        data = open_hub(path, label_column)
    elif kind == "torchvision" and path:
        from famr.data.torchvision_data import open_torchvision

        data = open_torchvision(path, root)
    else:
        raise RequestError(f"Unknown data {spec!r}.", where="the data specification", fix=f"Use one of: {KINDS}.")
    data = replace(data, spec=spec)
    if len(data.train) == 0:
        raise DataError("The data holds no training images.", where=spec, fix="Check the path.")
    return data if whole or data.test is not None else _hold_out_test(data, split_seed)


def _hold_out_test(data: Data, seed: int) -> Data:
    """Split off a share of each class for testing, at least one image of each class that has two."""
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(data.train), dtype=torch.bool)
    for target in range(UNLABELLED, len(data.labels)):
        members = (data.train.targets == target).nonzero().squeeze(1)
        count = max(1, round(TEST_SHARE * len(members))) if len(members) > 1 else 0
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return replace(data, train=data.train.where(~held_out), test=data.train.where(held_out))
