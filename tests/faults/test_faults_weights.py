"""Faults 21 to 29 and 53: weights that do not fit, are damaged or malicious; libraries of different builds."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import famr
from conftest import Outcome
from famr.errors import CheckpointError, RequestError
from famr.models.weights import read_weights
from fault_table import fault, seen, told
from small import ARCHITECTURE, ARGUMENTS, AS_OPTIONS, QUICK, save_pictures, save_small, save_tensors, small_model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pictures(tmp_path_factory.mktemp("data") / "data", 3)


Command = Callable[..., Outcome]


@pytest.fixture
def refused(run: Callable[..., Outcome], data: Path, tmp_path: Path) -> Command:
    """`famr forget` with a weights file that must be refused."""

    def forget(weights: Path) -> Outcome:
        before = weights.read_bytes()
        options = (
            "--model",
            ARCHITECTURE,
            *AS_OPTIONS,
            "--weights",
            weights,
            "--data",
            f"folder:{data}",
            "--class",
            "cat",
        )
        done = run("forget", *options, *QUICK, "--output-dir", tmp_path / "run")
        assert done.code == 4, done.err
        assert "Traceback" not in done.err
        assert not (tmp_path / "run").exists()
        assert weights.read_bytes() == before
        return done

    return forget


@fault(21)
@pytest.mark.parametrize("change", [{"norm__weight": None}, {"extra": torch.zeros(2)}, {"head__weight": None}])
def test_missing_or_unexpected_tensors(refused: Command, tmp_path: Path, change: dict[str, torch.Tensor]) -> None:
    done = refused(save_tensors(tmp_path / "w.safetensors", **change))
    assert next(iter(change)).replace("__", ".") in done.err
    seen(21, told(done.code, done.err))


@fault(21)
def test_a_head_that_is_missing_is_never_drawn_at_random(refused: Command, tmp_path: Path) -> None:
    done = refused(save_tensors(tmp_path / "w.safetensors", head__weight=None, head__bias=None))
    seen(21, told(done.code, done.err))


@fault(22)
def test_a_tensor_of_another_shape(refused: Command, tmp_path: Path) -> None:
    done = refused(save_tensors(tmp_path / "w.safetensors", norm__weight=torch.zeros(7)))
    assert "norm.weight" in done.err
    seen(22, told(done.code, done.err))


def header(content: dict[str, object] | bytes, data: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(start: int, end: int, shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape or [(end - start) // 4], "data_offsets": [start, end]}


BROKEN = {
    "truncated": lambda good: good[:-10],
    "empty": lambda _good: b"",
    "shorter than its header": lambda good: good[:40],
    "huge header": lambda good: (1 << 62).to_bytes(8, "little") + good[8:],
    "overlap": lambda _good: header({"a": one(0, 8), "b": one(4, 12)}, bytes(12)),
    "overflow": lambda _good: header({"a": one(0, 8, [1 << 40, 1 << 40])}, bytes(8)),
    "a name twice": lambda _good: header(b'{"a":%b,"a":%b}' % ((json.dumps(one(0, 4)).encode(),) * 2), bytes(4)),
    "no object": lambda _good: header(b"[]"),
    "nested": lambda _good: header(b"[" * 100_000),
}


@fault(23)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_safetensors_file(refused: Command, tmp_path: Path, kind: str) -> None:
    file = save_tensors(tmp_path / "w.safetensors")
    file.write_bytes(BROKEN[kind](file.read_bytes()))
    assert "damaged or of another kind" in told(4, refused(file).err)
    seen(23, "4: The weights file is damaged or of another kind")


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@fault(24)
@pytest.mark.parametrize("kind", ["truncated", "empty", "random"])
def test_a_damaged_pth(refused: Command, tmp_path: Path, kind: str) -> None:
    good = saved(tmp_path / "w.pth", small_model().module.state_dict()).read_bytes()
    content = {
        "truncated": good[: len(good) // 2],
        "empty": b"",
        "random": os.urandom(1000).replace(b"\x80", b"\x81"),
    }[kind]
    (tmp_path / "w.pth").write_bytes(content)
    assert "damaged or of another kind" in told(4, refused(tmp_path / "w.pth").err)
    seen(24, "4: The weights file is damaged or of another kind")


@fault(25)
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_git_lfs_pointer(refused: Command, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"w.{suffix}"
    file.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n", encoding="ascii")
    done = refused(file)
    seen(25, told(done.code, done.err))


@fault(25)
def test_a_git_lfs_pointer_in_a_folder(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "model")
    (folder / "COMPLETE.json").unlink()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n", encoding="ascii")
    for spec in (str(folder), f"hf:{folder}"):
        with pytest.raises(CheckpointError, match="Git LFS pointer"):
            famr.load_model(spec)


@fault(26)
def test_a_pickle_with_code(refused: Command, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {tmp_path}/was-run",))

    done = refused(saved(tmp_path / "w.pth", {"state_dict": Bomb()}))
    assert not (tmp_path / "was-run").exists()
    seen(26, told(done.code, done.err))


@fault(27)
def test_a_zip_bomb(refused: Command, tmp_path: Path) -> None:
    good = saved(tmp_path / "good.pth", {"a": torch.zeros(2)})
    with (
        zipfile.ZipFile(good) as source,
        zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for member in source.infolist():
            content = bytes(64 << 20) if member.filename.endswith("/data/0") else source.read(member)
            target.writestr(member.filename, content)
    assert (tmp_path / "w.pth").stat().st_size < 400_000
    done = refused(tmp_path / "w.pth")
    assert "a bomb" in done.err
    seen(27, "4: The weights file is damaged or of another kind: it is … bytes and would unpack to …: a bomb")


@fault(27)
@pytest.mark.parametrize("name", ["../../outside", "/etc/outside", "archive\\..\\..\\outside"])
def test_an_archive_with_a_name_that_leads_out(refused: Command, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        archive.writestr(name, b"x")
    assert "leads out of the archive" in refused(tmp_path / "w.pth").err


@fault(28)
def test_a_tensor_of_stride_0(refused: Command, tmp_path: Path) -> None:
    file = saved(tmp_path / "w.pth", {"norm.weight": torch.zeros(1).expand(10**12)})
    assert file.stat().st_size < 3000
    done = refused(file)
    seen(28, told(done.code, done.err))


@fault(29)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(refused: Command, tmp_path: Path, value: float) -> None:
    done = refused(save_tensors(tmp_path / "w.safetensors", norm__bias=torch.full((16,), value)))
    assert "norm.bias" in done.err
    seen(29, told(done.code, done.err))


def test_a_good_pth_is_read_by_another_process_bit_for_bit(tmp_path: Path) -> None:
    tensors = small_model().module.state_dict()
    tied = {**tensors, "tied": tensors["norm.weight"], "turned": torch.arange(6.0).view(2, 3).t()}
    nested = {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in tied.items()}}
    found = read_weights(saved(tmp_path / "w.pth", nested))
    assert found.keys() == tied.keys()
    assert all(torch.equal(found[name], tied[name]) for name in tied)


@pytest.mark.parametrize(
    "config", [{"auto_map": {"AutoModel": "x.Y"}}, {"model_args": {"checkpoint_path": "evil.pth"}}]
)
def test_a_checkpoint_with_its_own_code_or_files_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    folder = save_small(tmp_path / "model")
    (folder / "COMPLETE.json").unlink()
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**stored, **config}), encoding="utf-8")
    for spec in (str(folder), f"hf:{folder}"):
        with pytest.raises(CheckpointError, match="famr does neither"):
            famr.load_model(spec)
    with pytest.raises(RequestError, match="no arguments of an architecture"):
        famr.load_model(ARCHITECTURE, arguments={**ARGUMENTS, "checkpoint_path": "evil.pth"})


def test_a_hub_folder_with_nan_or_with_nothing_but_a_pickle_is_refused(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    network = ViTForImageClassification(ViTConfig(**small, image_size=8, patch_size=4))
    network.save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    famr.load_model(f"hf:{tmp_path}")
    network.classifier.bias.data.fill_(float("nan"))
    network.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="NaN") as caught:
        famr.load_model(f"hf:{tmp_path}")
    assert "classifier.bias" in str(caught.value.where)
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="could not load"):
        famr.load_model(f"hf:{tmp_path}")


def test_nan_in_the_weights_of_a_run_folder_is_named(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "model")
    (folder / "COMPLETE.json").unlink()
    save_tensors(folder / "model.safetensors", norm__bias=torch.full((16,), float("nan")))
    with pytest.raises(CheckpointError, match="NaN") as caught:
        famr.load_model(str(folder))
    assert "norm.bias" in str(caught.value.where)


@fault(53)
@pytest.mark.parametrize("version", ["9.9.0", f"{metadata.version('torchvision').partition('+')[0]}+cu1"])
def test_torchvision_of_another_build(
    refused: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """A torchvision as a package manager would leave it: its metadata is found first on the path."""
    own = metadata.version("torch").partition("+")[0]
    for name, number, needs in (
        ("torchvision", version, "torch==1.0" if version == "9.9.0" else f"torch=={own}"),
        ("torch", f"{own}+cu2", ""),
    ):
        folder = tmp_path / f"site/{name}-{number}.dist-info"
        folder.mkdir(parents=True)
        lines = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n" + (
            f"Requires-Dist: {needs}\n" if needs else ""
        )
        (folder / "METADATA").write_text(lines, encoding="utf-8")
    file = save_tensors(tmp_path / "w.safetensors")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert "builds do not match" in told(4, refused(file).err)
    seen(53, "4: The torch and torchvision builds do not match")


def test_safetensors_of_other_kinds_of_numbers_are_read(tmp_path: Path) -> None:
    tensors = {
        "half": torch.ones(2).half(),
        "whole": torch.arange(3),
        "flag": torch.tensor(True),
        "none": torch.zeros(0, 3),
    }
    save_file(tensors, tmp_path / "w.safetensors")
    found = read_weights(tmp_path / "w.safetensors")
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        n: (t.dtype, t.shape) for n, t in tensors.items()
    }
