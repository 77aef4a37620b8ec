"""Put a report where it belongs: into the run it is about, or beside it."""

from __future__ import annotations

import json
from pathlib import Path

from famr.errors import RequestError
from famr.report.content import Report
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import add_to_run, atomic_file


def pages(report: Report) -> dict[str, str]:
    """The three ways to write a report, by the ending of the file."""
    content = json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {".html": as_html(report), ".md": as_markdown(report), ".json": content}


def write_report(report: Report, run: Path, output: Path | None = None) -> Path:
    """Write all three; the HTML file's place is returned."""
    made = pages(report)
    if output is None:
        add_to_run(run, {f"unlearning/report{ending}": content for ending, content in made.items()})
        return run / "unlearning/report.html"
    target = output.with_suffix(".html")
    if target.resolve().is_relative_to(run.resolve()):
        raise RequestError(
            "A finished run may not change unnoticed.",
            where=str(target),
            fix="Leave out --output, or name another place.",
        )
    for ending, content in made.items():
        with atomic_file(target.with_suffix(ending)) as staging:
            staging.write_text(content, encoding="utf-8")
    return target
