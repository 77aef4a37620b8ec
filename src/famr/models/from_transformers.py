"""Hugging Face transformers: hub ids and folders that `AutoModelForImageClassification` loads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from famr.data.transforms import Interpolation, Preprocessing
from famr.errors import CheckpointError
from famr.models.classifier import Classifier
from famr.models.library import ModelLibrary
from famr.models.weights import apply_umask

PILLOW_RESAMPLING: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
PIXEL_TOLERANCE = 0.03
"""Mean difference in normalised units that another resizing kernel may make; any other step makes far more."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class TransformersArchitecture:
    """A network of transformers.

    Attributes:
        config: Its configuration.
        processor: The image processor stored beside it.
        library: See `Architecture.library`.
    """

    config: Any
    processor: Any
    library: str = "transformers"

    @property
    def name(self) -> str:
        """The model type of the configuration."""
        return str(getattr(self.config, "architecture", None) or self.config.model_type)

    def build(self, classes: int) -> nn.Module:
        """See `Architecture.build`."""
        from transformers import AutoModelForImageClassification

        config = copy.deepcopy(self.config)
        config.num_labels = classes
        return cast(nn.Module, AutoModelForImageClassification.from_config(config))

    def save(self, classifier: Classifier, folder: Path) -> None:
        """See `Architecture.save`; the layout is that of `save_pretrained`."""
        module: Any = classifier.module
        if classifier.labels is not None:
            module.config.id2label = dict(enumerate(classifier.labels))
            module.config.label2id = {label: index for index, label in enumerate(classifier.labels)}
        module.save_pretrained(folder)
        self.processor.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            apply_umask(file)


def untrained_transformers(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """A network with random weights and a head of two outputs.

    Args:
        name: Hub id or folder.
        _arguments: Not used; only timm's constructors take arguments.

    Raises:
        CheckpointError: The configuration cannot be read, or famr does not reproduce the preprocessing.
    """
    from transformers import AutoConfig, AutoImageProcessor

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "transformers could not read the configuration.", where=f"hf:{name}", fix="Check the name."
        ) from error
    architecture = TransformersArchitecture(config, processor)
    return Classifier(architecture.build(2), None, checked_preprocessing(processor), architecture)


def pretrained_transformers(name: str, _arguments: Mapping[str, Any]) -> Classifier:
    """A network with the weights of a hub id or folder; no weight is filled in at random.

    Args:
        name: Hub id or folder.
        _arguments: Not used; only timm's constructors take arguments.

    Raises:
        CheckpointError: The checkpoint cannot be loaded, its weights do not fit, or famr does not reproduce the
            preprocessing.
    """
    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        module, info = AutoModelForImageClassification.from_pretrained(
            name,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # listed and refused below, by name
            trust_remote_code=False,
            use_safetensors=True,  # never a pickle; weights.py reads those
            dtype=torch.float32,
        )
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, SafetensorError, hub errors …
        raise CheckpointError(
            f"transformers could not load the checkpoint: {str(error).splitlines()[0]}",
            where=f"hf:{name}",
            fix="Check the name and the network (HF_HUB_OFFLINE=1 allows only what is cached), or give a folder "
            "with config.json, model.safetensors and preprocessor_config.json.",
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(problem):
            keys = ", ".join(str(key) for key in sorted(info[problem], key=str)[:10])
            raise CheckpointError(
                f"The weights do not fit the architecture: {len(info[problem])} {problem.replace('_', ' ')}.",
                where=f"hf:{name}: {keys}",
                fix="Use a complete checkpoint; famr never fills a head at random.",
            )
    config = module.config
    names = tuple(config.id2label[index] for index in range(config.num_labels))
    labels = None if names == tuple(f"LABEL_{index}" for index in range(len(names))) else names
    architecture = TransformersArchitecture(config, processor)
    return Classifier(module, labels, checked_preprocessing(processor), architecture, f"hf:{name}")


def checked_preprocessing(processor: Any) -> Preprocessing:
    """The preprocessing of an image processor, compared with the processor on a test image.

    Args:
        processor: Of transformers.

    Raises:
        CheckpointError: The processor fails, or famr would give the network other pixels.
    """
    preprocessing = processor_preprocessing(processor)
    across, down = torch.linspace(0, 255, 400).expand(300, 400), torch.linspace(0, 255, 300)[:, None].expand(300, 400)
    image = torch.stack([across, down, (across + down) / 2]).to(torch.uint8)  # in colour: swapped channels would show
    try:
        theirs = processor(image.permute(1, 2, 0).numpy(), return_tensors="pt")["pixel_values"][0]
    except Exception as error:  # a processor may raise anything
        raise CheckpointError(
            f"The image processor failed on a test image ({type(error).__name__}).",
            where=type(processor).__name__,
            fix="Use a checkpoint whose processor takes one RGB image.",
        ) from error
    ours = preprocessing.normalise(preprocessing.fit(image))
    if ours.shape != theirs.shape or float((ours - theirs).abs().mean()) > PIXEL_TOLERANCE:
        raise CheckpointError(
            "The image processor prepares images in a way that famr does not reproduce.",
            where=f"{type(processor).__name__}: {tuple(theirs.shape)} against {tuple(ours.shape)}",
            fix="Pass the network as famr.Classifier(module, labels, famr.Preprocessing(…)), or prepared images with "
            "famr.forget(module, forget=loader).",
        )
    return preprocessing


def processor_preprocessing(processor: Any) -> Preprocessing:
    """The preprocessing of an image processor, from its configuration.

    Args:
        processor: Of transformers, or timm's wrapper in transformers.

    Raises:
        CheckpointError: Its image size is of an unknown kind.
    """
    if hasattr(processor, "data_config"):  # a timm checkpoint, wrapped by transformers
        return _timm_wrapper_preprocessing(processor.data_config)
    size = dict(getattr(processor, "size", None) or {})
    crop_size = dict(getattr(processor, "crop_size", None) or {})
    crops = bool(getattr(processor, "do_center_crop", False)) and bool(crop_size)
    resize: int | tuple[int, int]
    if "shortest_edge" in size:
        edge = int(size["shortest_edge"])
        crop_pct = getattr(processor, "crop_pct", None)
        if crops:
            resize, crop = edge, (int(crop_size["height"]), int(crop_size["width"]))
        elif crop_pct is not None and edge < 384:  # ConvNeXt's rule: enlarge, then crop
            resize, crop = int(edge / crop_pct), (edge, edge)
        else:
            resize, crop = (edge, edge), (edge, edge)
    elif "height" in size:
        resize = (int(size["height"]), int(size["width"]))
        crop = (int(crop_size["height"]), int(crop_size["width"])) if crops else resize
    else:
        raise CheckpointError(
            f"famr does not understand the image size {size!r}.",
            where="preprocessor_config.json",
            fix="Use a processor with `height` and `width`, or with `shortest_edge`.",
        )
    normalises = bool(getattr(processor, "do_normalize", True))
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    resample = getattr(processor, "resample", None)
    return Preprocessing(
        resize=resize,
        crop=crop,
        mean=tuple(mean or IMAGENET_MEAN) if normalises else (0.0,) * 3,
        std=tuple(std or IMAGENET_STD) if normalises else (1.0,) * 3,
        interpolation=PILLOW_RESAMPLING[int(resample) if resample is not None else 2],
    )


def _timm_wrapper_preprocessing(config: dict[str, Any]) -> Preprocessing:
    _, height, width = config["input_size"]
    return Preprocessing(
        resize=int(height / config["crop_pct"]),
        crop=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
    )


TRANSFORMERS = ModelLibrary(untrained_transformers, pretrained_transformers)
