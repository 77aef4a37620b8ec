"""`audit`: the original, the unlearned and retrained models before the same gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from famr.audit.costs import Stopwatch
from famr.audit.deep_gates import depth_gates, relearning_gate, style_gate, survival_gates
from famr.audit.gates import answer_gates
from famr.audit.panel import Panel
from famr.audit.populations import Populations, shadow_statements, u_lira_gate, u_lira_rocs
from famr.audit.stated import alikeness, notes, statements
from famr.audit.verdict import Audit, Check, Figure, check, read_thresholds
from famr.audit.witness import (
    Questions,
    StyleLayer,
    Witness,
    question,
    relearned,
    require_comparable,
    survived,
)
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
    shadows: Populations | None = None,
    style: StyleLayer | None = None,
    quick: bool = False,
    thresholds: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Audit:
    """Hold models against retrained ones, gate by gate; without a retrained model those gates cannot tell.

    `shadows` are answers of shadow models to the forget set, for U-LiRA. `style` names the layer from which a style
    request is audited. `quick` leaves out relearning, rounding, export and CKA. No model is changed.
    """
    limits = {**read_thresholds(), **(thresholds or {})}
    models = {"unlearned": unlearned} | ({} if original is None else {"original": original})
    references = {f"retrained {place}": model for place, model in enumerate(retrained)}
    require_comparable({**models, **references}, splits)
    asked = Questions.about(splits, seed, pick_device(device or "auto"))
    if style is not None and splits.request.style is None:
        raise RequestError("No style was forgotten.", where=splits.request.describe(), fix="Leave the style layer out.")
    costs = Stopwatch()
    with deterministic(seed):
        panel = _panel({**models, **references}, list(models), asked, original, style, quick, limits, costs)
        with costs("gates"):
            checks = _gates(panel, asked)
            stated = statements(panel, asked)
        if not quick:
            with costs("cka"):
                stated["cka"] = alikeness(models, retrained, asked)
        if shadows is not None:
            with costs("shadow attacks"):
                rocs = u_lira_rocs(shadows, seed)
                checks.append(u_lira_gate(rocs, limits, list(models)))
                stated["shadows"] = shadow_statements(shadows, rocs, panel.everybody, splits.forget.ids, seed)
    stated["power"] = {
        "needs_retrained": False,
        "says": "Gates that the original does not fail: here they cannot show that anything was forgotten.",
        "original_does_not_fail": [each.name for each in checks if each.verdicts.get("original", "fail") != "fail"],
    }
    said = notes(stated)
    if not asked.enough:
        said.append(f"{len(splits.forget)} forget images are too few for a verdict.")
        checks = [_undecided(each, said[-1]) for each in checks]
    subject = {
        "request": splits.request.to_json(),
        "thresholds": limits,
        "seed": seed,
        "quick": quick,
        "unlearned_sha256": unlearned.digest(),
        "original_sha256": None if original is None else original.digest(),
        "retrained_sha256": [model.digest() for model in retrained],
    }
    return Audit(tuple(checks), subject, tuple(said), stated, costs.seconds)


def _panel(
    models: Mapping[str, Classifier],
    audited: Sequence[str],
    asked: Questions,
    original: Classifier | None,
    style: StyleLayer | None,
    quick: bool,
    limits: Mapping[str, float],
    costs: Stopwatch,
) -> Panel:
    """Question everybody; the first of the retrained models is put through all that the audited ones are."""
    found = {
        name: question(model, asked, original if name in audited else None, style, costs)
        for name, model in models.items()
    }
    if not quick and asked.enough:
        lessons = relearned(models, asked, original, costs)
        changed = {name: model for name, model in models.items() if name in (*audited, "retrained 0")}
        rounded = survived(changed, asked, ["unlearned"], costs)
        found = {
            name: replace(witness, relearned=lessons.get(name), survived=rounded.get(name))
            for name, witness in found.items()
        }
    references: list[Witness] = [witness for name, witness in found.items() if name not in audited]
    return Panel({name: found[name] for name in audited}, references, limits, asked.seed)


def _gates(panel: Panel, asked: Questions) -> list[Check]:
    """All gates that this request and this data allow."""
    checks = answer_gates(panel, asked.splits)
    ours = panel.witnesses["unlearned"]
    if ours.depth is not None:
        checks += depth_gates(panel)
    if ours.style is not None:
        checks.append(style_gate(panel))
    if ours.survived is not None:
        checks += [relearning_gate(panel), *survival_gates(panel)]
    return checks


def _undecided(each: Check, why: str) -> Check:
    figures = {model: Figure.not_available(why) for model in each.figures}
    return check(each.name, each.says, each.threshold, figures, needs_retrained=each.needs_retrained)
