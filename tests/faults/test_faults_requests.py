"""Faults 1 to 8: a request that cannot be carried out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Outcome
from famr.storage.digests import folder_digests
from fault_table import fault, seen, told
from small import CLASSES, QUICK, save_pictures, save_small

Forget = Callable[..., Outcome]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and pictures, which must not change."""
    folder = tmp_path_factory.mktemp("requests")
    save_small(folder / "model")
    save_pictures(folder / "data")
    return folder


@pytest.fixture
def refused(run: Callable[..., Outcome], inputs: Path, tmp_path: Path) -> Forget:
    """`famr forget` with a request that must be refused, without any change to the inputs."""

    def forget(code: int, *options: object, data: str | None = None) -> Outcome:
        before = folder_digests(inputs)
        source = data or f"folder:{inputs / 'data'}"
        done = run(
            "forget", "--model", inputs / "model", "--data", source, *QUICK, *options, "--output-dir", tmp_path / "o"
        )
        assert done.code == code, done.err
        assert done.err.count("\n  where: ") <= 1
        assert "\n  to do: " in done.err
        assert "Traceback" not in done.err
        assert not (tmp_path / "o").exists()
        assert not list(tmp_path.glob(".o*"))
        assert folder_digests(inputs) == before
        return done

    return forget


@fault(1)
def test_a_filter_that_matches_nothing(refused: Forget, inputs: Path, tmp_path: Path) -> None:
    data = save_pictures(tmp_path / "data")
    (data / "metadata.csv").write_text("file_name,colour\ncat/0.png,red\n", encoding="utf-8")
    done = refused(2, "--concept", "colour=blue", data=f"folder:{data}")
    assert "rows searched" in done.err
    seen(1, told(done.code, done.err))


@fault(2)
def test_a_forget_set_of_everything(refused: Forget) -> None:
    done = refused(2, *(option for name in CLASSES for option in ("--class", name)))
    seen(2, told(done.code, done.err))


@fault(3)
@pytest.mark.parametrize("index", [99, -1])
def test_a_class_out_of_range(refused: Forget, index: int) -> None:
    done = refused(2, f"--class={index}")
    assert "3 classes are known, from 'cat' to 'dog'" in done.err
    seen(3, told(done.code, done.err))


@fault(4)
@pytest.mark.parametrize("name", ["Cat", "kat"])
def test_an_unknown_class_name(refused: Forget, name: str) -> None:
    done = refused(2, "--class", name)
    assert "'cat'" in done.err
    seen(4, told(done.code, done.err))


@fault(6)
@pytest.mark.parametrize("classes", [("cat", "cow"), ("cat", "cow", "dog", "emu")])
def test_more_or_fewer_classes_than_the_head(refused: Forget, tmp_path: Path, classes: tuple[str, ...]) -> None:
    data = save_pictures(tmp_path / "data", 2, classes)
    done = refused(3, "--class", "cat", data=f"folder:{data}")
    assert "only in the" in done.err
    seen(6, told(done.code, done.err))


@fault(7)
def test_an_id_that_is_not_in_the_data(refused: Forget) -> None:
    done = refused(2, "--sample", "cat/99.png")
    seen(7, told(done.code, done.err))


@fault(8)
@pytest.mark.parametrize("samples", [("cat/0.png", "cat/0.png"), ("cat/0.png", "./cat/0.png"), ("0.png",)])
def test_an_id_named_twice_or_fitting_two_files(refused: Forget, tmp_path: Path, samples: tuple[str, ...]) -> None:
    data = save_pictures(tmp_path / "data/train").parent
    save_pictures(data / "test", 1)
    done = refused(2, *(part for name in samples for part in ("--sample", name)), data=f"folder:{data}")
    seen(8, told(done.code, done.err))
