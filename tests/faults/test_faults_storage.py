"""Faults 38 to 44: full disks, signals, power cuts, and two processes at one output path. All of them are real."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import famr
from conftest import Outcome
from famr.errors import CheckpointError, RequestError, StorageError
from famr.runs.folder import add_to_run, atomic_file, atomic_folder
from famr.runs.resume import ResumeState
from famr.storage import staging
from famr.storage.digests import check_complete, folder_digests
from famr.storage.locks import lock, lock_file, release_all
from famr.storage.space import require_space
from fault_table import fault, seen, told
from small import QUICK, save_pictures, save_small

Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("storage")
    save_small(folder / "model")
    save_pictures(folder / "data")
    return folder


@pytest.fixture
def forget(run: Command, inputs: Path) -> Command:
    def call(target: Path, *options: object) -> Outcome:
        common = ("--model", inputs / "model", "--data", f"folder:{inputs / 'data'}", "--class", "cat", *QUICK)
        before = folder_digests(inputs)
        done = run("forget", *common, "--output-dir", target, *options)
        assert folder_digests(inputs) == before
        assert "Traceback" not in done.err
        return done

    return call


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that prints `ready` and then waits to be ended."""
    program = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=60)
    return process.returncode, err


HALF_A_RUN = """
import sys, time
from pathlib import Path
from famr.cli.guarding import guarded
from famr.storage.staging import atomic_folder

def command():
    with atomic_folder(Path(sys.argv[1]), overwrite=True) as folder:
        (folder / "model.safetensors").write_bytes(bytes(1000))
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            if "slow" in sys.argv:
                print("cleaning", flush=True)
                time.sleep(60)

guarded(command, as_json=False, debug=False)
"""


@contextmanager
def a_small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes where this user may mount one; else a limit on the size of files."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if (
        os.geteuid() == 0
        and shutil.which("mount")
        and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    ):
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 4, hard))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@fault(38)
def test_a_disk_that_is_full_before_the_work(tmp_path: Path, inputs: Path) -> None:
    with pytest.raises(StorageError, match="no room for the output") as caught:
        require_space(tmp_path / "run", shutil.disk_usage(tmp_path).free)
    assert caught.value.exit_code == 6
    with a_small_disk(tmp_path / "disk", 64 << 10) as disk:
        if shutil.disk_usage(disk).free < 1 << 20:  # a file system of its own, not only a limit
            with pytest.raises(StorageError, match="no room for the output"):
                staging.check_output(disk / "run", False, [inputs / "model"])
        assert not any(disk.iterdir())
    seen(38, "6 before: There is no room for the output: … needed, … free")


@fault(38)
def test_a_disk_that_fills_up_while_a_run_is_written(tmp_path: Path) -> None:
    with a_small_disk(tmp_path / "disk", 4 << 20) as disk:
        with atomic_folder(disk / "run") as folder:
            (folder / "old.txt").write_text("old", encoding="utf-8")
        before = folder_digests(disk / "run")
        with (
            pytest.raises(StorageError, match="could not be written") as caught,
            atomic_folder(disk / "run", overwrite=True) as new,
        ):
            (new / "large").write_bytes(bytes(6 << 20))
        assert caught.value.exit_code == 6
        assert folder_digests(disk / "run") == before
        check_complete(disk / "run")
        assert [path.name for path in disk.iterdir()] == ["run"]
    seen(38, "6 during: The output could not be written; the old run is whole")


@fault(38)
def test_weights_that_do_not_fit_on_the_disk(tmp_path: Path) -> None:
    import torch

    from famr.models.weights import save_weights

    with a_small_disk(tmp_path / "disk", 4 << 20) as disk:
        with pytest.raises(StorageError, match="could not be written"), atomic_folder(disk / "run") as folder:
            save_weights(torch.nn.Linear(1200, 1200), folder / "model.safetensors")
        assert not any(disk.iterdir())


@fault(38)
def test_a_disk_that_fills_up_while_a_state_is_kept(tmp_path: Path) -> None:
    with a_small_disk(tmp_path / "disk", 4 << 20) as disk:
        state = ResumeState(disk / "run.unfinished")
        state.begin(seed=1)
        state.keep({"weight.0": torch.arange(3.0)}, {"epoch": 1})
        before = folder_digests(state.folder)
        with pytest.raises(StorageError, match="state of the run could not be written") as caught:
            state.keep({"weight.0": torch.zeros(2 << 20)}, {"epoch": 2})
        assert caught.value.exit_code == 6
        assert folder_digests(state.folder) == before
        kept = json.loads((state.folder / "state.json").read_text(encoding="utf-8"))
        assert kept["facts"] == {"epoch": 1}
    seen(38, "6 in between: The state of the run could not be written; the last one stays")


