"""The package as a whole: its public names, its README and docs, its committed results."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import famr
from famr.data import Data
from famr.training import Trained

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = sorted((ROOT / "docs").glob("*.md"))
FAILED_GATE = 7


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)


def result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def test_public_names_are_documented_and_all_there() -> None:
    names = {name for name in famr.__all__ if name != "__version__"}
    for name in names:
        assert getattr(famr, name).__name__ == name
    assert dir(famr) == sorted(famr.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        famr.nonsense  # noqa: B018
    _, _, reference = text_of("docs/index.md").partition("### Python\n")
    rows = [
        line.split("|")[1] for line in reference.partition("### Commands")[0].splitlines() if line.startswith("| `")
    ]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names


@pytest.fixture
def runs(original_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with runs/original, as the README has it after `famr demo`."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/original").symlink_to(original_run)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_the_readmes_library_example_runs(runs: Path) -> None:
    exec(compile(python_blocks("README.md")[0], "README.md", "exec"), {})
    assert (runs / "no-3/COMPLETE.json").is_file()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_bare_call_runs(page: str) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    batches = [(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]))]
    names: dict[str, object] = {"my_module": module, "my_forget_loader": batches}
    exec(compile(python_blocks(page)[-1], page, "exec"), names)
    assert isinstance(names["unlearned"], torch.nn.Module)


def test_the_readmes_commands_run(
    runs: Path, retrained_runs: list[Trained], digits: Data, run: Callable[..., Any]
) -> None:
    """All but the demo, which takes a minute; `runs` holds what it would have trained."""
    retrained_runs[0].save(runs / "retrained", data={"spec": "digits"})
    commands = re.findall(r"^    famr (.+?)(?:  +#.*)?$", text_of("README.md"), re.MULTILINE)
    assert commands[0] == "demo     --output-dir runs"
    assert len(commands) == 5
    for command in commands[1:]:
        words = shlex.split(command)
        quick = ["--quick"] if words[0] == "audit" else []
        outcome = run(*words, *quick, "--device", "cpu")
        assert outcome.code in ((0, FAILED_GATE) if words[0] == "audit" else (0,)), outcome.err
    assert (runs / "forgot-3/unlearning/report.html").is_file()


def test_the_method_pages_example_runs(original: famr.Classifier, without_three: famr.Splits) -> None:
    names: dict[str, Any] = {"famr": famr, "model": original, "splits": without_three}
    exec(compile(python_blocks("docs/method.md")[0], "docs/method.md", "exec"), names)
    assert len(names["result"].history) == 2


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_committed_tables_are_made_from_committed_results(file: Path) -> None:
    from benchmarks.tables import page

    content = json.loads(file.read_text(encoding="utf-8"))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == page(file.stem, content)


def test_the_method_pages_table_is_made_from_the_committed_results() -> None:
    from benchmarks.tables import summary

    assert summary(result("frontier-cifar100-vit_tiny")) in text_of("docs/method.md")


def test_the_method_pages_figures_of_proxies_are_those_of_the_committed_results() -> None:
    def means(name: str, variant: str) -> list[str]:
        cells = [row for row in result(name)["cells"] if row["request"].startswith("class")]
        rows = [row for row in cells if re.fullmatch(variant, row["variant"])]
        js, auc, odds = (fmean(row[column] for row in rows) for column in ("js", "tell_tale", "log_odds"))
        return [f"{js:.3f}", f"{auc:.3f}", f"{odds:.1f}".replace("-", "−")]

    text = text_of("docs/method.md")
    variants = {"retrained": r"retrained \d+", "thorough": "thorough", "quick": "quick"}
    for title, variant in {**variants, "thorough, with a sketch": "thorough, sketch"}.items():
        values = [*means("never_saw-digits-others", variant), *means("never_saw-digits", variant)]
        assert f"| {title} | {' | '.join(values)} |" in text


def test_the_audit_pages_rates_are_those_of_the_committed_calibration() -> None:
    text, summary = text_of("docs/audits.md"), result("audit_calibration-digits")["summary"]
    for effort in ("quick", "thorough"):
        rates = [summary[count][f"unlearned {effort}"] for count in ("5", "10", "19")]
        values = [f"{rate['fail']} of {rate['audits']}" for rate in rates]
        assert f"| `--effort {effort}`: audits that fail | {' | '.join(values)} |" in text


def test_the_readmes_table_is_made_from_the_committed_results() -> None:
    """It has the three methods nearest to retraining on either request, the paper's preset, and the trained models."""
    from benchmarks.overview import methods_summary

    table = methods_summary(result("methods-cifar100-vit_tiny")).splitlines()
    title, _, *models = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table)
    trained = {"original", "retrained with another seed", "retrained"}
    shown = {*trained, "FAMR as in the paper"}
    for gap in (index for index, name in enumerate(title) if "Avg. Gap" in name):
        methods = [row for row in models if row[0] not in trained and row[gap] != "–"]
        shown |= {row[0] for row in sorted(methods, key=lambda row: float(row[gap]))[:3]}
    columns = [index for index, name in enumerate(title) if "seconds" not in name]
    rows = [
        "| " + " | ".join(row[index] for index in columns) + " |"
        for row in (title, *models)
        if row is title or row[0] in shown
    ]
    assert "\n".join([rows[0], "|---" * len(columns) + "|", *rows[1:]]) in text_of("README.md")


