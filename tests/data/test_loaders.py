from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from famr.data import Images, loaders
from famr.data.loaders import device_pixels, gpu_pixels, image_batches, loader_batches, order, pixel_batches
from famr.data.transforms import Preprocessing
from famr.engine.distributed import Ranks
from famr.errors import DataError, RequestError

CPU = torch.device("cpu")
COLOUR = Preprocessing((6, 6), (6, 6), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bilinear")


def make_images(*sizes: tuple[int, int]) -> Images:
    def decode(row: int) -> Image.Image:
        height, width = sizes[row]
        return Image.fromarray(np.random.default_rng(row).integers(0, 256, (height, width, 3), dtype=np.uint8))

    return Images.from_source(decode, [f"image/{row}" for row in range(len(sizes))], torch.arange(len(sizes)) % 4)


def make_batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.full((size, 1, 2, 2), float(size)), torch.arange(size)) for size in sizes]


def one_by_one(images: Images, preprocessing: Preprocessing) -> Tensor:
    return torch.stack([preprocessing.fit(images.pixels(row, preprocessing.channels)) for row in range(len(images))])


def test_without_a_seed_the_order_is_the_stored_order():
    assert order(5, None).tolist() == [0, 1, 2, 3, 4]


def test_a_seed_draws_one_permutation_and_another_seed_another():
    assert sorted(order(50, 1).tolist()) == list(range(50))
    assert order(50, 1).tolist() == order(50, 1).tolist()
    assert order(50, 1).tolist() != order(50, 2).tolist()


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 100])
def test_a_pass_has_every_image_once_and_the_remainder_in_a_smaller_last_batch(batch_size):
    images = make_images(*[(6, 6)] * 10)
    batches = list(pixel_batches(images, COLOUR, batch_size, CPU, None))
    assert [len(pixels) for pixels, _, _ in batches] == [len(chunk) for chunk in torch.arange(10).split(batch_size)]
    assert torch.equal(torch.cat([pixels for pixels, _, _ in batches]), one_by_one(images, COLOUR))
    assert torch.cat([targets for _, targets, _ in batches]).tolist() == images.targets.tolist()


def test_a_seeded_pass_follows_the_order_of_its_seed():
    images = make_images(*[(6, 6)] * 40)
    batches = list(pixel_batches(images, COLOUR, 7, CPU, 5))
    expected = order(40, 5)
    assert torch.equal(torch.cat([pixels for pixels, _, _ in batches]), one_by_one(images, COLOUR)[expected])
    assert torch.cat([targets for _, targets, _ in batches]).tolist() == images.targets[expected].tolist()


@pytest.mark.parametrize(
    "sizes",
    [[(3, 4)] * 5, [(6, 6)] * 5, [(20, 14)] * 5, [(3, 4), (6, 6), (3, 4), (20, 14), (5, 30)], [(5, 9)] * 5],
    ids=["small", "exact", "large", "mixed", "wide"],
)
def test_images_of_any_sizes_are_prepared_as_one_by_one(sizes):
    images = make_images(*sizes)
    ((pixels, _targets, _positions),) = pixel_batches(images, COLOUR, 5, CPU, None)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (5, 3, 6, 6)
    assert (pixels.int() - one_by_one(images, COLOUR).int()).abs().max() <= 1


def test_prepared_batches_are_normalised():
    images = make_images(*[(6, 6)] * 5)
    batches = image_batches(images, COLOUR, 2, CPU)
    expected = one_by_one(images, COLOUR).double() / 255
    for channel in range(3):
        expected[:, channel] = (expected[:, channel] - COLOUR.mean[channel]) / COLOUR.std[channel]
    torch.testing.assert_close(torch.cat([x for x, _, _ in batches(None)]).double(), expected, atol=1e-6, rtol=1e-6)


def test_passes_can_be_repeated():
    batches = image_batches(make_images(*[(6, 6)] * 9), COLOUR, 4, CPU)
    for seed in (None, 3):
        first, second = list(batches(seed)), list(batches(seed))
        assert [targets.tolist() for _, targets, _ in first] == [targets.tolist() for _, targets, _ in second]
        assert all(torch.equal(a, b) for (a, _, _), (b, _, _) in zip(first, second, strict=True))


