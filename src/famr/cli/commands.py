"""What the commands do, between parsing and printing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from famr.cli.printing import progress, say
from famr.config import FAMR
from famr.data import Data, open_data
from famr.data.images import UNLABELLED
from famr.data.request import Request
from famr.data.splits import EarlierRequest, Splits, forget_only, split
from famr.engine.devices import pick_device
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import accuracy_on_images
from famr.engine.pick import pick_engine
from famr.errors import CheckpointError, DataError, RequestError
from famr.evaluation.evaluate import compare
from famr.metrics.scores import Scores
from famr.models import Classifier, load_model, new_model
from famr.models.labels import match_labels
from famr.runs.folder import atomic_file, check_output, earlier_runs, read_unlearning
from famr.runs.resume import ResumeState
from famr.training import Training, fit
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor
from famr.unlearn.inputs import RunInputs
from famr.unlearn.resolve import resolve
from famr.unlearn.sketch import Sketch, take_sketch

UNRECORDED: dict[str, Any] = {
    "spec": None,
    "root": None,
    "label_column": None,
    "split_seed": 0,
    "match_labels_by_name": False,
    "forget_only": False,
}
"""How data is opened where a run, saved from Python, does not say."""


def open_facts(facts: Mapping[str, Any]) -> Data:
    """Open data as recorded in (or for) a run.json."""
    return open_data(
        facts["spec"],
        root=facts["root"],
        label_column=facts["label_column"],
        split_seed=facts["split_seed"],
        whole=facts["forget_only"],
    )


def run_train(
    *,
    model: str,
    weights: Path | None,
    arguments: Mapping[str, Any],
    from_scratch: bool,
    data_facts: Mapping[str, Any],
    without: Request,
    training: Training,
    output_dir: Path,
    overwrite: bool,
    resume: bool = False,
    seed: int,
    device: str,
    quiet: bool,
) -> dict[str, Any]:
    """Train, measure on the test images, write the run folder."""
    check_output(output_dir, overwrite, [model, weights, data_facts["spec"]])
    pick_device(device)
    data = open_facts(data_facts)
    left_out = without if without.kind != "images" else None
    splits = split(data, left_out) if left_out else None
    images = splits.retain if splits else data.train
    test = splits.test if splits else data.test
    assert images is not None
    if test is None or not test.labelled:
        raise DataError("No labelled test images are left.", where=data.spec, fix="Leave less out, or add some.")
    if training.augmentation is not None:
        training = replace(training, augmentation=replace(training.augmentation, mirror=data.mirror))
    start = new_model(model, data.labels, weights=weights, arguments=arguments, from_scratch=from_scratch, seed=seed)
    steps = training.steps(len(images))
    kept = resume_state_of(output_dir, resume)
    with told_to_go_on(kept), progress(steps, f"training on {len(images)} images", quiet) as on_event:
        trained = fit(start, images, training, seed=seed, device=device, resume_state=kept, on_event=on_event)
    metrics = {
        "test_accuracy": accuracy_on_images(trained.model, test, pick_device(device)),
        "test_count": len(test),
        "train_count": len(images),
    }
    trained.save(output_dir, metrics=metrics, data=data_facts, without=left_out, overwrite=overwrite)
    kept.discard()
    return {**metrics, "seconds": trained.seconds, "output_dir": str(output_dir)}


def run_forget(
    *,
    model: str,
    weights: Path | None,
    arguments: Mapping[str, Any],
    request: Request,
    data_facts: Mapping[str, Any],
    style_target: str | None,
    sketch: Path | None,
    method: FAMR,
    retrained: str | None,
    track_retain: bool,
    gates: bool,
    output_dir: Path,
    overwrite: bool,
    resume: bool = False,
    seed: int,
    device: str,
    quiet: bool,
    ranks: Ranks = ALONE,
) -> tuple[Scores, str]:
    """Forget, measure, write the run folder; nothing is written unless all of it went well. Also: what was picked.

    Of several `ranks` only the first writes.
    """
    with ranks.together():
        if ranks.first:
            check_output(output_dir, overwrite, [model, weights, retrained, sketch, data_facts["spec"], style_target])
        original = load_model(model, weights=weights, arguments=arguments)
        original, splits = splits_for(original, request, data_facts, earlier_runs(Path(model)))
        reference = load_reference(retrained, original, request) if retrained else None
        neutral = open_data(style_target, whole=True).everything() if style_target else None
        stored = None if sketch is None else Sketch.load(sketch)
        engine = pick_engine(device, ranks=ranks)
        available = RunInputs.of(original, splits, None, neutral, None, stored).available()
        steps = resolve(method, available, engine)[0].epochs * available.steps(method.batch_size)
        kept = resume_state_of(output_dir, resume, ranks)
    title = f"forgetting {request.describe()}"
    with told_to_go_on(kept, ranks), progress(steps, title, quiet or not ranks.first) as on_event:
        result = forget(
            original,
            splits,
            method,
            style_target=neutral,
            sketch=stored,
            seed=seed,
            engine=engine,
            monitor=Monitor(
                track_retain=track_retain,
                gates=gates,
                on_event=on_event,
                resume_state=None if ranks.sharded else kept,
            ),
        )
    scores = compare(original, result.model, reference, splits, device=str(engine.device), ranks=ranks)
    started_from = {"model": model, "weights": None if weights is None else str(weights), "arguments": dict(arguments)}
    with ranks.together():
        if ranks.first:
            facts = {**data_facts, "style_target": style_target}
            result.save(output_dir, scores=scores, original=started_from, data=facts, overwrite=overwrite)
            kept.discard()
    return scores, result.why


def resume_state_of(output_dir: Path, resume: bool, ranks: Ranks = ALONE) -> ResumeState:
    """Where the state of a run is kept until it is finished: beside its output. Only the first rank changes it."""
    kept = ResumeState(output_dir.with_name(f"{output_dir.name}.unfinished"))
    if resume and ranks.sharded:
        raise RequestError("A run with --shard keeps no state to go on from.", where="--resume", fix="Begin anew.")
    if not ranks.first:
        return replace(kept, every=math.inf)
    if not resume:
        kept.discard()
    return kept


@contextmanager
def told_to_go_on(kept: ResumeState, ranks: Ranks = ALONE) -> Iterator[None]:
    """Whoever stops a run, or whose run is stopped, hears that it need not begin anew."""
    try:
        yield
    except BaseException:
        if ranks.first and kept.begun:
            say(f"famr: the run's last whole state is in {kept.folder.name}; with --resume it goes on from there.")
        raise


def run_sketch(
    model: str,
    facts: Mapping[str, Any],
    output: Path | None,
    images: int,
    seed: int,
    device: str,
    overwrite: bool,
) -> dict[str, Any]:
    """Take a sketch and write it beside the run, whole or not at all."""
    target = output or Path(f"{Path(model)}.sketch.safetensors")
    if target.exists() and not overwrite:
        raise RequestError("The sketch exists already.", where=str(target), fix="Name another, or say --overwrite.")
    loaded, data = match_labels(load_model(model), open_facts(facts), by_name=facts["match_labels_by_name"])
    taken = take_sketch(loaded, data, images=images, seed=seed, device=str(pick_device(device)))
    with atomic_file(target) as staging:
        taken.save(staging)
    return {"output": str(target), "images": taken.images, "layers": len(taken.fisher.layers)}


def splits_for(
    model: Classifier, request: Request, facts: Mapping[str, Any], earlier: Sequence[EarlierRequest] = ()
) -> tuple[Classifier, Splits]:
    """The sets of a request on recorded data, with the class names of model and data brought together."""
    data = open_facts(facts)
    if not facts["forget_only"]:
        model, data = match_labels(model, data, by_name=facts["match_labels_by_name"])
        return model, split(data, request, earlier)
    if request.kind != "images":
        raise RequestError(
            "With --forget-data every image is forgotten; there is nothing to choose.",
            fix=f"Leave out the {request.kind}, or give the whole data with --data.",
        )
    if model.labels is not None:
        return model, forget_only(data.with_labels(model.labels).everything(), model.labels)
    say("the checkpoint names no classes, so the labels of the images cannot be used")
    return model, forget_only(data.everything().with_targets([UNLABELLED] * len(data.labels)))


def run_evaluate(
    run: Path,
    retrained: str | None,
    original: str | None,
    data: str | None,
    data_root: str | None,
    device: str,
) -> Scores:
    """Measure a finished run again, from its records."""
    found = open_run(run, original, data, data_root)
    reference = load_reference(retrained, found.model, found.request) if retrained else None
    return compare(found.original, found.model, reference, found.splits, device=device)


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A finished unlearning run, from its records."""

    model: Classifier
    original: Classifier | None
    """None where it cannot be found."""
    request: Request
    splits: Splits
    record: Mapping[str, Any]
    facts: Mapping[str, Any]


