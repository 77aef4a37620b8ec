"""The ledger: a chain of entries and its signed head."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from famr.errors import GateError, RequestError
from famr.provenance.canonical import canonical
from famr.provenance.ledger import append, check_anchor, head_file, open_ledger, read_ledger

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "books/ledger.jsonl"
    open_ledger(path, KEY)
    for number in range(4):
        append(path, b"statement %d" % number, {"unlearned_sha256": f"{number}"}, KEY)
    return path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def test_entries_follow_each_other(book: Path) -> None:
    ledger = read_ledger(book, KEY.public_key())
    assert [entry["seq"] for entry in ledger.entries] == [0, 1, 2, 3, 4]
    assert ledger.seq_of(b"statement 2") == 3
    assert ledger.seq_of(b"statement 9") is None
    append(book, b"statement 2", {}, KEY)
    assert read_ledger(book, KEY.public_key()) == ledger
    assert sorted(path.name for path in book.parent.iterdir()) == ["ledger.jsonl", "ledger.jsonl.head"]


def test_no_byte_of_ledger_or_head_can_change(book: Path) -> None:
    for path in (book, head_file(book)):
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            flip(path, place)
            with pytest.raises(GateError) as caught:
                read_ledger(book, KEY.public_key())
            assert path.name in str(caught.value.where)
            path.write_bytes(content)


def test_a_change_in_the_middle_is_named(book: Path) -> None:
    lines = book.read_bytes().splitlines(keepends=True)
    changed = lines[2].replace(b'"unlearned_sha256":"1"', b'"unlearned_sha256":"9"')
    assert changed != lines[2]
    for tampered, named in (
        ([*lines[:2], changed, *lines[3:]], "entry 2"),
        ([*lines[:2], *lines[3:]], "entry 2"),
        ([lines[0], lines[2], lines[1], *lines[3:]], "entry 1"),
        ([*lines[:3], lines[2], *lines[3:]], "entry 3"),
    ):
        book.write_bytes(b"".join(tampered))
        with pytest.raises(GateError, match="tampered") as caught:
            read_ledger(book, KEY.public_key())
        assert str(caught.value.where).endswith(named)


def test_a_cut_a_forged_and_a_longer_tail_are_named(book: Path) -> None:
    lines = book.read_bytes().splitlines(keepends=True)
    for left in range(5):
        book.write_bytes(b"".join(lines[:left]))
        with pytest.raises(GateError, match=f"ends after {left} of the 5") as caught:
            read_ledger(book, KEY.public_key())
        assert f"entry {left} is missing" in str(caught.value.where)
    last = json.loads(lines[4])
    book.write_bytes(b"".join(lines[:4]) + canonical(last | {"time": "then"}) + b"\n")
    with pytest.raises(GateError, match="last entry of the ledger is not the one"):
        read_ledger(book, KEY.public_key())
    more = last | {"seq": 5, "previous": hashlib.sha256(lines[4].strip()).hexdigest()}
    book.write_bytes(b"".join(lines) + canonical(more) + b"\n")
    with pytest.raises(GateError, match="1 entries that nobody signed") as caught:
        read_ledger(book, KEY.public_key())
    assert "entry 5" in str(caught.value.where)
    book.write_bytes(b"".join(lines)[:-1])
    with pytest.raises(GateError, match="has no end"):
        read_ledger(book, KEY.public_key())


def test_a_lost_ledger_or_head_is_not_begun_anew(book: Path, tmp_path: Path) -> None:
    for path, words in ((head_file(book), "lost its signed head"), (book, "is gone")):
        path.rename(tmp_path / "kept")
        for call in (lambda: read_ledger(book, KEY.public_key()), lambda: open_ledger(book, KEY)):
            with pytest.raises(GateError, match=words):
                call()
        assert not path.exists()
        (tmp_path / "kept").rename(path)
    read_ledger(book, KEY.public_key())


def test_a_writer_that_died_before_the_line_is_mended(book: Path) -> None:
    whole = book.read_bytes()
    book.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    with pytest.raises(GateError, match="cut"):
        read_ledger(book, KEY.public_key())
    open_ledger(book, KEY)
    assert book.read_bytes() == whole
    book.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))  # two lines: no death does that
    with pytest.raises(GateError, match="cut"):
        open_ledger(book, KEY)


def test_an_anchor_holds_as_the_ledger_grows(book: Path) -> None:
    anchor = read_ledger(book, KEY.public_key()).anchor
    append(book, b"more", {}, KEY)
    check_anchor(read_ledger(book, KEY.public_key()), anchor)
    for bad in ("", "5", "0:" + "0" * 64, "x:" + "0" * 64):
        with pytest.raises(RequestError, match="ENTRIES:SHA256"):
            check_anchor(read_ledger(book, KEY.public_key()), bad)
    with pytest.raises(GateError, match="rewritten"):
        check_anchor(read_ledger(book, KEY.public_key()), "2:" + "0" * 64)
