"""Locks on output paths: exclusive, reentrant within a process, gone with their owner, never behind a link."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from famr.errors import StorageError
from famr.storage.locks import lock, lock_file, locked, release, release_all

HOLD = """
import sys
from pathlib import Path
from famr.storage.locks import lock
lock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    yield
    release_all()


def test_another_process_is_refused_with_the_owners_process_id_until_the_owner_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        for _ in range(2):  # a refused process does not erase the owner's process id
            with pytest.raises(StorageError, match=rf"Another run writes there \(process {owner.pid}\)"):
                lock(tmp_path / "run")
        owner.kill()
    assert lock_file(tmp_path / "run").is_file()
    lock(tmp_path / "run")
    assert lock_file(tmp_path / "run").read_text(encoding="ascii") == f"{os.getpid()}\n"


def test_a_released_lock_leaves_neither_its_file_nor_the_empty_folders_it_created(tmp_path: Path) -> None:
    with locked(tmp_path / "a/b/run"):
        assert lock_file(tmp_path / "a/b/run").is_file()
    assert not any(tmp_path.iterdir())
    with locked(tmp_path / "a/b/run"):
        (tmp_path / "a/other").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]


def test_one_path_in_two_spellings_has_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path)
    lock(Path("run"))
    lock(tmp_path / "alias/run")
    release(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["alias"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_the_place_of_the_lock_file_is_not_followed(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "precious").write_text("precious", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    lock_file(tmp_path / "folder/run").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="cannot be written to"):
        lock(tmp_path / "folder/run")
    assert (tmp_path / "precious").exists() == exists
    assert not exists or (tmp_path / "precious").read_text(encoding="utf-8") == "precious"


def test_a_folder_that_refuses_the_lock_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written to"):
        lock(Path("/proc/famr-run"))
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(StorageError, match="cannot be written to"):
            lock(tmp_path / "locked/run")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written to"):
        lock(tmp_path / "file/run")


def test_a_forked_process_neither_owns_nor_releases_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock(tmp_path / "run")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            release_all()
            lock(tmp_path / "run")
        except StorageError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock_file(tmp_path / "run").read_text(encoding="ascii") == f"{os.getpid()}\n"
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    assert subprocess.run(command, input="", capture_output=True, check=False, text=True).returncode == 1


def test_a_process_that_opened_the_file_of_an_ended_lock_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock, removed = fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(lock_file(tmp_path / "run"))
            removed[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock(tmp_path / "run")
    assert removed
    assert lock_file(tmp_path / "run").is_file()
