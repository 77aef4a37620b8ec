"""A signed run: what the signature covers, and that every change of it is detected."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import famr
from conftest import Outcome, alg1
from famr.cli.main import app
from famr.errors import CheckpointError, DataError, GateError, RequestError
from famr.provenance import signing, statement
from famr.provenance.audit_history import audit_history
from famr.provenance.canonical import canonical_json
from famr.provenance.commitments import (
    commitment_key_id,
    default_key_path,
    read_commitment_key,
    read_or_create_commitment_key,
)
from famr.provenance.keys import read_private_key, read_public_key, write_key_pair
from famr.provenance.ledger import check_anchor, head_path, open_ledger, read_ledger
from famr.provenance.signing import sign_run
from famr.provenance.statement import ENVELOPE, hash_run_files
from famr.provenance.verifying import prove_forgotten, verify_run
from famr.runs.audits import append_audit
from famr.runs.folder import add_to_run
from famr.storage.digests import COMPLETE, check_complete, file_digest, write_complete

RECORDS = ("README.md", "config.json", "model.safetensors", COMPLETE)
HOSTILE = ("<script>alert(1)<", "[/x]", "$\\frac$", "=cmd", "line\nbreak", "\u202eltr", "\x1b[2J")


@pytest.fixture(scope="module")
def result(original: famr.Classifier, without_three: famr.Splits) -> famr.Unlearned:
    return famr.forget(original, without_three, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))


@pytest.fixture(scope="module")
def desk(result: famr.Unlearned, without_three: famr.Splits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace: two keys, and a signed run in a ledger of two entries."""
    folder = tmp_path_factory.mktemp("desk")
    write_key_pair(folder / "key")
    write_key_pair(folder / "other")
    scores = famr.evaluate(result, without_three, device="cpu")
    data = {"spec": "digits", "root": None, "label_column": None, "split_seed": 0}
    facts = {**data, "match_labels_by_name": False, "forget_only": False}
    result.save(folder / "run", scores=scores, data=facts)
    add_to_run(folder / "run", {"unlearning/audit.json": "{}"})  # as the first edition wrote it
    for number in range(2):
        added = {"unlearning/certificate.json": f'{{"number": {number}}}', "unlearning/report.html": f"<p>{number}"}
        add_to_run(folder / "run", added)
        sign_run(folder / "run", read_private_key(folder / "key"), without_three.forget, ledger=folder / "ledger.jsonl")
    return folder


@pytest.fixture
def copy(desk: Path, tmp_path: Path) -> Path:
    """A copy of the workspace, to tamper with."""
    return Path(shutil.copytree(desk, tmp_path / "desk"))


def check(folder: Path, **options: Any) -> dict[str, Any]:
    return verify_run(folder / "run", read_public_key(folder / "key.pub"), **options).to_json()


def statement_of(folder: Path) -> dict[str, Any]:
    envelope = json.loads((folder / "run" / ENVELOPE).read_bytes())
    return dict(json.loads(base64.b64decode(envelope["payload"])))


def flip(path: Path, index: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(bytes(content))


def test_the_statement_covers_request_weights_files_and_environment(desk: Path, result: famr.Unlearned) -> None:
    statement = statement_of(desk)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    files = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    on_disk = {path.relative_to(desk / "run").as_posix() for path in (desk / "run").rglob("*") if path.is_file()}
    assert set(files) == on_disk - {ENVELOPE}
    assert set(RECORDS) < set(files)
    assert all(file_digest(desk / "run" / name) == digest for name, digest in files.items())
    predicate = statement["predicate"]
    assert predicate["request"] == {"kind": "class", "classes": ["3"]}
    assert predicate["original"]["weights_sha256"] == result.original.digest()
    assert predicate["unlearned"]["weights_sha256"] == result.model.digest()
    assert predicate["configuration"]["method"]["epochs"] == 1
    assert predicate["environment"]["torch"]
    assert predicate["signed_with"]["famr"] == famr.__version__
    assert len(predicate["signed_with"]["code_sha256"]) == 64
    assert predicate["metrics"] == json.loads((desk / "run/unlearning/metrics.json").read_text(encoding="utf-8"))
    assert predicate["records"]["certificate"] == "unlearning/certificate.json"
    assert all(predicate["records"].values())
    assert len(predicate["forgotten"]["commitments"]) == predicate["metrics"]["unlearned"]["counts"]["forget"]


def test_the_statement_names_neither_sample_nor_path_nor_key(
    original: famr.Classifier, digits: famr.data.Data, desk: Path, tmp_path: Path
) -> None:
    ids = digits.train.ids[:3]
    splits = famr.split(digits, famr.Request(samples=ids))
    result = famr.forget(original, splits, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))
    result.save(tmp_path / "run")
    sign_run(tmp_path / "run", read_private_key(desk / "key"), splits.forget)
    statement = statement_of(tmp_path)
    assert statement["predicate"]["request"] == {"kind": "samples", "samples": 3}
    text = json.dumps(statement)
    assert str(tmp_path) not in text
    assert not any(f'"{id_}"' in text for id_ in ids)
    secret = read_commitment_key(default_key_path(tmp_path / "run"))
    assert statement["predicate"]["forgotten"]["key_id"] == commitment_key_id(secret)
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or secret.hex().encode() not in path.read_bytes()


