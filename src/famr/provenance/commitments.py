"""Keyed commitments to images: the holder of the key can show that an image was among them; they reveal nothing else.

A plain hash of a photograph is personal data: whoever has the photograph can look it up. These are HMACs under a key
that is made for one run and stored outside its folder; once the key is destroyed, they identify nobody.
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
from famr.provenance.keys import read_secret, write_secret

ENCODING = "famr-image-v1"
"""The name, a zero byte, height and width as 4 bytes each (big-endian), then red, green and blue of every pixel."""
KEY_BYTES = 32


def commit_images(images: Images, key: bytes) -> list[str]:
    """Commit to each distinct image.

    Args:
        images: The images.
        key: The commitment key, 32 bytes.

    Returns:
        The commitments, sorted, so that they reveal neither order nor repetition.
    """
    return sorted({hmac_sha256(encode_image(images, index), key) for index in range(len(images))})


def commit_image_file(path: Path, key: bytes) -> str:
    """Commit to the image in a file; equal pixels give equal commitments.

    Args:
        path: The image file.
        key: The commitment key, 32 bytes.

    Raises:
        DataError: The image cannot be decoded.
        RequestError: The file does not exist.
    """
    if not path.is_file():
        raise RequestError("There is no such image.", where=str(path), fix="Check the path.")
    images = Images.from_source(lambda _: open_image(path), [str(path)], torch.tensor([UNLABELLED]))
    return hmac_sha256(encode_image(images, 0), key)


def encode_image(images: Images, index: int) -> bytes:
    """The decoded pixels of an image as bytes (see `ENCODING`), independent of its file format.

    Args:
        images: The images.
        index: Which of them.
    """
    pixels = images.pixels(index, 3)  # (3, height, width)
    _, height, width = pixels.shape
    return ENCODING.encode() + b"\0" + struct.pack(">II", height, width) + pixels.permute(1, 2, 0).numpy().tobytes()


def hmac_sha256(message: bytes, key: bytes) -> str:
    """HMAC-SHA256 in hexadecimal.

    Args:
        message: The message.
        key: The key.
    """
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def commitment_key_id(key: bytes) -> str:
    """An identifier of a commitment key that reveals nothing about it.

    >>> commitment_key_id(bytes(32)) != commitment_key_id(bytes(31) + b"1")
    True

    Args:
        key: The commitment key, 32 bytes.
    """
    return hmac_sha256(b"famr-commitment-key-v1", key)


def default_key_path(run: Path) -> Path:
    """The default path of a run's commitment key: beside the folder, never in it.

    Args:
        run: The folder of the run.
    """
    folder = run.resolve() if run.is_symlink() or run.name in ("", "..") else run  # else the path stays as given
    return folder.with_name(f"{folder.name}.commitment-key")


def read_commitment_key(path: Path) -> bytes:
    """Read a commitment key: 64 hexadecimal digits.

    Args:
        path: A file that only its owner can read.

    Raises:
        RequestError: The file cannot be read, is readable by other users, or holds no key.
    """
    content = read_secret(path, "commitment key", "Ask the signer of the run.")
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise RequestError("This is not a commitment key.", where=str(path), fix="It holds 64 hexadecimal digits.")
    return key


def read_or_create_commitment_key(path: Path) -> bytes:
    """Read the commitment key in a file; create the file with a random key if it does not exist.

    Args:
        path: The file.

    Raises:
        RequestError: See `read_commitment_key`.
        StorageError: The file cannot be written.
    """
    if not path.exists():
        write_secret(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
    return read_commitment_key(path)
