"""Several processes give the result of one, and end together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import famr
from famr.engine import launch
from famr.engine.distributed import Ranks, as_float, error_from_json, error_to_json
from famr.engine.launch import launched_ranks, process_group
from famr.errors import DataError, RequestError
from rank_worlds import (
    METHODS,
    PLAIN,
    SHARDABLE,
    START,
    Ended,
    by_itself,
    close,
    command,
    double_model,
    failing_command,
    forget_pairs,
    history_of,
    many_checks,
    note_the_end,
    noted_command,
    predicted,
    proxy_logits,
    world,
)
from small import QUICK, picture, save_pictures, save_small

EXACT = 1e-9
"""For double precision: sums in another order."""
ROUNDED = 1e-5
"""For single precision and a few plain steps."""


@cache
def one_process(name: str) -> famr.Unlearned:
    return forget_pairs(name, PLAIN)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, pictures, and the same pictures but one, which has other pixels under the same name."""
    place = tmp_path_factory.mktemp("ranks")
    save_small(place / "original")
    save_pictures(place / "data")
    shutil.copytree(place / "data", place / "other")
    picture(999).save(place / "other/cat/0.png")
    return place


@pytest.fixture(scope="module")
def checks(place: Path) -> Path:
    """The results of many checks in one group of two processes."""
    ended = world(place / "checks", many_checks, place / "checks", f"folder:{place / 'data'}")
    assert [each.code for each in ended] == [0, 0], ended
    return place / "checks"


def forget_command(place: Path, output: str, *more: str, data: str = "data", epochs: int = 2) -> list[str]:
    given = ["--model", place / "original", "--data", f"folder:{place / data}", "--class", "cat", "--batch-size", 4]
    return [str(word) for word in ("forget", *given, *QUICK, "--epochs", epochs, "--output-dir", place / output, *more)]


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """A run folder that one process wrote."""
    done = by_itself(place, forget_command(place, "one"))
    assert done.code == 0, done.err
    return place / "one"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def files(run: Path) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*"))


def record(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "unlearning/run.json").read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_give_the_weights_of_one(checks: Path, name: str) -> None:
    expected = one_process(name)
    for rank in range(2):
        torch.testing.assert_close(
            load_file(checks / f"{name}.{rank}"), dict(expected.module.state_dict()), atol=EXACT, rtol=EXACT
        )


@pytest.mark.parametrize("name", METHODS)
def test_both_processes_have_the_history_of_one(checks: Path, name: str) -> None:
    first, second = (json.loads((checks / f"{name}.{rank}.json").read_text(encoding="utf-8")) for rank in range(2))
    assert first == second
    assert close(first, history_of(one_process(name)), EXACT)


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_train_the_proxy_of_one(checks: Path, rank: int) -> None:
    torch.testing.assert_close(load_file(checks / f"proxy.{rank}"), proxy_logits(PLAIN), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SHARDABLE)
def test_sharded_weights_give_the_same(checks: Path, name: str) -> None:
    expected = one_process(name)
    weights = load_file(checks / f"{name}, sharded.0")
    torch.testing.assert_close(weights, dict(expected.module.state_dict()), atol=EXACT, rtol=EXACT)
    history = json.loads((checks / f"{name}, sharded.0.json").read_text(encoding="utf-8"))
    assert close(history, history_of(expected), EXACT)


@pytest.mark.parametrize("rank", [0, 1])
def test_sharded_weights_are_reset_to_the_originals(checks: Path, rank: int) -> None:
    torch.testing.assert_close(load_file(checks / f"reset.{rank}"), dict(double_model().module.state_dict()))


def test_rows_are_gathered_in_the_order_of_the_images(place: Path, checks: Path) -> None:
    expected = predicted(f"folder:{place / 'data'}")
    assert len(expected["logits"]) == 18
    for rank in range(2):
        torch.testing.assert_close(load_file(checks / f"features.{rank}"), expected)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("other images", "DataError: The processes of this run do not see the same: the forget images."),
        ("other order", "DataError: The processes of this run do not see the same: the seed."),
        ("one fails", "RequestError: Too few."),
        ("too few devices", "RequestError: A machine of this run has 1 CUDA devices, and more processes than that."),
        ("whole layers", "RequestError: The kfac anchor needs whole layers, and --shard divides them."),
    ],
)
def test_an_error_in_one_process_is_raised_in_both(checks: Path, case: str, text: str) -> None:
    errors = [json.loads((checks / f"errors.{rank}").read_text(encoding="utf-8"))[case] for rank in range(2)]
    assert [error.splitlines()[0] for error in errors] == [text, text]


