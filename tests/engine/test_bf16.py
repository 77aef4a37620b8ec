"""A network in bf16 throughout, its weights and their gradients in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import famr
from conftest import alg1
from famr.data import Data
from famr.engine.bf16 import Bf16Network
from famr.engine.cuda import CudaEngine
from recorded_steps import record_on_cpu

CPU = torch.device("cpu")
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def vit() -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("vit_tiny_patch16_224", **VIT)
    return network.eval()


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def gradients(network: nn.Module, forward: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    loss = F.cross_entropy(forward(images()).float(), torch.arange(6))
    names, parameters = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_the_gradients_are_those_of_full_precision_up_to_rounding() -> None:
    network = vit()
    exact, rounded = gradients(network, network), gradients(network, Bf16Network(network, images(2)))
    assert {gradient.dtype for gradient in rounded.values()} == {torch.float32}
    both = [torch.cat([tensors[name].flatten() for name in exact]) for tensors in (rounded, exact)]
    assert float(F.cosine_similarity(*both, dim=0)) > 0.999


def test_activations_between_blocks_are_bf16_and_those_of_the_last_layers_float32() -> None:
    network, types = vit(), []
    for name in ("blocks.0", "blocks.1.norm2", "norm", "head"):
        network.get_submodule(name).register_forward_hook(lambda *call: types.append(call[-1].dtype))
    rounded = Bf16Network(network, images(2))
    types.clear()
    rounded(images())
    assert types == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert rounded.rounds_activations


def test_the_network_is_as_before_after_a_pass_and_after_an_error() -> None:
    network = vit()
    weights = dict(network.named_parameters())
    rounded = Bf16Network(network, images(2))
    rounded(images())
    with pytest.raises(ValueError, match="unpack"):
        rounded(torch.zeros(1, 2, 3))
    assert all(parameter is weights[name] for name, parameter in network.named_parameters())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not any(layer._forward_pre_hooks for layer in network.modules())


class WithStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(pixels).mean(dim=(2, 3)))
        return out


class Mixing(nn.Module):
    """Multiplies its activations by a float32 buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", torch.eye(3))
        self.inner = nn.Linear(3, 3)
        self.head = nn.Linear(3, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(pixels.mean(dim=(2, 3))) @ self.basis)
        return out


def test_layers_with_statistics_of_their_own_are_not_rounded() -> None:
    network, types = WithStatistics().eval(), {}
    for name, layer in network.named_modules():
        layer.register_forward_pre_hook(
            lambda part, _, name=name: types.update({name: getattr(part, "weight", torch.empty(0)).dtype})
        )
    assert Bf16Network(network, images(2)).rounds_activations
    assert (types["body.0"], types["body.1"], types["head"]) == (torch.bfloat16, torch.float32, torch.float32)


def test_a_network_that_does_not_run_in_bf16_runs_under_autocast_and_sees_every_change_of_a_weight() -> None:
    torch.manual_seed(0)
    network = Mixing().eval()
    rounded = Bf16Network(network, images(2))
    assert not rounded.rounds_activations
    with torch.autocast("cpu", enabled=False):  # within which a cache of casts would live on
        before = rounded(images()).float()
        with torch.no_grad():
            network.inner.weight.mul_(2)
            network.inner.bias.mul_(2)
        after = rounded(images()).float()
    torch.testing.assert_close(after - network.head.bias, 2 * (before - network.head.bias), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(after, network(images()), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("style", [False, True])
def test_a_run_in_bf16_ends_near_the_run_in_fp32(digits: Data, monkeypatch: pytest.MonkeyPatch, style: bool) -> None:
    """Prefix, recorded steps and bf16 together; a style is taken from activations that are not rounded."""
    record_on_cpu(monkeypatch)
    model = famr.Classifier(vit(), digits.labels, famr.Preprocessing(16, (16, 16), (0.5,) * 3, (0.5,) * 3))
    splits = famr.split(replace(digits, train=digits.train.take(torch.arange(200))), famr.Request(classes=["3"]))
    method = alg1(epochs=3, learning_rate=1e-2, edited_share=0.5)
    if style:
        method = replace(method, edited_share=1.0, style_layer="blocks.0", beta=1e-5, learning_rate=1e-3)
    types = set()
    runs = []
    for precision in ("fp32", "bf16"):
        types.clear()
        handle = model.module.blocks[1].register_forward_hook(lambda *call: types.add(call[-1].dtype))
        runs.append(
            famr.forget(
                model,
                splits,
                replace(method, precision=precision),  # type: ignore[arg-type]
                engine=CudaEngine(CPU),
                monitor=famr.Monitor(track_retain=False),
            )
        )
        handle.remove()
    exact, rounded = runs
    assert (torch.bfloat16 in types) is not style
    assert exact.drift > 0.001
    assert rounded.drift == pytest.approx(exact.drift, rel=0.05)
    assert rounded.history[-1].loss_forget == pytest.approx(exact.history[-1].loss_forget, rel=0.05)
    assert {parameter.dtype for parameter in rounded.module.parameters()} == {torch.float32}
