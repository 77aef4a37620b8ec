"""`Unlearned`: the outcome of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from famr.config import ResolvedFAMR
from famr.data.request import Request
from famr.data.splits import EarlierRequest
from famr.errors import CheckpointError, RequestError
from famr.losses.objective import drift_bound
from famr.metrics.scores import Scores
from famr.metrics.tables import COLUMNS, in_percent
from famr.models import Classifier
from famr.models.weights import read_weights
from famr.optim import OPTIMISERS
from famr.runs.card import front_matter, loading, plain
from famr.runs.folder import environment, read_unlearning, write_run
from famr.targets import ProxyPredictions
from famr.unlearn.history import HistoryRow
from famr.unlearn.search import TrialOutcome

PROXY_FILE = "proxy.safetensors"
"""What proxies predicted on the forget set, in its order: what the target was made from."""


@dataclass(frozen=True, eq=False)
class Unlearned:
    """A new classifier, the untouched original, and how one became the other.

    Attributes:
        model: The unlearned classifier.
        original: The classifier that it was made from.
        request: The request that was carried out.
        method: The settings with which it was made.
        seed: Seed of every random draw.
        history: One row an evaluated epoch, the first before any step.
        device: Name of the device that computed it.
        why: The targets and anchors that were picked, and why; empty where the method left none open.
        trials: The strengths that were tried, the last one being this run's; empty where it was given.
        classes: The classes that were forgotten whole, by name.
        earlier: Earlier requests that the original had forgotten already.
        processes: Number of processes that shared the work.
        sharded: Whether they also divided the weights.
        seconds_of_all: Time of the whole run once the model was on its device: a proxy, targets, anchors, decoding,
            every strength that was tried; evaluation is not counted. None for a resumed run.
        calibration: How the held-out images that it was given were chosen, see `famr.data.calibration`; None where
            images may be among them that are scored.
        proxy: What proxies predict on the forget set; None for a target that reads none.
        proxy_source: Where these come from, as plain values.
    """

    model: Classifier
    original: Classifier
    request: Request
    method: ResolvedFAMR
    seed: int
    history: tuple[HistoryRow, ...]
    device: str
    why: str = ""
    trials: tuple[TrialOutcome, ...] = ()
    classes: tuple[str, ...] = ()
    earlier: tuple[EarlierRequest, ...] = ()
    processes: int = 1
    sharded: bool = False
    seconds_of_all: float | None = None
    calibration: str | None = None
    proxy: ProxyPredictions | None = None
    proxy_source: Mapping[str, Any] | None = None

    @property
    def module(self) -> nn.Module:
        """The unlearned network itself."""
        return self.model.module

    @property
    def seconds(self) -> float:
        """Time spent in the steps of Alg. 1; evaluation is not counted."""
        return self.history[-1].seconds

    @property
    def drift(self) -> float:
        """‖θ − θ₀‖."""
        return self.history[-1].drift

    @property
    def drift_bound(self) -> float | None:
        """The bound on the drift [FAMR, App. Prop. 1]; None where J did not decrease, or without an ℓ₂ penalty."""
        first, last = self.history[0], self.history[-1]
        penalised = self.method.anchor == "l2" and not OPTIMISERS[self.method.optimiser].uses_metric
        if last.loss_total > first.loss_total or not penalised:
            return None
        return drift_bound(first.loss_forget, last.loss_forget, self.method.strength)

    def save(
        self,
        output_dir: str | Path,
        *,
        scores: Scores | None = None,
        original: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a run folder that loads where the original did.

        Args:
            output_dir: The folder; it must not exist.
            scores: Written as metrics.json and into the model card.
            original: How the original was opened (model, weights, arguments), so that it can be found again.
            data: How the data was opened, so that the run can be evaluated again from its records.
            overwrite: Replace a folder that famr wrote.

        Returns:
            The folder.
        """
        opened = original or {"model": self.original.spec, "weights": None, "arguments": {}}
        run = {
            **self.to_json(),
            "original": {**opened, "weights_sha256": self.original.digest()},
            "unlearned": {"weights_sha256": self.model.digest()},
            "data": data,
            "environment": environment(self.device),
        }
        files = {
            "request.json": _with_relative_samples(self.request, data).to_json(),
            "metrics.json": None if scores is None else scores.to_json(),
        }
        return write_run(
            Path(output_dir),
            self.model,
            "unlearning",
            run,
            history=(asdict(row) for row in self.history),
            files=files,
            card=unlearned_card(self, scores),
            tensors={PROXY_FILE: None if self.proxy is None else vars(self.proxy)},
            overwrite=overwrite,
        )

    @classmethod
    def load(cls, folder: Path, model: Classifier, original: Classifier) -> Unlearned:
        """The outcome of a run from its records.

        Args:
            folder: The run folder.
            model: Its model.
            original: The model that it was made from.

        Raises:
            CheckpointError: The records are damaged.
        """
        request, run = read_unlearning(folder)
        try:
            lines = (folder / "unlearning/history.jsonl").read_text(encoding="utf-8").splitlines()
            history = tuple(HistoryRow(**json.loads(line)) for line in lines)
            method = ResolvedFAMR.from_json({name: value for name, value in run["method"].items() if name != "name"})
            facts = {"why": run["why"], "calibration": run.get("calibration"), "proxy_source": run.get("proxy")}
            proxy = _read_proxy(folder / "unlearning" / PROXY_FILE) if facts["proxy_source"] else None
            return cls(model, original, request, method, run["seed"], history, run["device"], **facts, proxy=proxy)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RequestError) as error:
            raise CheckpointError("The run's records are damaged.", where=str(folder), fix="Restore it.") from error

    def to_json(self) -> dict[str, Any]:
        """The records of run.json about the optimisation."""
        return {
            "method": {"name": "FAMR", **self.method.to_json()},
            "seed": self.seed,
            "device": self.device,
            "processes": self.processes,
            "sharded": self.sharded,
            "epochs": self.history[-1].epoch,
            "steps": self.history[-1].step,
            "seconds": self.seconds,
            "seconds_of_all": self.seconds_of_all,
            "drift": self.drift,
            "drift_of_all_runs_at_most": self.drift + sum(run.drift for run in self.earlier),
            "drift_bound": self.drift_bound,
            "why": self.why,
            "trials": [asdict(trial) for trial in self.trials],
            "calibration": self.calibration,
            "proxy": self.proxy_source,
            "classes": list(self.classes),
            "earlier": [run.to_json() for run in self.earlier],
        }