def test_an_unexpected_error_reaches_the_other_process_with_its_rank(checks: Path) -> None:
    own, other = (
        json.loads((checks / f"errors.{rank}").read_text(encoding="utf-8"))["one breaks"] for rank in range(2)
    )
    assert own == "by zero"
    assert other.splitlines() == ["FamrError: ZeroDivisionError: by zero", "  where: rank 0"]


def test_torchrun_writes_the_folder_of_one_process_once(place: Path, alone: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    arguments = forget_command(place, "two", "--processes", "2", "--json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, "-m", "famr", *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unlearned"]["counts"]["forget"] == 5
    two = place / "two"
    torch.testing.assert_close(weights(two), weights(alone), atol=ROUNDED, rtol=ROUNDED)
    assert files(two) == files(alone)
    assert (record(alone)["processes"], record(two)["processes"], record(two)["sharded"]) == (1, 2, False)
    assert not list(place.glob("*unfinished*"))


def test_sharded_weights_are_written_whole(place: Path, alone: Path) -> None:
    ended = world(place / "log", command, forget_command(place, "parts", "--shard"))
    assert [each.code for each in ended] == [0, 0], ended
    parts = place / "parts"
    torch.testing.assert_close(weights(parts), weights(alone), atol=ROUNDED, rtol=ROUNDED)
    assert files(parts) == files(alone)
    assert record(parts)["sharded"] is True
    assert ended[1].out == ended[1].err == ""  # only the first process prints
    famr.load_model(str(parts))


def test_the_same_names_with_other_pixels_are_refused(place: Path) -> None:
    ended = world(place / "log", command, forget_command(place, "never"), forget_command(place, "never", data="other"))
    assert [each.code for each in ended] == [3, 3]
    assert all("do not see the same: the pixels of the forget images." in each.err for each in ended)
    assert all("rank 1 against rank 0" in each.err for each in ended)
    assert_nothing_is_left(place)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_process_ends_the_other(place: Path, dies: int) -> None:
    ended = world(place / "log", failing_command, dies, "killed", forget_command(place, "never", epochs=9))
    assert ended[dies].code == -9
    assert ended[1 - dies].code == 5
    assert "Another process of this run ended" in ended[1 - dies].err
    assert_nothing_is_left(place)


def test_a_process_that_hangs_ends_the_other_at_the_timeout(place: Path) -> None:
    arguments = forget_command(place, "never", epochs=9)
    ended = world(place / "log", failing_command, 1, "asleep", arguments, stopped=1)
    assert ended[0].code == 5
    assert "did not answer in time" in ended[0].err
    assert_nothing_is_left(place)


@pytest.mark.parametrize(("dies", "more"), [(0, ["--shard"]), (1, [])])
def test_both_processes_end_with_the_error_of_the_one_that_fails(place: Path, dies: int, more: list[str]) -> None:
    arguments = forget_command(place, "never", "--json", *more, epochs=9)
    ended = world(place / "log", failing_command, dies, "failed", arguments)
    assert [each.code for each in ended] == [3, 3]
    assert all("The image cannot be read." in each.err for each in ended)
    assert f"rank {dies}: cats/3.png" in ended[1 - dies].err, "also where the failing one holds the store"
    assert json.loads(ended[0].out)["error"]["exit_code"] == 3
    assert ended[1].out == ""
    assert_nothing_is_left(place)


def test_two_processes_resume_a_run_that_two_began(place: Path, alone: Path) -> None:
    arguments = forget_command(place, "stopped")
    ended = world(place / "log", failing_command, 0, "failed", arguments)
    assert [each.code for each in ended] == [3, 3]
    assert (place / "stopped.unfinished/state.json").is_file()
    assert ["stopped.unfinished; --resume continues from it" in each.err for each in ended] == [True, False]
    ended = world(place / "log", failing_command, 0, "failed", [*arguments, "--resume"])
    assert [each.code for each in ended] == [0, 0], "two of four steps are left, so there is no third to fail in"
    torch.testing.assert_close(weights(place / "stopped"), weights(alone), atol=ROUNDED, rtol=ROUNDED)
    assert not (place / "stopped.unfinished").exists()


def test_other_commands_run_in_one_process_only_and_all_end_at_once(place: Path) -> None:
    """Threads of a process group may abort an interpreter that ends step by step."""
    ended: list[Ended] = world(place / "log", noted_command, place, ["classes", str(place / "original")])
    assert [each.code for each in ended] == [2, 2]
    assert all("`famr classes` runs in one process" in each.err for each in ended)
    assert not list(place.glob("ended.*"))
    process = START.Process(target=note_the_end, args=(place / "ended.alone",))
    process.start()
    process.join(timeout=60)
    assert (place / "ended.alone").exists()


def assert_nothing_is_left(place: Path) -> None:
    assert not (place / "never").exists()
    assert not list(place.glob(".never.*.tmp"))


def test_fewer_processes_than_asked_for_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RequestError, match="2 processes were asked for, and 1 started"), process_group(2):
        pass
    with pytest.raises(RequestError, match="several processes"), process_group(shard=True):
        pass


