"""The formats under the signature: canonical JSON, DSSE, keys and commitments."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from famr.data import Data, Images
from famr.errors import FamrError, GateError, RequestError
from famr.provenance.canonical import canonical_json, parse_json, signable
from famr.provenance.commitments import (
    commit_image_file,
    commit_images,
    commitment_key_id,
    read_commitment_key,
    read_or_create_commitment_key,
)
from famr.provenance.dsse import open_envelope, sign_envelope
from famr.provenance.keys import key_fingerprint, read_private_key, read_public_key, write_key_pair

KIND = "application/x-test"


def test_the_example_of_rfc_8785() -> None:
    """Section 3.2.2 and its result in 3.2.3."""
    given_json = rb"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(parse_json(given_json)) == expected.encode()


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    """Section 3.2.3: the emoji, a surrogate pair, comes before the Hebrew letter U+FB33."""
    values = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    order = list(json.loads(canonical_json(values)))
    assert order == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [  # Appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_ecmascript_writes_them(bits: str, expected: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json([number]).decode() == f"[{expected}]"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2**53, "\ud800", {"\udfff": 1}, {1: 2}, object()])
def test_values_without_a_canonical_form_are_refused(bad: object) -> None:
    with pytest.raises(RequestError, match="no canonical JSON"):
        canonical_json([bad])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON_VALUES)
def test_whatever_is_signable_has_one_form_that_reading_gives_back(value: object) -> None:
    form = canonical_json(signable(value))
    assert canonical_json(parse_json(form)) == form
    shuffled = json.loads(form, object_pairs_hook=lambda pairs: dict(reversed(pairs)), parse_int=float)
    assert canonical_json(shuffled) == form


@settings(max_examples=150, deadline=None)
@given(payload=st.binary(max_size=40), index=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_byte_of_an_envelope_can_change(payload: bytes, index: int, flip: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    content = sign_envelope(KIND, payload, key)
    assert open_envelope(content, KIND, key.public_key(), "here") == payload
    changed = bytearray(content)
    changed[index % len(content)] ^= flip
    with pytest.raises(GateError):
        open_envelope(bytes(changed), KIND, key.public_key(), "here")


def test_an_envelope_has_exactly_one_encoding() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    content = sign_envelope(KIND, b"1", key)
    envelope = json.loads(content)
    assert envelope["payload"] == "MQ=="
    for other in (
        content[:-1],
        content + b"\n",
        b" " + content,
        json.dumps(envelope, indent=2).encode() + b"\n",
        canonical_json(envelope | {"note": "more"}) + b"\n",
        canonical_json(envelope | {"payload": "MR=="}) + b"\n",  # base64 that decodes to the same byte
        content.replace(b'{"payload"', b'{"payload":"","payload"'),
    ):
        with pytest.raises(GateError, match="changed or damaged"):
            open_envelope(other, KIND, key.public_key(), "here")


def test_an_envelope_of_another_key_type_or_signature_is_refused() -> None:
    key, other = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
    content = sign_envelope(KIND, b"{}", key)
    with pytest.raises(GateError, match="not signed with this key") as caught:
        open_envelope(content, KIND, other.public_key(), "here")
    assert key_fingerprint(key.public_key()) in str(caught.value)
    with pytest.raises(GateError, match="it holds 'application/x-test'"):
        open_envelope(content, "text/plain", key.public_key(), "here")
    forged = sign_envelope(KIND, b"{}", other).replace(
        key_fingerprint(other.public_key()).encode(), key_fingerprint(key.public_key()).encode()
    )
    with pytest.raises(GateError, match="signature is invalid"):
        open_envelope(forged, KIND, key.public_key(), "here")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]\n",
        b"\xff",
        b"[" * 100_000,
        b'{"payload":"","payloadType":"","signatures":[]}\n',
        b'{"payload":"","payloadType":1,"signatures":[{"keyid":1e999,"sig":""}]}\n',
        b'{"payload":"","payloadType":"\\ud800","signatures":[{"keyid":"","sig":""}]}\n',
    ],
)
def test_content_that_is_not_an_envelope_is_refused(content: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    with pytest.raises(GateError, match="changed or damaged"):
        open_envelope(content, KIND, key, "here")


def test_a_new_pair_signs_and_verifies_and_the_secret_is_private(tmp_path: Path) -> None:
    fingerprint = write_key_pair(tmp_path / "key")
    private, public = read_private_key(tmp_path / "key"), read_public_key(tmp_path / "key.pub")
    assert fingerprint == key_fingerprint(public) == key_fingerprint(private.public_key())
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.pub"]
    kept = (tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()
    with pytest.raises(RequestError, match="never overwritten"):
        write_key_pair(tmp_path / "key")
    assert ((tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()) == kept
    (tmp_path / "key").unlink()
    with pytest.raises(RequestError, match="public key of this name"):
        write_key_pair(tmp_path / "key")


def test_a_key_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key")
    for mode in (0o640, 0o604, 0o620):
        (tmp_path / "key").chmod(mode)
        with pytest.raises(RequestError, match="Other users can read this signing key") as caught:
            read_private_key(tmp_path / "key")
        assert "chmod 600" in str(caught.value)
    (tmp_path / "key").chmod(0o400)
    read_private_key(tmp_path / "key")


def test_an_encrypted_key_opens_only_with_its_passphrase(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", "open sesame")
    assert key_fingerprint(read_private_key(tmp_path / "key", lambda: "open sesame").public_key())
    with pytest.raises(RequestError, match="does not open"):
        read_private_key(tmp_path / "key", lambda: "sesame")
    with pytest.raises(RequestError, match="encrypted"):
        read_private_key(tmp_path / "key")


def test_files_that_are_not_keys_are_refused_with_a_reason(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key")
    elliptic = ec.generate_private_key(ec.SECP256R1())
    shared = elliptic.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    secret = elliptic.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    for name, content in {"p256.pub": shared, "p256": secret, "noise": os.urandom(99), "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "key.pub").chmod(0o600)
    private = {
        "p256": "not an Ed25519",
        "noise": "not a signing key",
        "empty": "not a signing key",
        "gone": "cannot be read",
    }
    for name, words in {**private, "key.pub": "public key; signing takes", ".": "cannot be read"}.items():
        with pytest.raises(RequestError, match=words):
            read_private_key(tmp_path / name)
    public = {
        "p256.pub": "not an Ed25519",
        "noise": "not a public key",
        "empty": "not a public key",
        "gone": "cannot be",
    }
    for name, words in {**public, "key": "stays with the signer", ".": "cannot be read"}.items():
        with pytest.raises(RequestError, match=words):
            read_public_key(tmp_path / name)


def two_by_one(colours: list[tuple[int, int, int]]) -> Image.Image:
    image = Image.new("RGB", (2, 1))
    image.putdata(colours)
    return image


def test_a_commitment_is_the_hmac_of_the_pixels() -> None:
    image = two_by_one([(1, 2, 3), (4, 5, 6)])
    images = Images.from_source(lambda _: image, ["a"], torch.tensor([0]))
    message = b"famr-image-v1\0" + bytes([0, 0, 0, 1, 0, 0, 0, 2]) + bytes([1, 2, 3, 4, 5, 6])
    assert commit_images(images, b"k" * 32) == [hmac.new(b"k" * 32, message, hashlib.sha256).hexdigest()]


def test_commitments_hide_order_and_repetition_and_depend_on_the_key(digits: Data) -> None:
    images = digits.train.take(torch.tensor([5, 3, 3, 8]))
    reordered = digits.train.take(torch.tensor([8, 3, 5]))
    key = b"k" * 32
    assert commit_images(images, key) == commit_images(reordered, key)
    assert len(commit_images(images, key)) == 3
    assert not set(commit_images(images, key)) & set(commit_images(images, b"l" * 32))


def test_the_same_pixels_in_another_file_format_give_the_same_commitment(digits: Data, tmp_path: Path) -> None:
    key = b"k" * 32
    one = digits.train.take(torch.tensor([7]))
    picture = digits.train.decode(int(one.rows[0]))
    for name in ("a.png", "a.bmp", "a.tiff"):
        picture.save(tmp_path / name)
        assert [commit_image_file(tmp_path / name, key)] == commit_images(one, key)
    picture.rotate(180).save(tmp_path / "b.png")
    assert [commit_image_file(tmp_path / "b.png", key)] != commit_images(one, key)
    (tmp_path / "c.png").write_bytes(b"no picture")
    for name in ("c.png", "gone.png"):
        with pytest.raises(FamrError):
            commit_image_file(tmp_path / name, key)


def test_a_commitment_key_is_created_once_and_private(tmp_path: Path) -> None:
    key = read_or_create_commitment_key(tmp_path / "key")
    assert len(key) == 32
    assert read_or_create_commitment_key(tmp_path / "key") == read_commitment_key(tmp_path / "key") == key
    assert commitment_key_id(key) != commitment_key_id(read_or_create_commitment_key(tmp_path / "other"))
    assert key.hex() not in commitment_key_id(key)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(RequestError, match="Other users can read this commitment key"):
        read_commitment_key(tmp_path / "key")
    (tmp_path / "key").write_text("ab" * 31, encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(RequestError, match="not a commitment key"):
        read_commitment_key(tmp_path / "key")


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("rfc8785", lambda folder: canonical_json({"folder": str(folder)})),
        ("cryptography", lambda folder: write_key_pair(folder / "key")),
        ("cryptography", lambda folder: read_private_key(folder / "key")),
        ("cryptography", lambda folder: read_public_key(folder / "key.pub")),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, call: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RequestError, match=f"package {package} is needed") as caught:
        call(tmp_path)
    assert caught.value.fix == "pip install 'famr[evidence]'"
    assert not any(tmp_path.iterdir())
