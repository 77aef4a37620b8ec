"""How often does the audit fail a model that was truly retrained, and how often one that was not?

    python -m benchmarks.audit_calibration --output benchmarks/results/audit_calibration-digits.json

On digits, the class 3. Models are trained without it from 24 seeds. Each of them in turn is audited as if it were an
unlearned one, against 5, 10 and 19 of the others; so are the original, a head-only edit, the paper's preset and the
default of two originals. All audits share what was measured on the models: one audit differs from another by its
references. The whole verdict counts, and the gates that have power.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import famr
from benchmarks.cells import log, small_vit, write_results
from famr.audit.audit_data import AuditData
from famr.audit.comparison import ComparedModels
from famr.audit.controls import NEVER_SAW_EPOCHS, collapsed, head_only_edit
from famr.audit.costs import Stopwatch
from famr.audit.measurements import ModelMeasurements, measure_predictions, with_attacks, with_probes
from famr.audit.names import COLLAPSED, HEAD_ONLY, NEVER_SAW, ORIGINAL, UNLEARNED
from famr.audit.verdict import Audit, judge, read_thresholds
from famr.data.augmentation import Augmentation
from famr.engine.devices import deterministic
from famr.runs.folder import environment

CLASS = "3"
TRAINING = famr.Training(
    epochs=20, batch_size=64, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
)
RETRAINED, ORIGINALS = 24, 4
REFERENCES = (5, 10, 19)
METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR()}
CPU = torch.device("cpu")
ROLES = {"original 0": ORIGINAL, "head only 0": HEAD_ONLY, "never saw": NEVER_SAW}
"""The controls of every audit; all other models are audited."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--retrained", type=int, default=RETRAINED)
    parser.add_argument("--originals", type=int, default=ORIGINALS)
    parser.add_argument("--epochs", type=int, default=TRAINING.epochs)
    parser.add_argument("--draws", type=int, default=2, help="sets of references for each audited model")
    parser.add_argument("--quick", action="store_true", help="without the attacks that train")
    arguments = parser.parse_args()
    training = replace(TRAINING, epochs=arguments.epochs)
    begun = time.perf_counter()
    data = famr.open_data("digits")
    splits = famr.split(data, famr.Request(classes=(CLASS,)))
    models = trained_models(data, splits, training, arguments.retrained, arguments.originals)
    log(f"{len(models)} models, {time.perf_counter() - begun:.0f} s")
    drawn = AuditData.draw(splits, 0, CPU)
    measured = measured_one_by_one(models, drawn, arguments.quick)
    retrained = [name for name in models if name.startswith("retrained")]
    audited = retrained + [name for name in models if name.startswith(("unlearned", "original", "head only"))]
    rows = []
    for count in REFERENCES:
        if count >= len(retrained):
            continue
        for name in audited:
            for draw in range(arguments.draws):
                references = drawn_references(retrained, name, count, draw)
                rows.append(
                    {"audited": name, "references": count, "draw": draw, **verdicts(measured, name, references, splits)}
                )
        summary = summarised([row for row in rows if row["references"] == count])
        log(
            f"{count} references: "
            + "; ".join(f"{kind} {values['fail']} of {values['audits']} fail" for kind, values in summary.items())
        )
    content = {
        "benchmark": "audit_calibration-digits",
        "data": "scikit-learn's digits, official split of famr, class 3",
        "model": "a ViT of two blocks, from random weights",
        "training": asdict(training),
        "quick": arguments.quick,
        "draws": arguments.draws,
        "environment": environment("cpu"),
        "seconds": time.perf_counter() - begun,
        "audits": rows,
        "summary": {
            str(count): summarised([row for row in rows if row["references"] == count]) for count in REFERENCES
        },
        "gates": {str(count): gate_rates([row for row in rows if row["references"] == count]) for count in REFERENCES},
    }
    write_results(arguments.output, content)


