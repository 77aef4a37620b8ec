"""The layers of docs/architecture.md: each package imports only from those above it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.code_figures import PRIVATE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/famr"
PAGE = ROOT / "docs/architecture.md"


def layers() -> list[str]:
    """The names in the page's table, from the top down."""
    rows = re.findall(r"^\| \d+ \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Line and first part of every import of famr: at the top, in functions, and for type checking alike."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"famr.{alias.name}" for alias in node.names] if module == "famr" else [module]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "famr" and rest:
                yield node.lineno, rest.partition(".")[0]


def violations(root: Path, order: list[str]) -> list[str]:
    """Every import of a layer from below."""
    found = []
    for file in sorted(root.rglob("*.py")):
        own = file.relative_to(root).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for line, other in imported(file):
            if other != "_version" and order.index(other) > order.index(own):
                found.append(f"{file.relative_to(root)}:{line}: {own} imports {other}")
    return found


def test_each_package_imports_only_from_those_above_it() -> None:
    assert violations(PACKAGE, layers()) == []


def test_every_package_has_its_place_in_the_page() -> None:
    names = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names - {"__init__", "__main__", "__pycache__", "_version", "py.typed"} == set(layers()) - {"__main__"}


@pytest.mark.parametrize(
    "line",
    [
        "from famr.cli.main import main",
        "import famr.cli",
        "from famr import cli",
        "def f():\n    from famr.cli import main",
        "if TYPE_CHECKING:\n    import famr.cli.main",
    ],
)
def test_an_import_from_below_is_seen_wherever_it_stands(line: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/odd.py").write_text(line + "\n", encoding="utf-8")
    assert len(violations(tmp_path, ["data", "cli"])) == 1


def loaded_by(code: str) -> set[str]:
    """Modules of famr that a fresh process has loaded after some code."""
    listing = "import sys; print(*[name for name in sys.modules if name.startswith('famr.')])"
    ended = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


def test_evaluation_on_a_cpu_imports_no_cuda_code() -> None:
    loaded = loaded_by("from famr.evaluation import evaluate; from famr.engine import inference, plain, prefix")
    assert "famr.engine.plain" in loaded
    assert not loaded & {"famr.engine.cuda", "famr.engine.graphs", "famr.engine.bf16", "famr.engine.fsdp"}


def test_a_run_on_a_cpu_imports_no_cuda_engine() -> None:
    loaded = loaded_by("import famr.unlearn.forget; from famr.engine.pick import pick_engine; pick_engine('cpu')")
    assert not loaded & {"famr.engine.cuda", "famr.engine.graphs", "famr.engine.fsdp"}


def test_importing_famr_imports_no_torch() -> None:
    code = "import famr, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_private_api_of_torch_is_used() -> None:
    lines = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert lines == []
