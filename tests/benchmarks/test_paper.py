"""`python -m benchmarks.paper`: the paper's own numbers, tables and figures, its observations; docs/benchmarks.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.paper.__main__ import main
from benchmarks.paper.figures import draw_figure, epoch_means
from benchmarks.paper.observations import observations
from benchmarks.paper.setting import DEFAULT, SIZES, printed, size_by_name
from benchmarks.paper.tables import paper_page, paper_table
from PIL import Image

from famr.bench.methods import FAMR_PAPER
from famr.errors import RequestError
from famr.report.html import as_html
from famr.report.markdown import as_markdown

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"hardware": "a machine", "torch": "2", "timm": "1", "famr": "0"}
SETTINGS = {"classes": 100, "model": "timm:x", "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.1}}


def cell(size: str, method: str, seed: int, forget: float, retain: float, fall: float) -> dict[str, Any]:
    """A run whose forget accuracy falls to `forget`, by the factor `fall` in the first epoch."""
    kept = 0.8
    history = [
        {
            "epoch": epoch,
            "forget_accuracy": accuracy,
            "retain_accuracy": kept - epoch * (kept - retain) / 3,
            "forget_kl": 1.5 * epoch,
            "forget_entropy": 0.1 + epoch,
        }
        for epoch, accuracy in enumerate((0.9, 0.9 * fall, (0.9 * fall + forget) / 2, forget))
    ]
    measures = {"forget_cross_entropy": 4.0, "forget_kl": 3.0}
    return {
        "size": size,
        "setting": "from scratch",
        "method": method,
        "task": "class apple",
        "seed": seed,
        "original": {"retain_accuracy": kept, "forget_accuracy": 0.9, "forget_entropy": 0.1, **measures},
        "unlearned": {"retain_accuracy": retain, "forget_accuracy": forget, "forget_entropy": 4.6, **measures},
        "retrained": {"retain_accuracy": kept, "forget_accuracy": 0.0, "forget_entropy": 0.7, **measures},
        "facts": {"history": history, "seconds_of_steps": 1.5},
        "retraining": {"seconds": 30.0},
    }


@pytest.fixture
def content() -> dict[str, Any]:
    """Large models that forget more, keep more and fall faster: the last against what the appendix says."""
    cells, runs = [], []
    for rank, size in enumerate(SIZES):
        shared = {"settings": SETTINGS, "environment": ENVIRONMENT, "tasks": {"class apple": {}}}
        runs.append({"size": size, "setting": "from scratch", **shared})
        for seed in range(4):
            noise = 0.001 * ((seed * 7 + rank) % 3)
            for method in (FAMR_PAPER, DEFAULT):
                cells.append(
                    cell(size, method, seed, 0.012 - 0.003 * rank, 0.6 + 0.05 * rank + noise, 0.5 - 0.1 * rank)
                )
    return {"benchmark": "paper tables", "table": 1, "data": "CIFAR-100", "runs": runs, "cells": cells}


def test_the_papers_numbers_are_those_it_prints() -> None:
    rows = {table: printed()["tables"][table]["rows"] for table in ("1", "2")}
    assert all(list(found) == list(SIZES) for found in rows.values())
    assert [rows["1"][size]["retain_accuracy"] for size in SIZES] == [0.701, 0.725, 0.738, 0.742]
    assert [rows["2"][size]["forget_accuracy"] for size in SIZES] == [0.021, 0.011, 0.0, 0.0]
    assert "2506.14515" in printed()["citation"]


def test_our_rows_stand_below_the_papers(content: dict[str, Any]) -> None:
    table = paper_table(content)
    assert [row[0] for row in table.rows] == [size for size in SIZES for _ in range(5)]
    paper, original, ours, default, retrained = table.rows[:5]
    assert paper[1:7] == ("the paper's own (CIFAR-100)", "70.1", "1.3", "3.42", "2.21", "2.41")
    assert original[2].startswith("80.0")
    assert ours[1] == "Alg. 1 (from scratch)"
    assert ours[3].startswith("1.2 ±")
    assert default[1].startswith("default")
    assert retrained[-2].startswith("30.00")
    page = as_markdown(paper_page(content))
    assert "stands in" not in page
    assert "here Tiny-ImageNet-100 stands in" in as_markdown(
        paper_page({**content, "table": 2, "data": "Tiny-ImageNet-100"})
    )


def test_rows_without_a_retrained_model_are_not_available(content: dict[str, Any]) -> None:
    for each in content["cells"]:
        if each["size"] == "ViT-L":
            each["retrained"] = each["retraining"] = None
    rows = [row for row in paper_table(content).rows if row[0] == "ViT-L"]
    assert rows[-1][1].startswith("retrained: not available")
    assert rows[-1][2:] == ("–",) * 6 + ("0",)
    content["cells"][-1] = {name: content["cells"][-1][name] for name in ("size", "setting", "method", "task", "seed")}
    content["cells"][-1]["error"] = {"kind": "GateError", "what": "No strength forgets.", "where": None}
    page = as_markdown(paper_page(content))
    assert "Failed: ViT-L \\(from scratch\\), FAMR, class apple, seed 3: No strength forgets." in page


def test_observations_about_sizes_need_a_setting_with_several_sizes(content: dict[str, Any]) -> None:
    sized = [each.setting for each in observations(content) if each.statement.startswith("Larger")]
    alone = {**content["runs"][0], "setting": "pretrained"}
    more = {**content, "runs": [alone, *content["runs"]]}
    assert [each.setting for each in observations(more) if each.statement.startswith("Larger")] == sized
    assert {each.setting for each in observations({**content, "runs": [alone]})} == {"pretrained"}


def test_observations_are_decided_by_the_data(content: dict[str, Any]) -> None:
    found = {each.statement.split(":")[0]: each for each in observations(content)}
    assert found["Larger models forget more fully"].verdict == "confirmed"
    assert found["Larger models keep more"].verdict == "confirmed"
    assert found["Larger models pay less"].verdict == "confirmed"
    assert found["Smaller models fall faster at first"].verdict == "refuted"
    assert "over 4 pairs" in found["Larger models keep more"].evidence
    verdicts = {each.statement.split()[0]: each.verdict for each in observations(content)}
    assert [verdicts[word] for word in ("Forget", "Predictions", "KL")] == ["confirmed"] * 3
    for each in content["cells"]:  # the other way round
        each["size"] = dict(zip(SIZES, reversed(SIZES), strict=True))[each["size"]]
        each["unlearned"]["forget_entropy"] = 2.5  # what the paper prints
    turned = {each.statement.split(":")[0]: each.verdict for each in observations(content)}
    assert turned["Larger models forget more fully"] == "refuted"
    assert turned["Smaller models fall faster at first"] == "confirmed"
    assert [verdict for words, verdict in turned.items() if words.startswith("Predictions")] == ["refuted"]


def test_an_observation_without_enough_data_is_undecided(content: dict[str, Any]) -> None:
    few = {**content, "cells": [each for each in content["cells"] if each["seed"] < 2]}
    sized = [each for each in observations(few) if each.statement.startswith(("Larger", "Smaller"))]
    assert [each.verdict for each in sized] == ["undecided"] * 4
    small = {
        **content,
        "runs": content["runs"][:2],
        "cells": [c for c in content["cells"] if c["size"] in ("ViT-Ti", "ViT-S")],
    }
    assert observations(small)[0].evidence == "not measured: there must be small and large models"
    noisy = json.loads(json.dumps(content))
    for each in noisy["cells"]:
        each["unlearned"]["retain_accuracy"] = 0.6 + 0.1 * ((each["seed"] + len(each["size"])) % 2)
    kept = next(each for each in observations(noisy) if each.statement.startswith("Larger models keep"))
    assert kept.verdict == "undecided"


def test_curves_are_means_with_intervals(content: dict[str, Any]) -> None:
    found = epoch_means(content)
    assert [curve.size for curve in found] == list(SIZES)
    assert [mean.mean for mean in found[0].at["forget_kl"]] == [0.0, 1.5, 3.0, 4.5]
    end = found[0].at["retain_accuracy"][-1]
    assert end.mean == pytest.approx(60.075)
    assert end.half_width == pytest.approx(0.152, abs=0.01)
    assert len(epoch_means(content, DEFAULT)) == 4


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_figures_are_drawn_with_any_names(content: dict[str, Any], number: int, tmp_path: Path) -> None:
    content["data"] = "$x^ <b>\n\u202e"
    for run in content["runs"][:2]:
        run["setting"] = "another $\\frac"
    for each in content["cells"]:
        each["setting"] = next(run["setting"] for run in content["runs"] if run["size"] == each["size"])
    draw_figure(content, number, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 800
        assert len(set(image.convert("L").resize((200, 100)).tobytes())) > 20
    page = as_html(paper_page(content))
    assert "<b>" not in page
    with pytest.raises(RequestError, match="no figure 5"):
        draw_figure(content, 5, tmp_path / "none.png")


def test_sizes_have_short_names() -> None:
    assert [size_by_name(name) for name in ("Ti", "s", "ViT-B", "vit-l")] == list(SIZES)
    with pytest.raises(RequestError, match="no model"):
        size_by_name("XL")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the command with its output in tmp_path/paper."""

    def run(*arguments: object) -> Ended:
        try:
            code = main(["--output", str(tmp_path / "paper"), *map(str, arguments)])
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


