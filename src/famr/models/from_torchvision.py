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
from famr.models.names import unknown_name
from famr.models.weights import load_weights

PUBLISHED_WITH_TRANSFORM = {"googlenet", "inception_v3"}
"""Networks whose published weights expect the input to be normalised once more inside."""


@dataclass(frozen=True)
class TorchvisionArchitecture:
    """A model name of torchvision, and how its images are prepared."""

    name: str
    library: str = "torchvision"

    def build(self, classes: int) -> nn.Module:
        """The network with random weights."""
        from torchvision.models import get_model

        options = {"transform_input": True} if self.name in PUBLISHED_WITH_TRANSFORM else {}
        return cast(nn.Module, get_model(self.name, weights=None, num_classes=classes, **options))

    def save(self, classifier: Classifier, folder: Path) -> None:
        """`model.safetensors` and a `config.json` that says how to build the network around it."""
        save_plain(classifier, folder)


def known_torchvision_name(name: str) -> str:
    """`name`, if torchvision has such a classifier; else an error with the nearest names."""
    import torchvision.models

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise unknown_name("torchvision", name, names)
    return name


def blank(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """The architecture, its weights still to come."""
    architecture = TorchvisionArchitecture(known_torchvision_name(name))
    return Classifier(architecture.build(2), None, published_preprocessing(name), architecture)


def load_pretrained(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """torchvision's best published weights, from its cache or the network."""
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


def load_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Classifier:
    """A folder written by `TorchvisionArchitecture.save`."""
    architecture = TorchvisionArchitecture(known_torchvision_name(str(config["architecture"])))
    module = architecture.build(int(config["num_classes"]))
    load_weights(module, tensors, folder.name)
    labels = tuple(config["label_names"]) if config.get("label_names") else None
    preprocessing = Preprocessing.from_json(config["preprocessing"])
    return Classifier(module, labels, preprocessing, architecture, str(folder))


def published_preprocessing(name: str) -> Preprocessing:
    """The transform that torchvision publishes with the weights of this name."""
    from torchvision.models import get_model_weights

    transform: Any = get_model_weights(name).DEFAULT.transforms()
    return Preprocessing(
        resize=int(transform.resize_size[0]),
        crop=(int(transform.crop_size[0]), int(transform.crop_size[0])),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        interpolation=transform.interpolation.value,
    )
