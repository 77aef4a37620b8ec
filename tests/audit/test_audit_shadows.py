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
from famr.audit import measurements, two_sample
from famr.audit import shadows as module
from famr.audit.audit import audit
from famr.audit.comparison import ComparedModels
from famr.audit.gates.membership import U_LIRA_ACCURACY
from famr.audit.lira import u_lira
from famr.audit.measurements import ModelMeasurements
from famr.audit.shadow_attacks import KLOM_MODELS, klom_figures, lira_on, shadow_figures, u_lira_by_kind
from famr.audit.shadow_logits import ShadowLogits, train_shadow_logits
from famr.audit.shadows import Method, Setting
from famr.audit.verdict import Audit, GateResult, read_thresholds
from famr.cli.opening import OpenedRun
from famr.data import Data, Images
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions
from famr.training.recorded import original_training, recorded_training

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


def setting(splits: famr.Splits, training: famr.Training) -> Setting:
    return Setting(tiny, splits.forget, splits.retain, training=training)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(scope="module")
def shadow_logits(forty: famr.Splits, cache: Path) -> ShadowLogits:
    """Six models of each kind, of a method that does nothing."""
    return train_shadow_logits(setting(forty, OVERFIT), Method("nothing", does_nothing), 12, cache, device="cpu")


def simulated(unlearned: float, trained: float = 2.0, count: int = 32, images: int = 40) -> ShadowLogits:
    """Two classes and φ = z₀ − z₁: hardness of the image, unit noise of the model, and so much more confidence."""
    draws = torch.Generator().manual_seed(count + images)
    hardness = torch.randn(images, generator=draws)

    def logits(more: float) -> Tensor:
        phi = hardness + torch.randn(count, images, generator=draws) + more
        return torch.stack([phi, torch.zeros_like(phi)], dim=-1)

    targets = torch.zeros(images, dtype=torch.long)
    return ShadowLogits(targets, logits(unlearned), logits(0.0), logits(trained))


@pytest.fixture(scope="module")
def found(forty: famr.Splits, shadow_logits: ShadowLogits) -> Audit:
    """The audit of a method that does nothing."""
    everything = module.concatenate_images(forty.forget, forty.retain)  # type: ignore[arg-type]
    original = trained(everything, 50)
    retrained = [trained(forty.retain, seed) for seed in (51, 52, 53)]
    with pytest.MonkeyPatch.context() as patch:  # briefer attacks; each is tested in a file of its own
        patch.setattr(two_sample, "FOLDS", 2)
        patch.setattr(measurements, "RELEARNING_SEEDS", (0,))
        return audit(
            original.copy(),
            forty,
            original=original,
            retrained=retrained,
            shadows=shadow_logits,
            device="cpu",
        )


def test_samples_have_most_gates_and_memorised_ones_fail_them(found: Audit) -> None:
    names = {check.name for check in found.checks}
    only_for_classes = {
        "held_out_forget_accuracy_gap",
        "forgotten_rank_gap",
        "forget_accuracy",
        "best_bias_gap",
        "probe_gap",
        "neighbours_gap",
        "original_head_gap",
        "visual_prompt_gap",
        "retained_tuning_rank_gap",
    }
    assert names == set(read_thresholds()) - only_for_classes - {"style_gap"}
    assert found.verdicts["unlearned"] == "fail"
    assert found.verdicts["original"] == "fail"
    assert found.verdicts["retrained"] != "fail"
    verdicts = {check.name: check.verdicts.get("original") for check in found.checks}
    for gate in ("forget_accuracy_gap", "rmia_auc", "retained_tuning_probability_gap"):
        assert verdicts[gate] == "fail", gate
    assert verdicts["relearning_gap"] == "cannot tell"  # no model comes back in time
    assert found.stated["non_members"]["non_members"] == "matched one to one by score"


def u_lira_gate(shadows: ShadowLogits) -> GateResult:
    """The gate's result for an unlearned model and an original."""
    predictions = Predictions(shadows.unlearned[0], shadows.targets)
    model = ModelMeasurements(predictions, predictions, predictions, None, torch.zeros(len(shadows.targets)))
    splits = famr.forget_only(famr.open_data("digits").train)
    audited = {"unlearned": model, "original": model}
    models = ComparedModels(splits, audited, [], seed=0, u_lira=u_lira_by_kind(shadows))
    assert U_LIRA_ACCURACY.applies(models)
    return GateResult.of(U_LIRA_ACCURACY, U_LIRA_ACCURACY.measure(models), U_LIRA_ACCURACY.threshold)


def test_u_lira_catches_what_is_more_confident_than_retrained_models_and_not_what_is_not() -> None:
    nothing, honest = u_lira_gate(simulated(2.0)), u_lira_gate(simulated(0.0))
    assert nothing.verdicts == {"unlearned": "fail", "original": "fail", "retrained": "pass"}
    assert nothing.not_counted is None
    accuracy = 0.5 * (1 + math.erf(1 / math.sqrt(2)))  # Φ(½ · 2) with normals that are known
    assert nothing.figures["original"].value == pytest.approx(accuracy, abs=0.04)
    assert honest.verdicts["unlearned"] != "fail"
    figure = honest.figures["unlearned"]
    assert figure.low is not None
    assert figure.low < 0.5 < figure.high  # type: ignore[operator]
    each = simulated(0.0)
    assert u_lira(each.unlearned, each.retrained, each.targets) == u_lira_by_kind(each)["unlearned"]


