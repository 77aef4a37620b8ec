"""Pages of methods and of the paper's tables, and docs/benchmarks.md made of the pages of all result files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.markdown import markdown_table, page_head
from benchmarks.paper.tables import paper_page
from famr.bench.columns import COLUMNS, FORMATS, by_method, cell_kind, finished_cells
from famr.bench.tables import results_page
from famr.report.markdown import as_markdown

ORDER = ("methods", "table", "paper", "frontier", "requests", "concept", "style")
"""Files whose names begin so come first, in this order; the remaining ones follow by name."""
DETAILS = ("Every run", "Every cell", "Tuning", "Each engine")
"""Sections that only the file's own page has."""
INTRODUCTION = """# Benchmarks

Every figure below comes from a file in [benchmarks/results](../benchmarks/results). `make tables` makes this page from
them, and a test fails where it is not up to date; nothing is typed by hand. The same for your own model and data:

    famr bench methods --data SPEC --start timm:NAME --class NAME --samples-share 0.1 --seeds 0,1,2 --output DIR
    python -m benchmarks.published_settings --data DIR --output FILE     # each baseline beside its published figure
    python -m benchmarks.paper --table 1 --data SPEC --output DIR        # or --figure 1 to 4

The methods, their numbers and how these are chosen: [baselines.md](baselines.md)."""


def bench_page(name: str, content: dict[str, Any]) -> str:
    """The page that the bench itself writes, with the name of its file."""
    page = results_page(content) if content["benchmark"] == "methods" else paper_page(content)
    title, _, rest = as_markdown(page).partition("\n\n")
    return "\n\n".join([*page_head(title.removeprefix("# "), name), rest])


SUMMARY_COLUMNS = ("Ret-Acc %", "For-Acc %", "Avg. Gap %", "seconds")
SUMMARY_NAMES = {"FAMR": "**FAMR**", "FAMR, quick": "**FAMR**, quick", "retrain": "retrained with another seed"}


def methods_summary(content: Mapping[str, Any]) -> str:
    """All methods in a few means, as the README shows them: those nearest to retraining on a class first."""
    kinds = {
        kind: by_method([cell for cell in finished_cells(content["cells"]) if cell_kind(cell, content) == kind])
        for kind in ("class", "samples")
    }
    columns = [column for column in COLUMNS if column.title in SUMMARY_COLUMNS]

    def means(name: str, model: str) -> list[str]:
        texts = []
        for methods in kinds.values():
            for column in columns:
                values = [value for cell in methods.get(name, ()) if (value := column.value(cell, model)) is not None]
                texts.append(FORMATS[column.format](fmean(values)) if values else "–")
        return texts

    order = sorted(kinds["class"], key=lambda name: fmean(c["unlearned"]["average_gap"] for c in kinds["class"][name]))
    rows = [
        ("", *(f"{kind}: {title}" for kind in kinds for title in SUMMARY_COLUMNS)),
        ("original", *means("FAMR", "original")),
    ]
    asked = content["methods"].get("FAMR", {}).get("effort", "quick")  # before there was a choice it was quick
    names = {**SUMMARY_NAMES, "FAMR": SUMMARY_NAMES["FAMR, quick" if asked == "quick" else "FAMR"]}
    rows += [(names.get(name, name), *means(name, "unlearned")) for name in order]
    return markdown_table([*rows, ("retrained", *means("FAMR", "retrained"))])


def overview(pages: Mapping[str, str], figures: Sequence[str]) -> str:
    """The page of all pages: of each its setting and its main tables, with a link to the rest."""

    def key(name: str) -> tuple[int, str]:
        rank = next((rank for rank, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))
        return rank, name

    parts = [INTRODUCTION]
    for name in sorted(pages, key=key):
        parts.append(shortened(name, pages[name]))
        parts += [f"![{file}](../benchmarks/results/{file})" for file in figures if file.startswith(name)]
    return "\n\n".join(parts) + "\n"


def shortened(name: str, page: str) -> str:
    """A page one level down, without its details."""
    title, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    main = [section for section in sections if not section.startswith(DETAILS)]
    head, _, lead = title.removeprefix("# ").partition("\n")
    lead = re.sub(r"^Made from .*\n+", "", lead.strip(), flags=re.MULTILINE).strip()
    link = f"All runs: [{name}](../benchmarks/results/{name}.md)."
    body = [f"## {head}", *([lead] if lead else []), *(f"### {section.strip()}" for section in main), link]
    return "\n\n".join(body)
