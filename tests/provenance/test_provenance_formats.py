"""The formats under the signature: canonical JSON, DSSE, keys and commitments."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import struct
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
from famr.provenance.canonical import canonical, parse, signable
from famr.provenance.commitments import commit, commit_file, key_at, key_id, read_key
from famr.provenance.dsse import enveloped, opened
from famr.provenance.keys import fingerprint, read_private, read_public, write_pair

KIND = "application/x-test"


def test_the_example_of_rfc_8785() -> None:
    """Section 3.2.2 and its result in 3.2.3."""
    given_json = rb"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(parse(given_json)) == wanted.encode()


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
    order = list(json.loads(canonical(values)))
    assert order == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("bits", "wanted"),
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
def test_numbers_are_written_as_ecmascript_writes_them(bits: str, wanted: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical([number]).decode() == f"[{wanted}]"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2**53, "\ud800", {"\udfff": 1}, {1: 2}, object()])
def test_what_has_no_canonical_form_is_refused(bad: object) -> None:
    with pytest.raises(RequestError, match="no canonical JSON"):
        canonical([bad])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON_VALUES)
def test_whatever_is_signable_has_one_form_that_reading_gives_back(value: object) -> None:
    form = canonical(signable(value))
    assert canonical(parse(form)) == form
    shuffled = json.loads(form, object_pairs_hook=lambda pairs: dict(reversed(pairs)), parse_int=float)
    assert canonical(shuffled) == form


@settings(max_examples=150, deadline=None)
@given(payload=st.binary(max_size=40), place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_byte_of_an_envelope_can_change(payload: bytes, place: int, flip: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    content = enveloped(KIND, payload, key)
    assert opened(content, KIND, key.public_key(), "here") == payload
    changed = bytearray(content)
    changed[place % len(content)] ^= flip
    with pytest.raises(GateError):
        opened(bytes(changed), KIND, key.public_key(), "here")


def test_an_envelope_has_one_spelling() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    content = enveloped(KIND, b"1", key)
    envelope = json.loads(content)
    assert envelope["payload"] == "MQ=="
    for other in (
        content[:-1],
        content + b"\n",
        b" " + content,
        json.dumps(envelope, indent=2).encode() + b"\n",
        canonical(envelope | {"note": "more"}) + b"\n",
        canonical(envelope | {"payload": "MR=="}) + b"\n",  # base64 that decodes to the same byte
        content.replace(b'{"payload"', b'{"payload":"","payload"'),
    ):
        with pytest.raises(GateError, match="changed or damaged"):
            opened(other, KIND, key.public_key(), "here")


def test_an_envelope_of_another_key_kind_or_signature_is_told_apart() -> None:
    key, other = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
    content = enveloped(KIND, b"{}", key)
    with pytest.raises(GateError, match="not signed with this key") as caught:
        opened(content, KIND, other.public_key(), "here")
    assert fingerprint(key.public_key()) in str(caught.value)
    with pytest.raises(GateError, match="holds 'application/x-test'"):
        opened(content, "text/plain", key.public_key(), "here")
    forged = enveloped(KIND, b"{}", other).replace(
        fingerprint(other.public_key()).encode(), fingerprint(key.public_key()).encode()
    )
    with pytest.raises(GateError, match="signature does not fit"):
        opened(forged, KIND, key.public_key(), "here")


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
def test_what_is_no_envelope_is_called_so(content: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    with pytest.raises(GateError, match="changed or damaged"):
        opened(content, KIND, key, "here")


def test_a_new_pair_signs_and_verifies_and_the_secret_is_private(tmp_path: Path) -> None:
    told = write_pair(tmp_path / "key")
    private, public = read_private(tmp_path / "key"), read_public(tmp_path / "key.pub")
    assert told == fingerprint(public) == fingerprint(private.public_key())
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.pub"]
    kept = (tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()
    with pytest.raises(RequestError, match="never overwritten"):
        write_pair(tmp_path / "key")
    assert ((tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()) == kept
    (tmp_path / "key").unlink()
    with pytest.raises(RequestError, match="public key of this name"):
        write_pair(tmp_path / "key")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "key")
    for mode in (0o640, 0o604, 0o620):
        (tmp_path / "key").chmod(mode)
        with pytest.raises(RequestError, match="can read this signing key") as caught:
            read_private(tmp_path / "key")
        assert "chmod 600" in str(caught.value)
    (tmp_path / "key").chmod(0o400)
    read_private(tmp_path / "key")


def test_a_locked_key_opens_with_its_passphrase_alone(tmp_path: Path) -> None:
    write_pair(tmp_path / "key", "open sesame")
    assert fingerprint(read_private(tmp_path / "key", lambda: "open sesame").public_key())
    with pytest.raises(RequestError, match="does not open"):
        read_private(tmp_path / "key", lambda: "sesame")
    with pytest.raises(RequestError, match="locked"):
        read_private(tmp_path / "key")


def test_what_is_no_key_is_refused_in_words(tmp_path: Path) -> None:
    write_pair(tmp_path / "key")
    elliptic = ec.generate_private_key(ec.SECP256R1())
    shared = elliptic.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    secret = elliptic.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    for name, content in {"p256.pub": shared, "p256": secret, "noise": os.urandom(99), "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "key.pub").chmod(0o600)
    private = {"p256": "not an Ed25519", "noise": "no signing key", "empty": "no signing key", "gone": "cannot be read"}
    for name, words in {**private, "key.pub": "public key; signing takes", ".": "cannot be read"}.items():
        with pytest.raises(RequestError, match=words):
            read_private(tmp_path / name)
    public = {"p256.pub": "not an Ed25519", "noise": "no public key", "empty": "no public key", "gone": "cannot be"}
    for name, words in {**public, "key": "stays with the signer", ".": "cannot be read"}.items():
        with pytest.raises(RequestError, match=words):
            read_public(tmp_path / name)


def two_by_one(colours: list[tuple[int, int, int]]) -> Image.Image:
    image = Image.new("RGB", (2, 1))
    image.putdata(colours)
    return image


def test_a_commitment_is_the_hmac_of_the_pixels() -> None:
    image = two_by_one([(1, 2, 3), (4, 5, 6)])
    images = Images.from_source(lambda _: image, ["a"], torch.tensor([0]))
    message = b"famr-image-v1\0" + bytes([0, 0, 0, 1, 0, 0, 0, 2]) + bytes([1, 2, 3, 4, 5, 6])
    assert commit(images, b"k" * 32) == [hmac.new(b"k" * 32, message, hashlib.sha256).hexdigest()]


def test_commitments_tell_neither_order_nor_repetition_and_need_the_key(digits: Data) -> None:
    some = digits.train.take(torch.tensor([5, 3, 3, 8]))
    other_way = digits.train.take(torch.tensor([8, 3, 5]))
    key = b"k" * 32
    assert commit(some, key) == commit(other_way, key)
    assert len(commit(some, key)) == 3
    assert not set(commit(some, key)) & set(commit(some, b"l" * 32))


def test_the_same_pixels_in_another_kind_of_file_are_the_same_image(digits: Data, tmp_path: Path) -> None:
    key = b"k" * 32
    one = digits.train.take(torch.tensor([7]))
    picture = digits.train.decode(int(one.rows[0]))
    for name in ("a.png", "a.bmp", "a.tiff"):
        picture.save(tmp_path / name)
        assert [commit_file(tmp_path / name, key)] == commit(one, key)
    picture.rotate(180).save(tmp_path / "b.png")
    assert [commit_file(tmp_path / "b.png", key)] != commit(one, key)
    (tmp_path / "c.png").write_bytes(b"no picture")
    for name in ("c.png", "gone.png"):
        with pytest.raises(FamrError):
            commit_file(tmp_path / name, key)


def test_a_commitment_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    key = key_at(tmp_path / "key")
    assert len(key) == 32
    assert key_at(tmp_path / "key") == read_key(tmp_path / "key") == key
    assert key_id(key) != key_id(key_at(tmp_path / "other"))
    assert key.hex() not in key_id(key)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(RequestError, match="can read this commitment key"):
        read_key(tmp_path / "key")
    (tmp_path / "key").write_text("ab" * 31, encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(RequestError, match="no commitment key"):
        read_key(tmp_path / "key")
