"""The state of an unfinished run: tensors as safetensors, the rest as JSON, nothing else.

A run that is killed resumes from its last whole state and ends with the same weights, bit for bit on the same machine.
A state is written beside the last one and replaces it by one rename, so that a kill at any moment leaves the old one or
the new one. It belongs to one run: its key covers the model, the images, the method, the seed and the versions.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from famr._version import __version__
from famr.errors import CheckpointError, RequestError, StorageError
from famr.storage.digests import file_digest, json_digest
from famr.storage.fsync import fsync_path

EVERY = 10.0
"""Seconds between two states. A shorter run writes none: it is simply run again."""
STATE = "state.json"


class State(NamedTuple):
    """Where a run stood.

    Attributes:
        tensors: Weights and optimiser state by name.
        facts: Everything else, as plain values.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


@dataclass
class ResumeState:
    """The folder with the state of an unfinished run.

    Attributes:
        folder: The folder; it need not exist.
        every: Seconds between two states.
        begun: Whether the folder has a state of this very run, from which it can be resumed.
    """

    folder: Path
    every: float = EVERY
    begun: bool = False
    _key: dict[str, str] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def begin(self, **identity: Any) -> State | None:
        """Name the run that states belong to from now on, and read its state.

        Args:
            identity: What makes a run this one, by the name that an error gives it; only digests are written.

        Returns:
            None where there is no state.

        Raises:
            RequestError: The state is of another run; the error names what differs.
            CheckpointError: The state is damaged.
        """
        facts = {**identity, "torch": torch.__version__, "famr": __version__}
        self._key = {name: json_digest(value) for name, value in facts.items()}
        try:
            written = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._damaged() from error
        key = written.get("key") if isinstance(written, dict) else None
        if not isinstance(key, dict):
            raise self._damaged()
        if changed := sorted(name for name in {**key, **self._key} if key.get(name) != self._key.get(name)):
            raise RequestError(
                f"What is unfinished here is another run: it differs in {', '.join(changed)}.",
                where=self.folder.name,
                fix="Give the same command as before, or leave out --resume to begin anew.",
            )
        file = self.folder / Path(str(written["file"])).name
        if file.is_symlink() or not file.is_file() or file_digest(file) != written["sha256"]:
            raise self._damaged()
        self.begun = True
        return State(load_file(str(file)), written["facts"])

    def due(self) -> bool:
        """Whether the last state is older than `every`."""
        return time.monotonic() - self._last >= self.every

    def keep(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the last state by a new one; where there is no room for it, the last one stays.

        Args:
            tensors: Weights and optimiser state by name.
            facts: Everything else, as plain values.

        Raises:
            StorageError: The state could not be written.
        """
        file = self.folder / f"state-{time.time_ns()}.safetensors"
        try:
            self._write(file, tensors, facts)
        except (OSError, SafetensorError) as error:
            for half_written in (file, self.folder / f"{STATE}.new"):
                half_written.unlink(missing_ok=True)
            raise StorageError(
                f"The state of the run could not be written: {getattr(error, 'strerror', None) or error}.",
                where=self.folder.name,
                fix="Free space and resume with --resume, or name another output folder.",
            ) from error
        for old in self.folder.glob("state-*.safetensors"):
            if old != file:
                old.unlink()
        self._last = time.monotonic()
        self.begun = True

    def _write(self, file: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # unshared
        save_file(copies, str(file))
        fsync_path(file)
        written = {"key": self._key, "file": file.name, "sha256": file_digest(file), "facts": dict(facts)}
        new = self.folder / f"{STATE}.new"
        new.write_text(json.dumps(written, ensure_ascii=False) + "\n", encoding="utf-8")
        fsync_path(new)
        new.replace(self.folder / STATE)
        fsync_path(self.folder)

    def discard(self) -> None:
        """Remove the state: the run is finished, or is to begin anew.

        Raises:
            RequestError: The folder is a link.
        """
        if self.folder.is_symlink():
            raise RequestError("The folder of an unfinished run is a link.", where=self.folder.name, fix="Remove it.")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.begun = False

    def _damaged(self) -> CheckpointError:
        return CheckpointError(
            "The state of the unfinished run is damaged.",
            where=self.folder.name,
            fix="Leave out --resume to begin anew; nothing else is lost.",
        )