def test_an_untouched_run_verifies_with_the_public_key_alone(desk: Path, tmp_path: Path) -> None:
    shutil.copytree(desk / "run", tmp_path / "run")
    shutil.copy(desk / "key.pub", tmp_path / "key.pub")
    verified = check(tmp_path)
    assert verified["verified"]
    assert verified["files"] == len(statement_of(desk)["subject"])
    assert check(desk, ledger=desk / "ledger.jsonl")["seq"] == 2
    check_complete(tmp_path / "run")
    famr.load_model(str(tmp_path / "run"))


def test_a_changed_byte_of_any_signed_file_is_detected_and_named(copy: Path) -> None:
    names = [subject["name"] for subject in statement_of(copy)["subject"]]
    assert len(names) >= 11
    for name in names:
        path = copy / "run" / name
        content = path.read_bytes()
        for index in (0, len(content) // 2, -1):
            flip(path, index)
            with pytest.raises(GateError, match="not what was signed: 1 difference") as caught:
                check(copy)
            assert caught.value.where == f"changed: {name}"
            assert caught.value.exit_code == 7
            path.write_bytes(content)
        path.write_bytes(content + b"\0")
        with pytest.raises(GateError):
            check(copy)
        path.unlink()
        with pytest.raises(GateError) as caught:
            check(copy)
        assert caught.value.where == f"missing: {name}"
        path.write_bytes(content)
    check(copy)


@pytest.mark.parametrize("name", [*HOSTILE, ".hidden", "unlearning/more.json", "deep/er/file"])
def test_an_added_file_is_detected_and_named_as_text(copy: Path, name: str, run: Callable[..., Outcome]) -> None:
    path = copy / "run" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("more", encoding="utf-8")
    with pytest.raises(GateError) as caught:
        check(copy)
    shown = name if name.isprintable() else repr(name)
    assert caught.value.where == f"added: {shown}"
    outcome = run("verify", copy / "run", "--key", copy / "key.pub", "--json")
    assert outcome.code == 7
    assert json.loads(outcome.out)["error"]["where"] == f"added: {shown}"
    _what, where, _fix = outcome.err.splitlines()  # three lines, whatever the name
    assert where == f"  where: added: {shown}"


def test_links_and_names_that_are_not_unicode_are_neither_signed_nor_verified(
    copy: Path, without_three: famr.Splits
) -> None:
    key = read_private_key(copy / "key")
    for make in (
        lambda path: path.symlink_to(copy / "key.pub"),
        lambda path: path.symlink_to(copy),
        lambda path: path.write_text("x", encoding="utf-8"),
    ):
        odd = copy / "run" / "odd\udce9"
        make(odd)
        with pytest.raises(GateError) as caught:
            check(copy)
        assert caught.value.where == "not an ordinary file: 'odd\\udce9'"
        with pytest.raises(RequestError, match="cannot be signed"):
            sign_run(copy / "run", key, without_three.forget)
        odd.unlink()
    check(copy)


def test_a_signed_file_may_not_be_replaced_by_a_link(copy: Path) -> None:
    (copy / "run/config.json").rename(copy / "config.json")
    (copy / "run/config.json").symlink_to(copy / "config.json")
    with pytest.raises(GateError) as caught:
        check(copy)
    assert caught.value.where == "missing: config.json; not an ordinary file: config.json"


def test_a_changed_envelope_and_another_key_fail(copy: Path) -> None:
    envelope = copy / "run" / ENVELOPE
    content = envelope.read_bytes()
    for index in range(0, len(content), max(1, len(content) // 40)):
        flip(envelope, index)
        with pytest.raises(GateError):
            check(copy)
        envelope.write_bytes(content)
    statement = statement_of(copy)
    statement["predicate"]["metrics"]["unlearned"]["forget_accuracy"] = 0.0
    forged = json.loads(content)
    forged["payload"] = base64.b64encode(canonical_json(statement)).decode()
    envelope.write_bytes(canonical_json(forged) + b"\n")
    with pytest.raises(GateError, match="signature is invalid") as caught:
        check(copy)
    assert ENVELOPE in str(caught.value.where)
    envelope.write_bytes(content)
    (copy / "key.pub").write_bytes((copy / "other.pub").read_bytes())
    with pytest.raises(GateError, match="not signed with this key"):
        check(copy)


def test_an_unsigned_run_fails_verification(copy: Path, run: Callable[..., Outcome]) -> None:
    (copy / "run" / ENVELOPE).unlink()
    outcome = run("verify", copy / "run", "--key", copy / "key.pub")
    assert outcome.code == 7
    assert "UNSIGNED" in outcome.err
    for path in (copy, copy / "nowhere"):
        with pytest.raises(RequestError, match=r"not a run folder|no such run"):
            verify_run(path, read_public_key(copy / "key.pub"))


def test_the_envelope_alone_verifies_with_a_note_that_files_were_not_checked(
    desk: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    shutil.copy(desk / "run" / ENVELOPE, tmp_path / "sent.json")
    outcome = run("verify", tmp_path / "sent.json", "--key", desk / "key.pub")
    assert outcome.code == 0
    assert "FILES NOT CHECKED" in outcome.out
    assert "NOT CHECKED: " in outcome.out.partition("ledger")[2]
    assert verify_run(tmp_path / "sent.json", read_public_key(desk / "key.pub"), ledger=desk / "ledger.jsonl").seq == 2
    assert run("verify", desk / "key.pub", "--key", desk / "key.pub").code == 7


def test_signing_again_is_harmless_and_signing_a_changed_run_is_a_new_entry(
    copy: Path, without_three: famr.Splits
) -> None:
    key, ledger = read_private_key(copy / "key"), copy / "ledger.jsonl"
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    again = sign_run(copy / "run", key, without_three.forget, ledger=ledger)
    assert again.kept
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    add_to_run(copy / "run", {"unlearning/report.html": "<p>new"})
    with pytest.raises(GateError, match="2 differences") as caught:
        check(copy)
    assert caught.value.where == f"changed: {COMPLETE}; changed: unlearning/report.html"
    anew = sign_run(copy / "run", key, without_three.forget, ledger=ledger)
    assert (anew.kept, anew.seq) == (False, 3)
    check(copy, ledger=ledger)
    check_complete(copy / "run")
    assert read_commitment_key(default_key_path(copy / "run")).hex() in before[default_key_path(copy / "run")].decode()


def test_a_run_signed_without_a_ledger_is_signed_again_for_one(
    copy: Path, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, ledger = read_private_key(copy / "key"), copy / "ledger.jsonl"
    (copy / "run" / ENVELOPE).unlink()
    monkeypatch.setattr(statement, "utc_now", lambda: "2026-01-01T00:00:00Z")  # no entry of the ledger says the same
    sign_run(copy / "run", key, without_three.forget)
    with pytest.raises(GateError, match="signed without a ledger"):
        check(copy, ledger=ledger)
    anew = sign_run(copy / "run", key, without_three.forget, ledger=ledger)
    assert (anew.kept, anew.seq) == (False, 3)
    assert check(copy, ledger=ledger)["seq"] == 3
    assert sign_run(copy / "run", key, without_three.forget).kept  # without naming it again, it stays in its ledger


def test_a_killed_signing_is_completed_by_the_next_call(
    copy: Path, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, ledger = read_private_key(copy / "key"), copy / "ledger.jsonl"
    add_to_run(copy / "run", {"unlearning/report.html": "<p>new"})
    for step in ("commit_images", "sign_envelope", "append_entry"):
        with monkeypatch.context() as patched:
            patched.setattr(signing, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                sign_run(copy / "run", key, without_three.forget, ledger=ledger)
    (copy / "run" / f".{ENVELOPE}.123.tmp").write_text("half", encoding="utf-8")
    with pytest.raises(GateError, match="1 difference"):
        check(copy)
    sign_run(copy / "run", key, without_three.forget, ledger=ledger)
    assert len(read_ledger(ledger, key.public_key()).entries) == 4
    check(copy, ledger=ledger)


def test_an_image_can_be_proved_to_be_in_the_forget_set(
    desk: Path, digits: famr.data.Data, without_three: famr.Splits, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    assert without_three.retain is not None
    for name, images in (("forgotten", without_three.forget), ("retained", without_three.retain)):
        images.decode(int(images.rows[0])).save(tmp_path / f"{name}.png")
    verified = verify_run(desk / "run", read_public_key(desk / "key.pub"))
    prove_forgotten(verified, tmp_path / "forgotten.png", default_key_path(desk / "run"))
    with pytest.raises(GateError, match="No forget image"):
        prove_forgotten(verified, tmp_path / "retained.png", default_key_path(desk / "run"))
    read_or_create_commitment_key(tmp_path / "other")
    with pytest.raises(RequestError, match="another run"):
        prove_forgotten(verified, tmp_path / "forgotten.png", tmp_path / "other")
    shown = run("verify", desk / "run", "--key", desk / "key.pub", "--image", tmp_path / "forgotten.png")
    assert shown.code == 0
    assert "was forgotten" in shown.out
    assert run("verify", desk / "run", "--key", desk / "key.pub", "--image", tmp_path / "retained.png").code == 7


def an_audit(verdict: str, seed: int) -> dict[str, Any]:
    subject = {"unlearned_sha256": "ab" * 32, "retrained_sha256": ["cd" * 32], "seed": seed, "quick": True}
    return {"verdicts": {"unlearned": verdict, "original": "fail"}, "checks": [], "subject": subject}


@pytest.fixture
def audited(copy: Path, without_three: famr.Splits) -> Path:
    """A workspace whose run has the audit of before and two more, and is signed again."""
    for seed, verdict in enumerate(("fail", "pass")):
        append_audit(copy / "run", an_audit(verdict, seed))
    sign_run(copy / "run", read_private_key(copy / "key"), without_three.forget, ledger=copy / "ledger.jsonl")
    return copy


def test_the_statement_tells_every_audit_and_verify_prints_their_verdicts(
    audited: Path, run: Callable[..., Outcome]
) -> None:
    audits = statement_of(audited)["predicate"]["audits"]
    assert audits["count"] == 3
    before, failed, passed = audits["each"]
    assert (before["number"], before["made_at"], before["verdict"], before["references"]) == (1, None, None, None)
    assert (failed["number"], failed["verdict"], failed["seed"], failed["quick"]) == (2, "fail", 0, True)
    assert (passed["references"], passed["references_sha256"]) == (1, ["cd" * 32])
    assert passed["unlearned_sha256"] == "ab" * 32
    file = audited / "run/unlearning/audits/0003.json"
    assert passed["sha256"] == file_digest(file)
    assert passed["made_at"] == json.loads(file.read_text(encoding="utf-8"))["made_at"]
    shown = run("verify", audited / "run", "--key", audited / "key.pub")
    assert shown.code == 0, shown.err
    assert "audits      3 audits: no verdict, fail, pass (the latest)\n" in shown.out


def test_a_statement_that_tells_other_audits_than_the_folder_fails(
    audited: Path, monkeypatch: pytest.MonkeyPatch, without_three: famr.Splits, run: Callable[..., Outcome]
) -> None:
    def only_the_latest(folder: Path) -> dict[str, Any]:
        return {"count": 1, "each": audit_history(folder)["each"][-1:]}

    (audited / "run" / ENVELOPE).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(signing, "audit_history", only_the_latest)
        sign_run(audited / "run", read_private_key(audited / "key"), without_three.forget)
    with pytest.raises(GateError, match="other audits than those in the folder") as caught:
        check(audited)
    assert "3 audits: no verdict, fail, pass (the latest); the statement: 1 audit: pass" in str(caught.value.where)
    assert run("verify", audited / "run", "--key", audited / "key.pub").code == 7


def test_a_run_whose_failed_audit_was_removed_is_not_signed(audited: Path, without_three: famr.Splits) -> None:
    folder, key = audited / "run", read_private_key(audited / "key")
    (folder / "unlearning/audits/0002.json").unlink()
    (folder / COMPLETE).unlink()
    write_complete(folder)
    with pytest.raises(CheckpointError, match="An earlier audit is missing"):
        sign_run(folder, key, without_three.forget)


def test_an_audit_that_was_signed_cannot_be_left_out_of_the_next_signature(
    audited: Path, without_three: famr.Splits
) -> None:
    folder, key = audited / "run", read_private_key(audited / "key")
    (folder / "unlearning/audits/0003.json").unlink()  # a chain does not show the loss of its last link
    (folder / "unlearning/audit.json").write_bytes((folder / "unlearning/audits/0002.json").read_bytes())
    (folder / COMPLETE).unlink()
    write_complete(folder)
    with pytest.raises(CheckpointError, match="An audit that was signed before is missing"):
        sign_run(folder, key, without_three.forget)


def test_changed_data_is_not_committed_to(copy: Path, without_three: famr.Splits) -> None:
    (copy / "run" / ENVELOPE).unlink()
    assert without_three.retain is not None
    with pytest.raises(DataError, match="the data now has"):
        sign_run(copy / "run", read_private_key(copy / "key"), without_three.retain)
    assert not (copy / "run" / ENVELOPE).exists()


def test_the_commands_make_sign_and_verify(copy: Path, run: Callable[..., Outcome]) -> None:
    (copy / "run" / ENVELOPE).unlink()
    made = run("keygen", copy / "mine", "--json")
    fingerprint = json.loads(made.out)["fingerprint"]
    signed = run("sign", copy / "run", "--key", copy / "mine", "--ledger", copy / "mine.jsonl", "--json")
    assert signed.code == 0, signed.err
    facts = json.loads(signed.out)
    assert (facts["key"], facts["seq"], facts["kept"]) == (fingerprint, 1, False)
    assert facts["commitments"] > 100
    options = ("--key", copy / "mine.pub", "--ledger", copy / "mine.jsonl", "--anchor", facts["ledger"]["anchor"])
    verified = run("verify", copy / "run", *options)
    assert verified.code == 0
    assert "class 3" in verified.out
    assert fingerprint in verified.out
    assert "not that the model has forgotten" in verified.err
    assert "unchanged since" in run("sign", copy / "run", "--key", copy / "mine", "--ledger", copy / "mine.jsonl").out


def test_a_run_without_its_data_is_signed_with_the_reason_for_missing_commitments(
    copy: Path, without_three: famr.Splits, run: Callable[..., Outcome]
) -> None:
    (copy / "run" / ENVELOPE).unlink()
    signed = run("sign", copy / "run", "--key", copy / "key", "--without-data")
    assert signed.code == 0, signed.err
    assert "commitments none" in signed.out
    forgotten = check(copy)["statement"]["predicate"]["forgotten"]
    assert forgotten["commitments"] is None
    assert forgotten["not_available"] == "the forgotten images were not available"
    proof = run("verify", copy / "run", "--key", copy / "key.pub", "--image", copy / "key.pub")
    assert proof.code == 7
    assert "without commitments" in proof.err


def test_bad_calls_are_refused_and_change_nothing(copy: Path, original_run: Path, run: Callable[..., Outcome]) -> None:
    (copy / "empty").mkdir()
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    signed = ("sign", copy / "run", "--key", copy / "key")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("sign", copy / "run", "--key", copy / "gone"), 2, "cannot be read"),
        (("sign", copy / "gone", "--key", copy / "key"), 2, "no such run folder"),
        (("sign", copy / "empty", "--key", copy / "key"), 4, "not a finished run"),
        (("sign", original_run, "--key", copy / "key"), 2, "forgotten nothing"),
        (("sign", copy / "run", "--key", copy / "run/README.md"), 2, "must be outside the run folder"),
        ((*signed, "--commitment-key", copy / "run/secret"), 2, "must be outside the run folder"),
        ((*signed, "--ledger", copy / "run/ledger"), 2, "must be outside the run folder"),
        (("sign", copy / "run", "--key", copy / "other"), 2, "not by this key"),
        (("sign", copy / "run", "--key", copy / "other", "--ledger", copy / "ledger.jsonl"), 7, "not signed with this"),
        (("verify", copy / "run", "--key", copy / "gone"), 2, "cannot be read"),
        (("verify", copy / "run", "--key", copy / "key.pub", "--ledger", copy / "gone"), 2, "no such ledger"),
        (("verify", copy / "run", "--key", copy / "key.pub", "--anchor", "1:2"), 2, "Give --ledger"),
        (("keygen", copy / "key"), 2, "never overwritten"),
        (("keygen", copy / "locked", "--encrypt"), 2, "needs a passphrase"),
    ]
    for arguments, code, words in cases:
        outcome = run(*arguments)
        assert (outcome.code, words in outcome.err) == (code, True), (arguments, outcome)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_hostile_class_name_is_shown_as_text(
    result: famr.Unlearned, desk: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    from dataclasses import replace

    hostile = replace(result, request=famr.Request(classes=["".join(HOSTILE)]))
    hostile.save(tmp_path / "run")
    sign_run(tmp_path / "run", read_private_key(desk / "key"), None, reason_missing="gone")
    outcome = run("verify", tmp_path / "run", "--key", desk / "key.pub")
    assert outcome.code == 0
    assert all(line.isprintable() for line in outcome.out.splitlines())
    assert "<script>" in outcome.out
    assert "[/x]" in outcome.out


def test_a_retrained_model_can_be_signed_too(
    trained: famr.training.Trained, without_three: famr.Splits, desk: Path, tmp_path: Path
) -> None:

    trained.save(tmp_path / "run", without=without_three.request)
    sign_run(tmp_path / "run", read_private_key(desk / "key"), without_three.forget)
    predicate = verify_run(tmp_path / "run", read_public_key(desk / "key.pub")).statement["predicate"]
    assert predicate["request"]["classes"] == ["3"]
    assert predicate["original"]["weights_sha256"] is None
    assert predicate["unlearned"]["weights_sha256"] == trained.model.digest()
    assert predicate["configuration"]["training"]["epochs"] == trained.training.epochs


def test_the_ledger_of_another_workspace_is_refused(copy: Path, without_three: famr.Splits) -> None:
    key, ours, theirs = read_private_key(copy / "key"), copy / "ledger.jsonl", copy / "theirs.jsonl"
    open_ledger(theirs, key)
    with pytest.raises(GateError, match="another workspace"):
        check(copy, ledger=theirs)
    before = theirs.read_bytes(), (copy / "run" / ENVELOPE).read_bytes()
    with pytest.raises(RequestError, match="another workspace"):
        sign_run(copy / "run", key, without_three.forget, ledger=theirs)
    assert (theirs.read_bytes(), (copy / "run" / ENVELOPE).read_bytes()) == before
    head_path(theirs).write_bytes(head_path(ours).read_bytes())
    for call in (lambda: check(copy, ledger=theirs), lambda: open_ledger(theirs, key)):
        with pytest.raises(GateError, match="different workspaces") as caught:
            call()
        assert "theirs.jsonl: entry 0" in str(caught.value.where)


def test_a_run_missing_from_its_ledger_is_detected(copy: Path) -> None:
    envelope = (copy / "run" / ENVELOPE).read_bytes()
    add_to_run(copy / "run", {"unlearning/report.html": "<p>new"})
    key = read_private_key(copy / "key")
    old = {name: (copy / name).read_bytes() for name in ("ledger.jsonl", "ledger.jsonl.head")}
    sign_run(copy / "run", key, None, reason_missing="gone", ledger=copy / "ledger.jsonl")
    assert (copy / "run" / ENVELOPE).read_bytes() != envelope
    anchor = read_ledger(copy / "ledger.jsonl", key.public_key()).anchor
    for name, content in old.items():  # ledger and head rolled back together
        (copy / name).write_bytes(content)
    with pytest.raises(GateError, match="not in its ledger"):
        check(copy, ledger=copy / "ledger.jsonl")
    with pytest.raises(GateError, match="rewritten or rolled back"):
        check_anchor(read_ledger(copy / "ledger.jsonl", key.public_key()), anchor)


def test_files_are_hashed_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"")
    (tmp_path / ENVELOPE).write_bytes(b"itself")
    (tmp_path / "a" / ENVELOPE).write_bytes(b"another")
    assert list(hash_run_files(tmp_path).digests) == ["a/b/c", f"a/{ENVELOPE}"]


def test_the_commands_exist() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {"keygen", "sign", "verify", "export"} <= names


def test_the_documents_recipe_verifies_without_famr(copy: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/evidence.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "import famr" not in recipe

    def follow() -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", recipe, copy / "run", copy / "key.pub"]
        return subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert follow().stdout == "as signed\n"
    flip(copy / "run/model.safetensors", 5000)
    assert follow().stdout == "not as signed: ['model.safetensors']\n"
    (copy / "key.pub").write_bytes((copy / "other.pub").read_bytes())
    assert "InvalidSignature" in follow().stderr
