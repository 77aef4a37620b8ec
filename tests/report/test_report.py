"""The report: one content as HTML, Markdown and JSON; offline, explicit about what is missing, with text as text."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import famr
from chromium import BROWSER, WIDTHS, chromium
from conftest import Outcome, alg1
from famr.audit.class_changes import ClassChange
from famr.data import Data
from famr.engine.inference import predict
from famr.errors import RequestError, StorageError
from famr.report.build import build_report
from famr.report.content import Report, Section, Table, Text
from famr.report.escaping import as_csv, visible
from famr.report.figures import draw_class_changes, draw_entropies, draw_epochs, draw_trade_off, write_epochs
from famr.report.hub import UPLOADED, push_run
from famr.report.measure import measure
from famr.report.records import RunRecords, read_run_records
from famr.report.rendering import COLOURS
from famr.report.request_and_method import method_section
from famr.report.sign_off import BLANK, BOX
from famr.report.verdict import report_verdict
from famr.report.write import render_report
from famr.runs.audits import RecordedAudit
from famr.storage.digests import check_complete
from famr.unlearn.criteria import sample_forgetting

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
    "Request",
    "Method",
    "Results",
    "Certificate",
    "Audit",
    "Parameters, versions, digests",
    "What this report does not show",
    "For people to fill in and sign",
]


class Page(HTMLParser):
    """The tags, attributes, texts, tables and headings of a page."""

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
            assert value.startswith(("data:image/png;base64,", "#")), value  # "#": a part of the same page
    policy = next(value for name, value in page.attributes if "default-src" in value)
    assert "default-src 'none'" in policy


@pytest.fixture(scope="module")
def folder(original_run: Path, tmp_path_factory: pytest.TempPathFactory, digits: Data) -> Path:
    """A run on digits as the command line writes it."""
    from famr.cli.forget import ForgetOptions, ForgetTask, run_forget
    from famr.cli.opening import DataSource
    from famr.cli.options import ComputeOptions, ModelSource, OutputOptions

    target = tmp_path_factory.mktemp("reported") / "no-3"
    run_forget(
        ForgetTask(
            ModelSource(model=str(original_run)),
            DataSource("digits"),
            famr.Request(classes=["3"]),
            alg1(epochs=3, learning_rate=3e-4, batch_size=16),
            OutputOptions(output_dir=target),
            ForgetOptions(gates=False),
            ComputeOptions(device="cpu", quiet=True),
        )
    )
    return target


@pytest.fixture
def records(folder: Path) -> RunRecords:
    return read_run_records(folder)


def report_on(run: Callable[..., Outcome], folder: Path, *more: object) -> tuple[Outcome, dict[str, str]]:
    outcome = run("report", folder, "--device", "cpu", *more)
    return outcome, {
        ending: (folder / f"unlearning/report{ending}").read_text(encoding="utf-8")
        for ending in (".html", ".md", ".json")
    }


def audited(records: RunRecords, verdicts: dict[str, str], sha: str | None = None) -> RunRecords:
    """The same run with an audit of these gates."""
    figures = {"unlearned": {"value": 0.1, "low": 0.05, "high": 0.15, "why_not": None}}
    checks = [
        {"name": name, "says": f"About {name}.", "threshold": 0.2, "allowed": 0.2, "figures": figures,
         "verdicts": {"unlearned": verdict}, "needs_retrained": True}
        for name, verdict in verdicts.items()
    ]  # fmt: skip
    subject = {"unlearned_sha256": sha or records.run["unlearned"]["weights_sha256"]}
    overall = {"unlearned": "fail" if "fail" in verdicts.values() else "pass"}
    stated = {"calibration": {"says": "ECE of <b>.", "ece": {"unlearned": 0.0123}, "many": [1, 2, 3]}}
    audit = {"sentence": "What the audit says <b>.", "verdicts": overall, "checks": checks, "subject": subject}
    audit |= {"notes": ["A note <b>."], "stated": stated}
    return replace(records, audits=[RecordedAudit(1, "unlearning/audit.json", "0" * 64, audit)])


def test_the_page_is_complete_and_loads_nothing(run: Callable[..., Outcome], folder: Path, original_run: Path) -> None:
    outcome, pages = report_on(run, folder, "--retrained", original_run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("Cannot tell: no audit was made")
    page = Page(pages[".html"])
    require_offline(page)
    assert page.headings == SECTIONS
    assert page.tags.count("svg") == 4
    assert "data:image" not in pages[".html"]
    for section in SECTIONS:
        assert f"## {section}" in pages[".md"]
    content = json.loads(pages[".json"])
    assert [section["title"] for section in content["sections"]] == SECTIONS
    assert content["outcome"] == "cannot tell"
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


def test_the_table_holds_the_recorded_metrics(run: Callable[..., Outcome], folder: Path) -> None:
    _, pages = report_on(run, folder)
    metrics = json.loads((folder / "unlearning/metrics.json").read_text(encoding="utf-8"))
    table = next(table for table in Page(pages[".html"]).tables if "Ret-Acc, %" in table[0])
    rows = {row[0]: row[1:] for row in table[1:]}
    for model in ("original", "unlearned"):
        scores = metrics[model]
        assert rows[model][:2] == [f"{100 * scores[name]:.1f}" for name in ("retain_accuracy", "forget_accuracy")]
        assert rows[model][3:] == [f"{scores[f'forget_{name}']:.2f}" for name in ("cross_entropy", "entropy", "kl")]
    assert set(rows["retrained"]) == set(rows["gap"]) == {"not available"}
    assert "no retrained checkpoint was given" in pages[".html"]


def test_markdown_tables_are_tables(run: Callable[..., Outcome], folder: Path) -> None:
    _, pages = report_on(run, folder)
    blocks = re.findall(r"(?:^\|.*\|\n)+", pages[".md"], re.MULTILINE)
    assert len(blocks) >= 6
    for block in blocks:
        lines = block.splitlines()
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(re.findall(r"(?<!\\)\|", lines[0]))}


def test_hostile_names_are_text_everywhere(original: famr.Classifier, digits: Data, folder: Path) -> None:
    labels = (*HOSTILE,)
    data, model = replace(digits, labels=labels), replace(original, labels=labels)
    splits = famr.split(data, famr.Request(classes=[labels[0]]))
    measured = measure(model, model, model, splits, "cpu")
    named = replace(read_run_records(folder), request=splits.request, desk=desk_record(), name=HOSTILE[0])
    pages = render_report(build_report(audited(named, {"gate": "pass"}), measured))
    page = Page(pages[".html"])
    require_offline(page)
    assert not {"b", "input"} & set(page.tags)
    text = "".join(page.texts)
    for name in HOSTILE:
        assert visible(name)[:14] in text  # a long name is cut in the figure, not in its numbers
    markdown = pages[".md"]
    assert "<script>" not in markdown
    assert "\u202e" not in markdown + pages[".html"]
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


def test_the_desk_s_records_are_shown_without_names_of_samples(records: RunRecords) -> None:
    pages = render_report(
        build_report(replace(records, desk=desk_record(), request=famr.Request(samples=["ann.png"])), None, "x")
    )
    text = "".join(Page(pages[".html"]).texts)
    assert "R-0001" in text
    assert "2026-04-01" in text
    assert "1 exact, 0 near-duplicates" in text
    assert "=cmd" not in "".join(pages.values())
    assert "ann.png" not in "".join(pages.values())


def test_the_proxy_is_described_by_the_layers_of_its_own(records: RunRecords) -> None:
    proxy = {"trained": "for this run", "epochs": 2, "epochs_of_training": 8, "start_sha256": "0" * 64, "source": "x"}
    shared, whole = (
        str(method_section(replace(records, run={**records.run, "proxy": {**proxy, "late_share": share}})))
        for share in (0.5, 1.0)
    )
    assert "50 % of the layers, begun where its training started; the other layers are the original's." in shared
    assert "all layers, begun where its training started." in whole
    assert "other layers" not in whole


def test_every_trial_is_shown_with_its_criterion_and_the_images_that_changed(records: RunRecords) -> None:
    old = {"strength": 1.0, "function_strength": 0.0, "loss_before": 4.0, "loss_after": 3.0, "forget_accuracy": 0.25}
    old |= {"chance": 0.0, "retained_before": 0.9, "retained_after": 0.9, "predicted_drift": None, "watched": 300}
    new = {**old, "forgetting": asdict(sample_forgetting(6.0, 4.5, 4.0, (0.5, 0.1))), "lost_images": 7}
    trials = [old, {**new, "gained_images": 2, "function_strength": 0.5}]
    section = method_section(replace(records, run={**records.run, "trials": trials}))
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    first, last = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (first["criterion of forgetting"], first["value"], first["at most"]) == ("forget accuracy", "0.25", "0.01")
    assert first["images lost"] == "not available"
    assert "log-odds" in last["criterion of forgetting"]
    assert (last["trial"], last["value"], last["at most"]) == ("2 (selected)", "0.25", "0.5")
    assert (last["images lost"], last["images gained"], last["function-space strength"]) == ("7", "2", "0.5")


@pytest.mark.parametrize(("gates", "outcome"), [({"a": "pass", "b": "fail"}, "fail"), ({"a": "pass"}, "pass")])
def test_the_verdict_and_its_sentence_are_the_audit_s(records: RunRecords, gates: dict[str, str], outcome: str) -> None:
    verdict, sentence = report_verdict(audited(records, gates))
    assert verdict == outcome
    assert sentence.startswith("What the audit says <b>. Accuracy on the forget set went from ")


def test_a_passed_audit_of_the_first_edition_passes_no_report(records: RunRecords) -> None:
    """Its reference models may have been copies of the unlearned model."""
    (audit,) = audited(records, {"a": "pass"}).audits
    content = {name: value for name, value in audit.content.items() if name != "sentence"}
    verdict, sentence = report_verdict(replace(records, audits=[replace(audit, content=content)]))
    assert verdict == "cannot tell"
    assert "first edition" in sentence


def test_all_audits_of_a_run_and_what_the_latest_rests_on_are_shown(records: RunRecords) -> None:
    (failed,), (passed,) = audited(records, {"a": "fail"}).audits, audited(records, {"b": "pass"}).audits
    reference = {"sha256": "ab" * 32, "record": None, "not_shown": ["there is no record"], "forget_accuracy": 0.0}
    subject = {**passed.subject, "references": [{**reference, "unseen_accuracy": 0.015}], "controls": {"original": {}}}
    subject |= {"images": {"forget": {"count": 500}}, "calibration": "the method saw no held-out image"}
    checks = [{**check, "counts": False, "not_counted": "it has no power"} for check in passed.content["checks"]]
    latest = replace(passed, number=2, content={**passed.content, "subject": subject, "checks": checks})
    both = replace(records, audits=[failed, latest])
    text = "".join(Page(render_report(build_report(both, None, "x"))[".html"]).texts)
    for words in (
        "2 audits: fail, pass (the latest)",
        "Against: 1 retrained models, 0 of them with a training record",
        "On: 500 forget images; the method saw no held-out image.",
        "Power: 0 of 1 gates count.",
        "Not counted, it has no power: b.",
        "ab" * 32,
        "there is no record",
        "0.015",
    ):
        assert words in text, words


def test_without_an_audit_the_verdict_is_cannot_tell(records: RunRecords) -> None:
    outcome, sentence = report_verdict(replace(records, audits=()))
    assert outcome == "cannot tell"
    assert "weak evidence" in sentence
    assert "weak evidence" not in report_verdict(replace(records, audits=(), metrics=None))[1]


def test_an_audit_of_other_weights_is_no_verdict(records: RunRecords) -> None:
    other = audited(records, {"a": "pass"}, sha="0" * 64)
    assert report_verdict(other)[0] == "cannot tell"
    assert "other weights" in render_report(build_report(other, None, "x"))[".html"]


def test_every_gate_note_and_figure_of_an_audit_is_shown(records: RunRecords) -> None:
    text = "".join(Page(render_report(build_report(audited(records, {"new_gate": "fail"}), None, "x"))[".html"]).texts)
    for words in ("new gate", "0.100 [0.050, 0.150] fail", "About new_gate.", "A note <b>.", "ECE of <b>.", "0.0123"):
        assert words in text


def test_a_certificate_is_shown_with_its_assumptions(records: RunRecords) -> None:
    claims = [
        {"name": "drift", "says": "How far.", "source": "[X]", "value": 1.5, "bound": 2.0, "holds": True,
         "assumptions": [{"says": "J is convex.", "status": "fails"}], "details": {}, "not_available": None},
        {"name": "rate", "says": "How fast.", "source": "[Y]", "not_available": "no rate", "assumptions": []},
    ]  # fmt: skip
    certificate = {"kind": "deviation", "means": "a distance", "claims": claims, "not_shown": ["Much."], "subject": {}}
    text = "".join(
        Page(render_report(build_report(replace(records, certificate=certificate), None, "x"))[".html"]).texts
    )
    assert "measured, not proved" in text
    assert "Assumption, fails: J is convex." in text
    assert "Not available: no rate." in text
    assert report_verdict(replace(records, certificate={**certificate, "kind": "exact"}))[0] == "pass"


def test_without_the_data_the_figures_are_not_available(
    run: Callable[..., Outcome], folder: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    record = json.loads((moved / "unlearning/run.json").read_text(encoding="utf-8"))
    record["data"] |= {"spec": f"folder:{tmp_path}/secret-place/photos"}
    (moved / "COMPLETE.json").unlink()
    (moved / "unlearning/run.json").write_text(json.dumps(record), encoding="utf-8")
    outcome, pages = report_on(run, moved)
    assert outcome.code == 0, outcome.err
    assert "not available: the run could not be opened again (There is no such folder)" in pages[".html"]
    assert Page(pages[".html"]).tags.count("svg") == 2
    for content in pages.values():
        assert str(tmp_path) not in content
        assert "folder:photos" in content or content is pages[".json"]
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
    _, pages = report_on(run, folder)
    assert "data:image" not in pages[".html"] + pages[".md"] + pages[".json"]


def count_marks(svg: str, colour: str) -> int:
    """How many markers of a colour a figure shows, the one in its legend included."""
    return len(re.findall(rf"<use [^>]*stroke: var\(--{colour}\)", svg))


def test_drawings_show_their_numbers(records: RunRecords) -> None:
    drawn = draw_entropies({"original": [0.0, 0.1, 2.3], "unlearned": [2.2, 2.2, 2.2]}, 10)
    columns = list(zip(*drawn.numbers.rows, strict=True))
    assert [sum(float(value) for value in column) for column in columns[1:]] == pytest.approx([100, 100], abs=0.2)
    assert drawn.svg.count("fill: var(--original)") == drawn.svg.count("fill: var(--unlearned)") == 20
    changes = [ClassChange(index, 10, 0.9, 0.9 - 0.01 * (20 - index), 0.0) for index in range(20)]
    lost = draw_class_changes(changes, [f"class {index}" for index in range(20)])
    assert count_marks(lost.svg, "original") == count_marks(lost.svg, "unlearned") == 15 + 1
    assert [row[4] for row in lost.numbers.rows[:2]] == ["-20.0", "-19.0"]
    assert "the 15 largest losses of 20" in lost.description
    epochs = draw_epochs(records.history)
    assert count_marks(epochs.svg, "forget") == len(records.history) + 1


def test_the_trade_off_starts_and_ends_at_the_recorded_metrics(records: RunRecords) -> None:
    assert draw_trade_off([{"forget_accuracy": 0.5, "retain_accuracy": None}], {}) is None
    exact = {"forget_accuracy": 0.123, "retain_accuracy": 0.777}  # of all images; the history is of a sample
    metrics = {"original": exact, "unlearned": None, "retrained": {"forget_accuracy": 0.0, "retain_accuracy": 0.9}}
    drawn = draw_trade_off(records.history, {**metrics, "gap": {"forget_accuracy": 0.5}})
    assert drawn is not None
    assert [row[0] for row in drawn.numbers.rows] == ["original", "unlearned", "retrained"]
    assert drawn.numbers.rows[0][1:] == ("12.3", "77.7")
    assert drawn.numbers.rows[1][2] == f"{100 * records.history[-1]['retain_accuracy']:.1f}"  # the best there is
    assert count_marks(drawn.svg, "retrained") == 1 + 1
    alone = draw_trade_off(records.history[:1], {"original": exact})
    assert alone is not None
    assert alone.numbers.rows[0][2] == f"{100 * records.history[0]['retain_accuracy']:.1f}"
    lines = re.findall(r'<path d="(M[^"z]*)"[^>]*stroke: var\(--soft\); stroke-width: 1.5', drawn.svg)
    assert [line.count("L") + 1 for line in lines] == [len(records.history)]


def test_a_drawing_is_one_svg_element_with_its_own_ids_and_the_page_s_colours(records: RunRecords) -> None:
    drawn = [draw_epochs(records.history), draw_entropies({"original": [0.1], "unlearned": [2.2]}, 10)]
    ids = [set(re.findall(r' id="(\w+)"', drawing.svg)) for drawing in drawn]
    assert not ids[0] & ids[1]
    for drawing, own in zip(drawn, ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#(\w+)', drawing.svg)) == own
        assert re.search(r"#[0-9a-f]{6}\b", drawing.svg) is None
        assert not {"style", "metadata", "script"} & set(Page(drawing.svg).tags)
        assert Page(drawing.svg).tags.count("svg") == 1


def test_the_colours_of_the_drawings_are_those_of_the_style_sheet() -> None:
    style = files("famr.report").joinpath("page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--(\w+): (#\w+);", style.partition("@media")[0]))
    assert COLOURS.items() <= light.items()


def test_the_user_s_matplotlib_settings_change_nothing(records: RunRecords) -> None:
    import matplotlib

    plain = draw_epochs(records.history).svg
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "text.parse_math": True}):
        assert draw_epochs(records.history).svg == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_the_figure_of_the_epochs_is_a_png_too(records: RunRecords, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_epochs(records.history, "Forgetting $\\frac$ 漢", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_its_extra(
    run: Callable[..., Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    outcome = run("report", folder, "--device", "cpu")
    assert outcome.code == 2
    assert package in outcome.err
    assert "pip install 'famr[report]'" in outcome.err


def test_measured_classes_agree_with_a_loop(original: famr.Classifier, without_three: famr.Splits) -> None:
    worse = original.copy()
    with torch.no_grad():
        worse.module.head.bias[5] -= 3  # type: ignore[index,union-attr]
    measured = measure(original, worse, None, without_three, "cpu")
    assert measured.changes is not None
    assert measured.changes[0].target == 5
    changes = [change.change for change in measured.changes]
    assert changes == sorted(changes)
    assert without_three.test is not None
    predictions = predict(worse, without_three.test, torch.device("cpu"))
    pairs = zip(predictions.logits.argmax(dim=-1).tolist(), predictions.targets.tolist(), strict=True)
    hits = [guess == 5 for guess, target in pairs if target == 5]
    assert measured.changes[0].images == len(hits)
    assert measured.changes[0].after == pytest.approx(sum(hits) / len(hits))
    assert set(measured.entropies) == {"original", "unlearned"}
    assert len(measured.entropies["original"]) == len(without_three.forget)


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    text = as_csv(["name", "n"], [[name, -1] for name in (*HOSTILE, "+1", "-1", "@x", "\t=1")])
    for line in text.splitlines()[1:]:
        assert line.lstrip('"')[0] not in "=+-@"
        assert line.endswith(",-1")
    assert len(text.splitlines()) == len(HOSTILE) + 5


class FakeHub:
    """Records the calls."""

    def __init__(self, private: bool = True, breaks: bool = False) -> None:
        self.private, self.breaks = private, breaks
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create_repo", {"repo_id": repo_id, "private": private, "exist_ok": exist_ok}))
        if self.breaks:
            raise OSError("no network")

    def model_info(self, repo_id: str) -> Any:
        return SimpleNamespace(private=self.private, id=repo_id)

    def upload_folder(self, **arguments: Any) -> None:
        self.calls.append(("upload_folder", arguments))


def test_a_push_is_private_by_default_and_leaves_the_request_out(folder: Path) -> None:
    hub = FakeHub()
    assert push_run(folder, "ann/no-3", hub) == "ann/no-3"
    (_, created), (_, uploaded) = hub.calls
    assert created["private"] is True
    assert uploaded["allow_patterns"] == list(UPLOADED)
    assert not any(name.startswith("unlearning") for name in UPLOADED)
    public = FakeHub(private=False)
    push_run(folder, "ann/no-3", public, private=False)
    assert public.calls[0][1]["private"] is False
    refused = FakeHub(private=False)
    with pytest.raises(RequestError, match="is public"):
        push_run(folder, "ann/no-3", refused)
    assert [name for name, _ in refused.calls] == ["create_repo"]
    with pytest.raises(StorageError, match="upload to the Hub failed"):
        push_run(folder, "ann/no-3", FakeHub(breaks=True))
    for wrong in ("no-3", "ann/", "/x", "a/b/c"):
        with pytest.raises(RequestError, match="OWNER/NAME"):
            push_run(folder, wrong, hub)


def test_a_report_is_pushed_only_on_request(
    run: Callable[..., Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub()
    monkeypatch.setattr("famr.report.hub.default_client", lambda: hub)
    assert report_on(run, folder)[0].code == 0
    assert hub.calls == []
    outcome, _ = report_on(run, folder, "--push-to-hub", "ann/no-3")
    assert outcome.code == 0
    assert "uploaded: ann/no-3" in outcome.err
    assert hub.calls[0][1]["private"] is True


def test_the_card_describes_the_unlearning_in_its_front_matter(folder: Path) -> None:
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert 'forgotten_classes: ["3"]' in front
    assert 'request: "class"' in front
    assert "| gap to retrained | not available" in text


def test_results_without_a_threshold_are_numbers_in_a_table_and_sentences_in_a_list(records: RunRecords) -> None:
    sections = build_report(audited(records, {"a": "fail"}), None, "the data is gone").sections
    *_, table, sentences = next(section.blocks for section in sections if section.title == "Audit")
    assert table.rows == (("calibration", "ece unlearned", "0.0123"),)  # type: ignore[union-attr]
    assert sentences.lines == ("calibration: ECE of <b>.",)  # type: ignore[union-attr]


def test_the_forms_for_people_are_empty(records: RunRecords) -> None:
    section = build_report(records, None).sections[-1]
    tables = {block.caption: block for block in section.blocks if isinstance(block, Table)}
    assert [row[0] for row in tables["Signatures"].rows] == ["operator", "reviewer", "data protection officer"]
    assert all(set(row[1:]) <= {BLANK, BOX} for table in tables.values() for row in table.rows)
    assert any(
        records.run["original"]["weights_sha256"] in block.text for block in section.blocks if isinstance(block, Text)
    )


def test_an_empty_report_is_still_a_page() -> None:
    require_offline(Page(render_report(Report("x", "pass", "y", ()))[".html"]))


if BROWSER is not None:  # `python tests/chromium.py REPORT.html` checks a page, too

    def test_a_real_browser_reports_no_problem(records: RunRecords, tmp_path: Path) -> None:
        named = audited(replace(records, desk=desk_record(), request=famr.Request(classes=["x" * 300])), {"a": "fail"})
        page = tmp_path / "report.html"
        report = build_report(named, None, "the data is gone")
        classes = draw_class_changes([ClassChange(0, 1000, 0.999, 0.111, 0.0)], ["x" * 300])
        report = replace(report, sections=(*report.sections, Section("Classes", (classes,))))
        html = render_report(report)[".html"].replace("<details>", "<details open>")
        page.write_text(html, encoding="utf-8")
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
