"""A folder for SISA: `sisa.json`, and for each shard a model folder with its earlier weights beside it.

sisa.json                                plan, training, the remaining ids; no removed one
shard-0/model.safetensors, config.json   loads in timm, transformers or with `famr.load_model`
shard-0/before-slice-0.safetensors       the starting weights
shard-0/before-slice-1.safetensors       after slice 0, and so on
COMPLETE.json
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from famr.data.augmentation import Augmentation
from famr.errors import CheckpointError
from famr.models import load_model
from famr.models.weights import apply_umask, read_weights
from famr.runs.folder import atomic_folder, write_json
from famr.sisa.ensemble import Shard, Sisa
from famr.sisa.plan import ShardPlan
from famr.storage.digests import check_complete
from famr.training import Training

FORMAT = 1


def save_sisa(sisa: Sisa, target: Path, *, overwrite: bool = False) -> Path:
    """Write an ensemble as a folder, whole or not at all.

    Args:
        sisa: The ensemble.
        target: The folder.
        overwrite: Whether a folder that famr wrote may be replaced.

    Returns:
        `target`.

    Raises:
        RequestError: The folder exists already.
        StorageError: It cannot be written.
    """
    from safetensors.torch import save_file

    module = sisa.shards[0].model.module
    facts = {
        "format": FORMAT,
        "plan": asdict(sisa.plan),
        "training": asdict(sisa.training),
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "environments": list(sisa.environments),
        "ids": list(sisa.ids),
    }
    with atomic_folder(target, overwrite=overwrite) as folder:
        for number, shard in enumerate(sisa.shards):
            shard_folder = folder / f"shard-{number}"
            shard_folder.mkdir()
            shard.model.architecture.save(shard.model, shard_folder)
            for slice_, state in enumerate(shard.before):
                file = shard_folder / f"before-slice-{slice_}.safetensors"
                save_file(dict(state), str(file), metadata={"format": "pt"})
                apply_umask(file)
        write_json(folder / "sisa.json", facts)
    return target


def load_sisa(folder: str | Path, *, module: nn.Module | None = None) -> Sisa:
    """Read what `Sisa.save` wrote.

    Args:
        folder: The folder.
        module: The network, where the shards are bare `nn.Module`s that no library builds.

    Raises:
        CheckpointError: The folder is not one of SISA, was changed since, or is damaged.
    """
    folder = Path(folder)
    check_complete(folder)
    facts = _read_facts(folder / "sisa.json")
    try:
        plan, training = ShardPlan(**facts["plan"]), _training(facts["training"])
        ids, environments, frozen = tuple(facts["ids"]), tuple(facts["environments"]), set(facts["frozen"])
    except (KeyError, TypeError) as error:
        raise CheckpointError("sisa.json is damaged.", where=str(folder), fix="Restore it.") from error
    shards = []
    for number in range(plan.shards):
        shard_folder = folder / f"shard-{number}"
        model = load_model(str(shard_folder), module=copy.deepcopy(module))
        for name, parameter in model.module.named_parameters():
            parameter.requires_grad_(name not in frozen)
        before = (read_weights(shard_folder / f"before-slice-{slice_}.safetensors") for slice_ in range(plan.slices))
        shards.append(Shard(model, tuple(before)))
    return Sisa(plan, training, ids, tuple(shards), environments)


def _read_facts(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(
            "This is no folder of SISA models: it has no sisa.json.",
            where=str(file.parent),
            fix="Name a folder that Sisa.save wrote.",
        )
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError("sisa.json is not JSON.", where=str(file), fix="Restore it.") from error
    if facts.get("format") != FORMAT:
        raise CheckpointError(
            f"sisa.json has the format {facts.get('format')!r}, this version reads {FORMAT}.",
            where=str(file),
            fix="Use the version of famr that wrote it.",
        )
    return facts


def _training(values: Mapping[str, Any]) -> Training:
    augmentation = values["augmentation"]
    return Training(**{**values, "augmentation": None if augmentation is None else Augmentation(**augmentation)})
