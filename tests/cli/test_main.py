"""The commands as a whole: their overview, their flags, and one JSON object for every outcome."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.core import TyperCommand

from conftest import Outcome
from famr.cli import bench, request
from famr.cli import main as cli
from famr.cli.flags import build_command, docstring_text
from famr.cli.printing import Result
from famr.errors import GateError
from famr.storage.digests import write_complete
from small import ARCHITECTURE, AS_OPTIONS, QUICK, save_pictures, save_small

Run = Callable[..., Outcome]
GROUPS = {(): cli.COMMANDS, ("request",): request.COMMANDS, ("bench",): bench.COMMANDS}
ALL = [(*group, name) for group, commands in GROUPS.items() for name in commands]
"""The words of every command."""


def function_of(words: tuple[str, ...]) -> tuple[Any, str]:
    """The module of a command and the name of its function."""
    return import_module(".".join(("famr.cli", *words))), f"{words[-1]}_command"


def built_commands() -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    """Every command by its words, with its flags."""
    for words in ALL:
        module, name = function_of(words)
        yield words, build_command(getattr(module, name), words[-1])


def test_the_overview_imports_neither_torch_nor_timm() -> None:
    script = (
        "import sys; sys.argv = ['famr', '--help']\n"
        "try:\n    from famr.cli.main import main; main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules, 'heavy import'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for command in (*cli.COMMANDS, "request", "bench"):
        assert f"\n  {command} " in done.stdout
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_line_of_the_overview_is_the_first_line_of_the_commands_help(words: tuple[str, ...]) -> None:
    module, name = function_of(words)
    line = GROUPS[words[:-1]][words[-1]]
    assert docstring_text(getattr(module, name).__doc__).splitlines()[0] == line


def test_every_flag_has_help() -> None:
    silent = [(words, flag.name) for words, command in built_commands() for flag in command.params if not flag.help]
    assert silent == []


def test_every_output_has_a_short_flag() -> None:
    outputs = [
        flag.opts
        for _, command in built_commands()
        for flag in command.params
        if {"--output", "--output-dir"} & set(flag.opts)
    ]
    assert len(outputs) >= 7
    assert all("-o" in names for names in outputs)


@pytest.mark.parametrize(
    "given",
    [
        ("forget", "--seed=-1"),
        ("forget", "--split-seed=-1"),
        ("audit", "--seed=-1"),
        ("certify", "--lanczos-steps=0"),
        ("certify", "--retained-images=0"),
    ],
)
def test_numbers_below_their_range_are_refused_at_once(run: Run, given: tuple[str, ...]) -> None:
    *command, option = given
    done = run(*command, option)
    assert done.code == 2
    assert f"Invalid value for '{option.partition('=')[0]}'" in done.err
    assert "greater than or equal to" in done.err or "range" in done.err  # by the version of typer


# One JSON object for every outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its pictures, and everything that commands make of them, one command after another."""
    folder = tmp_path_factory.mktemp("json")
    save_small(folder / "model")
    save_pictures(folder / "data", each=20)
    shutil.copytree(folder / "model", folder / "model-copy")
    method = {
        "strength": 1e4,  # so strong that the second request hardly moves what the first one did
        "epochs": 1,
        "function_images": 2,
        "fisher_images": 5,
    }
    (folder / "method.json").write_text(json.dumps(method), encoding="utf-8")
    return folder


