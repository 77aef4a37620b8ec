"""Certified heads in Python and on the command line: training, removal, the folder and the certificate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import famr
from conftest import Outcome
from famr.certificates.certified_head import CertifiedClassifier
from famr.certificates.convex_head import RemovalSettings
from famr.data import Data
from famr.engine.features import head_features
from famr.engine.inference import accuracy_on_images
from famr.errors import CheckpointError, GateError, RequestError
from famr.models.layers import head_name

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def certified(original: famr.Classifier, digits: Data) -> CertifiedClassifier:
    draws = torch.Generator().manual_seed(0)
    return CertifiedClassifier.train(original, digits.train, digits.labels, RemovalSettings(sigma=1.0), generator=draws)


def first_ids(certified: CertifiedClassifier, count: int) -> list[str]:
    return list(certified.ids[:count])


def test_the_classifier_predicts_by_the_released_head(certified: CertifiedClassifier, digits: Data) -> None:
    assert digits.test is not None
    classifier = certified.classifier()
    assert head_name(certified.backbone) == "head"
    images = digits.test.take(torch.arange(20))
    features = head_features(certified.backbone, images, CPU)
    preprocessing = classifier.require_preprocessing()
    pixels = torch.stack([images.pixels(index, preprocessing.channels) for index in range(20)])
    with torch.no_grad():
        logits = classifier.logits(preprocessing.normalise(preprocessing.fit(pixels)))
    assert torch.allclose(logits.double(), certified.head.scores(features), atol=1e-4)
    assert accuracy_on_images(classifier, digits.test, CPU) > 0.8


def test_removed_images_leave_the_folder(certified: CertifiedClassifier, tmp_path: Path) -> None:
    gone = first_ids(certified, 2)
    after = certified.forget(famr.Request(samples=gone), gone)
    left = len(certified.ids) - 2
    assert (after.head.removed, len(after.ids), len(after.data.features)) == (2, left, left)
    folder = after.save(tmp_path / "after")
    stored = (folder / "head/ids.json").read_text(encoding="utf-8")
    assert not set(gone) & set(json.loads(stored)["ids"])
    again = CertifiedClassifier.load(folder)
    assert torch.equal(again.head.released, after.head.released)
    more = first_ids(again, 1)
    assert again.forget(famr.Request(samples=more), more).head.removed == 3


def test_the_certificate_has_the_epsilon_spent_and_its_assumptions(certified: CertifiedClassifier) -> None:
    gone = first_ids(certified, 3)
    certificate = certified.forget(famr.Request(samples=gone), gone).certificate()
    assert certificate.kind == "certified"
    assert certificate["epsilon"].proved
    assert 0 < certificate["epsilon"].value < certificate["epsilon"].bound  # type: ignore[operator]
    assert [a.status for a in certificate["epsilon"].assumptions if "backbone" in a.says] == ["stated"]
    assert any("backbone" in line for line in certificate.not_shown)


def test_a_spent_budget_calls_for_retraining(certified: CertifiedClassifier) -> None:
    half = first_ids(certified, len(certified.ids) // 2)
    with pytest.raises(GateError, match="budget is spent"):
        certified.forget(famr.Request(samples=half), half)


def test_images_that_are_not_in_the_head_cannot_be_removed(certified: CertifiedClassifier) -> None:
    with pytest.raises(RequestError, match="1 of the images are not in the head"):
        certified.forget(famr.Request(samples=["nobody"]), ["nobody"])


def test_another_backbone_is_refused(certified: CertifiedClassifier, tmp_path: Path) -> None:
    folder = certified.save(tmp_path / "head")
    facts = json.loads((folder / "certified.json").read_text(encoding="utf-8"))
    (folder / "certified.json").write_text(json.dumps({**facts, "backbone_sha256": "0" * 64}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="other weights"):
        CertifiedClassifier.load(folder)
    with pytest.raises(CheckpointError, match="no certified classifier"):
        CertifiedClassifier.load(tmp_path)


def test_the_commands_train_remove_and_refuse(original_run: Path, tmp_path: Path, run: Callable[..., Outcome]) -> None:
    head, less, none = (tmp_path / name for name in ("head", "less", "none"))
    arguments = ["--data", "digits", "--device", "cpu"]
    trained = run("train", "--model", original_run, *arguments, "--certified-head", "--output-dir", head, "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["test_accuracy"] > 0.8
    removed = run("forget", "--model", head, *arguments, "--sample", "0", "--sample", "5", "--output-dir", less)
    assert removed.code == 0, removed.err
    assert "Kind: **certified**" in removed.out
    refused = run("forget", "--model", less, *arguments, "--class", "3", "--output-dir", none)
    assert refused.code == 7
    assert "Retrain the head" in refused.err
    assert not none.exists()
    twice = run("forget", "--model", less, *arguments, "--sample", "0", "--output-dir", none)
    assert twice.code == 2
    assert "None of these images" in twice.err
    for command in (["evaluate"], ["report"], ["audit"], ["certify"], ["export"], ["sign", "--key", tmp_path / "none"]):
        told = run(command[0], less, *command[1:])
        assert told.code == 4
        assert "of a certified head: its guarantee is in its certificate.md" in told.err


@pytest.mark.parametrize("name", ["--epsilon", "--delta", "--sigma", "--head-strength"])
def test_options_of_a_head_are_refused_for_a_network(name: str, tmp_path: Path, run: Callable[..., Outcome]) -> None:
    outcome = run("train", "--model", "timm:none", "--data", "digits", "--output-dir", tmp_path / "none", name, "0.5")
    assert outcome.code == 2
    assert f"{name} means nothing for a network without a certified head" in outcome.err
    assert "--certified-head" in outcome.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "option", [["--epochs", "3"], ["--batch-size", "8"], ["--learning-rate", "1"], ["--no-augment"], ["--resume"]]
)
def test_options_of_training_are_refused_for_a_head(
    option: list[str], tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    arguments = ["--model", "timm:none", "--data", "digits", "--certified-head", "--output-dir", tmp_path / "none"]
    outcome = run("train", *arguments, *option)
    assert outcome.code == 2
    assert " means nothing for a certified head" in outcome.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("option", [["--paper"], ["--epochs", "3"], ["--anchor", "l2"], ["--seed", "1"]])
def test_options_of_forgetting_are_refused_for_a_head(
    certified: CertifiedClassifier, option: list[str], tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    head, none = certified.save(tmp_path / "head"), tmp_path / "none"
    outcome = run("forget", "--model", head, "--data", "digits", "--sample", "0", "--output-dir", none, *option)
    assert outcome.code == 2
    assert f"{option[0]} means nothing for a certified head" in outcome.err
    assert not none.exists()


def test_a_backbone_can_be_built_like_a_network(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    sizes = ["img_size=16", "patch_size=4", "embed_dim=16", "depth=1", "num_heads=2"]
    built = ["--model", "timm:vit_tiny_patch16_224", *(f"--model-arg={size}" for size in sizes), "--from-scratch"]
    arguments = ["--data", "digits", "--device", "cpu", "--certified-head", "--json"]
    for index, seed in enumerate((3, 3, 4)):
        outcome = run("train", *built, "--seed", seed, *arguments, "--output-dir", tmp_path / f"{index}")
        assert outcome.code == 0, outcome.err
    backbones = [CertifiedClassifier.load(tmp_path / f"{index}").backbone.digest() for index in range(3)]
    assert backbones[0] == backbones[1] != backbones[2]


def test_a_head_needs_labels(original: famr.Classifier, digits: Data) -> None:
    blank = digits.train.take(torch.arange(5)).with_targets([-1] * len(digits.train.all_ids))
    with pytest.raises(famr.FamrError, match="class for every image"):
        CertifiedClassifier.train(original, blank, digits.labels)
