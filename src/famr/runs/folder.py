"""The run folder: all results of a run, written to a temporary folder beside it and renamed once."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from famr._version import __version__
from famr.data.request import Request
from famr.data.splits import EarlierRequest
from famr.errors import CheckpointError, RequestError, StorageError
from famr.models import Classifier
from famr.models.weights import save_tensors
from famr.storage.digests import COMPLETE, check_complete, seal, seal_without
from famr.storage.leftovers import sweep_inside
from famr.storage.locks import locked
from famr.storage.portable_paths import with_local_paths, with_portable_paths
from famr.storage.space import require_space
from famr.storage.staging import atomic_file as atomic_file
from famr.storage.staging import atomic_folder as atomic_folder
from famr.storage.staging import check_output as check_output

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "safetensors", "pillow", "numpy")


def environment(device: str) -> dict[str, Any]:
    """Hardware and versions that a run was made with; no host, user or path.

    Args:
        device: Name of the device.
    """
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    versions = {library: metadata.version(library) for library in LIBRARIES}
    return {
        "device": device,
        "hardware": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "famr": __version__,
        **versions,
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one indented JSON object in UTF-8.

    Args:
        path: The file; its folder is created.
        content: The object.

    Raises:
        ValueError: A number is not finite, which JSON cannot write.
    """
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line.

    Args:
        path: The file; its folder is created.
        rows: The objects.

    Raises:
        ValueError: A number is not finite, which JSON cannot write.
    """
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")


def weight_bytes(model: Classifier) -> int:
    """Bytes of a model's weights and buffers.

    Args:
        model: The model.
    """
    return sum(tensor.nbytes for tensor in model.module.state_dict().values())


def write_run(
    target: Path,
    model: Classifier,
    section: str,
    run: Mapping[str, Any],
    *,
    history: Iterable[Mapping[str, Any]],
    files: Mapping[str, Mapping[str, Any] | None],
    card: str,
    tensors: Mapping[str, Mapping[str, Tensor] | None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a run folder, whole or not at all.

    Args:
        target: The folder.
        model: Its weights and configuration are written as its own library does.
        section: Subfolder of the records: `unlearning` or `training`.
        run: Content of run.json; paths in it are stored relative to the folder.
        history: Rows of history.jsonl.
        files: Further JSON files of the section by name; None leaves one out.
        card: README.md.
        tensors: Safetensors files of the section by name; None leaves one out.
        overwrite: Replace a folder that famr wrote.

    Returns:
        The folder.

    Raises:
        StorageError: There is no room, or the folder exists.
    """
    require_space(target, weight_bytes(model))
    with atomic_folder(target, overwrite=overwrite) as folder:
        model.architecture.save(model, folder)
        for name, content in files.items():
            if content is not None:
                write_json(folder / section / name, content)
        for name, content in (tensors or {}).items():
            if content is not None:
                save_tensors(content, folder / section / name)
        write_lines(folder / section / "history.jsonl", history)
        write_json(folder / section / "run.json", with_portable_paths(run, target))
        (folder / "README.md").write_text(card, encoding="utf-8")
    return target


def add_to_run(folder: Path, files: Mapping[str, str]) -> None:
    """Add files to a finished run, each whole or not at all, and seal it again.

    Files that are about to change leave the seal first, so that a kill at any moment leaves a run whose seal is valid.

    Args:
        folder: The run folder; it is as it was sealed.
        files: Content by path relative to the folder.

    Raises:
        CheckpointError: A sealed file was changed or is missing.
        StorageError: A file cannot be written, or lies outside of the folder.
    """
    with locked(folder):
        check_complete(folder)
        sweep_inside(folder)
        for name in files:
            if not (folder / name).parent.resolve().is_relative_to(folder.resolve()):
                raise StorageError(
                    "A folder of the run is a link that leads out of it; nothing is written there.",
                    where=str((folder / name).parent),
                    fix="Restore the folder from a copy.",
                )
        if (smaller_seal := seal_without(folder, files)) is not None:
            with atomic_file(folder / COMPLETE) as staging:
                staging.write_text(smaller_seal, encoding="utf-8")
        for name, content in files.items():
            with atomic_file(folder / name) as staging:
                staging.write_text(content, encoding="utf-8")
        with atomic_file(folder / COMPLETE) as staging:
            staging.write_text(seal(folder), encoding="utf-8")


def earlier_runs(folder: Path) -> tuple[EarlierRequest, ...]:
    """Requests that a run folder's model has unlearned, first run first.

    Args:
        folder: The folder.

    Returns:
        Empty for a folder that is not of an unlearning run.

    Raises:
        CheckpointError: The run's records are damaged.
    """
    if not (folder / "unlearning/run.json").is_file():
        return ()
    request, run = read_unlearning(folder)
    try:
        before = [EarlierRequest.from_json(values) for values in run.get("earlier", [])]
        digest = (run.get("original") or {}).get("weights_sha256")
        return (*before, EarlierRequest(request, tuple(run.get("classes", [])), float(run["drift"]), digest))
    except (ValueError, KeyError, TypeError, AttributeError, RequestError) as error:
        raise CheckpointError("The run's records are damaged.", where=str(folder), fix="Restore it.") from error


OTHER_FOLDERS = {
    "certified.json": ", but of a certified head: its guarantee is in its certificate.md",
    "sisa.json": ", but of a SISA ensemble: its shards were trained without what was removed",
    "training/run.json": ", but of a training: nothing was forgotten there, at most left out",
}
"""Other folders that famr writes, by a file that only they have."""


def read_unlearning(folder: Path) -> tuple[Request, dict[str, Any]]:
    """The request and run.json of a run folder, with paths as they are from here.

    Args:
        folder: The folder.

    Raises:
        RequestError: There is no such folder.
        CheckpointError: It is not of an unlearning run, or its records are damaged.
    """
    if not folder.is_dir():
        raise RequestError("There is no such run folder.", where=str(folder), fix="Name a folder that famr wrote.")
    try:
        request = json.loads((folder / "unlearning/request.json").read_text(encoding="utf-8"))
        run = json.loads((folder / "unlearning/run.json").read_text(encoding="utf-8"))
        return Request.from_json(request), with_local_paths(run, folder)
    except FileNotFoundError as error:
        kind = next((text for file, text in OTHER_FOLDERS.items() if (folder / file).is_file()), "")
        raise CheckpointError(
            f"This is not the folder of an unlearning run{kind}.",
            where=str(folder),
            fix="Name a folder that `famr forget` wrote for a whole network.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RequestError) as error:
        raise CheckpointError("The run's records are damaged.", where=str(folder), fix="Restore it.") from error
