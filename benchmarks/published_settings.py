"""Every baseline with its authors' numbers, beside what was published of it on the nearest setting.

    python -m benchmarks.published_settings --data DIR --output benchmarks/results/published-cifar100-resnet18.json
    python -m benchmarks.published_settings --data digits --epochs 2 --output DIR/published-digits.json

CIFAR-10 cannot be had here: the nearest is CIFAR-100 with a ResNet-18, one class (rocket, as in the code of SSD's
authors) or a tenth of the training images. Accuracies differ between the data sets, so what is compared is the distance
from the same reference, the retrained or the original model, on either side. A run that was stopped resumes: every cell
is saved in a folder beside the result file. `--only` takes methods by their names on the command line.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import famr
from benchmarks.cells import log, open_parquet, small_vit, write_results
from benchmarks.markdown import machine_line, markdown_table, page_head
from benchmarks.other_settings import SETTINGS, resnet18
from famr.baselines import BASELINES, SSD, Baseline
from famr.bench.methods import BenchMethod
from famr.bench.plan import Bench
from famr.bench.running import run_bench
from famr.bench.tasks import Task, request_task, samples_task
from famr.data import Data
from famr.engine.devices import pick_device
from famr.runs.folder import environment

Kind = Literal["class", "samples"]
FAN = (
    "Fan et al. 2024, Table 1, as quoted by public reproductions of NegMerge: CIFAR-10, ResNet-18, 10 % of the samples"
)
FAN_CLASS = "Fan et al. 2024, Table A2, as quoted by the repository PURGE: CIFAR-10, ResNet-18, one class"
POUR = "POUR (2026), as quoted by a public summary: CIFAR-100, ResNet-18, one class"
POUR_10 = "POUR (2026), as quoted by a public summary: CIFAR-10, ResNet-18, one class"
KODGE = "Kodge et al. (SVD projection): CIFAR-10, ResNet-18, one class, mean of 10"
NOT_FOUND = "not found"


@dataclass(frozen=True)
class Published:
    """What was published of a method, in percent.

    Attributes:
        kind: The request on which it is run here.
        source: Who reports it, and on what; `NOT_FOUND` where no figure could be found.
        test: Accuracy on held-out images that are not forgotten.
        forget: Accuracy on the forget set.
        reference: The model that both are compared with.
        reference_test: Its accuracy on the held-out images.
        reference_forget: Its accuracy on the forget set.
        why: What differs between that setting and ours.
    """

    kind: Kind
    source: str = NOT_FOUND
    test: float | None = None
    forget: float | None = None
    reference: Literal["retrained", "original"] = "retrained"
    reference_test: float | None = None
    reference_forget: float | None = None
    why: str = ""


def of_samples(test: float, forget: float, why: str) -> Published:
    """A row of Fan et al. 2024, Table 1; retrained: 94.26 % on held-out, 94.76 % on forgotten images."""
    return Published("samples", FAN, test, forget, "retrained", 94.26, 94.76, why)


OTHER_DATA = "100 classes in place of 10: a tenth of the images of each class, and a lower accuracy to begin with"
PUBLISHED: Mapping[str, Published] = {
    "retrain": of_samples(94.26, 94.76, f"{OTHER_DATA}; retrained models forget and test alike"),
    "fine-tune": of_samples(94.06, 99.37, OTHER_DATA),
    "gradient-ascent": Published(
        "class", FAN_CLASS, 38.18, 0.09, "retrained", 92.47, 0.0, f"{OTHER_DATA}; a tenth of the forget images"
    ),
    "neggrad": Published("samples", why="LoTUS reports an Avg. Gap of 0.033 on CIFAR-100 with a ViT, no accuracies"),
    "random-labels": of_samples(92.83, 92.39, f"{OTHER_DATA}; numbers of Graves et al. in the code of SSD's authors"),
    "salun": of_samples(93.93, 97.15, OTHER_DATA),
    "scrub": Published("class", KODGE, 94.8, 0.0, "original", 94.9, None, OTHER_DATA),
    "ssd": Published(
        "class", KODGE, 85.8, 4.4, "original", 94.9, None, f"{OTHER_DATA}; rocket in place of all classes"
    ),
    "bad-teacher": Published("class", why="its tables could not be read"),
    "boundary-shrink": Published("class", POUR, 68.87, 4.0, "retrained", 76.28, 0.0, "another class, longer training"),
    "l1-sparse": of_samples(91.59, 95.81, OTHER_DATA),
    "newton-step-on-the-head": Published("class", why="the papers are about convex models"),
    "sisa": Published("class", why="the paper reports speed-ups, and accuracies of other models"),
    "forsaken": Published("class", why="its tables could not be read"),
    "label-annealing": Published("class", why="its tables could not be read"),
    "delete": Published("class", POUR_10, 88.73, 2.43, "retrained", 94.68, 0.0, OTHER_DATA),
}
"""By the name on the command line."""


def published_method(name: str, augmentation: Any) -> Baseline:
    """A baseline as its authors run it on a ResNet.

    Args:
        name: On the command line.
        augmentation: Of the original's training, for methods that step on images of both sets.
    """
    method = BASELINES[name]()
    if isinstance(method, SSD):
        return method  # its published α is for a ViT
    method = method.as_published()
    return method.with_numbers(augmentation=augmentation) if hasattr(method, "steps") else method


@dataclass(frozen=True)
class Setting:
    """Data, network, training and requests of a run."""

    data: Data
    start: Any
    training: famr.Training
    tasks: Mapping[Kind, Task]
    description: Mapping[str, str]


def open_setting(spec: str, epochs: int | None) -> Setting:
    """CIFAR-100 with a ResNet-18, or the digits with a tiny ViT to try the script.

    Args:
        spec: Folder of CIFAR-100's Parquet files, or `digits`.
        epochs: Of the training; None: those of the setting.
    """
    if spec == "digits":
        data = famr.open_data("digits")
        training = famr.Training(epochs=20, batch_size=32, learning_rate=1e-3, augmentation=None)
        start, forgotten = small_vit(data.labels, embed_dim=32, depth=1), "3"
        model, named = "a ViT of one block, random weights", "scikit-learn's digits"
    else:
        data = open_parquet(Path(spec))
        training, start = SETTINGS["cifar100-resnet18"].training, resnet18(None, data.labels)
        model, named, forgotten = "timm:resnet18, random weights, 64 px", "CIFAR-100, official split", "rocket"
    training = replace(training, epochs=epochs or training.epochs)
    tasks: dict[Kind, Task] = {
        "class": request_task(famr.Request(classes=[forgotten])),
        "samples": samples_task(data, 0.1),
    }
    return Setting(data, start, training, tasks, {"data": named, "model": model})


def run_kind(
    setting: Setting, kind: Kind, names: Sequence[str], folder: Path, device: str, seed: int
) -> dict[str, Any]:
    """Run the methods of one kind of request; what the folder holds is not run again.

    Args:
        setting: Data, network and requests.
        kind: Of the request.
        names: Methods, on the command line.
        folder: Keeps the cells, the original and the reference; the original of the other kind is used again.
        device: Where to compute.
        seed: Of the original and of the methods.
    """
    for other in folder.parent.glob("*/originals"):
        shutil.copytree(other, folder / "originals", dirs_exist_ok=True)
    augmentation = setting.training.augmentation
    if augmentation is not None:
        augmentation = replace(augmentation, mirror=setting.data.mirror)
    every = [BenchMethod(name, published_method(name, augmentation)) for name in names if name != "retrain"]
    bench = Bench(
        setting.data,
        setting.start,
        replace(setting.training, augmentation=augmentation),
        tuple(every),
        (setting.tasks[kind],),
        seeds=(seed,),
        description=dict(setting.description),
        device=device,
    )
    return run_bench(bench, folder, log)


def compared(name: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    """A method's published figures beside ours, each against its own reference.

    Args:
        name: On the command line.
        cell: Of the bench; for retraining any cell of its kind.
    """
    published = PUBLISHED[name]
    row: dict[str, Any] = {"method": BASELINES[name].name, "key": name, "published": asdict(published)}
    if "error" in cell:
        return row | {"error": cell["error"]}
    unlearned = cell["retrained"] if name == "retrain" else cell["unlearned"]
    models = {"unlearned": unlearned, "original": cell["original"], "retrained": cell["retrained"]}
    accuracies = {
        model: {"test": 100 * metrics["retain_accuracy"], "forget": 100 * metrics["forget_accuracy"]}
        for model, metrics in models.items()
    }
    numbers = {"training": "that of the original"} if name == "retrain" else cell["numbers"]
    seconds = cell["retraining"]["seconds"] if name == "retrain" else cell["seconds"]
    return row | {"task": cell["task"], "numbers": numbers, "seconds": seconds, **accuracies}


def differences(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Held-out accuracy against the reference, as published and here, and how far apart the two are; in points.

    Args:
        row: As `compared` returns it.

    >>> row = {"published": {"test": 93.0, "reference": "retrained", "reference_test": 94.0}}
    >>> differences(row | {"unlearned": {"test": 60.0}, "retrained": {"test": 63.0}})
    {'published': -1.0, 'ours': -3.0, 'difference': -2.0}
    """
    published = row["published"]
    ours = row["unlearned"]["test"] - row[published["reference"]]["test"]
    if published["test"] is None:
        return {"published": None, "ours": ours, "difference": None}
    theirs = published["test"] - published["reference_test"]
    return {"published": theirs, "ours": ours, "difference": ours - theirs}


