"""Leaner ways to the same gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer
from transformers import ViTConfig, ViTForImageClassification

import famr
from famr.engine.bf16 import halved
from famr.engine.lean import LeanBackward, _LayerNorm
from famr.models.classifier import logits_of
from famr.unlearn import forget as unlearning
from small import ARCHITECTURE

VITS = ("timm ViT", "transformers ViT", "torchvision ViT")


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    torchvision_vit = VisionTransformer(16, 4, 2, 2, 32, 64, num_classes=5)
    nn.init.normal_(torchvision_vit.heads.head.weight)  # it begins with zeros, through which no gradient comes
    return {
        "timm ViT": timm.create_model("vit_tiny_patch16_224", **small),
        "transformers ViT": ViTForImageClassification(config),
        "torchvision ViT": torchvision_vit,
        "timm ResNet": timm.create_model("resnet10t", num_classes=5),
        "perceptron": nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5)),
    }


def gradients(network: nn.Module, images: Tensor, lean: bool, half: bool) -> dict[str, Tensor]:
    network.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        if lean:
            with LeanBackward():
                logits = logits_of(network(images)).float()
        else:
            logits = logits_of(network(images)).float()
    logits.square().sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("kind", "half"),
    [
        *((kind, False) for kind in (*VITS, "timm ResNet", "perceptron")),
        *((kind, True) for kind in (*VITS, "perceptron")),  # a CPU's convolutions are unsure
    ],
)
def test_the_gradients_are_the_usual_ones(kind: str, half: bool) -> None:
    network = networks()[kind].eval()
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    usual = gradients(network, images, lean=False, half=half)
    found = gradients(network, images, lean=True, half=half)
    assert found.keys() == usual.keys()
    tolerance = 3e-2 if half else 1e-5
    smallest = 1e-3 * max(float(slope.norm()) for slope in usual.values())  # that of a key's bias is rounding
    for name, slope in usual.items():
        assert found[name].dtype == slope.dtype
        apart = float((found[name] - slope).norm() / slope.norm().clamp(min=smallest))
        assert apart < tolerance, name


@pytest.mark.parametrize("kind", VITS)
@pytest.mark.parametrize("half", [False, True])
def test_in_a_transformer_all_that_goes_around_a_block_takes_its_way_through_a_normalisation(
    kind: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, images = networks()[kind].eval(), torch.randn(6, 3, 16, 16)
    seen: list[bool] = []
    usual = _LayerNorm.backward

    def spied(ctx: object, slope: Tensor | None, around: Tensor | None) -> tuple[Tensor | None, ...]:
        seen.append(around is not None)
        return usual(ctx, slope, around)

    monkeypatch.setattr(_LayerNorm, "backward", staticmethod(spied))
    rounded = halved(network) if half else nullcontext()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half), rounded, LeanBackward():
        logits = logits_of(network(images)).float()
    logits.square().sum().backward()  # type: ignore[no-untyped-call]
    assert seen == [False, True, True, True, True], "two for each of two blocks; the last one has nothing behind it"


def test_what_goes_around_keeps_its_precision_where_only_the_normalisation_is_in_full() -> None:
    network, norm = nn.Linear(8, 8), nn.LayerNorm(8)
    with torch.autocast("cpu", dtype=torch.bfloat16), LeanBackward():
        inside = network(torch.randn(3, 8))
        branch = norm(inside)
        total = inside + branch.bfloat16()
    assert (inside.dtype, branch.dtype, total.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)


def test_an_input_without_a_gradient_stays_without() -> None:
    x, layer = torch.randn(3, 8), nn.LayerNorm(8)
    with LeanBackward():
        inside = layer(x)
        total = x + x
        out = x + inside
    assert (x.requires_grad, total.requires_grad, out.requires_grad) == (False, False, True)


@pytest.mark.parametrize("half", [False, True])
def test_patches_that_do_not_overlap_are_convolved_by_one_product(half: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, kernel_size=(4, 2), stride=(4, 2))
    images = torch.randn(5, 3, 16, 12)
    found = []
    for lean in (False, True):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            if lean:
                with LeanBackward():
                    out = layer(images)
            else:
                out = layer(images)
        out.float().square().sum().backward()
        found.append((out, layer.weight.grad, layer.bias.grad))
    assert found[1][0].flatten(2).mT.is_contiguous()  # tokens, as a transformer wants them, without a copy
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=5e-2 if half else 1e-4, atol=0.2 if half else 1e-3)


def test_so_are_they_where_nothing_is_differentiated() -> None:
    layer, images = nn.Conv2d(3, 8, kernel_size=4, stride=4).requires_grad_(False), torch.randn(2, 3, 16, 16)
    with LeanBackward():
        found = layer(images)
    assert found.flatten(2).mT.is_contiguous()
    torch.testing.assert_close(found, layer(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"stride": 4, "padding": 1}, {"stride": 4, "groups": 3}, {"stride": 4, "dilation": 2}]
)
def test_any_other_convolution_is_left_alone(options: dict[str, int]) -> None:
    layer, images = nn.Conv2d(3, 6, kernel_size=4, **options), torch.randn(2, 3, 16, 16)  # type: ignore[arg-type]
    usual = layer(images)
    with LeanBackward():
        assert torch.equal(layer(images), usual)
    with LeanBackward():
        images_with_a_rest = torch.randn(2, 3, 17, 16)
        assert nn.Conv2d(3, 6, 4, 4)(images_with_a_rest).shape == (2, 6, 4, 4)


def test_weights_that_are_not_to_change_get_no_gradient() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    network[1].requires_grad_(False)
    with LeanBackward():
        network(torch.ones(2, 3)).sum().backward()
    assert [p.grad is None for p in network.parameters()] == [True, True, True, True, False, False]


def test_the_context_stands_in_for_the_three_and_ends() -> None:
    x = torch.randn(3, 2, 4, requires_grad=True)
    weight, bias = torch.randn(4, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    with LeanBackward():
        made = (F.linear(x, weight, bias), F.layer_norm(x, (4,), bias + 1, bias), x.unbind(0)[0])
        with torch.no_grad():
            assert F.linear(x, weight, bias).grad_fn is None
    assert [type(each.grad_fn).__name__ for each in made] == [
        "_LinearBackward",
        "_LayerNormBackward",
        "_UnbindBackward",
    ]
    assert type(F.linear(x, weight, bias).grad_fn).__name__ != "_LinearBackward"
    assert type(x.unbind(1)[0].grad_fn).__name__ == "UnbindBackward0"


def test_the_gradient_of_a_cut_tensor_lies_as_the_tensor_does() -> None:
    """So that nobody has to copy it into place."""
    stored = torch.randn(2, 5, 3, 4, requires_grad=True)
    whole = stored.permute(2, 0, 1, 3)
    strides: list[tuple[int, ...]] = []
    whole.register_hook(lambda slope: strides.append(slope.stride()))  # type: ignore[no-untyped-call]
    with LeanBackward():
        a, b, c = whole.unbind(0)
    (a.sum() + 2 * b.sum() + 3 * c.sum()).backward()  # type: ignore[no-untyped-call]
    assert strides == [whole.stride()]
    assert stored.grad is not None
    assert stored.grad[0, 0].tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


def test_a_run_with_lean_gradients_ends_where_the_usual_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    data = famr.open_data("digits")
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = famr.new_model(ARCHITECTURE, data.labels, from_scratch=True, arguments=small)
    splits = famr.split(data, famr.Request(samples=list(range(40))))
    method = famr.FAMR.paper()
    usual = famr.forget(model, splits, method, device="cpu", track_retain=False)
    asked: list[torch.device] = []
    monkeypatch.setattr(unlearning, "lean_pays", lambda device: not asked.append(device))
    found = famr.forget(model, splits, method, device="cpu", track_retain=False)
    assert asked == [torch.device("cpu")]
    for one, other in zip(found.module.parameters(), usual.module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
