"""The desk: a request is recorded once and carried out once, whatever dies in between; chains add up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

import famr
from fake_desk import DAY, FACTS, OPTIONS, FakeBackend, ask, begin, carry_out, noise_images
from famr.data import Data
from famr.desk.chain import Budget
from famr.desk.deadlines import one_month_after
from famr.desk.duplicates import Fingerprint, fingerprints, image_fingerprint, matches
from famr.desk.lookup import Forgotten, find_samples
from famr.desk.recheck import Measurement, stays_forgotten
from famr.desk.records import all_requests, duplicates_of, find_request, jobs, samples_of, submit_request
from famr.desk.running import RunOptions, run_requests
from famr.desk.scope import Example, Scope, examples_in
from famr.desk.summaries import chain_status, recheck_after
from famr.desk.workspace import FILE, Settings, create_workspace, open_workspace
from famr.errors import CheckpointError, GateError, NumericsError, RequestError, StorageError
from famr.storage.digests import check_complete, file_digest

HOSTILE = ("<script>alert(1)</script>", "[/x]", "$\\frac$", "=cmd", "two\nlines", "\u202egnp.exe")


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def as_jpeg(image: Image.Image, quality: int = 60) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue()))


# Records


def test_the_same_request_in_another_order_is_one_request(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    first = ask(tmp_path, backend, Scope(names=("a/0.png", "b/1.png")))
    assert ask(tmp_path, backend, Scope(names=("b/1.png", "a/0.png"))) == first
    assert ask(tmp_path, backend, Scope(names=("b/1.png",))) != first
    one, other = (Example(name, image_fingerprint(pixels(noise_images()[0]))) for name in ("mine.png", "IMG_1.png"))
    assert ask(tmp_path, backend, Scope(examples=(one,))) == ask(tmp_path, backend, Scope(examples=(other,)))
    with open_workspace(tmp_path) as desk:
        assert [record.id for record in all_requests(desk)] == ["R-0001", "R-0002", "R-0003"]


def test_a_request_that_is_done_stays_the_same_request(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    carry_out(tmp_path, backend, "R-0001")
    assert ask(tmp_path, backend, Scope(classes=("a",))) == "R-0001"
    with open_workspace(tmp_path) as desk:
        assert find_request(desk, "r-0001").status == "done"


def test_concurrent_submissions_of_one_request_make_one_record(tmp_path: Path) -> None:
    begin(tmp_path)
    ids: list[str] = []

    def submit() -> None:
        with open_workspace(tmp_path) as desk:
            ids.append(submit_request(desk, Scope(classes=("a",)), [], DAY, DAY)[0].id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids == ["R-0001"] * 8


def test_scopes_come_back_from_json() -> None:
    example = Example("x.png", image_fingerprint(pixels(noise_images()[0])))
    for scope in (Scope(classes=HOSTILE), Scope(names=HOSTILE, hashes=("a" * 64,), examples=(example,))):
        assert Scope.from_json(json.loads(json.dumps(scope.to_json()))) == scope


@pytest.mark.parametrize("given", [{}, {"classes": ("a",), "names": ("b",)}, {"hashes": ("abc",)}])
def test_a_scope_is_classes_or_samples(given: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(RequestError):
        Scope(**given)  # type: ignore[arg-type]


def test_deadlines_end_with_the_month() -> None:
    ends = {(1, 31): (2, 28), (3, 31): (4, 30), (4, 30): (5, 30), (12, 31): (1, 31)}
    for (month, day), (next_month, last) in ends.items():
        deadline = one_month_after(date(2026, month, day))
        assert (deadline.month, deadline.day) == (next_month, last)


# Searching the data


def search(scope: Scope, backend: FakeBackend, before: Forgotten | None = None) -> dict[str, str | None]:
    samples = find_samples(scope, backend, before or Forgotten())
    return {sample.asked: sample.id if sample.state == "found" else sample.state for sample in samples}


def test_samples_are_found_by_id_path_position_and_hash(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path / "count")
    digest = backend.fingerprints()[4].pixels
    scope = Scope(names=("a/0.png", "/elsewhere/b/1.png", "2", "99", "no.png", *HOSTILE), hashes=(digest, "f" * 64))
    expected: dict[str, str | None] = dict.fromkeys(("99", "no.png", *HOSTILE, "f" * 64), "not found")
    hits = {"a/0.png": "a/0.png", "/elsewhere/b/1.png": "b/1.png", "2": "c/2.png", digest: "b/4.png"}
    assert search(scope, backend) == expected | hits


def test_a_path_that_fits_two_images_is_refused(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path / "count")
    ids = ["x/1.png", "y/1.png", *backend.opened.train.ids[2:]]
    backend.opened = replace(backend.opened, train=replace(backend.opened.train, all_ids=ids))
    with pytest.raises(RequestError, match="fits 2"):
        search(Scope(names=("1.png",)), backend)


def test_files_are_found_by_their_own_hash(tmp_path: Path) -> None:
    (tmp_path / "data/cat").mkdir(parents=True)
    for index, image in enumerate(noise_images()[:3]):
        image.save(tmp_path / f"data/cat/{index}.png")
    data = famr.open_data(f"folder:{tmp_path / 'data'}")
    expected = data.train.ids[0]

    class Folder:
        def data(self) -> Data:
            return data

        def fingerprints(self) -> list[Fingerprint]:
            return fingerprints(data.train)

        def file_of(self, id_: str) -> Path:
            return tmp_path / "data" / id_

    (sample,) = find_samples(Scope(hashes=(file_digest(tmp_path / "data" / expected),)), Folder(), Forgotten())
    assert (sample.state, sample.id) == ("found", expected)


def test_images_no_larger_than_a_thumbnail_are_found_when_enlarged(digits: Data) -> None:
    images = [digits.train.decode(int(row)).convert("RGB") for row in digits.train.rows[:200]]
    known = [image_fingerprint(np.asarray(image)) for image in images]
    larger = [image_fingerprint(np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC))) for image in images]
    pairs = matches(larger, known)
    assert len(pairs) > 180
    assert all(pair.first == pair.second for pair in pairs)


def test_examples_are_found_exactly_and_nearly(digits: Data, tmp_path: Path) -> None:
    images = [digits.train.decode(int(row)).convert("RGB").resize((32, 32)) for row in digits.train.rows[:300]]
    changed = {
        "same": images[7],
        "jpeg": as_jpeg(images[8], quality=5),
        "larger": images[9].resize((64, 64), Image.Resampling.BICUBIC),
        "smaller": images[12].resize((10, 10), Image.Resampling.BICUBIC),
        "brighter": ImageEnhance.Brightness(images[10]).enhance(0.9),
        "mirrored": images[11].transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "another": noise_images()[0],
    }
    folder = tmp_path / "handed over"
    folder.mkdir()
    for name, image in changed.items():
        image.save(folder / f"{name}.png")
    backend = FakeBackend(tmp_path / "count", images)
    ids = backend.data().train.ids
    samples = find_samples(Scope(examples=examples_in(folder)), backend, Forgotten())
    by_name = {sample.asked: sample for sample in samples}
    expected = {"same.png": 7, "jpeg.png": 8, "larger.png": 9, "brighter.png": 10, "smaller.png": 12}
    assert {name: by_name[name].id for name in expected} == {name: ids[index] for name, index in expected.items()}
    assert by_name["same.png"].similarity is None
    assert by_name["jpeg.png"].similarity is not None
    assert by_name["mirrored.png"].state == by_name["another.png"].state == "not found"
    assert len(samples) == len(changed)  # nothing else is taken for a copy


def test_matches_agree_with_a_slow_comparison() -> None:
    images = [*noise_images(), *(as_jpeg(image) for image in noise_images()[:3]), Image.new("RGB", (9, 9), "white")]
    prints = [image_fingerprint(pixels(image)) for image in images]
    slow = []
    for first, one in enumerate(prints):
        for second, other in enumerate(prints):
            a, b = (np.frombuffer(print_.thumbnail, np.uint8).astype(float) for print_ in (one, other))
            alike = a.std() > 0 and b.std() > 0 and np.corrcoef(a, b)[0, 1] >= 0.985
            if alike or one.pixels == other.pixels:
                slow.append((first, second))
    assert [(match.first, match.second) for match in matches(prints, prints)] == slow
    assert (0, len(noise_images())) in slow  # the JPEG of the first


def test_copies_of_forgotten_images_are_listed_and_included_only_when_asked(tmp_path: Path) -> None:
    images = noise_images()
    images[3], images[4] = images[0].copy(), as_jpeg(images[0])
    for include in (False, True):
        folder = tmp_path / str(include)
        begin(folder)
        backend = FakeBackend(folder / "count", images)
        ask(folder, backend, Scope(names=("a/0.png",)))
        with open_workspace(folder) as desk:
            run_requests(desk, ["R-0001"], replace(OPTIONS, include_duplicates=include), backend, DAY)
            copies = duplicates_of(desk, 1)
            request = json.loads((desk.run_folder(1) / "unlearning/request.json").read_text(encoding="utf-8"))
            described = json.loads((desk.run_folder(1) / "unlearning/requests.json").read_text(encoding="utf-8"))
        assert [(copy.retained, copy.similarity is None, copy.included) for copy in copies] == [
            ("a/3.png", True, include),
            ("b/4.png", False, include),
        ]
        assert set(request["samples"]) == ({"a/0.png", "a/3.png", "b/4.png"} if include else {"a/0.png"})
        assert [copy["retained"] for copy in described["duplicates"]] == ["a/3.png", "b/4.png"]


# Carrying out


def test_a_process_killed_at_any_step_is_finished_by_the_next_once(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "fake_desk.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = ["searched", "planned", "inside the run", "run written", "forgotten", "measured", "checked"]
    assert lines == [
        f"{n}: finished, 1 run, second time refused" for n in (*names, "requests.json written", "described", "done")
    ]


def test_a_process_killed_between_a_file_and_its_seal_is_finished(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))

    class Stopped(BaseException):
        pass

    def stop(step: str) -> None:
        if step == "checked":
            raise Stopped

    with pytest.raises(Stopped):
        carry_out(tmp_path, backend, "R-0001", on_step=stop)
    with open_workspace(tmp_path) as desk:
        folder = desk.run_folder(1)
    (folder / "unlearning/requests.json").write_text("half", encoding="utf-8")
    carry_out(tmp_path, backend, "R-0001")
    check_complete(folder)
    assert (
        json.loads((folder / "unlearning/requests.json").read_text(encoding="utf-8"))["requests"][0]["id"] == "R-0001"
    )


def test_open_requests_are_combined_into_one_run_a_kind(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    for scope in (
        Scope(classes=("a",)),
        Scope(names=("b/1.png",)),
        Scope(classes=("c",)),
        Scope(names=("1", "b/4.png")),
    ):
        ask(tmp_path, backend, scope)
    outcome = carry_out(tmp_path, backend)
    assert outcome.jobs == (1, 2)
    with open_workspace(tmp_path) as desk:
        requests = [
            json.loads((desk.run_folder(number) / "unlearning/request.json").read_text(encoding="utf-8"))
            for number in (1, 2)
        ]
        parents = backend.counter.read_text().splitlines()
        assert {record.status for record in all_requests(desk)} == {"done"}
        assert parents == ["first-model", str(desk.run_folder(1))]
    assert requests == [
        {"kind": "class", "classes": ["a", "c"]},
        {"kind": "samples", "samples": ["b/1.png", "b/4.png"]},
    ]


def test_what_was_forgotten_before_is_not_forgotten_again(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    ask(tmp_path, backend, Scope(names=("a/0.png", "b/1.png")))
    ask(tmp_path, backend, Scope(names=("a/3.png", "no.png")))
    ask(tmp_path, backend, Scope(names=("nobody.png",)))
    outcome = carry_out(tmp_path, backend)
    assert outcome.nothing_to_do == ("R-0003", "R-0004")
    with open_workspace(tmp_path) as desk:
        notes = {record.id: (record.status, record.note) for record in all_requests(desk)}
        states = {sample.asked: sample.state for sample in samples_of(desk, 2)}
    assert notes["R-0003"] == ("nothing to do", "all of it was forgotten before")
    assert notes["R-0004"] == ("nothing to do", "nothing of it is in the data")
    assert states == {"a/0.png": "forgotten before", "b/1.png": "found"}


def test_a_failed_run_leaves_the_request_open_with_the_reason(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))

    def break_down() -> None:
        raise NumericsError("The loss is not a number.")

    backend.while_running = break_down
    with pytest.raises(NumericsError):
        carry_out(tmp_path, backend, "R-0001")
    with open_workspace(tmp_path) as desk:
        record = find_request(desk, "R-0001")
        assert (record.status, record.note) == ("open", "The loss is not a number.")
        assert not list((tmp_path / "runs").glob("*"))
    backend.while_running = lambda: None
    assert carry_out(tmp_path, backend, "R-0001").jobs == (2,)


def test_a_closed_or_unknown_request_cannot_be_run(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    with pytest.raises(RequestError, match="No request is open"):
        carry_out(tmp_path, backend)
    ask(tmp_path, backend, Scope(classes=("a",)))
    carry_out(tmp_path, backend, "R-0001")
    with pytest.raises(RequestError, match="closed since 2026-03-01: done, forgotten by run-0001"):
        carry_out(tmp_path, backend, "R-0001")
    with pytest.raises(RequestError, match=r"no request 'R-0002'\. Did you mean R-0001"):
        carry_out(tmp_path, backend, "R-0002")
    assert len(backend.counter.read_text().splitlines()) == 1


def test_only_one_process_carries_out_requests(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    with (
        open_workspace(tmp_path) as desk,
        desk.exclusive(),
        pytest.raises(StorageError, match="Another process"),
    ):
        carry_out(tmp_path, backend, "R-0001")
    assert carry_out(tmp_path, backend, "R-0001").jobs == (1,)


def test_another_run_at_the_path_of_the_run_is_refused(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    backend.forget("elsewhere", famr.Request(classes=["b"]), {"seed": 0, "method": {}}, tmp_path / "runs/run-0001")
    with pytest.raises(CheckpointError, match="another run"):
        carry_out(tmp_path, backend, "R-0001")
    assert carry_out(tmp_path, backend, "R-0001").jobs == (2,)


def test_a_missing_damaged_or_empty_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no workspace"), open_workspace(tmp_path / "none"):
        pass
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE).write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StorageError, match="cannot be read"), open_workspace(tmp_path / "broken"):
        pass
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / FILE).touch()
    with pytest.raises(RequestError, match="format 0"), open_workspace(tmp_path / "empty"):
        pass


def test_creating_a_workspace_twice_keeps_the_first(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    create_workspace(tmp_path, Settings("other", FACTS, Budget()))
    with open_workspace(tmp_path) as desk:
        assert desk.settings.model == "first-model"
        assert len(all_requests(desk)) == 1


# Lineage and budget


def test_a_spent_budget_asks_for_retraining_and_stops_the_next_run(tmp_path: Path) -> None:
    backend = begin(tmp_path, Budget(retained_loss=0.009))
    for name in ("a", "b", "c"):
        ask(tmp_path, backend, Scope(classes=(name,)))
    carry_out(tmp_path, backend, "R-0001")
    with open_workspace(tmp_path) as desk:
        assert "within budget" in chain_status(desk)
    carry_out(tmp_path, backend, "R-0002")
    with open_workspace(tmp_path) as desk:
        assert chain_status(desk) == (
            "Chain of 2 runs: drift at most 1, retained accuracy lost 1.00 of 0.90 points; "
            "retrain now, the budget is spent."
        )
        lineage = json.loads((desk.run_folder(2) / "unlearning/requests.json").read_text(encoding="utf-8"))["lineage"]
    assert lineage["retrain_now"]
    assert lineage["parent"] == "run-0001"
    assert lineage["runs"] == ["run-0001", "run-0002"]
    assert lineage["drift_at_most"] == 1.0
    with pytest.raises(GateError, match="retrain now"):
        carry_out(tmp_path, backend, "R-0003")
    with open_workspace(tmp_path) as desk:
        assert find_request(desk, "R-0003").status == "open"
        assert len(jobs(desk, "done", "planned", "failed")) == 2
        run_requests(desk, ["R-0003"], RunOptions({}, beyond_budget=True), backend, DAY)
        assert find_request(desk, "R-0003").status == "done"


def test_a_drift_budget_is_spent_by_the_sum_of_drifts(tmp_path: Path) -> None:
    backend = begin(tmp_path, Budget(retained_loss=None, drift=0.9))
    for name in ("a", "b", "c"):
        ask(tmp_path, backend, Scope(classes=(name,)))
    carry_out(tmp_path, backend, "R-0001")
    carry_out(tmp_path, backend, "R-0002")
    with pytest.raises(GateError, match=r"drift at most 1 of 0\.9"):
        carry_out(tmp_path, backend, "R-0003")


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_is_a_number_above_zero(wrong: float) -> None:
    with pytest.raises(RequestError):
        Budget(retained_loss=wrong)


def test_a_class_that_comes_back_after_a_later_run_is_reported(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    ask(tmp_path, backend, Scope(classes=("b",)))
    carry_out(tmp_path, backend, "R-0001")
    backend.now = Measurement(6, 0.5, 1.0)
    carry_out(tmp_path, backend, "R-0002")
    with open_workspace(tmp_path) as desk:
        assert recheck_after(desk, 1) == {}
        assert recheck_after(desk, 2)["R-0001"][0] == "came back"
        described = json.loads((desk.run_folder(2) / "unlearning/requests.json").read_text(encoding="utf-8"))
    assert described["earlier"] == [
        {"id": "R-0001", "verdict": "came back", "says": "accuracy 0.0 % after its run, 50.0 % now"}
    ]


def test_samples_come_back_when_their_cross_entropy_returns() -> None:
    before, then = Measurement(9, 1.0, 0.1), Measurement(9, 1.0, 1.1)
    assert stays_forgotten("samples", before, then, Measurement(9, 1.0, 1.01))[0] == "still forgotten"
    assert stays_forgotten("samples", before, then, Measurement(9, 1.0, 0.9))[0] == "came back"
    assert stays_forgotten("samples", then, before, Measurement(9, 1.0, 0.9))[0] == "cannot tell"
    assert stays_forgotten("class", None, then, Measurement(0, None, None))[0] == "cannot tell"
    assert stays_forgotten("class", None, Measurement(9, None, None), Measurement(9, None, None))[0] == "cannot tell"


def test_a_chain_with_a_missing_run_is_refused(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(classes=("a",)))
    carry_out(tmp_path, backend, "R-0001")
    (tmp_path / "runs/run-0001/unlearning/run.json").unlink()
    with open_workspace(tmp_path) as desk, pytest.raises(CheckpointError, match="missing or damaged"):
        chain_status(desk)