DATA, MODEL = "folder:{}/data", "{}/model"
SUCCEEDING: dict[tuple[str, ...], tuple[object, ...]] = {
    ("classes",): (MODEL,),
    ("train",): ("--model", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--data", DATA, "--epochs", 1, "-o", "{}/t"),
    ("sketch",): (MODEL, "--data", DATA, "--images", 6),
    ("forget",): ("--model", MODEL, "--data", DATA, "--class", "cat", *QUICK, "-o", "{}/run"),
    ("evaluate",): ("{}/run",),
    ("certify",): ("{}/run", "--lanczos-steps", 2, "--retained-images", 5),
    ("audit",): ("{}/run", "--quick"),
    ("report",): ("{}/run",),
    ("export",): ("{}/run", "--format", "torch-export"),
    ("keygen",): ("{}/key",),
    ("sign",): ("{}/run", "--key", "{}/key"),
    ("verify",): ("{}/run", "--key", "{}/key.pub"),
    ("request", "new"): ("-w", "{}/desk", "--class", "cat", "--model", MODEL, "--data", DATA),
    ("request", "list"): ("-w", "{}/desk"),
    ("request", "show"): ("R-0001", "-w", "{}/desk"),
    ("request", "run"): ("R-0001", "-w", "{}/desk", "--method", "{}/method.json"),
    ("request", "batch"): ("-w", "{}/desk", "--method", "{}/method.json"),
    ("request", "check"): ("-w", "{}/desk"),
    ("bench", "methods"): (
        *("--data", DATA, "--start", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--epochs", 1, "--batch-size", 8),
        *("--class", "cat", "--methods", "fine-tune", "--trials", 1, "-q", "-o", "{}/bench"),
    ),
}
"""Words after each command, in an order in which each one finds what it needs."""


def one_object(out: str) -> dict[str, Any]:
    """Standard output as one JSON object; more or less of it is an error."""
    content = json.loads(out)
    assert isinstance(content, dict)
    return content


def words_of(command: tuple[str, ...], folder: Path) -> list[str]:
    return [*command, *(str(word).format(folder) for word in SUCCEEDING[command])]


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[tuple[str, ...], Outcome]:
    """Every command with --json, as the shell would call it, in this process."""
    outcomes = {}
    with pytest.MonkeyPatch.context() as patch:
        backend, audit = import_module("famr.cli.request.backend"), import_module("famr.cli.audit")
        forget = import_module("famr.cli.forget")
        ungated = forget.ForgetOptions(gates=False)
        patch.setattr(backend, "run_forget", lambda task: forget.run_forget(replace(task, options=ungated)))
        patch.setattr(audit, "failed_gates", lambda _audit: None)
        for command in SUCCEEDING:
            if command == ("request", "batch"):
                call(["request", "new", "-w", f"{folder}/desk", "--class", "dog"], patch)
            outcomes[command] = call([*words_of(command, folder), "--json"], patch)
    return outcomes


def call(words: list[str], patch: pytest.MonkeyPatch) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    patch.setattr(sys, "argv", ["famr", *words])
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        cli.main()
    return Outcome(int(stopped.value.code or 0), out.getvalue(), err.getvalue())


def test_every_command_is_called_here_or_in_its_own_test() -> None:
    assert {*SUCCEEDING, ("demo",)} == set(ALL)


@pytest.mark.parametrize("command", SUCCEEDING, ids=" ".join)
def test_a_success_is_one_json_object(outcomes: dict[tuple[str, ...], Outcome], command: tuple[str, ...]) -> None:
    done = outcomes[command]
    assert done.code == 0, done.err
    assert "error" not in one_object(done.out)


@pytest.mark.parametrize("command", [*ALL, ("request",), ("bench",), ()], ids=" ".join)
def test_a_usage_error_is_one_json_object(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, "--nope", "--json")
    error = one_object(done.out)["error"]
    assert (done.code, error["exit_code"], error["kind"]) == (2, 2, "RequestError")
    assert "No such option" in error["what"]


def raising(function: Callable[..., object], error: Callable[[], object]) -> Callable[..., NoReturn]:
    @wraps(function)
    def instead(*_arguments: object, **_named: object) -> NoReturn:
        error()
        raise AssertionError

    return instead


def fail_gate() -> NoReturn:
    raise GateError("The gate was not met.", where="here", fix="Nothing.")


@pytest.mark.parametrize("command", SUCCEEDING, ids=" ".join)
def test_a_failed_gate_is_one_json_object(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    module, name = function_of(command)
    monkeypatch.setattr(module, name, raising(getattr(module, name), fail_gate))
    done = run(*words_of(command, folder), "--json")
    error = {"kind": "GateError", "exit_code": 7, "what": "The gate was not met.", "where": "here", "fix": "Nothing."}
    assert (done.code, one_object(done.out)) == (7, {"error": error})
    assert "The gate was not met" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", SUCCEEDING, ids=" ".join)
def test_an_interrupted_command_prints_one_json_object(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], number: signal.Signals
) -> None:
    module, name = function_of(command)
    monkeypatch.setattr(module, name, raising(getattr(module, name), lambda: signal.raise_signal(number)))
    done = run(*words_of(command, folder), "--json")
    assert done.code == 130
    assert one_object(done.out)["error"]["kind"] == "Interrupted"
    assert done.err.startswith("famr: stopped.")


def test_an_audit_that_fails_prints_its_gates_and_the_error_as_one_object(
    run: Run, outcomes: dict[tuple[str, ...], Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("famr.cli.audit")
    monkeypatch.setattr(module, "failed_gates", lambda _audit: GateError("The unlearned model fails 1 gate."))
    done = run("audit", folder / "run", "--quick", "--json")
    content = one_object(done.out)
    assert done.code == content["error"]["exit_code"] == 7
    assert content.keys() == one_object(outcomes["audit",].out).keys() | {"error"}
    printed = run("audit", folder / "run", "--quick")
    assert printed.code == 7
    assert "verdict" in printed.out
    assert "fails 1 gate" in printed.err


def test_requests_that_came_back_are_printed_with_the_error_as_one_object(
    run: Run, outcomes: dict[tuple[str, ...], Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcomes["request", "check"].code == 0
    module = import_module("famr.cli.request.check")
    monkeypatch.setattr(module, "recheck", lambda _desk, _measurements: {"R-0001": ("came back", "accuracy 1.0")})
    done = run("request", "check", "-w", folder / "desk", "--json")
    content = one_object(done.out)
    assert done.code == 7
    assert content["R-0001"] == {"verdict": "came back", "says": "accuracy 1.0"}
    assert content["error"]["where"] == "R-0001"


def test_a_certificate_that_does_not_match_is_one_json_object(
    run: Run, outcomes: dict[tuple[str, ...], Outcome], folder: Path, tmp_path: Path
) -> None:
    assert outcomes["certify",].code == 0
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    file = copy / "unlearning/certificate.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    claim = next(claim for claim in stored["claims"] if isinstance(claim.get("value"), float) and claim["value"])
    claim["value"] *= 2
    (copy / "COMPLETE.json").unlink()
    file.write_text(json.dumps(stored), encoding="utf-8")
    write_complete(copy)
    moved = ("--original", folder / "model", "--data", f"folder:{folder / 'data'}")
    done = run("certify", copy, "--check", *moved, "--json")
    assert done.code == 7, done.err
    assert one_object(done.out)["error"]["what"].startswith("The certificate does not match its files")


def test_a_changed_file_of_a_signed_run_is_one_json_object(
    run: Run, outcomes: dict[tuple[str, ...], Outcome], folder: Path, tmp_path: Path
) -> None:
    assert outcomes["verify",].code == 0
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    (copy / "README.md").write_text("changed", encoding="utf-8")
    done = run("verify", copy, "--key", folder / "key.pub", "--json")
    assert (done.code, one_object(done.out)["error"]["kind"]) == (7, "GateError")


def test_an_error_that_nobody_foresaw_is_one_json_object(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("famr.cli.classes")
    result = Result({"classes": [float("nan")]}, lambda: None)
    monkeypatch.setattr(module, "classes_command", lambda: result)
    done = run("classes", "--json")
    assert done.code == 1
    assert one_object(done.out)["error"]["kind"] == "FamrError"
