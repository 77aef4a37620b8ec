"""A network in bf16 throughout, its weights and their gradients in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import famr
from famr.engine import bf16 as half
from famr.engine import grouping
from famr.engine.bf16 import halved, last_layers, round_fixed, standing, weights_standing
from famr.engine.devices import Precision
from famr.engine.lean import LeanBackward, one_pass
from famr.models.activations import capture_layer
from famr.training import Trained
from famr.unlearn import forget as unlearning
from famr.unlearn.forget_loss import ForgetLoss
from small import ARCHITECTURE

VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def vit() -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = timm.create_model(ARCHITECTURE.removeprefix("timm:"), **VIT)
    return network.eval()


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def gradients(network: nn.Module, half: bool) -> dict[str, Tensor]:
    network.zero_grad()
    if half:
        with torch.autocast("cpu", dtype=torch.bfloat16), LeanBackward(), halved(network):
            logits = network(images())
    else:
        logits = network(images())
    F.cross_entropy(logits.float(), torch.arange(6) % 5).backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def test_the_gradients_are_those_of_full_precision_up_to_rounding() -> None:
    network = vit()
    usual, found = gradients(network, half=False), gradients(network, half=True)
    assert found.keys() == usual.keys()
    assert {slope.dtype for slope in found.values()} == {torch.float32}
    both = [torch.cat([each[name].flatten() for name in usual]) for each in (found, usual)]
    assert float(F.cosine_similarity(*both, dim=0)) > 0.999


def test_gradients_are_rounded_back_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they would be there twice, in bf16 and in float32."""
    network = vit()
    at_once, back, done = gradients(network, half=True), [], []
    own = half._converted

    def noted(tensors: Sequence[Tensor], precision: torch.dtype) -> list[Tensor]:
        if precision == torch.float32:
            assert all(storage.expired() for storage in done)  # those in bf16 of the groups before are gone
            done.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)
            back.append(sum(2 * tensor.nbytes for tensor in tensors))
        return own(tensors, precision)

    monkeypatch.setattr(half, "_converted", noted)
    gradients(network, half=True)
    rounded = [weight for _, _, weight in half.wide_weights(network)]
    assert back == [sum(weight.nbytes for weight in rounded)]  # few weights are one group
    back.clear()
    monkeypatch.setattr(grouping, "GROUP", most := 20_000)
    found = gradients(network, half=True)
    assert len(back) > 3
    assert max(back) <= most
    assert found.keys() == at_once.keys()
    assert all(torch.equal(found[name], at_once[name]) for name in found)


@pytest.mark.parametrize("make", [vit, lambda: timm.create_model("resnet10t", num_classes=5).eval()])
def test_weights_without_gradients_can_be_rounded_for_good(make: Callable[[], nn.Module]) -> None:
    """Where nothing but answers are wanted of them these are the same."""
    network = make().requires_grad_(False)
    head = network.get_submodule("head" if hasattr(network, "head") else "fc").requires_grad_(True)

    def said() -> Tensor:
        with torch.no_grad(), one_pass(network, torch.device("cpu"), "bf16", lean=True):
            answers: Tensor = network(images())
        return answers

    before = said()
    round_fixed(network)
    assert torch.equal(said(), before)
    for part in network.modules():
        wide = part is head or isinstance(part, nn.BatchNorm2d) or part in last_layers(network)
        for weight in part.parameters(recurse=False):
            assert weight.dtype == (torch.float32 if wide else torch.bfloat16)
            assert weight.requires_grad is (part is head)


def test_autocast_does_not_choose_the_precision_of_its_normalisations(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA it would take float32, and the way back, which was told bf16, would stop."""
    chosen: list[bool] = []
    usual = torch.native_layer_norm

    def noted(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        chosen.append(torch.is_autocast_enabled("cpu"))
        return usual(*given)

    monkeypatch.setattr(torch, "native_layer_norm", noted)
    gradients(vit(), half=True)
    assert chosen == [False] * 5  # two a block, and the last one


def test_nor_where_nothing_is_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is in the precision of the steps."""
    chosen: list[bool] = []
    usual = torch.layer_norm

    def noted(*given: Any) -> Tensor:
        chosen.append(torch.is_autocast_enabled("cpu"))
        return usual(*given)

    monkeypatch.setattr(torch, "layer_norm", noted)
    network = vit()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), LeanBackward(), halved(network):
        network(images())
    assert chosen == [False] * 5
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), LeanBackward():
        network.norm(images()[..., :1].bfloat16().expand(-1, -1, -1, 32))  # type: ignore[operator]
    assert chosen[5:] == [True]  # weights in float32 and rows that are not: as the library has it


def test_between_its_blocks_and_after_its_normalisations_everything_is_in_half() -> None:
    network, seen = vit(), []
    for block in network.blocks:  # type: ignore[union-attr]
        for part in (block.norm2, block):
            part.register_forward_hook(lambda *found: seen.append(found[-1].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16), LeanBackward(), halved(network):
        network(images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(images())
    assert seen == [torch.bfloat16] * 4 + [torch.float32] * 4  # autocast alone keeps the sum of the blocks as it was


def test_the_weights_come_back_even_where_the_network_fails() -> None:
    network = vit()
    before = weights_standing(network)
    with pytest.raises(ValueError, match="unpack"), halved(network):
        network(torch.zeros(1, 2, 3))
    after = weights_standing(network)
    assert all(one[2] is other[2] for one, other in zip(before, after, strict=True))
    assert all(isinstance(tensor, nn.Parameter) for _, _, tensor in after)


def test_what_has_statistics_keeps_its_precision() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 14 * 14, 2)).eval()
    with halved(network):
        assert {name: p.dtype for name, p in network.named_parameters() if "weight" in name} == {
            "0.weight": torch.bfloat16,
            "1.weight": torch.float32,
            "3.weight": torch.float32,  # the last layer
        }


