"""timm: networks by name, and folders that `timm.create_model("local-dir:…", pretrained=True)` loads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from famr.data.transforms import Preprocessing
from famr.errors import CheckpointError, RequestError
from famr.models.classifier import Classifier
from famr.models.library import ModelLibrary, unknown_name
from famr.models.weights import apply_umask, load_weights


@dataclass(frozen=True)
class TimmArchitecture:
    """A network of timm.

    Attributes:
        name: Its name in timm.
        arguments: Arguments of its constructor, such as `img_size`.
        pretrained_cfg: timm's configuration of the published weights; None for that of the name.
        library: See `Architecture.library`.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pretrained_cfg: Mapping[str, Any] | None = None
    library: str = "timm"

    def build(self, classes: int) -> nn.Module:
        """See `Architecture.build`."""
        return self._create(pretrained=False, num_classes=classes)

    def build_pretrained(self) -> nn.Module:
        """The network with the published weights and head."""
        return self._create(pretrained=True)

    def _create(self, **options: Any) -> nn.Module:
        import timm

        if self.pretrained_cfg is not None:
            options["pretrained_cfg"] = dict(self.pretrained_cfg)
        try:
            module: nn.Module = timm.create_model(
                self.name, pretrained_cfg_overlay=self._overlay() or None, **options, **self.arguments
            )
        except TypeError as error:
            raise RequestError(
                f"The architecture does not take these arguments: {error}.",
                where=f"timm:{self.name}",
                fix="Check --model-arg.",
            ) from error
        return module

    def _overlay(self) -> dict[str, Any]:
        """Input size and channels, where arguments change them; timm would state those of the published weights."""
        size, channels = self.arguments.get("img_size"), self.arguments.get("in_chans", 3)
        if size is None and channels == 3:
            return {}
        height, width = (size, size) if isinstance(size, int) else size or (224, 224)
        overlay: dict[str, Any] = {"input_size": (channels, height, width), "crop_pct": 1.0}
        if channels != 3:
            overlay |= {"mean": (0.5,) * channels, "std": (0.5,) * channels}
        return overlay

    def save(self, classifier: Classifier, folder: Path) -> None:
        """See `Architecture.save`; the layout is timm's own, with class names."""
        from timm.models import save_for_hf

        config = {} if classifier.labels is None else {"label_names": list(classifier.labels)}
        save_for_hf(
            classifier.module,
            str(folder),
            model_config=config,
            model_args=dict(self.arguments) or None,
            safe_serialization=True,
        )
        apply_umask(folder / "model.safetensors")


def known_timm_name(name: str) -> str:
    """Check that timm has a network of this name.

    Args:
        name: With or without the tag of its weights, such as `vit_tiny_patch16_224.augreg_in21k`.

    Returns:
        The name.

    Raises:
        RequestError: It has not; the error lists the nearest names.
    """
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name("timm", name, timm.list_models())
    return name


def untrained_timm(name: str, arguments: Mapping[str, Any]) -> Classifier:
    """A network with random weights and a head of two outputs.

    Args:
        name: Its name in timm.
        arguments: Arguments of its constructor.

    Raises:
        RequestError: timm has no such network, or it does not take these arguments.
    """
    architecture = TimmArchitecture(known_timm_name(name), arguments)
    module = architecture.build(2)
    return Classifier(module, None, timm_preprocessing(module), architecture)


def pretrained_timm(name: str, arguments: Mapping[str, Any]) -> Classifier:
    """A network with the weights that timm publishes, from its cache or the hub.

    Args:
        name: Its name in timm.
        arguments: Arguments of its constructor.

    Raises:
        RequestError: timm has no such network, or it does not take these arguments.
        CheckpointError: The weights cannot be loaded.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset

    architecture = TimmArchitecture(known_timm_name(name), arguments)
    try:
        module = architecture.build_pretrained()
    except RequestError:
        raise
    except Exception as error:  # the hub client raises many types: offline, missing, gated
        raise CheckpointError(
            f"timm could not load pretrained weights ({type(error).__name__}).",
            where=f"timm:{name}",
            fix="Check the network, or give local weights with --weights FILE.",
        ) from error
    subset = infer_imagenet_subset(module)
    labels = label_names(module) or (tuple(ImageNetInfo(subset).label_names()) if subset else None)
    return Classifier(module, labels, timm_preprocessing(module), architecture, f"timm:{name}")


def timm_from_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Classifier:
    """A classifier from a folder written by `TimmArchitecture.save`, or by timm itself.

    Args:
        folder: Its path.
        config: Its config.json.
        tensors: Its weights by name.

    Raises:
        CheckpointError: The weights do not fit the architecture.
    """
    cfg = dict(config.get("pretrained_cfg", {}))
    cfg |= {key: config[key] for key in ("num_classes", "label_names") if key in config}
    architecture = TimmArchitecture(str(config["architecture"]), dict(config.get("model_args") or {}), cfg)
    known_timm_name(architecture.name)
    module = architecture.build(int(config["num_classes"]))
    load_weights(module, tensors, folder.name)
    return Classifier(module, label_names(module), timm_preprocessing(module), architecture, str(folder))


def label_names(module: nn.Module) -> tuple[str, ...] | None:
    """The class names stored in a checkpoint; None where it stores none.

    Args:
        module: A network of timm.
    """
    stored: Any = module.pretrained_cfg.get("label_names")  # type: ignore[operator,union-attr]
    if not stored:
        return None
    return tuple(stored[key] for key in sorted(stored, key=int)) if isinstance(stored, dict) else tuple(stored)


def timm_preprocessing(module: nn.Module) -> Preprocessing:
    """The preprocessing of timm's own evaluation transform.

    Args:
        module: A network of timm.

    Raises:
        CheckpointError: It has a crop mode that famr does not reproduce.
    """
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    _, height, width = config["input_size"]
    scaled = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    resize: int | tuple[int, int]
    if config["crop_mode"] == "squash" or height != width:
        resize = scaled
    elif config["crop_mode"] == "center":
        resize = scaled[0]
    else:
        raise CheckpointError(
            f"The checkpoint's crop mode is {config['crop_mode']!r}, which famr does not support.",
            where="config.json: crop_mode",
            fix="Use a checkpoint with crop_mode center or squash.",
        )
    return Preprocessing(
        resize=resize,
        crop=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
    )


TIMM = ModelLibrary(untrained_timm, pretrained_timm)