def _read_proxy(file: Path) -> ProxyPredictions:
    """Predictions of proxies on the forget set of a run."""
    tensors = read_weights(file)
    return ProxyPredictions(*(tensors[name] for name in ("logits", "known", "temperature")))


def _with_relative_samples(request: Request, data: Mapping[str, Any] | None) -> Request:
    """The request, with samples that were named by their whole path named as the data names them."""
    root = Path(str((data or {}).get("spec") or "").partition(":")[2] or ".").resolve()
    names = [
        Path(str(sample)).relative_to(root).as_posix() if Path(str(sample)).is_relative_to(root) else sample
        for sample in request.samples
    ]
    return replace(request, samples=names)


def unlearned_card(result: Unlearned, scores: Scores | None) -> str:
    """The model card: what was forgotten, how, and how well.

    Args:
        result: The outcome of the run.
        scores: Its metrics; None where it was not evaluated.
    """
    method = result.method
    facts = {
        "method": "FAMR",
        "request": result.request.kind,
        "forgotten_classes": list(result.classes),
        "forgotten_images": None if scores is None else scores.unlearned.counts.get("forget"),
        "earlier_requests": len(result.earlier),
    }
    parts = [
        front_matter(result.model, ["image-classification", "machine-unlearning", "famr"], facts),
        f"# {plain(result.model.architecture.name)}, without {plain(result.request.describe())}\n",
        f"A trained classifier that was edited to forget {plain(result.request.describe())} with "
        "Forget-Aligned Model Reconstruction (Sanga, Singh, Dubey 2025, arXiv:2506.14515).\n",
        loading(result.model),
        f"Method: target {method.target}, {_anchors(method)}, "
        f"{method.optimiser} steps with learning rate {method.learning_rate:g}, {method.epochs} epochs, "
        f"batch {method.batch_size} ({method.reduction}), {method.edited_share:.0%} of the layers, "
        f"{'the head too' if method.edit_head else 'the head unchanged'}, "
        f"seed {result.seed}. Weights moved by {result.drift:.4g} in the Euclidean norm.\n",
    ]
    if result.earlier:
        before = ", ".join(plain(run.request.describe()) for run in result.earlier)
        parts.append(f"Unlearned before: {before}.\n")
    if scores is not None:
        models = {"original": scores.original, "unlearned": scores.unlearned, "retrained": scores.retrained}
        parts.append("| model | " + " | ".join(COLUMNS.values()) + " |")
        parts.append("|---|" + "---|" * len(COLUMNS))
        for name, metrics in models.items():
            cells = [in_percent(column, getattr(metrics, column, None)) for column in COLUMNS]
            parts.append(f"| {name} | " + " | ".join(cells) + " |")
        gaps = scores.gap or {}
        cells = [in_percent(column, gaps.get(column)) for column in COLUMNS]
        parts += ["| gap to retrained | " + " | ".join(cells) + " |", ""]
    parts.append("Nothing here is a proof that nothing about the forgotten data can be learned from the weights.\n")
    return "\n".join(parts)


def _anchors(method: ResolvedFAMR) -> str:
    """The anchors in words."""
    parts = []
    if method.strength or not method.function_strength:
        parts.append(f"anchor {method.anchor} of strength {method.strength:g}")
    if method.function_strength:
        parts.append(
            f"a function-space anchor of strength {method.function_strength:g} on up to {method.function_images} "
            "retained images a class"
        )
    return ", ".join(parts)
