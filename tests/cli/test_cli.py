"""The command line: what it prints, what it writes, and how it says no."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import famr
from conftest import SMALL_VIT, Outcome, alg1
from famr.data import Data
from famr.storage.digests import folder_digests

QUICK = ("--paper", "--no-gates", "--epochs", 2, "--device", "cpu", "--quiet")


def write_digits(digits: Data, folder: Path, each: int, names: tuple[str, ...] | None = None) -> Path:
    """Some digits as class folders, as a user would have them."""
    names = names or digits.labels
    for target, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        members = (digits.train.targets == target).nonzero().squeeze(1)[:each].tolist()
        for position in members:
            digits.train.decode(int(digits.train.rows[position])).save(folder / name / f"{position}.png")
    return folder


def test_help_answers_without_importing_torch() -> None:
    script = (
        "import sys; sys.argv = ['famr', '--help']\n"
        "try:\n    from famr.cli.main import main; main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules, 'heavy import'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for command in ("demo", "train", "forget", "evaluate", "classes"):
        assert command in done.stdout
    assert "Exit codes" in done.stdout


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
    listed.write_text(f"id,reason\n{first},asked\n{second},asked\n", encoding="utf-8")
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
    write_digits(digits, tmp_path / "all", each=6)
    labelled, flat = tmp_path / "labelled", tmp_path / "flat"
    shutil.copytree(tmp_path / "all/3", labelled / "3")
    shutil.copytree(tmp_path / "all/3", flat)
    for place in (labelled, flat):
        out = tmp_path / f"run-{place.name}"
        done = run("forget", "--model", original_run, "--forget-data", f"folder:{place}", "--output-dir", out, *QUICK)
        assert done.code == 0, done.err
        assert "not available: retain_accuracy" in done.out
        metrics = json.loads((out / "unlearning/metrics.json").read_text(encoding="utf-8"))
        assert metrics["unlearned"]["counts"] == {"retain": None, "forget": 6, "forget_test": None}
        assert (metrics["unlearned"]["forget_accuracy"] is None) == (place == flat)
        assert run("evaluate", out, "--device", "cpu", "--json").code == 0


def test_train_and_retrain_from_the_command_line(run: Callable[..., Outcome], tmp_path: Path) -> None:
    shape = [
        f"--model-arg={pair}" for pair in ("img_size=16", "patch_size=4", "embed_dim=32", "depth=1", "num_heads=2")
    ]
    common = ("--model", "timm:vit_tiny_patch16_224", "--from-scratch", *shape, "--data", "digits", "--epochs", 1)
    full = run("train", *common, "--output-dir", tmp_path / "full", "--device", "cpu", "--json", "--quiet")
    assert full.code == 0, full.err
    less = run(
        "train", *common, "--without-class", "3", "--output-dir", tmp_path / "less", "--device", "cpu", "--json", "-q"
    )
    assert less.code == 0, less.err
    assert json.loads(full.out)["train_count"] - json.loads(less.out)["train_count"] == 146
    record = json.loads((tmp_path / "less/training/run.json").read_text(encoding="utf-8"))
    assert record["without"] == {"kind": "class", "classes": ["3"]}
    assert famr.load_model(str(tmp_path / "less")).labels == famr.load_model(str(tmp_path / "full")).labels
    listed = run("classes", tmp_path / "less", "--json")
    assert json.loads(listed.out) == {"classes": [str(digit) for digit in range(10)]}


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


def test_the_demo_tells_the_whole_story(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from famr.cli import demo

    monkeypatch.setattr(demo, "SMALL", {**demo.SMALL, "embed_dim": 48})
    monkeypatch.setattr(demo, "TRAINING", replace(demo.TRAINING, epochs=1))
    for name in ("METHOD", "PAPER"):
        monkeypatch.setattr(demo, name, replace(getattr(demo, name), epochs=2, strength=1.0))
    done = run("demo", "--output-dir", tmp_path / "demo", "--quiet")
    assert done.code == 0, done.err
    for words in ("original", "unlearned", "retrained", "paper's Alg. 1", "set for so small a model"):
        assert words in done.out
    for model in ("original", "unlearned", "retrained"):
        famr.load_model(str(tmp_path / "demo" / model))
    with Image.open(tmp_path / "demo/forgetting.png") as figure:
        assert figure.width > 600
    assert run("demo", "--output-dir", tmp_path / "demo", "--quiet").code == 2


def faults(digits: Data, original_run: Path, tmp_path: Path) -> dict[str, tuple[int, str, tuple[object, ...]]]:
    """Each fault: its exit code, words of its message, and the options that bring it about."""
    good = ("--model", original_run, "--data", "digits")
    other = write_digits(digits, tmp_path / "other", 3, tuple("abcdefghij"))
    few = write_digits(digits, tmp_path / "few", 3, ("0", "1"))
    broken = write_digits(digits, tmp_path / "broken", 3)
    next((broken / "3").iterdir()).write_bytes(b"not an image")
    tensors = load_file(original_run / "model.safetensors")
    shape = [f"--model-arg={name}={value}" for name, value in SMALL_VIT.items()]
    save_file({k: v for k, v in tensors.items() if k != "norm.weight"}, tmp_path / "missing.safetensors")
    save_file({**tensors, "odd": torch.zeros(1)}, tmp_path / "unexpected.safetensors")
    head = {"head.weight": torch.zeros(7, 64), "head.bias": torch.zeros(7)}
    save_file({**tensors, **head}, tmp_path / "seven.safetensors")
    vit = ("--model", "timm:vit_tiny_patch16_224", *shape, "--data", "digits", "--class", "3")
    return {
        "empty forget set": (2, "No training image", (*good, "--concept", "parity=neither")),
        "a column that is not there": (2, "parity", (*good, "--concept", "colour=red")),
        "unknown class": (2, "Unknown class 'thre'", (*good, "--class", "thre")),
        "nothing asked": (2, "names nothing", good),
        "two kinds asked": (2, "one kind", (*good, "--class", "3", "--concept", "parity=odd")),
        "nothing left": (2, "leaves nothing", (*good, *(x for d in range(10) for x in ("--class", d)))),
        "sample not in the data": (2, "not in the training images", (*good, "--sample", "digits/99999")),
        "file of samples missing": (2, "no such file", (*good, "--samples", tmp_path / "none.csv")),
        "labels that disagree": (3, "a, b, c", ("--model", original_run, "--data", f"folder:{other}", "--class", "a")),
        "fewer classes than the head": (
            3,
            "only in the checkpoint",
            ("--model", original_run, "--data", f"folder:{few}", "--class", "1"),
        ),
        "head of the wrong size": (3, "7 outputs", (*vit, "--weights", tmp_path / "seven.safetensors")),
        "unreadable image": (
            3,
            "cannot be read",
            ("--model", original_run, "--data", f"folder:{broken}", "--class", "3"),
        ),
        "no such data": (3, "no such folder", ("--model", original_run, "--data", "folder:/none", "--class", "3")),
        "unknown kind of data": (2, "Unknown data", ("--model", original_run, "--data", "tarball:x", "--class", "3")),
        "no such model": (4, "no such model", ("--model", tmp_path / "none", "--data", "digits", "--class", "3")),
        "missing weights": (4, "norm.weight", (*vit, "--weights", tmp_path / "missing.safetensors")),
        "unexpected weights": (4, "odd", (*vit, "--weights", tmp_path / "unexpected.safetensors")),
        "loss that is no number": (5, "finite number", (*good, "--class", "3", "--learning-rate", 1e30)),
        "negative strength": (2, "strength", (*good, "--class", "3", "--strength", -1)),
        "style without a layer": (2, "style", (*good, "--style", "parity=odd")),
        "data and forget-data": (2, "either --data or", (*good, "--forget-data", "digits")),
        "a device that is not there": (2, "device", (*good, "--class", "3", "--device", "abacus")),
    }


FAULTS = (
    "empty forget set", "a column that is not there", "unknown class", "nothing asked", "two kinds asked",
    "nothing left", "sample not in the data", "file of samples missing", "labels that disagree",
    "fewer classes than the head", "head of the wrong size", "unreadable image",
    "no such data", "unknown kind of data", "no such model", "missing weights", "unexpected weights",
    "loss that is no number", "negative strength", "style without a layer", "data and forget-data",
    "a device that is not there",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_gets_one_clear_error_and_writes_nothing(
    run: Callable[..., Outcome], digits: Data, original_run: Path, tmp_path: Path, fault: str
) -> None:
    code, words, options = faults(digits, original_run, tmp_path)[fault]
    before = folder_digests(original_run)
    places = sorted(tmp_path.iterdir())
    done = run("forget", *QUICK, *options, "--output-dir", tmp_path / "run")
    assert done.code == code, done.err
    assert words in done.err
    assert done.err.startswith("famr: ")
    assert "Traceback" not in done.err
    assert done.out == ""
    assert sorted(tmp_path.iterdir()) == places
    assert folder_digests(original_run) == before


def test_labels_in_another_order_are_matched_only_on_request(
    run: Callable[..., Outcome], digits: Data, original_run: Path, tmp_path: Path
) -> None:
    names = ("zero", *(str(digit) for digit in range(1, 10)))
    data = write_digits(digits, tmp_path / "data", 4, names)
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


def test_an_error_is_an_object_where_json_was_asked_for(run: Callable[..., Outcome], tmp_path: Path) -> None:
    done = run("classes", tmp_path / "none", "--json")
    error = json.loads(done.out)["error"]
    assert done.code == error["exit_code"] == 4
    assert error["kind"] == "CheckpointError"
    assert all(error[part] for part in ("what", "where", "fix"))


def test_a_run_whose_original_changed_is_not_measured_against_it(
    run: Callable[..., Outcome], original: famr.Classifier, original_run: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(original_run, source)
    run("forget", "--model", source, "--data", "digits", "--class", "3", "--output-dir", tmp_path / "run", *QUICK)
    shutil.rmtree(source)
    gone = run("evaluate", tmp_path / "run", "--json", "--device", "cpu")
    assert gone.code == 0
    assert json.loads(gone.out)["not_available"]["forget_kl"] == "the original checkpoint was not given"
    other = run("evaluate", tmp_path / "run", "--original", tmp_path / "run", "--device", "cpu")
    assert other.code == 4
    assert "other weights" in other.err


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


def test_options_that_would_be_ignored_are_refused(
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


def test_a_run_saved_from_python_can_be_evaluated_with_its_data(
    run: Callable[..., Outcome], original_run: Path, without_three: famr.Splits, tmp_path: Path
) -> None:
    result = famr.forget(famr.load_model(str(original_run)), without_three, alg1(epochs=1), device="cpu")
    scores = famr.evaluate(result, without_three, device="cpu")
    folder = result.save(tmp_path / "run", scores=scores)
    assert run("evaluate", folder, "--device", "cpu").code == 2  # it does not say which data
    again = run("evaluate", folder, "--data", "digits", "--device", "cpu", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out) == json.loads((folder / "unlearning/metrics.json").read_text(encoding="utf-8"))


def test_a_reference_that_saw_what_was_forgotten_is_pointed_out(
    run: Callable[..., Outcome], original_run: Path, tmp_path: Path
) -> None:
    options = ("--model", original_run, "--data", "digits", "--class", "3", "--retrained", original_run)
    done = run("forget", *options, "--output-dir", tmp_path / "run", *QUICK)
    assert done.code == 0
    assert "was trained on everything" in done.err


def test_forget_data_takes_every_image_of_its_source(
    run: Callable[..., Outcome], original_run: Path, digits: Data, tmp_path: Path
) -> None:
    write_digits(digits, tmp_path / "all", each=5)
    for part in ("train", "test"):
        shutil.copytree(tmp_path / "all/3", tmp_path / "data" / part / "3")
    out = tmp_path / "run"
    done = run("forget", "--model", original_run, "--forget-data", f"folder:{tmp_path / 'data'}", "--output-dir", out,
               *QUICK, "--json")  # fmt: skip
    assert json.loads(done.out)["unlearned"]["counts"]["forget"] == 10


def test_what_names_an_output_can_be_said_in_short() -> None:
    from typer.main import get_command

    from famr.cli.main import app

    commands, found = [get_command(app)], []
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        found += [each.opts for each in command.params if {"--output", "--output-dir"} & set(each.opts)]
    assert len(found) >= 9
    assert all("-o" in names for names in found)


@pytest.mark.parametrize(
    "given",
    [
        ("forget", "--seed=-1"),
        ("forget", "--split-seed=-1"),
        ("audit", "--seed=-1"),
        ("bench", "speed", "--seed=-1"),
        ("certify", "--lanczos-steps=0"),
        ("certify", "--retained-images=0"),
    ],
)
def test_numbers_that_nothing_can_be_drawn_from_are_refused_at_once(
    run: Callable[..., Outcome], given: tuple[str, ...]
) -> None:
    *command, option = given
    told = run(*command, option)
    assert told.code == 2
    assert f"Invalid value for '{option.partition('=')[0]}'" in told.err
    assert "greater than or equal to" in told.err or "range" in told.err
