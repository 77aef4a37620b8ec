"""The package as a whole: its public names, its README, its committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import famr
from famr.data import Data

ROOT = Path(__file__).parents[1]


def test_public_names_are_few_and_all_there() -> None:
    names = [name for name in famr.__all__ if name != "__version__"]
    assert len(names) <= 20
    for name in names:
        assert getattr(famr, name).__name__ == name
    assert dir(famr) == sorted(famr.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        famr.nonsense  # noqa: B018


def test_the_readmes_library_example_runs(
    original_run: Path, digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(example) >= 2
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/original").symlink_to(original_run)
    monkeypatch.chdir(tmp_path)
    exec(compile(example[0], "README.md", "exec"), {})
    assert (tmp_path / "runs/no-3/COMPLETE.json").is_file()


def test_the_readmes_bare_call_runs() -> None:
    import torch

    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    batches = [(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]))]
    names: dict[str, object] = {"my_module": module, "my_forget_loader": batches}
    exec(compile(example, "README.md", "exec"), names)
    assert isinstance(names["forgetful"], torch.nn.Module)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda file: file.stem)
def test_committed_tables_are_made_from_committed_results(file: Path) -> None:
    from benchmarks.tables import page

    content = json.loads(file.read_text(encoding="utf-8"))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == page(file.stem, content)


def test_the_readmes_table_is_made_from_the_committed_results() -> None:
    from benchmarks.tables import summary

    content = json.loads((ROOT / "benchmarks/results/frontier-cifar100-vit_tiny.json").read_text(encoding="utf-8"))
    assert summary(content) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_table_of_methods_is_made_from_the_committed_results() -> None:
    from benchmarks.overview import methods_summary

    content = json.loads((ROOT / "benchmarks/results/methods-cifar100-vit_tiny.json").read_text(encoding="utf-8"))
    assert methods_summary(content) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_seconds_of_steps_are_told_as_they_were_measured() -> None:
    file = ROOT / "benchmarks/results/end_to_end-cifar100-vit_tiny.json"
    cells = {cell["name"]: cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]}
    anew = cells["retraining"]["seconds_of_steps"]
    ours = [cells[name]["seconds_of_steps"] for name in ("default", "10 epochs, held by a sketch")]
    took, shares = (f"{each:.2f} s" for each in ours), (f"{100 * each / anew:.1f}" for each in ours)
    pages = [" ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/speed.md")]
    assert "take {}, or {} from a sketch in 10 epochs: {} and {} % of".format(*took, *shares) in pages[0]
    assert f"took {ours[1]:.2f} s of steps with all that makes them fast: {100 * ours[1] / anew:.1f} %" in pages[1]


def test_committed_runs_keep_within_the_drift_bound() -> None:
    files = sorted((ROOT / "benchmarks/results").glob("*.json"))
    cells = [cell for file in files for cell in json.loads(file.read_text(encoding="utf-8")).get("cells", [])]
    bounded = [cell for cell in cells if cell.get("drift_bound") is not None]
    assert len(bounded) >= 17  # every run of the paper's preset
    for cell in bounded:
        assert cell["drift"] <= cell["drift_bound"]


def test_every_source_tag_is_explained() -> None:
    """Each [FAMR, …] in the code is listed in docs/papers.md."""
    papers = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    for file in (ROOT / "src").rglob("*.py"):
        for tag in re.findall(r"\[FAMR, ([^\]]*)\]", file.read_text(encoding="utf-8")):
            for part in re.findall(r"Eq\. \(\d\)|\(\d\)|Alg\. 1|App\. Prop\. \d|App\. Thm\. \d|Sec\. \d", tag):
                assert part.removeprefix("Eq. ") in papers, f"{file.name}: {tag}"
