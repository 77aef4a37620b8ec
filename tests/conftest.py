"""What several test files share: the digits, and a small ViT that knows them."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

# One thread a process, here and in every process the tests start: the networks are tiny, waiting for each other is not.
os.environ["OMP_NUM_THREADS"] = "1"
# What is imported is kept compiled: without that each of the many processes takes twice as long to begin.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest
import torch

import famr
from famr.cli.main import main
from famr.data import Data
from famr.data.augmentation import Augmentation
from famr.training import Trained

SHARED = Path(__file__).parents[2] / "shared" / "data"
SMALL_VIT = {"img_size": 12, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2}
SHIFTS = Augmentation(smallest_area=0.9, mirror=False)

LONG = (
    "audit/test_audit",
    "engine/test_distributed",
    "bench/test_bench_ranks",
    "test_extending",
    "test_first_edition",
    "certificates/test_certificates",
    "audit/test_audit_shadows",
    "report/test_report",
    "cli/test_resuming",
    "models/test_models",
    "bench/test_bench",
    "test_story",
    "test_fuzz",
    "export/test_export",
    "audit/test_shadows",
    "cli/test_private",
    "unlearn/test_resolve",
    "sisa/test_sisa",
    "baselines/test_baselines",
    "test_package",
    "benchmarks/test_whole_calls",
    "benchmarks/test_paper",
    "faults/test_faults_storage",
    "desk/test_desk",
    "cli/test_forget_command",
    "faults/test_faults_rest",
    "faults/test_faults_weights",
    "unlearn/test_sequence",
    "runs/test_resume",
    "unlearn/test_run_images",
    "desk/test_workspace",
    "audit/test_conversions",
    "baselines/test_descent",
    "cli/test_main",
    "cli/test_missing_extras",
    "desk/test_desk_cli",
    "audit/test_membership_attacks",
    "certificates/test_theory",
    "engine/test_engines",
    "anchors/test_anchors",
    "audit/test_recovery",
    "audit/test_relearning",
    "audit/test_gap_metrics",
)
"""The files that take longest, longest first: they start first, and `make test-fast` leaves them out."""
FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Files go to the workers in the order of `pytest_collection_modifyitems`, not by their number of tests."""
    config.option.loadscopereorder = False
    config.addinivalue_line("markers", "long: in a file that takes long; `make test-fast` leaves it out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {FOLDER / f"{name}.py": index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))
    for item in items:
        if item.path in rank:
            item.add_marker("long")


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def alg1(**changes: Any) -> famr.FAMR:
    """The paper's algorithm with other numbers."""
    return replace(famr.FAMR.paper(), **changes)


def styled(digits: Data) -> Data:
    """Half of the digits in negative: a style that is no class."""
    positions = torch.arange(400)
    train = digits.train.take(positions)
    style = ["negative" if position % 2 else "plain" for position in range(len(digits.train.all_ids))]

    def decode(row: int):  # type: ignore[no-untyped-def]
        image = digits.train.decode(row)
        return image.point(lambda ink: 255 - ink) if style[row] == "negative" else image

    fresh = famr.open_data("digits").train
    images = replace(fresh, decode=decode, all_columns={"style": style})
    assert digits.test is not None
    return replace(digits, train=replace(images, rows=train.rows), test=replace(images, rows=digits.test.rows))


@pytest.fixture(scope="session")
def digits() -> Data:
    return famr.open_data("digits")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Trained]], Trained]:
    """Train a model in one of the test processes; the others wait for it and read it."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def found_or_made(name: str, make: Callable[[], Trained]) -> Trained:
        file = place / f"{name}.trained"
        with (place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                torch.save(make(), file)
        made: Trained = torch.load(file, weights_only=False)
        return made

    return found_or_made


def small_vit(digits: Data, seed: int = 0) -> famr.Classifier:
    """A ViT of two blocks that knows nothing yet."""
    return famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=SMALL_VIT, seed=seed)


@pytest.fixture(scope="session")
def trained(digits: Data, once: Callable[[str, Callable[[], Trained]], Trained]) -> Trained:
    """Trained for a few seconds, it knows 19 digits in 20."""
    training = famr.Training(epochs=20, batch_size=64, learning_rate=3e-3, augmentation=SHIFTS)
    return once("original", lambda: famr.fit(small_vit(digits), digits.train, training, device="cpu"))


@pytest.fixture(scope="session")
def retrained_runs(
    without_three: famr.Splits, digits: Data, once: Callable[[str, Callable[[], Trained]], Trained]
) -> list[Trained]:
    """Three that never saw a three, each from its own seed."""
    retain = without_three.retain
    assert retain is not None
    training = famr.Training(epochs=20, batch_size=64, learning_rate=3e-3, augmentation=SHIFTS)

    def make(seed: int) -> Trained:
        return famr.fit(small_vit(digits, seed), retain, training, seed=seed, device="cpu")

    return [once(f"without-3-{seed}", lambda seed=seed: make(seed)) for seed in range(3)]  # type: ignore[misc]


@pytest.fixture(scope="session")
def retrained(retrained_runs: list[Trained]) -> famr.Classifier:
    """One that never saw a three."""
    return retrained_runs[0].model


@pytest.fixture(scope="session")
def original(trained: Trained) -> famr.Classifier:
    return trained.model


@pytest.fixture(scope="session")
def original_run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.save(tmp_path_factory.mktemp("runs") / "original")


@pytest.fixture(scope="session")
def without_three(digits: Data) -> famr.Splits:
    return famr.split(digits, famr.Request(classes=["3"]))


@pytest.fixture
def linear() -> tuple[torch.nn.Module, torch.Tensor]:
    """A softmax regression in double precision and twelve inputs: the problem on which the theorems hold exactly."""
    generator = torch.Generator().manual_seed(7)
    module = torch.nn.Linear(5, 4).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module, torch.randn(12, 5, generator=generator, dtype=torch.float64)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call `famr` as the shell would, in this process."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["famr", *(str(argument) for argument in arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call
