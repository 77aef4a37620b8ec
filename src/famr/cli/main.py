"""`famr`: the commands, one function each, and the exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from famr._version import __version__
from famr.cli import benching, evidence, exporting, listing, reporting, requests, signing
from famr.cli import options as opt
from famr.cli.guarding import guarded, show_own_warnings
from famr.cli.printing import print_json, print_scores, say
from famr.cli.ranked import exit_at_once, is_first_process, require_multi_process
from famr.cli.usage import parsed
from famr.errors import RequestError

app = typer.Typer(
    name="famr",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Make a trained image classifier forget, and show how well it did.",
    epilog="Exit codes: 0 done, 2 usage or request, 3 data, 4 checkpoint, 5 numerics, 6 storage, 7 gate, 130 stopped.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"famr {__version__}")
        raise typer.Exit


@app.callback()
def options_for_all(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,  # noqa: ARG001
) -> None:
    """Options that stand before the command."""
    require_multi_process(context.invoked_subcommand)


@app.command()
def demo(
    output_dir: opt.OutputDir = Path("famr-demo"),
    overwrite: opt.Overwrite = False,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """The whole story on embedded data: train, forget a class, retrain without it, compare."""
    from famr.cli.demo import run_demo

    story = run_demo(output_dir, overwrite=overwrite, seed=seed, quiet=quiet or as_json)
    if as_json:
        print_json(story.to_json())
    else:
        story.tell()


@app.command()
def train(
    ctx: typer.Context,
    model: opt.Model,
    data: opt.DataSpec,
    output_dir: opt.OutputDir,
    weights: opt.Weights = None,
    model_arg: opt.ModelArg = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Draw every weight at random.")] = False,
    without_class: Annotated[list[str] | None, typer.Option(help="Leave out a class. Repeatable.")] = None,
    without_sample: Annotated[list[str] | None, typer.Option(help="Leave out a sample. Repeatable.")] = None,
    without_samples: Annotated[Path | None, typer.Option(help="Leave out the samples of a CSV or TXT.")] = None,
    without_concept: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="Leave out a concept.")] = None,
    without_style: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="Leave out a style.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 3e-4,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = 0.05,
    augment: Annotated[bool, typer.Option(help="Random crops, and mirror images where the class allows.")] = True,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16; default bf16 on CUDA, else fp32.")] = None,
    compile_network: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile; default where it pays.")
    ] = None,
    certified_head: opt.CertifiedHead = False,
    epsilon: opt.Epsilon = 1.0,
    delta: opt.Delta = 1e-5,
    sigma: opt.Sigma = 1.0,
    head_strength: opt.HeadStrength = 1e-2,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
    resume: opt.Resume = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fine-tune or train a classifier; with --without-… a retrained reference; with --certified-head a linear head on
    frozen features, from which images can later be removed with an (ε, δ) guarantee."""
    from famr.cli.commands import run_train
    from famr.training import Training

    if certified_head:
        from famr.cli.certified import run_train_certified

        unfit = (*opt.TRAINING_ALONE, "resume")
        opt.require_meaning(ctx, lambda name: name not in unfit, "a certified head", "Leave it out.")
        facts = opt.data_facts(data, data_root, label_column, split_seed, by_name=False)
        left_out = opt.request_from(
            without_class, without_sample, without_samples, without_concept, without_style, "--without-"
        )
        noise = {"epsilon": epsilon, "delta": delta, "sigma": sigma, "strength": head_strength}
        built = (opt.model_arguments(model_arg), from_scratch, seed)
        run_train_certified(model, weights, *built, facts, left_out, noise, output_dir, overwrite, device, as_json)
        return
    ours = "a network without a certified head"
    opt.require_meaning(ctx, lambda name: name not in opt.HEAD_ALONE, ours, "Say --certified-head, or leave it out.")
    report = run_train(
        model=model,
        weights=weights,
        arguments=opt.model_arguments(model_arg),
        from_scratch=from_scratch,
        data_facts=opt.data_facts(data, data_root, label_column, split_seed, by_name=False),
        without=opt.request_from(
            without_class, without_sample, without_samples, without_concept, without_style, "--without-"
        ),
        training=Training(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            augmentation=Training().augmentation if augment else None,
            precision=precision,  # type: ignore[arg-type]  # checked by Training
            compile=compile_network,
        ),
        output_dir=output_dir,
        overwrite=overwrite,
        resume=resume,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    if as_json:
        print_json(report)
    else:
        print(f"test accuracy {100 * report['test_accuracy']:.1f} % on {report['test_count']} images")
        say(f"written to {output_dir}")


@app.command()
def forget(
    ctx: typer.Context,
    model: opt.Model,
    output_dir: opt.OutputDir,
    data: Annotated[str | None, typer.Option(help="The data the model was trained on, as for `train`.")] = None,
    forget_data: Annotated[
        str | None, typer.Option(help="Instead of --data: a source whose images are all to be forgotten.")
    ] = None,
    class_: Annotated[list[str] | None, typer.Option("--class", help="A class, by name. Repeatable.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="A sample: index, id or path. Repeatable.")] = None,
    samples: Annotated[Path | None, typer.Option(help="A CSV or TXT file of samples.")] = None,
    concept: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="Images with this value.")] = None,
    style: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="A style; needs --style-layer.")] = None,
    style_layer: Annotated[str | None, typer.Option(help="The layer to read the style from.")] = None,
    style_target: Annotated[str | None, typer.Option(help="Images of a neutral style; default: retained.")] = None,
    style_channels_last: Annotated[
        bool, typer.Option("--style-channels-last", help="The layer returns height × width × channels.")
    ] = False,
    paper: opt.Paper = False,
    target: opt.Target = None,
    temperature: opt.Temperature = None,
    demotion: opt.Demotion = None,
    anchor: opt.Anchor = None,
    strength: opt.Strength = None,
    budget: opt.Budget = None,
    fisher_images: opt.FisherImages = None,
    function_strength: opt.FunctionStrength = None,
    function_images: opt.FunctionImages = None,
    edited_share: opt.EditedShare = None,
    edit_head: opt.EditHead = None,
    learning_rate: opt.ForgetRate = None,
    epochs: opt.ForgetEpochs = None,
    batch_size: opt.ForgetBatch = None,
    optimiser: opt.Optimiser = None,
    reduction: opt.Reduction = None,
    alpha: opt.Alpha = None,
    beta: opt.Beta = None,
    precision: opt.ForgetPrecision = None,
    gates: opt.Gates = True,
    sketch: Annotated[
        Path | None, typer.Option(help="Statistics by `famr sketch`, instead of retained images.")
    ] = None,
    retrained: Annotated[str | None, typer.Option(help="A model trained without the forget set.")] = None,
    track_retain: Annotated[bool, typer.Option(help="Follow retained accuracy, on up to 2,000 images.")] = True,
    processes: opt.Processes = None,
    shard: opt.Shard = False,
    weights: opt.Weights = None,
    model_arg: opt.ModelArg = None,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    match_labels_by_name: opt.ByName = False,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
    resume: opt.Resume = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make a model forget a class, samples, a concept or a style; write the new model and its metrics."""
    from famr.cli.commands import run_forget
    from famr.config import FAMR
    from famr.engine.launch import joined

    if (data is None) == (forget_data is None):
        raise RequestError("Give either --data or --forget-data.", fix="--data digits --class 3")
    if (Path(model) / "certified.json").is_file():
        from famr.cli.certified import run_forget_certified

        opt.require_meaning(ctx, opt.REMOVAL.__contains__, "a certified head", "Leave it out.")
        require_multi_process("forget of a certified head")
        asked = opt.request_from(class_, sample, samples, concept, style)
        facts = opt.data_facts(data or "", data_root, label_column, split_seed, by_name=match_labels_by_name)
        run_forget_certified(Path(model), facts, asked, output_dir, overwrite, device, as_json)
        return
    given = {
        "target": target,
        "temperature": temperature,
        "demotion": demotion,
        "anchor": anchor,
        "strength": opt.number_or_auto(strength),
        "budget": budget,
        "fisher_images": fisher_images,
        "function_strength": function_strength,
        "function_images": function_images,
        "edited_share": edited_share,
        "edit_head": edit_head,
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimiser": optimiser,
        "reduction": reduction,
        "alpha": alpha,
        "style_layer": style_layer,
        "style_channels_last": style_channels_last,
        "precision": precision,
    }
    start = (FAMR.paper() if paper else FAMR()).to_json()
    said = {name: value for name, value in given.items() if value is not None}
    method = FAMR.from_json({**start, **said, "beta": beta if style or style_layer else beta or 0.0})
    with joined(processes, shard=shard, device=device) as ranks:
        scores, why = run_forget(
            model=model,
            weights=weights,
            arguments=opt.model_arguments(model_arg),
            request=opt.request_from(class_, sample, samples, concept, style),
            data_facts=opt.data_facts(
                data or forget_data or "",
                data_root,
                label_column,
                split_seed,
                by_name=match_labels_by_name,
                forget_only=data is None,
            ),
            style_target=style_target,
            sketch=sketch,
            method=method,
            retrained=retrained,
            track_retain=track_retain,
            gates=gates,
            output_dir=output_dir,
            overwrite=overwrite,
            resume=resume,
            seed=seed,
            device=device,
            quiet=quiet,
            ranks=ranks,
        )
    if not is_first_process():
        return
    if as_json:
        print_json(scores.to_json())
    else:
        print_scores(scores, f"{output_dir}")
        if why:
            say(f"picked: {why}")
        say(f"written to {output_dir}")


@app.command()
def sketch(
    model: Annotated[str, typer.Argument(help="The trained model: a run folder.")],
    data: opt.DataSpec,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default: beside the run folder.")
    ] = None,
    images: Annotated[int, typer.Option(help="Training images to take the statistics from.")] = 1000,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    match_labels_by_name: opt.ByName = False,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Take what anchors need of the training data, once: a later `forget --sketch` needs none of it."""
    from famr.cli.commands import run_sketch

    facts = opt.data_facts(data, data_root, label_column, split_seed, by_name=match_labels_by_name)
    report = run_sketch(model, facts, output, images, seed, device, overwrite)
    if as_json:
        print_json(report)
    else:
        print(f"{report['images']} images, {report['layers']} layers: {report['output']}")


looking = (evidence.evaluate, evidence.certify, evidence.audit, listing.classes)
for one in (*looking, *signing.COMMANDS, exporting.export, reporting.report):
    app.command()(one)
app.add_typer(requests.app)
app.add_typer(benching.app)


def main() -> None:
    """Run the command line; turn an error into its words and its exit code."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its stack traces are not for users; our errors are
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows few letters gets their numbers
    as_json, debug = "--json" in sys.argv and is_first_process(), "--debug" in sys.argv
    if not debug:
        warnings.showwarning = show_own_warnings
    with exit_at_once():
        guarded(parsed(app), as_json=as_json, debug=debug)
