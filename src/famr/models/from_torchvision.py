"""torchvision: networks by name, and folders that `get_model` + `load_state_dict` load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from famr.data.transforms import Preprocessing
from famr.errors import CheckpointError
from famr.models.classifier import Classifier, save_plain
from famr.models.library import ModelLibrary, unknown_name
from famr.models.weights import load_weights

NORMALISES_AGAIN = {"googlenet", "inception_v3"}
"""Networks whose published weights expect the input to be normalised once more inside the network."""


@dataclass(frozen=True)
class TorchvisionArchitecture:
    """A network of torchvision.

    Attributes:
        name: Its name in torchvision.
        library: See `Architecture.library`.
    """

    name: str
    library: str = "torchvision"

    def build(self, classes: int) -> nn.Module:
        """See `Architecture.build`."""
        from torchvision.models import get_model

        options = {"transform_input": True} if self.name in NORMALISES_AGAIN else {}
        return cast(nn.Module, get_model(self.name, weights=None, num_classes=classes, **options))

    def save(self, classifier: Classifier, folder: Path) -> None:
        """See `Architecture.save`; config.json says how to build the network."""
        save_plain(classifier, folder)


def known_torchvision_name(name: str) -> str:
    """Check that torchvision has a classifier of this name.

    Args:
        name: Such as `resnet18`.

    Returns:
        The name.

    Raises:
        RequestError: It has not; the error lists the nearest names.
    """
    import torchvision.models

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise unknown_name("torchvision", name, names)
    return name


def untrained_torchvision(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """A network with random weights and a head of two outputs.

    Args:
        name: Its name in torchvision.
        _arguments: Not used; only timm's constructors take arguments.

    Raises:
        RequestError: torchvision has no such classifier.
    """
    architecture = TorchvisionArchitecture(known_torchvision_name(name))
    return Classifier(architecture.build(2), None, published_preprocessing(name), architecture)


def pretrained_torchvision(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """A network with torchvision's best published weights, from its cache or downloaded.

    Args:
        name: Its name in torchvision.
        _arguments: Not used; only timm's constructors take arguments.

    Raises:
        RequestError: torchvision has no such classifier.
        CheckpointError: The weights cannot be loaded.
    """
    from torchvision.models import get_model_weights

    weights: Any = get_model_weights(known_torchvision_name(name)).DEFAULT
    try:
        tensors = weights.get_state_dict(progress=False, check_hash=True)
    except Exception as error:  # URLError, RuntimeError for a bad hash, OSError …
        raise CheckpointError(
            f"torchvision could not load pretrained weights ({type(error).__name__}).",
            where=f"torchvision:{name}",
            fix="Check the network, or give local weights with --weights FILE.",
        ) from error
    architecture = TorchvisionArchitecture(name)
    labels = tuple(weights.meta["categories"])
    module = architecture.build(len(labels))
    load_weights(module, tensors, f"torchvision:{name}")
    return Classifier(module, labels, published_preprocessing(name), architecture, f"torchvision:{name}")


def torchvision_from_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Classifier:
    """A classifier from a folder written by `TorchvisionArchitecture.save`.

    Args:
        folder: Its path.
        config: Its config.json.
        tensors: Its weights by name.

    Raises:
        CheckpointError: The weights do not fit the architecture.
    """
    architecture = TorchvisionArchitecture(known_torchvision_name(str(config["architecture"])))
    module = architecture.build(int(config["num_classes"]))
    load_weights(module, tensors, folder.name)
    labels = tuple(config["label_names"]) if config.get("label_names") else None
    preprocessing = Preprocessing.from_json(config["preprocessing"])
    return Classifier(module, labels, preprocessing, architecture, str(folder))


def published_preprocessing(name: str) -> Preprocessing:
    """The preprocessing that torchvision publishes with a network's weights.

    Args:
        name: Its name in torchvision.
    """
    from torchvision.models import get_model_weights

    transform: Any = get_model_weights(name).DEFAULT.transforms()
    return Preprocessing(
        resize=int(transform.resize_size[0]),
        crop=(int(transform.crop_size[0]), int(transform.crop_size[0])),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        interpolation=transform.interpolation.value,
    )


TORCHVISION = ModelLibrary(untrained_torchvision, pretrained_torchvision)