AUDITED = {
    "accuracies and MIA-efficacy, Avg. Gap": ("average_gap",),
    "rank of the forgotten class, gap": ("forgotten_rank_gap",),
    "JS to retrained": ("js_to_retrained",),
    "the original's head put back": ("original_head_back",),
    "recovered by int8, half precision, ONNX": ("int8_comes_back", "half_comes_back", "onnx_comes_back"),
    "two-sample test, AUC": ("tell_tale_auc",),
    "RMIA, AUC": ("rmia_auc",),
    "U-LiRA, accuracy": ("u_lira_accuracy",),
    "the class recovered by a bias, beyond a retrained model": ("best_bias_excess",),
    "five nearest neighbours, beyond a retrained model": ("neighbours_excess",),
    "a linear probe, beyond a retrained model": ("probe_excess",),
    "relearning, share of the steps saved": ("relearning_saved",),
}
"""Rows of the threat model's tables, and their gates: the largest value where there are several."""


def shows(cell: str, checks: list[dict[str, Any]], model: str) -> bool:
    """Whether a table cell has the largest value of some gates and their verdict: bold where one fails."""
    values = [value for check in checks if (value := check["figures"].get(model, {}).get("value")) is not None]
    verdicts = {check["verdicts"].get(model) for check in checks}
    number = re.sub(r"\*|\(.*", "", cell).strip()
    if not values:
        return number == "–"
    rounded = round(max(values), len(number.partition(".")[2]))
    return float(number) == rounded and ("**" in cell, "(cannot tell)" in cell) == (
        "fail" in verdicts,
        "cannot tell" in verdicts,
    )


@pytest.mark.parametrize("kind", ["class", "samples"])
def test_the_threat_models_tables_are_made_from_the_committed_audit(kind: str) -> None:
    cells = {c["method"]: c["audit"]["checks"] for c in result("audit-cifar100-vit_tiny")["cells"] if c["kind"] == kind}
    gates = {method: {check["name"]: check for check in checks} for method, checks in cells.items()}
    tables = re.findall(r"^\| attack \|.*?\n\n", text_of("docs/threat-model.md"), re.MULTILINE | re.DOTALL)
    rows = tables[kind == "samples"].splitlines()[2:-1]
    assert len(rows) >= 7
    for row in rows:
        name, default, paper, retrained, allowed = (cell.strip() for cell in row.split("|")[1:-1])
        of_default, of_paper = ([gates[method][gate] for gate in AUDITED[name]] for method in ("default", "paper"))
        assert shows(default, of_default, "unlearned"), row
        assert shows(paper, of_paper, "unlearned"), row
        assert shows(retrained, of_default, "retrained"), row
        assert float(allowed) == round(max(check["allowed"] for check in of_default), 2), row


