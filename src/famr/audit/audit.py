"""`audit`: the unlearned model, the original and retrained models at the same gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.audit.audit_data import AuditData, require_comparable
from famr.audit.comparison import ComparedModels
from famr.audit.costs import Stopwatch
from famr.audit.measurements import is_reference, measure_models
from famr.audit.shadow_attacks import shadow_figures, u_lira_by_kind
from famr.audit.shadow_logits import ShadowLogits
from famr.audit.style_probe import StyleLayer
from famr.audit.ungated import cka_by_layer, notes, power, ungated_measurements
from famr.audit.verdict import Audit, judge, read_thresholds
from famr.data.splits import Splits
from famr.engine.devices import deterministic, pick_device
from famr.errors import RequestError
from famr.models import Classifier


def audit(
    unlearned: Classifier,
    splits: Splits,
    *,
    original: Classifier | None = None,
    retrained: Sequence[Classifier] = (),
    shadows: ShadowLogits | None = None,
    style: StyleLayer | None = None,
    quick: bool = False,
    thresholds: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Audit:
    """Compare an unlearned model with retrained ones, gate by gate; no model is changed.

    Args:
        unlearned: The model under audit.
        splits: The request's sets, with labels, retained and held-out images.
        original: The model before unlearning; it shows which gates have any power.
        retrained: Models trained without the forget set; without one, gates that need it cannot tell.
        shadows: Logits of shadow models on the forget set, for LiRA, U-LiRA and KLoM.
        style: The layer from which a forgotten style is read; only for style requests.
        quick: Leave out relearning, rounding, export and CKA.
        thresholds: By the name of the gate, in place of its own.
        seed: Of all draws and bootstraps.
        device: None: the best there is.

    Raises:
        RequestError: Without the whole data, or with a style layer and no style.
        CheckpointError: For models of different architectures or label maps.
    """
    limits = {**read_thresholds(), **(thresholds or {})}
    before = {} if original is None else {"original": original}
    models = {"unlearned": unlearned, **before, **{f"retrained {index}": each for index, each in enumerate(retrained)}}
    require_comparable(models, splits)
    data = AuditData.draw(splits, seed, pick_device(device or "auto"))
    if style is not None and splits.request.style is None:
        raise RequestError("No style was forgotten.", where=splits.request.describe(), fix="Leave the style layer out.")
    costs = Stopwatch()
    with deterministic(seed):
        compared = _compare(models, data, style, quick, shadows, costs)
        with costs("gates"):
            results = judge(compared, limits)
        stated = _ungated(models, data, compared, shadows, quick, costs)
    stated["power"] = power([each.name for each in results if each.verdicts.get("original", "fail") != "fail"])
    lines = notes(stated)
    if not data.enough:
        lines.append(f"{len(splits.forget)} forget images are too few for a verdict.")
        results = [result.undecided(lines[-1]) for result in results]
    subject: dict[str, Any] = {"request": splits.request.to_json(), "thresholds": limits, "seed": seed, "quick": quick}
    return Audit(tuple(results), {**subject, **_digests(models)}, tuple(lines), stated, costs.seconds)


def _ungated(
    models: Mapping[str, Classifier],
    data: AuditData,
    compared: ComparedModels,
    shadows: ShadowLogits | None,
    quick: bool,
    costs: Stopwatch,
) -> dict[str, Any]:
    """What is reported without a gate."""
    with costs("gates"):
        stated = ungated_measurements(compared)
    if not quick:
        retrained = [model for name, model in models.items() if is_reference(name)]
        with costs("cka"):
            stated["cka"] = cka_by_layer(models["unlearned"], models.get("original"), retrained, data)
    if shadows is not None and compared.u_lira is not None:
        with costs("shadow attacks"):
            ids = data.splits.forget.ids
            stated["shadows"] = shadow_figures(shadows, compared.u_lira, compared.named, ids, data.seed)
    return stated


def _digests(models: Mapping[str, Classifier]) -> dict[str, Any]:
    """SHA-256 of the weights of all models."""
    digests = {name: model.digest() for name, model in models.items()}
    return {
        "unlearned_sha256": digests["unlearned"],
        "original_sha256": digests.get("original"),
        "retrained_sha256": [digest for name, digest in digests.items() if is_reference(name)],
    }


def _compare(
    models: Mapping[str, Classifier],
    data: AuditData,
    style: StyleLayer | None,
    quick: bool,
    shadows: ShadowLogits | None,
    costs: Stopwatch,
) -> ComparedModels:
    """Everything that is measured on the models, side by side."""
    measured = measure_models(models, data, style, quick, costs)
    u_lira = None
    if shadows is not None:
        with costs("shadow attacks"):
            u_lira = u_lira_by_kind(shadows, data.seed)
    audited = {name: model for name, model in measured.items() if not is_reference(name)}
    references = [model for name, model in measured.items() if is_reference(name)]
    return ComparedModels(data.splits, audited, references, data.seed, u_lira)
