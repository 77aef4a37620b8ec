"""Shadow models: balanced, deterministic, resumable, cached by content."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import famr
from famr.audit import shadows as module
from famr.audit.shadows import Method, Setting, ShadowDone, Shadows, halves, train_references, train_shadows
from famr.data import Data, Images
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.errors import NumericsError, RequestError, StorageError

CPU = pick_device("cpu")
BRIEF = famr.Training(epochs=1, batch_size=16, learning_rate=1e-2, augmentation=None)


def tiny(seed: int) -> famr.Classifier:
    """One hidden layer on 8×8 pixels."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    preparation = famr.Preprocessing(resize=8, crop=(8, 8), mean=(0.5,), std=(0.5,))
    return famr.Classifier(network, tuple("0123456789"), preparation)


@pytest.fixture
def setting(digits: Data) -> Setting:
    rows = torch.arange(120)
    pool, base, held_out = (digits.train.take(part) for part in (rows[:40], rows[40:80], rows[80:]))
    return Setting(tiny, pool, base, held_out, BRIEF)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str]]:
    """The ids of the images of every training from here on."""
    done: list[frozenset[str]] = []
    real = module.fit

    def counted(model: famr.Classifier, images: Images, *rest: object, **more: object) -> object:
        done.append(frozenset(images.ids))
        return real(model, images, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "fit", counted)
    return done


def same(first: Shadows, second: Shadows) -> bool:
    return torch.equal(first.logits, second.logits) and torch.equal(first.held_out_logits, second.held_out_logits)


# halves