def open_run(run: Path, original: str | None, data: str | None, data_root: str | None) -> OpenRun:
    """Load a run's model, its original and its images; the last three arguments say what has moved."""
    request, record = read_unlearning(run)
    model = load_model(str(run))
    facts = recorded_facts(run, record, data, data_root)
    earlier = [EarlierRequest.from_json(values) for values in record.get("earlier", [])]
    model, splits = splits_for(model, request, facts, earlier)
    start = find_original(original, record["original"])
    return OpenRun(
        model, None if start is None else replace(start, labels=model.labels), request, splits, record, facts
    )


def recorded_facts(run: Path, record: Mapping[str, Any], data: str | None, data_root: str | None) -> dict[str, Any]:
    """How a run's data was opened, unless the user says that it has moved."""
    facts = UNRECORDED | dict(record["data"] or {})
    if data is not None:
        facts |= {"spec": data}
    if not facts["spec"]:
        raise RequestError("The run does not say which data it used.", where=str(run), fix="Give --data.")
    return facts if data_root is None else facts | {"root": data_root}


def find_original(given: str | None, record: Mapping[str, Any]) -> Classifier | None:
    """The model a run started from, if it can be found and is still the same."""
    try:
        if given:
            model = load_model(given)
        else:
            model = load_model(record["model"], weights=record["weights"], arguments=record["arguments"])
    except CheckpointError:
        if given or Path(record["model"]).exists():
            raise
        say(f"famr: note: the original is not at {record['model']}; name it with --original")
        return None
    if model.digest() != record["weights_sha256"]:
        raise CheckpointError(
            "The original has other weights than those the run started from.",
            where=given or record["model"],
            fix="Name the right one with --original.",
        )
    return model


