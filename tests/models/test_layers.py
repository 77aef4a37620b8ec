"""Structure of networks, and which weights may change: late layers, and the head only on request."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from torch import nn

import famr
from conftest import SMALL_VIT, alg1
from famr.data import Data
from famr.errors import RequestError
from famr.models.layers import block_names, call_order, head_name, head_of, head_tensors, late_parameters, train_only


def names_of(module: nn.Module, size: int, share: float, head: bool = False) -> list[str]:
    return late_parameters(module.eval(), lambda: module(torch.zeros(1, 3, size, size)), share, head)


def test_the_last_quarter_of_a_vit_is_its_last_blocks() -> None:
    module = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=24, num_classes=5)
    layers = {name.rsplit(".", 1)[0] for name in names_of(module, 16, 0.25)}
    blocks = {name.split(".")[1] for name in layers if name.startswith("blocks.")}
    assert blocks == {"9", "10", "11"}
    assert {name for name in layers if not name.startswith("blocks.")} == {"norm"}


def test_the_last_quarter_of_a_resnet_is_its_last_stage() -> None:
    module = torchvision.models.resnet18(num_classes=5)
    assert {name.split(".")[0] for name in names_of(module, 32, 0.25)} == {"layer4"}
    assert {name.split(".")[0] for name in names_of(module, 32, 0.25, head=True)} == {"layer4", "fc"}


def test_weights_of_a_submodule_that_is_never_called_rank_with_its_parent() -> None:
    """torchvision's attention reads the weights of its output projection without calling it."""
    module = torchvision.models.VisionTransformer(
        image_size=16, patch_size=4, num_layers=4, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=3
    )
    rank = call_order(module.eval(), lambda: module(torch.zeros(1, 3, 16, 16)))
    attention = "encoder.layers.encoder_layer_3.self_attention."
    assert rank[attention + "out_proj.weight"] == rank[attention + "in_proj_weight"]
    assert rank["class_token"] == 0
    assert max(rank, key=rank.__getitem__).startswith("heads.head")


def test_a_share_of_one_selects_everything_with_or_without_the_head() -> None:
    module = timm.create_model("vit_tiny_patch16_224", **SMALL_VIT, num_classes=5)
    every = [name for name, _ in module.named_parameters()]
    assert names_of(module, SMALL_VIT["img_size"], 1.0, head=True) == every
    assert names_of(module, SMALL_VIT["img_size"], 1.0) == [name for name in every if not name.startswith("head.")]


def test_a_network_of_a_head_alone_is_edited_there() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert names_of(module, 2, 0.25) == ["1.weight", "1.bias"]


def test_frozen_parameters_stay_frozen_and_flags_return() -> None:
    module = torchvision.models.resnet18(num_classes=5)
    module.layer4[1].requires_grad_(False)
    names = names_of(module, 32, 0.25)
    assert not any(name.startswith("layer4.1") for name in names)
    before = [parameter.requires_grad for parameter in module.parameters()]
    with train_only(module, ["fc.bias"]):
        assert [name for name, p in module.named_parameters() if p.requires_grad] == ["fc.bias"]
    assert [parameter.requires_grad for parameter in module.parameters()] == before


@pytest.mark.parametrize("spec", ["timm:vit_tiny_patch16_224", "timm:test_resnet", "torchvision:shufflenet_v2_x0_5"])
def test_the_head_by_calls_is_the_head_by_shapes(spec: str) -> None:
    arguments = SMALL_VIT if "vit" in spec else {}
    model = famr.new_model(spec, ("cat", "dog", "owl"), from_scratch=True, arguments=arguments)
    assert head_tensors(model.architecture) == {f"{head_name(model)}.weight", f"{head_name(model)}.bias"}
    assert head_of(model).out_features == 3
    assert head_name(model) not in block_names(model)


def test_forgetting_by_default_changes_late_layers_alone(original: famr.Classifier, without_three: famr.Splits) -> None:
    result = famr.forget(original, without_three, device="cpu", monitor=famr.Monitor(track_retain=False))
    before, after = original.module.state_dict(), result.module.state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed
    assert all(name.startswith(("blocks.1.", "norm.")) for name in changed)
    assert all(parameter.requires_grad for parameter in result.module.parameters())


def test_the_paper_changes_every_weight(original: famr.Classifier, without_three: famr.Splits) -> None:
    result = famr.forget(
        original, without_three, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    before, after = original.module.state_dict(), result.module.state_dict()
    assert all(not torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_style_layer_before_all_trainable_layers_is_refused(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(style=("parity", "even")))
    method = famr.FAMR(beta=None, style_layer="blocks.0", strength=100.0, fisher_images=100, epochs=2)
    with pytest.raises(RequestError, match="before every layer that may change"):
        famr.forget(
            original, splits, replace(method, edited_share=0.25), device="cpu", monitor=famr.Monitor(track_retain=False)
        )
    result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.edited_share == 1.0
    assert result.history[-1].style_distance < result.history[0].style_distance  # type: ignore[operator]
