"""No secret, no absolute path and no name of a user or machine in any artefact or log of a run."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import SMALL_VIT, Outcome
from famr.cli import main as cli

TOKEN = "hf_plantedPLANTEDplantedPLANTED12345"
USER = "ada-lovelace"
PASSPHRASE = "correct-horse-battery-staple"
NETWORK = ("--model", "timm:vit_tiny_patch16_224", *(f"--model-arg={name}={n}" for name, n in SMALL_VIT.items()))
HERE = ("--device", "cpu")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a project, and secrets in the environment that must appear nowhere else."""
    home = tmp_path / f"home-of-{USER}"
    (home / "project").mkdir(parents=True)
    for name, value in {
        "HOME": str(home),
        "USER": USER,
        "LOGNAME": USER,
        "HF_TOKEN": TOKEN,
        "HUGGING_FACE_HUB_TOKEN": TOKEN,
        "FAMR_KEY_PASSPHRASE": PASSPHRASE,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home / "project")
    return home


def test_no_file_or_output_holds_a_secret_a_path_or_a_user_name(
    home: Path, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    """Training, forgetting, evidence and a deletion request, with relative paths."""
    printed: dict[str, str] = {}

    def call(*words: object, code: int = 0) -> None:
        done = run(*words)
        assert done.code == code, done.err
        printed[" ".join(map(str, words[:2]))] = done.out + done.err

    training = ("--from-scratch", "--epochs", 8, "--batch-size", 64, "--learning-rate", "3e-3")
    call("train", *NETWORK, *training, "--data", "digits", "--output-dir", "runs/original", *HERE)
    method = {"strength": 10.0, "epochs": 6, "function_images": 2, "fisher_images": 50}
    Path("method.json").write_text(json.dumps(method), encoding="utf-8")
    call("request", "new", "--class", "3", "--model", "runs/original", "--data", "digits")
    call("request", "run", "R-0001", "--method", "method.json", *HERE)
    call("request", "list", "--json")
    call("request", "show", "R-0001", "--json")
    run_folder = "desk/runs/run-0001"
    call("evaluate", run_folder, *HERE)
    call("certify", run_folder, "--lanczos-steps", 2, "--retained-images", 20, *HERE)
    done = run("audit", run_folder, "--quick", *HERE)
    assert done.code in (0, 7), done.err
    printed["audit"] = done.out + done.err
    call("report", run_folder)
    call("export", run_folder, "--format", "torch-export", "--output-dir", "exported")
    call("keygen", "keys/key", "--encrypt")
    call("sign", run_folder, "--key", "keys/key", "--ledger", "ledger.jsonl")
    call("verify", run_folder, "--key", "keys/key.pub", "--ledger", "ledger.jsonl", "--json")
    call(
        "forget",
        "--model",
        run_folder,
        "--data",
        "digits",
        "--class",
        "9",
        "--output-dir",
        "no",
        *HERE,
        "--nope",
        code=2,
    )
    call("forget", "--model", "nowhere", "--data", "digits", "--class", "9", "--output-dir", "no", *HERE, code=4)

    outputs = ("runs", "desk/runs", "exported", "ledger.jsonl", "ledger.jsonl.head")
    files = [file for output in outputs for file in (Path(output), *Path(output).rglob("*")) if file.is_file()]
    assert {"model.safetensors", "audit.json", "certificate.json", "report.html", "requests.json", "metrics.json"} <= {
        file.name for file in files
    }
    secrets = [TOKEN, USER, PASSPHRASE, str(tmp_path), str(home), sys.prefix, str(Path(cli.__file__).parents[2])]
    secrets += [name for name in {platform.node()} if len(name) > 3]
    contents = {str(file): file.read_bytes() for file in files} | {
        name: text.encode() for name, text in printed.items()
    }
    leaks = {
        (name, secret): content[max(0, at - 60) : at + 80]
        for name, content in contents.items()
        for secret in secrets
        if (at := content.find(secret.encode())) >= 0
    }
    assert not leaks
