"""The audit of forgotten samples, with shadow models: what was learnt by heart is found, and nothing else is."""

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
from famr.audit.lira import u_lira
from famr.audit.populations import Populations, klom_statement, lira_of, u_lira_gate, u_lira_rocs
from famr.audit.request_shadows import train_populations
from famr.audit.shadows import Method
from famr.audit.verdict import Audit, read_thresholds
from famr.audit.witness import Witness
from famr.cli.shadow_models import recorded_training
from famr.data import Data, Images
from famr.errors import CheckpointError, RequestError
from famr.metrics.predictions import Predictions

BY_HEART = famr.Training(epochs=30, batch_size=32, learning_rate=1e-2, weight_decay=0.0, augmentation=None)


@pytest.fixture(scope="module")
def forty(digits: Data) -> famr.Splits:
    """Forty samples to forget; three in ten of all classes are wrong, which can only be learnt by heart."""
    noise = torch.Generator().manual_seed(0)
    targets = digits.train.all_targets.clone()
    wrong = torch.rand(len(targets), generator=noise) < 0.3
    targets[wrong] = torch.randint(10, (int(wrong.sum()),), generator=noise)
    images = replace(digits.train, all_targets=targets)
    few = replace(digits, train=images.take(torch.arange(200)), test=images.take(torch.arange(400, 600)))
    return famr.split(few, famr.Request(samples=list(range(0, 200, 5))))


def learnt(images: Images | None, seed: int) -> famr.Classifier:
    assert images is not None
    return famr.fit(tiny(seed), images, BY_HEART, seed=seed, device="cpu").model


def does_nothing(model: famr.Classifier, _forget: Images, _retain: Images | None, _seed: int) -> famr.Classifier:
    return model.copy()


def really_retrains(_model: famr.Classifier, _forget: Images, retain: Images | None, seed: int) -> famr.Classifier:
    return learnt(retain, seed + 1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(scope="module")
def populations(forty: famr.Splits, cache: Path) -> dict[str, Populations]:
    return {
        name: train_populations(forty, tiny, BY_HEART, Method(name, unlearn), 12, cache, device="cpu")
        for name, unlearn in (("nothing", does_nothing), ("retraining", really_retrains))
    }


@pytest.fixture(scope="module")
def found(forty: famr.Splits, populations: dict[str, Populations]) -> Audit:
    """Of a method that does nothing."""
    everything = module.concatenate_images(forty.forget, forty.retain)  # type: ignore[arg-type]
    original = learnt(everything, 50)
    retrained = [learnt(forty.retain, seed) for seed in (51, 52, 53)]
    return audit(
        original.copy(),
        forty,
        original=original,
        retrained=retrained,
        shadows=populations["nothing"],
        device="cpu",
    )


def test_samples_have_most_gates_and_what_was_learnt_by_heart_fails_them(found: Audit) -> None:
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


def test_u_lira_catches_a_method_that_does_nothing_and_not_one_that_retrains(
    populations: dict[str, Populations],
) -> None:
    limits = read_thresholds()
    gates = {
        name: u_lira_gate(u_lira_rocs(each), limits, ["unlearned", "original"]) for name, each in populations.items()
    }
    assert gates["nothing"].verdicts["unlearned"] == "fail"
    assert gates["nothing"].figures["unlearned"] == gates["nothing"].figures["original"]
    retraining = gates["retraining"].figures["unlearned"]
    assert retraining.low is not None
    assert retraining.low < 0.5 < retraining.high  # type: ignore[operator]
    assert gates["retraining"].verdicts["unlearned"] != "fail"
    assert gates["retraining"].verdicts["original"] == "fail"
    assert gates["nothing"].verdicts["retrained"] != "fail"
    each = populations["nothing"]
    assert u_lira(each.unlearned, each.retrained, each.targets) == u_lira_rocs(each)["unlearned"]


def test_too_few_images_or_models_cannot_tell(found: Audit, populations: dict[str, Populations]) -> None:
    figures = found.stated["shadows"]["u_lira"]["unlearned"]
    assert figures["auc"]["low"] > 0.6
    assert figures["tpr_at_1_percent"] is figures["tpr_at_01_percent"] is None  # forty images
    each = populations["nothing"]
    few = Populations(each.targets, each.unlearned[:2], each.retrained[:2])
    gate = u_lira_gate(u_lira_rocs(few), read_thresholds(), ["unlearned", "original"])
    assert set(gate.verdicts.values()) == {"cannot tell"}
    assert "fewer than 3 a kind" in str(gate.figures["unlearned"].why_not)
    assert "before they unlearned" in str(gate.figures["original"].why_not)
    some = torch.arange(10)
    fewer = Populations(each.targets[some], each.unlearned[:, some], each.retrained[:, some])
    assert "too few forget images" in str(
        u_lira_gate(u_lira_rocs(fewer), read_thresholds(), ["unlearned"]).figures["unlearned"].why_not
    )


def test_shadow_figures_are_stated_as_plain_values(
    found: Audit, forty: famr.Splits, populations: dict[str, Populations]
) -> None:
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))["stated"]["shadows"]
    assert told["models"] == {"unlearned": 6, "retrained": 6, "trained": 6}
    assert told["lira"]["original"]["auc"]["low"] > 0.6
    assert told["lira"]["original"] == told["lira"]["unlearned"]
    assert told["lira"]["retrained"]["auc"]["low"] < 0.55
    assert told["klom"]["unlearned"]["95th_percentile"] > told["klom"]["among_retrained"]["median"]
    assert {row["id"] for row in told["most_exposed"]} <= set(forty.forget.ids)
    assert "not available" in str(klom_statement(replace_models(populations["nothing"], 3)))


