"""What `famr train --certified-head` does, and `famr forget` on its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from famr.certificates.certified_head import CertifiedClassifier
from famr.certificates.convex_head import RemovalSettings
from famr.certificates.page import certificate_page
from famr.cli.commands import open_facts
from famr.cli.printing import print_json, say
from famr.data.request import Request
from famr.data.splits import split
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images
from famr.errors import RequestError
from famr.models import new_model
from famr.runs.folder import check_output


def run_train_certified(
    model: str,
    weights: Path | None,
    arguments: Mapping[str, Any],
    from_scratch: bool,
    seed: int,
    data_facts: Mapping[str, Any],
    without: Request,
    noise: Mapping[str, float],
    output_dir: Path,
    overwrite: bool,
    device: str,
    as_json: bool,
) -> None:
    """Fit a certified head to a frozen backbone, write it, show its accuracy and its certificate.

    `seed` is of a backbone that is drawn at random, not of the noise, which nobody may foresee.
    """
    check_output(output_dir, overwrite, [model, weights, data_facts["spec"]])
    place = pick_device(device)
    data = open_facts(data_facts)
    images = split(data, without).retain if without.kind != "images" else data.train
    assert images is not None
    backbone = new_model(model, data.labels, weights=weights, arguments=arguments, from_scratch=from_scratch, seed=seed)
    settings = RemovalSettings(**noise)
    made = CertifiedClassifier.train(backbone, images, data.labels, settings, device=place)
    accuracy = None if data.test is None else accuracy_on_images(made.classifier(), data.test, place)
    made.save(output_dir, overwrite=overwrite)
    _tell(made, output_dir, {"test_accuracy": accuracy}, as_json)


def run_forget_certified(
    run: Path,
    data_facts: Mapping[str, Any],
    request: Request,
    output_dir: Path,
    overwrite: bool,
    device: str,
    as_json: bool,
) -> None:
    """Remove images from a certified head; the data only says which images are meant."""
    check_output(output_dir, overwrite, [run, data_facts["spec"]])
    if not data_facts["spec"] or request.kind == "images":
        raise RequestError(
            "Say which images, and of which data.", fix="--data SPEC with --class, --sample or --concept."
        )
    place = pick_device(device)
    before = CertifiedClassifier.load(run)
    data = open_facts(data_facts)
    splits = split(data, request)
    known = set(before.ids)
    ids = [id_ for id_ in splits.forget.ids if id_ in known]
    if missing := len(splits.forget) - len(ids):
        say(f"famr: note: {missing} of {len(splits.forget)} images are not in the head; they were removed before")
    if not ids:
        raise RequestError("None of these images is in the head.", where=str(run), fix="There is nothing to remove.")
    after = before.forget(request, ids)
    accuracies = {
        name: None if splits.test is None else accuracy_on_images(found.classifier(), splits.test, place)
        for name, found in (("retain_accuracy_before", before), ("retain_accuracy", after))
    }
    after.save(output_dir, overwrite=overwrite)
    _tell(after, output_dir, accuracies, as_json)


def _tell(made: CertifiedClassifier, output_dir: Path, accuracies: Mapping[str, float | None], as_json: bool) -> None:
    certificate = made.certificate()
    if as_json:
        print_json({**accuracies, "certificate": certificate.to_json(), "output_dir": str(output_dir)})
        return
    print(certificate_page(certificate))
    for name, value in accuracies.items():
        if value is not None:
            print(f"{name.replace('_', ' ')}: {100 * value:.1f} %")
    say(f"written to {output_dir}; hand out head/released.safetensors and the backbone, keep the rest")
