"""Every engine gives the numbers of the plain one, and the plain one those of a loop that anyone can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import famr
from conftest import NEEDS_CUDA, alg1, styled
from famr.data import Data
from famr.data.loaders import Batch
from famr.data.splits import Splits
from famr.engine.base import Engine
from famr.engine.cuda import CudaEngine
from famr.engine.ddp import DistributedEngine
from famr.engine.distributed import Ranks
from famr.engine.plain import PlainEngine
from famr.engine.prefix import PrefixEngine
from famr.losses.objective import Reduction
from recorded_steps import CpuRecording, record_on_cpu

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 2e-6}
"""For sums of single precision in another order, after some steps."""
CLOSE_ON_CUDA = {"rtol": 5e-3, "atol": 5e-4}
"""Against a CPU: images are resized by other kernels there."""
ENGINES = ["prefix", "distributed", "recorded", pytest.param("cuda", marks=NEEDS_CUDA)]
LATE = ("blocks.2.mlp.fc1.weight", "blocks.2.mlp.fc2.weight", "blocks.2.mlp.fc2.bias")
VIT = {"img_size": 12, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 2}


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "recorded":
        record_on_cpu(monkeypatch)
    if request.param == "cuda":
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return {
        "plain": lambda: PlainEngine(CPU),
        "prefix": lambda: PrefixEngine(CPU),
        "distributed": lambda: DistributedEngine(CPU, Ranks()),
        "recorded": lambda: CudaEngine(CPU),
        "cuda": lambda: CudaEngine(torch.device("cuda")),
    }[request.param]()


@cache
def some_digits(*, in_styles: bool = False) -> Data:
    """Two hundred digits, and some to test on."""
    digits = famr.open_data("digits")
    digits = styled(digits) if in_styles else digits
    assert digits.test is not None
    return replace(digits, train=digits.train.take(torch.arange(200)), test=digits.test.take(torch.arange(60)))


@cache
def model() -> famr.Classifier:
    labels = famr.open_data("digits").labels
    return famr.new_model("timm:vit_tiny_patch16_224", labels, from_scratch=True, arguments=VIT)


CLASS, SAMPLES = famr.Request(classes=["3"]), famr.Request(samples=list(range(30)))
STYLE = famr.Request(style=("style", "negative"))
DEFAULT = famr.FAMR(
    effort="quick", strength=100.0, epochs=3, fisher_images=40, function_images=4, batch_size=10, precision="fp32"
)
RUNS: dict[str, tuple[famr.Request, famr.FAMR]] = {
    "paper": (CLASS, alg1(epochs=3, learning_rate=1e-3, batch_size=10)),
    "class": (CLASS, DEFAULT),
    "samples": (SAMPLES, replace(DEFAULT, epochs=2)),
    "style": (STYLE, alg1(epochs=2, beta=1e-3, style_layer="blocks.1")),
    "style, default": (STYLE, replace(DEFAULT, epochs=2, beta=1e-3, style_layer="blocks.1")),
    "adam": (CLASS, replace(DEFAULT, optimiser="adam", anchor="l2", strength=0.1)),
    "adamw": (CLASS, replace(DEFAULT, optimiser="adamw", anchor="l2", strength=0.1)),
    "fisher": (CLASS, replace(DEFAULT, anchor="fisher")),
    "fisher, sgd": (CLASS, alg1(epochs=2, anchor="fisher", edited_share=0.4, learning_rate=1e-3, fisher_images=40)),
    "kfac": (CLASS, replace(DEFAULT, anchor="kfac")),
    "kfac alone": (CLASS, replace(DEFAULT, anchor="kfac", function_strength=0.0)),
    "search": (CLASS, replace(DEFAULT, strength="auto", budget=0.5, epochs=2)),
}


@cache
def splits_of(name: str) -> Splits:
    request = RUNS[name][0]
    return famr.split(some_digits(in_styles=request is STYLE), request)


def run(name: str, engine: Engine) -> famr.Unlearned:
    return famr.forget(model(), splits_of(name), RUNS[name][1], seed=1, engine=engine)


@cache
def plain_run(name: str, device: str = "cpu") -> famr.Unlearned:
    """On the device of the engine that is compared."""
    return run(name, PlainEngine(torch.device(device)))


def history_of(result: famr.Unlearned) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(row).items() if key != "seconds"} for row in result.history]


def rounded(value: Any) -> Any:
    """A value, equal to what is the same up to rounding."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value


