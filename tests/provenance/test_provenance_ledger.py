"""The ledger: a chain of entries and its signed head."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from famr.errors import GateError, RequestError
from famr.provenance.canonical import canonical_json
from famr.provenance.ledger import append_entry, check_anchor, head_path, open_ledger, read_ledger

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    path = tmp_path / "books/ledger.jsonl"
    open_ledger(path, KEY)
    for number in range(4):
        append_entry(path, b"statement %d" % number, {"unlearned_sha256": f"{number}"}, KEY)
    return path


def flip(path: Path, index: int) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(bytes(content))


def test_entries_are_numbered_in_order_and_entered_once(ledger_file: Path) -> None:
    ledger = read_ledger(ledger_file, KEY.public_key())
    assert [entry["seq"] for entry in ledger.entries] == [0, 1, 2, 3, 4]
    assert ledger.seq_of(b"statement 2") == 3
    assert ledger.seq_of(b"statement 9") is None
    append_entry(ledger_file, b"statement 2", {}, KEY)
    assert read_ledger(ledger_file, KEY.public_key()) == ledger
    assert sorted(path.name for path in ledger_file.parent.iterdir()) == ["ledger.jsonl", "ledger.jsonl.head"]


def test_no_byte_of_ledger_or_head_can_change(ledger_file: Path) -> None:
    for path in (ledger_file, head_path(ledger_file)):
        content = path.read_bytes()
        for index in range(0, len(content), 7):
            flip(path, index)
            with pytest.raises(GateError) as caught:
                read_ledger(ledger_file, KEY.public_key())
            assert path.name in str(caught.value.where)
            path.write_bytes(content)


def test_a_change_in_the_middle_is_named(ledger_file: Path) -> None:
    lines = ledger_file.read_bytes().splitlines(keepends=True)
    changed = lines[2].replace(b'"unlearned_sha256":"1"', b'"unlearned_sha256":"9"')
    assert changed != lines[2]
    for tampered, named in (
        ([*lines[:2], changed, *lines[3:]], "entry 2"),
        ([*lines[:2], *lines[3:]], "entry 2"),
        ([lines[0], lines[2], lines[1], *lines[3:]], "entry 1"),
        ([*lines[:3], lines[2], *lines[3:]], "entry 3"),
    ):
        ledger_file.write_bytes(b"".join(tampered))
        with pytest.raises(GateError, match="tampered") as caught:
            read_ledger(ledger_file, KEY.public_key())
        assert str(caught.value.where).endswith(named)


def test_a_cut_a_forged_and_a_longer_tail_are_named(ledger_file: Path) -> None:
    lines = ledger_file.read_bytes().splitlines(keepends=True)
    for left in range(5):
        ledger_file.write_bytes(b"".join(lines[:left]))
        with pytest.raises(GateError, match=f"ends after {left} of the 5") as caught:
            read_ledger(ledger_file, KEY.public_key())
        assert f"entry {left} is missing" in str(caught.value.where)
    last = json.loads(lines[4])
    ledger_file.write_bytes(b"".join(lines[:4]) + canonical_json(last | {"time": "then"}) + b"\n")
    with pytest.raises(GateError, match="last entry of the ledger is not the one"):
        read_ledger(ledger_file, KEY.public_key())
    more = last | {"seq": 5, "previous": hashlib.sha256(lines[4].strip()).hexdigest()}
    ledger_file.write_bytes(b"".join(lines) + canonical_json(more) + b"\n")
    with pytest.raises(GateError, match="1 entries that are not signed") as caught:
        read_ledger(ledger_file, KEY.public_key())
    assert "entry 5" in str(caught.value.where)
    ledger_file.write_bytes(b"".join(lines)[:-1])
    with pytest.raises(GateError, match="is incomplete"):
        read_ledger(ledger_file, KEY.public_key())


def test_a_lost_ledger_or_head_is_not_replaced_by_a_new_one(ledger_file: Path, tmp_path: Path) -> None:
    for path, words in ((head_path(ledger_file), "signed head is missing"), (ledger_file, "file is missing")):
        path.rename(tmp_path / "kept")
        for call in (lambda: read_ledger(ledger_file, KEY.public_key()), lambda: open_ledger(ledger_file, KEY)):
            with pytest.raises(GateError, match=words):
                call()
        assert not path.exists()
        (tmp_path / "kept").rename(path)
    read_ledger(ledger_file, KEY.public_key())


def test_a_line_that_a_killed_writer_left_out_is_restored(ledger_file: Path) -> None:
    whole = ledger_file.read_bytes()
    ledger_file.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    with pytest.raises(GateError, match="cut"):
        read_ledger(ledger_file, KEY.public_key())
    open_ledger(ledger_file, KEY)
    assert ledger_file.read_bytes() == whole
    ledger_file.write_bytes(
        b"".join(whole.splitlines(keepends=True)[:3])
    )  # two missing lines are not the trace of a killed writer
    with pytest.raises(GateError, match="cut"):
        open_ledger(ledger_file, KEY)


def test_an_anchor_stays_valid_as_the_ledger_grows(ledger_file: Path) -> None:
    anchor = read_ledger(ledger_file, KEY.public_key()).anchor
    append_entry(ledger_file, b"more", {}, KEY)
    check_anchor(read_ledger(ledger_file, KEY.public_key()), anchor)
    for bad in ("", "5", "0:" + "0" * 64, "x:" + "0" * 64):
        with pytest.raises(RequestError, match="ENTRIES:SHA256"):
            check_anchor(read_ledger(ledger_file, KEY.public_key()), bad)
    with pytest.raises(GateError, match="rewritten"):
        check_anchor(read_ledger(ledger_file, KEY.public_key()), "2:" + "0" * 64)
