"""The package in figures: lines, files, public names defined twice, docstrings with Args, uses of private torch API.

python -m benchmarks.code_figures [FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PRIVATE = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*|\b(?!self)\w+\._(parameters|modules|buffers|forward_hooks)\b")
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(tree: ast.Module) -> Iterator[Documented]:
    """Public functions, classes and their public methods."""
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    inner
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_")
                )


def takes_arguments(node: Documented) -> bool:
    """Whether it has parameters that its docstring must describe."""
    if isinstance(node, ast.ClassDef):
        return False
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return bool([each for each in named if each.arg not in ("self", "cls")])


def figures(folder: Path) -> dict[str, object]:
    """All of them, of the Python files below a folder."""
    files = sorted(folder.rglob("*.py"))
    homes: dict[str, set[str]] = defaultdict(set)
    lines = documented = with_args = need_args = private = 0
    longest = ("", 0)
    sizes = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        sizes.append(len(text.splitlines()))
        lines += sizes[-1]
        longest = max(longest, (file.relative_to(folder).as_posix(), sizes[-1]), key=lambda pair: pair[1])
        private += sum(bool(PRIVATE.search(line)) for line in text.splitlines())
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, Documented) and not node.name.startswith("_"):
                homes[node.name].add(file.as_posix())
        for node in public(tree):
            docstring = ast.get_docstring(node) or ""
            documented += bool(docstring)
            need_args += takes_arguments(node)
            with_args += bool(re.search(r"^\s*Args:", docstring, re.MULTILINE))
    return {
        "files": len(files),
        "flat in the package": len(list(folder.glob("*.py"))),
        "lines": lines,
        "median file": sorted(sizes)[len(sizes) // 2],
        "longest file": f"{longest[0]}: {longest[1]}",
        "public docstrings": documented,
        "public functions with parameters": need_args,
        "docstrings with Args": with_args,
        "public names defined twice": sum(len(found) > 1 for found in homes.values()),
        "names defined twice": sorted(name for name, found in homes.items() if len(found) > 1),
        "lines with private torch API": private,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("src/famr"))
    print(json.dumps(figures(parser.parse_args().folder), indent=1))


if __name__ == "__main__":
    main()
