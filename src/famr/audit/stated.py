"""What an audit measures and does not judge, as plain values; each says whether it needs a retrained model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from famr.audit.cka import cka_to_others
from famr.audit.collateral import ClassChange, collateral, loss_of_nearest, nearness
from famr.audit.gates import mean_measures, measures
from famr.audit.panel import NO_REFERENCE, Panel
from famr.audit.relearning import median_steps
from famr.audit.telltale import NEIGHBOURS, before_and_after
from famr.audit.witness import Questions, drawn
from famr.metrics.calibration import expected_calibration_error
from famr.metrics.retraining import tug_of_war
from famr.models import Classifier

CKA_IMAGES = 500
NO_ORIGINAL = "not available: the original was not given"


def statements(panel: Panel, asked: Questions) -> dict[str, Any]:
    """Everything that follows from the answers and the attacks."""
    found: dict[str, Any] = {
        "tug_of_war": tugs_of_war(panel),
        "calibration": {
            "needs_retrained": False,
            "says": "ECE on held-out images that stay.",
            "ece": {
                name: expected_calibration_error(witness.test.logits, witness.test.targets)
                for name, witness in panel.everybody.items()
            },
        },
        "before_and_after": both_models(panel),
        "collateral": lost_classes(panel, asked),
    }
    for name, says in (("depth", "Held-out accuracies of attacks with five images a class."), ("style", "Probes.")):
        if any(getattr(witness, name) is not None for witness in panel.everybody.values()):
            each = {model: getattr(witness, name) for model, witness in panel.everybody.items()}
            said = {model: value.to_json() for model, value in each.items() if value is not None}
            found[name] = {"needs_retrained": False, "says": says, **said}
    if any(witness.relearned is not None for witness in panel.everybody.values()):
        found["relearning"] = {
            "needs_retrained": False,
            "says": "Steps until 95 % of the original's accuracy on other forget images; null: not reached.",
            **{
                name: {
                    "median_steps": median_steps(witness.relearned),
                    "runs": [r.to_json() for r in witness.relearned],
                }
                for name, witness in panel.everybody.items()
                if witness.relearned is not None
            },
        }
    survivals = {name: w.survived.to_json() for name, w in panel.everybody.items() if w.survived is not None}
    if survivals:
        says = "Forget accuracy as it is and after each change."
        found["survival"] = {"needs_retrained": False, "says": says, **survivals}
    return found


def tugs_of_war(panel: Panel) -> dict[str, Any]:
    """ToW and ToW-MIA of each model to the mean of the retrained ones; of the first of them to the others."""
    said: dict[str, Any] = {"needs_retrained": True, "says": "Π (1 − gap) of forget, retain and test; 1 is a match."}
    if not panel.references:
        return {**said, "not_available": NO_REFERENCE}
    sides = {name: (witness, panel.references) for name, witness in panel.witnesses.items()}
    if len(panel.references) > 1:
        sides["retrained"] = (panel.references[0], panel.references[1:])
    for name, (witness, references) in sides.items():
        ours, theirs = measures(witness), mean_measures(references)
        kinds = {"tow": ("forget", "retain", "test"), "tow_mia": ("mia", "retain", "test")}
        said[name] = {
            kind: tug_of_war({part: ours[part] for part in parts}, {part: theirs[part] for part in parts})
            for kind, parts in kinds.items()
        }
    return said


def both_models(panel: Panel) -> dict[str, Any]:
    """What one learns who holds the model before and after."""
    said: dict[str, Any] = {
        "needs_retrained": False,
        "says": "AUC of telling forget from held-out images by how far the answers moved; near 1 for all that works.",
    }
    ours, before = panel.witnesses["unlearned"], panel.witnesses.get("original")
    if before is None:
        return {**said, "not_available": NO_ORIGINAL}
    auc = before_and_after(before.forget.logits, ours.forget.logits, before.test.logits, ours.test.logits)
    return {**said, "auc": auc}


def lost_classes(panel: Panel, asked: Questions) -> dict[str, Any]:
    """Each class that stays, from the one that lost most: held-out accuracy before and after."""
    says = "Held-out accuracy of each class that stays, before and after; the one that lost most first."
    said: dict[str, Any] = {"needs_retrained": False, "says": says}
    ours, before = panel.witnesses["unlearned"], panel.witnesses.get("original")
    if before is None:
        return {**said, "not_available": NO_ORIGINAL}
    forgotten = torch.tensor(asked.splits.forgotten_classes(), dtype=torch.long)
    changes = collateral(before.test, ours.test, nearness(before.forget.logits, forgotten))
    names = asked.splits.labels or tuple(str(index) for index in range(before.test.logits.shape[-1]))
    return {
        **said,
        "mean_change_of_nearest": loss_of_nearest(changes, NEIGHBOURS),
        "classes": [_class_json(change, names) for change in changes],
    }


def _class_json(change: ClassChange, names: Sequence[str]) -> dict[str, Any]:
    return {"class": names[change.target], **asdict(change), "change": change.change}


def alikeness(models: Mapping[str, Classifier], retrained: Sequence[Classifier], asked: Questions) -> dict[str, Any]:
    """CKA by layer: of the unlearned model to the original and to a retrained one, and of two retrained ones."""
    assert asked.splits.test is not None
    sets = {
        "forget": drawn(asked.splits.forget, CKA_IMAGES, asked.seed),
        "retain": drawn(asked.splits.test, CKA_IMAGES, asked.seed),
    }
    before = {name: model for name, model in models.items() if name == "original"}
    pairs = {"unlearned": (models["unlearned"], {**before, **dict(zip(["retrained"], retrained, strict=False))})}
    if retrained:
        pairs["retrained"] = (retrained[0], {**before, **dict(zip(["another retrained"], retrained[1:], strict=False))})
    says = "Centred kernel alignment by layer; good is near retrained, and no nearer to the original than retrained is."
    alike = {name: cka_to_others(model, others, sets, asked.device) for name, (model, others) in pairs.items()}
    return {"needs_retrained": True, "says": says, **_without_nan(alike)}


def _without_nan(values: Any) -> Any:
    """None where there was nothing to compare: JSON knows no nan."""
    if isinstance(values, dict):
        return {name: _without_nan(value) for name, value in values.items()}
    return None if math.isnan(values) else values


def notes(stated: Mapping[str, Any]) -> list[str]:
    """The stated figures that people ask for first, in words."""
    found = [
        f"ECE on held-out images that stay: {name} {value:.4f}" for name, value in stated["calibration"]["ece"].items()
    ]
    for name in ("unlearned", "retrained"):
        if name in stated["tug_of_war"]:
            tow, mia = (stated["tug_of_war"][name][kind] for kind in ("tow", "tow_mia"))
            found.append(f"ToW {tow:.3f}, ToW-MIA {mia:.3f}: {name}")
    if "auc" in stated["before_and_after"]:
        auc = stated["before_and_after"]["auc"]
        found.append(f"One who holds both models tells forget images from others with AUC {auc:.3f}.")
    found += [
        f"Class {change['class']}: {100 * change['before']:.1f} → {100 * change['after']:.1f} %"
        for change in stated["collateral"].get("classes", [])[:NEIGHBOURS]
        if change["change"] < 0
    ]
    if weak := stated["power"]["original_does_not_fail"]:
        found.append(f"The original does not fail {', '.join(weak)}: these cannot show forgetting here.")
    missing = stated.get("survival", {}).get("unlearned", {}).get("not_available", {})
    found += [f"{change}: {why}" for change, why in missing.items()]
    return found
