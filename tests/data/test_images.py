from __future__ import annotations

import gc
import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from famr.data import images as images_module
from famr.data.images import FORMATS, UNLABELLED, Images, PixelCache, open_image
from famr.errors import DataError, RequestError


def noise(height: int = 5, width: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def from_files(*files: Path) -> Images:
    return Images.from_source(
        lambda row: open_image(files[row]), [f.name for f in files], torch.zeros(len(files)).long()
    )


def in_memory(count: int = 6, decoded: list[int] | None = None) -> Images:
    def decode(row: int) -> Image.Image:
        if decoded is not None:
            decoded.append(row)
        return Image.new("RGB", (4, 3), (row, row, row))

    columns = {"parity": ["odd" if row % 2 else "even" for row in range(count)]}
    return Images.from_source(decode, [f"image/{row}" for row in range(count)], torch.arange(count) % 3, columns)


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def refused(images: Images, position: int = 0) -> DataError:
    with pytest.raises(DataError) as caught:
        images.pixels(position, 3)
    assert caught.value.exit_code == 3
    assert caught.value.where == images.ids[position]
    assert f"where: {images.ids[position]}" in str(caught.value)
    assert "to do: Replace the file" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("name", "options"), [("BMP", {}), ("PNG", {}), ("PPM", {}), ("TIFF", {})])
def test_pixels_are_the_stored_bytes_with_channels_first(tmp_path, name, options):
    array = noise()
    Image.fromarray(array).save(tmp_path / "image", name, **options)
    pixels = from_files(tmp_path / "image").pixels(0, 3)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, 5, 7)
    for y in range(5):
        for x in range(7):
            assert pixels[:, y, x].tolist() == array[y, x].tolist()


@pytest.mark.parametrize(("name", "options"), [("GIF", {}), ("JPEG", {"quality": 80}), ("WEBP", {"lossless": True})])
def test_other_formats_are_decoded_as_pillow_decodes_them(tmp_path, name, options):
    Image.fromarray(noise()).save(tmp_path / "image", name, **options)
    with Image.open(tmp_path / "image") as expected:
        np.testing.assert_array_equal(
            from_files(tmp_path / "image").pixels(0, 3).permute(1, 2, 0).numpy(), np.array(expected.convert("RGB"))
        )


def test_a_grey_image_in_colour_has_three_equal_channels(tmp_path):
    grey = noise()[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    pixels = from_files(tmp_path / "grey.png").pixels(0, 3)
    for channel in range(3):
        np.testing.assert_array_equal(pixels[channel].numpy(), grey)


def test_a_colour_image_in_grey_has_the_weights_of_itu_601(tmp_path):
    array = noise()
    Image.fromarray(array).save(tmp_path / "colour.png")
    pixels = from_files(tmp_path / "colour.png").pixels(0, 1)
    assert pixels.shape == (1, 5, 7)
    expected = array.astype(float) @ [0.299, 0.587, 0.114]
    assert np.abs(pixels[0].numpy() - expected).max() <= 1


def test_transparency_and_palettes_become_plain_colour(tmp_path):
    Image.new("RGBA", (4, 3), (10, 20, 30, 0)).save(tmp_path / "clear.png")
    Image.new("RGB", (4, 3), (40, 50, 60)).convert("P").save(tmp_path / "palette.png")
    images = from_files(tmp_path / "clear.png", tmp_path / "palette.png")
    assert images.pixels(0, 3)[:, 0, 0].tolist() == [10, 20, 30]
    with Image.open(tmp_path / "palette.png") as palette:
        assert images.pixels(1, 3)[:, 0, 0].tolist() == list(palette.convert("RGB").getpixel((0, 0)))


@pytest.mark.parametrize("name", ["GIF", "TIFF", "WEBP"])
def test_the_first_frame_of_several_is_the_image(tmp_path, name):
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "frames", name, save_all=True, append_images=frames[1:], lossless=True)
    assert from_files(tmp_path / "frames").pixels(0, 3)[:, 1, 1].tolist() == [255, 0, 0]


