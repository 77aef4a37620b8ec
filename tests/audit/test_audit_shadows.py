"""The audit of forgotten samples, with shadow models: it finds what was memorised, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_shadows import tiny
from torch import Tensor

import famr
from conftest import SMALL_VIT, Outcome
from famr.audit import shadows as module
from famr.audit.audit import audit
from famr.audit.comparison import ComparedModels
from famr.audit.gates.membership import U_LIRA_ACCURACY
from famr.audit.lira import u_lira
from famr.audit.measurements import ModelMeasurements
from famr.audit.shadow_attacks import klom_figures, lira_on, u_lira_by_kind
from famr.audit.shadow_logits import ShadowLogits, train_shadow_logits
from famr.audit.shadows import Method, Setting
from famr.audit.verdict import Audit, GateResult, read_thresholds
from famr.cli.shadow_models import recorded_training
from famr.data import Data, Images
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions

OVERFIT = famr.Training(epochs=30, batch_size=32, learning_rate=1e-2, weight_decay=0.0, augmentation=None)


@pytest.fixture(scope="module")
def forty(digits: Data) -> famr.Splits:
    """Forty samples to forget; three labels in ten are wrong, which can only be memorised."""
    noise = torch.Generator().manual_seed(0)
    targets = digits.train.all_targets.clone()
    wrong = torch.rand(len(targets), generator=noise) < 0.3
    targets[wrong] = torch.randint(10, (int(wrong.sum()),), generator=noise)
    images = replace(digits.train, all_targets=targets)
    few = replace(digits, train=images.take(torch.arange(200)), test=images.take(torch.arange(400, 600)))
    return famr.split(few, famr.Request(samples=list(range(0, 200, 5))))


def trained(images: Images | None, seed: int) -> famr.Classifier:
    assert images is not None
    return famr.fit(tiny(seed), images, OVERFIT, seed=seed, device="cpu").model


def does_nothing(model: famr.Classifier, _forget: Images, _retain: Images | None, _seed: int) -> famr.Classifier:
    return model.copy()


def really_retrains(_model: famr.Classifier, _forget: Images, retain: Images | None, seed: int) -> famr.Classifier:
    return trained(retain, seed + 1)


def setting(splits: famr.Splits, training: famr.Training) -> Setting:
    return Setting(tiny, splits.forget, splits.retain, training=training)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(scope="module")
def shadow_logits(forty: famr.Splits, cache: Path) -> dict[str, ShadowLogits]:
    return {
        name: train_shadow_logits(setting(forty, OVERFIT), Method(name, unlearn), 12, cache, device="cpu")
        for name, unlearn in (("nothing", does_nothing), ("retraining", really_retrains))
    }


@pytest.fixture(scope="module")
def found(forty: famr.Splits, shadow_logits: dict[str, ShadowLogits]) -> Audit:
    """The audit of a method that does nothing."""
    everything = module.concatenate_images(forty.forget, forty.retain)  # type: ignore[arg-type]
    original = trained(everything, 50)
    retrained = [trained(forty.retain, seed) for seed in (51, 52, 53)]
    return audit(
        original.copy(),
        forty,
        original=original,
        retrained=retrained,
        shadows=shadow_logits["nothing"],
        device="cpu",
    )


def test_samples_have_most_gates_and_memorised_ones_fail_them(found: Audit) -> None:
    names = {check.name for check in found.checks}
    only_for_classes = {
        "held_out_forget_accuracy_gap",
        "forgotten_rank_gap",
        "best_bias_excess",
        "probe_excess",
        "neighbours_excess",
        "forget_accuracy",
        "original_head_back",
    }
    assert names == set(read_thresholds()) - only_for_classes - {"style_excess"}
    assert found.verdicts["unlearned"] == "fail"
    assert found.verdicts["original"] == "fail"
    assert found.verdicts["retrained"] != "fail"
    verdicts = {check.name: check.verdicts.get("original") for check in found.checks}
    for gate in ("forget_accuracy_gap", "rmia_auc", "u_lira_accuracy", "relearning_saved"):
        assert verdicts[gate] == "fail", gate


def u_lira_gate(shadows: ShadowLogits) -> GateResult:
    """The gate's result for an unlearned model and an original."""
    predictions = Predictions(shadows.unlearned[0], shadows.targets)
    model = ModelMeasurements(predictions, predictions, predictions, None, torch.zeros(len(shadows.targets)))
    splits = famr.forget_only(famr.open_data("digits").train)
    audited = {"unlearned": model, "original": model}
    models = ComparedModels(splits, audited, [], seed=0, u_lira=u_lira_by_kind(shadows))
    assert U_LIRA_ACCURACY.applies(models)
    return GateResult.of(U_LIRA_ACCURACY, U_LIRA_ACCURACY.measure(models), U_LIRA_ACCURACY.threshold)


