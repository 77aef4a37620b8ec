"""Keyed commitments to images: who holds the key can show that an image was among them, nobody else learns anything.

A plain hash of a photograph is still personal data: whoever has the photograph can find it. These are HMACs under a
key that is made for one run and kept apart from it; once that key is destroyed, they say nothing about anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from pathlib import Path

import torch

from famr.data import Images
from famr.data.images import UNLABELLED, open_image
from famr.errors import RequestError
from famr.provenance.keys import read_private_file, write_private

ENCODING = "famr-image-v1"
"""`famr-image-v1`, a zero byte, height and width as 4 bytes each, big end first, then R, G, B of every pixel."""
KEY_BYTES = 32


def commit(images: Images, key: bytes) -> list[str]:
    """A commitment to each distinct image, sorted: neither order nor repetition says anything."""
    return sorted({keyed(encoded(images, position), key) for position in range(len(images))})


def commit_file(path: Path, key: bytes) -> str:
    """The commitment to the image in a file; it must have the very pixels of the one that was committed to."""
    if not path.is_file():
        raise RequestError("There is no such image.", where=str(path), fix="Check the path.")
    return keyed(
        encoded(Images.from_source(lambda _: open_image(path), [str(path)], torch.tensor([UNLABELLED])), 0), key
    )


def encoded(images: Images, position: int) -> bytes:
    """The pixels of an image as bytes, whatever kind of file they came in."""
    pixels = images.pixels(position, 3)  # (3, height, width)
    _, height, width = pixels.shape
    return ENCODING.encode() + b"\0" + struct.pack(">II", height, width) + pixels.permute(1, 2, 0).numpy().tobytes()


def keyed(message: bytes, key: bytes) -> str:
    """HMAC-SHA256."""
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def key_id(key: bytes) -> str:
    """Tells which key was used, and nothing about it.

    >>> key_id(bytes(32)) != key_id(bytes(31) + b"1")
    True
    """
    return keyed(b"famr-commitment-key-v1", key)


def key_file(run: Path) -> Path:
    """Where the key of a run is kept unless somebody says otherwise: beside the folder, never in it."""
    folder = run.resolve() if run.is_symlink() or run.name in ("", "..") else run  # told as it was named
    return folder.with_name(f"{folder.name}.commitment-key")


def read_key(path: Path) -> bytes:
    """The commitment key in a file: 64 hexadecimal digits."""
    content = read_private_file(path, "commitment key", "Ask whoever signed the run.")
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise RequestError("This is no commitment key.", where=str(path), fix="It holds 64 hexadecimal digits.")
    return key


def key_at(path: Path) -> bytes:
    """The key in a file that is there already, else a new one that is put there."""
    if not path.exists():
        write_private(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
    return read_key(path)
