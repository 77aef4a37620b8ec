"""Proxies: they never see what they leave out, share the early layers, and answer only for what they missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import famr
from conftest import small_vit
from famr.data import Data
from famr.data.loaders import Batch
from famr.engine.inference import predict
from famr.engine.plain import PlainEngine, PlainSession
from famr.engine.prefix import PrefixEngine
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions
from famr.models.layers import blank_image
from famr.proxies.cost import forward_operations, plan_proxies, plan_proxy
from famr.proxies.groups import folds
from famr.proxies.late import early_digest, late_layers, late_state, redrawn, with_late_state
from famr.proxies.predictions import own_proxy, proxy_temperature
from famr.proxies.proxies import Proxies, halved, train_proxies
from famr.proxies.recipe import ProxyRecipe
from famr.proxies.training import full_batches, proxy_trainer
from famr.training import Trained

CPU = torch.device("cpu")
ENGINE = PrefixEngine(CPU)


@pytest.fixture(scope="module")
def recipe(trained: Trained, digits: Data) -> ProxyRecipe:
    return ProxyRecipe(trained.training, small_vit(digits))


@pytest.fixture(scope="module")
def some(digits: Data) -> Data:
    return replace(digits, train=digits.train.take(torch.arange(400)))


@pytest.fixture(scope="module")
def proxies(original: famr.Classifier, some: Data, recipe: ProxyRecipe) -> Proxies:
    return train_proxies(original, some, replace(recipe, epochs=2), engine=ENGINE, groups=4)


def test_early_layers_are_the_originals_and_late_ones_are_not(
    original: famr.Classifier, some: Data, recipe: ProxyRecipe
) -> None:
    with proxy_trainer(original, recipe, some.train, engine=ENGINE) as trainer:
        late = trainer.train()
        after = trainer.session.model.module.state_dict()
    before = original.module.state_dict()
    for name, tensor in before.items():
        assert (name in late) != torch.equal(tensor, after[name]), name


def test_training_is_the_same_on_cached_activations_and_on_images(
    original: famr.Classifier, some: Data, recipe: ProxyRecipe
) -> None:
    late = []
    for engine in (ENGINE, PlainEngine(CPU)):
        with proxy_trainer(original, replace(recipe, epochs=1), some.train, engine=engine) as trainer:
            late.append(trainer.train())
    for name, tensor in late[0].items():
        torch.testing.assert_close(tensor, late[1][name], rtol=0, atol=2e-5, msg=name)


def test_a_proxy_never_sees_the_images_that_it_leaves_out(
    original: famr.Classifier, some: Data, recipe: ProxyRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    plain_run = PlainSession.run

    def recorded(self: PlainSession, step: object, batch: Batch) -> torch.Tensor:
        seen.append(batch.positions)
        return plain_run(self, step, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(PlainSession, "run", recorded)
    keep = torch.arange(400) % 3 != 0
    with proxy_trainer(original, replace(recipe, epochs=2), some.train, engine=ENGINE) as trainer:
        trainer.train(keep)
    positions = torch.cat(seen)
    assert bool(keep[positions].all())
    assert len(positions) == 2 * (int(keep.sum()) // 64) * 64


def test_proxies_differ_by_what_they_left_out_alone(proxies: Proxies, original: famr.Classifier, some: Data) -> None:
    """A class is hardly ever predicted by the proxy that left it out, and often by the others."""
    groups = torch.tensor(proxies.group_of_class)
    for number in range(len(proxies)):
        predicted = predict(proxies.model(number, original), some.train, CPU).logits.argmax(dim=-1)
        left_out = groups[predicted] == number
        assert float(left_out.float().mean()) < 0.02


def test_each_image_is_predicted_by_a_proxy_that_never_saw_it(
    proxies: Proxies, original: famr.Classifier, some: Data
) -> None:
    samples = some.train.take(torch.arange(60))
    found = proxies.predict(original, samples, False, CPU)
    fold = folds(samples, original.require_preprocessing().channels, proxies.group_of_class, len(proxies))
    classes = proxies.predict(original, samples, True, CPU)
    for row in range(60):
        one = samples.take(torch.tensor([row]))
        by_fold = predict(proxies.model(int(fold[row]), original), one, CPU).logits[0]
        torch.testing.assert_close(found.logits[row], by_fold, rtol=0, atol=1e-4)
        group = proxies.group_of_class[int(one.targets[0])]
        by_class = predict(proxies.model(group, original), one, CPU).logits[0]
        torch.testing.assert_close(classes.logits[row], by_class, rtol=0, atol=1e-4)
        assert bool(found.known[row, one.targets[0]])
        assert not bool(classes.known[row, one.targets[0]])


def test_proxies_come_back_from_a_file(proxies: Proxies) -> None:
    again = Proxies.from_file(proxies.facts(), proxies.tensors())
    assert (again.facts(), again.names) == (proxies.facts(), proxies.names)
    for ours, theirs in zip(again.late, proxies.late, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_proxies_are_stored_in_half_precision_and_without_the_early_layers(
    proxies: Proxies, original: famr.Classifier
) -> None:
    whole = sum(tensor.nbytes for tensor in original.module.state_dict().values())
    stored = sum(tensor.nbytes for tensor in proxies.late[0].values())
    assert {tensor.dtype for tensor in proxies.late[0].values()} == {torch.float16}
    assert stored < whole / 2


def test_a_number_too_large_for_half_precision_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="too large for half precision"):
        halved({"a": torch.tensor([1e6])})


def test_proxies_refuse_a_model_with_other_early_layers(proxies: Proxies, digits: Data, some: Data) -> None:
    with pytest.raises(CheckpointError, match="other early layers"):
        proxies.predict(small_vit(digits, seed=3), some.train.take(torch.arange(4)), True, CPU)


def test_proxies_serve_a_model_whose_late_layers_were_edited(
    proxies: Proxies, original: famr.Classifier, some: Data
) -> None:
    edited = original.copy()
    with torch.no_grad():
        edited.module.get_parameter("head.bias").add_(1.0)
    few = some.train.take(torch.arange(8))
    ours, theirs = (proxies.predict(model, few, True, CPU).logits for model in (original, edited))
    torch.testing.assert_close(ours, theirs)


def test_images_without_a_class_are_refused_as_nobody_knows_who_saw_them(
    proxies: Proxies, original: famr.Classifier, some: Data
) -> None:
    unlabelled = some.train.take(torch.arange(4)).with_targets([-1] * 10)
    with pytest.raises(RequestError, match="4 of 4 images"):
        proxies.predict(original, unlabelled, True, CPU)


class WithBatchNorm(nn.Module):
    """Convolutions with BatchNorm, of which nothing but the code is known."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        )
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(images).mean(dim=(2, 3)) * self.scale
        logits: torch.Tensor = self.head(features)
        return logits


