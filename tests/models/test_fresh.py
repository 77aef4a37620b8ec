"""Networks that cache values computed from their weights: copies do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from transformers import LevitConfig, LevitForImageClassification

import famr
from famr.models.classifier import logits_of
from famr.models.fresh import CACHE_ATTRIBUTE, fresh_copy

SMALL = {"img_size": 32, "embed_dim": (16,), "key_dim": 8, "depth": (1,), "num_heads": (2,)}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network(library: str) -> nn.Module:
    torch.manual_seed(0)
    if library == "timm":
        module = timm.create_model("levit_128s", num_classes=3, **SMALL)
    else:
        sizes = {"hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [8] * 3}
        module = LevitForImageClassification(LevitConfig(image_size=64, num_labels=3, **sizes))
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5)
    return module.eval()


def images_for(library: str) -> torch.Tensor:
    return IMAGES if library == "timm" else torch.nn.functional.interpolate(IMAGES, size=64)


def caches_of(module: nn.Module) -> list[dict[str, torch.Tensor]]:
    return [vars(part)[CACHE_ATTRIBUTE] for part in module.modules() if CACHE_ATTRIBUTE in vars(part)]


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_copy_computes_with_its_current_weights(library: str) -> None:
    original, images = network(library), images_for(library)
    logits_of(original(images)).sum().backward()
    assert all(caches_of(original)), "the network has no cache to test"
    before = [dict(cache) for cache in caches_of(original)]
    copied = fresh_copy(fresh_copy(original))
    for _ in range(2):  # the second gradient would pass through the cache of the first
        logits_of(copied(images)).sum().backward()
        with torch.no_grad():
            for name, weight in copied.named_parameters():
                if "attention_biases" in name:
                    weight.add_(1 + torch.rand_like(weight))
    expected = network(library)
    expected.load_state_dict(copied.state_dict())
    with torch.no_grad():
        assert torch.equal(logits_of(copied(images)), logits_of(expected(images)))
        assert not torch.equal(logits_of(copied(images)), logits_of(original(images)))
    with_cache = [part for part in copied.modules() if CACHE_ATTRIBUTE in vars(part)]
    assert [len(part._forward_pre_hooks) for part in with_cache] == [1] * len(before)
    for cache, now in zip(before, caches_of(original), strict=True):
        assert all(now[name] is tensor for name, tensor in cache.items()), "the original's cache has changed"


def test_a_network_without_caches_is_copied_without_hooks() -> None:
    copied = fresh_copy(nn.Linear(2, 2))
    assert not copied._forward_pre_hooks


def levit(labels: tuple[str, ...]) -> famr.Classifier:
    model = famr.new_model("timm:levit_128s", labels, from_scratch=True, arguments=SMALL)
    torch.manual_seed(0)
    for weight in model.module.parameters():
        nn.init.normal_(weight, std=0.5)
    return model


def test_a_sketch_does_not_depend_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache, only the first micro-batch would contribute to the Fisher information of the biases."""
    monkeypatch.setattr("famr.anchors.statistics.DIAGONAL_BATCH", 4)
    data = famr.open_data("digits")
    model = levit(data.labels)
    cached, fresh = (famr.take_sketch(variant, data, images=16, device="cpu") for variant in (model, model.copy()))
    for name, one, other in zip(cached.fisher.names, cached.fisher.diagonal, fresh.fisher.diagonal, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0, msg=name)


def test_an_unlearned_levit_computes_the_same_after_loading(tmp_path: Path) -> None:
    data = famr.open_data("digits")
    model = levit(data.labels)
    splits = famr.split(data, famr.Request(samples=list(range(16))))
    sketch = famr.take_sketch(model, data, images=32, device="cpu")
    before = {name: weight.clone() for name, weight in model.module.named_parameters() if "attention_biases" in name}
    paper = replace(famr.FAMR.paper(), learning_rate=1e-3, epochs=2)
    for method, given in ((paper, None), (famr.FAMR(epochs=2, strength=1.0, anchor="kfac"), sketch)):
        result = famr.forget(
            model, splits, method, sketch=given, device="cpu", monitor=famr.Monitor(track_retain=False, gates=False)
        )
        moved = [not torch.equal(result.module.get_parameter(name), weight) for name, weight in before.items()]
        assert all(moved) or given is not None, "the paper edits all weights"
        folder = tmp_path / str(given is None)
        result.save(folder)
        loaded = famr.load_model(str(folder))
        with torch.no_grad():
            assert torch.equal(loaded.module.eval()(IMAGES), result.module.eval()(IMAGES))
