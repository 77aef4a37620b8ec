"""Faults 36, 37 and 49; and for all faults: no traceback, no absolute path, no user name, no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import Outcome
from fake_desk import DAY, ask, begin
from famr.cli import main as cli
from famr.cli.guarding import guarded
from famr.desk.records import all_requests, close_request
from famr.desk.scope import Scope
from famr.desk.workspace import open_workspace
from famr.provenance import ledger as books
from famr.provenance.keys import read_private_key, write_key_pair
from famr.provenance.ledger import append_entry, open_ledger, read_ledger
from famr.runs.folder import read_unlearning
from famr.storage.portable_paths import from_portable, to_portable
from fault_table import fault, seen, told
from small import QUICK, save_pictures, save_small

Command = Callable[..., Outcome]


@fault(36)
def test_memory_that_runs_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        guarded(lambda: torch.empty(1 << 58), as_json=False, debug=False)
    err = capsys.readouterr().err
    assert stopped.value.code == 5
    assert "--batch-size" in err
    seen(36, told(5, err))


@fault(37)
def test_a_device_that_is_not_there(run: Command, tmp_path: Path) -> None:
    for device in ("cuda:99", "abacus"):
        options = ("--model", tmp_path, "--data", "digits", "--class", "3", "--device", device)
        done = run("forget", *options, "--output-dir", tmp_path / "run")
        assert done.code == 2, done.err
        seen(37, told(done.code, done.err))
    assert not any(tmp_path.iterdir())


@fault(49)
def test_a_clock_that_goes_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key_pair(tmp_path / "key")
    key = read_private_key(tmp_path / "key")
    times = iter(["2031-01-01T00:00:00Z", "2030-01-01T00:00:00Z", "2029-01-01T00:00:00Z"])
    monkeypatch.setattr(books, "utc_now", lambda: next(times))
    open_ledger(tmp_path / "ledger", key)
    warning = "Entry 1 of the ledger is dated 2030-01-01T00:00:00Z, before entry 0 .*: a clock was wrong"
    with pytest.warns(UserWarning, match=warning):
        append_entry(tmp_path / "ledger", b"first", {}, key)
    with pytest.warns(UserWarning, match=warning):
        whole = append_entry(tmp_path / "ledger", b"second", {}, key)
    assert [entry["seq"] for entry in whole.entries] == [0, 1, 2]
    assert whole.seq_of(b"second") == 2
    with pytest.warns(UserWarning, match=warning):
        read_ledger(tmp_path / "ledger", key.public_key())
    seen(49, "entries keep the order in which they were made; a warning appears when the ledger is read or extended")


@fault(49)
def test_a_request_that_is_closed_before_it_came(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    ask(tmp_path, backend, Scope(classes=("b",)))
    with open_workspace(tmp_path) as desk:
        with desk.transaction() as rows:
            close_request(rows, 1, "done", DAY.replace(year=DAY.year - 1), "")
        with pytest.warns(UserWarning, match="R-0001 was closed on .*, before it was received .*: a clock was wrong"):
            found = all_requests(desk)
    assert [record.id for record in found] == ["R-0001", "R-0002"]
    seen(49, "requests keep their numbers; a warning appears when they are listed")


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), RuntimeError("one\ntwo"), AssertionError()])
def test_an_unforeseen_error_is_one_clear_message(
    run: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = run("classes")
    assert done.code == 1
    assert type(error).__name__ in done.err
    assert "--debug" in done.err
    assert "Traceback" not in done.err
    debugged = run("--debug", "classes")
    assert debugged.code == 1
    assert "Traceback" in debugged.err


@pytest.mark.parametrize(
    ("words", "what", "where"),
    [
        (("forget", "--nope"), "No such option: --nope", "famr forget"),
        (("forget", "--model", "m", "--epochs", "x"), "Invalid value for '--epochs'", "famr forget"),
        (("bench", "methods", "--data", "digits"), "Missing option '--output'", "famr bench methods"),
        (("nonsense",), "No such command 'nonsense'", "famr"),
        (("verify",), "Missing argument 'RUN|ENVELOPE'", "famr verify"),
    ],
)
def test_a_mistyped_command_is_reported_like_every_error(
    run: Command, words: tuple[str, ...], what: str, where: str
) -> None:
    done = run(*words, "--json")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert done.err.startswith(f"famr: {what}")
    error = json.loads(done.out)["error"]
    assert error["what"].startswith(what)
    assert {"kind": error["kind"], "exit_code": error["exit_code"], "where": error["where"], "fix": error["fix"]} == {
        "kind": "RequestError",
        "exit_code": 2,
        "where": where,
        "fix": f"{where} --help",
    }
    assert run(*words).out == ""


def test_a_closed_pipe_and_an_ascii_terminal_make_no_traceback() -> None:
    """The reader of the pipe is gone before the error is printed; and a terminal that shows ASCII only."""
    wrong = [sys.executable, "-m", "famr", "forget", "--nüpe", "--json"]
    script = '"$@" | :; exit ${PIPESTATUS[0]}'
    piped = subprocess.run(["bash", "-c", script, "bash", *wrong], capture_output=True, text=True, check=False)
    assert piped.returncode == 2
    assert "Traceback" not in piped.stderr
    assert "Exception ignored" not in piped.stderr
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(wrong, capture_output=True, text=True, check=False, env=environment)
    assert plain.returncode == 2
    assert plain.stderr.startswith("famr: No such option: --n\\xfcpe")


def test_help_and_version_are_no_errors(run: Command) -> None:
    assert run("--version").code == run("forget", "--help").code == 0
    nothing = run()
    assert nothing.code == 2
    assert "Commands" in nothing.out + nothing.err


@pytest.fixture
def marked(tmp_path: Path, run: Command) -> Path:
    """A workspace in a folder whose name must not be recorded, with a run that was certified, reported and signed."""
    folder = tmp_path / "home-of-ada-lovelace/project"
    save_small(folder / "original")
    save_pictures(folder / "data")
    data, out = f"folder:{folder / 'data'}", folder / "runs/no-cat"
    first = run("forget", "--model", folder / "original", "--data", data, "--class", "cat", *QUICK, "--output-dir", out)
    assert first.code == 0, first.err
    assert run("evaluate", out, "--json", "--device", "cpu").code == 0
    assert run("certify", out, "--device", "cpu", "--lanczos-steps", 2).code == 0
    assert run("report", out).code == 0
    write_key_pair(folder / "key")
    signed = run("sign", out, "--key", folder / "key", "--ledger", folder / "ledger.jsonl")
    assert signed.code == 0, signed.err
    sample = folder / "data/dog/0.png"
    again = ("--model", out, "--data", data, "--sample", sample, *QUICK, "--output-dir", folder / "runs/second")
    second = run("forget", *again)
    assert second.code == 0, second.err
    return folder


def test_no_file_of_a_run_holds_a_path_or_a_user_name(marked: Path, run: Command, tmp_path: Path) -> None:
    files = [file for folder in ("runs", "ledger.jsonl") for file in [marked / folder, *(marked / folder).rglob("*")]]
    texts = {file: file.read_bytes() for file in files if file.is_file()}
    assert len(texts) > 15
    names = [b"ada-lovelace", str(tmp_path).encode(), str(Path.home()).encode(), sys.prefix.encode()]
    names += [os.environ[name].encode() for name in ("USER", "LOGNAME") if os.environ.get(name, "root") != "root"]
    for file, content in texts.items():
        for name in names:
            assert name not in content, f"{file.relative_to(marked)} tells {name!r}"
    assert read_unlearning(marked / "runs/second")[0].samples == ("dog/0.png",)
    moved = marked.rename(tmp_path / "moved")  # recorded paths are relative to the run folder
    done = run("evaluate", moved / "runs/no-cat", "--device", "cpu", "--json")
    assert done.code == 0, done.err
    assert "not_available" in done.out


def test_a_run_made_with_relative_paths_logs_no_absolute_one(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home-of-ada-lovelace"
    save_small(folder / "original")
    save_pictures(folder / "data")
    monkeypatch.chdir(folder)
    options = ("--model", "original", "--data", "folder:data", "--class", "cat", *QUICK[:-1], "--output-dir", "run")
    done = run("forget", *options)
    assert done.code == 0, done.err
    assert "ada-lovelace" not in done.out + done.err
    assert read_unlearning(folder / "run")[1]["data"]["spec"] == f"folder:{folder / 'data'}"


def test_paths_outside_the_home_of_the_run_are_recorded_by_their_last_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home/ada")
    run = tmp_path / "home/ada/runs/one"
    for path, portable in (
        (tmp_path / "home/bob/faces", "folder:{elsewhere}/faces"),
        (tmp_path / "mnt/faces", "folder:{elsewhere}/faces"),
        (tmp_path / "home/ada/faces", "folder:{run}/../../faces"),
    ):
        assert to_portable(f"folder:{path}", run) == portable
        assert from_portable(portable, run) == (None if "elsewhere" in portable else f"folder:{path}")
    for name in ("digits", "timm:vit_tiny_patch16_224", "hf:nobody/nothing", "torchvision:CIFAR10"):
        assert to_portable(name, run) == from_portable(name, run) == name


def test_a_run_whose_data_path_is_not_recorded_needs_it(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "users/ada")
    save_small(tmp_path / "users/ada/original")
    save_pictures(tmp_path / "datasets/animals")
    data, out = f"folder:{tmp_path / 'datasets/animals'}", tmp_path / "users/ada/run"
    options = (
        "--model",
        tmp_path / "users/ada/original",
        "--data",
        data,
        "--class",
        "cat",
        *QUICK,
        "--output-dir",
        out,
    )
    assert run("forget", *options).code == 0
    refused = run("evaluate", out, "--device", "cpu")
    assert refused.code == 2
    assert "Give --data" in refused.err
    given = run("evaluate", out, "--device", "cpu", "--data", data)
    assert given.code == 0, given.err
