"""Several processes give the result of one, and end together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import famr
from famr.engine import launch as joining
from famr.engine.distributed import Ranks, from_words, in_words, number
from famr.engine.launch import joined, started
from famr.errors import DataError, RequestError
from rank_worlds import (
    DIVISIBLE,
    METHODS,
    Ended,
    by_itself,
    close,
    command,
    command_with_a_death,
    features,
    forgotten,
    many_checks,
    told,
    world,
)
from small import QUICK, picture, save_pictures, save_small

EXACT = 1e-9
"""For double precision: sums in another order."""
ROUNDED = 1e-5
"""For single precision and a few plain steps."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, pictures, and pictures of which one is another under the same name."""
    place = tmp_path_factory.mktemp("ranks")
    save_small(place / "original")
    save_pictures(place / "data")
    shutil.copytree(place / "data", place / "other")
    picture(999).save(place / "other/cat/0.png")
    return place


@pytest.fixture(scope="module")
def met(place: Path) -> Path:
    """What two processes left behind that met once and did many things."""
    ended = world(place / "met", many_checks, place / "met", f"folder:{place / 'data'}")
    assert [each.code for each in ended] == [0, 0], ended
    return place / "met"


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
    found: dict[str, Any] = json.loads((run / "unlearning/run.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_come_to_the_weights_of_one(met: Path, name: str) -> None:
    expected = forgotten(name)
    for rank in range(2):
        torch.testing.assert_close(
            load_file(met / f"{name}.{rank}"), dict(expected.module.state_dict()), atol=EXACT, rtol=EXACT
        )


@pytest.mark.parametrize("name", METHODS)
def test_both_tell_the_same_history(met: Path, name: str) -> None:
    first, second = (json.loads((met / f"{name}.{rank}.json").read_text(encoding="utf-8")) for rank in range(2))
    assert first == second
    assert close(first, told(forgotten(name)), EXACT)


@pytest.mark.parametrize("name", DIVISIBLE)
def test_weights_in_parts_come_to_the_same(met: Path, name: str) -> None:
    expected = forgotten(name)
    found = load_file(met / f"{name}, in parts.0")
    torch.testing.assert_close(found, dict(expected.module.state_dict()), atol=EXACT, rtol=EXACT)
    history = json.loads((met / f"{name}, in parts.0.json").read_text(encoding="utf-8"))
    assert close(history, told(expected), EXACT)


def test_answers_are_gathered_in_the_order_of_the_images(place: Path, met: Path) -> None:
    expected = features(f"folder:{place / 'data'}")
    assert len(expected["logits"]) == 18
    for rank in range(2):
        torch.testing.assert_close(load_file(met / f"features.{rank}"), expected)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other images", "DataError: The processes of this run do not see the same: the forget images."),
        ("other order", "DataError: The processes of this run do not see the same: the seed."),
        ("one fails", "RequestError: Too few."),
        ("too few devices", "RequestError: A machine of this run has 1 CUDA devices, and more processes than that."),
        ("whole layers", "RequestError: The kfac anchor needs whole layers, and --shard divides them."),
    ],
)
def test_what_is_wrong_with_one_is_said_by_both(met: Path, what: str, words: str) -> None:
    said = [json.loads((met / f"errors.{rank}").read_text(encoding="utf-8"))[what] for rank in range(2)]
    assert [each.splitlines()[0] for each in said] == [words, words]


def test_an_unforeseen_error_reaches_the_other_with_its_rank(met: Path) -> None:
    own, other = (json.loads((met / f"errors.{rank}").read_text(encoding="utf-8"))["one breaks"] for rank in range(2))
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