def test_u_lira_catches_a_method_that_does_nothing_and_not_one_that_retrains(
    shadow_logits: dict[str, ShadowLogits],
) -> None:
    gates = {name: u_lira_gate(each) for name, each in shadow_logits.items()}
    assert gates["nothing"].verdicts["unlearned"] == "fail"
    assert gates["nothing"].figures["unlearned"] == gates["nothing"].figures["original"]
    retraining = gates["retraining"].figures["unlearned"]
    assert retraining.low is not None
    assert retraining.low < 0.5 < retraining.high  # type: ignore[operator]
    assert gates["retraining"].verdicts["unlearned"] != "fail"
    assert gates["retraining"].verdicts["original"] == "fail"
    assert gates["nothing"].verdicts["retrained"] != "fail"
    each = shadow_logits["nothing"]
    assert u_lira(each.unlearned, each.retrained, each.targets) == u_lira_by_kind(each)["unlearned"]


def test_too_few_images_or_models_cannot_tell(found: Audit, shadow_logits: dict[str, ShadowLogits]) -> None:
    figures = found.stated["shadows"]["u_lira"]["unlearned"]
    assert figures["auc"]["low"] > 0.6
    assert figures["tpr_at_1_percent"] is figures["tpr_at_01_percent"] is None  # forty images
    each = shadow_logits["nothing"]
    few = ShadowLogits(each.targets, each.unlearned[:2], each.retrained[:2])
    gate = u_lira_gate(few)
    assert set(gate.verdicts.values()) == {"cannot tell"}
    assert "fewer than 3 a kind" in str(gate.figures["unlearned"].why_not)
    assert "before they unlearned" in str(gate.figures["original"].why_not)
    some = torch.arange(10)
    fewer = ShadowLogits(each.targets[some], each.unlearned[:, some], each.retrained[:, some])
    assert "too few forget images" in str(u_lira_gate(fewer).figures["unlearned"].why_not)


def test_shadow_figures_are_recorded_as_plain_values(
    found: Audit, forty: famr.Splits, shadow_logits: dict[str, ShadowLogits]
) -> None:
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))["stated"]["shadows"]
    assert record["models"] == {"unlearned": 6, "retrained": 6, "trained": 6}
    assert record["lira"]["original"]["auc"]["low"] > 0.6
    assert record["lira"]["original"] == record["lira"]["unlearned"]
    assert record["lira"]["retrained"]["auc"]["low"] < 0.55
    assert record["klom"]["unlearned"]["95th_percentile"] > record["klom"]["among_retrained"]["median"]
    assert {row["id"] for row in record["most_exposed"]} <= set(forty.forget.ids)
    assert "not available" in str(klom_figures(first_models(shadow_logits["nothing"], 3)))


def first_models(each: ShadowLogits, count: int) -> ShadowLogits:
    return ShadowLogits(each.targets, each.unlearned[:count], each.retrained[:count])


def test_lira_of_one_model_is_scored_with_normals_it_is_not_part_of(shadow_logits: dict[str, ShadowLogits]) -> None:
    each = shadow_logits["nothing"]
    predictions = Predictions(each.retrained[0], each.targets)
    model = ModelMeasurements(predictions, predictions, predictions, None, torch.zeros(len(each.targets)))
    assert lira_on(model, first_models(each, 6)) is None  # without shadows that saw the images
    found = lira_on(model, each)
    assert found is not None
    assert (found.members, found.non_members) == (40, 240)