def close_on(device: torch.device | str) -> dict[str, float]:
    return CLOSE if str(device) == "cpu" else CLOSE_ON_CUDA


def assert_same_result(ours: famr.Unlearned, plain: famr.Unlearned) -> None:
    for name, value in plain.module.state_dict().items():
        torch.testing.assert_close(ours.module.state_dict()[name].cpu(), value, **close_on(ours.device))
    assert history_of(ours) == [rounded(row) for row in history_of(plain)]
    assert [asdict(trial) for trial in ours.trials] == [rounded(asdict(trial)) for trial in plain.trials]
    assert ours.method.to_json() == rounded(plain.method.to_json())


@torch.no_grad()
def largest_change(result: famr.Unlearned) -> float:
    pairs = zip(result.module.parameters(), model().module.parameters(), strict=True)
    return max(float((ours.cpu() - original).abs().max()) for ours, original in pairs)


@pytest.mark.filterwarnings(
    "ignore:The steps of this network run one by one"
)  # torch's Adam on a CPU is not recordable
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *product(["prefix", "recorded"], RUNS),
        *product(["distributed"], ["paper", "class", "style", "adam", "search"]),
        *(pytest.param("cuda", name, marks=NEEDS_CUDA) for name in RUNS),
    ],
    indirect=["engine"],
)
def test_a_run_gives_the_history_and_the_weights_of_the_plain_engine(engine: Engine, name: str) -> None:
    result = run(name, engine)
    assert_same_result(result, plain_run(name, engine.device.type))
    assert largest_change(result) > 100 * CLOSE["atol"], "the run changed nothing that could differ"
    if isinstance(engine, CudaEngine) and engine.device == CPU:
        assert (CpuRecording.made > 0) is (result.method.optimiser not in ("adam", "adamw"))


def labelled_batches(*sizes: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 3, 12, 12, generator=draws), torch.randint(10, (n,), generator=draws)) for n in sizes]


def run_on_loaders(engine: Engine) -> famr.Unlearned:
    method = replace(DEFAULT, anchor="l2", strength=1.0, function_strength=5.0, epochs=6, target="uniform")
    anchor_images = labelled_batches(3, 6, 5, 4, seed=1)
    return famr.forget(
        model(), forget=labelled_batches(8, 8, 5), method=method, anchor_images=anchor_images, engine=engine
    )


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_batches_of_a_loader_may_have_any_sizes_and_so_may_those_of_an_anchor(engine: Engine) -> None:
    assert_same_result(run_on_loaders(engine), run_on_loaders(PlainEngine(engine.device)))


@pytest.mark.parametrize("engine", ["plain", *ENGINES], indirect=True)
def test_a_run_is_not_changed_by_the_callers_autocast(engine: Engine) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast(engine.device.type, dtype=torch.bfloat16):
        result = run("class", engine)
    assert_same_result(result, plain_run("class", engine.device.type))


@pytest.mark.parametrize("engine", ["plain", *ENGINES], indirect=True)
def test_logits_predictions_and_gradients_are_those_of_autograd(engine: Engine) -> None:
    images, module, names = some_digits().train.take(torch.arange(30)), model().module.eval(), set(LATE)
    pixels = torch.stack([pixels_of(images, index) for index in range(30)])
    with engine.session(model()) as session:
        session.train_only(names)
        assert {n for n, p in session.model.module.named_parameters() if p.requires_grad} == names
        predictions = session.predict(session.evaluation_batches(images))
        torch.testing.assert_close(predictions.logits, module(pixels).detach(), **close_on(engine.device))
        assert torch.equal(predictions.targets, images.targets)
        seen = []
        for batch in session.batches(images, 12)(5):
            positions = batch.positions.cpu()
            seen += positions.tolist()
            torch.testing.assert_close(
                session.logits(batch).detach().cpu(), module(pixels[positions]), **close_on(engine.device)
            )
            loss, gradient = session.gradient(CrossEntropy(session), batch)
            late = [module.get_parameter(name) for name in LATE]
            expected = F.cross_entropy(module(pixels[positions]), images.targets[positions])
            torch.testing.assert_close(loss.cpu(), expected.detach(), **close_on(engine.device))
            for ours, theirs in zip(gradient, torch.autograd.grad(expected, late), strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, **close_on(engine.device))
        assert sorted(seen) == list(range(30))
        assert seen != list(range(30))


class CrossEntropy:
    reduction: Reduction = "mean"

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self._session.logits(batch), batch.labels)