@fault(39)
@pytest.mark.parametrize("had_one_before", [True, False])
def test_kill_9_while_writing(forget: Command, tmp_path: Path, had_one_before: bool) -> None:
    target = tmp_path / "run"
    if had_one_before:
        with atomic_folder(target) as folder:
            (folder / "old.txt").write_text("old", encoding="utf-8")
    before = folder_digests(target) if had_one_before else None
    process = child(HALF_A_RUN, target)
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL
    assert (folder_digests(target) if target.exists() else None) == before
    litter = {path.name for path in tmp_path.iterdir()} - {"run"}
    assert len(litter) == 2, litter  # the folder it was writing to, and its lock
    done = forget(target, "--overwrite")
    assert done.code == 0, done.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    check_complete(target)
    seen(39, "output absent or old as before; the next start removes staging and lock")


@fault(39)
def test_a_run_killed_between_its_two_renames_comes_back(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "old.txt").write_text("old", encoding="utf-8")
    (tmp_path / "run").rename(tmp_path / ".run.abcd1234.old")
    (tmp_path / ".run.abcd1234.tmp").mkdir()
    with pytest.raises(RequestError, match="exists already"):
        staging.check_output(tmp_path / "run", False)
    assert (tmp_path / "run/old.txt").read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@fault(39)
def test_the_litter_of_others_is_left_alone(tmp_path: Path) -> None:
    kept = (".run.b.abcd1234.tmp", ".run.tmp", ".run.ABCD1234.tmp", ".runx.abcd1234.tmp", "run.abcd1234.tmp")
    for name in kept:
        (tmp_path / name).mkdir()
    with atomic_folder(tmp_path / "run"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "run"}


