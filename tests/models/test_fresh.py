"""Networks that keep what they made of their weights: copies do not."""

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
        made = timm.create_model("levit_128s", num_classes=3, **SMALL)
    else:
        sizes = {"hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [8] * 3}
        made = LevitForImageClassification(LevitConfig(image_size=64, num_labels=3, **sizes))
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.5)
    return made.eval()


def images_for(library: str) -> torch.Tensor:
    return IMAGES if library == "timm" else torch.nn.functional.interpolate(IMAGES, size=64)


def keeping(module: nn.Module) -> list[dict[str, torch.Tensor]]:
    return [vars(part)[CACHE_ATTRIBUTE] for part in module.modules() if CACHE_ATTRIBUTE in vars(part)]


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_copy_answers_by_the_weights_it_has_now(library: str) -> None:
    original, images = network(library), images_for(library)
    logits_of(original(images)).sum().backward()
    assert all(keeping(original)), "else there is nothing to test here"
    before = [dict(kept) for kept in keeping(original)]
    copied = fresh_copy(fresh_copy(original))
    for _ in range(2):  # the second would go back through what the first one kept
        logits_of(copied(images)).sum().backward()
        with torch.no_grad():
            for name, weight in copied.named_parameters():
                if "attention_biases" in name:
                    weight.add_(1 + torch.rand_like(weight))
    anew = network(library)
    anew.load_state_dict(copied.state_dict())
    with torch.no_grad():
        assert torch.equal(logits_of(copied(images)), logits_of(anew(images)))
        assert not torch.equal(logits_of(copied(images)), logits_of(original(images)))
    assert [len(part._forward_pre_hooks) for part in copied.modules() if CACHE_ATTRIBUTE in vars(part)] == [1] * len(before)
    for kept, now in zip(before, keeping(original), strict=True):
        assert all(now[name] is tensor for name, tensor in kept.items()), "the caller's own is left as it is"


def test_a_network_that_keeps_nothing_is_copied_as_it_is() -> None:
    copied = fresh_copy(nn.Linear(2, 2))
    assert not copied._forward_pre_hooks


def levit(labels: tuple[str, ...]) -> famr.Classifier:
    model = famr.new_model("timm:levit_128s", labels, from_scratch=True, arguments=SMALL)
    torch.manual_seed(0)
    for weight in model.module.parameters():
        nn.init.normal_(weight, std=0.5)
    return model


def test_a_sketch_of_such_a_network_is_that_of_one_that_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that are taken a few at a time, the first would be the only ones with information about biases."""
    monkeypatch.setattr("famr.anchors.fisher.MICRO_BATCH", 4)
    data = famr.open_data("digits")
    model = levit(data.labels)
    keeps, fresh = (famr.take_sketch(each, data, images=16, device="cpu") for each in (model, model.copy()))
    for name, one, other in zip(keeps.names, keeps.diagonal, fresh.diagonal, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0, msg=name)


def test_such_a_network_forgets_and_answers_the_same_when_loaded_again(tmp_path: Path) -> None:
    data = famr.open_data("digits")
    model = levit(data.labels)
    splits = famr.split(data, famr.Request(samples=list(range(16))))
    sketch = famr.take_sketch(model, data, images=32, device="cpu")
    before = {name: weight.clone() for name, weight in model.module.named_parameters() if "attention_biases" in name}
    paper = replace(famr.FAMR.paper(), learning_rate=1e-3, epochs=2)
    for method, given in ((paper, None), (famr.FAMR(epochs=2, strength=1.0, anchor="kfac"), sketch)):
        result = famr.forget(model, splits, method, sketch=given, device="cpu", track_retain=False, gates=False)
        moved = [not torch.equal(result.module.get_parameter(name), weight) for name, weight in before.items()]
        assert all(moved) or given is not None, "the paper edits all weights"
        place = tmp_path / str(given is None)
        result.save(place)
        loaded = famr.load_model(str(place))
        with torch.no_grad():
            assert torch.equal(loaded.module.eval()(IMAGES), result.module.eval()(IMAGES))
