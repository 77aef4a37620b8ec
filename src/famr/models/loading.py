"""`load_model`: a name to a classifier; `new_model`: the same with a head for other classes, to be trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from famr.data.transforms import Preprocessing
from famr.errors import CheckpointError, RequestError
from famr.models.builds import require_matching_builds
from famr.models.classifier import Architecture, Classifier
from famr.models.weights import load_weights, read_weights, refuse_lfs_pointer, require_finite
from famr.storage.digests import check_complete

RESERVED_ARGUMENTS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
"""With these timm would read files that a stranger's configuration names."""
LARGEST_CONFIG = 16 << 20
KINDS = "timm:NAME, hf:ID-or-folder, torchvision:NAME, or the path of a run folder"


def load_model(
    spec: str,
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    module: nn.Module | None = None,
) -> Classifier:
    """The classifier that `spec` names, in evaluation mode; every weight comes from a checkpoint, none is drawn.

    `weights` is a local file (`.safetensors`, or `.pth` of tensors) to be used instead of published weights;
    `arguments` go to timm's constructor (`img_size`, …); `module` is the network of a run folder that was saved
    from a bare `nn.Module`.
    """
    require_matching_builds()
    loaded = _load(spec, weights, arguments or {}, module)
    require_finite(loaded.module.state_dict(), spec)
    if not all(isinstance(label, str) for label in loaded.labels or ()):
        raise CheckpointError("The names of the classes are not text.", where=spec, fix="Restore config.json.")
    loaded.module.eval()
    return loaded


def _load(spec: str, weights: str | Path | None, arguments: Mapping[str, Any], module: nn.Module | None) -> Classifier:
    kind, _, place = spec.partition(":")
    adapter = _adapter(kind) if place else None
    if adapter is not None:
        _require_timm_for(arguments, kind)
        if kind == "hf" and Path(place).is_dir():
            read_config(Path(place))
        if weights is None:
            return adapter.load_pretrained(place, arguments)
        base = adapter.blank(place, arguments)
        tensors = read_weights(Path(weights))
        filled = base.architecture.build(_classes_in(base.architecture, tensors))
        load_weights(filled, tensors, Path(weights).name)
        return replace(base, module=filled, spec=spec)
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
    """A classifier for these classes, ready to be trained: loaded as by `load_model`, with a new random head.

    The old head is kept only where the checkpoint names the same classes in the same order. `from_scratch`
    draws every weight at random.
    """
    kind, _, place = spec.partition(":")
    if from_scratch:
        adapter = _adapter(kind) if place else None
        if adapter is None:
            raise RequestError("Training from scratch needs an architecture.", where=spec, fix="Use timm:NAME.")
        if weights is not None:
            raise RequestError("Training from scratch uses no weights.", where=str(weights), fix="Leave one out.")
        _require_timm_for(arguments or {}, kind)
        base = adapter.blank(place, arguments or {})
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


def head_tensors(architecture: Architecture) -> set[str]:
    """The head: those tensors whose shape depends on the number of classes."""
    with torch.random.fork_rng(devices=[]):
        two, three = (architecture.build(classes).state_dict() for classes in (2, 3))
    return {name for name, tensor in two.items() if tensor.shape != three[name].shape}


def _classes_in(architecture: Architecture, tensors: Mapping[str, torch.Tensor]) -> int:
    sizes = {len(tensors[name]) for name in head_tensors(architecture) if name in tensors}
    if len(sizes) != 1:
        raise CheckpointError(
            "The weights have no head that fits the architecture.",
            where=f"{architecture.library}:{architecture.name}",
            fix="Name the architecture these weights were trained with.",
        )
    return sizes.pop()


def _require_timm_for(arguments: Mapping[str, Any], kind: str) -> None:
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


class _Adapter(Protocol):
    """What each of the modules `from_timm`, `from_transformers` and `from_torchvision` offers."""

    def blank(self, name: str, arguments: Mapping[str, Any], /) -> Classifier: ...

    def load_pretrained(self, name: str, arguments: Mapping[str, Any], /) -> Classifier: ...


def _adapter(kind: str) -> _Adapter | None:
    """The module for `timm:`, `hf:` or `torchvision:`, imported only now."""
    if kind == "timm":
        from famr.models import from_timm

        return from_timm
    if kind == "hf":
        from famr.models import from_transformers

        return from_transformers
    if kind == "torchvision":
        from famr.models import from_torchvision

        return from_torchvision
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
    """The config.json of a folder; one that wants code to be run, or files to be read, is refused, and so are weights
    that Git LFS has not fetched."""
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
    wanted = ["auto_map"] if "auto_map" in config else sorted(RESERVED_ARGUMENTS & set(arguments))
    if wanted:
        raise CheckpointError(
            f"The checkpoint wants its own code run or its own files read ({', '.join(wanted)}); famr does neither.",
            where=str(file),
            fix="Use a checkpoint of an architecture that the library knows.",
        )
    for weights in sorted(folder.glob("*.safetensors")):
        refuse_lfs_pointer(weights)
    return config


def _from_config(folder: Path, config: dict[str, Any], module: nn.Module | None) -> Classifier:
    if "model_type" in config:
        from famr.models import from_transformers

        return replace(from_transformers.load_pretrained(str(folder), {}), spec=str(folder))
    tensors = read_weights(folder / "model.safetensors")
    if config.get("library") == "torchvision":
        from famr.models import from_torchvision

        return from_torchvision.load_folder(folder, config, tensors)
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
        from famr.models import from_timm

        return from_timm.load_folder(folder, config, tensors)
    raise CheckpointError(
        "config.json names neither a timm, a transformers nor a torchvision model.",
        where=str(folder / "config.json"),
        fix=f"Use one of: {KINDS}.",
    )
