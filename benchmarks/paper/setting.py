"""The paper's experiments: its models, its method beside the default, its printed figures with their citation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from famr.baselines import FamrMethod
from famr.bench.methods import FAMR_PAPER, BenchMethod, slug
from famr.bench.results import ResultsFolder, json_text, write_atomic
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
TINY = {
    "ViT-Ti": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2},
    "ViT-S": {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2},
    "ViT-B": {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 2},
    "ViT-L": {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2},
}
"""Stand-ins of growing size that train in seconds: to try the command, not to repeat the paper."""
DEFAULT = "FAMR"


def size_by_name(name: str) -> str:
    """`Ti`, `ti` or `ViT-Ti` to `ViT-Ti`.

    >>> size_by_name("b"), size_by_name("ViT-Ti")
    ('ViT-B', 'ViT-Ti')
    """
    size = {slug(size).removeprefix("vit-"): size for size in SIZES}.get(slug(name).removeprefix("vit-"))
    if size is None:
        raise RequestError(f"The paper has no model {name!r}.", where="--size", fix=f"Use {', '.join(SIZES)}.")
    return size


def paper_and_default() -> tuple[BenchMethod, ...]:
    """The paper's algorithm with its numbers, and the default; both with a history of every epoch."""
    return BenchMethod(FAMR_PAPER, FamrMethod(FAMR.paper(), track=True)), BenchMethod(
        DEFAULT, FamrMethod(FAMR(), track=True)
    )


@cache
def printed() -> dict[str, Any]:
    """The paper's own figures."""
    content: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class SizeRun:
    """A model size in one setting, such as `pretrained`; only models of one setting are compared."""

    size: str
    setting: str

    @property
    def folder(self) -> str:
        """Name of its bench inside the folder of the table."""
        return f"{slug(self.size)}--{slug(self.setting)}"


def run_cells(content: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of one model in one setting."""
    key = (run["size"], run["setting"])
    return [cell for cell in content["cells"] if (cell["size"], cell["setting"]) == key]


def collect(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Every bench in the folder of a table as one object, written to results.json."""
    runs, cells = [], []
    for size in SIZES:
        for file in sorted(folder.glob(f"{slug(size)}--*/bench.json")):
            results = ResultsFolder.reopen(file.parent).results()
            key = {"size": size, "setting": results["settings"]["setting"]}
            cells += [key | cell for cell in results["cells"]]
            runs.append(key | {name: results[name] for name in ("settings", "methods", "tasks", "environment")})
    content = {"benchmark": "paper tables", **facts, "runs": runs, "cells": cells}
    write_atomic(folder / "results.json", json_text(content))
    return content
