"""The example of the deletion desk: from two requests to a verified signature."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.deletion_desk import PERSON, serve_requests


def test_two_requests_go_from_receipt_to_a_verified_signature(
    original_run: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    outputs: list[tuple[str, str]] = []

    def famr(*arguments: object) -> int:
        outcome = run(*arguments)
        outputs.append((str(arguments[0]), outcome.out + outcome.err))
        return int(outcome.code)

    serve_requests(tmp_path, famr, original=original_run)
    desk = "".join(output for command, output in outputs if command == "request")
    assert "the same request is recorded already" in desk
    assert "R-0001: still forgotten" in desk
    verified = [output for command, output in outputs if command == "verify"]
    assert [output.startswith("verified") for output in verified] == [True, True, False]
    runs = [tmp_path / "desk/runs" / name for name in ("run-0001", "run-0002")]
    payloads = [json.loads((run / "evidence.dsse.json").read_text(encoding="utf-8"))["payloadType"] for run in runs]
    assert payloads == ["application/vnd.in-toto+json"] * 2
    report = (runs[1] / "unlearning/report.html").read_text(encoding="utf-8")
    assert "<script" not in report
    assert str(len(PERSON)) in report
    lineage = json.loads((runs[1] / "unlearning/requests.json").read_text(encoding="utf-8"))
    assert "run-0001" in json.dumps(lineage)
