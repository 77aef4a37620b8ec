"""`famr train`: an original, a retrained model, or a certified head."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from famr.cli.certified_head import HeadOptions, train_certified
from famr.cli.flags import Fields
from famr.cli.options import (
    ComputeOptions,
    DataOptions,
    NewModelSource,
    OutputOptions,
    build_request,
    require_used,
)
from famr.cli.printing import Result, progress, say
from famr.cli.resuming import note_on_resuming, resume_state
from famr.cli.sketch import SketchTask, require_free_sketch, sketch_file, write_sketch
from famr.data.request import Request
from famr.data.splits import split
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images
from famr.errors import DataError, RequestError
from famr.models import load_model, new_model
from famr.training import Training, fit

NETWORK_ONLY = {*(each.name for each in fields(Training)), "augment", "resume", "sketch"}
"""Flags without effect on a certified head."""
HEAD_ONLY = {each.name for each in fields(HeadOptions)}
"""Flags without effect on anything else."""


@dataclass(frozen=True, kw_only=True)
class ExcludedOptions:
    """What a retrained model is trained without.

    Attributes:
        without_class: Leave out a class.
        without_sample: Leave out a sample.
        without_samples: Leave out the samples of a CSV or TXT file.
        without_concept: Leave out the images with this value.
        without_style: Leave out the images of this style.
    """

    without_class: list[str] | None = None
    without_sample: list[str] | None = None
    without_samples: Path | None = None
    without_concept: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE")] = None
    without_style: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE")] = None

    def request(self) -> Request | None:
        """The request that a retrained model stands for; None where nothing is left out.

        Raises:
            RequestError: More than one kind of thing is named.
        """
        request = build_request(
            self.without_class,
            self.without_sample,
            self.without_samples,
            self.without_concept,
            self.without_style,
            "--without-",
        )
        return None if request.kind == "images" else request


def train_command(
    *,
    context: typer.Context,
    model: NewModelSource,
    data: DataOptions,
    without: ExcludedOptions,
    output: OutputOptions,
    training: Annotated[Training, Fields(Training, skip=("augmentation",))],
    augment: bool = True,
    sketch: Annotated[bool, typer.Option("--sketch")] = False,
    certified_head: Annotated[bool, typer.Option("--certified-head")] = False,
    head: HeadOptions,
    run: ComputeOptions,
) -> Result:
    """Train or fine-tune a classifier.

    With --without-… the result is a retrained reference. With --certified-head it is a linear head on frozen features,
    from which images can later be removed with an (ε, δ) guarantee.

    Args:
        context: Of the command.
        model: Where training starts.
        data: The images.
        without: What to leave out.
        output: The folder to write.
        training: Settings of the training.
        augment: Random crops, and mirror images where the data allows.
        sketch: Take a sketch too, as `famr sketch` does, beside the folder.
        certified_head: Train only a linear head, for (ε, δ) removal.
        head: Settings of a certified head.
        run: Seed, device, whether to resume.
    """
    if certified_head:
        require_used(context, lambda name: name not in NETWORK_ONLY, "a certified head", "Leave it out.")
        return train_certified(model, data.source(), without.request(), head, output, run)
    network = "a network without a certified head"
    require_used(context, lambda name: name not in HEAD_ONLY, network, "Give --certified-head, or leave it out.")
    if not augment:
        training = replace(training, augmentation=None)
    target = _free_sketch(output, without) if sketch else None
    report = run_train(model, data, output, without, training, run)
    if target is not None:
        trained, task = load_model(str(output.output_dir)), SketchTask(target, None, run.seed, run.device, run.quiet)
        write_sketch(trained, data.source().open(), task)
        report = {**report, "sketch": str(target)}

    def show() -> None:
        print(f"test accuracy {100 * report['test_accuracy']:.1f} % on {report['test_count']} images")
        say(f"written to {output.output_dir}")
        if sketch:
            say(f"sketch: {report['sketch']}")

    return Result(report, show)


def _free_sketch(output: OutputOptions, without: ExcludedOptions) -> Path:
    """The file of the sketch, which must be free before a training begins."""
    if without.request() is not None:
        raise RequestError(
            "A sketch is of a model that was trained on everything.",
            where="--sketch beside --without-…",
            fix="Leave one out.",
        )
    target = sketch_file(output.output_dir)
    require_free_sketch(target, output.overwrite)
    return target


def run_train(
    model: NewModelSource,
    data_options: DataOptions,
    output: OutputOptions,
    without: ExcludedOptions,
    training: Training,
    run: ComputeOptions,
) -> dict[str, Any]:
    """Train, evaluate on the test images, write the run folder.

    Args:
        model: Where training starts.
        data_options: The images.
        output: The folder to write.
        without: What to leave out.
        training: Settings of the training; images are mirrored only where the data allows it.
        run: Seed, device, whether to resume.

    Returns:
        Test accuracy, counts of images, seconds and the folder.

    Raises:
        DataError: There are no labelled test images.
    """
    source = data_options.source()
    output.require_free([model.model, model.weights, source.spec])
    device = pick_device(run.device)
    data, request = source.open(), without.request()
    splits = None if request is None else split(data, request)
    images, test = (data.train, data.test) if splits is None else (splits.retain, splits.test)
    assert images is not None
    if test is None or not test.labelled:
        raise DataError("No labelled test images are left.", where=data.spec, fix="Leave less out, or add some.")
    if training.augmentation is not None:
        training = replace(training, augmentation=replace(training.augmentation, mirror=data.mirror))
    start = new_model(
        model.model,
        data.labels,
        weights=model.weights,
        arguments=model.arguments,
        from_scratch=model.from_scratch,
        seed=run.seed,
    )
    state = resume_state(output.output_dir, run.resume)
    title = f"training on {len(images)} images"
    with note_on_resuming(state), progress(training.steps(len(images)), title, run.quiet) as on_event:
        trained = fit(start, images, training, seed=run.seed, device=run.device, resume_state=state, on_event=on_event)
    metrics = {
        "test_accuracy": accuracy_on_images(trained.model, test, device),
        "test_count": len(test),
        "train_count": len(images),
    }
    trained.save(
        output.output_dir,
        metrics=metrics,
        data=source.to_json(),
        without=request,
        left_out=None if splits is None else splits.forget,
        start={**model.to_json(), "from_scratch": model.from_scratch},
        overwrite=output.overwrite,
    )
    state.discard()
    return {**metrics, "seconds": trained.seconds, "output_dir": str(output.output_dir)}