def pixels_of(images: Any, index: int) -> Tensor:
    """One image as the network takes it, without the loaders."""
    preprocessing = model().require_preprocessing()
    raw = images.pixels(index, preprocessing.channels)[None]
    return preprocessing.normalise(preprocessing.fit(raw))[0]


def slow_alg1(module: nn.Module, batches: list[tuple[Tensor, Tensor]], method: famr.FAMR, seed: int) -> None:
    """Alg. 1 [FAMR] with a uniform target and nothing but autograd."""
    original = [parameter.detach().clone() for parameter in module.parameters()]
    for epoch in range(1, method.epochs + 1):  # type: ignore[operator]
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        for index in torch.randperm(len(batches), generator=generator).tolist():
            log_p = torch.log_softmax(module(batches[index][0]), dim=1)
            q = torch.full_like(log_p, 1 / log_p.shape[1])
            loss = (q * (q.log() - log_p)).sum()
            loss = loss + method.strength / 2 * sum(  # type: ignore[operator]
                ((p - p0) ** 2).sum() for p, p0 in zip(module.parameters(), original, strict=True)
            )
            gradient = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, g in zip(module.parameters(), gradient, strict=True):
                    parameter -= method.learning_rate * g  # type: ignore[operator]


@pytest.mark.parametrize("engine", ["plain", *ENGINES], indirect=True)
def test_a_run_agrees_with_a_slow_loop(engine: Engine) -> None:
    method = alg1(epochs=3, learning_rate=1e-2, strength=0.5)
    batches = labelled_batches(8, 8, 5)
    expected = model().copy().module.eval()
    slow_alg1(expected, batches, method, seed=4)
    result = famr.forget(model(), forget=batches, method=method, seed=4, engine=engine)
    for ours, theirs in zip(result.module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, **close_on(engine.device))
    assert largest_change(result) > 100 * CLOSE["atol"]


class WithBatchNorm(nn.Module):
    """Buffers, a frozen layer and one that is not, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3)))
        self.head = nn.Linear(4, 10)
        self.register_buffer("passes", torch.zeros(()))
        self.body[0].requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        out: Tensor = self.head(self.body(images).mean(dim=(2, 3)))
        return out


@pytest.mark.parametrize("engine", ["plain", *ENGINES], indirect=True)
def test_reset_restores_weights_and_buffers_and_export_the_flags_of_the_original(engine: Engine) -> None:
    torch.manual_seed(0)
    original = famr.Classifier(WithBatchNorm(), None, famr.Preprocessing(12, (12, 12), (0.5,) * 3, (0.5,) * 3))
    before = {name: tensor.clone() for name, tensor in original.module.state_dict().items()}
    flags = {name: parameter.requires_grad for name, parameter in original.module.named_parameters()}
    with engine.session(original) as session:
        session.train_only({"head.weight", "body.0.weight"})
        (batch,) = session.loader_batches(labelled_batches(6))(None)
        session.logits(batch)
        with torch.no_grad():
            for parameter in session.parameters:
                parameter.add_(1.0)
        session.reset()
        for name, tensor in session.model.module.state_dict().items():
            assert torch.equal(tensor.cpu(), before[name]), name
        with torch.no_grad():
            session.parameters[0].add_(1.0)
        exported = session.export()
    assert {name: parameter.requires_grad for name, parameter in exported.module.named_parameters()} == flags
    assert not exported.module.training
    assert all(parameter.grad is None and parameter.device == CPU for parameter in exported.module.parameters())
    assert not torch.equal(exported.module.body[0].weight, before["body.0.weight"])
    assert original.module.training, "the original is as it was"
    for name, tensor in original.module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("engine", ["recorded"], indirect=True)
def test_a_closed_session_keeps_nothing(engine: Engine) -> None:
    images = some_digits().train.take(torch.arange(30))

    def failing_run() -> Iterator[Any]:
        with engine.session(model()) as session:
            session.train_only(set(LATE))
            (batch,) = session.batches(images, 30)(None)
            anchored = session.step_input(images, batch)

            def step(batch: Batch) -> Tensor:
                return session.logits(batch).sum() + session.logits(anchored).sum()

            for _ in range(3):
                session.run(step, batch)
            yield session
            raise ZeroDivisionError

    run = failing_run()
    session = next(run)
    assert session._cached
    assert session._graphed
    assert session._inputs
    with pytest.raises(ZeroDivisionError):
        next(run)
    assert not session._cached
    assert not session._graphed
    assert not session._inputs
