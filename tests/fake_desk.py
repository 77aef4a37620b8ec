"""A desk without a network: hands that write run folders of the right shape at once, and may be killed at any step.

    python tests/fake_desk.py FOLDER

kills a process at every step of a request in turn, lets another finish, and prints what it found, one line a step.
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
from famr.desk.describing import summary
from famr.desk.duplicates import Fingerprint, fingerprints
from famr.desk.lineage import Budget, Look
from famr.desk.records import all_requests, jobs, submit
from famr.desk.running import Manner, run_requests
from famr.desk.scope import Forgotten, Sample, Scope, resolve
from famr.desk.workspace import Settings, create_workspace, open_workspace
from famr.errors import RequestError
from famr.runs.folder import atomic_folder, write_json

DAY = date(2026, 3, 1)
MANNER = Manner({"target": "uniform"})
FACTS = {"spec": "pictures", "match_labels_by_name": False}


def pictures(each: int = 6) -> list[Image.Image]:
    """Noise, so that no two are alike."""
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(3 * each)]


def data_of(made: Sequence[Image.Image]) -> Data:
    names = [f"{'abc'[place % 3]}/{place}.png" for place in range(len(made))]
    targets = torch.tensor([place % 3 for place in range(len(made))])
    return Data("pictures", ("a", "b", "c"), Images.from_source(made.__getitem__, names, targets), None)


class FakeHands:
    """Counts its runs in a file, so that other processes see it too."""

    def __init__(self, counter: Path, made: Sequence[Image.Image] | None = None, loss: float = 0.005) -> None:
        self.opened = data_of(made or pictures())
        self.counter, self.loss = counter, loss
        self.inside: Callable[[], None] = lambda: None
        self.now = Look(6, 0.0, 5.0)

    def data(self) -> Data:
        return self.opened

    def prints(self) -> Sequence[Fingerprint]:
        return fingerprints(self.opened.train)

    def file_of(self, id_: str) -> Path | None:
        file = self.counter.parent / "files" / id_
        return file if file.is_file() else None

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        with atomic_folder(folder) as place:
            write_json(place / "unlearning/request.json", request.to_json())
            self.inside()
            original = {"model": parent, "weights_sha256": "0" * 64}
            record = {"seed": plan["seed"], "drift": 0.5, "original": original, "method": plan["method"]}
            write_json(place / "unlearning/run.json", record)
            scores = {
                name: {"retain_accuracy": 0.9 - lost} for name, lost in (("original", 0), ("unlearned", self.loss))
            }
            write_json(place / "unlearning/metrics.json", scores)
        with self.counter.open("a") as file:
            file.write(f"{parent}\n")

    def look(self, model: str, asked: Mapping[int, Sequence[Sample]]) -> dict[int, Look]:
        return {number: self.now if "run-" in model else Look(6, 1.0, 0.1) for number in asked}


def begin(folder: Path, budget: Budget | None = None) -> FakeHands:
    create_workspace(folder, Settings("first-model", FACTS, budget or Budget()))
    return FakeHands(folder / "count")


def ask(folder: Path, hands: FakeHands, scope: Scope) -> str:
    with open_workspace(folder) as desk:
        found = resolve(scope, hands.data(), Forgotten(), hands.prints, hands.file_of)
        return submit(desk, scope, found, DAY, date(2026, 4, 1))[0].id


def carry_out(folder: Path, hands: FakeHands, *ids: str, on_step: Callable[[str], None] = lambda _: None) -> Any:
    with open_workspace(folder) as desk:
        return run_requests(desk, list(ids) or None, MANNER, hands, DAY, on_step)


def _killed_at(folder: Path, hands: FakeHands, step: int) -> str | None:
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

        hands.inside = lambda: die("inside the run")
        carry_out(folder, hands, "R-0001", on_step=die)
        os._exit(0)
    os.close(writing)
    name = os.read(reading, 1000).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == bool(name), status
    return name or None


def main() -> None:
    place = Path(sys.argv[1])
    for step in range(1, 100):
        folder = place / f"kill-{step}"
        hands = begin(folder)
        ask(folder, hands, Scope(classes=("a",)))
        name = _killed_at(folder, hands, step)
        if name is None:
            return
        with suppress(RequestError):  # the last step: there is nothing left
            carry_out(folder, hands, "R-0001")
        with open_workspace(folder) as desk:
            (record,) = all_requests(desk)
            done = [job.number for job in jobs(desk, "done")]
            unfinished = jobs(desk, "planned", "forgotten", "checked", "described", "failed")
            (last,) = (desk.run_folder(number) for number in done)
            runs = sorted(path.name for path in (folder / "runs").iterdir())
            told = (last / "unlearning/requests.json").read_text(encoding="utf-8")
            right = (
                record.status == "done" and not unfinished and runs == [last.name] and summary(desk, 1)["id"] in told
            )
        made = len(hands.counter.read_text().splitlines())
        again = "refused"
        with suppress(RequestError):
            carry_out(folder, hands, "R-0001")
            again = "done again"
        print(f"{name}: {'finished' if right else 'lost'}, {made} run, second time {again}")


if __name__ == "__main__":
    main()
