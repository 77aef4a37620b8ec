"""The attack of MIA-efficacy: what it is trained and tried on, and where it says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import famr
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates import GATES
from famr.audit.measurements import ModelMeasurements
from famr.audit.membership_attack import (
    MEMBERSHIP_DRAWS,
    MembershipCalls,
    membership_auc,
    membership_calls,
    why_powerless,
)
from famr.audit.ungated import membership_power
from famr.audit.verdict import GateResult
from famr.data.loaders import order
from famr.metrics.membership import predict_non_members
from famr.metrics.predictions import Predictions
from made_up import compared, measured, right_for

TARGETS = torch.arange(300) % 5


def predictions(confidence: float, seed: int) -> Predictions:
    noise = 2.0 * torch.randn(300, 5, generator=torch.Generator().manual_seed(seed))
    return Predictions(noise + confidence * F.one_hot(TARGETS, 5), TARGETS)


def attacked(overfitted: float) -> MembershipCalls:
    """On a model that is more confident about members by so much."""
    return membership_calls(predictions(1.0, 0), predictions(1.0 + overfitted, 1), predictions(1.0, 2), seed=7)


def auc_of(calls: MembershipCalls) -> Estimate:
    return membership_auc(calls.members, calls.non_members)


def test_draws_in_threads_are_those_of_a_loop_each_on_a_half_of_its_own() -> None:
    forget, retain, test = predictions(1.0, 0), predictions(3.0, 1), predictions(1.0, 2)
    true = [torch.softmax(each.logits, dim=-1)[torch.arange(300), TARGETS] for each in (retain, test, forget)]
    slow = []
    for draw in range(7, 7 + MEMBERSHIP_DRAWS):
        half = order(300, draw)[:150]
        slow.append(predict_non_members(true[0][half], true[1][half], true[2], draw))
    found = membership_calls(forget, retain, test, seed=7)
    assert torch.equal(found.forget, torch.stack(slow))
    assert found.forget.shape == (MEMBERSHIP_DRAWS, 300)
    assert 0 < float(found.forget.mean()) < 1
    assert len(found.forget.unique(dim=0)) > 1


def test_each_draw_is_tried_on_images_that_it_did_not_learn_from() -> None:
    found = attacked(2.0)
    for tried in (found.members, found.non_members):
        for draw, calls in enumerate(tried):
            assert sorted((~calls.isnan()).nonzero()[:, 0].tolist()) == sorted(order(300, 7 + draw)[150:].tolist())


def test_an_attack_on_a_model_that_overfits_works_and_one_on_a_model_that_does_not_is_guessing() -> None:
    works, guesses = auc_of(attacked(3.0)), auc_of(attacked(0.0))
    assert works.low is not None
    assert works.low > 0.6
    assert why_powerless(works) is None
    assert guesses.value == pytest.approx(0.5, abs=0.05)
    assert str(why_powerless(guesses)).startswith("the attack does not tell retained training images from test images")


def test_the_auc_is_balanced_accuracy_and_its_interval_covers_draws_and_images() -> None:
    generator = torch.Generator().manual_seed(0)
    members = (torch.rand(20, 400, generator=generator) < 0.3).double()
    non_members = (torch.rand(20, 100, generator=generator) < 0.5).double()
    found = membership_auc(members, non_members)
    assert found.value == pytest.approx((1 - float(members.mean()) + float(non_members.mean())) / 2)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.6 < found.high
    flipping = (torch.arange(20) % 2).double()[:, None].expand(20, 400)  # all images at once
    assert membership_auc(flipping, flipping[:, :100]) == Estimate(0.5, 0.5, 0.5)
    one_way = membership_auc(flipping, non_members)
    assert one_way.high is not None
    assert one_way.low is not None
    assert one_way.high - one_way.low > 2 * (found.high - found.low)
    assert "too few" in str(why_powerless(membership_auc(members[:, :5], non_members)))


# the gates

WORKS, GUESSES = Estimate(0.7, 0.6, 0.8), Estimate(0.51, 0.49, 0.53)


def model(share: float, auc: Estimate | None, called: Tensor | None = None) -> ModelMeasurements:
    """Right on this share of the forget set, all of which the attack calls non-members, or some of which it does."""
    base = measured(right_for(share, torch.arange(60) % 5), right_for(0.9, torch.arange(60) % 5))
    calls = torch.ones(MEMBERSHIP_DRAWS, 60, dtype=torch.double) if called is None else called
    return replace(base, non_members=calls, membership_auc=auc)


ALL_MEMBERS = torch.zeros(MEMBERSHIP_DRAWS, 60, dtype=torch.double)


def measure(gate: str, splits: famr.Splits, unlearned: Estimate | None, retrained: Estimate | None) -> Estimates:
    """Of an original and an unlearned model that the attack calls members, beside models that it calls non-members."""
    audited = {"unlearned": model(0.0, unlearned, ALL_MEMBERS), "original": model(1.0, WORKS, ALL_MEMBERS)}
    return GATES[gate].measure(compared(splits, audited, [model(0.0, WORKS)] * 4 + [model(0.0, retrained)]))


@pytest.mark.parametrize("gate", ["mia_efficacy_gap", "average_gap"])
def test_a_gate_on_membership_cannot_tell_where_the_attack_is_guessing(without_three: famr.Splits, gate: str) -> None:
    """Without the rule a truly retrained model that one coin calls members fails, as here."""
    told = GateResult.of(GATES[gate], measure(gate, without_three, WORKS, WORKS), GATES[gate].threshold)
    assert (told.verdicts["unlearned"], told.not_counted) == ("fail", None)
    for unlearned in (GUESSES, None):  # also where it was not measured
        blind = GateResult.of(GATES[gate], measure(gate, without_three, unlearned, WORKS), GATES[gate].threshold)
        assert (blind.verdicts["unlearned"], blind.verdicts["original"]) == ("cannot tell", "fail")
        assert blind.not_counted is None  # a model on which the attack fails must not pass by that
        assert "on this model" in str(blind.figures["unlearned"].why_not)


@pytest.mark.parametrize("gate", ["mia_efficacy_gap", "average_gap"])
def test_a_gate_on_membership_does_not_count_where_the_attack_is_guessing_on_retrained_models(
    without_three: famr.Splits, gate: str
) -> None:
    found = GateResult.of(GATES[gate], measure(gate, without_three, WORKS, GUESSES), GATES[gate].threshold)
    assert set(found.verdicts.values()) == {"cannot tell"}
    assert found.not_counted == "it cannot tell on the original here"
    assert "on a retrained model the attack does not tell" in str(found.figures["unlearned"].why_not)


def test_the_auc_of_the_attack_is_stated_for_each_model(without_three: famr.Splits) -> None:
    models = compared(without_three, {"unlearned": model(0.0, GUESSES)}, [model(0.0, WORKS)])
    found = membership_power(models)
    assert {name: auc["value"] for name, auc in found["auc"].items()} == {"unlearned": 0.51, "retrained": 0.7}
    assert found["needs_retrained"] is False
