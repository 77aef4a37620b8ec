"""Every benchmark imports, and its docstring gives the command that runs it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("[a-z]*.py")))
def test_every_benchmark_imports_and_names_its_command(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    if hasattr(module, "main"):
        assert f"python -m benchmarks.{name}" in (module.__doc__ or "")
