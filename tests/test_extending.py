"""docs/extending.md: its files, added to a copy of the package, work; each takes one file, its import and one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/extending.md"
BLOCK = re.compile(r"^```python\n# (src/famr/\S+\.py)(?:, in (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extended(folder: Path) -> list[tuple[str, ...]]:
    """Copy the package and follow the page; returns the files that each extension touched."""
    shutil.copytree(ROOT / "src/famr", folder / "src/famr", ignore=shutil.ignore_patterns("__pycache__"))
    touched: list[tuple[str, ...]] = []
    new = ""
    for name, mapping, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        file = folder / name
        if not mapping:
            assert not file.exists()
            file.write_text(text, encoding="utf-8")
            new = name
            continue
        public = re.findall(r"[A-Z]\w+", text)[-1]
        module = new.removeprefix("src/").removesuffix(".py").replace("/", ".")
        source = file.read_text(encoding="utf-8")
        source = source.replace("\nfrom famr.", f"\nfrom {module} import {public}\nfrom famr.", 1)
        head = re.search(rf"^{mapping}: [^\n]*\n(?:    gate\.name: gate\n    for gate in \(\n)?", source, re.MULTILINE)
        assert head is not None
        file.write_text(source[: head.end()] + text + source[head.end() :], encoding="utf-8")
        touched.append((new, name))
    return touched


def run(folder: Path, code: str, *arguments: object) -> str:
    """Run code with the extended package; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    extended(folder)
    return folder


def test_each_extension_touches_one_new_file_and_one_mapping(tmp_path: Path) -> None:
    packages = [Path(files[1]).parent.relative_to("src/famr").as_posix() for files in extended(tmp_path)]
    assert packages == ["targets", "anchors", "baselines", "audit/gates"]


FORGET = """
import sys
import famr
model = famr.load_model(sys.argv[1])
splits = famr.split(famr.open_data("digits"), famr.Request(classes=["3"]))
target = famr.FAMR(target="other-classes", epochs=2, strength=1.0)
anchor = famr.FAMR(anchor="relative", epochs=8, strength=1.0)
for method in (target, anchor):
    result = famr.forget(model, splits, method, device="cpu")
    first, last = result.history[0], result.history[-1]
    assert last.loss_forget < 0.5 * first.loss_forget, (first, last)
    assert (result.method.target, result.method.anchor)[method.anchor == "relative"] in ("other-classes", "relative")
for name in ("other-classes", "relative"):  # wrong names are refused with the right ones
    try:
        famr.FAMR(target="x") if name == "other-classes" else famr.FAMR(anchor="x")
    except famr.FamrError as error:
        assert name in str(error), error
"""

BASELINE = """
import sys
import famr
from famr.baselines import BASELINES
model = famr.load_model(sys.argv[1])
splits = famr.split(famr.open_data("digits"), famr.Request(classes=["3"]))
before = famr.compare(model, model, None, splits, device="cpu").unlearned.forget_accuracy
result = BASELINES["second-choice"]().unlearn(model, splits, device="cpu")
after = famr.compare(model, result.model, None, splits, device="cpu").unlearned.forget_accuracy
assert after < 0.5 * before, (before, after)
"""

GATE = """
import sys
import famr
from famr.audit.audit import audit
model, *retrained = map(famr.load_model, sys.argv[1:])
splits = famr.split(famr.open_data("digits"), famr.Request(classes=["3"]))
judged = audit(model, splits, retrained=retrained, quick=True, device="cpu")
(gate,) = [check for check in judged.checks if check.name == "forget_entropy_gap"]
assert gate.verdicts["unlearned"] == "fail", gate  # the original still knows the class
"""

HELP = """
import sys
from famr.cli.main import main
sys.argv = ["famr", "forget", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""


def test_the_pages_target_and_anchor_forget_a_class(copy: Path, original_run: Path) -> None:
    run(copy, FORGET, original_run)


def test_the_pages_baseline_forgets_a_class(copy: Path, original_run: Path) -> None:
    run(copy, BASELINE, original_run)


def test_the_pages_gate_fails_the_original(
    copy: Path, original_run: Path, retrained_runs: list, tmp_path: Path
) -> None:
    references = [trained.save(tmp_path / str(index)) for index, trained in enumerate(retrained_runs[:2])]
    run(copy, GATE, original_run, *references)


def test_the_command_line_offers_the_pages_target_and_anchor(copy: Path) -> None:
    words = run(copy, HELP)
    assert "other-classes" in words
    assert "relative" in words
