"""A table or a figure of the paper: runs what the folder does not hold, then shows all that it holds.

    python -m benchmarks.paper --table 1 --data parquet:DIR --output DIR
    python -m benchmarks.paper --figure 1 --output DIR

Exit codes are those of `famr`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper.figures import draw_figure, require_figure
from benchmarks.paper.setting import (
    DEFAULT,
    SIZES,
    TINY,
    SizeRun,
    collect,
    paper_and_default,
    printed,
    size_by_name,
)
from benchmarks.paper.tables import paper_page, paper_table
from famr.bench.methods import FAMR_PAPER
from famr.bench.plan import Bench
from famr.bench.results import write_atomic
from famr.bench.running import run_bench
from famr.bench.setup import BenchSetup
from famr.bench.tasks import requested_tasks
from famr.errors import FamrError, RequestError
from famr.report.content import Report, Section
from famr.report.html import as_html
from famr.report.markdown import as_markdown
from famr.runs.folder import atomic_file
from famr.training import Training


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        report = run(options)
    except FamrError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        for line in report["lines"]:
            print(line)
        print(f"written: {', '.join(report['files'])}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--output", "-o", type=Path, required=True, help="the folder; cells in it are not run again")
    shown = parser.add_mutually_exclusive_group(required=True)
    shown.add_argument("--table", type=int, help="1: CIFAR-100. 2: ImageNet-100, or data that stands in")
    shown.add_argument(
        "--figure", type=int, help="1: KL, For-Acc by epoch. 2: entropy, For-Acc. 3: KL, entropy, Ret-Acc. 4: sizes"
    )
    parser.add_argument("--data", help="as for `famr train`; without it nothing is run, only shown")
    parser.add_argument("--data-name", help="what the tables call the data")
    parser.add_argument("--data-root", help="where torchvision keeps its files")
    parser.add_argument("--label-column", help="the class column; may be text")
    parser.add_argument("--split-seed", type=int, default=0, help="seed of the test split, for data that has none")
    parser.add_argument("--size", action="append", default=[], help="Ti, S, B or L; repeatable; default: all four")
    parser.add_argument("--weights", type=Path, help="local weights for that model")
    parser.add_argument("--model-arg", action="append", default=[], metavar="NAME=VALUE", help="of timm's constructor")
    parser.add_argument("--from-scratch", action="store_true", help="draw every weight at random")
    parser.add_argument("--little", action="store_true", help="tiny stand-ins for the four models, to try it out")
    parser.add_argument("--class", dest="classes", action="append", default=[], help="forget this class; repeatable")
    parser.add_argument("--random-classes", type=int, default=3, help="classes drawn at random, where none is named")
    parser.add_argument("--seeds", type=_seeds, default=(0,), help="seeds, separated by commas")
    parser.add_argument("--retrained", action=switch, default=True, help="retrain references")
    parser.add_argument("--default", action=switch, default=True, help="run the default beside the paper's algorithm")
    parser.add_argument("--preset", choices=("paper", "default"), default="paper", help="whose history a figure shows")
    parser.add_argument("--epochs", type=int, default=50, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=128, help="images a step of training")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="peak learning rate of AdamW")
    parser.add_argument("--weight-decay", type=float, default=0.05, help="weight decay of AdamW")
    parser.add_argument("--augment", action=switch, default=True, help="random crops and mirror images")
    parser.add_argument("--compile", action=switch, help="torch.compile for training; default: for long training")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cells again")
    parser.add_argument("--resume", action="store_true", help="accepted; finished cells are never run again")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    return parser


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _model_arguments(pairs: list[str]) -> dict[str, Any]:
    """`img_size=32` to a name and a Python value."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise RequestError(f"--model-arg takes NAME=VALUE, got {pair!r}.", fix="--model-arg img_size=32")
        try:
            arguments[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[name] = text
    return arguments


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run what is missing, then write the table or draw the figure from all that the folder holds."""
    output: Path = options.output
    if options.figure is not None:
        require_figure(options.figure)
    setup = None if options.data is None else _setup(options)
    facts = _facts(output, setup, options.table)
    if setup is not None:
        _run_cells(options, setup, facts)
    content = collect(output, facts)
    if not content["runs"]:
        raise _no_runs(output)
    if options.figure is not None:
        of_paper = options.preset == "paper"
        file = output / f"figure-{options.figure}{'' if of_paper else '-default'}.png"
        with atomic_file(file) as staging:
            draw_figure(content, options.figure, staging, FAMR_PAPER if of_paper else DEFAULT)
        return {"lines": [], "files": [str(file)]}
    page = paper_page(content)
    files = {
        output / f"table-{facts['table']}.md": as_markdown(page),
        output / f"table-{facts['table']}.html": as_html(page),
    }
    for file, text in files.items():
        write_atomic(file, text)
    short = Report(page.title, page.outcome, page.verdict, (Section("Rows", (paper_table(content),)),))
    return {"lines": as_markdown(short).splitlines(), "files": [str(file) for file in files]}


def _setup(options: argparse.Namespace) -> BenchSetup:
    return BenchSetup(
        data_spec=options.data,
        data_name=options.data_name,
        data_root=options.data_root,
        label_column=options.label_column,
        split_seed=options.split_seed,
        weights=options.weights,
        arguments=_model_arguments(options.model_arg),
        from_scratch=options.from_scratch,
        training=Training(
            epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            augmentation=Training().augmentation if options.augment else None,
            compile=options.compile,
        ),
    )


def _run_cells(options: argparse.Namespace, setup: BenchSetup, facts: dict[str, Any]) -> None:
    """The cells of every size that the folder does not hold."""

    def log(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)

    output: Path = options.output
    data = setup.open_data()
    tasks = requested_tasks(data, options.classes, 0 if options.classes else options.random_classes)
    methods = paper_and_default()
    for size in [size_by_name(name) for name in options.size] or list(SIZES):
        sized = replace(setup, arguments=TINY[size], from_scratch=True) if options.little else setup
        size_run = SizeRun(size, _setting(sized, options.little))
        start = SIZES[size]
        bench = Bench(
            data=data,
            start=sized.start_from(start, data.labels),
            training=sized.training_on(data),
            methods=methods if options.default else methods[:1],
            tasks=tasks,
            seeds=options.seeds,
            description={"data": facts["data"], "setting": size_run.setting, "model": sized.describe_start(start)},
            retry_failed=options.retry_failed,
            device=options.device,
            retrained=options.retrained,
        )
        log(f"{size}, {size_run.setting}")
        try:
            run_bench(bench, output / size_run.folder, log)
        finally:  # what there is can be shown, wherever a run was stopped
            if (output / size_run.folder).is_dir():
                collect(output, facts)


def _facts(output: Path, setup: BenchSetup | None, table: int | None) -> dict[str, Any]:
    """Which table a folder is about, and on which data."""
    if table is not None and str(table) not in printed()["tables"]:
        raise RequestError(f"The paper has no table {table}.", where="--table", fix="Use 1 or 2.")
    stored: dict[str, Any] = {}
    if (output / "results.json").is_file():
        content = json.loads((output / "results.json").read_text(encoding="utf-8"))
        stored = {name: content.get(name) for name in ("table", "data")}
    elif setup is None:
        raise _no_runs(output)
    now = {
        "table": table or stored.get("table") or 1,
        "data": stored.get("data") if setup is None else setup.describe_data(),
    }
    if stored and stored != now:
        raise RequestError(
            f"The folder is of table {stored['table']} on {stored['data']}, "
            f"not of table {now['table']} on {now['data']}.",
            where=str(output),
            fix="Name another folder.",
        )
    return now


def _no_runs(output: Path) -> RequestError:
    return RequestError("The folder holds no runs.", where=str(output), fix="Give --data, and they are run.")


def _setting(setup: BenchSetup, little: bool) -> str:
    """How the four models are made alike: only models of one setting are compared."""
    if little:
        return "tiny stand-ins, from scratch"
    start = "from scratch" if setup.from_scratch else "pretrained"
    return ", ".join([start, *(f"{name} {value}" for name, value in setup.arguments.items())])


if __name__ == "__main__":
    sys.exit(main())
