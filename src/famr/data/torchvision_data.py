"""The classification data sets of torchvision, downloaded by torchvision itself where it can."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from famr.data.dataset import Data
from famr.data.images import Images
from famr.errors import DataError, RequestError

NOT_MIRRORED = {"EMNIST", "GTSRB", "KMNIST", "MNIST", "QMNIST", "SVHN", "USPS"}
"""Digits, letters and signs: mirrored, they no longer show their class."""
DEFAULT_ROOT = "data"


def open_torchvision(name: str, root: str | None) -> Data:
    """The training and test part of `torchvision.datasets.NAME`.

    Args:
        name: Class name in torchvision.datasets.
        root: Folder of its files; None for `data`. Missing files are downloaded where torchvision can.

    Raises:
        RequestError: torchvision has no such data set, or none with a training and a test part.
        DataError: The files are missing and cannot be downloaded.
    """
    import torchvision.datasets

    factory = getattr(torchvision.datasets, name, None) if name.isidentifier() else None
    if factory is None or not inspect.isclass(factory):
        raise RequestError(
            f"torchvision has no data set {name!r}.",
            where=f"torchvision:{name}",
            fix="Use a class name of torchvision.datasets, such as CIFAR100 or FashionMNIST.",
        )
    train, test = _open_part(factory, name, root, "train"), _open_part(factory, name, root, "test")
    targets = _targets(train)
    classes = getattr(train, "classes", None) or [str(k) for k in range(int(targets.max()) + 1)]
    return Data(
        spec=f"torchvision:{name}",
        labels=tuple(str(label) for label in classes),
        train=_images(train, "train"),
        test=_images(test, "test"),
        mirror=name not in NOT_MIRRORED,
    )


def _open_part(factory: Any, name: str, root: str | None, part: str) -> Any:
    parameters = inspect.signature(factory).parameters
    options: dict[str, Any] = {"root": root or DEFAULT_ROOT}
    if "train" in parameters:
        options["train"] = part == "train"
    elif "split" in parameters:
        options["split"] = part
    else:
        raise RequestError(
            f"torchvision's {name} has no training and test parts.",
            where=f"torchvision:{name}",
            fix="Export it to class folders and use `folder:PATH`.",
        )
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:  # parts of other names, or further arguments
        raise RequestError(
            f"torchvision's {name} cannot be opened by its name alone: {error}",
            where=f"torchvision:{name}",
            fix="Export it to class folders and use `folder:PATH`.",
        ) from error
    except RuntimeError:  # the files are missing; download them
        pass
    try:
        return factory(**options, **({"download": True} if "download" in parameters else {}))
    except Exception as error:  # URLError, RuntimeError, OSError, …
        raise DataError(
            f"torchvision could not find or download {name} ({type(error).__name__}).",
            where=str(options["root"]),
            fix="Check the network, or put the files there and name the folder with --data-root.",
        ) from error


def _targets(part: Any) -> torch.Tensor:
    for attribute in ("targets", "labels", "_labels"):
        targets = getattr(part, attribute, None)
        if targets is not None:
            return torch.as_tensor(targets, dtype=torch.long)
    return torch.tensor([part[row][1] for row in range(len(part))])


def _images(part: Any, name: str) -> Images:
    return Images.from_source(
        decode=lambda row: part[row][0],
        ids=[f"{name}/{row}" for row in range(len(part))],
        targets=_targets(part),
    )