def published_page(name: str, content: Mapping[str, Any]) -> str:
    """The result file as a page: the pair of numbers of every method, and why they differ."""
    rows = [
        (
            "method",
            "published",
            "source",
            "here: held-out / forgotten %",
            "against",
            "published",
            "here",
            "difference",
            "why",
        )
    ]
    for row in content["cells"]:
        published = row["published"]
        pair = NOT_FOUND if published["test"] is None else f"{published['test']:g} / {published['forget']:g}"
        if "error" in row:
            rows.append((row["method"], pair, published["source"], f"failed: {row['error']['what']}", *["–"] * 4, "–"))
            continue
        distance = [("–" if value is None else f"{value:+.1f}") for value in differences(row).values()]
        here = f"{row['unlearned']['test']:.1f} / {row['unlearned']['forget']:.1f}"
        rows.append(
            (row["method"], pair, published["source"], here, published["reference"], *distance, published["why"])
        )
    training = content["training"]
    setting = [
        f"- Data: {content['data']}; methods may see a quarter of the test images, the others are scored",
        f"- Model: {content['model']}; {training['epochs']} epochs, batch {training['batch_size']}, learning rate "
        f"{training['learning_rate']:g}; seed {content['seed']}",
        "- Methods: the numbers of the papers or of their authors' code, nothing tuned, no limit in seconds",
        f"- {machine_line(content, 'torch', 'timm')}",
    ]
    notes = (
        "Accuracies are on held-out images that are not forgotten, and on the forget set. What can be compared between "
        "data sets is the distance of the held-out accuracy from that of the reference, in points: as published, here, "
        "and the difference of the two. Figures that are quoted by others than their authors are marked so; where no "
        'figure could be found it says "not found".'
    )
    parts = [*page_head("Published settings", name), "\n".join(setting), markdown_table(rows), notes]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the missing cells and write the result file after each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of CIFAR-100's Parquet files, or digits")
    parser.add_argument("--output", type=Path, required=True, help="the result file; cells are kept beside it")
    parser.add_argument("--only", nargs="+", choices=list(PUBLISHED), default=list(PUBLISHED), help="methods to run")
    parser.add_argument("--epochs", type=int, help="of the training, to shorten it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    setting = open_setting(arguments.data, arguments.epochs)
    folder = arguments.output.with_suffix("")
    facts = {
        "benchmark": "published settings",
        **setting.description,
        "training": asdict(setting.training),
        "seed": arguments.seed,
        "environment": environment(str(pick_device(arguments.device))),
    }
    rows: dict[str, dict[str, Any]] = {}
    if arguments.output.is_file():
        rows = {row["key"]: row for row in json.loads(arguments.output.read_text(encoding="utf-8"))["cells"]}
    for kind in ("class", "samples"):
        names = [name for name in arguments.only if PUBLISHED[name].kind == kind]
        if names == ["retrain"]:
            names.append("random-labels")  # a reference is retrained for a method
        if not names:
            continue
        content = run_kind(setting, kind, names, folder / kind, arguments.device, arguments.seed)
        cells = {cell["method"]: cell for cell in content["cells"] if not cell.get("missing")}
        finished = next((cell for cell in cells.values() if "error" not in cell), None)
        if "retrain" in names and finished is not None:
            cells["retrain"] = finished
        rows |= {name: compared(name, cell) for name, cell in cells.items()}
        write_results(arguments.output, {**facts, "cells": [rows[name] for name in PUBLISHED if name in rows]})
    print(published_page(arguments.output.stem, json.loads(arguments.output.read_text(encoding="utf-8"))), flush=True)


if __name__ == "__main__":
    main()