def test_weights_in_parts_are_written_whole(place: Path, alone: Path) -> None:
    ended = world(place / "log", command, forget_command(place, "parts", "--shard"))
    assert [each.code for each in ended] == [0, 0], ended
    parts = place / "parts"
    torch.testing.assert_close(weights(parts), weights(alone), atol=ROUNDED, rtol=ROUNDED)
    assert files(parts) == files(alone)
    assert record(parts)["sharded"] is True
    assert ended[1].out == ended[1].err == ""  # only the first speaks
    famr.load_model(str(parts))


def test_the_same_names_with_other_pictures_are_noticed(place: Path) -> None:
    ended = world(place / "log", command, forget_command(place, "never"), forget_command(place, "never", data="other"))
    assert [each.code for each in ended] == [3, 3]
    assert all("do not see the same: the pixels of the forget images." in each.err for each in ended)
    assert all("rank 1 against rank 0" in each.err for each in ended)
    nothing_is_left(place)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_process_ends_the_other(place: Path, dies: int) -> None:
    ended = world(place / "log", command_with_a_death, dies, "killed", forget_command(place, "never", epochs=9))
    assert ended[dies].code == -9
    assert ended[1 - dies].code == 5
    assert "Another process of this run ended" in ended[1 - dies].err
    nothing_is_left(place)


def test_a_process_that_sleeps_is_not_waited_for_without_end(place: Path) -> None:
    arguments = forget_command(place, "never", epochs=9)
    ended = world(place / "log", command_with_a_death, 1, "asleep", arguments, stopped=1)
    assert ended[0].code == 5
    assert "did not answer in time" in ended[0].err
    nothing_is_left(place)


@pytest.mark.parametrize(("dies", "more"), [(0, []), (1, []), (0, ["--shard"])])
def test_a_process_that_fails_halfway_tells_the_other_why(place: Path, dies: int, more: list[str]) -> None:
    arguments = forget_command(place, "never", "--json", *more, epochs=9)
    ended = world(place / "log", command_with_a_death, dies, "failed", arguments)
    assert [each.code for each in ended] == [3, 3]
    assert all("The image cannot be read." in each.err for each in ended)
    assert f"rank {dies}: cats/3.png" in ended[1 - dies].err, "also where the one that fails keeps the store"
    assert json.loads(ended[0].out)["error"]["exit_code"] == 3
    assert ended[1].out == ""
    nothing_is_left(place)


def test_two_go_on_where_two_were_stopped(place: Path, alone: Path) -> None:
    arguments = forget_command(place, "stopped")
    ended = world(place / "log", command_with_a_death, 0, "failed", arguments)
    assert [each.code for each in ended] == [3, 3]
    assert (place / "stopped.unfinished/state.json").is_file()
    assert ["stopped.unfinished; --resume continues from it" in each.err for each in ended] == [True, False]
    ended = world(place / "log", command_with_a_death, 0, "failed", [*arguments, "--resume"])
    assert [each.code for each in ended] == [0, 0], "two of four steps are left, so there is no third to fail in"
    torch.testing.assert_close(weights(place / "stopped"), weights(alone), atol=ROUNDED, rtol=ROUNDED)
    assert not (place / "stopped.unfinished").exists()


def test_only_some_commands_can_be_shared(place: Path) -> None:
    ended: list[Ended] = world(place / "log", command, ["classes", str(place / "original")])
    assert [each.code for each in ended] == [2, 2]
    assert all("`famr classes` runs in one process" in each.err for each in ended)


def nothing_is_left(place: Path) -> None:
    assert not (place / "never").exists()
    assert not list(place.glob(".never.*.tmp"))


def test_fewer_processes_than_asked_for_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RequestError, match="2 processes were asked for, and 1 started"), joined(2):
        pass
    with pytest.raises(RequestError, match="several processes"), joined(shard=True):
        pass