def test_the_readme_counts_the_gates_that_fail() -> None:
    failed = {}
    for cell in result("audit-cifar100-vit_tiny")["cells"]:
        verdicts = [check["verdicts"]["unlearned"] for check in cell["audit"]["checks"]]
        failed[cell["kind"], cell["method"]] = (verdicts.count("fail"), len(verdicts))
    readme = " ".join(text_of("README.md").split())
    assert "for a class by {} of {} gates".format(*failed["class", "default"]) in readme
    assert "for 5,000 samples by {} of {}".format(*failed["samples", "default"]) in readme
    assert all(2 * count > total for (_, method), (count, total) in failed.items() if method == "paper")


def test_committed_runs_keep_within_the_drift_bound() -> None:
    files = sorted(RESULTS.glob("*.json"))
    cells = [cell for file in files for cell in json.loads(file.read_text(encoding="utf-8")).get("cells", [])]
    bounded = [cell for cell in cells if cell.get("drift_bound") is not None]
    assert len(bounded) >= 17  # every run of the paper's preset
    for cell in bounded:
        assert cell["drift"] <= cell["drift_bound"]


def test_every_source_tag_is_explained() -> None:
    """Each [FAMR, …] in the code, and each author and year, is listed in docs/papers.md."""
    papers = text_of("docs/papers.md")
    for file in (ROOT / "src").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for tag in re.findall(r"\[FAMR, ([^\]]*)\]", source):
            for part in re.findall(r"Eq\. \(\d+\)|\(\d+\)|Alg\. 1|App\. Prop\. \d|App\. Thm\. \d|Sec\. \d", tag):
                assert part.removeprefix("Eq. ") in papers, f"{file.name}: {tag}"
        for tag in re.findall(r"[A-Z][\w-]+ (?:et al\.|& [A-Z]\w+) (?:19|20)\d\d|\[(?:K-FAC|Polyak)", source):
            assert f"**{tag.removeprefix('[')}" in papers, f"{file.name}: {tag}"


def test_the_code_that_papers_md_names_exists() -> None:
    """A file in backticks exists; names that follow it in its table cell are defined there."""
    for line in text_of("docs/papers.md").splitlines():
        cell = line.split("|")[3] if line.startswith("| ") and line.count("|") == 4 else line
        for file, names in re.findall(r"`([\w/]+\.py)`((?:[:,] `\w+`)*)", cell):
            path = ROOT / file if file.startswith("tests/") else ROOT / "src/famr" / file
            assert path.is_file(), line
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"^(def|class) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE), line


def test_modules_that_the_docs_name_exist() -> None:
    for page in ("README.md", "docs/method.md", "docs/index.md", "docs/many-processes.md", "docs/audits.md"):
        for name in re.findall(r"(?:from |`)(famr(?:\.\w+)+)", text_of(page)):
            path = ROOT / "src" / Path(*name.split("."))
            public = name.count(".") == 1 and name.partition(".")[2] in famr.__all__
            assert public or path.is_dir() or path.with_suffix(".py").is_file(), f"{page}: {name}"


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("*.md")), *PAGES], ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    for link in re.findall(r"(?:\]\(|src=\")([^)\"]+)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", link):
            continue
        file, _, anchor = link.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in heading_anchors(path), f"{page.name}: {link}"


def test_the_index_links_to_every_page() -> None:
    index = text_of("docs/index.md")
    assert [page.name for page in PAGES if page.name != "index.md" and f"({page.name}" not in index] == []
