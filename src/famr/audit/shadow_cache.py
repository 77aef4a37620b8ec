"""Cache of shadow models' logits: keyed by the digest of all that produced them, written whole, verified when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from famr.data import Images
from famr.errors import StorageError
from famr.models.weights import apply_umask
from famr.runs.folder import atomic_file


def digest_of(content: Any) -> str:
    """SHA-256 of plain values as JSON.

    Args:
        content: Anything that JSON can hold.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def image_digests(images: Images, channels: int) -> list[str]:
    """SHA-256 of the id, class, size and pixels of each image: another picture under an old id is another image.

    Args:
        images: To read.
        channels: As the network takes them.
    """
    digests = []
    for position, (id_, target) in enumerate(zip(images.ids, images.targets.tolist(), strict=True)):
        pixels = images.pixels(position, channels).contiguous()
        digest = hashlib.sha256(json.dumps([id_, target, *pixels.shape]).encode())
        digest.update(pixels.numpy().tobytes())
        digests.append(digest.hexdigest())
    return digests


def write_logits(path: Path, logits: Tensor, facts: dict[str, Any]) -> None:
    """Write logits with their own digest; the file appears whole or not at all.

    Args:
        path: Of the file.
        logits: (images, classes).
        facts: What the logits are of, for people.
    """
    from safetensors.torch import save_file

    facts = {**facts, "sha256": hashlib.sha256(logits.numpy().tobytes()).hexdigest()}
    with atomic_file(path) as staging:
        save_file({"logits": logits}, str(staging), metadata={"famr_shadow": json.dumps(facts)})
        apply_umask(staging)


def read_logits(path: Path, images: int) -> Tensor | None:
    """The logits in a file; None where there are none, or not those that were written.

    Args:
        path: Of the file.
        images: How many there must be.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as stored:
            facts = json.loads(stored.metadata()["famr_shadow"])
            logits: Tensor = stored.get_tensor("logits")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    unharmed = facts.get("sha256") == hashlib.sha256(logits.numpy().tobytes()).hexdigest()
    return logits if unharmed and len(logits) == images else None


@contextmanager
def shadow_lock(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a shadow model for this process. It only saves work, as files are replaced whole.

    Args:
        path: Of the lock file, which is removed at the end.
        wait: Whether to wait for another process.

    Yields:
        Whether this process has the lock.

    Raises:
        StorageError: For a folder that cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path.parent, error.strerror or str(error)) from error
    if not os.access(path.parent, os.W_OK):
        raise _unwritable(path.parent, "no permission")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def _unwritable(folder: Path, reason: str) -> StorageError:
    return StorageError(f"The cache cannot be written to: {reason}.", where=str(folder), fix="Name another folder.")
