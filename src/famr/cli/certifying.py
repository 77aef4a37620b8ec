"""What `famr certify` does, between parsing and printing."""

from __future__ import annotations

import json
from pathlib import Path

from famr.certificates.certify import certify
from famr.certificates.claims import Certificate, differences
from famr.certificates.page import certificate_page
from famr.certificates.retraining import retraining_certificate
from famr.cli.commands import load_reference, open_run, recorded_facts, splits_for
from famr.data import open_data
from famr.data.request import Request
from famr.errors import CheckpointError, GateError, RequestError
from famr.models import Classifier, load_model
from famr.runs.folder import add_to_run
from famr.storage.portable_paths import with_local_paths
from famr.unlearn.result import Unlearned
from famr.unlearn.sketch import Sketch

JSON, PAGE = "certificate.json", "certificate.md"
TOLERANCE = 0.01
"""How far a number may be off when it is computed again, possibly on another machine."""


def run_certify(
    run: Path,
    *,
    retrained: str | None,
    original: str | None,
    data: str | None,
    data_root: str | None,
    sketch: Path | None,
    device: str,
    lanczos_steps: int,
    retained_images: int,
) -> Certificate:
    """Compute the certificate of a finished run from its records: of a retraining an exact one, else a deviation."""
    if _place(run) == "training":
        return _of_retraining(run, load_model(str(run)), data, data_root)
    opened = open_run(run, original, data, data_root)
    model = opened.model
    if opened.original is None:
        raise RequestError("A certificate needs the original model.", where=str(run), fix="Name it with --original.")
    if model.digest() != opened.record["unlearned"]["weights_sha256"]:
        raise CheckpointError(
            "The run's weights are not those its record speaks of.", where=str(run), fix="Restore the folder."
        )
    style_target = opened.facts.get("style_target")
    return certify(
        Unlearned.load(run, model, opened.original),
        opened.splits,
        retrained=load_reference(retrained, model, opened.request) if retrained else None,
        sketch=None if sketch is None else Sketch.load(sketch),
        style_target=open_data(style_target, whole=True).everything() if style_target else None,
        device=device,
        lanczos_steps=lanczos_steps,
        retained_images=retained_images,
    )


def _place(run: Path) -> str:
    """The folder of a run's records: `training`, unless it was made to forget."""
    return "training" if (run / "training/run.json").is_file() else "unlearning"


def _of_retraining(run: Path, model: Classifier, data: str | None, data_root: str | None) -> Certificate:
    record = with_local_paths(json.loads((run / "training/run.json").read_text(encoding="utf-8")), run)
    if record["without"] is None:
        raise RequestError(
            "This model was trained on everything and has forgotten nothing.",
            where=str(run),
            fix="Certify a folder that `famr forget` or `famr train --without-…` wrote.",
        )
    facts = recorded_facts(run, record, data, data_root)
    model, splits = splits_for(model, Request.from_json(record["without"]), facts)
    return retraining_certificate(model, record, splits)


def write_certificate(run: Path, certificate: Certificate) -> None:
    """Put it into the run folder, as JSON and as a page, and seal the folder anew."""
    content = json.dumps(certificate.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    place = _place(run)
    add_to_run(run, {f"{place}/{JSON}": content, f"{place}/{PAGE}": certificate_page(certificate)})


def read_certificate(run: Path) -> Certificate:
    """The certificate in a run folder."""
    file = run / _place(run) / JSON
    try:
        return Certificate.from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise RequestError("The run has no certificate.", where=str(file), fix="famr certify RUN") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("The certificate is damaged.", where=str(file), fix="Make it again.") from error


def require_same(run: Path, stored: Certificate, computed: Certificate) -> None:
    """Exit code 7 where a certificate does not say what its files say."""
    if found := differences(stored, computed, TOLERANCE):
        raise GateError(
            f"The certificate does not match its files: {len(found)} differences.",
            where="; ".join(found[:5]),
            fix=f"Do not rely on {run / _place(run) / JSON}; make it again with `famr certify`.",
        )