@pytest.fixture
def bare(digits: Data) -> famr.Classifier:
    torch.manual_seed(0)
    preprocessing = famr.Preprocessing(resize=8, crop=(8, 8), mean=(0.5,), std=(0.5,))
    return famr.Classifier(WithBatchNorm().eval(), digits.labels, preprocessing)


def test_batchnorm_follows_the_late_layers_of_a_proxy_and_stays_in_early_ones(
    bare: famr.Classifier, some: Data
) -> None:
    recipe = ProxyRecipe(famr.Training(epochs=4, batch_size=32), late_share=0.5)
    before = {name: tensor.clone() for name, tensor in bare.module.state_dict().items()}
    with proxy_trainer(bare, recipe, some.train, engine=ENGINE) as trainer:
        late = trainer.train()
        after = trainer.session.model.module.state_dict()
        assert not any(part.training for part in trainer.session.model.module.modules())
    assert torch.equal(before["body.0.1.running_mean"], after["body.0.1.running_mean"])
    assert not torch.equal(before["body.1.1.running_mean"], after["body.1.1.running_mean"])
    assert "body.1.1.running_var" in late
    assert all(torch.equal(tensor, before[name]) for name, tensor in bare.module.state_dict().items())


def test_late_layers_of_a_bare_module_are_drawn_anew(bare: famr.Classifier) -> None:
    names = late_layers(bare, 0.5)
    first, second = (redrawn(bare, names, seed).module.state_dict() for seed in (0, 1))
    for name, tensor in bare.module.state_dict().items():
        if name in names and tensor.ndim > 1:
            assert not torch.equal(first[name], tensor)
            assert not torch.equal(first[name], second[name])
        if name not in late_state(bare.module, names):
            assert torch.equal(first[name], tensor)


def test_the_digest_of_the_early_layers_depends_on_nothing_else(original: famr.Classifier) -> None:
    names = late_layers(original, 0.5)
    other = redrawn(original, names, seed=4)
    assert other.digest() != original.digest()
    assert early_digest(other.module, names) == early_digest(original.module, names)
    with torch.no_grad():
        next(other.module.parameters()).add_(1.0)
    assert early_digest(other.module, names) != early_digest(original.module, names)


def test_a_start_of_another_architecture_is_refused(
    original: famr.Classifier, bare: famr.Classifier, some: Data
) -> None:
    with (
        pytest.raises(CheckpointError, match="do not fit the network"),
        proxy_trainer(original, ProxyRecipe(famr.Training(), bare), some.train, engine=ENGINE),
    ):
        pass


