"""The report of a run: one content as HTML, Markdown and JSON, with its figures."""