def test_where_retrained_models_can_be_told_apart_u_lira_gives_no_verdict() -> None:
    """One half of them was trained otherwise than the other: the control is off 0.5."""
    each = simulated(0.0)
    logits = each.retrained.clone()
    logits[0::2, :, 0] += 2.0
    gate = u_lira_gate(replace(each, retrained=logits))
    assert set(gate.verdicts.values()) == {"cannot tell"}
    assert "one half of the retrained shadow models from the other" in str(gate.figures["unlearned"].why_not)
    assert gate.not_counted == "it cannot tell on the original here"


@pytest.mark.parametrize("count", [3, 31])
def test_fewer_than_32_shadow_models_a_kind_cannot_tell_and_the_gate_says_what_it_takes(count: int) -> None:
    gate = u_lira_gate(simulated(5.0, count=count))
    assert set(gate.verdicts.values()) == {"cannot tell"}
    reason = f"a verdict takes 32 shadow models of each kind, and there are {count} and {count}"
    assert reason in str(gate.figures["unlearned"].why_not)
    assert gate.not_counted == "it cannot tell on the original here"


def test_too_few_images_or_models_cannot_tell(found: Audit, shadow_logits: ShadowLogits) -> None:
    figures = {check.name: check for check in found.checks}["u_lira_accuracy"]
    assert set(figures.verdicts.values()) == {"cannot tell"}
    assert "there are 6 and 6" in found.stated["shadows"]["u_lira"]["unlearned"]
    without_trained = replace(simulated(2.0), trained=None)
    assert "before they unlearned" in str(u_lira_gate(without_trained).figures["original"].why_not)
    fewer = simulated(2.0, images=10)
    assert "too few forget images" in str(u_lira_gate(fewer).figures["unlearned"].why_not)
    summary = u_lira(shadow_logits.unlearned, shadow_logits.retrained, shadow_logits.targets)
    assert summary.auc is not None
    assert summary.auc.low > 0.6
    assert summary.tpr_at_1_percent is summary.tpr_at_01_percent is None  # forty images


def test_klom_is_withheld_below_five_models_a_bin() -> None:
    assert KLOM_MODELS == 5 * 20
    reason = str(klom_figures(simulated(0.0, count=2 * KLOM_MODELS - 2)))
    assert "take 100 unlearned and 200 retrained models, and there are 198 and 198" in reason
    figures = klom_figures(simulated(1.0, count=2 * KLOM_MODELS))
    assert isinstance(figures, dict)
    assert figures["unlearned"]["95th_percentile"] > 1.3 * figures["among_retrained"]["95th_percentile"]


def test_shadow_figures_are_recorded_as_plain_values(found: Audit, forty: famr.Splits) -> None:
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))["stated"]["shadows"]
    assert record["models"] == {"unlearned": 6, "retrained": 6, "trained": 6}
    assert record["lira"]["original"]["auc"]["low"] > 0.6
    assert record["lira"]["original"] == record["lira"]["unlearned"]
    assert record["lira"]["retrained"]["auc"]["low"] < 0.55
    assert "not available" in record["klom"]
    assert "most_exposed" not in record  # it takes U-LiRA
    each = simulated(2.0)
    figures = shadow_figures(each, u_lira_by_kind(each), {}, forty.forget.ids, seed=0)
    assert {row["id"] for row in figures["most_exposed"]} <= set(forty.forget.ids)
    assert figures["u_lira"]["original"]["accuracy"]["low"] > 0.6


def first_models(each: ShadowLogits, count: int) -> ShadowLogits:
    return ShadowLogits(each.targets, each.unlearned[:count], each.retrained[:count])


def test_lira_of_one_model_is_scored_with_normals_it_is_not_part_of(shadow_logits: ShadowLogits) -> None:
    each = shadow_logits
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
    inside = run(*command, "--shadow-start", "scratch", "--shadow-cache", folder / "shadows")
    assert inside.code == 2
    assert "inside a finished run" in inside.err
    first = run(*command)  # it is found out that the original started from random weights
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


def test_what_training_started_from_is_found_out_or_has_to_be_named(digits: Data, tmp_path: Path) -> None:
    small = {**SMALL_VIT, "embed_dim": 16, "depth": 1}

    def opened_with(start_seed: int, folder: Path) -> OpenedRun:
        start = famr.new_model(
            "timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=small, seed=start_seed
        )
        brief = famr.Training(epochs=1, batch_size=64, augmentation=None)
        some = digits.train.take(torch.arange(64))
        original = famr.load_model(str(famr.fit(start, some, brief, seed=0, device="cpu").save(folder)))
        splits = famr.forget_only(digits.train)
        return OpenedRun(original, original, splits.request, splits, splits, {})

    known = original_training(opened_with(0, tmp_path / "known").model, tmp_path / "known")
    assert known.start(0).digest() != known.start(1).digest()
    other = opened_with(1, tmp_path / "other")
    with pytest.raises(RequestError, match="does not say what the original's training started from"):
        original_training(other.model, tmp_path / "other")
    assert original_training(other.model, tmp_path / "other", "scratch").training.epochs == 1
