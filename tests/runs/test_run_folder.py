"""The run folder: whole or not at all, sealed with digests, the same twice."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import famr
from conftest import alg1
from famr.config import ResolvedFAMR
from famr.errors import CheckpointError, RequestError, StorageError
from famr.runs.folder import atomic_folder, read_unlearning
from famr.storage.digests import check_complete, file_digest, folder_digests
from famr.unlearn.result import unlearned_card


@pytest.fixture(scope="module")
def result(original: famr.Classifier, without_three: famr.Splits) -> famr.Unlearned:
    return famr.forget(original, without_three, alg1(epochs=2), device="cpu", monitor=famr.Monitor(track_retain=False))


def test_a_run_folder_has_its_files_and_records(result: famr.Unlearned, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    assert set(folder_digests(folder)) == {
        "README.md",
        "config.json",
        "model.safetensors",
        "unlearning/history.jsonl",
        "unlearning/request.json",
        "unlearning/run.json",
    }
    lines = [json.loads(line) for line in (folder / "unlearning/history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert list(lines[0])[:6] == ["epoch", "step", "loss_forget", "loss_anchor", "loss_total", "drift"]
    assert lines[0]["drift"] == lines[0]["forget_kl"] == 0
    assert 0 == lines[0]["seconds"] < lines[1]["seconds"]
    request, run = read_unlearning(folder)
    assert request == famr.Request(classes=["3"])
    assert ResolvedFAMR.from_json({k: v for k, v in run["method"].items() if k != "name"}) == result.method
    assert run["original"]["weights_sha256"] == result.original.digest()
    assert run["unlearned"]["weights_sha256"] == famr.load_model(str(folder)).digest()


FUNCTION_ANCHOR = "a function-space anchor of strength 5 on up to {} retained images a class"


@pytest.mark.parametrize(
    ("anchors", "text"),
    [
        ({"strength": 0.1, "function_strength": 0.0}, ["anchor l2 of strength 0.1"]),
        ({"strength": 0.0, "function_strength": 5.0, "function_images": 20}, [FUNCTION_ANCHOR.format(20)]),
        (
            {"anchor": "kfac", "strength": 100.0, "function_strength": 5.0, "function_images": 2},
            ["anchor kfac of strength 100", FUNCTION_ANCHOR.format(2)],
        ),
        ({"strength": 0.0, "function_strength": 0.0}, ["anchor l2 of strength 0"]),
    ],
)
def test_the_card_names_the_anchors(result: famr.Unlearned, anchors: dict[str, Any], text: list[str]) -> None:
    changed = replace(result, method=replace(result.method, **anchors))
    assert f"target uniform, {', '.join(text)}, sgd steps" in unlearned_card(changed, None)


def test_the_same_request_and_seed_twice_give_identical_digests(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path
) -> None:
    folders = []
    for name in ("first", "second"):
        again = famr.forget(original, without_three, alg1(epochs=2), device="cpu")
        folders.append(folder_digests(again.save(tmp_path / name)))
    for digests in folders:
        for timed in ("unlearning/history.jsonl", "unlearning/run.json"):  # these hold seconds
            del digests[timed]
    assert folders[0] == folders[1]


def test_the_seal_lists_every_file_and_notices_a_changed_byte(result: famr.Unlearned, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    seal = json.loads((folder / "COMPLETE.json").read_text(encoding="utf-8"))
    assert seal["files"] == folder_digests(folder)
    check_complete(folder)
    for name in seal["files"]:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError, match="was changed") as caught:
            famr.load_model(str(folder))
        assert name.rpartition("/")[2] in str(caught.value.where)
        (folder / name).write_bytes(content)
    (folder / "README.md").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        check_complete(folder)


def test_an_output_folder_that_exists_is_refused_and_left_as_it_is(result: famr.Unlearned, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(RequestError, match="exists already"):
        result.save(tmp_path / "run")
    with pytest.raises(RequestError, match="did not write"):
        result.save(tmp_path / "run", overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "mine.txt"]


def test_overwrite_replaces_a_run_that_famr_wrote_and_leaves_no_temporary_files(
    result: famr.Unlearned, tmp_path: Path
) -> None:
    folder = result.save(tmp_path / "run")
    (folder / "README.md").write_text("old", encoding="utf-8")
    result.save(folder, overwrite=True)
    check_complete(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_is_never_followed(result: famr.Unlearned, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="is a link"):
        result.save(tmp_path / "run", overwrite=True)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_failure_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    def half_a_run() -> None:
        with atomic_folder(tmp_path / "run") as folder:
            (folder / "half.txt").write_text("half", encoding="utf-8")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_a_run()
    assert not any(tmp_path.iterdir())


def test_a_failed_overwrite_leaves_the_old_run(result: famr.Unlearned, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    before = file_digest(folder / "model.safetensors")
    with pytest.raises(ZeroDivisionError), atomic_folder(folder, overwrite=True):
        raise ZeroDivisionError
    assert file_digest(folder / "model.safetensors") == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_disk_that_refuses_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No space left") as caught, atomic_folder(tmp_path / "run"):
        raise OSError(28, "No space left on device")
    assert caught.value.exit_code == 6
    assert not any(tmp_path.iterdir())


def test_an_output_below_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot be written"), atomic_folder(tmp_path / "file/run"):
        pytest.fail("the block must not run")


def test_files_have_the_permissions_of_the_umask(result: famr.Unlearned, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = result.save(tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o640
    assert stat.S_IMODE((folder / "COMPLETE.json").stat().st_mode) == 0o640


def test_records_hold_no_path_of_this_machine(result: famr.Unlearned, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    for file in folder.rglob("*"):
        if file.suffix in {".json", ".jsonl", ".md"}:
            assert str(tmp_path) not in file.read_text(encoding="utf-8"), file.name


def test_hostile_class_names_stay_text_in_the_model_card(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path
) -> None:
    request = famr.Request(classes=["<script>alert(1)</script>\n# heading | cell"])
    result = famr.forget(
        original, replace(without_three, request=request), alg1(epochs=1), monitor=famr.Monitor(track_retain=False)
    )
    card = (result.save(tmp_path / "run") / "README.md").read_text(encoding="utf-8")
    assert "<script>" not in card
    assert "\n# heading" not in card
