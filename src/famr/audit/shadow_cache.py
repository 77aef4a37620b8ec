"""Where shadows are kept: answers under the digest of all that made them, written whole, read only if unharmed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from famr.data import Images
from famr.errors import StorageError
from famr.models.weights import apply_umask
from famr.runs.folder import atomic_file


def digest_of(content: Any) -> str:
    """SHA-256 of plain values as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def image_digests(images: Images, channels: int) -> list[str]:
    """SHA-256 of the id, class, size and pixels of each image: another picture under an old name is another image."""
    found = []
    for position, (id_, target) in enumerate(zip(images.ids, images.targets.tolist(), strict=True)):
        pixels = images.pixels(position, channels).contiguous()
        digest = hashlib.sha256(json.dumps([id_, target, *pixels.shape]).encode())
        digest.update(pixels.numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def write_answers(file: Path, logits: Tensor, facts: dict[str, Any]) -> None:
    """Keep answers with their own digest."""
    from safetensors.torch import save_file

    facts = {**facts, "sha256": hashlib.sha256(logits.numpy().tobytes()).hexdigest()}
    with atomic_file(file) as staging:
        save_file({"logits": logits}, str(staging), metadata={"famr_shadow": json.dumps(facts)})
        apply_umask(staging)


def read_answers(file: Path, images: int) -> Tensor | None:
    """The answers in a file; None where there are none, or where they are not what was written."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="pt") as stored:
            facts = json.loads(stored.metadata()["famr_shadow"])
            logits: Tensor = stored.get_tensor("logits")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    whole = facts.get("sha256") == hashlib.sha256(logits.numpy().tobytes()).hexdigest()
    return logits if whole and len(logits) == images else None


@contextmanager
def claimed(file: Path, wait: bool) -> Iterator[bool]:
    """Whether this process is the only one at a shadow. It saves work, nothing else: files are replaced whole."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: the same shadow may be trained twice, with one outcome
        yield True
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = file.open("w")
    except OSError as error:
        raise StorageError(
            f"The cache cannot be written to: {error.strerror or error}.", where=str(file.parent), fix="Name another."
        ) from error
    with handle:  # closing it, or the end of the process, gives the lock back
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except OSError:
            mine = wait  # where the file system has no locks, go on without
        try:
            yield mine
        finally:
            if mine:
                file.unlink(missing_ok=True)
