"""A desk without a network: its backend writes run folders of the right shape at once; it may be killed at any step.

    python tests/fake_desk.py FOLDER

kills a process at each step of a request in turn, lets another one finish, and prints one line per step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from famr.data import Data, Images
from famr.data.request import Request
from famr.desk.chain import Budget
from famr.desk.duplicates import Fingerprint, fingerprints
from famr.desk.lookup import Forgotten, Sample, find_samples
from famr.desk.recheck import Measurement
from famr.desk.records import all_requests, jobs, submit_request
from famr.desk.running import RunOptions, run_requests
from famr.desk.scope import Scope
from famr.desk.summaries import request_summary
from famr.desk.workspace import Settings, create_workspace, open_workspace
from famr.errors import RequestError
from famr.runs.folder import atomic_folder, write_json

DAY = date(2026, 3, 1)
OPTIONS = RunOptions({"target": "uniform"})
FACTS = {"spec": "pictures", "match_labels_by_name": False}


def noise_images(per_class: int = 6) -> list[Image.Image]:
    """Noise, so that no two are alike."""
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(3 * per_class)]


def data_of(images: Sequence[Image.Image]) -> Data:
    names = [f"{'abc'[index % 3]}/{index}.png" for index in range(len(images))]
    targets = torch.tensor([index % 3 for index in range(len(images))])
    return Data("pictures", ("a", "b", "c"), Images.from_source(images.__getitem__, names, targets), None)


class FakeBackend:
    """Counts its runs in a file, so that other processes see the count too."""

    def __init__(self, counter: Path, images: Sequence[Image.Image] | None = None, loss: float = 0.005) -> None:
        self.opened = data_of(images or noise_images())
        self.counter, self.loss = counter, loss
        self.while_running: Callable[[], None] = lambda: None
        self.now = Measurement(6, 0.0, 5.0)

    def data(self) -> Data:
        return self.opened

    def fingerprints(self) -> Sequence[Fingerprint]:
        return fingerprints(self.opened.train)

    def file_of(self, id_: str) -> Path | None:
        file = self.counter.parent / "files" / id_
        return file if file.is_file() else None

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        with atomic_folder(folder) as staging:
            write_json(staging / "unlearning/request.json", request.to_json())
            self.while_running()
            original = {"model": parent, "weights_sha256": "0" * 64}
            record = {"seed": plan["seed"], "drift": 0.5, "original": original, "method": plan["method"]}
            write_json(staging / "unlearning/run.json", record)
            scores = {
                name: {"retain_accuracy": 0.9 - lost} for name, lost in (("original", 0), ("unlearned", self.loss))
            }
            write_json(staging / "unlearning/metrics.json", scores)
        with self.counter.open("a") as file:
            file.write(f"{parent}\n")

    def measure(self, model: str, samples: Mapping[int, Sequence[Sample]]) -> dict[int, Measurement]:
        return {number: self.now if "run-" in model else Measurement(6, 1.0, 0.1) for number in samples}


def begin(folder: Path, budget: Budget | None = None) -> FakeBackend:
    create_workspace(folder, Settings("first-model", FACTS, budget or Budget()))
    return FakeBackend(folder / "count")


def ask(folder: Path, backend: FakeBackend, scope: Scope) -> str:
    with open_workspace(folder) as desk:
        samples = find_samples(scope, backend, Forgotten())
        return submit_request(desk, scope, samples, DAY, date(2026, 4, 1))[0].id


def carry_out(folder: Path, backend: FakeBackend, *ids: str, on_step: Callable[[str], None] = lambda _: None) -> Any:
    with open_workspace(folder) as desk:
        return run_requests(desk, list(ids) or None, OPTIONS, backend, DAY, on_step)


def _killed_at(folder: Path, backend: FakeBackend, step: int) -> str | None:
    """Fork a process that dies, by a signal, at its `step`th step. Its name; None if there are not so many."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def die(name: str) -> None:
            nonlocal count
            count += 1
            if count == step:
                os.write(writing, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)

        backend.while_running = lambda: die("inside the run")
        carry_out(folder, backend, "R-0001", on_step=die)
        os._exit(0)
    os.close(writing)
    name = os.read(reading, 1000).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == bool(name), status
    return name or None


def main() -> None:
    root = Path(sys.argv[1])
    for step in range(1, 100):
        folder = root / f"kill-{step}"
        backend = begin(folder)
        ask(folder, backend, Scope(classes=("a",)))
        name = _killed_at(folder, backend, step)
        if name is None:
            return
        with suppress(RequestError):  # the last step: there is nothing left
            carry_out(folder, backend, "R-0001")
        with open_workspace(folder) as desk:
            (record,) = all_requests(desk)
            done = [job.number for job in jobs(desk, "done")]
            unfinished = jobs(desk, "planned", "forgotten", "checked", "described", "failed")
            (last,) = (desk.run_folder(number) for number in done)
            runs = sorted(path.name for path in (folder / "runs").iterdir())
            described = (last / "unlearning/requests.json").read_text(encoding="utf-8")
            complete = (
                record.status == "done"
                and not unfinished
                and runs == [last.name]
                and request_summary(desk, 1)["id"] in described
            )
        run_count = len(backend.counter.read_text().splitlines())
        again = "refused"
        with suppress(RequestError):
            carry_out(folder, backend, "R-0001")
            again = "done again"
        print(f"{name}: {'finished' if complete else 'lost'}, {run_count} run, second time {again}")


if __name__ == "__main__":
    main()