def test_layers_that_do_not_fit_are_named(original: famr.Classifier) -> None:
    with pytest.raises(CheckpointError, match=r"head\.bias: \(3,\), expected \(10,\)"):
        with_late_state(original, {"head.bias": torch.zeros(3)})


def test_images_without_labels_cannot_train_a_proxy(original: famr.Classifier, recipe: ProxyRecipe, some: Data) -> None:
    unlabelled = some.train.with_targets([-1] * 10)
    with (
        pytest.raises(RequestError, match="the training images have no labels"),
        proxy_trainer(original, recipe, unlabelled, engine=ENGINE),
    ):
        pass


def test_batches_have_one_size_however_many_images_are_left_out() -> None:
    positions = torch.randperm(100, generator=torch.Generator().manual_seed(0))

    def passes() -> Iterator[Batch]:
        for part in positions.split(16):
            yield Batch(part[:, None].float(), part, part)

    keep = torch.arange(100) % 4 != 0
    found = [batch.positions for batch in full_batches(passes(), keep, 16)]
    assert {len(part) for part in found} == {16}
    kept = positions[keep[positions]]
    assert torch.equal(torch.cat(found), kept[: len(kept) // 16 * 16])


def test_a_proxy_that_is_less_sure_is_sharpened_to_the_originals_confidence_on_mistakes() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, generator=generator) * 4
    wrong = logits.argmin(dim=-1)
    known = torch.ones(5, dtype=torch.bool)
    found = proxy_temperature(Predictions(logits / 3, wrong), Predictions(logits, wrong), known)
    assert found == pytest.approx(1 / 3, rel=1e-3)


def test_where_mistakes_are_few_the_least_confident_images_are_compared() -> None:
    """Nine in ten are as sure for both models; the others decide."""
    known, labels = torch.ones(3, dtype=torch.bool), torch.zeros(300, dtype=torch.long)
    sure = torch.tensor([[20.0, 0.0, 0.0]]).repeat(300, 1)
    original, proxy = sure.clone(), sure.clone()
    original[:30, 0], proxy[:30, 0] = 3.0, 1.5
    found = proxy_temperature(Predictions(proxy, labels), Predictions(original, labels), known)
    assert found == pytest.approx(0.5, rel=1e-3)


def test_with_few_images_the_temperature_is_one() -> None:
    logits, labels = torch.eye(5).repeat(3, 1) * 5, torch.arange(5).repeat(3)
    known = torch.ones(5, dtype=torch.bool)
    assert proxy_temperature(Predictions(logits / 2, labels), Predictions(logits, labels), known) == 1.0


def test_mistakes_on_classes_that_the_proxy_never_saw_do_not_count() -> None:
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.full((200,), 3)
    known = torch.tensor([True, True, True, False])
    assert proxy_temperature(Predictions(logits, labels), Predictions(3 * logits, labels), known) == 1.0


def test_an_own_proxy_knows_the_retained_classes_and_not_the_forgotten_one(
    original: famr.Classifier, without_three: famr.Splits, recipe: ProxyRecipe
) -> None:
    assert without_three.retain is not None
    steps: list[int] = []
    found = own_proxy(
        original,
        without_three.retain,
        without_three.forget,
        without_three.test,
        recipe,
        engine=ENGINE,
        on_step=steps.append,
    )
    assert found.logits.shape == (len(without_three.forget), 10)
    assert found.known[0].tolist() == [index != 3 for index in range(10)]
    assert float((found.logits.argmax(dim=-1) == 3).float().mean()) < 0.02
    assert steps == list(range(1, recipe.short_training.steps(len(without_three.retain)) + 1))


def test_the_cost_counts_early_layers_once_and_late_ones_in_every_epoch(original: famr.Classifier) -> None:
    recipe = ProxyRecipe(famr.Training(epochs=8), epochs=2, late_share=0.5)
    plan = plan_proxy(original, recipe, images=1000)
    assert plan.share == pytest.approx((0.5 + 3 * 0.5 * 2) / 24)
    assert plan.operations == pytest.approx(forward_operations(original) * 3.5 * 1000)
    ten = plan_proxies(original, recipe, 1000, 10)
    assert ten.share == pytest.approx((0.5 + 8 * 3) / 24)


def test_operations_of_a_linear_layer_are_two_for_each_weight() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    preprocessing = famr.Preprocessing(resize=8, crop=(8, 8), mean=(0.5,), std=(0.5,))
    model = famr.Classifier(linear, tuple("0123456789"), preprocessing)
    assert blank_image(model).shape == (1, 1, 8, 8)
    assert forward_operations(model) == 2 * 64 * 10
