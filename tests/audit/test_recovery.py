"""Features by layer, probes, prototypes, attacks on the head, class recovery, and CKA."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import famr
from audited import same_weights, weights_of, with_low_bias
from famr.audit.cka import layer_cka, linear_cka
from famr.audit.estimate import Estimate, gap_estimate
from famr.audit.gates import GATES
from famr.audit.gates.recovery import recovered_by
from famr.audit.head_attacks import (
    ACCEPTED_LOSS,
    BiasTies,
    best_bias,
    bias_ties,
    recovered_by_resampled_bias,
    with_head_of,
)
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import difference
from famr.audit.prediction_bound import Shares
from famr.audit.probes import FewShot, few_of_each, neighbour_predictions, probe_predictions, prototype_head
from famr.audit.recovery import AttackHits, ClassRecovery, recover_classes
from famr.audit.verdict import GateResult, verdict_of
from famr.data import Data
from famr.data.loaders import image_batches
from famr.engine.features import PENULTIMATE, layer_features
from famr.engine.inference import predict
from famr.errors import CheckpointError, DataError, RequestError
from famr.models.layers import block_names, head_of
from famr.targets.probe import INVERSE_PENALTY
from famr.training import Trained
from made_up import compared, measured, right_for

CPU = torch.device("cpu")
ONE_DRAW = FewShot(shots=5, draws=1)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# features


def test_features_of_a_layer_are_its_mean_output_and_the_penultimate_ones_give_the_logits(
    original: famr.Classifier, digits: Data
) -> None:
    some = digits.train.take(torch.arange(9))
    before = weights_of(original)
    found = layer_features(original, some, CPU, ("blocks.0", "blocks.1", PENULTIMATE))
    seen: list[Tensor] = []
    handle = original.module.blocks[1].register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))  # type: ignore[index,union-attr]
    logits = predict(original, some, CPU).logits
    handle.remove()
    assert torch.allclose(found["blocks.1"], torch.stack([tokens.mean(dim=0) for tokens in seen[0]]), atol=1e-6)
    head = head_of(original)
    assert torch.allclose(found[PENULTIMATE] @ head.weight.T + head.bias, logits, atol=1e-5)
    assert same_weights(before, weights_of(original))
    assert not original.module._forward_hooks
    with pytest.raises(RequestError, match="no layer"):
        layer_features(original, some, CPU, ("blocks.7",))


def test_the_blocks_of_a_network_are_found_in_the_order_of_their_calls(original: famr.Classifier) -> None:
    assert block_names(original) == ("blocks.0", "blocks.1")

    class Stages(torch.nn.Module):
        """Stages declared in another order than they are called in, around a part that only groups others."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 10)
            self.late = torch.nn.ModuleList([torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 4, 1)])
            self.norm = torch.nn.BatchNorm2d(4)
            self.early = torch.nn.Conv2d(original.require_preprocessing().channels, 4, 3)

        def forward(self, images: Tensor) -> Tensor:
            found = self.norm(self.early(images))
            for part in self.late:
                found = part(found)
            return self.fc(found.mean(dim=(2, 3)))

    assert block_names(replace(original, module=Stages())) == ("early", "late.0", "late.1")


# probes


def test_the_probe_predicts_as_scikit_learn_does() -> None:
    known, queries = drawn(40, 3) * 2 + 1, drawn(20, 3, seed=1)
    labels = (known[:, 0] > 1).long() * 2 + (known[:, 1] > 1).long()
    scaler = StandardScaler().fit(known.numpy())
    slow = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit(scaler.transform(known.numpy()), labels.numpy())
    assert (
        probe_predictions(known, labels, queries).tolist() == slow.predict(scaler.transform(queries.numpy())).tolist()
    )


def test_neighbours_vote_as_in_a_slow_loop() -> None:
    known, queries, labels = drawn(30, 4), drawn(25, 4, seed=1), torch.arange(30) % 3
    expected = []
    for query in queries:
        angles = [float(query @ point / (query.norm() * point.norm())) for point in known]
        nearest = sorted(range(30), key=lambda index: -angles[index])[:5]
        votes = Counter(int(labels[index]) for index in nearest)
        expected.append(min(votes, key=lambda label: (-votes[label], label)))
    assert neighbour_predictions(known, labels, queries).tolist() == expected
    assert torch.equal(
        neighbour_predictions(known[:2], labels[:2], known[:1]), labels[:1]
    )  # fewer points than neighbours


