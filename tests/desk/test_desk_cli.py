"""The desk on the command line: two requests on digits, carried out one after another, reported and rechecked."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import Outcome
from famr.cli.main import main
from famr.data import Data
from famr.report.escaping import visible
from famr.storage.digests import check_complete

HOSTILE = ("<script>alert(1)</script>", "[/x]", "$\\frac$", "=cmd", "\u202egnp.exe")


@pytest.fixture(scope="module")
def call() -> Callable[..., Outcome]:
    """Call `famr request` as the shell would, in this process."""

    def answer(*arguments: object) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["famr", "request", *(str(argument) for argument in arguments)])
            with pytest.raises(SystemExit) as stopped:
                main()
        code = stopped.value.code
        return Outcome(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())

    return answer


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory, digits: Data) -> Path:
    """Twenty samples that are there, and five that are not."""
    file = tmp_path_factory.mktemp("asked") / "samples.txt"
    retained = [id_ for id_, target in zip(digits.train.ids, digits.train.targets.tolist(), strict=True) if target != 3]
    file.write_text("\n".join([*retained[:20], *HOSTILE]), encoding="utf-8")
    return file


class Story(NamedTuple):
    folder: Path
    begun: Outcome
    again: Outcome
    second: Outcome
    first_run: Outcome
    second_run: Outcome


@pytest.fixture(scope="module")
def story(
    call: Callable[..., Outcome], original_run: Path, listed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    """A class, then twenty samples, each carried out."""
    folder = tmp_path_factory.mktemp("desk") / "workspace"
    settings = listed.with_name("method.json")
    settings.write_text(json.dumps({"method": {"epochs": 12}}), encoding="utf-8")
    here, how = ("-w", folder), ("--method", settings, "--device", "cpu", "--quiet")
    begin = ("--model", original_run, "--data", "digits", "--received", "2026-01-31")
    return Story(
        folder,
        call("new", *here, "--class", "3", *begin, "--json"),
        call("new", *here, "--class", "3", "--json"),
        call("new", *here, "--samples", listed),
        call("run", "R-0001", *here, *how),
        call("batch", *here, *how, "--json"),
    )


def test_requests_are_recorded_once_with_their_search_results(story: Story) -> None:
    assert story.begun.code == story.again.code == story.second.code == 0, story
    first, again = json.loads(story.begun.out), json.loads(story.again.out)
    assert (first["id"], first["deadline"], first["found"], first["new"]) == ("R-0001", "2026-02-28", 146, True)
    assert (again["id"], again["received"], again["new"]) == ("R-0001", "2026-01-31", False)
    assert "found 20, not found 5" in story.second.out
    for name in HOSTILE:
        assert f"not found: {visible(name)}" in story.second.out


def test_runs_follow_each_other_and_earlier_requests_stay_forgotten(story: Story) -> None:
    assert story.first_run.code == story.second_run.code == 0, story
    assert "Chain of 1 run" in story.first_run.out
    (report,) = json.loads(story.second_run.out)["runs"]
    assert report["requests"][0]["id"] == "R-0002"
    assert report["earlier"]["R-0001"][0] == "still forgotten"
    first, second = (story.folder / f"runs/run-000{number}" for number in (1, 2))
    for folder in (first, second):
        check_complete(folder)
    record = json.loads((second / "unlearning/run.json").read_text(encoding="utf-8"))
    assert record["original"]["model"] == "{run}/../run-0001"
    described = json.loads((second / "unlearning/requests.json").read_text(encoding="utf-8"))
    assert described["lineage"]["drift_at_most"] == pytest.approx(record["drift_of_all_runs_at_most"])
    assert described["requests"][0]["not_found"] == 5


def test_a_model_that_predicts_the_forgotten_class_again_fails_the_check(
    call: Callable[..., Outcome], story: Story, original_run: Path
) -> None:
    checked = call("check", "-w", story.folder, "--device", "cpu")
    assert checked.code == 0, checked.err
    assert "R-0001: still forgotten" in checked.out
    back = call("check", "-w", story.folder, "--model", original_run, "--device", "cpu")
    assert back.code == 7
    assert "R-0001: came back" in back.out


def test_the_report_of_a_chain_names_its_requests(run: Callable[..., Outcome], story: Story) -> None:
    last = story.folder / "runs/run-0002"
    reported = run("report", last, "--device", "cpu")
    assert reported.code == 0, reported.err
    page = (last / "unlearning/report.html").read_text(encoding="utf-8")
    for words in ("R-0002", "run 2 of a chain", "still forgotten", "within budget", "<svg"):
        assert words in page


def test_names_are_text_in_terminal_and_spreadsheet(
    call: Callable[..., Outcome], story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = story.folder
    monkeypatch.setenv("COLUMNS", "200")
    shown = call("show", "R-0002", "-w", folder)
    assert shown.code == 0, shown.err
    for name in HOSTILE:
        assert visible(name) in shown.out
    assert "\u202e" not in shown.out
    table = call("show", "R-0002", "-w", folder, "--csv")
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert {row["asked"] for row in rows if row["state"] == "not found"} == {
        "'=cmd" if name == "=cmd" else visible(name) for name in HOSTILE
    }
    everything = list(csv.DictReader(io.StringIO(call("list", "-w", folder, "--csv").out)))
    assert [row["status"] for row in everything] == ["done", "done"]
    shown = json.loads(call("show", "R-0002", "-w", folder, "--json").out)
    assert HOSTILE[4] in [sample["asked"] for sample in shown["samples"]]


def test_mistakes_are_refused_and_change_nothing(
    call: Callable[..., Outcome], story: Story, original_run: Path, tmp_path: Path
) -> None:
    folder = story.folder
    before = call("list", "-w", folder, "--json").out
    nonsense = tmp_path / "nonsense.json"
    nonsense.write_text("[1]", encoding="utf-8")
    wrong: list[tuple[tuple[object, ...], int, str]] = [
        (("show", "R-0077"), 2, "There is no request"),
        (("run", "R-0077"), 2, "There is no request"),
        (("run", "R-0001"), 2, "is closed since"),
        (("run", "R-0002"), 2, "is closed"),
        (("batch",), 2, "No request is open"),
        (("new", "--class", "33"), 2, "Unknown class"),
        (("new",), 2, "either classes or samples"),
        (("new", "--class", "3", "--sample", "1"), 2, "either classes or samples"),
        (("new", "--class", "4", "--received", "yesterday"), 2, "takes a date"),
        (("new", "--class", "4", "--received", "2026-03-01", "--deadline", "2026-01-01"), 2, "before the request"),
        (("new", "--class", "4", "--model", original_run, "--data", "folder:/x"), 2, "another model or other data"),
        (("new", "--examples", tmp_path / "none"), 2, "no such folder of examples"),
        (("new", "--hash", "xyz"), 2, "64 hexadecimal digits"),
        (("run", "R-0002", "--method", nonsense), 2, "cannot be read"),
    ]
    for command, code, words in wrong:
        outcome = call(*command, "-w", folder)
        assert (outcome.code, words in outcome.err) == (code, True), (command, outcome)
    half = call("new", "--class", "3", "--model", original_run, "-w", tmp_path / "nowhere")
    assert (half.code, "both --model and --data" in half.err) == (2, True)
    for command in (("list",), ("show", "R-0001"), ("run", "R-0001"), ("batch",), ("check",), ("new", "--class", "1")):
        outcome = call(*command, "-w", tmp_path / "nowhere")
        assert (outcome.code, "no workspace here" in outcome.err) == (2, True), command
    assert not (tmp_path / "nowhere").exists()
    assert call("list", "-w", folder, "--json").out == before