def replace_models(each: Populations, count: int) -> Populations:
    return Populations(each.targets, each.unlearned[:count], each.retrained[:count])


def test_lira_of_one_model_is_scored_with_normals_it_is_not_part_of(populations: dict[str, Populations]) -> None:
    each = populations["nothing"]
    said = Predictions(each.retrained[0], each.targets)
    witness = Witness(said, said, said, None, torch.zeros(len(each.targets)))
    assert lira_of(witness, replace_models(each, 6)) is None  # without shadows that saw the images
    found = lira_of(witness, each)
    assert found is not None
    assert (found.members, found.non_members) == (40, 240)


def test_interrupted_shadows_resume_without_training_the_finished_again(
    forty: famr.Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = replace(BY_HEART, epochs=1)
    real, calls = module.fit, []

    def until(stop: int) -> Callable[..., object]:
        def counted(*rest: object, **more: object) -> object:
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return real(*rest, **more)  # type: ignore[arg-type]

        return counted

    def trained(place: Path) -> Populations:
        return train_populations(forty, tiny, brief, Method("nothing", does_nothing), 6, place, device="cpu")

    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(module, "fit", until(5))
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut")
    monkeypatch.setattr(module, "fit", until(0))
    again = trained(tmp_path / "cut")
    assert len(calls) == 5 + 2  # four were there
    for name in ("unlearned", "retrained", "trained"):
        assert torch.equal(getattr(again, name), getattr(whole, name))
    with pytest.raises(RequestError, match="in pairs"):
        train_populations(forty, tiny, brief, Method("nothing", does_nothing), 5, tmp_path, device="cpu")


def test_answers_to_other_images_are_refused() -> None:
    def logits(images: int) -> list[Tensor]:
        return [torch.zeros(images, 3)] * 4

    targets = torch.zeros(5, dtype=torch.long)
    assert len(Populations.of(targets, logits(5), logits(5)).retrained) == 4
    with pytest.raises(RequestError, match="`retrained` must be \\(models, 5 images, classes\\)"):
        Populations.of(targets, logits(5), logits(4))


def test_u_lira_on_made_up_answers_is_the_closed_form() -> None:
    """Unlearned models are surer by one standard deviation: accuracy Φ(½)."""
    draws = torch.Generator().manual_seed(0)
    phi = torch.randn(2, 40, 300, generator=draws) + torch.tensor([1.0, 0.0])[:, None, None]
    logits = torch.stack([phi, torch.zeros_like(phi)], dim=-1)  # φ = z_0 − z_1
    found = u_lira(logits[0], logits[1], torch.zeros(300, dtype=torch.long))
    assert found.accuracy is not None
    assert found.accuracy.value == pytest.approx(0.5 * (1 + math.erf(0.5 / math.sqrt(2))), abs=0.015)
    assert found.accuracy.low > 0.55


def test_the_command_trains_shadows_by_the_runs_records_and_finds_them_again(
    digits: Data, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    small = {**SMALL_VIT, "embed_dim": 16, "depth": 1}
    start = famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=small)
    brief = famr.Training(epochs=1, batch_size=128, augmentation=None)
    original = famr.fit(start, digits.train, brief, device="cpu").save(tmp_path / "original")
    folder = tmp_path / "no-3"
    asked = ["--model", original, "--data", "digits", "--class", "3", "--output-dir", folder, "--device", "cpu"]
    assert run("forget", *asked, "--paper", "--no-gates", "--quiet").code == 0
    command = ["audit", folder, "--quick", "--device", "cpu", "--shadows", "6"]
    guess = run(*command)
    assert guess.code == 2
    assert "--shadow-start scratch" in guess.err
    inside = run(*command, "--shadow-start", "scratch", "--shadow-cache", folder / "shadows")
    assert inside.code == 2
    assert "inside a finished run" in inside.err
    first = run(*command, "--shadow-start", "scratch")
    assert first.err.count("trained in") == 6
    told = json.loads((folder / "unlearning/audit.json").read_text(encoding="utf-8"))
    assert told["stated"]["shadows"]["models"]["unlearned"] == 3
    assert "u_lira_accuracy" in {check["name"] for check in told["checks"]}
    again = run(*command, "--shadow-start", "scratch")
    assert again.err.count("found") == 6
    assert again.code == first.code
    assert (tmp_path / "no-3.shadows").is_dir()
    assert recorded_training(original) == replace(brief, precision="fp32")
    with pytest.raises(CheckpointError, match="how the original was trained"):
        recorded_training(folder)
