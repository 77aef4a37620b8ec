"""`famr certify`: the certificate of a run, written into its folder or compared with the one that is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from famr.certificates.certify import LANCZOS_STEPS, RETAINED_IMAGES, certify
from famr.certificates.claims import Certificate, differences
from famr.certificates.page import certificate_page
from famr.certificates.retraining import retraining_certificate
from famr.cli.opening import load_retrained, open_run, open_splits, open_style_target, recorded_source
from famr.cli.options import Device, MovedOptions, RemovedRun, Retrained
from famr.cli.printing import Result, say
from famr.config import ResolvedFAMR
from famr.data.request import Request
from famr.errors import CheckpointError, GateError, RequestError
from famr.models import load_model
from famr.runs.folder import add_to_run
from famr.storage.portable_paths import with_local_paths
from famr.unlearn.result import Unlearned
from famr.unlearn.sketch import Sketch

TOLERANCE = 0.01
"""How much a number may differ when it is computed again, possibly on another machine."""


@dataclass(frozen=True, kw_only=True)
class CertifyOptions:
    """What a certificate is computed from beside the run.

    Attributes:
        sketch: The sketch that the run used, if it used one.
        lanczos_steps: Steps for the ends of a spectrum.
        retained_images: Retained images for the influence step.
    """

    retrained: Retrained = None
    sketch: Path | None = None
    lanczos_steps: Annotated[int | None, typer.Option(min=1)] = None
    retained_images: Annotated[int | None, typer.Option(min=1)] = None
    device: Device = "auto"


def certify_command(
    run: RemovedRun,
    moved: MovedOptions,
    options: CertifyOptions,
    check: Annotated[bool, typer.Option("--check")] = False,
) -> Result:
    """Certify a run: claims with bounds and assumptions, written into the run folder.

    Args:
        run: The run folder.
        moved: What is no longer where its records say.
        options: What the certificate is computed from.
        check: Compute the run's certificate again and compare; write nothing. Exit code 7 where it differs.
    """
    stored = read_certificate(run) if check else None
    certificate = compute_certificate(run, moved, options, stored)
    if stored is not None:
        require_same(run, stored, certificate)
    else:
        write_certificate(run, certificate)

    def show() -> None:
        print(certificate_page(certificate))
        say(f"{'the certificate agrees with its files' if check else 'written into'}: {run}")

    return Result(certificate.to_json(), show)


def compute_certificate(
    run: Path, moved: MovedOptions, options: CertifyOptions, stored: Certificate | None = None
) -> Certificate:
    """The certificate of a run from its records: of a retraining an exact one, else a deviation certificate.

    Args:
        run: The run folder.
        moved: What is no longer where its records say.
        options: What the certificate is computed from.
        stored: An earlier certificate, whose sizes are used where `options` leave them open.

    Raises:
        RequestError: The original cannot be found.
        CheckpointError: The weights are not those of the record.
    """
    if _section(run) == "training":
        return _certify_retraining(run, moved)
    opened = open_run(run, moved)
    if opened.original is None:
        raise RequestError("A certificate needs the original model.", where=str(run), fix="Name it with --original.")
    if opened.model.digest() != opened.record["unlearned"]["weights_sha256"]:
        raise CheckpointError(
            "The run's weights are not those its record speaks of.", where=str(run), fix="Restore the folder."
        )
    sizes = {} if stored is None else stored.subject
    return certify(
        Unlearned.load(run, opened.model, opened.original),
        opened.seen,
        scored=opened.splits,
        retrained=load_retrained(options.retrained, opened.model, opened.request) if options.retrained else None,
        sketch=None if options.sketch is None else Sketch.load(options.sketch),
        style_target=open_style_target(opened.style_target),
        device=options.device,
        lanczos_steps=options.lanczos_steps or sizes.get("lanczos_steps", LANCZOS_STEPS),
        retained_images=options.retained_images or sizes.get("retained_images", RETAINED_IMAGES),
    )


def _certify_retraining(run: Path, moved: MovedOptions) -> Certificate:
    model = load_model(str(run))
    record = with_local_paths(json.loads((run / "training/run.json").read_text(encoding="utf-8")), run)
    if record["without"] is None:
        raise RequestError(
            "This model was trained on everything and has forgotten nothing.",
            where=str(run),
            fix="Certify a folder that `famr forget` or `famr train --without-…` wrote.",
        )
    source = recorded_source(run, record, moved.data, moved.data_root)
    model, splits = open_splits(model, Request.from_json(record["without"]), source)
    return retraining_certificate(model, record, splits)


def write_certificate(run: Path, certificate: Certificate) -> None:
    """Write a certificate into its run folder, as JSON and as a page, and seal the folder again.

    Args:
        run: The run folder.
        certificate: Of that run.
    """
    content = json.dumps(certificate.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    section = _section(run)
    page = certificate_page(certificate)
    add_to_run(run, {f"{section}/certificate.json": content, f"{section}/certificate.md": page})


def read_certificate(run: Path) -> Certificate:
    """The certificate in a run folder.

    Args:
        run: The run folder.

    Raises:
        RequestError: There is none.
        CheckpointError: It is damaged.
    """
    file = run / _section(run) / "certificate.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if "method" in values["subject"]:  # with settings that were added since it was written
            values["subject"]["method"] = ResolvedFAMR.from_json(values["subject"]["method"]).to_json()
        return Certificate.from_json(values)
    except FileNotFoundError as error:
        raise RequestError("The run has no certificate.", where=str(file), fix="famr certify RUN") from error
    except (ValueError, KeyError, TypeError, AttributeError, RequestError) as error:
        raise CheckpointError("The certificate is damaged.", where=str(file), fix="Make it again.") from error


def require_same(run: Path, stored: Certificate, computed: Certificate) -> None:
    """Check that a certificate says what its files say.

    Args:
        run: The run folder.
        stored: The certificate in it.
        computed: The certificate of its files.

    Raises:
        GateError: They differ.
    """
    if found := differences(stored, computed, TOLERANCE):
        raise GateError(
            f"The certificate does not match its files: {len(found)} differences.",
            where="; ".join(found[:5]),
            fix=f"Do not rely on {run / _section(run) / 'certificate.json'}; make it again with `famr certify`.",
        )


def _section(run: Path) -> str:
    """The subfolder of a run's records: `training`, or `unlearning` after an unlearning run."""
    return "training" if (run / "training/run.json").is_file() else "unlearning"
