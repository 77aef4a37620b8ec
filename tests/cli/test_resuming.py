"""`train`, `forget`, `audit` and `bench`, killed (SIGKILL) and resumed, end as an uninterrupted run does.

A hundred kills of `forget` at random times are in benchmarks/kills.py. A kill here comes before a file is renamed to
its final name: files that were renamed before it exist, the one that was being written is lost.
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
    torch.set_num_threads(1)  # torch's pool did not survive the fork: made anew before two threads want it at once
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


def exit_codes(*commands: tuple[list[object], int | None]) -> list[int]:
    """The exit codes of commands, one after the other; with a number in a process killed before its n-th renaming."""
    words = json.dumps([[list(map(str, command)), kill] for command, kill in commands])
    program = [sys.executable, "-c", DRIVER]
    done = subprocess.run(program, input=words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes: list[int] = json.loads(done.stderr.splitlines()[-1])
    assert 1 not in codes, done.stderr
    return codes


def without_costs(content: Any) -> Any:
    """A record without times and memory."""
    if isinstance(content, dict):
        costs = ("seconds", "share_of_retraining", "peak_memory", "costs")
        return {name: without_costs(value) for name, value in content.items() if name not in costs}
    return [without_costs(each) for each in content] if isinstance(content, list) else content


def read(file: Path) -> Any:
    return without_costs(json.loads(file.read_text(encoding="utf-8")))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".tmp", ".lock", ".new", ".old"))


def train(folder: Path, output: str) -> list[object]:
    start = ["--model", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--data", f"folder:{folder / 'data'}"]
    return ["train", *start, "--epochs", 4, "--batch-size", 8, "--output-dir", folder / output, "--device", "cpu", "-q"]


def forget(folder: Path, output: str) -> list[object]:
    request = ["--data", f"folder:{folder / 'data'}", "--class", "cat", *QUICK]
    return ["forget", "--model", folder / "train", *request, "--output-dir", folder / output]


def audit(folder: Path, run: str) -> list[object]:
    rest = ["--quick", "--shadows", 6, "--shadow-start", "scratch", "--device", "cpu", "--quiet"]
    return ["audit", folder / run, *rest]


def bench(folder: Path, output: str) -> list[object]:
    start = ["--start", ARCHITECTURE, *AS_OPTIONS, "--from-scratch", "--epochs", 1, "--batch-size", 8]
    request = ["--class", "cat", "--methods", "fine-tune,random-labels", "--trials", 1, "--device", "cpu", "-q"]
    return ["bench", "methods", "--data", f"folder:{folder / 'data'}", *start, *request, "--output", folder / output]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each command once without interruption, and once killed several times before it ends, under another name.

    Training is killed after its first and second state; forgetting at three epochs; an audit in its first shadow, in a
    later one, before its outcome is written and before it is among the audits; a bench at its first record, original,
    reference and cells.
    """
    folder = tmp_path_factory.mktemp("resumed")
    save_pictures(folder / "data", each=20)
    cut_train, cut_audit = train(folder, "cut-train"), [*audit(folder, "cut-audit"), "--resume"]
    cut_bench = [*bench(folder, "cut-bench"), "--resume"]
    commands = [
        (train(folder, "train"), None, 0),
        (cut_train, 1, KILLED),
        ([*cut_train, "--resume"], 2, KILLED),
        ([*cut_train, "--resume"], None, 0),
        (whole_forget := [*forget(folder, "forget"), "--epochs", 5], None, 0),
        *(([*whole_forget, "--output-dir", folder / "cut-forget", "--resume"], before, KILLED) for before in (0, 2, 1)),
        ([*whole_forget, "--output-dir", folder / "cut-forget", "--resume"], None, 0),
        (forget(folder, "audit"), None, 0),
        (forget(folder, "cut-audit"), None, 0),
        (audit(folder, "audit"), None, 0),
        *((cut_audit, before, KILLED) for before in (0, 4, 8, 1)),
        (cut_audit, None, 0),
        (bench(folder, "bench"), None, 0),
        *((cut_bench, before, KILLED) for before in (1, 2, 2, 2, 3)),
        (cut_bench, None, 0),
    ]
    assert exit_codes(*((words, before) for words, before, _ in commands)) == [code for *_, code in commands]
    return folder


def test_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(folder: Path) -> None:
    assert file_digest(folder / "cut-train/model.safetensors") == file_digest(folder / "train/model.safetensors")
    history, whole = (
        (folder / run / "training/history.jsonl").read_text(encoding="utf-8").splitlines()
        for run in ("cut-train", "train")
    )
    assert [without_costs(json.loads(row)) for row in history] == [without_costs(json.loads(row)) for row in whole]
    assert read(folder / "cut-train/training/metrics.json") == read(folder / "train/training/metrics.json")
    assert not (folder / "cut-train.unfinished").exists()


def test_resumed_forgetting_ends_with_the_weights_of_an_uninterrupted_run(folder: Path) -> None:
    assert file_digest(folder / "cut-forget/model.safetensors") == file_digest(folder / "forget/model.safetensors")
    assert read(folder / "cut-forget/unlearning/metrics.json") == read(folder / "forget/unlearning/metrics.json")
    check_complete(folder / "cut-forget")
    assert not (folder / "cut-forget.unfinished").exists()


def test_a_resumed_audit_has_the_figures_of_an_uninterrupted_one(folder: Path) -> None:
    cut, whole = (read(folder / run / "unlearning/audit.json") for run in ("cut-audit", "audit"))
    header = {"number", "made_at", "previous_sha256"}
    assert {name: cut[name] for name in cut if name not in header} == {
        name: whole[name] for name in whole if name not in header
    }
    assert (cut["number"], whole["number"]) == (2, 1)  # the audit that was killed once it was written counts, too
    check_complete(folder / "cut-audit")
    assert folder_digests(folder / "cut-audit.shadows") == folder_digests(folder / "audit.shadows")
    assert leftovers(folder / "cut-audit") == leftovers(folder / "cut-audit.shadows") == []


def test_a_resumed_bench_has_the_cells_of_an_uninterrupted_one(folder: Path) -> None:
    assert read(folder / "cut-bench/results.json") == read(folder / "bench/results.json")
    names = [path.relative_to(folder / "bench") for path in sorted((folder / "bench").rglob("*"))]
    assert names == [path.relative_to(folder / "cut-bench") for path in sorted((folder / "cut-bench").rglob("*"))]
    (weights,) = (folder / "bench/originals").iterdir()
    assert file_digest(weights) == file_digest(folder / "cut-bench/originals" / weights.name)
    assert leftovers(folder / "cut-bench") == []
