"""A report as Markdown; a drawing becomes the table of its numbers."""

from __future__ import annotations

from famr.report.content import Block, Bullets, Drawing, Report, Table, Text
from famr.report.escaping import in_markdown


def as_markdown(report: Report) -> str:
    """Render a report as a Markdown page.

    Args:
        report: The content.
    """
    parts = [f"# {in_markdown(report.title)}", f"**{in_markdown(report.verdict)}**"]
    for section in report.sections:
        parts.append(f"## {in_markdown(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return in_markdown(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {in_markdown(line)}" for line in block.lines)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Drawing):
        return f"### {in_markdown(block.title)}\n\n{in_markdown(block.description)}\n\n{_table(block.numbers)}"
    return in_markdown(block.description) + "\n\n" + "\n".join(f"- {in_markdown(image.name)}" for image in block.images)


def _table(table: Table) -> str:
    rules = ["---" if index < table.words else "---:" for index in range(len(table.columns))]
    lines = [table.columns, *table.rows]
    head, *rows = ["| " + " | ".join(in_markdown(cell) for cell in line) + " |" for line in lines]
    return "\n".join([in_markdown(table.caption), "", head, "|" + "|".join(rules) + "|", *rows])
