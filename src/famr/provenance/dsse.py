"""DSSE envelopes: a payload with a signature over it and its type, in one JSON file (secure-systems-lab/dsse, v1)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from famr.errors import GateError
from famr.extras import require_extra
from famr.provenance.canonical import canonical_json, parse_json
from famr.provenance.keys import key_fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """The bytes that a DSSE signature covers.

    >>> pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'

    Args:
        payload_type: Media type of the payload.
        payload: The content.
    """
    encoded = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(encoded), encoded, len(payload), payload)


def sign_envelope(payload_type: str, payload: bytes, key: Ed25519PrivateKey) -> bytes:
    """Sign a payload.

    Args:
        payload_type: Media type of the payload.
        payload: The content.
        key: The signer's private key.

    Returns:
        The envelope as one line of canonical JSON.
    """
    signature = key.sign(pre_authentication_encoding(payload_type, payload))
    return _envelope(payload_type, payload, key_fingerprint(key.public_key()), signature)


def open_envelope(content: bytes, payload_type: str, key: Ed25519PublicKey, where: str) -> bytes:
    """Verify an envelope; every byte of it must be as `sign_envelope` wrote it.

    Args:
        content: The envelope.
        payload_type: The media type that the payload must have.
        key: The public key of the signer.
        where: Path of the envelope, for error messages.

    Returns:
        The payload.

    Raises:
        GateError: The envelope is damaged, of another type, signed with another key, or its signature is invalid.
    """
    require_extra("cryptography", "evidence")
    from cryptography.exceptions import InvalidSignature

    try:
        envelope = parse_json(content)
        (entry,) = envelope["signatures"]
        signer, signature = entry["keyid"], base64.b64decode(entry["sig"], validate=True)
        payload = base64.b64decode(envelope["payload"], validate=True)
        found_type = envelope["payloadType"]
        bytes.fromhex(signer), found_type.encode()  # both must be text
        unchanged = _envelope(found_type, payload, signer, signature) == content
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise _damaged(where) from error
    if not unchanged:
        raise _damaged(where)
    if found_type != payload_type:
        raise GateError(
            f"The envelope must hold {payload_type!r}, it holds {found_type!r}.",
            where=where,
            fix="Give the envelope of a run.",
        )
    if signer != key_fingerprint(key):
        raise GateError(
            "The envelope was not signed with this key.",
            where=f"{where}: signed with {signer}, given {key_fingerprint(key)}",
            fix="Ask the signer for the key's fingerprint over another channel than this file came by.",
        )
    try:
        key.verify(signature, pre_authentication_encoding(payload_type, payload))
    except InvalidSignature as error:
        raise GateError(
            "The signature is invalid: the envelope was changed, or another key signed it.",
            where=where,
            fix="Do not rely on it; ask the signer for the original.",
        ) from error
    return payload


def _envelope(payload_type: str, payload: bytes, signer: str, signature: bytes) -> bytes:
    envelope = {
        "payloadType": payload_type,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": signer, "sig": base64.b64encode(signature).decode()}],
    }
    return canonical_json(envelope) + b"\n"


def _damaged(where: str) -> GateError:
    return GateError(
        "The envelope was changed or damaged: it is not as it was written.",
        where=where,
        fix="Do not rely on it; ask the signer for the original.",
    )