@pytest.mark.parametrize("values", [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "two")])
def test_variables_that_make_no_sense_are_refused(values: tuple[str, str]) -> None:
    with pytest.raises(RequestError, match="do not make sense"):
        started({"RANK": values[0], "WORLD_SIZE": values[1]})


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_shares_are_of_one_length_and_miss_no_image(size: int, count: int) -> None:
    shares = [Ranks(rank, size).share(torch.arange(count)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    assert torch.cat(shares)[:count].tolist() == list(range(count))


@pytest.mark.parametrize("name", ["mps", "cuda:1"])
def test_a_device_that_cannot_be_shared_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot share"):
        Ranks(0, 2).place(name)


def test_a_figure_that_is_whole_is_its_number() -> None:
    assert number(torch.tensor(2.5)) == 2.5


def test_nobody_leaves_before_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    early = threading.Thread(target=joining._wait_for_all, args=(store, joining.ENDED, 2))
    early.start()
    early.join(0.2)
    assert early.is_alive()
    joining._wait_for_all(store, joining.ENDED, 2)
    early.join(joining.PARTING)
    assert not early.is_alive()
    monkeypatch.setattr(joining, "PARTING", 0.05)
    joining._wait_for_all(
        dist.HashStore(), joining.ENDED, 2
    )  # the other never comes; one's own work is done all the same


def test_who_fails_leaves_after_all_have_heard_why(monkeypatch: pytest.MonkeyPatch) -> None:
    store, words = dist.HashStore(), in_words(DataError("Broken.", where="a.png"), 0)
    fails = threading.Thread(target=joining._leave_words, args=(store, words, 2))
    fails.start()
    own = joining._Listener(store)
    fails.join(2 * joining.BEAT)
    assert fails.is_alive()
    other = joining._Listener(store)
    fails.join(joining.PARTING / 2)
    assert not fails.is_alive(), "it does not wait in vain"
    for each in (own, other):
        assert str(each.last_words()) == str(from_words(words))
    monkeypatch.setattr(joining, "PARTING", 0.05)
    joining._leave_words(dist.HashStore(), words, 2)  # nobody is there to hear it


def test_who_hears_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LAST_WORDS", 0.05)
    listener = joining._Listener(dist.HashStore())
    assert "Another process of this run ended" in str(listener.last_words())
    listener.stop()


def test_the_group_is_left_after_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    store = dist.HashStore()
    monkeypatch.setattr(joining, "started", lambda: Ranks(0, 2, 0))
    monkeypatch.setattr(joining, "_meet", lambda _ranks, _device: store)
    monkeypatch.setattr(joining, "_wait_for_all", lambda *given: done.append(given))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("left"))
    threads = threading.active_count()
    with joined(2):
        assert done == []
        assert threading.active_count() == threads + 1
    assert done == [(store, joining.ENDED, 2), "left"]
    assert threading.active_count() == threads, "nobody listens any more"


def test_who_kept_the_store_may_be_gone() -> None:
    class Gone(dist.Store):
        def add(self, _key: str, _amount: int) -> int:
            raise dist.DistNetworkError("Connection reset by peer")

        def check(self, _keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

    joining._wait_for_all(Gone(), joining.ENDED, 2)
    assert "Another process of this run ended" in str(joining._Listener(Gone()).last_words())


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["forget", "--nothing"], 2)])
@pytest.mark.parametrize("size", [1, 2])
def test_one_of_several_processes_ends_at_once_with_its_exit_code(size: int, arguments: list[str], code: int) -> None:
    """Threads of the group may abort an interpreter that ends step by step."""
    last = "import atexit; atexit.register(print, 'step by step'); from famr.cli.main import main; main()"
    environment = {**os.environ, "WORLD_SIZE": str(size), "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", last, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == code
    assert ("step by step" in done.stdout) == (size == 1)
    assert "famr" in (done.stderr if code else done.stdout)


def test_what_was_said_before_an_end_at_once_is_not_lost() -> None:
    program = "from famr.cli.ranked import exit_at_once\nwith exit_at_once(): print('words')"
    environment = {**os.environ, "WORLD_SIZE": "2", "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"words\n", b"")