def test_files_are_closed_after_reading_even_when_they_are_broken(tmp_path):
    frames = [Image.fromarray(noise(seed=seed)) for seed in range(2)]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:60])
    images = from_files(tmp_path / "frames.gif", tmp_path / "cut.png")
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        images.pixels(0, 3)
        refused(images, 1)
        gc.collect()
    assert [str(warning.message) for warning in warned if warning.category is ResourceWarning] == []


def test_an_unreadable_image_is_named_and_never_skipped(tmp_path):
    Image.fromarray(noise()).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("not an image")
    images = from_files(tmp_path / "good.png", tmp_path / "bad.png")
    assert images.pixels(0, 3).shape == (3, 5, 7)
    error = refused(images, 1)
    assert error.where == "bad.png"
    assert all(name in error.what for name in FORMATS)


def test_a_truncated_image_is_refused(tmp_path):
    Image.fromarray(noise(40, 40)).save(tmp_path / "whole.jpg")
    content = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    assert "truncated" in refused(from_files(tmp_path / "cut.jpg")).what


def test_a_missing_file_is_reported_as_missing(tmp_path):
    assert "the file is not there" in refused(from_files(tmp_path / "missing.png")).what


def test_formats_outside_the_list_are_refused_whatever_the_file_is_called(tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "icon.png", "ICO")
    with Image.open(tmp_path / "icon.png") as readable:
        assert readable.format == "ICO"
    assert "it is none of BMP, GIF" in refused(from_files(tmp_path / "icon.png")).what


def test_an_image_of_too_many_pixels_is_refused_from_its_header(tmp_path):
    (tmp_path / "huge.png").write_bytes(png_header(8000, 8000))  # 64 million pixels according to the header alone
    (tmp_path / "small.png").write_bytes(png_header(8, 8))
    assert (tmp_path / "huge.png").stat().st_size < 200
    error = refused(from_files(tmp_path / "huge.png"))
    assert "8000×8000 pixels are more than the 50,000,000 allowed" in error.what
    assert "pixels are more than" not in refused(from_files(tmp_path / "small.png")).what


def test_a_size_that_pillow_calls_a_decompression_bomb_is_refused(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_header(60_000, 60_000))
    assert "decompression bomb" in refused(from_files(tmp_path / "bomb.png")).what


def test_the_largest_allowed_size_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(images_module, "MAX_PIXELS", 35)
    Image.fromarray(noise(5, 7)).save(tmp_path / "fits.png")
    Image.fromarray(noise(6, 6)).save(tmp_path / "over.png")
    images = from_files(tmp_path / "fits.png", tmp_path / "over.png")
    assert images.pixels(0, 3).shape == (3, 5, 7)
    assert "6×6" in refused(images, 1).what


