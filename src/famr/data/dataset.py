"""A data set: training and test images with one list of class names, opened by a `kind:place` string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from famr.data.images import UNLABELLED, Images, joined
from famr.errors import DataError, RequestError

KINDS = "digits, folder:PATH, parquet:PATH, hf:ID-or-folder, torchvision:NAME"
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Data:
    """Training and test images, and the names of their classes in the order of the class indices."""

    spec: str
    labels: tuple[str, ...]
    train: Images
    test: Images | None
    mirror: bool = True
    """Whether a mirrored image still shows its class (not so for digits)."""

    def everything(self) -> Images:
        """Training and test images together."""
        return self.train if self.test is None else joined(self.train, self.test)

    def with_labels(self, labels: Sequence[str]) -> Data:
        """The same images, their classes matched by name to another order of the same names."""
        unknown = sorted(set(self.labels) - set(labels))
        if unknown:
            raise DataError(
                f"The data has classes that the checkpoint does not know: {', '.join(unknown[:10])}.",
                where=self.spec,
                fix="Use the data the checkpoint was trained on, or rename the classes.",
            )
        if twice := [name for name, count in Counter(labels).items() if count > 1 and name in self.labels]:
            raise DataError(
                f"Several classes share a name, so they cannot be matched by it: {', '.join(twice[:10])}.",
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
    """Open the data that `spec` names.

    A source without test images is split by `split_seed`, class by class, 20 % for testing; with `whole` every
    image stays in `train`. `root` is where torchvision keeps its files; `label_column` names the class column
    of a table that has several.
    """
    kind, _, place = spec.partition(":")
    if kind == "digits" and not place:
        from famr.data.digits import open_digits

        data = open_digits()
    elif kind == "folder" and place:
        from famr.data.folder import open_folder

        data = open_folder(place)
    elif kind == "parquet" and place:
        from famr.data.parquet import open_parquet

        data = open_parquet(place, label_column)
    elif kind == "hf" and place:
        from famr.data.hub import open_hub

        data = open_hub(place, label_column)
    elif kind == "torchvision" and place:
        from famr.data.torchvision_data import open_torchvision

        data = open_torchvision(place, root)
    else:
        raise RequestError(f"Unknown data {spec!r}.", where="the data specification", fix=f"Use one of: {KINDS}.")
    data = replace(data, spec=spec)
    if len(data.train) == 0:
        raise DataError("The data holds no training images.", where=spec, fix="Check the path.")
    if whole:
        return data
    return data if data.test is not None else _hold_out_test(data, split_seed)


def _hold_out_test(data: Data, seed: int) -> Data:
    """Split off every class's share of test images, at least one of each class that has two."""
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(data.train), dtype=torch.bool)
    for target in range(UNLABELLED, len(data.labels)):
        members = (data.train.targets == target).nonzero().squeeze(1)
        count = max(1, round(TEST_SHARE * len(members))) if len(members) > 1 else 0
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return replace(data, train=data.train.where(~held_out), test=data.train.where(held_out))