@fault(39)
def test_half_a_file_of_a_dead_process_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f".a.json.{gone.pid}.tmp").write_text("half", encoding="utf-8")
    (tmp_path / f".a.json.{os.getppid()}.tmp").write_text("half", encoding="utf-8")
    with atomic_file(tmp_path / "a.json") as file:
        file.write_text("whole", encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", f".a.json.{os.getppid()}.tmp"}


KILLED_WHILE_ADDING = """
import os, signal, sys
from pathlib import Path
from famr.storage.digests import check_complete
from famr.runs.folder import add_to_run, atomic_folder

rename = Path.replace

def killed_at(step, folder):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    renamed = []
    def replace(self, target):
        if len(renamed) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed.append(target)
        return rename(self, target)
    Path.replace = replace
    add_to_run(folder, {"unlearning/audit.json": "new", "unlearning/report.md": "new"})
    os._exit(0)

for step in range(6):
    folder = Path(sys.argv[1], f"run-{step}")
    with atomic_folder(folder) as new:
        (new / "unlearning").mkdir()
        (new / "unlearning/audit.json").write_text("old")
    code = killed_at(step, folder)
    check_complete(folder)
    add_to_run(folder, {"unlearning/certificate.json": "{}"})
    check_complete(folder)
    print(code, (folder / "unlearning/audit.json").read_text(), *sorted(file.name for file in folder.rglob("*")))
"""


@fault(39)
def test_kill_9_while_a_file_is_added_to_a_finished_run(tmp_path: Path) -> None:
    """Before each of the renames: letting go of the old file, the two files, the new seal; then not at all."""
    program = [sys.executable, "-c", KILLED_WHILE_ADDING, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = "COMPLETE.json audit.json certificate.json"
    expected = [f"-9 old {files} unlearning"] * 2
    expected += [f"-9 new {files} unlearning", f"-9 new {files} report.md unlearning"]
    expected += [f"0 new {files} report.md unlearning"] * 2
    assert done.stdout.splitlines() == expected
    seen(39, "a finished run to which something is added holds at every moment")


@fault(40)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = child(HALF_A_RUN, tmp_path / "run")
    process.send_signal(number)
    code, err = ended(process)
    assert code == 130
    assert "Traceback" not in err
    assert not any(tmp_path.iterdir())
    seen(40, told(code, err))


@fault(40)
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    process = child(HALF_A_RUN, tmp_path / "run", "slow")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "cleaning\n"
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 130
    assert time.monotonic() - start < 10
    with atomic_folder(tmp_path / "run"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    seen(40, "the second ends it with 130 at once; the next start removes what is left")


@fault(40)
def test_a_real_command_is_stopped_by_sigterm(inputs: Path, tmp_path: Path) -> None:
    options = ("--model", inputs / "model", "--data", f"folder:{inputs / 'data'}", "--class", "cat", *QUICK[:2])
    arguments = ["forget", *options, "--epochs", 10**6, "--output-dir", tmp_path / "run"]
    program = [sys.executable, "-c", "from famr.cli.main import main; main()", *map(str, arguments)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while "epoch 1:" not in (line := process.stderr.readline()):
            assert line, "it ended before its first epoch"
        process.send_signal(signal.SIGTERM)
        code, err = ended(process)
    finally:
        process.kill()
    assert code == 130
    assert "famr: stopped" in err
    assert "--resume" not in err, "after less than ten seconds there is no state to resume from"
    assert "Traceback" not in err
    assert not any(tmp_path.iterdir())


@fault(41)
def test_everything_is_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def record_sync(handle: int) -> None:
        events.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    def record_rename(self: Path, target: Path) -> Path:
        events.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("a", encoding="utf-8")
        (folder / "sub").mkdir()
        (folder / "sub/b").write_text("b", encoding="utf-8")
    at = events.index("renamed")
    assert {folder.name, "a", "sub", "b", "COMPLETE.json"} == set(events[:at])
    assert events[at + 1 :] == [tmp_path.name]
    seen(41, "every file, its folders and, after the renaming, the folder around it are synced")


@fault(41)
@pytest.mark.parametrize("damage", ["cut", "missing", "seal"])
def test_a_run_that_a_power_cut_left_half_valid_is_rejected(tmp_path: Path, damage: str) -> None:
    folder = save_small(tmp_path / "run")
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100] + bytes(100))
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "COMPLETE.json").write_bytes((folder / "COMPLETE.json").read_bytes()[:20])
    with pytest.raises(CheckpointError) as caught:
        famr.load_model(str(folder))
    seen(41, f"{caught.value.exit_code}: {caught.value.what}")


@fault(42)
def test_an_output_that_exists_is_an_input_or_a_link(forget: Command, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious").write_text("precious", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for target, options in (
        (tmp_path / "mine", ()),
        (tmp_path / "mine", ("--overwrite",)),
        (tmp_path / "link", ("--overwrite",)),
        (inputs / "model", ("--overwrite",)),
        (inputs / "model/inside", ()),
    ):
        done = forget(target, *options)
        assert done.code == 2, done.err
        seen(42, told(done.code, done.err))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mine"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]


@fault(42)
def test_a_finished_run_is_not_written_to_through_a_link(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("a", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/unlearning").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="link that leads out"):
        add_to_run(tmp_path / "run", {"unlearning/audit.json": "{}"})
    assert not any((tmp_path / "elsewhere").iterdir())
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (tmp_path / "page.html").symlink_to(tmp_path / "secret")
    with atomic_file(tmp_path / "page.html") as file:
        file.write_text("page", encoding="utf-8")
    assert (tmp_path / "secret").read_text(encoding="utf-8") == "secret"
    assert not (tmp_path / "page.html").is_symlink()


@fault(42)
def test_a_seal_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "run")
    for name in ("../outside", "/etc/hostname", "", "a/../../outside"):
        (folder / "COMPLETE.json").write_text(json.dumps({"files": {name: "0"}}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"COMPLETE\.json is damaged"):
            check_complete(folder)


@fault(43)
def test_a_folder_that_cannot_be_written_to(forget: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    targets = [Path("/proc/famr-run"), tmp_path / "file/run"] + ([] if os.geteuid() == 0 else [locked / "run"])
    for target in targets:
        done = forget(target, "--model", "a model that would be looked for if it came to that")
        assert done.code == 6, done.err
        seen(43, told(done.code, done.err))
    locked.chmod(0o700)


HOLDING = """
import sys, time
from pathlib import Path
from famr.storage.locks import lock
lock(Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


@fault(44)
def test_two_runs_on_one_output(forget: Command, tmp_path: Path) -> None:
    process = child(HOLDING, tmp_path / "new/run")
    done = forget(tmp_path / "new/run")
    assert done.code == 6, done.err
    assert f"(process {process.pid})" in done.err
    other = forget(tmp_path / "new/other")
    assert other.code == 0, other.err
    process.kill()
    ended(process)
    again = forget(tmp_path / "new/run")
    assert again.code == 0, again.err
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["other", "run"]
    seen(44, "6: Another run writes there (process …).")


@fault(44)
def test_a_claim_that_comes_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    lock(tmp_path / "a/b/run")
    lock(tmp_path / "a/b/run")
    assert lock_file(tmp_path / "a/b/run").read_text(encoding="ascii") == f"{os.getpid()}\n"
    assert stat.S_IMODE(lock_file(tmp_path / "a/b/run").stat().st_mode) & 0o111 == 0
    release_all()
    assert not any(tmp_path.iterdir())
