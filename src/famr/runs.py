"""The run folder: everything a run leaves behind, staged beside its place and renamed once."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from famr._version import __version__
from famr.card import trained_card, unlearned_card
from famr.digests import COMPLETE, check_complete, seal, write_complete
from famr.errors import CheckpointError, RequestError, StorageError
from famr.evaluation import Scores
from famr.method import FAMR
from famr.models import Classifier
from famr.request import Request
from famr.splits import Earlier
from famr.train import Trained
from famr.unlearning import HistoryRow, Unlearned

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "safetensors", "pillow", "numpy")


def check_output(target: Path, overwrite: bool, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse a place that cannot be written to, or that holds what is read, before any work is done."""
    here = target.resolve()
    for given in inputs:
        source = Path(str(given).rpartition(":")[2]) if given else None
        if source is not None and source.exists() and source.resolve().is_relative_to(here):
            raise RequestError(
                "The output folder is, or holds, an input of this run.", where=str(source), fix="Name another folder."
            )
    if sealed := next((folder for folder in here.parents if (folder / COMPLETE).is_file()), None):
        raise RequestError(
            "The output folder lies inside a finished run, which may not change.",
            where=str(sealed),
            fix="Name a folder outside.",
        )
    if target.is_symlink():
        raise RequestError("The output folder is a link.", where=str(target), fix="Name the folder itself.")
    if target.exists() and not overwrite:
        raise RequestError(
            "The output folder exists already.", where=str(target), fix="Name another, or say --overwrite."
        )
    if target.exists() and not (target / COMPLETE).is_file() and not _is_empty_folder(target):
        raise RequestError(
            "The output folder holds something that famr did not write; it is not overwritten.",
            where=str(target),
            fix="Name another folder.",
        )
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise StorageError("The folder cannot be written to.", where=str(parent), fix="Name another.")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


@contextmanager
def staged(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that becomes `target` when the block ends well, and vanishes otherwise."""
    check_output(target, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise _storage_error(error, target) from error
    try:
        yield staging
        write_complete(staging)
        _open_to_umask(staging)
        _sync(staging)
        if target.exists():
            discarded = staging.with_suffix(".old")
            target.rename(discarded)
            try:
                staging.rename(target)
            except OSError:
                discarded.rename(target)
                raise
            shutil.rmtree(discarded)
        else:
            staging.rename(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _storage_error(error, target) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that becomes `target` when the block ends well, and vanishes otherwise."""
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield staging
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        staging.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _storage_error(error, target) from error
    finally:
        staging.unlink(missing_ok=True)


def _storage_error(error: OSError, target: Path) -> StorageError:
    return StorageError(
        f"The output could not be written: {error.strerror or error}.",
        where=str(target),
        fix="Free space or choose another folder; nothing was left behind.",
    )


def _open_to_umask(folder: Path) -> None:
    """mkdtemp makes private folders; give this one the permissions of any other."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def environment(device: str) -> dict[str, Any]:
    """What the run was made with; no host, user or path."""
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
    """One JSON object, readable, in UTF-8; NaN is an error, not a word JSON does not know."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")


def save_unlearned(
    result: Unlearned,
    target: Path,
    *,
    scores: Scores | None = None,
    original: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write an unlearned model, its request, its history and its metrics.

    `original` and `data` say how both were opened, so that the run can be measured again from its records.
    """
    with staged(target, overwrite=overwrite) as folder:
        result.model.architecture.save(result.model, folder)
        digest = result.model.digest()
        write_json(folder / "unlearning/request.json", result.request.to_json())
        write_lines(folder / "unlearning/history.jsonl", (asdict(row) for row in result.history))
        if scores is not None:
            write_json(folder / "unlearning/metrics.json", scores.to_json())
        run = {
            **result.to_json(),
            "original": {
                **(original or {"model": result.original.spec, "weights": None, "arguments": {}}),
                "weights_sha256": result.original.digest(),
            },
            "unlearned": {"weights_sha256": digest},
            "data": data,
            "environment": environment(result.device),
        }
        write_json(folder / "unlearning/run.json", run)
        (folder / "README.md").write_text(unlearned_card(result, scores), encoding="utf-8")
    return target


def save_trained(
    trained: Trained,
    target: Path,
    *,
    metrics: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    without: Request | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a trained model and how it was trained; `without` is what it never saw."""
    with staged(target, overwrite=overwrite) as folder:
        trained.model.architecture.save(trained.model, folder)
        write_lines(folder / "training/history.jsonl", (asdict(row) for row in trained.history))
        if metrics is not None:
            write_json(folder / "training/metrics.json", metrics)
        run = {
            **trained.to_json(),
            "without": None if without is None else without.to_json(),
            "weights_sha256": trained.model.digest(),
            "data": data,
            "environment": environment(trained.device),
        }
        write_json(folder / "training/run.json", run)
        (folder / "README.md").write_text(trained_card(trained, without, metrics), encoding="utf-8")
    return target


def load_unlearned(folder: Path, model: Classifier, original: Classifier) -> Unlearned:
    """The outcome of a run from its records and its two models."""
    request, run = read_unlearning(folder)
    method = {name: value for name, value in run["method"].items() if name != "name"}
    try:
        lines = (folder / "unlearning/history.jsonl").read_text(encoding="utf-8").splitlines()
        history = tuple(HistoryRow(**json.loads(line)) for line in lines)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError("The run's history is damaged.", where=str(folder), fix="Restore it.") from error
    return Unlearned(model, original, request, FAMR.from_json(method), run["seed"], history, run["device"], run["why"])


def add_to_run(folder: Path, files: Mapping[str, str]) -> None:
    """Put files into a finished run that is still as it was sealed, each whole or not at all, and seal it anew."""
    check_complete(folder)
    for name, content in files.items():
        with whole_file(folder / name) as staging:
            staging.write_text(content, encoding="utf-8")
    with whole_file(folder / COMPLETE) as staging:
        staging.write_text(seal(folder), encoding="utf-8")


def earlier_runs(folder: Path) -> tuple[Earlier, ...]:
    """Everything a run folder's model was made to forget, first run first; empty for one that never forgot."""
    if not (folder / "unlearning/run.json").is_file():
        return ()
    request, run = read_unlearning(folder)
    before = [Earlier.from_json(values) for values in run.get("earlier", [])]
    return (*before, Earlier(request, tuple(run.get("classes", [])), run["drift"]))


def read_unlearning(folder: Path) -> tuple[Request, dict[str, Any]]:
    """The request and run.json of a run folder."""
    try:
        request = json.loads((folder / "unlearning/request.json").read_text(encoding="utf-8"))
        run = json.loads((folder / "unlearning/run.json").read_text(encoding="utf-8"))
        return Request.from_json(request), run
    except FileNotFoundError as error:
        raise CheckpointError(
            "This is not the folder of an unlearning run.",
            where=str(folder),
            fix="Name a folder that `famr forget` wrote.",
        ) from error
    except (ValueError, KeyError) as error:
        raise CheckpointError("The run's records are damaged.", where=str(folder), fix="Restore it.") from error
