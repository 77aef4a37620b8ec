"""Ed25519 keys in PEM files: a private key that only its owner can read, and a public key for everybody."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from famr.errors import RequestError, StorageError
from famr.extras import require_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAKE_ONE = "Make a pair with `famr keygen FILE`."


def public_key_path(private: Path) -> Path:
    """The path of the public key that belongs to a private key: its name with ``.pub`` added.

    Args:
        private: Path of the private key.
    """
    return private.with_name(f"{private.name}.pub")


def write_key_pair(path: Path, passphrase: str | None = None) -> str:
    """Make a key pair.

    Args:
        path: File of the private key, created with mode 0600; the public key goes to `public_key_path`.
        passphrase: Encrypts the private key; None leaves it unencrypted.

    Returns:
        The fingerprint of the public key.

    Raises:
        RequestError: A file exists already, or cryptography, of the extra ``famr[evidence]``, is not installed.
        StorageError: A file cannot be written.
    """
    require_extra("cryptography", "evidence")
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = public_key_path(path)
    if public.exists() and not path.exists():
        raise RequestError("A public key of this name exists already.", where=str(public), fix="Give another path.")
    key = Ed25519PrivateKey.generate()
    encryption = pem.BestAvailableEncryption(passphrase.encode()) if passphrase else pem.NoEncryption()
    write_secret(path, key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, encryption))
    content = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    try:
        public.write_bytes(content)
    except OSError as error:
        raise StorageError(
            f"The public key could not be written: {error.strerror}.",
            where=str(public),
            fix=f"Take it from the private key: openssl pkey -in {path.name} -pubout -out {public.name}",
        ) from error
    return key_fingerprint(key.public_key())


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file of mode 0600, whole or not at all.

    Args:
        path: The file.
        content: Its content.

    Raises:
        RequestError: The file exists; it is not touched.
        StorageError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(staging, path)  # unlike a rename, this fails where the target exists
        finally:
            Path(staging).unlink()
    except FileExistsError as error:
        raise RequestError(
            "The file exists already; a key is never overwritten.", where=str(path), fix="Give another path."
        ) from error
    except OSError as error:
        raise StorageError(
            f"The key could not be written: {error.strerror}.", where=str(path), fix="Give another path."
        ) from error


def read_secret(path: Path, kind: str, fix: str) -> bytes:
    """Read a secret file; one that other users can read is refused, as it may no longer be secret.

    Args:
        path: The file.
        kind: What it holds, for error messages.
        fix: What to do where it cannot be read.

    Raises:
        RequestError: The file cannot be read, or other users can read or write it.
    """
    try:
        with path.open("rb") as file:
            if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise RequestError(
                    f"Other users can read this {kind}.",
                    where=str(path),
                    fix=f"chmod 600 {path}; if other users have had access to it, make a new one.",
                )
            return file.read()
    except OSError as error:
        raise RequestError(f"The {kind} cannot be read: {error.strerror}.", where=str(path), fix=fix) from error


def read_private_key(path: Path, ask_passphrase: Callable[[], str] | None = None) -> Ed25519PrivateKey:
    """Read a signing key.

    Args:
        path: A PEM file in PKCS 8 that only its owner can read.
        ask_passphrase: Called for the passphrase if the key is encrypted; None refuses encrypted keys.

    Raises:
        RequestError: The file is not a readable Ed25519 private key, the passphrase is wrong, or cryptography, of the
            extra ``famr[evidence]``, is not installed.
    """
    require_extra("cryptography", "evidence")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = read_secret(path, "signing key", MAKE_ONE)
    if b"PUBLIC KEY" in content:
        raise RequestError("This is a public key; signing takes the private one.", where=str(path), fix=MAKE_ONE)
    passphrase = None
    if b"ENCRYPTED" in content:
        if ask_passphrase is None:
            raise RequestError("The signing key is encrypted.", where=str(path), fix="Give its passphrase.")
        passphrase = ask_passphrase().encode()
    try:
        key = load_pem_private_key(content, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = "This is not a signing key." if passphrase is None else "The passphrase does not open the signing key."
        raise RequestError(what, where=str(path), fix=f"Give a PEM file in PKCS 8. {MAKE_ONE}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError("The signing key is not an Ed25519 key.", where=str(path), fix=MAKE_ONE)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key; verification needs nothing else.

    Args:
        path: A PEM file.

    Raises:
        RequestError: The file is not a readable Ed25519 public key, or cryptography, of the extra ``famr[evidence]``,
            is not installed.
    """
    require_extra("cryptography", "evidence")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    fix = "Give the signer's public key, a PEM file."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(f"The public key cannot be read: {error.strerror}.", where=str(path), fix=fix) from error
    if b"PRIVATE KEY" in content:
        raise RequestError("This is a private key, which stays with the signer.", where=str(path), fix=fix)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RequestError("This is not a public key.", where=str(path), fix=fix) from error
    if not isinstance(key, Ed25519PublicKey):
        raise RequestError("The public key is not an Ed25519 key.", where=str(path), fix=fix)
    return key


def key_fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of a public key as DER: ``openssl pkey -pubin -in FILE -outform DER | sha256sum``.

    Args:
        key: The public key.
    """
    from cryptography.hazmat.primitives import serialization as pem

    return hashlib.sha256(key.public_bytes(pem.Encoding.DER, pem.PublicFormat.SubjectPublicKeyInfo)).hexdigest()