def test_interrupted_shadows_resume_without_training_the_finished_again(
    forty: famr.Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = replace(OVERFIT, epochs=1)
    real, calls = module.fit, []

    def until(stop: int) -> Callable[..., object]:
        def counted(*rest: object, **more: object) -> object:
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return real(*rest, **more)  # type: ignore[arg-type]

        return counted

    def logits_in(folder: Path) -> ShadowLogits:
        return train_shadow_logits(setting(forty, brief), Method("nothing", does_nothing), 6, folder, device="cpu")

    whole = logits_in(tmp_path / "whole")
    monkeypatch.setattr(module, "fit", until(5))
    with pytest.raises(KeyboardInterrupt):
        logits_in(tmp_path / "cut")
    monkeypatch.setattr(module, "fit", until(0))
    again = logits_in(tmp_path / "cut")
    assert len(calls) == 5 + 2  # four were in the cache
    for name in ("unlearned", "retrained", "trained"):
        assert torch.equal(getattr(again, name), getattr(whole, name))
    with pytest.raises(RequestError, match="in pairs"):
        train_shadow_logits(setting(forty, brief), Method("nothing", does_nothing), 5, tmp_path, device="cpu")


def test_logits_of_other_images_are_refused() -> None:
    def logits(images: int) -> list[Tensor]:
        return [torch.zeros(images, 3)] * 4

    targets = torch.zeros(5, dtype=torch.long)
    assert len(ShadowLogits.of(targets, logits(5), logits(5)).retrained) == 4
    with pytest.raises(RequestError, match="`retrained` must be \\(models, 5 images, classes\\)"):
        ShadowLogits.of(targets, logits(5), logits(4))


def test_u_lira_on_simulated_logits_is_the_closed_form() -> None:
    """Unlearned models are more confident by one standard deviation: accuracy Φ(½)."""
    draws = torch.Generator().manual_seed(0)
    phi = torch.randn(2, 40, 300, generator=draws) + torch.tensor([1.0, 0.0])[:, None, None]
    logits = torch.stack([phi, torch.zeros_like(phi)], dim=-1)  # φ = z_0 − z_1
    found = u_lira(logits[0], logits[1], torch.zeros(300, dtype=torch.long))
    assert found.accuracy is not None
    assert found.accuracy.value == pytest.approx(0.5 * (1 + math.erf(0.5 / math.sqrt(2))), abs=0.015)
    assert found.accuracy.low > 0.55


def test_the_command_trains_shadows_by_the_runs_records_and_reuses_them(
    digits: Data, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    small = {**SMALL_VIT, "embed_dim": 16, "depth": 1}
    start = famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=small)
    brief = famr.Training(epochs=1, batch_size=128, augmentation=None)
    original = famr.fit(start, digits.train, brief, device="cpu").save(tmp_path / "original")
    folder = tmp_path / "no-3"
    options = ["--model", original, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *options, "--paper", "--no-gates", "--quiet").code == 0
    command = ["audit", folder, "--quick", "--device", "cpu", "--shadows", "6"]
    guess = run(*command)
    assert guess.code == 2
    assert "--shadow-start scratch" in guess.err
    inside = run(*command, "--shadow-start", "scratch", "--shadow-cache", folder / "shadows")
    assert inside.code == 2
    assert "inside a finished run" in inside.err
    first = run(*command, "--shadow-start", "scratch")
    assert first.err.count("trained in") == 6
    record = json.loads((folder / "unlearning/audit.json").read_text(encoding="utf-8"))
    assert record["stated"]["shadows"]["models"]["unlearned"] == 3
    assert "u_lira_accuracy" in {check["name"] for check in record["checks"]}
    again = run(*command, "--shadow-start", "scratch")
    assert again.err.count("from the cache") == 6
    assert again.code == first.code
    assert (tmp_path / "no-3.shadows").is_dir()
    assert recorded_training(original) == replace(brief, precision="fp32")
    with pytest.raises(CheckpointError, match="how the original was trained"):
        recorded_training(folder)
