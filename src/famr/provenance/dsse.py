"""DSSE: a payload and a signature over it and its type, in one JSON file (secure-systems-lab/dsse, version 1)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from famr.errors import GateError
from famr.provenance.canonical import canonical, parse
from famr.provenance.keys import fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def to_be_signed(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what the signature is really over.

    >>> to_be_signed("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    named = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(named), named, len(payload), payload)


def enveloped(kind: str, payload: bytes, key: Ed25519PrivateKey) -> bytes:
    """The payload with its signature, as the one line that an envelope file holds."""
    signature = {
        "keyid": fingerprint(key.public_key()),
        "sig": base64.b64encode(key.sign(to_be_signed(kind, payload))).decode(),
    }
    envelope = {"payloadType": kind, "payload": base64.b64encode(payload).decode(), "signatures": [signature]}
    return canonical(envelope) + b"\n"


def opened(content: bytes, kind: str, key: Ed25519PublicKey, where: str) -> bytes:
    """The payload of an envelope that `key` signed; every byte of the file must be as `enveloped` wrote it."""
    from cryptography.exceptions import InvalidSignature

    try:
        envelope = parse(content)
        (signature,) = envelope["signatures"]
        signer, sig = signature["keyid"], base64.b64decode(signature["sig"], validate=True)
        payload = base64.b64decode(envelope["payload"], validate=True)
        found_kind = envelope["payloadType"]
        bytes.fromhex(signer), found_kind.encode()  # text, both of them
        again = {
            "payloadType": found_kind,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": signer, "sig": base64.b64encode(sig).decode()}],
        }
        whole = canonical(again) + b"\n" == content
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise _changed(where) from error
    if not whole:
        raise _changed(where)
    if found_kind != kind:
        raise GateError(
            f"The envelope holds {found_kind!r}, not {kind!r}.", where=where, fix="Name the envelope of a run."
        )
    if signer != fingerprint(key):
        raise GateError(
            "The envelope was not signed with this key.",
            where=f"{where}: signed with {signer}, given {fingerprint(key)}",
            fix="Ask the signer for the key's fingerprint, by another way than this file came.",
        )
    try:
        key.verify(sig, to_be_signed(kind, payload))
    except InvalidSignature as error:
        raise GateError(
            "The signature does not fit: the envelope was changed, or another key signed it.",
            where=where,
            fix="Do not rely on it; ask the signer for the original.",
        ) from error
    return payload


def _changed(where: str) -> GateError:
    return GateError(
        "The envelope was changed or damaged: it is not as it was written.",
        where=where,
        fix="Do not rely on it; ask the signer for the original.",
    )
