"""The classification data sets of torchvision, downloaded by torchvision itself where it can."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from famr.data.dataset import Data
from famr.data.images import Images
from famr.errors import DataError, RequestError

READABLE_ONE_WAY = {"EMNIST", "GTSRB", "KMNIST", "MNIST", "QMNIST", "SVHN", "USPS"}
DEFAULT_ROOT = "data"


def open_torchvision(name: str, root: str | None) -> Data:
    """`torchvision.datasets.NAME`, its training and its test part; its files lie in `root`."""
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
        mirror=name not in READABLE_ONE_WAY,
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
    except RuntimeError:  # not there yet: torchvision's way of saying so
        pass
    try:
        return factory(**options, **({"download": True} if "download" in parameters else {}))
    except Exception as error:  # URLError, RuntimeError, OSError … whatever the mirror did
        raise DataError(
            f"torchvision could not find or download {name} ({type(error).__name__}).",
            where=str(options["root"]),
            fix="Check the network, or put the files there and name the folder with --data-root.",
        ) from error


def _targets(part: Any) -> torch.Tensor:
    for attribute in ("targets", "labels", "_labels"):
        found = getattr(part, attribute, None)
        if found is not None:
            return torch.as_tensor(found, dtype=torch.long)
    return torch.tensor([part[row][1] for row in range(len(part))])


def _images(part: Any, name: str) -> Images:
    return Images.from_source(
        decode=lambda row: part[row][0],
        ids=[f"{name}/{row}" for row in range(len(part))],
        targets=_targets(part),
    )
