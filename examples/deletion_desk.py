"""Two deletion requests on scikit-learn's digits, from receipt to a signed report that an auditor verifies offline.

    python examples/deletion_desk.py [FOLDER]          some minutes on two cores; needs famr[desk,evidence,report]

Every step is a shell command; the script prints each before it runs it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Famr = Callable[..., int]
"""Runs one command, given its arguments; returns its exit code."""

FAILED_GATE = 7
TRAINING = "--model timm:vit_tiny_patch16_224 --from-scratch --model-arg img_size=16 --model-arg patch_size=4 "
TRAINING += "--model-arg embed_dim=96 --model-arg depth=3 --model-arg num_heads=3 --data digits "
TRAINING += "--epochs 15 --batch-size 32 --learning-rate 1e-3 --device cpu --quiet"
PERSON = [*range(100, 106), *range(107, 115), *range(116, 122)]
"""Indices of twenty training images, none of the class of the first request."""


def serve_requests(folder: Path, famr: Famr, original: Path | None = None, retrained: Path | None = None) -> None:
    """Record, carry out, audit, report, sign and verify two requests.

    Args:
        folder: Where everything is written.
        famr: Runs a command.
        original: A model trained on the digits; None: it and `retrained` are trained first.
        retrained: The same without class 3; None: the audit has no reference.

    Raises:
        SystemExit: A command failed.
    """

    def run(*arguments: object) -> None:
        if code := famr(*arguments):
            raise SystemExit(f"famr {shlex.join(map(str, arguments))} ended with exit code {code}")

    folder.mkdir(parents=True, exist_ok=True)
    if original is None:
        original, retrained = folder / "original", folder / "without-3"
        run("train", *TRAINING.split(), "--output-dir", original)
        run("train", *TRAINING.split(), "--without-class", 3, "--output-dir", retrained)

    # Record a request for a class, then one for the images of a person, who asks twice: that is one request.
    desk, samples = folder / "desk", folder / "samples.txt"
    samples.write_text("\n".join(map(str, PERSON)) + "\n", encoding="utf-8")
    source = ("--model", original, "--data", "digits")
    run("request", "new", "-w", desk, "--class", 3, *source, "--received", "2026-03-01")
    for _ in range(2):
        run("request", "new", "-w", desk, "--samples", samples, "--received", "2026-03-09")

    # Carry them out one after the other, each on the model that the previous one left.
    for request in ("R-0001", "R-0002"):
        run("request", "run", request, "-w", desk, "--device", "cpu", "--quiet")
    run("request", "list", "-w", desk)
    run("request", "check", "-w", desk, "--device", "cpu")

    # Audit, report, and sign last. A gate that fails is a finding that the report contains.
    key, ledger = folder / "desk.key", folder / "ledger.jsonl"
    unlearned = [desk / "runs/run-0001", desk / "runs/run-0002"]
    run("keygen", key)
    for index, model in enumerate(unlearned):
        reference = ["--retrained", retrained] if retrained is not None and index == 0 else []
        if famr("audit", model, *reference, "--quick", "--device", "cpu") not in (0, FAILED_GATE):
            raise SystemExit("The audit could not be made.")
        run("report", model, *reference, "--device", "cpu")
        run("sign", model, "--key", key, "--ledger", ledger)

    # The auditor verifies them with the folders, the ledger and the public key.
    public = folder / "desk.key.pub"
    for model in unlearned:
        run("verify", model, "--key", public, "--ledger", ledger)

    # A metric that is changed afterwards is detected.
    tampered = folder / "tampered"
    shutil.copytree(unlearned[1], tampered)
    metrics = tampered / "unlearning/metrics.json"
    metrics.write_text(metrics.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    if famr("verify", tampered, "--key", public) != FAILED_GATE:
        raise SystemExit("A changed metric was not detected.")


def in_a_shell(*arguments: object) -> int:
    """Print a command and run it in a process of its own.

    Args:
        arguments: Of `famr`.

    Returns:
        Its exit code.
    """
    words = ["famr", *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", *words]  # the famr of this environment
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    serve_requests(Path(sys.argv[1] if len(sys.argv) > 1 else "build/deletion-desk"), in_a_shell)