def trained_models(
    data: famr.Data, splits: famr.Splits, training: famr.Training, retrained: int, originals: int
) -> dict[str, famr.Classifier]:
    """Everything that is audited, by name; the number in a name is its seed."""
    start, retain = small_vit(data.labels), splits.retain
    assert retain is not None
    short = replace(training, epochs=max(1, training.epochs // NEVER_SAW_EPOCHS))

    def fitted(images: famr.Images, settings: famr.Training, seed: int) -> famr.Classifier:
        return famr.fit(start(seed), images, settings, seed=seed, device="cpu").model

    models = {f"retrained {seed}": fitted(retain, training, seed) for seed in range(retrained)}
    models["never saw"] = fitted(retain, short, 200)
    for number in range(originals):
        original = fitted(data.train, training, 100 + number)
        models[f"original {number}"] = original
        edited = head_only_edit(original, splits.forgotten_classes())
        assert edited is not None
        models[f"head only {number}"] = edited
        for method, settings in METHODS.items():
            made = famr.forget(original, splits, settings, seed=number, device="cpu")
            models[f"unlearned {method} {number}"] = made.model
    return models


def measured_one_by_one(
    models: Mapping[str, famr.Classifier], data: AuditData, quick: bool
) -> dict[str, ModelMeasurements]:
    """What an audit measures on each model; accuracies to relearn and heads to transplant are those of original 0."""
    original, costs, measured = models["original 0"], Stopwatch(), {}
    with deterministic(data.seed):
        for name, model in models.items():
            role = ROLES.get(name, UNLEARNED)
            found = with_probes(measure_predictions(model, data, costs), model, data, original, None, costs)
            measured[name] = found if quick else with_attacks(found, role, model, data, original, costs)
            log(f"{name}: { ({part: round(seconds, 1) for part, seconds in costs.seconds.items()}) }")
    return measured


def drawn_references(retrained: Sequence[str], audited: str, count: int, draw: int) -> list[str]:
    """Some of the retrained models, the audited one not among them."""
    others = [name for name in retrained if name != audited]
    seed = sum(audited.encode()) + 1000 * draw
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed)).tolist()
    return [others[index] for index in order[:count]]


def verdicts(
    measured: Mapping[str, ModelMeasurements], audited: str, references: Sequence[str], splits: famr.Splits
) -> dict[str, Any]:
    """The audit of one model against some references."""
    models = {
        UNLEARNED: measured[audited],
        ORIGINAL: measured["original 0"],
        NEVER_SAW: measured["never saw"],
        HEAD_ONLY: measured["head only 0"],
        COLLAPSED: collapsed(measured[audited]),
    }
    compared = ComparedModels(splits, models, [measured[name] for name in references], 0)
    found = Audit(tuple(judge(compared, read_thresholds())[UNLEARNED]), {})
    return {
        "verdict": found.verdicts[UNLEARNED],
        "counted": len(found.counted),
        "gates": {
            check.name: {"verdict": check.verdicts[UNLEARNED], "counts": check.not_counted is None}
            for check in found.checks
            if UNLEARNED in check.verdicts  # controls are not exported
        },
    }


def kind_of(name: str) -> str:
    """The name of a model without its seed."""
    return name.rpartition(" ")[0]


def summarised(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Verdicts by kind of audited model."""
    kinds = dict.fromkeys(kind_of(row["audited"]) for row in rows)
    summary = {}
    for kind in kinds:
        counts = Counter(row["verdict"] for row in rows if kind_of(row["audited"]) == kind)
        summary[kind] = {"audits": counts.total(), **{each: counts[each] for each in ("pass", "fail", "cannot tell")}}
    return summary


def gate_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each gate: the share of audits in which it counts, and of each kind of model that it fails."""

    def rate(values: list[bool]) -> float | None:
        return sum(values) / len(values) if values else None

    gates = dict.fromkeys(name for row in rows for name in row["gates"])
    kinds = dict.fromkeys(kind_of(row["audited"]) for row in rows)
    return {
        gate: {
            "counts": rate([row["gates"][gate]["counts"] for row in rows if gate in row["gates"]]),
            **{
                kind: rate(
                    [
                        row["gates"][gate]["verdict"] == "fail"
                        for row in rows
                        if kind_of(row["audited"]) == kind and gate in row["gates"]
                    ]
                )
                for kind in kinds
            },
        }
        for gate in gates
    }


if __name__ == "__main__":
    main()
