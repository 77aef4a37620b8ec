"""`load_model`: a classifier by name; `new_model`: the same with a new head, to be trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from famr.data.transforms import Preprocessing
from famr.errors import CheckpointError, RequestError
from famr.models.builds import require_matching_builds
from famr.models.classifier import Architecture, Classifier
from famr.models.layers import head_tensors
from famr.models.library import ModelLibrary
from famr.models.weights import load_weights, read_weights, refuse_lfs_pointer, require_finite_weights
from famr.storage.digests import check_complete

RESERVED_ARGUMENTS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
"""With these timm would read files that an untrusted configuration names."""
LARGEST_CONFIG = 16 << 20
"""Bytes of a config.json."""
KINDS = "timm:NAME, hf:ID-or-folder, torchvision:NAME, or the path of a run folder"


def load_model(
    spec: str,
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    module: nn.Module | None = None,
) -> Classifier:
    """Load a trained classifier, in evaluation mode; no weight is random.

    Args:
        spec: `timm:NAME`, `hf:ID-or-folder`, `torchvision:NAME`, or the path of a run folder.
        weights: Local file (`.safetensors`, or `.pth` of tensors) to load instead of the published weights.
        arguments: Of timm's constructor, such as `img_size`.
        module: The network, for a run folder that was saved from a bare `nn.Module`.

    Raises:
        RequestError: The name is unknown, or the arguments do not fit it.
        CheckpointError: Weights or configuration are missing, damaged, unsafe or do not fit the architecture.
    """
    require_matching_builds()
    loaded = _load(spec, weights, arguments or {}, module)
    require_finite_weights(loaded.module.state_dict(), spec)
    if not all(isinstance(label, str) for label in loaded.labels or ()):
        raise CheckpointError("The names of the classes are not text.", where=spec, fix="Restore config.json.")
    loaded.module.eval()
    return loaded


def _load(spec: str, weights: str | Path | None, arguments: Mapping[str, Any], module: nn.Module | None) -> Classifier:
    kind, _, name = spec.partition(":")
    library = _library(kind) if name else None
    if library is not None:
        _check_arguments(arguments, kind)
        if kind == "hf" and Path(name).is_dir():
            read_config(Path(name))
        if weights is None:
            return library.pretrained(name, arguments)
        untrained = library.untrained(name, arguments)
        tensors = read_weights(Path(weights))
        trained = untrained.architecture.build(_class_count(untrained.architecture, tensors))
        load_weights(trained, tensors, Path(weights).name)
        return replace(untrained, module=trained, spec=spec)
    folder = Path(spec)
    if not folder.is_dir():
        raise CheckpointError("There is no such model.", where=spec, fix=f"Use one of: {KINDS}.")
    if weights is not None or arguments:
        raise RequestError(
            "A run folder brings its own weights and arguments.",
            where=spec,
            fix="Leave out --weights and --model-arg, or name the architecture: timm:NAME.",
        )
    return _load_folder(folder, module)


def new_model(
    spec: str,
    labels: Sequence[str],
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    from_scratch: bool = False,
    seed: int = 0,
) -> Classifier:
    """A classifier for other classes, to be trained: loaded as by `load_model`, with a new random head.

    The old head is kept only where the checkpoint has the same class names in the same order.

    Args:
        spec: As for `load_model`.
        labels: Class names by index.
        weights: As for `load_model`.
        arguments: As for `load_model`.
        from_scratch: Draw every weight at random, not only the head.
        seed: Of the random weights.

    Raises:
        RequestError: `from_scratch` with a run folder or with weights; else as `load_model`.
        CheckpointError: As `load_model`.
    """
    kind, _, name = spec.partition(":")
    if from_scratch:
        library = _library(kind) if name else None
        if library is None:
            raise RequestError("Training from scratch needs an architecture.", where=spec, fix="Use timm:NAME.")
        if weights is not None:
            raise RequestError("Training from scratch uses no weights.", where=str(weights), fix="Leave one out.")
        _check_arguments(arguments or {}, kind)
        base = library.untrained(name, arguments or {})
    else:
        base = load_model(spec, weights=weights, arguments=arguments)
        if base.labels == tuple(labels):
            return base
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = base.architecture.build(len(labels))
    if not from_scratch:
        head = head_tensors(base.architecture)
        body = {name: tensor for name, tensor in base.module.state_dict().items() if name not in head}
        fresh.load_state_dict(body, strict=False)
    return replace(base, module=fresh, labels=tuple(labels), spec=spec)


def _class_count(architecture: Architecture, tensors: Mapping[str, torch.Tensor]) -> int:
    sizes = {len(tensors[name]) for name in head_tensors(architecture) if name in tensors}
    if len(sizes) != 1:
        raise CheckpointError(
            "The weights have no head that fits the architecture.",
            where=f"{architecture.library}:{architecture.name}",
            fix="Name the architecture these weights were trained with.",
        )
    return sizes.pop()


def _check_arguments(arguments: Mapping[str, Any], kind: str) -> None:
    if arguments and kind != "timm":
        raise RequestError(
            f"Only timm's architectures take arguments, got {', '.join(arguments)}.", where=kind, fix="Leave them out."
        )
    if reserved := sorted(RESERVED_ARGUMENTS & set(arguments)):
        raise RequestError(
            f"These are no arguments of an architecture: {', '.join(reserved)}.",
            where=kind,
            fix="Name weights with --weights; famr reads them itself.",
        )


def _library(kind: str) -> ModelLibrary | None:
    """The library of `timm:`, `hf:` or `torchvision:`, imported here because each import takes seconds."""
    if kind == "timm":
        from famr.models.from_timm import TIMM

        return TIMM
    if kind == "hf":
        from famr.models.from_transformers import TRANSFORMERS

        return TRANSFORMERS
    if kind == "torchvision":
        from famr.models.from_torchvision import TORCHVISION

        return TORCHVISION
    return None


def _load_folder(folder: Path, module: nn.Module | None) -> Classifier:
    check_complete(folder)
    config = read_config(folder)
    try:
        return _from_config(folder, config, module)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, AssertionError) as error:
        raise CheckpointError(
            f"config.json does not describe a network ({type(error).__name__}: {error}).",
            where=str(folder / "config.json"),
            fix="Restore it.",
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder with a checkpoint.

    Args:
        folder: Of a run, or of a library.

    Raises:
        CheckpointError: It is missing, not a JSON object, or would run code or read other files; or the folder's
            weights are a pointer of Git LFS.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError("The folder has no config.json.", where=str(folder), fix="Name a run folder.")
    try:
        if file.stat().st_size > LARGEST_CONFIG:
            raise CheckpointError("config.json is far too large.", where=str(file), fix="Restore it.")
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError("config.json is not JSON.", where=str(file), fix="Restore it.") from error
    arguments = (config.get("model_args") or {}) if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(arguments, dict):
        raise CheckpointError("config.json does not hold JSON objects.", where=str(file), fix="Restore it.")
    unsafe = ["auto_map"] if "auto_map" in config else sorted(RESERVED_ARGUMENTS & set(arguments))
    if unsafe:
        raise CheckpointError(
            f"The checkpoint wants its own code run or its own files read ({', '.join(unsafe)}); famr does neither.",
            where=str(file),
            fix="Use a checkpoint of an architecture that the library knows.",
        )
    for weights in sorted(folder.glob("*.safetensors")):
        refuse_lfs_pointer(weights)
    return config


def _from_config(folder: Path, config: dict[str, Any], module: nn.Module | None) -> Classifier:
    if "model_type" in config:
        from famr.models.from_transformers import pretrained_transformers

        return replace(pretrained_transformers(str(folder), {}), spec=str(folder))
    tensors = read_weights(folder / "model.safetensors")
    if config.get("library") == "torchvision":
        from famr.models.from_torchvision import torchvision_from_folder

        return torchvision_from_folder(folder, config, tensors)
    if config.get("library") == "none":
        if module is None:
            raise CheckpointError(
                "This run was saved from a bare nn.Module; its code is not in the folder.",
                where=str(folder),
                fix="Pass the network: load_model(folder, module=…).",
            )
        load_weights(module, tensors, folder.name)
        labels = tuple(config["label_names"]) if config.get("label_names") else None
        stored = config.get("preprocessing")
        return Classifier(module, labels, Preprocessing.from_json(stored) if stored else None, spec=str(folder))
    if "architecture" in config:
        from famr.models.from_timm import timm_from_folder

        return timm_from_folder(folder, config, tensors)
    raise CheckpointError(
        "config.json names neither a timm, a transformers nor a torchvision model.",
        where=str(folder / "config.json"),
        fix=f"Use one of: {KINDS}.",
    )
