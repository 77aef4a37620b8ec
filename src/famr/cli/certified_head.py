"""Certified heads: `famr train --certified-head`, and `famr forget` on the folder that it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from famr.certificates.certified_head import CertifiedClassifier
from famr.certificates.convex_head import RemovalSettings
from famr.certificates.page import certificate_page
from famr.cli.opening import DataSource
from famr.cli.options import ComputeOptions, NewModelSource, OutputOptions, RequestOptions
from famr.cli.printing import Result, say, say_note
from famr.data.request import Request
from famr.data.splits import split
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images
from famr.errors import RequestError
from famr.models import new_model

RECORD = "certified.json"
"""The file that only the folder of a certified head has."""
USED_BY_REMOVAL = {
    *("model", "data", "data_root", "label_column", "split_seed", "match_labels_by_name"),
    *(each.name for each in (*fields(RequestOptions), *fields(OutputOptions))),
    *("device", "quiet", "as_json"),
}
"""Flags of `famr forget` that have an effect where images are removed from a certified head."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Settings of a certified head.

    Attributes:
        epsilon: ε of the certified head.
        delta: δ of the certified head.
        sigma: Noise of the certified head; more allows more removals.
        head_strength: λ of the certified head, for each image.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    sigma: float = 1.0
    head_strength: float = 1e-2


def train_certified(
    model: NewModelSource,
    source: DataSource,
    without: Request | None,
    head: HeadOptions,
    output: OutputOptions,
    run: ComputeOptions,
) -> Result:
    """Fit a certified head to a frozen backbone and write it.

    Args:
        model: The backbone.
        source: The images.
        without: What to leave out; None: nothing.
        head: Settings of the head.
        output: The folder to write.
        run: The device, and the seed of a backbone that is drawn at random; the noise of the head has no seed, as
            nobody may be able to predict it.
    """
    output.require_free([model.model, model.weights, source.spec])
    device = pick_device(run.device)
    data = source.open()
    images = data.train if without is None else split(data, without).retain
    assert images is not None
    backbone = new_model(
        model.model,
        data.labels,
        weights=model.weights,
        arguments=model.arguments,
        from_scratch=model.from_scratch,
        seed=run.seed,
    )
    settings = RemovalSettings(head.head_strength, head.sigma, head.epsilon, head.delta)
    classifier = CertifiedClassifier.train(backbone, images, data.labels, settings, device=device)
    accuracy = None if data.test is None else accuracy_on_images(classifier.classifier(), data.test, device)
    classifier.save(output.output_dir, overwrite=output.overwrite)
    return _result(classifier, output.output_dir, {"test_accuracy": accuracy})


def remove_from_certified(
    run: Path, source: DataSource, request: Request, output: OutputOptions, device_name: str
) -> Result:
    """Remove images from a certified head.

    Args:
        run: The folder of the head.
        source: The data, which only says which images the request means.
        request: Which images.
        output: The folder to write.
        device_name: Where the accuracy is computed.

    Raises:
        RequestError: No data or no request was given, or none of the images is in the head.
    """
    output.require_free([run, source.spec])
    if not source.spec or request.kind == "images":
        raise RequestError(
            "Say which images, and of which data.", fix="--data SPEC with --class, --sample or --concept."
        )
    device = pick_device(device_name)
    before = CertifiedClassifier.load(run)
    splits = split(source.open(), request)
    known = set(before.ids)
    ids = [id_ for id_ in splits.forget.ids if id_ in known]
    if missing := len(splits.forget) - len(ids):
        say_note(f"{missing} of {len(splits.forget)} images are not in the head; they were removed before")
    if not ids:
        raise RequestError("None of these images is in the head.", where=str(run), fix="There is nothing to remove.")
    after = before.forget(request, ids)
    accuracies = {
        name: None if splits.test is None else accuracy_on_images(head.classifier(), splits.test, device)
        for name, head in (("retain_accuracy_before", before), ("retain_accuracy", after))
    }
    after.save(output.output_dir, overwrite=output.overwrite)
    return _result(after, output.output_dir, accuracies)


def _result(head: CertifiedClassifier, output_dir: Path, accuracies: Mapping[str, float | None]) -> Result:
    certificate = head.certificate()

    def show() -> None:
        print(certificate_page(certificate))
        for name, value in accuracies.items():
            if value is not None:
                print(f"{name.replace('_', ' ')}: {100 * value:.1f} %")
        say(f"written to {output_dir}; hand out head/released.safetensors and the backbone, keep the rest")

    return Result({**accuracies, "certificate": certificate.to_json(), "output_dir": str(output_dir)}, show)