def test_one_command_a_table_and_one_a_figure(paper: Callable[..., Ended], tmp_path: Path) -> None:
    out = tmp_path / "paper"
    assert paper("--figure", 1).code == 2  # nothing there yet
    training = ["--epochs", 1, "--learning-rate", 3e-3, "--batch-size", 64, "--no-augment", "--device", "cpu"]
    sized = ["--data", "digits", "--little", "--size", "Ti", "--class", "3"]
    wrong = paper("--figure", 9, *sized, *training)
    assert (wrong.code, out.exists()) == (2, False)  # before anything runs
    assert "no figure 9" in wrong.err
    made = paper("--table", 1, *sized, *training)
    assert made.code == 0, made.err
    assert "the paper's own" in made.out
    assert "digits stands in" in (out / "table-1.md").read_text(encoding="utf-8")
    assert "</table>" in (out / "table-1.html").read_text(encoding="utf-8")
    large = ["--table", 1, *sized[:-3], "L", "--class", "3", *training, "--no-retrained"]
    alone = paper(*large, "--no-default")  # another size joins
    assert alone.code == 0, alone.err
    assert "default: no figures" in alone.out
    more = paper(*large)
    assert more.code == 0, more.err
    assert "no figures" not in more.out
    assert "not available" in more.out
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert {each["size"] for each in content["cells"] if each["retrained"] is None} == {"ViT-L"}
    assert [each["size"] for each in content["runs"]] == ["ViT-Ti", "ViT-L"]
    assert [(each["size"], each["method"]) for each in content["cells"]] == [
        (size, method) for size in ("ViT-Ti", "ViT-L") for method in (FAMR_PAPER, DEFAULT)
    ]
    drawn = paper("--figure", 1, "--json")  # from what is there, nothing runs
    assert drawn.code == 0, drawn.err
    assert json.loads(drawn.out)["files"] == [str(out / "figure-1.png")]
    assert (out / "figure-1.png").stat().st_size > 10_000
    assert paper("--table", 2).code == 2  # the folder is of table 1
    assert paper().code == 2
    assert paper("--table", 3).code == 2


def test_benchmarks_page_is_made_from_the_committed_results() -> None:
    from benchmarks.tables import document

    assert (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8") == document()


def test_benchmarks_page_leaves_details_to_the_linked_pages() -> None:
    from benchmarks.overview import overview

    page = "# title\n\nMade from `a.json` by `make tables`.\n\nlead\n\n## Means\n\nm\n\n## Every run\n\nlong\n"
    found = overview({"zeta": page, "methods-a": page}, ["zeta-figure-1.png"])
    assert found.index("methods-a") < found.index("zeta")
    assert "long" not in found
    assert "Made from" not in found
    assert re.search(r"## title\n\nlead\n\n### Means\n\nm\n\nAll runs: \[methods-a\]", found)
    assert found.count("figure-1.png)") == 1
