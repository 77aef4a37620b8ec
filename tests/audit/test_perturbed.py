"""Recognition of slightly changed forget images: these very pixels forgotten, or what they show?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.audit.gates.perturbed import PERTURBED_GAP
from famr.audit.perturbed import PERTURBATIONS, brighter, mirrored, noisy, recognise_perturbed, shifted
from famr.audit.verdict import FALSE_FAILS, GateResult
from famr.data.loaders import image_batches
from famr.errors import RequestError
from made_up import compared, measured, right_for

PIXELS = torch.tensor([[[[10.0, 20.0, 250.0], [40.0, 50.0, 60.0]]]])
NONE = torch.zeros_like(PIXELS)


@pytest.mark.parametrize(
    ("perturb", "expected"),
    [
        (shifted(-1, 0), [[20, 250, 250], [50, 60, 60]]),
        (shifted(0, 1), [[10, 20, 250], [10, 20, 250]]),
        (shifted(0, -1), [[40, 50, 60], [40, 50, 60]]),
        (shifted(2, 2), [[10, 10, 10], [10, 10, 10]]),
        (brighter(1.2), [[12, 24, 255], [48, 60, 72]]),
        (brighter(0.5), [[5, 10, 125], [20, 25, 30]]),
        (mirrored, [[250, 20, 10], [60, 50, 40]]),
    ],
)
def test_each_perturbation_by_hand(perturb: Callable[[Tensor, Tensor], Tensor], expected: list[list[float]]) -> None:
    assert perturb(PIXELS, NONE)[0, 0].tolist() == pytest.approx(torch.tensor(expected, dtype=torch.float))


def test_noise_has_its_deviation_and_stays_within_the_pixels() -> None:
    noise = torch.randn(1, 3, 100, 100, generator=torch.Generator().manual_seed(0))
    changed = noisy(8.0)(torch.full_like(noise, 128.0), noise)
    assert float((changed - 128).std()) == pytest.approx(8.0, rel=0.02)
    assert float(noisy(16.0)(torch.full_like(noise, 250.0), noise).max()) == 255.0


class Memory(nn.Module):
    """Says 3 for everything but the very pixels that it was made to forget; or for nothing at all."""

    def __init__(self, forgotten: Tensor, knows: bool) -> None:
        super().__init__()
        self.forgotten = nn.Parameter(forgotten.flatten(1))
        self.knows = knows

    def forward(self, images: Tensor) -> Tensor:
        stored = (torch.cdist(images.flatten(1), self.forgotten) < 1e-3).any(dim=1)
        logits = torch.zeros(len(images), 10)
        logits[:, 3] = torch.where(stored | torch.tensor(not self.knows), -9.0, 9.0)
        return logits


def test_a_model_that_forgot_only_the_very_pixels_is_caught(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    forget = without_three.forget.take(torch.arange(30))
    preprocessing = original.require_preprocessing()
    stored = next(iter(image_batches(forget, preprocessing, 30, torch.device("cpu"))(None))).images
    found = {
        name: recognise_perturbed(replace(original, module=Memory(stored, knows)), forget, device="cpu")
        for name, knows in (("pixels", True), ("retrained", False))
    }
    assert float(found["pixels"].share.mean()) > 0.8
    assert float(found["retrained"].share.mean()) == 0.0
    assert set(found["pixels"].hits) == set(PERTURBATIONS)
    assert json.loads(json.dumps(found["pixels"].to_json()))["by_perturbation"]["noise 16"] == 1.0
    threes = torch.full((30,), 3)
    bare = measured(right_for(0, threes), right_for(0.9, torch.arange(200) % 5))
    models = {name: replace(bare, perturbed=each) for name, each in found.items()}
    audit = compared(without_three, {"unlearned": models["pixels"]}, [models["retrained"]] * 5)
    result = GateResult.of(PERTURBED_GAP, PERTURBED_GAP.measure(audit), PERTURBED_GAP.threshold, FALSE_FAILS)
    assert result.verdicts == {"unlearned": "fail", "retrained": "pass"}


def test_every_model_sees_the_same_copies(original: famr.Classifier, without_three: famr.Splits) -> None:
    some = without_three.forget.take(torch.arange(20))
    seen: list[list[Tensor]] = []
    for _model in range(2):
        spied = original.copy()
        seen.append([])
        spied.module.register_forward_pre_hook(lambda _module, inputs: seen[-1].append(inputs[0].clone()))
        recognise_perturbed(spied, some, seed=4, device="cpu")
    assert len(seen[0]) == len(PERTURBATIONS)
    assert all(torch.equal(first, second) for first, second in zip(*seen, strict=True))


def test_images_without_classes_are_refused(original: famr.Classifier, without_three: famr.Splits) -> None:
    unlabelled = without_three.forget.with_targets([-1] * len(without_three.forget))
    with pytest.raises(RequestError, match="needs their classes"):
        recognise_perturbed(original, unlabelled, device="cpu")