@pytest.mark.parametrize(("room", "prepared"), [(1 << 20, 2), (0, 4)])
def test_a_small_set_is_kept_prepared_from_the_second_pass_on(monkeypatch, room, prepared):
    images, load, loaded = make_images(*[(6, 6)] * 5, (9, 7)), loaders._load, []
    expected = {seed: list(image_batches(images, COLOUR, 4, CPU)(seed)) for seed in (None, 7, 8)}
    monkeypatch.setattr(loaders, "PREPARED_BYTES", room)
    monkeypatch.setattr(loaders, "_load", lambda *args: loaded.extend(args[2].tolist()) or load(*args))
    passes = image_batches(images, COLOUR, 4, CPU)
    for seed in (None, 7, 7, 8):
        for batch, other in zip(passes(seed), expected[seed], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))
    assert sorted(loaded) == sorted([*range(6)] * prepared)


def test_prepared_images_are_reused_for_the_same_set_and_preprocessing_only(monkeypatch):
    images, load, loaded = make_images(*[(6, 6)] * 5, (9, 7)), loaders._load, []
    monkeypatch.setattr(loaders, "_load", lambda *args: loaded.append(len(args[2])) or load(*args))
    first = image_batches(images, COLOUR, 4, CPU)
    expected = [list(first(None)), list(first(None))][0]
    loaded.clear()
    for batch, other in zip(image_batches(images, COLOUR, 4, CPU)(None), expected, strict=True):
        assert torch.equal(batch.images, other.images)
    assert not loaded
    darker = Preprocessing((6, 6), (6, 6), (0.1, 0.1, 0.1), (0.2, 0.3, 0.4), "bilinear")
    for subset, preprocessing in ((images.take(torch.tensor([1, 0])), COLOUR), (images, darker)):
        prepared = torch.cat([batch.images for batch in image_batches(subset, preprocessing, 4, CPU)(None)])
        torch.testing.assert_close(prepared, preprocessing.normalise(one_by_one(subset, preprocessing)))
    assert sum(loaded) == 8


def test_grey_models_get_one_channel():
    grey = Preprocessing((6, 6), (6, 6), (0.5,), (0.5,), "bilinear")
    ((pixels, _targets, _positions),) = pixel_batches(make_images((6, 6), (6, 6)), grey, 2, CPU, None)
    assert pixels.shape == (2, 1, 6, 6)


def test_an_unreadable_image_stops_the_pass_and_is_named():
    good = make_images(*[(6, 6)] * 10)

    def decode(row: int) -> Image.Image:
        if row == 7:
            raise OSError("broken data stream")
        return good.decode(row)

    images = Images.from_source(decode, good.all_ids, good.all_targets)
    batches = pixel_batches(images, COLOUR, 2, CPU, None)
    assert [len(next(batches)[0]) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(DataError, match="broken data stream") as caught:
        next(batches)
    assert caught.value.where == "image/7"
    assert list(batches) == []


def test_a_pass_that_is_closed_early_stops_its_threads():
    before = set(threading.enumerate())
    batches = pixel_batches(make_images(*[(6, 6)] * 20), COLOUR, 1, CPU, None)
    next(batches)
    started = set(threading.enumerate()) - before
    assert started
    batches.close()
    assert not any(thread.is_alive() for thread in started)


def test_a_loaders_batches_keep_their_images_and_change_their_order_with_the_seed():
    given = make_batches(3, 1, 2, 5)
    batches = loader_batches(given, CPU)
    assert [len(batch.images) for batch in batches(None)] == [3, 1, 2, 5]
    orders = {seed: [len(batch.images) for batch in batches(seed)] for seed in range(6)}
    assert all(sorted(sizes) == [1, 2, 3, 5] for sizes in orders.values())
    assert len({tuple(sizes) for sizes in orders.values()}) > 1
    assert orders[3] == [len(batch.images) for batch in batches(3)]


def test_positions_are_indices_in_the_set():
    images = make_images(*[(6, 6)] * 10)
    for batch in image_batches(images, COLOUR, 4, CPU)(7):
        assert torch.equal(batch.labels, images.targets[batch.positions])
    whole = torch.cat([labels for _, labels in make_batches(3, 1, 2)])
    for batch in loader_batches(make_batches(3, 1, 2), CPU)(7):
        assert torch.equal(batch.labels, whole[batch.positions])


def test_a_generator_is_read_once_for_all_epochs():
    def generate() -> Iterator[tuple[Tensor, Tensor]]:
        yield from make_batches(3, 1)

    batches = loader_batches(generate(), CPU)
    for seed in (0, 1, None):
        assert sorted(len(batch.images) for batch in batches(seed)) == [1, 3]


def test_a_shuffling_loader_is_read_once_so_that_passes_agree():
    data = TensorDataset(torch.arange(8.0)[:, None, None, None], torch.arange(8))
    loader = DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = loader_batches(loader, CPU)
    first, second = ([batch.labels.tolist() for batch in batches(None)] for _ in range(2))
    assert first == second
    assert sorted(label for labels in first for label in labels) == list(range(8))


def test_batches_may_be_lists_as_torch_loaders_yield_them():
    (batch,) = loader_batches([list(make_batches(2)[0])], CPU)(None)
    assert batch.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("batch", "shown"),
    [(torch.zeros(2, 3), "Tensor"), ({"image": 1, "label": 2}, "dict"), (tuple(torch.zeros(3, 2)), "tuple")],
)
def test_a_loader_that_yields_anything_but_pairs_is_refused(batch, shown):
    with pytest.raises(RequestError) as caught:
        list(loader_batches([batch], CPU)(None))
    assert caught.value.exit_code == 2
    assert f"must yield (images, labels), got {shown}" in caught.value.what
    assert "where: forget=" in str(caught.value)
    assert "to do: Yield a tensor of images" in str(caught.value)


