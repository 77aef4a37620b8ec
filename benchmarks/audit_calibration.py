"""How often does the audit fail a model that was truly retrained, and how often one that was not?

    python -m benchmarks.audit_calibration --output benchmarks/results/audit_calibration-digits.json

On digits, the class 3. Models are trained without it from many seeds. Each of them in turn is audited as if it were an
unlearned one, against 5, 10 and 19 of the others, beside one of four originals with its head-only edit and a never-saw
model. So are the originals themselves, their head-only edits, and what the paper's preset, the quick method and the
thorough one (the default, where it takes minutes) make of them; a proxy of the latter starts where its original did.
All audits share what was measured on the models: one audit differs from another by its references and controls. As in
`famr audit`, attacks that train are run on the first five references alone. The whole verdict counts, and which gates
count. One call of `famr.audit` is timed, and has to give the same verdicts.

`--cache DIR` keeps trained models and measurements: delete DIR/models after a change to trainings or methods, and
DIR/measured after one to an attack.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy import stats

import famr
from benchmarks.cells import log, small_vit, write_results
from famr.audit.attack_images import AttackImages
from famr.audit.audit import audit
from famr.audit.audit_data import AuditData
from famr.audit.comparison import ComparedModels
from famr.audit.controls import NEVER_SAW_EPOCHS, collapsed, head_only_edit, learned_enough
from famr.audit.costs import Stopwatch
from famr.audit.measurements import (
    RELEARNING_SEEDS,
    TRAINED_REFERENCES,
    ModelMeasurements,
    measure_predictions,
    with_attacks,
    with_probes,
)
from famr.audit.names import COLLAPSED, HEAD_ONLY, NEVER_SAW, ORIGINAL, UNLEARNED
from famr.audit.references import retained_accuracy
from famr.audit.verdict import Audit, head_only_escapes, judge, read_thresholds
from famr.data.augmentation import Augmentation
from famr.data.calibration import CalibrationSplit
from famr.engine.devices import deterministic
from famr.engine.inference import predict
from famr.metrics.forgetting import correct
from famr.runs.folder import environment

CLASS = "3"
TRAINING = famr.Training(
    epochs=20, batch_size=64, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
)
RETRAINED, ORIGINALS = 30, 4
FIRST_SEED = 54
"""Of the retrained models: bounds and intervals of the audit were corrected on the seeds before it."""
SETS = {5: 4, 10: 2, 19: 1}
"""How many disjoint sets of references a model is audited against, by the number of references in a set."""
METHODS = {"paper": famr.FAMR.paper(), "quick": famr.FAMR(effort="quick"), "thorough": famr.FAMR(effort="thorough")}
ORIGINAL_SEED, NEVER_SAW_SEED = 1000, 2000
"""Of the first original and the first never-saw model; retrained models begin with `--first-seed`."""
CPU = torch.device("cpu")

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--retrained", type=int, default=RETRAINED)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the retrained models")
    parser.add_argument("--originals", type=int, default=ORIGINALS)
    parser.add_argument("--epochs", type=int, default=TRAINING.epochs)
    parser.add_argument("--cache", type=Path, help="where trained models and measurements are kept")
    parser.add_argument("--quick", action="store_true", help="without the attacks that train")
    arguments = parser.parse_args()
    begun, started_at = time.perf_counter(), commit()
    training = replace(TRAINING, epochs=arguments.epochs)
    calibration = Calibration(famr.open_data("digits"), training, arguments.originals, arguments.quick, arguments.cache)
    retrained = [
        f"retrained {seed}" for seed in range(arguments.first_seed, arguments.first_seed + arguments.retrained)
    ]
    audited = retrained + [
        f"{kind} {number}"
        for kind in ("original", "head only", *(f"unlearned {method}" for method in METHODS))
        for number in range(arguments.originals)
    ]
    rows = audits_of(calibration, audited, retrained)
    cost = one_audit(calibration, retrained[: min(SETS)])
    content = {
        "benchmark": "audit_calibration-digits",
        "command": " ".join(["python -m benchmarks.audit_calibration", *sys.argv[1:]]),
        "commit": started_at,
        "data": "scikit-learn's digits, official split of famr, class 3; methods see a quarter of the held-out images",
        "model": "a ViT of two blocks, from random weights",
        "training": asdict(training),
        "quick": arguments.quick,
        "seeds": {
            "retrained": [arguments.first_seed, arguments.first_seed + arguments.retrained - 1],
            "originals": [ORIGINAL_SEED, ORIGINAL_SEED + arguments.originals - 1],
            "never saw": [NEVER_SAW_SEED, NEVER_SAW_SEED + arguments.originals - 1],
        },
        "environment": environment("cpu"),
        "seconds": {"retraining": calibration.training_seconds(retrained), "audit": cost},
        "summary": {str(count): summarised(of_count(rows, count)) for count in SETS if of_count(rows, count)},
        "gates": {str(count): gate_rates(of_count(rows, count)) for count in SETS if of_count(rows, count)},
        "audits": rows,
    }
    write_results(arguments.output, content)
    log(f"{arguments.output}, {time.perf_counter() - begun:.0f} s")


# Models and measurements


@dataclass(frozen=True)
class Calibration:
    """Models by name, trained and measured once; the number in a name is a seed, or that of an original.

    Attributes:
        data: Training and test images.
        training: Of every model but the never-saw ones.
        originals: How many there are.
        quick: Leave out the attacks that train.
        cache: Folder of models and measurements; None: nothing is kept.
    """

    data: famr.Data
    training: famr.Training
    originals: int
    quick: bool
    cache: Path | None

    @cached_property
    def split(self) -> CalibrationSplit:
        """What methods may see, and what is scored."""
        return famr.calibration_split(famr.split(self.data, famr.Request(classes=(CLASS,))))

    @cached_property
    def drawn(self) -> AuditData:
        """The images of every audit."""
        return AuditData.draw(self.split.for_scoring, 0, CPU)

    @cached_property
    def _models(self) -> dict[str, famr.Classifier]:
        return {}

    @cached_property
    def _measured(self) -> dict[tuple[str, int], ModelMeasurements]:
        return {}

    def original_of(self, name: str) -> int:
        """The original beside which a model is audited: its own, or one of all of them in turn."""
        return number_of(name) % self.originals

    def model(self, name: str) -> famr.Classifier:
        """Trained, or made of an original."""
        if name not in self._models:
            self._models[name] = self._kept_model(name)
        return self._models[name]

    def _kept_model(self, name: str) -> famr.Classifier:
        file = None if self.cache is None else self.cache / "models" / f"{name}.safetensors"
        if file is not None and file.is_file():
            model = self._start(0)
            model.module.load_state_dict(load_file(str(file)))
            return model
        start = time.perf_counter()
        model = self._made(name)
        seconds = time.perf_counter() - start
        log(f"{name}: made in {seconds:.1f} s")
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            tensors = {key: tensor.contiguous() for key, tensor in model.module.state_dict().items()}
            save_file(tensors, str(file), metadata={"seconds": str(seconds)})
        return model

    def _made(self, name: str) -> famr.Classifier:
        number, retain = number_of(name), self.split.for_scoring.retain
        assert retain is not None
        short = replace(self.training, epochs=max(1, self.training.epochs // NEVER_SAW_EPOCHS))
        match kind_of(name):
            case "retrained":
                return self._fitted(retain, self.training, number)
            case "never saw":
                return self._fitted(retain, short, NEVER_SAW_SEED + number)
            case "original":
                return self._fitted(self.data.train, self.training, ORIGINAL_SEED + number)
            case "head only":
                edited = head_only_edit(self.model(f"original {number}"), self.split.for_scoring.forgotten_classes())
                assert edited is not None
                return edited
            case method:
                settings = METHODS[method.removeprefix("unlearned ")]
                original = self.model(f"original {number}")
                recipe = famr.ProxyRecipe(self.training, self._start(ORIGINAL_SEED + number))
                return famr.forget(
                    original, self.split.for_forgetting, settings, seed=number, device="cpu", recipe=recipe
                ).model

    def _start(self, seed: int) -> famr.Classifier:
        return small_vit(self.data.labels)(seed)

    def _fitted(self, images: famr.Images, training: famr.Training, seed: int) -> famr.Classifier:
        return famr.fit(self._start(seed), images, training, seed=seed, device="cpu").model

    def training_seconds(self, names: Sequence[str]) -> float | None:
        """Mean seconds of training models; None where nothing was kept."""
        if self.cache is None:
            return None
        seconds = []
        for name in names:
            with safe_open(str(self.cache / "models" / f"{name}.safetensors"), framework="pt") as stored:
                seconds.append(float(stored.metadata()["seconds"]))
        return sum(seconds) / len(seconds)

    def measured(self, name: str, number: int) -> ModelMeasurements:
        """What an audit beside an original measures on a model: its head is transplanted, its hits are the scale."""
        key = (name, number)
        if key not in self._measured:
            self._measured[key] = self._beside(self._attacked(name), name, number)
        return self._measured[key]

    def _attacked(self, name: str) -> ModelMeasurements:
        """Everything that does not depend on the original, and relearning on the scale of the first one."""

        def attack() -> ModelMeasurements:
            model, first = self.model(name), self.model("original 0")
            begun, costs = time.perf_counter(), Stopwatch()
            with deterministic(self.drawn.seed):
                found = measure_predictions(model, self.drawn, costs)
                if not self.quick:
                    found = with_attacks(found, role_of(name), model, self.drawn, first, costs)
            log(f"{name}: measured in {time.perf_counter() - begun:.1f} s")
            return found

        return self._kept(f"{name}{', quick' if self.quick else ''}", attack)

    def _beside(self, found: ModelMeasurements, name: str, number: int) -> ModelMeasurements:
        original = self.model(f"original {number}")

        def probed() -> ModelMeasurements:
            with deterministic(self.drawn.seed):
                return with_probes(found, self.model(name), self.drawn, original, None, Stopwatch())

        recovery = self._kept(f"{name}, original {number}", lambda: probed().recovery)
        runs = found.relearning
        if runs is not None:
            hits = self._relearning_hits(number)
            runs = tuple(replace(run, original_hits=hits[run.seed]) for run in runs)
        return replace(found, recovery=recovery, relearning=runs)

    def _relearning_hits(self, number: int) -> dict[int, int]:
        """How many of the images on which relearning is measured an original classifies correctly, by seed."""
        learned = self._attacked("original 0").relearning
        assert learned is not None
        hits = {}
        for seed in RELEARNING_SEEDS:
            checked = AttackImages.draw(self.split.for_scoring, learned[seed].images, seed).checked
            found = predict(self.model(f"original {number}"), checked, CPU)
            hits[seed] = int(correct(found.logits, found.targets).sum())
        return hits

    def _kept(self, name: str, make: Callable[[], T]) -> T:
        """Read from the cache, or made and written; pickles of this script alone are read."""
        file = None if self.cache is None else self.cache / "measured" / f"{name}.pickle"
        if file is not None and file.is_file():
            kept: T = pickle.loads(file.read_bytes())
            return kept
        made = make()
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pickle.dumps(made))
        return made


def number_of(name: str) -> int:
    """The seed or number in a model's name."""
    return int(name.rpartition(" ")[2])


