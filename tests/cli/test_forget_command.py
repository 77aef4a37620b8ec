"""`famr forget`: what it takes, what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

import famr
from conftest import SMALL_VIT, Outcome
from famr.data import Data
from famr.errors import RequestError
from famr.metrics.scores import Scores
from famr.storage.digests import folder_digests
from small import save_digits

QUICK = ("--paper", "--no-gates", "--epochs", 2, "--device", "cpu", "--quiet")


def test_forget_a_class_then_evaluate_the_run(run: Callable[..., Outcome], original_run: Path, tmp_path: Path) -> None:
    before = folder_digests(original_run)
    folder = tmp_path / "no-3"
    forgot = run(
        "forget", "--model", original_run, "--data", "digits", "--class", "3", "--output-dir", folder, "--json",
        "--device", "cpu", "--quiet", "--demotion", "0.03",
    )  # fmt: skip
    assert forgot.code == 0
    assert json.loads((folder / "unlearning/run.json").read_text(encoding="utf-8"))["method"]["demotion"] == 0.03
    scores = json.loads(forgot.out)
    assert set(scores) == {"original", "unlearned", "retrained", "gap", "not_available", "earlier"}
    assert scores["unlearned"]["forget_accuracy"] < scores["original"]["forget_accuracy"]
    assert scores["retrained"] is None
    assert json.loads((folder / "unlearning/metrics.json").read_text(encoding="utf-8")) == scores
    assert folder_digests(original_run) == before

    again = run("evaluate", folder, "--json", "--device", "cpu")
    assert again.code == 0
    assert json.loads(again.out) == scores

    gaps = run("evaluate", folder, "--retrained", original_run, "--device", "cpu")
    assert gaps.code == 0
    for words in ("Ret-Acc %", "For-Acc %", "original", "unlearned", "retrained", "gap", "Jensen-Shannon"):
        assert words in gaps.out


def test_samples_concept_and_style_from_the_command_line(
    run: Callable[..., Outcome], original_run: Path, digits: Data, tmp_path: Path
) -> None:
    listed = tmp_path / "samples.csv"
    first, second = digits.train.ids[5:7]
    listed.write_text(f"id,reason\n{first},erase\n{second},erase\n", encoding="utf-8")
    kinds: dict[str, tuple[object, ...]] = {
        "samples": ("--samples", listed, "--sample", 40),
        "concept": ("--concept", "parity=odd"),
        "style": ("--style", "parity=even", "--style-layer", "blocks.0", "--learning-rate", 1e-6),
    }
    for kind, options in kinds.items():
        done = run(
            "forget", "--model", original_run, "--data", "digits", *options, "--output-dir", tmp_path / kind, *QUICK
        )
        assert done.code == 0, done.err
        request = json.loads((tmp_path / kind / "unlearning/request.json").read_text(encoding="utf-8"))
        assert request["kind"] == kind
    assert "not available: forget_test_accuracy" in run("evaluate", tmp_path / "samples", "--device", "cpu").out


def test_images_alone_from_the_command_line(
    run: Callable[..., Outcome], original_run: Path, digits: Data, tmp_path: Path
) -> None:
    save_digits(digits, tmp_path / "all", each=6)
    labelled, flat = tmp_path / "labelled", tmp_path / "flat"
    shutil.copytree(tmp_path / "all/3", labelled / "3")
    shutil.copytree(tmp_path / "all/3", flat)
    for folder in (labelled, flat):
        out = tmp_path / f"run-{folder.name}"
        done = run("forget", "--model", original_run, "--forget-data", f"folder:{folder}", "--output-dir", out, *QUICK)
        assert done.code == 0, done.err
        assert "not available: retain_accuracy" in done.out
        metrics = json.loads((out / "unlearning/metrics.json").read_text(encoding="utf-8"))
        assert metrics["unlearned"]["counts"] == {"retain": None, "forget": 6, "forget_test": None}
        assert (metrics["unlearned"]["forget_accuracy"] is None) == (folder == flat)
        assert run("evaluate", out, "--device", "cpu", "--json").code == 0


def test_progress_is_plain_lines_where_there_is_no_terminal(
    run: Callable[..., Outcome], original_run: Path, tmp_path: Path
) -> None:
    done = run(
        "forget", "--model", original_run, "--data", "digits", "--class", "3", "--output-dir", tmp_path / "run",
        "--paper", "--no-gates", "--epochs", 2, "--device", "cpu", "--json",
    )  # fmt: skip
    lines = [line for line in done.err.splitlines() if "epoch" in line]
    assert [line.partition("epoch ")[2][0] for line in lines] == ["0", "1", "2"]
    assert "For-Acc" in lines[-1]
    assert "Ret-Acc" in lines[-1]
    json.loads(done.out)


class Inputs(NamedTuple):
    """A model, and folders of data and weights files that do not fit it."""

    original: Path
    folder: Path

    @property
    def good(self) -> tuple[object, ...]:
        return ("--model", self.original, "--data", "digits")

    def data(self, name: str) -> tuple[object, ...]:
        return ("--model", self.original, "--data", f"folder:{self.folder / name}")

    def weights(self, name: str) -> tuple[object, ...]:
        shape = [f"--model-arg={key}={value}" for key, value in SMALL_VIT.items()]
        model = ("--model", "timm:vit_tiny_patch16_224", *shape, "--weights", self.folder / name)
        return (*model, "--data", "digits", "--class", "3")


@pytest.fixture(scope="module")
def inputs(digits: Data, original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    save_digits(digits, folder / "other", 3, tuple("abcdefghij"))
    save_digits(digits, folder / "few", 3, ("0", "1"))
    save_digits(digits, folder / "broken", 3)
    next((folder / "broken/3").iterdir()).write_bytes(b"not an image")
    tensors = load_file(original_run / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "norm.weight"}, folder / "missing.safetensors")
    save_file({**tensors, "odd": torch.zeros(1)}, folder / "unexpected.safetensors")
    head = {"head.weight": torch.zeros(7, 64), "head.bias": torch.zeros(7)}
    save_file({**tensors, **head}, folder / "seven.safetensors")
    return Inputs(original_run, folder)


ALL_CLASSES = [word for digit in range(10) for word in ("--class", digit)]
FAULTS: dict[str, tuple[int, str, Callable[[Inputs], tuple[object, ...]]]] = {
    "empty forget set": (2, "No training image", lambda i: (*i.good, "--concept", "parity=neither")),
    "unknown column": (2, "parity", lambda i: (*i.good, "--concept", "colour=red")),
    "unknown class": (2, "Unknown class 'thre'", lambda i: (*i.good, "--class", "thre")),
    "empty request": (2, "names nothing", lambda i: i.good),
    "two kinds of request": (2, "one kind", lambda i: (*i.good, "--class", "3", "--concept", "parity=odd")),
    "nothing retained": (2, "leaves nothing", lambda i: (*i.good, *ALL_CLASSES)),
    "unknown sample": (2, "not in the training images", lambda i: (*i.good, "--sample", "digits/99999")),
    "no file of samples": (2, "no such file", lambda i: (*i.good, "--samples", i.folder / "none.csv")),
    "other labels": (3, "a, b, c", lambda i: (*i.data("other"), "--class", "a")),
    "fewer classes than the head": (3, "only in the checkpoint", lambda i: (*i.data("few"), "--class", "1")),
    "head of the wrong size": (3, "7 outputs", lambda i: i.weights("seven.safetensors")),
    "unreadable image": (3, "cannot be read", lambda i: (*i.data("broken"), "--class", "3")),
    "no such data": (3, "no such folder", lambda i: (*i.data("none"), "--class", "3")),
    "unknown kind of data": (2, "Unknown data", lambda i: (*i.good[:3], "tarball:x", "--class", "3")),
    "no such model": (4, "no such model", lambda i: ("--model", i.folder / "none", *i.good[2:], "--class", "3")),
    "missing weights": (4, "norm.weight", lambda i: i.weights("missing.safetensors")),
    "unexpected weights": (4, "odd", lambda i: i.weights("unexpected.safetensors")),
    "loss that is not finite": (5, "finite number", lambda i: (*i.good, "--class", "3", "--learning-rate", 1e30)),
    "negative strength": (2, "strength", lambda i: (*i.good, "--class", "3", "--strength", -1)),
    "strength that is no number": (2, "a number or auto", lambda i: (*i.good, "--class", "3", "--strength", "x")),
    "unknown target": (2, "one of uniform", lambda i: (*i.good, "--class", "3", "--target", "x")),
    "style without a layer": (2, "style", lambda i: (*i.good, "--style", "parity=odd")),
    "data and forget-data": (2, "either --data or", lambda i: (*i.good, "--forget-data", "digits")),
    "unknown device": (2, "device", lambda i: (*i.good, "--class", "3", "--device", "abacus")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_gets_one_clear_error_and_writes_nothing(
    run: Callable[..., Outcome], inputs: Inputs, tmp_path: Path, fault: str
) -> None:
    code, words, options = FAULTS[fault]
    before = folder_digests(inputs.original), folder_digests(inputs.folder)
    done = run("forget", *QUICK, *options(inputs), "--output-dir", tmp_path / "run")
    assert done.code == code, done.err
    assert words in done.err
    assert done.err.startswith("famr: ")
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not any(tmp_path.iterdir())
    assert (folder_digests(inputs.original), folder_digests(inputs.folder)) == before


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


SETTINGS: dict[str, tuple[str, Any]] = {
    "effort": ("quick", "quick"),
    "target": ("tempered", "tempered"),
    "temperature": ("2", 2.0),
    "overshoot": ("0.5", 0.5),
    "demotion": ("0.1", 0.1),
    "anchor": ("fisher", "fisher"),
    "strength": ("0.25", 0.25),
    "budget": ("0.2", 0.2),
    "fisher_images": ("30", 30),
    "function_strength": ("1.5", 1.5),
    "function_images": ("7", 7),
    "edited_share": ("0.5", 0.5),
    "edit_head": ("", True),
    "learning_rate": ("0.5", 0.5),
    "epochs": ("3", 3),
    "batch_size": ("11", 11),
    "optimiser": ("adamw", "adamw"),
    "reduction": ("sum", "sum"),
    "alpha": ("0.5", 0.5),
    "beta": ("0.5", 0.5),
    "style_layer": ("blocks.0", "blocks.0"),
    "style_channels_last": ("", True),
    "precision": ("fp32", "fp32"),
}


@pytest.fixture
def method_of(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[..., famr.FAMR]:
    """The method that some flags of `famr forget` describe; no run is made."""
    from famr.cli import forget as command

    tasks: list[command.ForgetTask] = []

    def run_forget(task: command.ForgetTask, _ranks: object) -> Scores:
        tasks.append(task)
        raise RequestError("not run")

    monkeypatch.setattr(command, "run_forget", run_forget)

    def method(*flags: object) -> famr.FAMR:
        done = run("forget", "--model", "nowhere", "--data", "digits", "--output-dir", "none", *flags)
        assert "not run" in done.err, done.err
        return tasks[-1].method

    return method


def test_every_setting_of_the_method_has_a_flag(method_of: Callable[..., famr.FAMR]) -> None:
    assert set(SETTINGS) == {field.name for field in fields(famr.FAMR)}
    words = [word for name, (text, _) in SETTINGS.items() for word in (flag(name), text) if word]
    assert method_of(*words, "--style", "parity=odd") == famr.FAMR(**{n: value for n, (_, value) in SETTINGS.items()})


def test_flags_that_are_not_given_leave_settings_open_or_as_the_paper_has_them(
    method_of: Callable[..., famr.FAMR],
) -> None:
    assert method_of("--class", "3") == famr.FAMR()
    assert method_of("--class", "3", "--paper") == famr.FAMR.paper()
    assert method_of("--class", "3", "--paper", "--no-edit-head", "--strength", "auto", "--overshoot", 0.1) == replace(
        famr.FAMR.paper(), edit_head=False, strength="auto", overshoot=0.1
    )


def test_beta_is_balanced_for_a_style_where_it_is_not_given(method_of: Callable[..., famr.FAMR]) -> None:
    style = ("--style", "parity=odd", "--style-layer", "blocks.0")
    assert method_of(*style).beta is None
    assert method_of(*style, "--beta", 0.0).beta == 0.0
    assert method_of(*style, "--beta", 2).beta == 2.0


def test_labels_in_another_order_are_matched_only_on_request(
    run: Callable[..., Outcome], digits: Data, original_run: Path, tmp_path: Path
) -> None:
    names = ("zero", *(str(digit) for digit in range(1, 10)))
    data = save_digits(digits, tmp_path / "data", 4, names)
    model = tmp_path / "model"
    shutil.copytree(original_run, model)
    (model / "COMPLETE.json").unlink()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "label_names": names}), encoding="utf-8")
    options = ("forget", "--model", model, "--data", f"folder:{data}", "--class", "zero", *QUICK)
    refused = run(*options, "--output-dir", tmp_path / "refused")
    assert refused.code == 3
    assert "another order" in refused.err
    assert "[zero, 1, 2" in refused.err
    assert "[1, 2, 3" in refused.err
    taken = run(*options, "--output-dir", tmp_path / "taken", "--match-labels-by-name", "--json")
    assert taken.code == 0, taken.err
    assert json.loads(taken.out)["original"]["forget_accuracy"] > 0.5


def test_an_output_folder_that_exists_is_refused_before_any_work(run: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine").write_text("", encoding="utf-8")
    done = run("forget", "--model", "nowhere", "--data", "digits", "--class", "3", "--output-dir", tmp_path / "run")
    assert done.code == 2
    assert "exists already" in done.err


def test_hostile_names_are_shown_and_do_not_act(
    run: Callable[..., Outcome], original_run: Path, tmp_path: Path
) -> None:
    for name in ("[/x]", "<script>", "a\x1b[2Jb", "$\\frac$", "=cmd()", "\u202egnp.exe"):
        done = run(
            "forget", "--model", original_run, "--data", "digits", "--class", name, "--output-dir", tmp_path / "r"
        )
        assert done.code == 2
        assert "\x1b" not in done.err
        assert "\u202e" not in done.err


def test_overwrite_never_destroys_an_input(run: Callable[..., Outcome], original_run: Path, tmp_path: Path) -> None:
    model = tmp_path / "all" / "original"
    shutil.copytree(original_run, model)
    (tmp_path / "all/COMPLETE.json").write_text('{"files": {}}', encoding="utf-8")
    for target in (model, tmp_path / "all", model / "inside"):
        done = run(
            "forget",
            "--model",
            model,
            "--data",
            "digits",
            "--class",
            "3",
            "--output-dir",
            target,
            "--overwrite",
            *QUICK,
        )
        assert done.code == 2
        assert "input of this run" in done.err or "inside a finished run" in done.err
    assert folder_digests(model) == folder_digests(original_run)


def test_flags_without_effect_on_the_model_are_refused(
    run: Callable[..., Outcome], original_run: Path, tmp_path: Path
) -> None:
    request = ("--data", "digits", "--class", "3", "--output-dir", tmp_path / "run", *QUICK)
    ignored = (
        ("--model", original_run, "--weights", tmp_path / "none.pth"),
        ("--model", original_run, "--model-arg", "img_size=64"),
        ("--model", "torchvision:resnet18", "--model-arg", "width_per_group=8"),
    )
    for options in ignored:
        done = run("forget", *options, *request)
        assert done.code == 2
        assert "arguments" in done.err


def test_a_retrained_model_that_saw_the_forget_set_is_pointed_out(
    run: Callable[..., Outcome], original_run: Path, tmp_path: Path
) -> None:
    options = ("--model", original_run, "--data", "digits", "--class", "3", "--retrained", original_run)
    done = run("forget", *options, "--output-dir", tmp_path / "run", *QUICK)
    assert done.code == 0
    assert "was trained on everything" in done.err


def test_forget_data_takes_every_image_of_its_source(
    run: Callable[..., Outcome], original_run: Path, digits: Data, tmp_path: Path
) -> None:
    save_digits(digits, tmp_path / "all", each=5)
    for part in ("train", "test"):
        shutil.copytree(tmp_path / "all/3", tmp_path / "data" / part / "3")
    out = tmp_path / "run"
    done = run("forget", "--model", original_run, "--forget-data", f"folder:{tmp_path / 'data'}", "--output-dir", out,
               *QUICK, "--json")  # fmt: skip
    assert json.loads(done.out)["unlearned"]["counts"]["forget"] == 10
