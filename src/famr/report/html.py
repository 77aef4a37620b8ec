"""A report as one HTML file: no script, nothing loaded, light and dark, for a desk, a telephone and paper."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import groupby

from famr._version import __version__
from famr.report.content import Block, Bullets, Drawing, Report, Section, Table, Text
from famr.report.escaping import in_html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
DIGEST = re.compile(r"[0-9a-f]{64}")
VERDICTS = {"pass": "pass", "fail": "fail", "cannot tell": "unsure"}


def as_html(report: Report) -> str:
    """The whole page."""
    style = files("famr.report").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="robots" content="noindex">',
            f"<title>{in_html(report.title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{in_html(report.title)}</h1>",
            f'<p class="verdict {VERDICTS[report.outcome]}">{in_html(report.verdict)}</p>',
            *(_section(section) for section in report.sections),
            "</main>",
            f"<footer>Written by famr {__version__}. This file loads nothing and runs no program.</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(section: Section) -> str:
    parts = ["<section>", f"<h2>{in_html(section.title)}</h2>"]
    for drawn, blocks in groupby(section.blocks, key=lambda block: isinstance(block, Drawing)):
        made = [_block(block) for block in blocks]
        parts += ['<div class="figures">', *made, "</div>"] if drawn else made
    return "\n".join([*parts, "</section>"])


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{in_html(block.text)}</p>"
    if isinstance(block, Bullets):
        return "\n".join(["<ul>", *(f"<li>{in_html(line)}</li>" for line in block.lines), "</ul>"])
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Drawing):
        caption = f"<strong>{in_html(block.title)}</strong> {in_html(block.says)}"
        return f"<figure>\n<figcaption>{caption}</figcaption>\n{block.svg}\n</figure>"
    images = [
        f'<li><img alt="" src="data:image/png;base64,{each.png}">{in_html(each.name)}</li>' for each in block.images
    ]
    return "\n".join([f"<p>{in_html(block.says)}</p>", '<ul class="thumbnails">', *images, "</ul>"])


def _table(table: Table) -> str:
    heads = [
        f'<th scope="col"{_class("word" if place < table.words else "")}>{in_html(name)}</th>'
        for place, name in enumerate(table.columns)
    ]
    rows = [
        "<tr>"
        + "".join(_cell(cell, table.columns[place], place < table.words) for place, cell in enumerate(row))
        + "</tr>"
        for row in table.rows
    ]
    caption = in_html(table.caption)
    stacked = ' class="stacked"' if len(table.columns) > 2 else ""  # on a telephone, a row is a small list
    return "\n".join(
        [
            f'<div class="table">\n<p class="caption">{caption}</p>',
            f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">\n<table{stacked}>',
            f"<thead><tr>{''.join(heads)}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody>\n</table>",
            "</div>\n</div>",
        ]
    )


def _cell(cell: str, column: str, word: bool) -> str:
    kinds = ["word"] if word else []
    if DIGEST.fullmatch(cell):
        kinds.append("digest")
    kinds += [kind for verdict, kind in VERDICTS.items() if cell.endswith(verdict)]
    return f'<td data-of="{in_html(column)}"{_class(" ".join(kinds))}>{in_html(cell)}</td>'


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""
