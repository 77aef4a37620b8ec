"""The report: one content as HTML, Markdown and JSON, offline, honest about what is missing; text stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import famr
from chromium import BROWSER, WIDTHS, chromium
from conftest import Outcome, alg1
from famr.audit.class_changes import ClassChange
from famr.audit.verdict import read_thresholds
from famr.data import Data
from famr.engine.inference import predict
from famr.errors import RequestError, StorageError
from famr.report.build import build_report
from famr.report.content import Report, Table, Text
from famr.report.escaping import as_csv, visible
from famr.report.facts import Facts, read_facts
from famr.report.figures import entropies, frontier, who_paid
from famr.report.gate_words import GATES
from famr.report.hub import UPLOADED, push_run
from famr.report.left_to_people import BLANK, BOX
from famr.report.measure import measure
from famr.report.verdict import verdict
from famr.report.write import pages
from famr.storage.digests import check_complete

HOSTILE = (
    "<script>alert(1)</script>",
    "[/x]",
    "$\\frac$",
    "=cmd",
    "two\nlines",
    "\u202egnp.exe",
    "a|b",
    "&lt;b&gt;",
    "`x`",
    "<!--",
)
SECTIONS = [
    "What was asked",
    "What was done",
    "What it reaches",
    "Certificate",
    "Audit",
    "Method, parameters, versions, digests",
    "What this report does not show",
    "For people to fill in and sign",
]


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "table":
            assert ("class", "scroll") in self.attributes[-8:]  # tables scroll in a box of their own
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            return
        self.texts.append(data)
        if self._open[-1:] in (["td"], ["th"]):
            self.tables[-1][-1].append(data)
        if self._open[-1:] == ["h2"]:
            self.headings.append(data)


def require_offline(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        if name in ("src", "href", "xlink:href", "srcset", "action", "background"):
            assert value.startswith("data:image/png;base64,"), value
    policy = next(value for name, value in page.attributes if "default-src" in value)
    assert "default-src 'none'" in policy


@pytest.fixture(scope="module")
def folder(original_run: Path, tmp_path_factory: pytest.TempPathFactory, digits: Data) -> Path:
    """A run on digits as the command line leaves it."""
    from famr.cli.commands import run_forget
    from famr.cli.options import data_facts

    target = tmp_path_factory.mktemp("reported") / "no-3"
    run_forget(
        model=str(original_run),
        weights=None,
        arguments={},
        request=famr.Request(classes=["3"]),
        data_facts=data_facts("digits", None, None, 0, by_name=False),
        style_target=None,
        sketch=None,
        method=alg1(epochs=3, learning_rate=3e-4, batch_size=16),
        retrained=None,
        track_retain=True,
        gates=False,
        output_dir=target,
        overwrite=False,
        seed=0,
        device="cpu",
        quiet=True,
    )
    return target


@pytest.fixture
def facts(folder: Path) -> Facts:
    return read_facts(folder)


def report_on(run: Callable[..., Outcome], folder: Path, *more: object) -> tuple[Outcome, dict[str, str]]:
    outcome = run("report", folder, "--device", "cpu", *more)
    return outcome, {
        ending: (folder / f"unlearning/report{ending}").read_text(encoding="utf-8")
        for ending in (".html", ".md", ".json")
    }


def audited(facts: Facts, verdicts: dict[str, str], sha: str | None = None) -> Facts:
    """The same run with an audit of these gates."""
    figures = {"unlearned": {"value": 0.1, "low": 0.05, "high": 0.15, "why_not": None}}
    checks = [
        {"name": name, "says": f"About {name}.", "threshold": 0.2, "allowed": 0.2, "figures": figures,
         "verdicts": {"unlearned": given}, "needs_retrained": True}
        for name, given in verdicts.items()
    ]  # fmt: skip
    subject = {"unlearned_sha256": sha or facts.run["unlearned"]["weights_sha256"]}
    overall = {"unlearned": "fail" if "fail" in verdicts.values() else "pass"}
    stated = {"calibration": {"says": "ECE of <b>.", "ece": {"unlearned": 0.0123}, "many": [1, 2, 3]}}
    found = {"verdicts": overall, "checks": checks, "subject": subject, "notes": ["A note <b>."], "stated": stated}
    return replace(facts, audit=found)


def test_the_page_is_offline_and_whole(run: Callable[..., Outcome], folder: Path, original_run: Path) -> None:
    outcome, made = report_on(run, folder, "--retrained", original_run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("Cannot tell: no audit was made")
    page = Page(made[".html"])
    require_offline(page)
    assert page.headings == SECTIONS
    assert page.tags.count("svg") == 4
    assert "data:image" not in made[".html"]
    for section in SECTIONS:
        assert f"## {section}" in made[".md"]
    told = json.loads(made[".json"])
    assert [section["title"] for section in told["sections"]] == SECTIONS
    assert told["outcome"] == "cannot tell"
    check_complete(folder)
    assert run("evaluate", folder, "--device", "cpu").code == 0


def test_the_same_run_gives_the_same_bytes(run: Callable[..., Outcome], folder: Path, tmp_path: Path) -> None:
    _, first = report_on(run, folder)
    _, second = report_on(run, folder)
    assert first == second
    outcome = run("report", folder, "--device", "cpu", "--output", tmp_path / "elsewhere.html")
    assert outcome.code == 0
    for ending, content in first.items():
        assert (tmp_path / f"elsewhere{ending}").read_text(encoding="utf-8") == content


def test_the_table_says_what_the_records_say(run: Callable[..., Outcome], folder: Path) -> None:
    _, made = report_on(run, folder)
    metrics = json.loads((folder / "unlearning/metrics.json").read_text(encoding="utf-8"))
    table = next(table for table in Page(made[".html"]).tables if "Ret-Acc, %" in table[0])
    rows = {row[0]: row[1:] for row in table[1:]}
    for model in ("original", "unlearned"):
        found = metrics[model]
        assert rows[model][:2] == [f"{100 * found[name]:.1f}" for name in ("retain_accuracy", "forget_accuracy")]
        assert rows[model][3:] == [f"{found[f'forget_{name}']:.2f}" for name in ("cross_entropy", "entropy", "kl")]
    assert set(rows["retrained"]) == set(rows["gap"]) == {"not available"}
    assert "no retrained checkpoint was given" in made[".html"]


def test_markdown_tables_are_tables(run: Callable[..., Outcome], folder: Path) -> None:
    _, made = report_on(run, folder)
    blocks = re.findall(r"(?:^\|.*\|\n)+", made[".md"], re.MULTILINE)
    assert len(blocks) >= 6
    for block in blocks:
        lines = block.splitlines()
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(re.findall(r"(?<!\\)\|", lines[0]))}


def test_hostile_names_are_text_everywhere(original: famr.Classifier, digits: Data, folder: Path) -> None:
    labels = (*HOSTILE,)
    data, model = replace(digits, labels=labels), replace(original, labels=labels)
    splits = famr.split(data, famr.Request(classes=[labels[0]]))
    measured = measure(model, model, model, splits, "cpu")
    named = replace(read_facts(folder), request=splits.request, desk=desk_record(), name=HOSTILE[0])
    made = pages(build_report(audited(named, {"gate": "pass"}), measured))
    page = Page(made[".html"])
    require_offline(page)
    assert not {"b", "input"} & set(page.tags)
    text = "".join(page.texts)
    for name in HOSTILE:
        assert visible(name)[:14] in text  # a long name is cut in a drawing, and whole in the numbers of it
    markdown = made[".md"]
    assert "<script>" not in markdown
    assert "\u202e" not in markdown + made[".html"]
    assert "\\<script\\>alert" in markdown
    assert "\\$\\\\frac\\$" in markdown
    assert "two\\\\nlines" in markdown


def desk_record() -> dict[str, Any]:
    request = {
        "id": "R-0001", "received": "2026-03-01", "deadline": "2026-04-01", "asks": f"class {HOSTILE[0]}", "samples": 9,
        "found": 7, "not_found": 2, "forgotten_before": 0,
    }  # fmt: skip
    copies = [{"forgotten": HOSTILE[0], "retained": HOSTILE[3], "similarity": None, "included": False}]
    lineage = {"says": "Chain of 1 run: within budget."}
    return {"requests": [request], "duplicates": copies, "earlier": [], "lineage": lineage}


def test_the_desk_s_records_are_told_without_names_of_samples(facts: Facts) -> None:
    made = pages(build_report(replace(facts, desk=desk_record(), request=famr.Request(samples=["ann.png"])), None, "x"))
    text = "".join(Page(made[".html"]).texts)
    assert "R-0001" in text
    assert "2026-04-01" in text
    assert "1 exact, 0 near-duplicates" in text
    assert "=cmd" not in "".join(made.values())
    assert "ann.png" not in "".join(made.values())


@pytest.mark.parametrize(
    ("gates", "outcome", "words"),
    [
        ({"a_gap": "pass", "b": "fail"}, "fail", "Failed: 1 of 2 gates of the audit fail (b)"),
        ({"a_gap": "cannot tell", "b": "pass"}, "cannot tell", "1 of 2 gates of the audit cannot tell (a gap)"),
        ({"a_gap": "pass", "b": "pass"}, "pass", "keeps all 2 thresholds"),
        ({}, "cannot tell", "no gate applies"),
    ],
)
def test_the_verdict_is_the_audit_s(facts: Facts, gates: dict[str, str], outcome: str, words: str) -> None:
    found, sentence = verdict(audited(facts, gates))
    assert found == outcome
    assert words in sentence
    assert sentence.count(". ") == 0  # one sentence


def test_without_an_audit_nobody_can_tell(facts: Facts) -> None:
    outcome, sentence = verdict(replace(facts, audit=None))
    assert outcome == "cannot tell"
    assert "weak evidence" in sentence
    assert "weak evidence" not in verdict(replace(facts, audit=None, metrics=None))[1]


def test_an_audit_of_other_weights_is_no_verdict(facts: Facts) -> None:
    other = audited(facts, {"a": "pass"}, sha="0" * 64)
    assert verdict(other)[0] == "cannot tell"
    assert "other weights" in pages(build_report(other, None, "x"))[".html"]


def test_whatever_an_audit_holds_is_shown(facts: Facts) -> None:
    text = "".join(Page(pages(build_report(audited(facts, {"new_gate": "fail"}), None, "x"))[".html"]).texts)
    for words in ("new gate", "0.100 [0.050, 0.150] fail", "About new_gate.", "A note <b>.", "ECE of <b>.", "0.0123"):
        assert words in text


def test_a_certificate_is_shown_with_its_assumptions(facts: Facts) -> None:
    claims = [
        {"name": "drift", "says": "How far.", "source": "[X]", "value": 1.5, "bound": 2.0, "holds": True,
         "assumptions": [{"says": "J is convex.", "status": "fails"}], "details": {}, "not_available": None},
        {"name": "rate", "says": "How fast.", "source": "[Y]", "not_available": "no rate", "assumptions": []},
    ]  # fmt: skip
    found = {"kind": "deviation", "means": "a distance", "claims": claims, "not_shown": ["Much."], "subject": {}}
    text = "".join(Page(pages(build_report(replace(facts, certificate=found), None, "x"))[".html"]).texts)
    assert "measured, not proved" in text
    assert "Assumption, fails: J is convex." in text
    assert "Not available: no rate." in text
    assert verdict(replace(facts, certificate={**found, "kind": "exact"}))[0] == "pass"


def test_without_the_data_the_figures_are_not_available(
    run: Callable[..., Outcome], folder: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    record = json.loads((moved / "unlearning/run.json").read_text(encoding="utf-8"))
    record["data"] |= {"spec": f"folder:{tmp_path}/secret-place/photos"}
    (moved / "COMPLETE.json").unlink()
    (moved / "unlearning/run.json").write_text(json.dumps(record), encoding="utf-8")
    outcome, made = report_on(run, moved)
    assert outcome.code == 0, outcome.err
    assert "not available: the run could not be opened again (There is no such folder)" in made[".html"]
    assert Page(made[".html"]).tags.count("svg") == 2
    for content in made.values():
        assert str(tmp_path) not in content
        assert "folder:photos" in content or content is made[".json"]
    assert run("report", moved, "--data", "folder:/nowhere", "--device", "cpu").code == 3
    assert run("report", moved, "--thumbnails", "--device", "cpu").code == 3


def test_a_folder_that_is_no_run_or_was_changed_is_refused(
    run: Callable[..., Outcome], folder: Path, original_run: Path, tmp_path: Path
) -> None:
    assert run("report", original_run).code == 4
    nowhere = run("report", tmp_path / "none")
    assert (nowhere.code, "no such run folder" in nowhere.err) == (2, True)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    metrics = (copy / "unlearning/metrics.json").read_text(encoding="utf-8")
    (copy / "unlearning/metrics.json").write_text(metrics.replace("0.", "0.0", 1), encoding="utf-8")
    for more in ((), ("--output", tmp_path / "elsewhere")):
        outcome = run("report", copy, *more)
        assert outcome.code == 4
        assert "was changed" in outcome.err
    assert run("report", folder, "--output", folder / "unlearning/mine.html", "--device", "cpu").code == 2
    check_complete(folder)


def test_thumbnails_are_shown_only_when_asked(run: Callable[..., Outcome], folder: Path, tmp_path: Path) -> None:
    outcome = run("report", folder, "--thumbnails", "--output", tmp_path / "x", "--device", "cpu")
    assert outcome.code == 0
    html = (tmp_path / "x.html").read_text(encoding="utf-8")
    require_offline(Page(html))
    assert html.count("data:image/png") == 24
    _, made = report_on(run, folder)
    assert "data:image" not in made[".html"] + made[".md"] + made[".json"]


def test_drawings_hold_their_numbers(facts: Facts) -> None:
    drawn = entropies({"original": [0.0, 0.1, 2.3], "unlearned": [2.2, 2.2, 2.2]}, 10)
    columns = list(zip(*drawn.numbers.rows, strict=True))
    assert [sum(float(value) for value in column) for column in columns[1:]] == pytest.approx([100, 100], abs=0.2)
    changes = [ClassChange(place, 10, 0.9, 0.9 - 0.01 * (20 - place), 0.0) for place in range(20)]
    lost = who_paid(changes, [f"class {place}" for place in range(20)])
    assert lost.svg.count('class="hollow original"') == 15 + 1  # and one in the legend
    assert [row[4] for row in lost.numbers.rows[:2]] == ["-20.0", "-19.0"]
    assert "The 15 that lost most, of 20" in lost.says
    assert frontier([{"forget_accuracy": 0.5, "retain_accuracy": None}], {}) is None
    exact = {"forget_accuracy": 0.123, "retain_accuracy": 0.777}  # measured on all images, the run followed on some
    metrics = {"original": exact, "unlearned": None, "retrained": {"forget_accuracy": 0.0, "retain_accuracy": 0.9}}
    way = frontier(facts.history, {**metrics, "gap": {"forget_accuracy": 0.5}})
    assert way is not None
    assert [row[0] for row in way.numbers.rows] == ["original", "unlearned", "retrained"]
    assert way.numbers.rows[0][1:] == ("12.3", "77.7")
    assert (
        way.numbers.rows[1][2] == f"{100 * facts.history[-1]['retain_accuracy']:.1f}"
    )  # of which there is nothing better
    alone = frontier(facts.history[:1], {"original": exact})
    assert alone is not None
    assert alone.numbers.rows[0][2] == f"{100 * facts.history[0]['retain_accuracy']:.1f}"
    points = re.search(r'class="line way" points="([^"]*)"', way.svg)
    assert points is not None
    assert len(points[1].split()) == len(facts.history)


def test_measured_classes_agree_with_a_loop(original: famr.Classifier, without_three: famr.Splits) -> None:
    worse = original.copy()
    with torch.no_grad():
        worse.module.head.bias[5] -= 3  # type: ignore[index,union-attr]
    found = measure(original, worse, None, without_three, "cpu")
    assert found.changes is not None
    assert found.changes[0].target == 5
    changes = [change.change for change in found.changes]
    assert changes == sorted(changes)
    assert without_three.test is not None
    said = predict(worse, without_three.test, torch.device("cpu"))
    pairs = zip(said.logits.argmax(dim=-1).tolist(), said.targets.tolist(), strict=True)
    hits = [guess == 5 for guess, target in pairs if target == 5]
    assert found.changes[0].images == len(hits)
    assert found.changes[0].after == pytest.approx(sum(hits) / len(hits))
    assert set(found.entropies) == {"original", "unlearned"}
    assert len(found.entropies["original"]) == len(without_three.forget)


def test_spreadsheets_take_no_formula_from_a_name() -> None:
    text = as_csv(["name", "n"], [[name, -1] for name in (*HOSTILE, "+1", "-1", "@x", "\t=1")])
    for line in text.splitlines()[1:]:
        assert line.lstrip('"')[0] not in "=+-@"
        assert line.endswith(",-1")
    assert len(text.splitlines()) == len(HOSTILE) + 5


class FakeHub:
    """Remembers what it was asked."""

    def __init__(self, private: bool = True, breaks: bool = False) -> None:
        self.private, self.breaks = private, breaks
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create_repo", {"repo_id": repo_id, "private": private, "exist_ok": exist_ok}))
        if self.breaks:
            raise OSError("no network")

    def model_info(self, repo_id: str) -> Any:
        return SimpleNamespace(private=self.private, id=repo_id)

    def upload_folder(self, **given: Any) -> None:
        self.calls.append(("upload_folder", given))


def test_pushing_is_private_unless_told_and_keeps_the_request_at_home(folder: Path) -> None:
    hub = FakeHub()
    assert push_run(folder, "ann/no-3", hub) == "ann/no-3"
    (_, created), (_, sent) = hub.calls
    assert created["private"] is True
    assert sent["allow_patterns"] == list(UPLOADED)
    assert not any(name.startswith("unlearning") for name in UPLOADED)
    open_ = FakeHub(private=False)
    push_run(folder, "ann/no-3", open_, private=False)
    assert open_.calls[0][1]["private"] is False
    seen = FakeHub(private=False)
    with pytest.raises(RequestError, match="everybody can see"):
        push_run(folder, "ann/no-3", seen)
    assert [name for name, _ in seen.calls] == ["create_repo"]
    with pytest.raises(StorageError, match="did not take it"):
        push_run(folder, "ann/no-3", FakeHub(breaks=True))
    for wrong in ("no-3", "ann/", "/x", "a/b/c"):
        with pytest.raises(RequestError, match="OWNER/NAME"):
            push_run(folder, wrong, hub)


def test_pushing_happens_only_by_choice(
    run: Callable[..., Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub()
    monkeypatch.setattr("famr.report.hub.the_hub", lambda: hub)
    assert report_on(run, folder)[0].code == 0
    assert hub.calls == []
    outcome, _ = report_on(run, folder, "--push-to-hub", "ann/no-3")
    assert outcome.code == 0
    assert "uploaded: ann/no-3" in outcome.err
    assert hub.calls[0][1]["private"] is True


def test_the_card_has_the_facts_of_unlearning_in_its_front_matter(folder: Path) -> None:
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert 'forgotten_classes: ["3"]' in front
    assert 'request: "class"' in front
    assert "| gap to retrained | not available" in text


def test_what_was_measured_and_not_judged_is_figures_in_a_table_and_words_in_a_list(facts: Facts) -> None:
    sections = build_report(audited(facts, {"a": "fail"}), None, "the data is gone").sections
    *_, table, words = next(section.blocks for section in sections if section.title == "Audit")
    assert table.rows == (("calibration", "ece unlearned", "0.0123"),)  # type: ignore[union-attr]
    assert words.lines == ("calibration: ECE of <b>.",)  # type: ignore[union-attr]


def test_every_gate_has_words() -> None:
    assert set(GATES) == set(read_thresholds())


def test_what_only_people_know_is_left_open_and_never_filled_in(facts: Facts) -> None:
    section = build_report(facts, None).sections[-1]
    tables = {block.caption: block for block in section.blocks if isinstance(block, Table)}
    assert [row[0] for row in tables["Signatures"].rows] == ["operator", "reviewer", "data protection officer"]
    assert all(set(row[1:]) <= {BLANK, BOX} for table in tables.values() for row in table.rows)
    assert any(
        facts.run["original"]["weights_sha256"] in block.text for block in section.blocks if isinstance(block, Text)
    )


def test_an_empty_report_is_still_a_page() -> None:
    require_offline(Page(pages(Report("x", "pass", "y", ()))[".html"]))


if BROWSER is not None:  # `python tests/chromium.py REPORT.html` looks at a page, too

    def test_a_real_browser_has_nothing_to_complain_about(facts: Facts, digits: Data, tmp_path: Path) -> None:
        named = audited(replace(facts, desk=desk_record(), request=famr.Request(classes=["x" * 300])), {"a": "fail"})
        page = tmp_path / "report.html"
        page.write_text(pages(build_report(named, None, "the data is gone"))[".html"], encoding="utf-8")
        wrong = tmp_path / "wrong.html"
        wide = "<div aria-label=wide style=overflow-x:auto><table><td style=min-width:999px>x</table></div>"
        wrong.write_text(f"<img src=http://127.0.0.1:9/x><script>console.error(1)</script>{wide}", encoding="utf-8")
        with chromium() as browser:
            for width in WIDTHS.values():
                for scheme in ("light", "dark"):
                    seen = browser.look_at(page, width, scheme)
                    assert seen.complaints == []
                    assert seen.requests == [page.as_uri()]
                    assert seen.overflow == 0
                    assert seen.cut == []
            seen = browser.look_at(wrong, 390, "light")
            assert seen.complaints
            assert len(seen.requests) == 2
            assert seen.cut == ["wide"]
