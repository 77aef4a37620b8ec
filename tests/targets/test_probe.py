"""The stand-in for a model that never saw a style."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import famr
from conftest import styled
from famr.data import Data
from famr.errors import RequestError
from famr.models.activations import capture_layer
from famr.targets.probe import IMAGES, RIDGE, mean_features, probe_images, probe_target


def test_probe_target_is_a_logistic_regression_on_standardised_features() -> None:
    generator = torch.Generator().manual_seed(0)
    kept, forget = torch.randn(60, 5, generator=generator) * 3 + 1, torch.randn(7, 5, generator=generator)
    labels = (kept[:, 0] > 1).long() + (kept[:, 1] > 1).long()
    scaler = StandardScaler().fit(kept.double().numpy())
    slow = LogisticRegression(C=RIDGE, max_iter=1000).fit(scaler.transform(kept.double().numpy()), labels.numpy())
    expected = torch.from_numpy(slow.predict_proba(scaler.transform(forget.double().numpy()))).float()
    found = probe_target(kept, labels, forget, classes=4)
    assert torch.allclose(found[:, :3], expected)
    assert (found[:, 3] == 0).all()  # a class without retained images is never answered


def test_the_probe_is_fitted_by_one_thread_and_others_have_theirs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more threads than cores a fit of a tenth of a second took ten."""
    inside: list[int] = []
    usual = LogisticRegression.fit

    def noted(probe: LogisticRegression, *given: object) -> LogisticRegression:
        inside.extend(pool["num_threads"] for pool in threadpool_info())
        return usual(probe, *given)

    monkeypatch.setattr(LogisticRegression, "fit", noted)
    with threadpool_limits(limits=2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        probe_target(torch.eye(4), torch.tensor([0, 0, 1, 1]), torch.eye(4), classes=2)
        assert [pool["num_threads"] for pool in threadpool_info()] == before
    assert 2 in before
    assert set(inside) == {1}


def test_features_are_the_layers_activations_averaged_over_positions(original: famr.Classifier, digits: Data) -> None:
    from famr.data.loaders import image_batches

    some = digits.train.take(torch.arange(9))
    batches = image_batches(some, original.require_preprocessing(), 4, torch.device("cpu"))
    seen: list[torch.Tensor] = []
    handle = original.module.blocks[0].register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))  # type: ignore[index,union-attr]
    with capture_layer(original.module, "blocks.0", channels_last=False) as tap:
        features, labels = mean_features(original.module, tap, batches(None))
    handle.remove()
    tokens = torch.cat(seen)
    assert torch.allclose(features, torch.stack([image.mean(dim=0) for image in tokens]), atol=1e-6)
    assert torch.equal(labels, some.targets)


def test_a_style_is_answered_as_by_a_classifier_that_never_saw_it(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = famr.FAMR(beta=None, style_layer="blocks.0", strength=1.0, epochs=1, batch_size=64)
    result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.target == "probe"
    assert "never saw" in result.why
    assert result.history[-1].loss_forget < result.history[0].loss_forget


def test_few_of_very_many_retained_images_are_enough(digits: Data) -> None:
    assert probe_images(None) is None
    assert len(probe_images(digits.train)) == min(IMAGES, len(digits.train))  # type: ignore[arg-type]


def test_the_probe_is_for_styles_and_needs_labels(original: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="for styles"):
        famr.forget(original, without_three, famr.FAMR(target="probe"), device="cpu")
    with pytest.raises(RequestError, match="labelled retained images"):
        probe_target(torch.zeros(2, 3), torch.tensor([-1, -1]), torch.zeros(1, 3), classes=2)
