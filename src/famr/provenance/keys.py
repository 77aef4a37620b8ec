"""Ed25519 keys in PEM files: the private one for its owner's eyes only, the public one for everybody."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from famr.errors import RequestError, StorageError
from famr.provenance.canonical import missing_package

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAKE_ONE = "Make a pair with `famr keygen FILE`."


def public_file(private: Path) -> Path:
    """Where `write_pair` puts the public key."""
    return private.with_name(f"{private.name}.pub")


def write_pair(target: Path, passphrase: str | None = None) -> str:
    """A new key pair: `target`, readable by its owner alone, and `target.pub`. Returns the public key's fingerprint."""
    try:
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise missing_package("cryptography") from error

    public = public_file(target)
    if public.exists() and not target.exists():
        raise RequestError("There is a public key of this name already.", where=str(public), fix="Name another file.")
    key = Ed25519PrivateKey.generate()
    lock = pem.BestAvailableEncryption(passphrase.encode()) if passphrase else pem.NoEncryption()
    secret = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, lock)
    write_private(target, secret)
    shared = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    try:
        public.write_bytes(shared)
    except OSError as error:
        raise StorageError(
            f"The public key could not be written: {error.strerror}.",
            where=str(public),
            fix=f"Take it from the private key: openssl pkey -in {target.name} -pubout -out {public.name}",
        ) from error
    return fingerprint(key.public_key())


def write_private(target: Path, content: bytes) -> None:
    """A new file, mode 0600, whole or not at all; a file that exists is never touched."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, staging = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(staging, target)  # unlike a rename, this fails where the target exists
        finally:
            Path(staging).unlink()
    except FileExistsError as error:
        raise RequestError(
            "The file exists already; a key is never overwritten.", where=str(target), fix="Name another file."
        ) from error
    except OSError as error:
        raise StorageError(
            f"The key could not be written: {error.strerror}.", where=str(target), fix="Name another place."
        ) from error


def read_private_file(path: Path, kind: str, fix: str) -> bytes:
    """The content of a secret file; one that others can read is refused, as it may be no secret any more."""
    try:
        with path.open("rb") as file:
            if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise RequestError(
                    f"Others than its owner can read this {kind}.",
                    where=str(path),
                    fix=f"chmod 600 {path}; if it lay open where others are, make a new one.",
                )
            return file.read()
    except OSError as error:
        raise RequestError(f"The {kind} cannot be read: {error.strerror}.", where=str(path), fix=fix) from error


def read_private(path: Path, ask: Callable[[], str] | None = None) -> Ed25519PrivateKey:
    """The signing key; `ask` gives the passphrase where it is locked with one."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise missing_package("cryptography") from error

    content = read_private_file(path, "signing key", MAKE_ONE)
    if b"PUBLIC KEY" in content:
        raise RequestError("This is a public key; signing takes the private one.", where=str(path), fix=MAKE_ONE)
    passphrase = None
    if b"ENCRYPTED" in content:
        if ask is None:
            raise RequestError("The signing key is locked.", where=str(path), fix="Give its passphrase.")
        passphrase = ask().encode()
    try:
        key = load_pem_private_key(content, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = "The passphrase does not open the signing key." if passphrase is not None else "This is no signing key."
        raise RequestError(what, where=str(path), fix=f"Give a PEM file in PKCS 8. {MAKE_ONE}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError("The signing key is not an Ed25519 key.", where=str(path), fix=MAKE_ONE)
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """The public key, which is all that verification needs."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise missing_package("cryptography") from error

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
        raise RequestError("This is no public key.", where=str(path), fix=fix) from error
    if not isinstance(key, Ed25519PublicKey):
        raise RequestError("The public key is not an Ed25519 key.", where=str(path), fix=fix)
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of the public key as DER: `openssl pkey -pubin -in FILE -outform DER | sha256sum`."""
    from cryptography.hazmat.primitives import serialization as pem

    return hashlib.sha256(key.public_bytes(pem.Encoding.DER, pem.PublicFormat.SubjectPublicKeyInfo)).hexdigest()
