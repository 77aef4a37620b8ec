"""`train`, `forget`, `audit` and `bench`, killed (SIGKILL) and started again with --resume, end as if nobody had.

A hundred kills of `forget` at random times are in benchmarks/kills.py. A kill here comes before some file is renamed to
its place: what was renamed before is there, what was being made is lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from famr.storage.digests import check_complete, file_digest, folder_digests
from small import ARCHITECTURE, AS_OPTIONS, QUICK, save_pictures

KILLED = -9
DRIVER = """
import json, os, signal, sys
from pathlib import Path
import torch
from famr.cli.main import main
from famr.runs.resume import ResumeState

torch.set_num_threads(1)
ResumeState.due = lambda self: True
rename = Path.replace

def ended(words):
    sys.argv = ["famr", *words]
    try:
        main()
    except SystemExit as stopped:
        return stopped.code

def killed(words, before):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    renamed = []
    def replace(self, target):
        if len(renamed) == before:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed.append(target)
        return rename(self, target)
    Path.replace = replace
    os._exit(ended(words))

codes = [ended(words) if before is None else killed(words, before) for words, before in json.load(sys.stdin)]
print(json.dumps(codes), file=sys.stderr)
"""


def carried_out(*commands: tuple[list[object], int | None]) -> list[int]:
    """The exit codes of commands, one after the other; with a number in a process killed before its n-th renaming."""
    words = json.dumps([[list(map(str, command)), kill] for command, kill in commands])
    program = [sys.executable, "-c", DRIVER]
    done = subprocess.run(program, input=words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes: list[int] = json.loads(done.stderr.splitlines()[-1])
    assert 1 not in codes, done.stderr
    return codes


def without_costs(content: Any) -> Any:
    """A record without what a clock or the memory said."""
    if isinstance(content, dict):
        costs = ("seconds", "share_of_retraining", "peak_memory", "costs")
        return {name: without_costs(value) for name, value in content.items() if name not in costs}
    return [without_costs(each) for each in content] if isinstance(content, list) else content


def read(file: Path) -> Any:
    return without_costs(json.loads(file.read_text(encoding="utf-8")))


def litter(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".tmp", ".lock", ".new", ".old"))


def train(place: Path, output: str) -> list[object]:
    start = ["--model", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--data", f"folder:{place / 'data'}"]
    return ["train", *start, "--epochs", 4, "--batch-size", 8, "--output-dir", place / output, "--device", "cpu", "-q"]


def forget(place: Path, output: str) -> list[object]:
    asked = ["--data", f"folder:{place / 'data'}", "--class", "cat", *QUICK]
    return ["forget", "--model", place / "train", *asked, "--output-dir", place / output]


def audit(place: Path, run: str) -> list[object]:
    rest = ["--quick", "--shadows", 6, "--shadow-start", "scratch", "--device", "cpu", "--quiet"]
    return ["audit", place / run, *rest]


def bench(place: Path, output: str) -> list[object]:
    start = ["--start", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--epochs", 1, "--batch-size", 8]
    asked = ["--class", "cat", "--methods", "fine-tune,random-labels", "--trials", 1, "--device", "cpu", "-q"]
    return ["bench", "methods", "--data", f"folder:{place / 'data'}", *start, *asked, "--output", place / output]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each command in one go, and under another name killed several times before it was let through.

    Training is killed after its first and second state; forgetting at three epochs; an audit in its first shadow, in a
    later one, before its outcome is written and before the run is sealed anew; a bench at its first record, original,
    reference and cells.
    """
    place = tmp_path_factory.mktemp("resumed")
    save_pictures(place / "data", each=20)
    cut_train, cut_audit = train(place, "cut-train"), [*audit(place, "cut-audit"), "--resume"]
    cut_bench = [*bench(place, "cut-bench"), "--resume"]
    commands = [
        (train(place, "train"), None, 0),
        (cut_train, 1, KILLED),
        ([*cut_train, "--resume"], 2, KILLED),
        ([*cut_train, "--resume"], None, 0),
        (whole_forget := [*forget(place, "forget"), "--epochs", 5], None, 0),
        *(([*whole_forget, "--output-dir", place / "cut-forget", "--resume"], before, KILLED) for before in (0, 2, 1)),
        ([*whole_forget, "--output-dir", place / "cut-forget", "--resume"], None, 0),
        (forget(place, "audit"), None, 0),
        (forget(place, "cut-audit"), None, 0),
        (audit(place, "audit"), None, 0),
        *((cut_audit, before, KILLED) for before in (0, 4, 6, 1)),
        (cut_audit, None, 0),
        (bench(place, "bench"), None, 0),
        *((cut_bench, before, KILLED) for before in (1, 2, 2, 2, 3)),
        (cut_bench, None, 0),
    ]
    assert carried_out(*((words, before) for words, before, _ in commands)) == [code for *_, code in commands]
    return place


def test_training_ends_with_the_weights_of_one_go(place: Path) -> None:
    assert file_digest(place / "cut-train/model.safetensors") == file_digest(place / "train/model.safetensors")
    history, whole = (
        (place / run / "training/history.jsonl").read_text(encoding="utf-8").splitlines()
        for run in ("cut-train", "train")
    )
    assert [without_costs(json.loads(row)) for row in history] == [without_costs(json.loads(row)) for row in whole]
    assert read(place / "cut-train/training/metrics.json") == read(place / "train/training/metrics.json")
    assert not (place / "cut-train.unfinished").exists()


def test_forgetting_ends_with_the_weights_of_one_go(place: Path) -> None:
    assert file_digest(place / "cut-forget/model.safetensors") == file_digest(place / "forget/model.safetensors")
    assert read(place / "cut-forget/unlearning/metrics.json") == read(place / "forget/unlearning/metrics.json")
    check_complete(place / "cut-forget")
    assert not (place / "cut-forget.unfinished").exists()


def test_an_audit_finds_what_one_go_finds(place: Path) -> None:
    assert read(place / "cut-audit/unlearning/audit.json") == read(place / "audit/unlearning/audit.json")
    check_complete(place / "cut-audit")
    assert folder_digests(place / "cut-audit.shadows") == folder_digests(place / "audit.shadows")
    assert litter(place / "cut-audit") == litter(place / "cut-audit.shadows") == []


def test_a_bench_holds_the_cells_of_one_go(place: Path) -> None:
    assert read(place / "cut-bench/results.json") == read(place / "bench/results.json")
    names = [path.relative_to(place / "bench") for path in sorted((place / "bench").rglob("*"))]
    assert names == [path.relative_to(place / "cut-bench") for path in sorted((place / "cut-bench").rglob("*"))]
    (weights,) = (place / "bench/originals").iterdir()
    assert file_digest(weights) == file_digest(place / "cut-bench/originals" / weights.name)
    assert litter(place / "cut-bench") == []
