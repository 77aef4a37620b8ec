"""The probe of a style on Gram features."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import famr
from audited import same_weights, weights_of
from conftest import styled
from famr.audit import style_probe
from famr.audit.audit import audit
from famr.audit.probes import FewShot, few_of_each
from famr.audit.style_probe import StyleLayer, gram_features, probe_style, upper_triangle
from famr.data import Data
from famr.errors import DataError, RequestError
from famr.targets.probe import INVERSE_PENALTY

CPU = torch.device("cpu")
BLOCK = StyleLayer("blocks.0")


@pytest.fixture(scope="module")
def without_negatives(digits: Data) -> famr.Splits:
    return famr.split(styled(digits), famr.Request(style=("style", "negative")))


class Tinted(nn.Module):
    """One layer: edges, of which a negative changes the sign alone, and brightness where it `sees` that."""

    def __init__(self, sees: bool) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)
        self.head = nn.Linear(3, 10)
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.bias.zero_()  # type: ignore[union-attr]
            self.layer.weight[0, 0, 1] = torch.tensor([-1.0, 0.0, 1.0])
            self.layer.weight[1, 0, :, 1] = torch.tensor([-1.0, 0.0, 1.0])
            self.layer.weight[2, 0] = float(sees)
            self.layer.bias[2] = 9.0 * sees  # type: ignore[index]  # from −9 … 9 to 0 … 18: Gram matrices know no sign

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(images).mean(dim=(2, 3)))
        return logits


def test_gram_features_are_the_upper_triangle_of_a_slow_loop(original: famr.Classifier, digits: Data) -> None:
    some = digits.train.take(torch.arange(4))
    seen: list[Tensor] = []
    handle = original.module.blocks[0].register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))  # type: ignore[index,union-attr]
    before = weights_of(original)
    found = gram_features(original, some, BLOCK, CPU)
    handle.remove()
    tokens = seen[0]  # (images, tokens, channels)
    assert found.shape == (4, 64 * 65 // 2)
    for image, channel in ((0, 0), (3, 1), (2, 63)):
        first = sum(tokens[image, token, 0] * tokens[image, token, channel] for token in range(tokens.shape[1]))
        assert torch.isclose(found[image, channel], torch.as_tensor(first), rtol=1e-4)
    assert same_weights(before, weights_of(original))


def test_of_a_large_gram_matrix_the_same_entries_are_taken_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gram = torch.arange(32.0).reshape(2, 4, 4)
    monkeypatch.setattr(style_probe, "ENTRIES", 5)
    assert torch.equal(upper_triangle(gram), upper_triangle(gram.clone()))
    assert upper_triangle(gram).shape == (2, 5)
    whole = {0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 10.0, 11.0, 15.0}
    assert set(upper_triangle(gram)[0].tolist()) < whole


def test_the_probe_recognises_the_style_only_at_a_layer_that_depends_on_it(
    original: famr.Classifier, without_negatives: famr.Splits
) -> None:
    found = {
        sees: probe_style(replace(original, module=Tinted(sees)), without_negatives, StyleLayer("layer"), device="cpu")
        for sees in (True, False)
    }
    assert found[True].balanced_accuracy > 0.95
    assert found[False].balanced_accuracy < 0.65
    assert json.loads(json.dumps(found[True].to_json()))["layer"] == "layer"


def test_the_audit_of_a_style_compares_with_models_that_never_saw_it(
    original: famr.Classifier, without_negatives: famr.Splits
) -> None:
    torch.manual_seed(0)  # the heads differ, the features do not
    sees, *blind = (replace(original, module=Tinted(see)) for see in (True, False, False, False))
    found = audit(
        blind[0],
        without_negatives,
        original=sees,
        retrained=blind[1:],
        style=StyleLayer("layer"),
        quick=True,
        device="cpu",
    )
    gate = next(check for check in found.checks if check.name == "style_gap")
    assert gate.verdicts == {"unlearned": "pass", "original": "fail", "retrained": "pass"}
    assert gate.not_counted is None
    assert gate.figures["unlearned"].value == pytest.approx(0.0)
    read = {name: found.stated["style"][name]["balanced_accuracy"] for name in ("original", "retrained")}
    assert gate.figures["original"].value == pytest.approx(read["original"] - read["retrained"], abs=1e-6)
    with pytest.raises(RequestError, match="No style was forgotten"):
        audit(sees, replace(without_negatives, request=famr.Request(samples=[1])), style=StyleLayer("layer"))


def test_one_draw_is_a_logistic_regression_on_standardised_gram_features(
    original: famr.Classifier, without_negatives: famr.Splits
) -> None:
    splits = without_negatives
    assert splits.retain is not None
    assert splits.test is not None
    assert splits.forget_test is not None
    found = probe_style(original, splits, BLOCK, few_shot=FewShot(10, 1, 4), device="cpu")
    again = probe_style(original, splits, BLOCK, few_shot=FewShot(10, 1, 4), device="cpu")
    assert torch.equal(found.forget, again.forget)
    learned = [images.take(few_of_each(torch.zeros(len(images)), 10, 4)) for images in (splits.forget, splits.retain)]
    known = torch.cat([gram_features(original, images, BLOCK, CPU) for images in learned]).double().numpy()
    scaler = StandardScaler().fit(known)
    slow = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit(scaler.transform(known), [0] * 10 + [1] * 10)
    for images, style, hits in ((splits.forget_test, 0, found.forget), (splits.test, 1, found.retain)):
        queries = gram_features(original, images, BLOCK, CPU).double().numpy()
        assert hits.tolist() == (slow.predict(scaler.transform(queries)) == style).tolist()


def test_the_probe_needs_a_style_and_held_out_images(
    original: famr.Classifier, without_three: famr.Splits, without_negatives: famr.Splits
) -> None:
    with pytest.raises(RequestError, match="No style"):
        probe_style(original, without_three, BLOCK, device="cpu")
    with pytest.raises(DataError, match="held-out"):
        probe_style(original, replace(without_negatives, forget_test=None), BLOCK, device="cpu")
    with pytest.raises(RequestError, match="no layer"):
        probe_style(original, without_negatives, StyleLayer("block.0"), device="cpu")