def load_reference(place: str, model: Classifier, request: Request) -> Classifier:
    """A retrained model, checked against the one it is compared with, and against what its own record says."""
    reference = load_model(place)
    if reference.labels is None:
        reference = replace(reference, labels=model.labels)
    if model.labels is not None and reference.labels != model.labels:
        raise CheckpointError(
            "The retrained model names other classes.", where=place, fix="Compare models of the same classes."
        )
    record = Path(place) / "training/run.json"
    if record.is_file():
        without = json.loads(record.read_text(encoding="utf-8"))["without"]
        if without != request.to_json():
            seen = "everything" if without is None else f"all but {Request.from_json(without).describe()}"
            say(f"famr: note: {place} says that it was trained on {seen}; the request is {request.describe()}")
    return reference


def list_classes(
    model: str | None, data: str | None, weights: Path | None, root: str | None, label_column: str | None
) -> list[str]:
    """Class names by index."""
    if (model is None) == (data is None):
        raise RequestError("Name a model or --data.", fix="famr classes runs/original")
    if data is not None:
        return list(open_data(data, root=root, label_column=label_column).labels)
    assert model is not None
    labels = load_model(model, weights=weights).labels
    if labels is None:
        raise CheckpointError(
            "The checkpoint carries no class names.", where=model, fix="List those of its data: --data SPEC."
        )
    return list(labels)