def test_few_of_each_are_drawn_by_the_seed_alone() -> None:
    labels = torch.arange(60) % 3
    first, again, other = (few_of_each(labels, 4, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert Counter(labels[first].tolist()) == {0: 4, 1: 4, 2: 4}
    uneven = torch.tensor([5, 2, 5, 5, 9, 2, 5, 5, 2])
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(7)).tolist()
    slow = {label: [index for index in shuffled if int(uneven[index]) == label][:3] for label in (2, 5, 9)}
    assert few_of_each(uneven, 3, seed=7).tolist() == [*slow[2], *slow[5], *slow[9]]


def test_a_prototype_row_is_the_mean_direction_with_the_mean_norm_of_the_remaining_rows() -> None:
    weight, bias, features, labels = drawn(4, 5), drawn(4), drawn(6, 5, seed=1), torch.tensor([1, 1, 1, 3, 3, 0])
    new_weight, new_bias = prototype_head(weight, bias, features, labels, classes=[1, 3])
    length = (math.sqrt(sum(weight[0] ** 2)) + math.sqrt(sum(weight[2] ** 2))) / 2
    for row in (1, 3):
        mean = sum(features[index] / features[index].norm() for index in range(6) if labels[index] == row)
        assert torch.allclose(new_weight[row], length * mean / mean.norm())  # type: ignore[union-attr]
        assert torch.isclose(new_bias[row], (bias[0] + bias[2]) / 2)
    assert torch.equal(new_weight[[0, 2]], weight[[0, 2]])
    hidden = bias.clone()
    hidden[1] -= 1000  # the old row does not matter
    assert torch.equal(prototype_head(weight, hidden, features, labels, [1])[1][1], hidden[[0, 2, 3]].mean())
    with pytest.raises(DataError, match="no image of class 2"):
        prototype_head(weight, bias, features, labels, classes=[2])
    with pytest.raises(DataError, match="Every class"):
        prototype_head(weight, bias, features, labels, classes=[0, 1, 2, 3])


# head


def test_the_best_bias_is_that_of_a_search_whatever_bias_the_model_has() -> None:
    forget, retain = drawn(30, 5) + torch.tensor([0, 0, 0, 1.0, 1.0]), drawn(200, 5, seed=1)
    forget_labels, retain_labels = torch.arange(30) % 2 + 3, retain[:, :3].argmax(dim=1)
    retain_labels[:40] = 0
    retain[:, 3:] -= 1.0
    found = best_bias(bias_ties(forget, forget_labels, retain, retain_labels, classes=[3, 4]))

    def right(logits: Tensor, labels: Tensor, bias: float) -> float:
        return float(((logits + bias * torch.tensor([0, 0, 0, 1, 1])).argmax(dim=1) == labels).double().mean())

    before = right(retain, retain_labels, -99.0)
    allowed = [
        bias
        for bias in torch.linspace(-6, 6, 6001).tolist()
        if right(retain, retain_labels, bias) >= before - ACCEPTED_LOSS
    ]
    assert found.bias == pytest.approx(max(allowed), abs=0.003)
    assert float(found.forget.mean()) == pytest.approx(max(right(forget, forget_labels, bias) for bias in allowed))
    assert before - ACCEPTED_LOSS <= float(found.retain.mean()) + 1e-9
    shifted = forget.clone(), retain.clone()
    for logits in shifted:
        logits[:, 3:] -= 50  # a bias hides nothing from this attack
    again = best_bias(bias_ties(shifted[0], forget_labels, shifted[1], retain_labels, classes=[3, 4]))
    assert again.bias == pytest.approx(found.bias + 50)
    assert torch.equal(again.forget, found.forget)


def test_other_retained_images_set_another_bias_and_change_all_hits_at_once() -> None:
    """All forget images tie at 0, so that none is recovered below that bias and all are above it."""
    forget, retain = torch.zeros(40), torch.linspace(-0.02, 2, 300)
    ties = BiasTies(forget, retain)
    assert best_bias(ties).forget.mean() == 1.0
    found = recovered_by_resampled_bias(ties, 2000, seed=0)
    assert found.shape == (2000,)
    assert set(found.tolist()) == {0.0, 1.0}
    above = stats.binom.cdf(3, 300, 3 / 300)  # at most 3 of a sample are among the three below 0
    assert float(found.mean()) == pytest.approx(above, abs=0.03)
    assert torch.equal(found, recovered_by_resampled_bias(ties, 2000, seed=0))
    slow = sorted(retain.tolist())[math.floor(ACCEPTED_LOSS * 300)]
    assert best_bias(ties).bias == pytest.approx(slow)


def test_a_wrong_retained_image_cannot_be_lost_and_sets_no_bias() -> None:
    ties = BiasTies(torch.tensor([0.5, math.inf]), torch.tensor([math.nan, 1.0, math.inf]))
    assert best_bias(ties).bias == 1.0
    assert best_bias(ties).forget.tolist() == [1.0, 0.0]
    assert best_bias(ties).retain.tolist() == [0.0, 1.0, 1.0]
    nothing_to_lose = BiasTies(torch.tensor([0.5, math.inf]), torch.tensor([math.nan, math.nan]))
    assert best_bias(nothing_to_lose).bias == math.inf
    assert recovered_by_resampled_bias(nothing_to_lose, 1, seed=0).item() in (0.0, 0.5, 1.0)


def test_the_gate_on_the_best_bias_cannot_tell_where_a_few_retained_images_decide(without_three: famr.Splits) -> None:
    """Its interval over forget images alone is one point, beyond the threshold: the gate failed such a model."""

    def model(forget: float, tied: float) -> ModelMeasurements:
        ties = BiasTies(torch.full((40,), tied), torch.linspace(-0.02, 2, 300))
        hits = {"best_bias": AttackHits(torch.full((40,), forget), None)}
        predictions = right_for(0.0, torch.arange(40) % 5)
        return replace(measured(predictions, predictions), recovery=ClassRecovery(hits, {}, "", ties))

    retrained = [model(0.0, 9.0)] * 5
    models = compared(without_three, {"unlearned": model(1.0, 0.0), "original": model(1.0, -1.0)}, retrained)
    found = GateResult.of(GATES["best_bias_gap"], GATES["best_bias_gap"].measure(models), 0.1)
    over_images_alone = gap_estimate(difference(models.unlearned, retrained, recovered_by("best_bias")))
    assert verdict_of(over_images_alone, 0.1, 0.1) == "fail"
    assert found.figures["unlearned"] == Estimate(1.0, 0.0, 1.0)
    assert found.verdicts["unlearned"] == "cannot tell"
    assert found.verdicts["original"] == "fail"


@pytest.mark.parametrize(
    ("gate", "attack"),
    [
        ("best_bias_gap", "best_bias"),
        ("probe_gap", "probe"),
        ("neighbours_gap", "neighbours"),
        ("original_head_gap", "original_head"),
    ],
)
def test_gates_on_recovery_are_bounded_by_shares_of_images(without_three: famr.Splits, gate: str, attack: str) -> None:
    def model(recovered: int) -> ModelMeasurements:
        hits = AttackHits((torch.arange(40) < recovered).float(), None)
        ties = BiasTies(torch.where(hits.forget == 1, -1.0, 9.0), torch.zeros(300))
        predictions = right_for(0.0, torch.arange(40) % 5)
        recovery = ClassRecovery({"as_it_is": hits, attack: hits}, {}, "", ties)
        return replace(measured(predictions, predictions), recovery=recovery)

    recovered = (0, 1, 0, 2, 0)
    found = GATES[gate].measure(compared(without_three, {"unlearned": model(4)}, [model(each) for each in recovered]))
    assert found.spread == Shares(tuple(each / 40 for each in recovered), 40)
    assert found.by_model["unlearned"].value == pytest.approx(0.1 - 3 / 200)


def test_the_head_is_transplanted_into_a_copy(original: famr.Classifier) -> None:
    hidden = with_low_bias(original)
    before = weights_of(hidden)
    assert same_weights(weights_of(with_head_of(hidden, original, bias_only=True)), weights_of(original))
    assert same_weights(weights_of(with_head_of(hidden, original)), weights_of(original))
    assert same_weights(before, weights_of(hidden))
    other = hidden.copy()
    other.module.head = torch.nn.Linear(64, 7)
    with pytest.raises(CheckpointError, match="do not fit"):
        with_head_of(other, original)


# CKA


def test_cka_is_the_formula_with_centring_matrices() -> None:
    x, y = drawn(12, 4) + 3, drawn(12, 6, seed=1)
    y[:, :2] += x[:, :2]
    centring = torch.eye(12) - torch.ones(12, 12) / 12
    k, other = x @ x.T, y @ y.T

    def hsic(a: Tensor, b: Tensor) -> Tensor:
        return torch.trace(a @ centring.double() @ b @ centring.double())

    assert linear_cka(x, y) == pytest.approx(float(hsic(k, other) / (hsic(k, k) * hsic(other, other)).sqrt()))
    assert linear_cka(x, y) == pytest.approx(linear_cka(y, x))


def test_cka_is_one_with_itself_or_rotated_and_small_with_noise() -> None:
    x = drawn(2000, 8)
    rotation = torch.linalg.qr(drawn(8, 8, seed=2)).Q
    assert linear_cka(x, x) == pytest.approx(1)
    assert linear_cka(x, 3 * x @ rotation + 7) == pytest.approx(1)
    assert linear_cka(x, drawn(2000, 8, seed=3)) < 0.02
    assert linear_cka(x[:10], drawn(10, 8, seed=3)) > 0.2  # the plain estimate, with too few images
    assert math.isnan(linear_cka(x, torch.ones(2000, 3)))
    assert list(layer_cka({"a": x, "b": x, "c": x}, {"c": x, "a": x})) == ["a", "c"]
    with pytest.raises(DataError, match="same two or more images"):
        linear_cka(x, x[:5])


# all of it


def test_no_bias_brings_back_a_class_never_seen(without_three: famr.Splits, retrained_runs: list[Trained]) -> None:
    found = [recover_classes(run.model, without_three, few_shot=ONE_DRAW, device="cpu") for run in retrained_runs]
    assert statistics.fmean(each.hits["best_bias"].forget_accuracy for each in found) < 0.2


def test_a_hidden_class_is_found_and_a_class_never_seen_is_not(
    original: famr.Classifier, without_three: famr.Splits, retrained: famr.Classifier
) -> None:
    hidden, before = with_low_bias(original), weights_of(original)
    found = {
        name: recover_classes(model, without_three, original=original, retrained=retrained, device="cpu")
        for name, model in (("original", original), ("hidden", hidden), ("retrained", retrained))
    }
    assert found["hidden"].hits["as_it_is"].forget_accuracy == 0  # by its predictions the class is forgotten
    assert found["retrained"].hits["as_it_is"].forget_accuracy == 0
    for attack in ("probe", "neighbours", "best_bias", "original_head", "original_bias"):
        accuracy = {name: recovery.hits[attack].forget_accuracy for name, recovery in found.items()}
        assert accuracy["hidden"] == pytest.approx(accuracy["original"]), attack
        assert accuracy["hidden"] > 0.8, attack
        assert accuracy["retrained"] < accuracy["hidden"] - 0.25, attack
    prototype = {name: recovery.hits["prototype"].forget_accuracy for name, recovery in found.items()}
    assert prototype["hidden"] > prototype["retrained"] + 0.1
    assert found["retrained"].hits["original_bias"].forget_accuracy < 0.1
    for images in ("forget", "retain"):
        assert all(value == pytest.approx(1) for value in found["hidden"].cka["original"][images].values())
        assert all(value < 0.95 for value in found["retrained"].cka["original"][images].values())
    assert list(found["hidden"].cka["retrained"]["forget"]) == ["blocks.0", "blocks.1", PENULTIMATE]
    assert same_weights(before, weights_of(original))
    assert json.loads(json.dumps(found["hidden"].to_json()))["probe"]["counts"]["forget"] == len(
        without_three.forget_test  # type: ignore[arg-type]
    )


def test_the_prototype_attack_on_a_split_is_the_written_out_one(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    found = recover_classes(original, without_three, few_shot=FewShot(1000, 1), device="cpu", layers=())
    batches = image_batches(without_three.forget, original.require_preprocessing(), 4096, CPU)
    features = layer_features(original, without_three.forget, CPU)[PENULTIMATE]
    assert len(next(iter(batches(None))).images) == len(features)
    head = original.copy()
    layer = head_of(head)
    weight, bias = prototype_head(layer.weight, layer.bias, features, without_three.forget.targets, [3])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    assert without_three.forget_test is not None
    logits = predict(head, without_three.forget_test, CPU).logits
    expected = float((logits.argmax(dim=1) == 3).float().mean())
    assert found.hits["prototype"].forget_accuracy == pytest.approx(expected)


def test_attacks_without_their_data_are_missing_with_a_reason(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    bare = replace(without_three, retain=None, test=None, forget_test=None)
    found = recover_classes(original, bare, few_shot=FewShot(5, 2), device="cpu")
    assert set(found.hits) == {"as_it_is", "prototype"}
    assert found.to_json()["probe"] is found.to_json()["original_head"] is None
    assert found.cka == {}
    assert found.measured_on == "half of the forget set"
    assert set(found.not_available) >= {"probe", "best_bias", "original_head", "cka to retrained"}
    assert found.hits["prototype"].forget_accuracy > 0.8
    assert found.hits["prototype"].retain_accuracy is None
    one = replace(bare, forget=bare.forget.take(torch.tensor([0])))
    with pytest.raises(RequestError, match="there is only one"):
        recover_classes(original, one, device="cpu")


def test_class_recovery_needs_forgotten_classes(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=[0, 1, 2]))
    with pytest.raises(RequestError, match="whole forgotten classes"):
        recover_classes(original, splits, device="cpu")
