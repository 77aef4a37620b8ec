"""Audits are appended: none is replaced, none can be removed or changed unseen, whoever writes and whenever it dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from famr._version import __version__
from famr.errors import CheckpointError
from famr.runs.audits import append_audit, describe_audits, read_audits
from famr.runs.folder import add_to_run
from famr.storage.digests import COMPLETE, check_complete, file_digest, write_complete

FIRST_EDITION = Path(__file__).parents[1] / "fixtures/first_edition/class"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed run folder without an audit."""
    (tmp_path / "run/unlearning").mkdir(parents=True)
    (tmp_path / "run/unlearning/run.json").write_text("{}", encoding="utf-8")
    write_complete(tmp_path / "run")
    return tmp_path / "run"


def an_audit(verdict: str) -> dict[str, object]:
    subject = {"unlearned_sha256": "ab", "retrained_sha256": ["cd", "ef"], "seed": 0, "quick": True}
    return {"verdicts": {"unlearned": verdict}, "checks": [], "subject": subject}


def resealed(folder: Path) -> None:
    """Seal a folder that was tampered with, as its owner can."""
    (folder / COMPLETE).unlink()
    write_complete(folder)


def test_a_second_audit_is_appended_and_the_first_one_stays(folder: Path) -> None:
    first = append_audit(folder, an_audit("fail"))
    written = first.read_bytes()
    second = append_audit(folder, an_audit("pass"))
    assert [first.name, second.name] == ["0001.json", "0002.json"]
    assert first.read_bytes() == written
    assert (folder / "unlearning/audit.json").read_bytes() == second.read_bytes()
    audits = read_audits(folder)
    assert [(each.number, each.verdict, each.sha256) for each in audits] == [
        (1, "fail", file_digest(first)),
        (2, "pass", file_digest(second)),
    ]
    assert audits[0].references == ("cd", "ef")
    assert audits[0].is_of("ab")
    header = json.loads(second.read_text(encoding="utf-8"))
    assert list(header)[:4] == ["number", "made_at", "famr", "previous_sha256"]
    assert (header["number"], header["famr"], header["previous_sha256"]) == (2, __version__, file_digest(first))
    assert header["made_at"] == audits[1].made_at
    assert header["made_at"].endswith("Z")
    assert json.loads(first.read_text(encoding="utf-8"))["previous_sha256"] is None
    assert "unlearning/audits/0001.json" in (folder / COMPLETE).read_text(encoding="utf-8")
    check_complete(folder)


def test_the_header_is_not_the_caller_s_to_write(folder: Path) -> None:
    append_audit(folder, {**an_audit("fail"), "number": 7, "previous_sha256": "no", "made_at": "then"})
    content = read_audits(folder)[0].content
    assert (content["number"], content["previous_sha256"]) == (1, None)
    assert content["made_at"] != "then"


def test_the_audit_of_the_first_edition_becomes_number_one_as_it_is(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIRST_EDITION, tmp_path / "class"))
    before = (folder / "unlearning/audit.json").read_bytes()
    assert [(each.number, each.made_at, each.verdict) for each in read_audits(folder)] == [(1, None, "fail")]
    append_audit(folder, an_audit("pass"))
    assert (folder / "unlearning/audits/0001.json").read_bytes() == before
    assert [each.verdict for each in read_audits(folder)] == ["fail", "pass"]
    check_complete(folder)
    (folder / "unlearning/audits/0001.json").write_text(json.dumps(an_audit("pass")), encoding="utf-8")
    resealed(folder)
    with pytest.raises(CheckpointError, match=r"(?s)earlier audit was changed .*0001\.json"):
        read_audits(folder)


