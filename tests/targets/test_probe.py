"""The probe: a linear classifier that never saw a style, in place of a model that never saw it."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import famr
from conftest import styled
from famr.data import Data
from famr.engine.plain import PlainSession
from famr.errors import RequestError
from famr.models.activations import capture_layer
from famr.targets import probe
from famr.targets.probe import INVERSE_PENALTY, mean_features, probe_target


def test_probe_target_is_a_logistic_regression_on_standardised_features() -> None:
    generator = torch.Generator().manual_seed(0)
    retained, forget = torch.randn(60, 5, generator=generator) * 3 + 1, torch.randn(7, 5, generator=generator)
    labels = (retained[:, 0] > 1).long() + (retained[:, 1] > 1).long()
    scaler, slow = StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=1000)
    slow.fit(scaler.fit_transform(retained.double().numpy()), labels.numpy())
    expected = torch.from_numpy(slow.predict_proba(scaler.transform(forget.double().numpy()))).float()
    target = probe_target(retained, labels, forget, classes=4)
    assert torch.allclose(target[:, :3], expected)
    assert (target[:, 3] == 0).all()  # a class without retained images is never predicted


def test_the_probe_is_fitted_by_one_thread_and_the_thread_limits_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more threads than cores a fit of a tenth of a second took ten."""
    inside: list[int] = []
    usual = LogisticRegression.fit

    def noted(classifier: LogisticRegression, *arguments: object) -> LogisticRegression:
        inside.extend(pool["num_threads"] for pool in threadpool_info())
        return usual(classifier, *arguments)

    monkeypatch.setattr(LogisticRegression, "fit", noted)
    with threadpool_limits(limits=2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        probe_target(torch.eye(4), torch.tensor([0, 0, 1, 1]), torch.eye(4), classes=2)
        assert [pool["num_threads"] for pool in threadpool_info()] == before
    assert 2 in before
    assert set(inside) == {1}


def test_features_are_the_layers_activations_averaged_over_positions(original: famr.Classifier, digits: Data) -> None:
    some = digits.train.take(torch.arange(9))
    session = PlainSession(original, torch.device("cpu"), "fp32", None)
    outputs: list[torch.Tensor] = []
    module = session.model.module
    module.blocks[0].register_forward_hook(lambda _m, _i, out: outputs.append(out.detach()))  # type: ignore[index,union-attr]
    with capture_layer(module, "blocks.0", channels_last=False) as layer:
        features, labels = mean_features(session, layer, session.image_batches(some, 4))
    tokens = torch.cat(outputs)
    assert torch.allclose(features, torch.stack([image.mean(dim=0) for image in tokens]), atol=1e-6)
    assert torch.equal(labels, some.targets)


def test_a_style_is_predicted_as_by_a_classifier_that_never_saw_it(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = famr.FAMR(beta=None, style_layer="blocks.0", strength=1.0, epochs=1, batch_size=64)
    result = famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.method.target == "probe"
    assert "never saw" in result.why
    assert result.history[-1].loss_forget < result.history[0].loss_forget


def test_the_probe_is_trained_on_a_sample_of_very_many_retained_images(
    original: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on: list[int] = []
    usual = probe_target

    def noted(retained: torch.Tensor, *rest: object) -> torch.Tensor:
        trained_on.append(len(retained))
        return usual(retained, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(probe, "probe_target", noted)
    monkeypatch.setattr(probe, "PROBE_IMAGES", 50)
    splits = famr.split(styled(digits), famr.Request(style=("style", "negative")))
    method = famr.FAMR(beta=None, style_layer="blocks.0", strength=1.0, epochs=1)
    famr.forget(original, splits, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert trained_on == [50]


def test_the_probe_is_for_styles_and_needs_labels(original: famr.Classifier, without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="needs a style layer"):
        famr.forget(original, without_three, famr.FAMR(target="probe"), device="cpu")
    with pytest.raises(RequestError, match="labelled retained images"):
        probe_target(torch.zeros(2, 3), torch.tensor([-1, -1]), torch.zeros(1, 3), classes=2)
