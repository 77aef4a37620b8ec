"""Optional packages: missing ones are named with the extra that installs them, and the core does without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from famr.errors import RequestError
from famr.extras import require_extra

OPTIONAL = ("jinja2", "matplotlib", "cryptography", "rfc8785")


def test_a_missing_package_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RequestError, match="package jinja2 is needed") as caught:
        require_extra("jinja2", "report")
    assert caught.value.fix == "pip install 'famr[report]'"
    assert caught.value.exit_code == 2


def test_a_missing_package_is_named_without_its_submodule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(RequestError, match="package matplotlib is needed"):
        require_extra("matplotlib.figure", "report")


def test_report_and_provenance_import_without_their_extras() -> None:
    code = f"""
import importlib, pkgutil, sys
for name in {OPTIONAL}:
    sys.modules[name] = None
import famr.report, famr.provenance
for package in (famr.report, famr.provenance):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