def kind_of(name: str) -> str:
    """The name of a model without its number."""
    return name.rpartition(" ")[0]


def role_of(name: str) -> str:
    """The name of a model in an audit; whatever is no control is under audit."""
    return {"never saw": NEVER_SAW}.get(kind_of(name), UNLEARNED)


# Audits


def audits_of(calibration: Calibration, audited: Sequence[str], retrained: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each audited model, number of references and set of references."""
    rows: list[dict[str, Any]] = []
    for count in SETS:
        begun = time.perf_counter()
        for name in audited:
            for index, references in enumerate(reference_sets(retrained, name, count)):
                found = audit_of(calibration, name, references)
                rows.append({"audited": name, "references": count, "set": index, **record(found)})
        summary = summarised(of_count(rows, count))
        log(
            f"{count} references, {time.perf_counter() - begun:.0f} s: "
            + "; ".join(f"{kind} {values['fail']} of {values['audits']} fail" for kind, values in summary.items())
        )
    return rows


def reference_sets(retrained: Sequence[str], audited: str, count: int) -> list[list[str]]:
    """Disjoint sets of retrained models, the audited one in none of them; fewer than `SETS` where too few are left.

    >>> [sorted(each) for each in reference_sets(["retrained 0", "retrained 1", "retrained 2"], "retrained 1", 2)]
    [['retrained 0', 'retrained 2']]
    """
    others = [name for name in retrained if name != audited]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(sum(audited.encode()))).tolist()
    shuffled = [others[index] for index in order]
    most = min(SETS.get(count, 1), len(shuffled) // count)
    return [shuffled[index * count : (index + 1) * count] for index in range(most)]


def as_references(models: Sequence[ModelMeasurements]) -> list[ModelMeasurements]:
    """What an audit measures on reference models: attacks that train on the first ones, conversions on the first."""
    first, *others = models
    kept = None if first.conversions is None else dict(first.conversions.converted)
    if first.conversions is not None and kept is not None:
        kept.pop("onnx", None)  # the slowest one is for models under audit
        first = replace(first, conversions=replace(first.conversions, converted=kept))
    found = [first, *(replace(each, conversions=None) for each in others)]
    return found[:TRAINED_REFERENCES] + [
        replace(each, relearning=None, prompt=None, retained_tuning=None, perturbed=None)
        for each in found[TRAINED_REFERENCES:]
    ]


def audit_of(calibration: Calibration, name: str, references: Sequence[str]) -> Audit:
    """The audit of one model against some references, beside its original and the controls of that."""
    number = calibration.original_of(name)

    def found(model: str) -> ModelMeasurements:
        return calibration.measured(model, number)

    compared_with = as_references([found(each) for each in references])
    controls = {
        ORIGINAL: found(f"original {number}"),
        HEAD_ONLY: found(f"head only {number}"),
        NEVER_SAW: found(f"never saw {number}"),
        COLLAPSED: collapsed(found(name)),
    }
    if not learned_enough(retained_accuracy(controls[NEVER_SAW]), [retained_accuracy(each) for each in compared_with]):
        controls.pop(NEVER_SAW)
    models = ComparedModels(
        calibration.split.for_scoring, {UNLEARNED: found(name), **controls}, compared_with, calibration.drawn.seed
    )
    checks = tuple(judge(models, read_thresholds())[UNLEARNED])
    hiding = head_only_escapes(checks)
    return Audit(checks, {}, obstacles=() if hiding is None else (hiding,))


def record(found: Audit) -> dict[str, Any]:
    """The verdict on the model under audit; the gates, those that count, and those it fails or cannot tell."""
    checks = [check for check in found.checks if UNLEARNED in check.verdicts]
    return {
        "verdict": found.verdicts[UNLEARNED],
        "obstacles": len(found.obstacles),
        "gates": [check.name for check in checks],
        "counted": [check.name for check in checks if check.not_counted is None],
        "fail": [check.name for check in checks if check.verdicts[UNLEARNED] == "fail"],
        "cannot tell": [check.name for check in checks if check.verdicts[UNLEARNED] == "cannot tell"],
    }


def one_audit(calibration: Calibration, retrained: Sequence[str]) -> dict[str, float]:
    """Seconds by part of a call of `famr.audit`; its verdicts have to be those of the shared measurements."""
    name, number = "unlearned thorough 0", 0
    begun = time.perf_counter()
    found = audit(
        calibration.model(name),
        calibration.split.for_scoring,
        original=calibration.model(f"original {number}"),
        retrained=[calibration.model(each) for each in retrained],
        quick=calibration.quick,
        device="cpu",
        held_out_seen=False,
    )
    seconds = time.perf_counter() - begun
    shared = {check.name: check.verdicts[UNLEARNED] for check in audit_of(calibration, name, retrained).checks}
    called = {check.name: check.verdicts[UNLEARNED] for check in found.checks}
    assert called == shared, (called, shared)
    return {"in all": seconds, **found.costs}


# Numbers


def of_count(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The audits against so many references."""
    return [row for row in rows if row["references"] == count]


def summarised(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Verdicts by kind of audited model; how many models failed in their first audit, and in any, with intervals."""
    summary = {}
    for kind in dict.fromkeys(kind_of(row["audited"]) for row in rows):
        own = [row for row in rows if kind_of(row["audited"]) == kind]
        counts = Counter(row["verdict"] for row in own)
        models = {row["audited"] for row in own}
        first = {row["audited"] for row in own if row["verdict"] == "fail" and row["set"] == 0}
        ever = {row["audited"] for row in own if row["verdict"] == "fail"}
        summary[kind] = {
            "audits": counts.total(),
            **{each: counts[each] for each in ("pass", "fail", "cannot tell")},
            "models": len(models),
            "models failed in the first audit": len(first),
            "interval": clopper_pearson(len(first), len(models)),
            "models failed in any audit": len(ever),
        }
    return summary


def clopper_pearson(count: int, total: int) -> tuple[float, float]:
    """Exact 95 % interval of a share [Clopper & Pearson 1934].

    >>> low, high = clopper_pearson(0, 24)
    >>> low, round(high, 4), round(1 - 0.025 ** (1 / 24), 4)
    (0.0, 0.1425, 0.1425)
    """
    interval = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


def gate_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each gate: by kind of audited model, the share of audits in which it counts, fails it, or cannot tell."""
    gates = dict.fromkeys(gate for row in rows for gate in row["gates"])
    kinds = dict.fromkeys(kind_of(row["audited"]) for row in rows)

    def rate(gate: str, kind: str, what: str) -> float | None:
        own = [row for row in rows if kind_of(row["audited"]) == kind and gate in row["gates"]]
        return sum(gate in row[what] for row in own) / len(own) if own else None

    return {
        gate: {kind: {what: rate(gate, kind, what) for what in ("counted", "fail", "cannot tell")} for kind in kinds}
        for gate in gates
    }


def commit() -> str:
    """The commit that is checked out; "+" after it where tracked files were changed."""
    head, changed = (
        subprocess.run(["git", *command], cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
        for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    )
    return head.strip() + ("+" if changed.strip() else "")


if __name__ == "__main__":
    main()