@pytest.mark.parametrize("values", [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "two")])
def test_launcher_variables_that_contradict_each_other_are_refused(values: tuple[str, str]) -> None:
    with pytest.raises(RequestError, match="contradict each other"):
        launched_ranks({"RANK": values[0], "WORLD_SIZE": values[1]})


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_shares_have_one_length_and_miss_no_image(size: int, count: int) -> None:
    shares = [Ranks(rank, size).share(torch.arange(count)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    assert torch.cat(shares)[:count].tolist() == list(range(count))


@pytest.mark.parametrize("name", ["mps", "cuda:1"])
def test_a_device_that_processes_cannot_share_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot share"):
        Ranks(0, 2).device(name)


def test_a_scalar_that_is_not_sharded_is_its_number() -> None:
    assert as_float(torch.tensor(2.5)) == 2.5


def test_a_rank_waits_for_all_to_end_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    early = threading.Thread(target=launch._wait_for_all, args=(store, launch.ENDED, 2))
    early.start()
    early.join(0.2)
    assert early.is_alive()
    launch._wait_for_all(store, launch.ENDED, 2)
    early.join(launch.EXIT_TIMEOUT)
    assert not early.is_alive()
    monkeypatch.setattr(launch, "EXIT_TIMEOUT", 0.05)
    launch._wait_for_all(dist.HashStore(), launch.ENDED, 2)  # the other rank never comes


def test_a_failing_rank_ends_after_all_have_read_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store, values = dist.HashStore(), error_to_json(DataError("Broken.", where="a.png"), 0)
    fails = threading.Thread(target=launch._leave_error, args=(store, values, 2))
    fails.start()
    own = launch._Listener(store)
    fails.join(2 * launch.POLL_INTERVAL)
    assert fails.is_alive()
    other = launch._Listener(store)
    fails.join(launch.EXIT_TIMEOUT / 2)
    assert not fails.is_alive(), "all have read it"
    for each in (own, other):
        assert str(each.error()) == str(error_from_json(values))
    monkeypatch.setattr(launch, "EXIT_TIMEOUT", 0.05)
    launch._leave_error(dist.HashStore(), values, 2)  # no other rank is there to read it


def test_a_rank_that_finds_no_error_says_that_another_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ERROR_TIMEOUT", 0.05)
    listener = launch._Listener(dist.HashStore())
    assert "Another process of this run ended" in str(listener.error())
    listener.stop()


def test_the_group_is_destroyed_after_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    store = dist.HashStore()
    monkeypatch.setattr(launch, "launched_ranks", lambda: Ranks(0, 2, 0))
    monkeypatch.setattr(launch, "_connect", lambda _ranks, _device: store)
    monkeypatch.setattr(launch, "_wait_for_all", lambda *arguments: done.append(arguments))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroyed"))
    threads = threading.active_count()
    with process_group(2):
        assert done == []
        assert threading.active_count() == threads + 1
    assert done == [(store, launch.ENDED, 2), "destroyed"]
    assert threading.active_count() == threads, "the listener has stopped"


def test_the_rank_that_holds_the_store_may_be_gone() -> None:
    class Gone(dist.Store):
        def add(self, _key: str, _amount: int) -> int:
            raise dist.DistNetworkError("Connection reset by peer")

        def check(self, _keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

    launch._wait_for_all(Gone(), launch.ENDED, 2)
    assert "Another process of this run ended" in str(launch._Listener(Gone()).error())


@pytest.mark.parametrize(("size", "printed"), [(1, "words\nstep by step\n"), (2, "words\n")])
def test_a_process_that_ends_at_once_keeps_its_exit_code_and_all_it_printed(size: int, printed: str) -> None:
    program = """
import atexit
from famr.cli.ranked import exit_at_once
atexit.register(print, "step by step")
with exit_at_once():
    print("words")
    raise SystemExit(3)
"""
    environment = {**os.environ, "WORLD_SIZE": str(size), "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (3, printed, "")