@pytest.mark.parametrize(
    ("tampering", "message"),
    [
        ("remove the first", r"(?s)An earlier audit is missing.*0001\.json"),
        ("remove the second", r"(?s)An earlier audit is missing.*0002\.json"),
        ("remove all but audit.json", r"should be number 1"),
        ("change the first", r"(?s)An earlier audit was changed .*0001\.json"),
        ("change the second", r"(?s)An earlier audit was changed .*0002\.json"),
        ("replace audit.json", r"(?s)should be number 4.*audit\.json"),
        ("replace audit.json by an earlier one", r"(?s)should be number 4.*audit\.json"),
        ("remove audit.json", r"The latest audit is missing"),
        ("renumber", r"should be number 1"),
        ("damage", r"An audit of the run is damaged"),
    ],
)
def test_an_earlier_audit_cannot_be_removed_or_changed_unseen(folder: Path, tampering: str, message: str) -> None:
    for verdict in ("fail", "cannot tell", "pass"):
        append_audit(folder, an_audit(verdict))
    first, second, third = (folder / f"unlearning/audits/000{number}.json" for number in (1, 2, 3))
    latest = folder / "unlearning/audit.json"
    match tampering:
        case "remove the first":
            first.unlink()
        case "remove the second":
            second.unlink()
        case "remove all but audit.json":
            shutil.rmtree(first.parent)
        case "change the first":
            first.write_text(first.read_text().replace("fail", "pass"))
        case "change the second":
            second.write_text(second.read_text().replace("cannot tell", "pass"))
        case "replace audit.json":
            latest.write_text(json.dumps(an_audit("pass")))
        case "replace audit.json by an earlier one":
            latest.write_bytes(first.read_bytes())
        case "remove audit.json":
            latest.unlink()
        case "renumber":
            first.unlink()
            second.rename(first)
            third.rename(second)
        case "damage":
            second.write_text("[1]")
    resealed(folder)
    check_complete(folder)  # the seal alone does not show it
    with pytest.raises(CheckpointError, match=message):
        read_audits(folder)
    with pytest.raises(CheckpointError, match=message):
        append_audit(folder, an_audit("pass"))


APPEND = """
import sys
from pathlib import Path
from famr.runs.audits import append_audit
for number in range(5):
    append_audit(Path(sys.argv[1]), {"verdicts": {"unlearned": sys.argv[2]}})
"""


def test_two_processes_never_share_a_number(folder: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", APPEND, str(folder), name]) for name in ("fail", "pass")]
    assert [process.wait(60) for process in processes] == [0, 0]
    audits = read_audits(folder)
    assert [each.number for each in audits] == list(range(1, 11))
    assert sorted(each.verdict or "" for each in audits) == ["fail"] * 5 + ["pass"] * 5
    check_complete(folder)


def test_a_kill_at_any_moment_leaves_a_whole_chain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_audit(folder, an_audit("fail"))
    rename = Path.replace
    counts = []
    for step in range(5):  # before: the smaller seal, audit.json, 0002.json, the new seal; then not at all
        copy = Path(shutil.copytree(folder, folder.with_name(f"copy-{step}")))
        child = os.fork()
        if not child:
            renamed: list[object] = []

            def replace(self: Path, target: Path, step: int = step, renamed: list[object] = renamed) -> Path:
                if len(renamed) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                renamed.append(target)
                return rename(self, target)

            monkeypatch.setattr(Path, "replace", replace)
            append_audit(copy, an_audit("cannot tell"))
            os._exit(0)
        os.waitpid(child, 0)
        check_complete(copy)
        counts.append(len(read_audits(copy)))
        append_audit(copy, an_audit("pass"))
        assert [each.number for each in read_audits(copy)] == list(range(1, counts[-1] + 2))
        assert (copy / f"unlearning/audits/{counts[-1] + 1:04d}.json").is_file()
        check_complete(copy)
    assert counts == [1, 1, 2, 2, 2]


def test_an_audit_of_the_first_edition_that_is_added_over_later_ones_is_noticed(folder: Path) -> None:
    append_audit(folder, an_audit("fail"))
    add_to_run(folder, {"unlearning/audit.json": json.dumps(an_audit("pass"))})  # as the first edition wrote it
    with pytest.raises(CheckpointError, match="should be number 2"):
        read_audits(folder)


def test_taking_away_the_last_audit_is_seen_by_the_seal_and_the_chain_alone_does_not_show_it(folder: Path) -> None:
    """Who seals the folder again is caught by an earlier signature: tests/provenance/test_provenance.py."""
    first = append_audit(folder, an_audit("pass"))
    second = append_audit(folder, an_audit("fail"))
    second.unlink()
    (folder / "unlearning/audit.json").write_bytes(first.read_bytes())
    assert [each.verdict for each in read_audits(folder)] == ["pass"]
    with pytest.raises(CheckpointError):
        check_complete(folder)
    with pytest.raises(CheckpointError):
        append_audit(folder, an_audit("pass"))


def test_what_an_audit_does_not_say_is_none(folder: Path) -> None:
    append_audit(folder, {"verdicts": ["pass"], "subject": None})
    append_audit(folder, {"verdicts": {"original": "fail"}})
    for audit in read_audits(folder):
        assert (audit.verdict, dict(audit.subject), audit.references) == (None, {}, ())
        assert not audit.is_of("ab")
    assert describe_audits([each.verdict for each in read_audits(folder)]) == (
        "2 audits: no verdict, no verdict (the latest)"
    )
