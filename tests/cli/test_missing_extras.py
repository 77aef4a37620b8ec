"""Without an optional package its commands name the extra that installs it, and the others work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

OPTIONAL = ("datasets", "jinja2", "matplotlib", "cryptography", "rfc8785", "sqlalchemy", "onnx", "onnxruntime")
DRIVER = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

commands, hidden = json.load(sys.stdin)
for name in hidden:
    sys.modules[name] = None
from famr.cli.main import main

def outcome(words):
    sys.argv, out, err = ["famr", *words], StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stopped:
            return stopped.code, out.getvalue(), err.getvalue()

print(json.dumps([outcome(words) for words in commands]))
"""
NEEDS: dict[str, str] = {
    "report run": "report",
    "demo": "report",
    "keygen key": "evidence",
    "sign run --key key": "evidence",
    "verify run --key key.pub": "evidence",
    "export run --format onnx": "onnx",
    "classes --data hf:nobody/nothing": "datasets",
    "request new --class 3": "desk",
    "request list": "desk",
    "request show R-0001": "desk",
    "request run R-0001": "desk",
    "request batch": "desk",
    "request check": "desk",
}
CORE = ("classes --data digits", "forget --help", "request --help")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every command in a process in which no optional package can be imported."""
    commands = [*NEEDS, *CORE]
    words = [[*command.split(), *(["--json"] if command in NEEDS else [])] for command in commands]
    content = json.dumps([words, OPTIONAL])
    program = [sys.executable, "-c", DRIVER]
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(program, input=content, capture_output=True, text=True, check=True, cwd=folder)
    assert not any(folder.iterdir())
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", NEEDS)
def test_a_missing_extra_is_one_clear_error(outcomes: dict[str, Any], command: str) -> None:
    code, out, err = outcomes[command]
    error = json.loads(out)["error"]
    assert code == error["exit_code"] == 2, err
    assert error["fix"] == f"pip install 'famr[{NEEDS[command]}]'"
    assert "Traceback" not in err


@pytest.mark.parametrize("command", CORE)
def test_other_commands_need_no_extra(outcomes: dict[str, Any], command: str) -> None:
    code, _, err = outcomes[command]
    assert code == 0, err