def test_images_are_opened_from_bytes_as_from_files(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(noise()).save(buffer, "PNG")
    (tmp_path / "image.png").write_bytes(buffer.getvalue())
    np.testing.assert_array_equal(np.array(open_image(buffer.getvalue())), np.array(open_image(tmp_path / "image.png")))


def test_an_image_is_decoded_when_it_is_needed_and_only_once():
    decoded: list[int] = []
    images = in_memory(6, decoded)
    assert (len(images), images.targets.tolist(), images.ids[5]) == (6, [0, 1, 2, 0, 1, 2], "image/5")
    assert decoded == []
    for position in (4, 2, 4, 2):
        assert (images.pixels(position, 3) == position).all()
    assert decoded == [4, 2]


def test_subsets_share_the_pixels_already_decoded():
    decoded: list[int] = []
    images = in_memory(6, decoded)
    images.pixels(4, 3)
    assert (images.where(torch.arange(6) >= 3).pixels(1, 3) == 4).all()
    assert (images.take(torch.tensor([5, 4])).pixels(1, 3) == 4).all()
    assert (images.with_targets([2, 1, 0]).pixels(4, 3) == 4).all()
    assert decoded == [4]


def test_grey_and_colour_pixels_of_one_image_are_cached_separately():
    images = in_memory()
    assert images.pixels(3, 1).shape == (1, 3, 4)
    assert images.pixels(3, 3).shape == (3, 3, 4)
    assert images.pixels(3, 1).shape == (1, 3, 4)


def test_pixels_that_do_not_fit_the_cache_are_decoded_again():
    decoded: list[int] = []
    source = in_memory(6, decoded)
    one_image = 3 * 3 * 4
    cached = Images(
        source.decode, source.all_ids, source.all_targets, rows=source.rows, cache=PixelCache(2 * one_image - 1)
    )
    for position in (0, 1, 0, 1):
        assert (cached.pixels(position, 3) == position).all()
    assert decoded == [0, 1, 1]


def test_pixels_stored_twice_count_once_in_the_budget():
    pixels = torch.zeros(3, 3, 4, dtype=torch.uint8)
    cache = PixelCache(2 * pixels.nbytes)
    for row in (0, 0, 1, 2):
        cache.store(row, 3, pixels)
    assert [cache.get(row, 3) is not None for row in range(3)] == [True, True, False]


def test_where_keeps_the_order_and_take_follows_the_indices():
    images = in_memory()
    mask = torch.tensor([True, False, False, True, True, False])
    assert images.where(mask).ids == ["image/0", "image/3", "image/4"]
    assert images.where(mask).targets.tolist() == [0, 0, 1]
    assert images.take(torch.tensor([5, 0, 2])).ids == ["image/5", "image/0", "image/2"]
    assert images.where(mask).take(torch.tensor([2, 0])).column("parity") == ["even", "even"]
    assert images.where(mask).where(torch.tensor([False, True, False])).column("parity") == ["odd"]
    assert len(images.where(torch.zeros(6, dtype=torch.bool))) == 0


def test_class_indices_are_mapped_and_unlabelled_stays_unlabelled():
    targets = torch.tensor([0, 2, UNLABELLED, 1, 2, UNLABELLED])
    images = Images.from_source(lambda _row: Image.new("L", (1, 1)), [str(row) for row in range(6)], targets)
    mapping = [7, 5, 3]
    expected = [UNLABELLED if target == UNLABELLED else mapping[target] for target in targets.tolist()]
    assert images.with_targets(mapping).targets.tolist() == expected
    assert images.targets.tolist() == targets.tolist()


def test_a_set_is_labelled_only_if_every_image_has_a_class():
    targets = torch.tensor([0, UNLABELLED, 1])
    images = Images.from_source(lambda _row: Image.new("L", (1, 1)), ["a", "b", "c"], targets)
    assert not images.labelled
    assert images.where(targets != UNLABELLED).labelled


def test_an_unknown_column_is_refused_with_the_known_ones():
    with pytest.raises(RequestError) as caught:
        in_memory().column("colour")
    assert caught.value.exit_code == 2
    assert "no column 'colour'" in caught.value.what
    assert caught.value.where == "columns: parity"
    assert "metadata.csv" in str(caught.value)


def test_an_unknown_column_of_data_without_columns_is_refused():
    images = Images.from_source(lambda _row: Image.new("L", (1, 1)), ["a"], torch.zeros(1).long())
    with pytest.raises(RequestError, match="columns: none"):
        images.column("colour")


def test_sixteen_bit_grey_is_scaled_and_float_pixels_are_refused():
    ramp = np.linspace(0, 65535, 16 * 16).reshape(16, 16)
    sixteen_bit = Image.fromarray(ramp.astype(np.uint16))
    images = Images.from_source(
        lambda row: [sixteen_bit, Image.fromarray(ramp.astype(np.float32))][row], ["a", "b"], torch.zeros(2).long()
    )
    assert (images.pixels(0, 1).numpy()[0] == (ramp.astype(np.uint16) // 257)).all()
    with pytest.raises(DataError, match="no fixed range"):
        images.pixels(1, 1)