def norm_and_head() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))


def test_the_last_normalisation_and_the_last_layer_are_not_rounded() -> None:
    """A network that is nothing but these answers as in float32, and has the same gradients."""
    network, x = norm_and_head(), torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    network(x).square().sum().backward()
    expected = [weight.grad for weight in network.parameters()]
    network.zero_grad()
    with one_pass(network, torch.device("cpu"), "bf16", lean=True):
        said = network(x)
    assert torch.equal(said, network(x))
    said.square().sum().backward()
    for weight, slope in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, slope)
    with one_pass(network, torch.device("cpu"), "bf16", lean=False):
        assert not torch.equal(network(x).float(), said)  # as autocast would have it


def test_the_last_layers_may_be_called_by_the_names_of_their_arguments() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = self.head(input=rows)
            return out

    network, x = Named(), torch.ones(2, 8)
    with one_pass(network, torch.device("cpu"), "bf16", lean=True):
        said = network(x.bfloat16())
    assert torch.equal(said, network(x))


@pytest.mark.parametrize("own", [False, True])
def test_the_last_layers_are_as_before_afterwards(own: bool) -> None:
    network = norm_and_head()
    head = network.get_submodule("1")
    if own:
        head.forward = lambda rows: rows[:, :2]  # type: ignore[method-assign]
    before = [dict(vars(layer)) for layer in network.modules()]
    with halved(network):
        assert network(torch.ones(1, 8).bfloat16()).shape == (1, 2 if own else 3)
    with pytest.raises(RuntimeError, match="shape"), halved(network):
        network(torch.ones(1, 7))
    assert [dict(vars(layer)) for layer in network.modules()] == before


def test_last_layers_in_bf16_already_stay_so() -> None:
    network = norm_and_head().to(torch.bfloat16)
    assert last_layers(network) == []
    with one_pass(network, torch.device("cpu"), "bf16", lean=True):
        assert network(torch.ones(1, 8).bfloat16()).dtype == torch.bfloat16


def test_a_tied_weight_collects_the_gradients_of_all_its_places() -> None:
    network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    network[1].weight = network[0].weight
    x = torch.tensor([[1.0, 2.0, 3.0]])
    network(x).sum().backward()
    usual = network[0].weight.grad
    network.zero_grad()
    with halved(network):
        network(x.bfloat16()).float().sum().backward()
    torch.testing.assert_close(network[0].weight.grad, usual, rtol=2e-2, atol=2e-2)


def test_standing_weights_are_those_the_network_computes_with() -> None:
    network = nn.Linear(2, 1, bias=False)
    with standing([(network, "weight", torch.tensor([[2.0, 3.0]]))]):
        assert network(torch.ones(1, 2)).item() == 5.0
    assert isinstance(network.weight, nn.Parameter)


def test_a_run_in_half_ends_with_the_figures_of_the_usual_one(
    trained: Trained, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = famr.FAMR.paper()
    usual = famr.forget(trained.model, without_three, method, device="cpu")
    monkeypatch.setattr(unlearning, "lean_pays", lambda _device: True)
    halves = famr.FAMR.from_json({**method.to_json(), "precision": "bf16"})
    found = famr.forget(trained.model, without_three, halves, device="cpu")
    for name in ("retain_accuracy", "forget_accuracy"):
        one, other = getattr(found.history[-1], name), getattr(usual.history[-1], name)
        assert abs(one - other) <= 0.02, name  # a few of the images that are just on the edge
    assert found.drift == pytest.approx(usual.drift, rel=0.02)


@pytest.mark.parametrize(
    ("precision", "lean", "round_all", "expected"),
    [
        ("bf16", True, True, torch.bfloat16),
        ("bf16", True, False, torch.float32),
        ("bf16", False, True, torch.float32),
        ("fp32", True, True, torch.float32),
    ],
)
def test_a_lean_pass_in_bf16_is_rounded_throughout_where_nothing_in_between_is_wanted(
    precision: Precision, lean: bool, round_all: bool, expected: torch.dtype
) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layer = network.get_submodule("0")
    with one_pass(network, torch.device("cpu"), precision, lean=lean, round_all=round_all):
        assert layer.weight.dtype == expected
        assert LeanBackward.lasting == lean
        assert torch.is_autocast_enabled("cpu") is (precision == "bf16")
    assert layer.weight.dtype == torch.float32
    assert LeanBackward.lasting == 0


@pytest.mark.parametrize("style", [True, False])
def test_a_style_is_taken_from_numbers_that_are_not_rounded(style: bool) -> None:
    network, seen = vit(), []
    block = network.get_submodule("blocks.1.mlp.fc1")
    block.register_forward_pre_hook(lambda *_: seen.append(block.weight.dtype))
    method, here = replace(famr.FAMR.paper(), precision="bf16"), torch.device("cpu")
    with capture_layer(network, "blocks.0", False) if style else nullcontext() as tap:
        loss = ForgetLoss(famr.Classifier(network), method, torch.ones(5) / 5, here, tap, lean=True)
        loss.logits(images())
    assert seen == [torch.float32 if style else torch.bfloat16]
