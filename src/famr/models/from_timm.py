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
from famr.models.names import unknown_name
from famr.models.weights import load_weights, share_as_umask_says


@dataclass(frozen=True)
class TimmArchitecture:
    """A timm model name, its constructor's arguments, and the pretrained configuration it goes with."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pretrained_cfg: Mapping[str, Any] | None = None
    library: str = "timm"

    def build(self, classes: int) -> nn.Module:
        """The network with random weights."""
        return self._create(pretrained=False, num_classes=classes)

    def build_pretrained(self) -> nn.Module:
        """The network with the weights and the head that timm publishes."""
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
        """timm keeps announcing the size a network was published with; correct it where arguments change it."""
        size, channels = self.arguments.get("img_size"), self.arguments.get("in_chans", 3)
        if size is None and channels == 3:
            return {}
        height, width = (size, size) if isinstance(size, int) else size or (224, 224)
        overlay: dict[str, Any] = {"input_size": (channels, height, width), "crop_pct": 1.0}
        if channels != 3:
            overlay |= {"mean": (0.5,) * channels, "std": (0.5,) * channels}
        return overlay

    def save(self, classifier: Classifier, folder: Path) -> None:
        """`model.safetensors` and `config.json` in timm's own layout, class names included."""
        from timm.models import save_for_hf

        config = {} if classifier.labels is None else {"label_names": list(classifier.labels)}
        save_for_hf(
            classifier.module,
            str(folder),
            model_config=config,
            model_args=dict(self.arguments) or None,
            safe_serialization=True,
        )
        share_as_umask_says(folder / "model.safetensors")


def known_timm_name(name: str) -> str:
    """`name`, if timm knows it; else an error with the nearest names."""
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name("timm", name, timm.list_models())
    return name


def blank(name: str, arguments: Mapping[str, Any]) -> Classifier:
    """The architecture, its weights still to come."""
    architecture = TimmArchitecture(known_timm_name(name), arguments)
    module = architecture.build(2)
    return Classifier(module, None, timm_preprocessing(module), architecture)


def load_pretrained(name: str, arguments: Mapping[str, Any]) -> Classifier:
    """The weights that timm publishes under this name, from its cache or the hub."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    architecture = TimmArchitecture(known_timm_name(name), arguments)
    try:
        module = architecture.build_pretrained()
    except RequestError:
        raise
    except Exception as error:  # whatever the hub client raises: offline, missing, gated
        raise CheckpointError(
            f"timm could not load pretrained weights ({type(error).__name__}).",
            where=f"timm:{name}",
            fix="Check the network, or give local weights with --weights FILE.",
        ) from error
    subset = infer_imagenet_subset(module)
    labels = label_names(module) or (tuple(ImageNetInfo(subset).label_names()) if subset else None)
    return Classifier(module, labels, timm_preprocessing(module), architecture, f"timm:{name}")


def load_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Classifier:
    """A folder written by `TimmArchitecture.save`, or by timm itself."""
    cfg = dict(config.get("pretrained_cfg", {}))
    cfg |= {key: config[key] for key in ("num_classes", "label_names") if key in config}
    architecture = TimmArchitecture(str(config["architecture"]), dict(config.get("model_args") or {}), cfg)
    known_timm_name(architecture.name)
    module = architecture.build(int(config["num_classes"]))
    load_weights(module, tensors, folder.name)
    return Classifier(module, label_names(module), timm_preprocessing(module), architecture, str(folder))


def label_names(module: nn.Module) -> tuple[str, ...] | None:
    """The class names a checkpoint carries, where it carries them."""
    stored: Any = module.pretrained_cfg.get("label_names")  # type: ignore[operator,union-attr]
    if not stored:
        return None
    return tuple(stored[key] for key in sorted(stored, key=int)) if isinstance(stored, dict) else tuple(stored)


def timm_preprocessing(module: nn.Module) -> Preprocessing:
    """As timm's own evaluation transform does it."""
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
            f"The checkpoint wants its images cropped in the mode {config['crop_mode']!r}, which famr does not do.",
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
