"""Write a report as HTML, Markdown and JSON: into the run folder, or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from famr.errors import RequestError
from famr.report.content import Report
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import add_to_run, atomic_file


def render_report(report: Report) -> dict[str, str]:
    """Render a report in its three formats.

    Args:
        report: The content.

    Returns:
        The text of each file, by its suffix: ``.html``, ``.md`` and ``.json``.

    Raises:
        RequestError: Jinja2, of the extra ``famr[report]``, is not installed.
    """
    content = json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {".html": as_html(report), ".md": as_markdown(report), ".json": content}


def write_report(report: Report, run: Path, output: Path | None = None) -> Path:
    """Write the three files of a report.

    Args:
        report: The content.
        run: The folder of the run.
        output: Where to write; its suffix is replaced by each format's. None adds the files to the run folder.

    Returns:
        The path of the HTML file.

    Raises:
        RequestError: `output` is inside the run folder, or Jinja2 is not installed.
        CheckpointError: A file of the run changed since it was finished.
    """
    pages = render_report(report)
    if output is None:
        add_to_run(run, {f"unlearning/report{suffix}": content for suffix, content in pages.items()})
        return run / "unlearning/report.html"
    target = output.with_suffix(".html")
    if target.resolve().is_relative_to(run.resolve()):
        raise RequestError(
            "--output must be outside the run folder, whose files are sealed.",
            where=str(target),
            fix="Leave out --output to add the report to the run, or give another path.",
        )
    for suffix, content in pages.items():
        with atomic_file(target.with_suffix(suffix)) as staging:
            staging.write_text(content, encoding="utf-8")
    return target
