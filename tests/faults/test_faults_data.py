"""Faults 10 to 20: images and data sets that are damaged, hostile, or change during a run."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import famr
from conftest import Outcome
from famr.errors import DataError
from famr.storage.digests import folder_digests
from fault_table import fault, seen, told
from small import QUICK, picture, save_pictures, save_small


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_pictures(tmp_path / "data/train").parent


Command = Callable[..., Outcome]


@pytest.fixture
def forget(run: Callable[..., Outcome], model: Path, data: Path, tmp_path: Path) -> Command:
    save_pictures(data / "test", 1)

    def call(*options: object) -> Outcome:
        common = ("--model", model, "--data", f"folder:{data}", *QUICK, "--output-dir", tmp_path / "run")
        return run("forget", *common, *(options or ("--class", "cat")))

    return call


def refused(done: Outcome, tmp_path: Path, code: int = 3) -> str:
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    return told(done.code, done.err)


def unreadable(file: Path) -> DataError:
    """The error of an image whose pixels are read."""
    images = famr.open_data(f"folder:{file.parent}", whole=True).train
    with pytest.raises(DataError) as caught:
        images.pixels(images.ids.index(file.name), 3)
    assert caught.value.exit_code == 3
    assert caught.value.where == file.name
    return caught.value


def bomb(side: int) -> bytes:
    """A whole, valid PNG of side × side pixels of one bit, all black: large only when it is unpacked."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    row = b"\0" * (1 + side // 8)
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(row * 1000) for _ in range(side // 1000)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


BROKEN = {"empty": b"", "text": b"not an image", "elf": b"\x7fELF" + bytes(200)}


@fault(10)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_corrupt_file_in_the_forget_set(forget: Command, data: Path, tmp_path: Path, kind: str) -> None:
    (data / "train/cat/0.png").write_bytes(BROKEN[kind])
    before = folder_digests(data)
    done = forget()
    assert "where: train/cat/0.png" in done.err
    seen(10, refused(done, tmp_path))
    assert folder_digests(data) == before


@fault(11)
def test_a_corrupt_file_in_the_retain_set(run: Command, model: Path, data: Path, tmp_path: Path) -> None:
    save_pictures(data / "test", 1)
    (data / "train/dog/1.png").write_bytes(b"not an image")
    options = ("--model", model, "--data", f"folder:{data}", "--epochs", 1, "--device", "cpu", "--quiet")
    done = run("train", *options, "--without-class", "cat", "--output-dir", tmp_path / "run")
    assert "where: train/dog/1.png" in done.err
    seen(11, refused(done, tmp_path))


@fault(12)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_truncated_image(forget: Command, data: Path, tmp_path: Path, suffix: str) -> None:
    file = data / f"train/cat/cut.{suffix}"
    picture(7, 64).save(file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    done = forget()
    assert f"where: train/cat/cut.{suffix}" in done.err
    assert refused(done, tmp_path).startswith("3: An image cannot be read: ")
    seen(12, "3: An image cannot be read")


@fault(13)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # Pillow only warns at 144 million pixels
@pytest.mark.parametrize("side", [12_000, 20_000])
def test_a_decompression_bomb(tmp_path: Path, side: int) -> None:
    file = tmp_path / "bomb.png"
    file.write_bytes(bomb(side))
    assert file.stat().st_size < 60_000
    error = unreadable(file)
    seen(13, f"3, {side**2 // 10**6} million pixels: {error.what}")


@fault(13)
def test_a_large_image_below_the_cap_is_no_bomb(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bomb(4000))
    assert famr.open_data(f"folder:{tmp_path}", whole=True).train.pixels(0, 1).shape == (1, 4000, 4000)


def save_odd(folder: Path, kind: str) -> Path:
    plain = picture(3)
    file = folder / f"odd.{'gif' if kind == 'animated' else 'jpg' if kind in ('CMYK', 'rotated') else 'png'}"
    if kind == "CMYK":
        plain.convert("CMYK").save(file)
    elif kind == "16 bits":
        Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(file)
    elif kind == "palette":
        plain.convert("P").save(file)
    elif kind == "alpha":
        plain.putalpha(0)
        plain.save(file)
    elif kind == "rotated":
        exif = Image.Exif()
        exif[0x0112] = 6
        plain.resize((8, 16)).save(file, exif=exif)
    else:
        plain.save(file, save_all=True, append_images=[picture(4), picture(5)])
    return file


@fault(14)
@pytest.mark.parametrize("kind", ["CMYK", "16 bits", "palette", "alpha", "rotated", "animated"])
def test_an_odd_kind_of_image(tmp_path: Path, kind: str) -> None:
    file = save_odd(tmp_path, kind)
    ours = famr.open_data(f"folder:{tmp_path}", whole=True).train.pixels(0, 3).permute(1, 2, 0).numpy()
    with Image.open(file) as image:  # as torchvision, timm and transformers read it
        theirs = np.asarray(image.convert("RGB"))
        if kind == "16 bits":  # which all of them clip to white
            theirs = np.repeat((np.asarray(image) // 257).astype(np.uint8)[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(ours, theirs)
    seen(14, 'the pixels of `Image.convert("RGB")`; 16 bits are scaled, not clipped; EXIF does not rotate')


NAMES = (
    "naïve 猫.png",
    "two\nlines.png",
    "<script>alert(1)<╱script>.png",
    "[x]$\\frac$.png",
    "=1+1.png",
    "n" * 251 + ".png",
)


@fault(15)
def test_odd_names(forget: Command, data: Path, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        picture(number).save(data / "train/cat" / name)
    done = forget(*(part for name in NAMES for part in ("--sample", f"train/cat/{name}")), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["unlearned"]["counts"]["forget"] == len(NAMES)
    request = json.loads((tmp_path / "run/unlearning/request.json").read_text(encoding="utf-8"))
    assert request["samples"] == [f"train/cat/{name}" for name in NAMES]
    assert "<script>" not in (tmp_path / "run/README.md").read_text(encoding="utf-8")
    seen(15, "0: all are found and forgotten; cards and pages show them as text")


@fault(15)
def test_a_name_that_is_not_unicode(forget: Command, data: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    picture(1).save(data / "train/cat" / name)
    done = forget("--sample", f"train/cat/{name}")
    assert "Traceback" not in done.err
    assert done.code == 3, done.err
    seen(15, refused(done, tmp_path))


@fault(16)
def test_an_empty_class_folder(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1, ("ant", "cat"))
    (tmp_path / "bee").mkdir()
    with pytest.warns(UserWarning, match="'bee' has no images") as heard:
        found = famr.open_data(f"folder:{tmp_path}", whole=True)
    assert found.labels == ("ant", "bee", "cat")
    assert found.train.targets.tolist() == [0, 2]
    seen(16, str(heard[0].message).replace(repr(tmp_path.name), "'data'"))


@fault(17)
def test_hidden_files_and_upper_case(tmp_path: Path) -> None:
    save_pictures(tmp_path, 1, ("cat",))
    picture(1).save(tmp_path / "cat/.hidden.png")
    (tmp_path / "cat/.DS_Store").write_bytes(bytes(100))
    picture(2).save(tmp_path / "cat/UP.PNG")
    assert famr.open_data(f"folder:{tmp_path}", whole=True).train.ids == ["cat/0.png", "cat/UP.PNG"]
    seen(17, "`UP.PNG` is read, what begins with a dot is not")


@fault(18)
def test_links_out_of_the_data_and_in_circles(tmp_path: Path) -> None:
    data = save_pictures(tmp_path / "data", 1, ("cat", "dog"))
    save_pictures(tmp_path / "private", 1, ("face",))
    (data / "face").symlink_to(tmp_path / "private/face")
    (data / "again").symlink_to(data)
    (data / "cat/circle").symlink_to(data)
    (data / "cat/self.png").symlink_to(data / "cat/self.png")
    (data / "cat/out.png").symlink_to(tmp_path / "private/face/0.png")
    with pytest.warns(UserWarning, match="link") as heard:
        found = famr.open_data(f"folder:{data}", whole=True)
    assert found.labels == ("cat", "dog")
    assert found.train.ids == ["cat/0.png", "dog/0.png"]
    for message in dict.fromkeys(str(each.message) for each in heard):
        seen(18, message)


@fault(19)
@pytest.mark.parametrize("what", ["changed", "gone"])
def test_data_that_changes_during_the_run(tmp_path: Path, what: str) -> None:
    save_pictures(tmp_path, 2, ("cat", "dog"))
    images = famr.open_data(f"folder:{tmp_path}", whole=True).train
    images.pixels(0, 3)
    if what == "gone":
        (tmp_path / "dog/1.png").unlink()
    else:
        picture(99).save(tmp_path / "dog/1.png")
        os.utime(tmp_path / "dog/1.png", ns=(1, 1))
    with pytest.raises(DataError) as caught:
        images.pixels(3, 3)
    assert caught.value.where == "dog/1.png"
    seen(19, f"{caught.value.exit_code}: {caught.value.what}")


@fault(20)
@pytest.mark.parametrize("token", ["hf_secretsecretsecret", ""])
def test_a_hub_data_set_that_is_not_available(
    run: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", token)
    options = ("--model", model, "--data", "hf:nobody/nothing", "--class", "cat", *QUICK)
    done = run("forget", *options, "--output-dir", tmp_path / "run")
    assert done.code == 3, done.err
    assert "HF_HUB_OFFLINE is set" in done.err
    assert ("A token is set" in done.err) is bool(token)
    assert "secret" not in done.err + done.out
    seen(20, told(3, done.err).partition(" (")[0])
