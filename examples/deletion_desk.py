"""Two deletion requests on scikit-learn's digits, from receipt to a signed report that an auditor verifies offline.

    python examples/deletion_desk.py [FOLDER]          some minutes on two cores

Every step is a command that could be typed into a shell; the script prints each before it runs it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Famr = Callable[..., int]
"""Runs one command, given its arguments; its exit code."""

FAILED_GATE = 7
SMALL = "--model timm:vit_tiny_patch16_224 --from-scratch --model-arg img_size=16 --model-arg patch_size=4 "
SMALL += "--model-arg embed_dim=96 --model-arg depth=3 --model-arg num_heads=3 --data digits "
SMALL += "--epochs 15 --batch-size 32 --learning-rate 1e-3 --device cpu --quiet"
PERSON = [*range(100, 106), *range(107, 115), *range(116, 122)]
"""Twenty training images, none of the class that the first request is about."""


def story(folder: Path, famr: Famr, model: Path | None = None, retrained: Path | None = None) -> None:
    """The whole way. `model` is trained on the digits and `retrained` without class 3; both are made if not given."""

    def done(*arguments: object) -> None:
        if code := famr(*arguments):
            raise SystemExit(f"famr {shlex.join(map(str, arguments))} ended with exit code {code}")

    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        model, retrained = folder / "original", folder / "without-3"
        done("train", *SMALL.split(), "--output-dir", model)
        done("train", *SMALL.split(), "--without-class", 3, "--output-dir", retrained)

    # A class is to go, then the images of a person, who asks twice: that is one request.
    desk, asked = folder / "desk", folder / "asked.txt"
    asked.write_text("\n".join(map(str, PERSON)) + "\n", encoding="utf-8")
    done("request", "new", "-w", desk, "--class", 3, "--model", model, "--data", "digits", "--received", "2026-03-01")
    for _ in range(2):
        done("request", "new", "-w", desk, "--samples", asked, "--received", "2026-03-09")

    # They are carried out one after the other, each from the model that the last one left.
    for request in ("R-0001", "R-0002"):
        done("request", "run", request, "-w", desk, "--device", "cpu", "--quiet")
    done("request", "list", "-w", desk)
    done("request", "check", "-w", desk, "--device", "cpu")

    # Audit, report, and the signature last. A gate that fails is a finding to be reported.
    key, ledger = folder / "desk.key", folder / "ledger.jsonl"
    done("keygen", key)
    for run in (desk / "runs/run-0001", desk / "runs/run-0002"):
        against = ["--retrained", retrained] if retrained is not None and run.name == "run-0001" else []
        if famr("audit", run, *against, "--quick", "--device", "cpu") not in (0, FAILED_GATE):
            raise SystemExit("The audit could not be made.")
        done("report", run, *against, "--device", "cpu")
        done("sign", run, "--key", key, "--ledger", ledger)

    # What the auditor does, with the folder and the public key alone.
    public = folder / "desk.key.pub"
    for run in (desk / "runs/run-0001", desk / "runs/run-0002"):
        done("verify", run, "--key", public, "--ledger", ledger)

    # And where somebody touches a figure afterwards, it is noticed.
    touched = folder / "touched"
    shutil.copytree(desk / "runs/run-0002", touched)
    metrics = touched / "unlearning/metrics.json"
    metrics.write_text(metrics.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    if famr("verify", touched, "--key", public) != FAILED_GATE:
        raise SystemExit("A changed figure went unnoticed.")


def in_a_shell(*arguments: object) -> int:
    """Print a command and run it."""
    words = ["famr", *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", *words]  # this environment's famr, whatever the shell would find
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    story(Path(sys.argv[1] if len(sys.argv) > 1 else "build/deletion-desk"), in_a_shell)
