"""The proxy target: a mixture without forgotten classes, as confident as the proxy, filled up where it lacks."""

from __future__ import annotations

import math

import pytest
import torch

from famr.errors import RequestError
from famr.metrics.forgetting import entropy
from famr.targets import ProxyPredictions
from famr.targets.proxy import complete, odds_ceiling, proxy_target
from famr.targets.tempered import matching_temperature

FORGOTTEN = torch.tensor([2])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masked(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits.index_fill(-1, FORGOTTEN, -torch.inf), dim=-1)


def predictions(logits: torch.Tensor, unknown: tuple[int, ...] = (2,), temperature: float = 1.0) -> ProxyPredictions:
    known = torch.ones(logits.shape, dtype=torch.bool)
    known[:, list(unknown)] = False
    return ProxyPredictions(logits, known, torch.full((len(logits),), temperature, dtype=logits.dtype))


def test_the_target_is_the_geometric_mean_with_the_proxys_entropy() -> None:
    z, base = random(20, 5), masked(random(20, 5, seed=1))
    proxy = masked(z)
    mixed = 0.5 * (proxy.log() + base.clamp(min=1e-30).log())
    mixed[:, 2] = -torch.inf
    mean_entropy = float(torch.special.entr(proxy).sum(dim=-1).mean())
    expected = torch.softmax(mixed / matching_temperature(mixed, mean_entropy), dim=-1)
    found = proxy_target(predictions(z), FORGOTTEN, base)
    torch.testing.assert_close(found, expected)
    assert float(torch.special.entr(found).sum(dim=-1).mean()) == pytest.approx(mean_entropy, abs=1e-6)


def test_forgotten_classes_get_no_probability_and_the_others_sum_to_one() -> None:
    found = proxy_target(predictions(random(8, 5)), FORGOTTEN, masked(random(8, 5, seed=1)))
    assert bool((found[:, 2] == 0).all())
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(8, dtype=torch.float64))


def test_where_both_agree_the_target_is_what_both_say() -> None:
    z = random(8, 5)
    torch.testing.assert_close(proxy_target(predictions(z), FORGOTTEN, masked(z)), masked(z), atol=1e-6, rtol=0)


def test_the_temperature_of_a_proxy_divides_its_logits() -> None:
    z, base = random(8, 5), masked(random(8, 5, seed=1))
    sharpened = proxy_target(predictions(z / 2, temperature=0.5), FORGOTTEN, base)
    torch.testing.assert_close(sharpened, proxy_target(predictions(z), FORGOTTEN, base))


def test_classes_that_a_proxy_left_out_besides_keep_the_originals_share() -> None:
    z, base = random(8, 5), masked(random(8, 5, seed=1))
    both = predictions(z, unknown=(2, 4))
    log_p = torch.log_softmax(z.index_fill(-1, torch.tensor([2, 4]), -torch.inf), dim=-1)
    filled = complete(log_p, both.known, base.clamp(min=1e-30).log().index_fill(-1, FORGOTTEN, -torch.inf)).exp()
    torch.testing.assert_close(filled[:, 4], base[:, 4])
    torch.testing.assert_close(filled.sum(dim=-1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(filled[:, 0] / filled[:, 1], log_p[:, 0].exp() / log_p[:, 1].exp())


def test_each_image_has_a_proxy_of_its_own() -> None:
    z, base = random(2, 5), masked(random(2, 5, seed=1))
    known = torch.tensor([[True, True, False, True, False], [False, True, False, True, True]])
    found = proxy_target(ProxyPredictions(z, known, torch.ones(2)), FORGOTTEN, base)
    assert bool((found[:, 2] == 0).all())
    assert bool((found[:, [0, 1, 3, 4]] > 0).all())


def test_the_ceiling_is_the_odds_of_what_a_proxy_never_saw_against_the_rest_that_it_knows() -> None:
    """Of five classes 0 and 1 are forgotten; the proxy saw 1, which counts on neither side, and not 4."""
    z = torch.tensor([[0.1, 0.5, 0.2, 0.15, 0.05]]).log()
    proxy = ProxyPredictions(z, torch.tensor([[False, True, True, True, False]]), torch.tensor([0.5]))
    ceiling = odds_ceiling(proxy, torch.tensor([0, 1]))
    assert ceiling.highest.exp().tolist() == pytest.approx([0.1 / 0.35])
    own = torch.tensor([[0.3, 0.0001, 0.1, 0.05, 0.5], [0.001, 0.9, 0.1, 0.05, 0.5]]).log()
    excess = ceiling.excess(own, torch.tensor([0, 0]))
    assert excess.tolist() == pytest.approx([(math.log(0.3 / 0.15) - math.log(0.1 / 0.35)) ** 2, 0.0])


def test_without_a_base_the_target_is_the_proxys_own_prediction() -> None:
    z = random(6, 5)
    nothing = torch.tensor([], dtype=torch.long)
    torch.testing.assert_close(proxy_target(predictions(z, ()), nothing, None), torch.softmax(z, dim=-1))


@pytest.mark.parametrize("unknown", [(0, 1, 3, 4), (0, 1, 2, 3, 4)])
def test_a_request_that_covers_all_that_a_proxy_knows_is_refused(unknown: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="not trained on the classes"):
        proxy_target(predictions(random(3, 5), unknown), FORGOTTEN, masked(random(3, 5, seed=1)))


def test_a_proxy_alone_has_to_know_all_remaining_classes() -> None:
    with pytest.raises(RequestError, match="not trained on the classes"):
        proxy_target(predictions(random(3, 5), (2, 4)), FORGOTTEN, None)


def test_probabilities_that_were_rounded_to_zero_leave_the_target_finite() -> None:
    base = torch.zeros(2, 5, dtype=torch.float64)
    base[:, 0] = 1.0
    found = proxy_target(predictions(random(2, 5)), FORGOTTEN, base)
    assert bool(torch.isfinite(found).all())
    assert bool(torch.isfinite(entropy(found.clamp(min=1e-30).log())).all())
