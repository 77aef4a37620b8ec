"""Real images and real weights, where they are at hand; elsewhere these tests say that they were skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import famr

DATA = Path(__file__).parents[2] / "shared" / "data"
WEIGHTS = DATA / "weights" / "vit_tiny_patch16_224.fp16.safetensors"

pytestmark = pytest.mark.skipif(not WEIGHTS.is_file(), reason="the folder shared/data is not beside this checkout")


def test_cifar100_opens_with_its_classes_and_superclasses() -> None:
    data = famr.open_data(f"parquet:{DATA / 'cifar100'}")
    assert data.test is not None
    assert (len(data.train), len(data.test), len(data.labels)) == (50_000, 10_000, 100)
    splits = famr.split(data, famr.Request(concept=("superclass", "fish")))
    assert len(splits.forget) == 2500
    assert {data.labels[target] for target in splits.forget.targets.unique().tolist()} == {
        "aquarium_fish", "flatfish", "ray", "shark", "trout",
    }  # fmt: skip
    assert data.train.pixels(0, 3).shape == (3, 32, 32)


def test_pacs_opens_with_its_styles() -> None:
    data = famr.open_data(f"parquet:{DATA / 'pacs112'}")
    assert len(data.labels) == 7
    assert set(data.train.column("style")) == {"art_painting", "cartoon", "photo", "sketch"}
    splits = famr.split(data, famr.Request(style=("style", "sketch")))
    assert splits.retain is not None
    assert set(splits.retain.column("style")) == {"art_painting", "cartoon", "photo"}
    assert len(splits.forget) + len(splits.retain) == len(data.train)


def test_imagenet_weights_load_whole_and_get_a_new_head() -> None:
    model = famr.load_model("timm:vit_tiny_patch16_224", weights=WEIGHTS)
    assert model.class_count() == 1000
    fresh = famr.new_model("timm:vit_tiny_patch16_224", [str(label) for label in range(7)], weights=WEIGHTS)
    assert fresh.class_count() == 7
    for name, tensor in model.module.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(tensor, fresh.module.state_dict()[name]), name


def test_imagenet_weights_see_what_is_in_a_photograph() -> None:
    """Tiny-ImageNet photographs of goldfish (ImageNet's class 1): most are recognised without any training."""
    data = famr.open_data(f"parquet:{DATA / 'tiny-imagenet-100'}")
    wnids = data.train.column("wnid")
    goldfish = torch.tensor([wnid == "n01443537" for wnid in wnids])
    from famr.engine.inference import predict

    model = famr.load_model("timm:vit_tiny_patch16_224", weights=WEIGHTS)
    found = predict(model, data.train.where(goldfish).take(torch.arange(16)), torch.device("cpu"))
    assert int((found.logits.argmax(dim=-1) == 1).sum()) >= 10