@pytest.mark.parametrize("images", [2, 7, 100])
def test_each_image_is_in_half_of_the_shadows_and_each_shadow_has_half_of_the_images(images: int) -> None:
    seen = halves(images, 8, seed=3)
    assert seen.sum(dim=0).tolist() == [4] * images
    assert {int(count) for count in seen.sum(dim=1)} <= {images // 2, images - images // 2}


def test_halves_are_drawn_with_the_seed_and_more_shadows_begin_with_the_same() -> None:
    assert torch.equal(halves(50, 4, seed=1), halves(50, 8, seed=1)[:4])
    assert not torch.equal(halves(50, 4, seed=1), halves(50, 4, seed=2))
    together = halves(400, 64, seed=0).double()
    assert (
        float(torch.corrcoef(together.T).fill_diagonal_(0).mean().abs()) < 0.01
    )  # no two images are in the same half more often than by chance


@pytest.mark.parametrize("count", [0, 1, 3])
def test_shadows_come_in_pairs(count: int) -> None:
    with pytest.raises(RequestError, match="pairs"):
        halves(10, count, seed=0)


# training, cache, resuming


def test_a_shadow_is_what_fit_makes_of_its_half(setting: Setting, tmp_path: Path) -> None:
    found = train_shadows(setting, 2, tmp_path, device="cpu")
    assert found.logits.shape == (2, 40, 10)
    assert found.held_out_logits.shape == (2, 40, 10)
    assert torch.equal(found.targets, setting.pool.targets)
    for number in range(2):
        seed = module.shadow_seed(0, f"shadow {number}")
        half = setting.pool.where(found.seen[number])
        assert setting.base is not None
        assert setting.held_out is not None
        both = module.concatenate_images(half, setting.base)
        both = both.take(torch.tensor(sorted(range(len(both)), key=both.ids.__getitem__)))
        model = famr.fit(tiny(seed), both, BRIEF, seed=seed, device="cpu").model
        torch.testing.assert_close(predict(model, setting.pool, CPU).logits, found.logits[number])
        torch.testing.assert_close(predict(model, setting.held_out, CPU).logits, found.held_out_logits[number])


def test_a_trained_shadow_is_read_from_the_cache(
    setting: Setting, tmp_path: Path, trainings: list[frozenset[str]]
) -> None:
    first = train_shadows(setting, 2, tmp_path, device="cpu")
    events: list[ShadowDone] = []
    again = train_shadows(setting, 4, tmp_path, device="cpu", on_shadow=events.append)
    assert len(trainings) == 4  # the first two were in the cache
    assert [event.cached for event in events] == [True, True, False, False]
    assert torch.equal(again.logits[:2], first.logits)
    elsewhere = train_shadows(setting, 4, tmp_path / "other", device="cpu")
    assert same(again, elsewhere)
    assert not [
        file for file in tmp_path.iterdir() if file.is_file() and not file.name.endswith(".answers.safetensors")
    ]


def test_whatever_changes_a_shadow_changes_its_key(
    setting: Setting, digits: Data, tmp_path: Path, trainings: list[frozenset[str]]
) -> None:
    train_shadows(setting, 2, tmp_path, device="cpu")

    def started_elsewhere(seed: int) -> famr.Classifier:
        return tiny(seed + 1)

    def less_ink(row: int):  # type: ignore[no-untyped-def]
        return digits.train.decode(row).point(lambda ink: ink // 2)

    fresh = famr.open_data("digits").train
    darker = replace(fresh, decode=less_ink, rows=setting.pool.rows)
    relabelled = setting.pool.with_targets([1, 0, *range(2, 10)])
    variants = [
        replace(setting, start=started_elsewhere),
        replace(setting, training=replace(BRIEF, learning_rate=2e-2)),
        replace(setting, seed=1),
        replace(setting, base=None),
        replace(setting, pool=darker),
        replace(setting, pool=relabelled),
        replace(setting, held_out=None),  # fewer images evaluated
        replace(setting, held_out=digits.train.take(torch.arange(200, 240))),  # other images evaluated
    ]
    for count, variant in enumerate(variants, start=2):
        train_shadows(variant, 2, tmp_path, device="cpu")
        assert len(trainings) == 2 * count


def test_training_does_not_depend_on_the_order_of_the_images(setting: Setting, tmp_path: Path) -> None:
    assert setting.base is not None
    reversed_base = setting.base.take(torch.arange(39, -1, -1))
    first = train_references(setting, 1, tmp_path / "a", device="cpu")
    second = train_references(replace(setting, base=reversed_base), 1, tmp_path / "b", device="cpu")
    assert same(first, second)


def test_an_interrupted_run_resumes(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_shadows(setting, 6, tmp_path / "whole", device="cpu")
    real, calls = module.fit, []

    def until(stop: int) -> Callable[..., object]:
        def counted(*rest: object, **more: object) -> object:
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return real(*rest, **more)  # type: ignore[arg-type]

        return counted

    monkeypatch.setattr(module, "fit", until(4))
    with pytest.raises(KeyboardInterrupt):
        train_shadows(setting, 6, tmp_path / "cut", device="cpu")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) == 3
    monkeypatch.setattr(module, "fit", until(0))
    assert same(train_shadows(setting, 6, tmp_path / "cut", device="cpu"), whole)
    assert len(calls) == 4 + 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_logits_are_computed_again(
    setting: Setting, tmp_path: Path, trainings: list[frozenset[str]], damage: str
) -> None:
    first = train_shadows(setting, 2, tmp_path, device="cpu")
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    content = file.read_bytes()
    bad = {"cut": content[:-40], "flipped": content[:-1] + bytes([content[-1] ^ 1]), "empty": b""}[damage]
    file.write_bytes(bad)
    assert same(train_shadows(setting, 2, tmp_path, device="cpu"), first)
    assert len(trainings) == 3
    assert file.read_bytes() == content


SCRIPT = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_shadows import BRIEF, tiny
from famr.audit.shadows import Setting, train_shadows
from famr.data import open_data
setting = Setting(tiny, open_data("digits").train.take(torch.arange(40)), training=BRIEF)
events = []
found = train_shadows(setting, 60, Path(sys.argv[1]), device="cpu", on_shadow=events.append)
print(sum(not event.cached for event in events), float(found.logits.double().sum()))
"""


def test_two_processes_share_the_work(digits: Data, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", SCRIPT, str(cache), str(Path(__file__).parent)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not cache.exists() and other.poll() is None:
        time.sleep(0.02)
    setting = Setting(tiny, digits.train.take(torch.arange(40)), training=BRIEF)
    events: list[ShadowDone] = []
    found = train_shadows(setting, 60, cache, device="cpu", on_shadow=events.append)
    trained, total = other.communicate(timeout=120)[0].split()
    ours = sum(not event.cached for event in events)
    assert other.returncode == 0
    assert ours + int(trained) == 60  # none was trained twice
    assert float(total) == float(found.logits.double().sum())
    assert sorted(event.number for event in events) == list(range(60))


def test_a_shadow_that_another_process_works_on_comes_last(setting: Setting, tmp_path: Path) -> None:
    import fcntl

    key = module.ShadowTrainer(setting, tmp_path, None, False, "cpu").key(
        halves(40, 4, 0)[0], module.shadow_seed(0, "shadow 0")
    )
    with (tmp_path / f"{key}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        order: list[int] = []

        def note(event: ShadowDone) -> None:
            order.append(event.number)
            if len(order) == 3:
                fcntl.flock(held, fcntl.LOCK_UN)

        train_shadows(setting, 4, tmp_path, device="cpu", on_shadow=note)
    assert order == [1, 2, 3, 0]


# unlearning


def test_each_shadow_unlearns_the_half_it_saw(
    setting: Setting, tmp_path: Path, trainings: list[frozenset[str]]
) -> None:
    calls: list[tuple[list[str], list[str]]] = []

    def shift(model: famr.Classifier, forget: Images, retain: Images | None, seed: int) -> famr.Classifier:
        assert retain is not None
        calls.append((forget.ids, retain.ids))
        changed = model.copy()
        assert isinstance(changed.module, nn.Sequential)
        with torch.no_grad():
            changed.module[3].bias += 1.0  # type: ignore[operator]
        return changed

    plain = train_shadows(setting, 2, tmp_path, keep_weights=True, device="cpu")
    unlearned = train_shadows(setting, 2, tmp_path, method=Method("shift by 1", shift), device="cpu")
    assert len(trainings) == 2  # from the kept weights
    torch.testing.assert_close(unlearned.logits, plain.logits + 1)
    assert setting.base is not None
    for number in range(2):
        assert calls[number] == (setting.pool.where(plain.seen[number]).ids, setting.base.ids)
    train_shadows(setting, 2, tmp_path, method=Method("shift by 1", shift), device="cpu")
    assert len(calls) == 2
    train_shadows(setting, 2, tmp_path, method=Method("another", shift), device="cpu")
    assert len(calls) == 4

    afresh = train_shadows(setting, 2, tmp_path / "no weights", method=Method("shift by 1", shift), device="cpu")
    assert torch.equal(afresh.logits, unlearned.logits)
    for file in tmp_path.glob("*.weights.safetensors"):
        file.write_bytes(b"damaged")
    train_shadows(setting, 2, tmp_path, method=Method("a third", shift), device="cpu")
    assert len(trainings) == 2 + 2 + 2


def test_references_never_saw_the_pool(setting: Setting, tmp_path: Path, trainings: list[frozenset[str]]) -> None:
    found = train_references(setting, 2, tmp_path, device="cpu")
    assert setting.base is not None
    assert trainings == [frozenset(setting.base.ids)] * 2
    assert not bool(found.seen.any())
    assert not torch.equal(found.logits[0], found.logits[1])


# bad input


def test_bad_input_is_refused(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="given twice"):
        replace(setting, held_out=setting.pool)
    with pytest.raises(RequestError, match="at least two"):
        replace(setting, pool=setting.pool.take(torch.tensor([0])))
    with pytest.raises(RequestError, match="nothing to train on"):
        train_references(replace(setting, base=None), 2, tmp_path)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cache"):
        train_shadows(setting, 2, tmp_path / "file", device="cpu")


def test_logits_that_are_not_finite_are_not_cached(setting: Setting, tmp_path: Path) -> None:
    def ruin(model: famr.Classifier, forget: Images, retain: Images | None, seed: int) -> famr.Classifier:
        ruined = model.copy()
        with torch.no_grad():
            next(ruined.module.parameters()).fill_(torch.nan)
        return ruined

    with pytest.raises(NumericsError, match="finite"):
        train_shadows(setting, 2, tmp_path, method=Method("ruin", ruin), device="cpu")
    assert not list(tmp_path.glob("*.safetensors"))
