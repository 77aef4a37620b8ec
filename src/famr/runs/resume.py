"""The state of a run that is not finished: tensors as safetensors, the rest as JSON, nothing else.

A run that is killed goes on from its last whole state and ends with the same weights, bit for bit on the same machine.
A state is written aside and comes into force by one rename, so that a kill at any moment leaves the old one or the new
one. It belongs to one run: its key covers the model, the images, the method, the seed and the versions.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from famr._version import __version__
from famr.errors import CheckpointError, RequestError, StorageError
from famr.storage.digests import file_digest

EVERY = 10.0
"""Seconds between two states. A run that takes less keeps none: it is simply run again."""
STATE = "state.json"


class State(NamedTuple):
    """Where a run stood."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


@dataclass
class ResumeState:
    """The folder of an unfinished run's state."""

    folder: Path
    every: float = EVERY
    begun: bool = False
    """Whether there is a state of this very run to go on from."""
    _key: dict[str, str] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def begin(self, **what: Any) -> State | None:
        """Say which run this is; its state, if it was begun before. The state of another run is refused."""
        told = {**what, "torch": torch.__version__, "famr": __version__}
        self._key = {name: _digest(value) for name, value in told.items()}
        try:
            facts = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._broken() from error
        kept = facts.get("key") if isinstance(facts, dict) else None
        if not isinstance(kept, dict):
            raise self._broken()
        if changed := sorted(name for name in {**kept, **self._key} if kept.get(name) != self._key.get(name)):
            raise RequestError(
                f"What is unfinished here is another run: it differs in {', '.join(changed)}.",
                where=self.folder.name,
                fix="Give the same command as before, or leave out --resume to begin anew.",
            )
        file = self.folder / Path(str(facts["file"])).name
        if file.is_symlink() or not file.is_file() or file_digest(file) != facts["sha256"]:
            raise self._broken()
        self.begun = True
        return State(load_file(str(file)), facts["facts"])

    def due(self) -> bool:
        """Whether it is time for a new state."""
        return time.monotonic() - self._last >= self.every

    def keep(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put a new state in the place of the last one; where there is no room for it, the last one stays."""
        file = self.folder / f"state-{time.time_ns()}.safetensors"
        try:
            self._write(file, tensors, facts)
        except (OSError, SafetensorError) as error:
            for half in (file, self.folder / f"{STATE}.new"):
                half.unlink(missing_ok=True)
            raise StorageError(
                f"The state of the run could not be written: {getattr(error, 'strerror', None) or error}.",
                where=self.folder.name,
                fix="Free space and go on with --resume, or name another output folder.",
            ) from error
        for old in self.folder.glob("state-*.safetensors"):
            if old != file:
                old.unlink()
        self._last = time.monotonic()
        self.begun = True

    def _write(self, file: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        apart = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}  # unshared
        save_file(apart, str(file))
        _sync(file)
        written = {"key": self._key, "file": file.name, "sha256": file_digest(file), "facts": dict(facts)}
        aside = self.folder / f"{STATE}.new"
        aside.write_text(json.dumps(written, ensure_ascii=False) + "\n", encoding="utf-8")
        _sync(aside)
        aside.replace(self.folder / STATE)
        _sync(self.folder)

    def discard(self) -> None:
        """The run is finished, or is to begin anew."""
        if self.folder.is_symlink():
            raise RequestError("The folder of an unfinished run is a link.", where=self.folder.name, fix="Remove it.")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _broken(self) -> CheckpointError:
        return CheckpointError(
            "The state of the unfinished run is damaged.",
            where=self.folder.name,
            fix="Leave out --resume to begin anew; nothing else is lost.",
        )


def _digest(value: object) -> str:
    """Names of images and settings stay out of the state; a digest tells whether they are the same."""
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
