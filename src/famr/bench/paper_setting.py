"""The paper's experiments: its models, its method beside the default, its printed figures with their citation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from famr.baselines import FamrMethod as Ours
from famr.bench.contenders import PAPER, Contender, slug
from famr.bench.records import Records, as_json, results, write_whole
from famr.config import FAMR
from famr.errors import RequestError

SIZES = {
    "ViT-Ti": "timm:vit_tiny_patch16_224",
    "ViT-S": "timm:vit_small_patch16_224",
    "ViT-B": "timm:vit_base_patch16_224",
    "ViT-L": "timm:vit_large_patch16_224",
}
SMALL = ("ViT-Ti", "ViT-S")
LARGE = ("ViT-B", "ViT-L")
LITTLE = {
    "ViT-Ti": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2},
    "ViT-S": {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2},
    "ViT-B": {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 2},
    "ViT-L": {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2},
}
"""Stand-ins of growing size that train in seconds: to try the commands, not to repeat the paper."""
DEFAULT = "FAMR"


def size_called(name: str, option: str = "--size", also: Sequence[str] = ()) -> str:
    """`Ti`, `ti` or `ViT-Ti`. Of another name the error says which option had it, and what else that knows.

    >>> size_called("b"), size_called("ViT-Ti")
    ('ViT-B', 'ViT-Ti')
    """
    found = {slug(size).removeprefix("vit-"): size for size in SIZES}.get(slug(name).removeprefix("vit-"))
    if found is None:
        known = ", ".join([*SIZES, *also])
        raise RequestError(f"The paper has no model {name!r}.", where=option, fix=f"Use {known}.")
    return found


def presets(paper: FAMR | None = None, default: FAMR | None = None) -> tuple[Contender, ...]:
    """The paper's algorithm with its numbers, and the default; both are followed epoch by epoch."""
    return (
        Contender(PAPER, Ours(paper or FAMR.paper(), track=True)),
        Contender(DEFAULT, Ours(default or FAMR(), track=True)),
    )


@cache
def printed() -> dict[str, Any]:
    """The paper's own figures."""
    text = files("famr.bench").joinpath("paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@dataclass(frozen=True)
class Subject:
    """A model size in one setting: where it starts, and at which size of images."""

    size: str
    setting: str

    @property
    def folder(self) -> str:
        """Where its bench lies inside the folder of the table."""
        return f"{slug(self.size)}--{slug(self.setting)}"


def cells_of(content: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of one model in one setting."""
    named = (run["size"], run["setting"])
    return [cell for cell in content["cells"] if (cell["size"], cell["setting"]) == named]


def gather(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Every bench that lies in the folder of a table, as one object, written to results.json."""
    runs, cells = [], []
    for size in SIZES:
        for place in sorted(folder.glob(f"{slug(size)}--*/bench.json")):
            found = results(Records.reopened(place.parent))
            named = {"size": size, "setting": found["settings"]["setting"]}
            cells += [named | cell for cell in found.pop("cells")]
            runs.append(named | {name: found[name] for name in ("settings", "methods", "tasks", "environment")})
    content = {"benchmark": "paper tables", **facts, "runs": runs, "cells": cells}
    write_whole(folder / "results.json", as_json(content))
    return content