@pytest.mark.parametrize("loader", [[], make_batches(0), make_batches(0, 0)])
def test_an_empty_loader_is_refused(loader):
    with pytest.raises(RequestError, match="forget set is empty") as caught:
        list(loader_batches(loader, CPU)(None))
    assert "where: forget=" in str(caught.value)
    assert caught.value.fix


def test_an_empty_batch_among_others_is_ignored():
    assert [len(batch.images) for batch in loader_batches(make_batches(2, 0), CPU)(None)] == [2]


def test_pixels_are_not_kept_on_a_device_other_than_a_gpu():
    assert gpu_pixels(make_images((6, 6)), COLOUR, CPU) is None


def test_images_of_a_source_are_copied_to_the_device_once_for_all_subsets(monkeypatch):
    images, decoded = make_images(*[(6, 6)] * 8), []
    real = Images.pixels
    monkeypatch.setattr(Images, "pixels", lambda self, row, channels: decoded.append(row) or real(self, row, channels))
    for indices in ([5, 2], [2, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]):
        pixels = device_pixels(images.take(torch.tensor(indices)), COLOUR, CPU, room=1 << 20)
        assert torch.equal(pixels, torch.stack([real(images, index, 3) for index in indices]))
    assert len(decoded) == 8 + 1  # one image is decoded twice, the first time for its size


@pytest.mark.parametrize("ranks", [Ranks(), Ranks(0, 3), Ranks(2, 3)])
def test_batches_of_pixels_on_a_device_agree_with_those_decoded_in_each_pass(monkeypatch, ranks):
    images = make_images(*[(5, 4)] * 10)
    expected = {seed: list(image_batches(images, COLOUR, 4, CPU, ranks)(seed)) for seed in (None, 7)}
    monkeypatch.setattr(loaders, "gpu_pixels", lambda *args: device_pixels(*args, room=1 << 20))
    monkeypatch.setattr(loaders, "PREPARED_BYTES", 0)
    passes = image_batches(images, COLOUR, 4, CPU, ranks)
    for seed in (None, 7, 7):
        for batch, other in zip(passes(seed), expected[seed], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))
            assert len(batch.images) == -(-len(batch.labels) // ranks.size)


@pytest.mark.parametrize(("sizes", "room"), [([(6, 6), (5, 6)], 1 << 20), ([(900, 900)] * 2, 1 << 30), ([(6, 6)], 10)])
def test_large_images_several_sizes_and_too_many_images_are_not_kept_on_a_device(sizes, room):
    assert device_pixels(make_images(*sizes), COLOUR, CPU, room) is None
