"""A run of `famr bench speed` as a page: what was asked of it, then the figures of every stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.bench.speed import done
from famr.bench.speed_checks import NO_TIE, Check, checks
from famr.metrics.tables import COLUMNS, NOT_AVAILABLE, in_percent
from famr.report.content import Block, Bullets, Report, Section, Table, Text

MIB = 1 << 20
LOOPS = {"ours": "ours", "plain": "plain", "late": "ours, last layers"}
WHAT = (
    "Images are noise over the colours of ten classes, stored at the network's own size; the network {begins}. Both "
    "loops take the paper's steps (Alg. 1, λ = 0.1, sum over the batch, {rates}) on the same images in the same order. "
    "The plain loop finds its images prepared on the device. Times are to be compared within this page only."
)
TRAINED = "learns them in a few dozen steps, so that there is something to forget"
UNTRAINED = "never learnt them: the stage retraining was not run"


def speed_page(content: Mapping[str, Any]) -> Report:
    """The whole page."""
    found = checks(content)
    failed = [each for each in content["stages"] if "error" in each]
    holding = sum(check.holds for check in found)
    begins = TRAINED if done(content, "retraining") else UNTRAINED
    outcome = "cannot tell" if not found else "pass" if holding == len(found) and not failed else "fail"
    sections = [
        Section(
            "Setting", (Bullets(tuple(_setting(content))), Text(WHAT.format(begins=begins, rates=_rates(content))))
        ),
        Section("What was to be shown", (_claims(found),)),
        *(Section(title, blocks) for title, blocks in _stages(content).items() if blocks),
    ]
    if failed:
        lines = tuple(f"{each['stage']}{_of(each)}: {each['error']}" for each in failed)
        sections.append(Section("Stages that failed", (Bullets(lines),)))
    decided = f"{holding} of {len(found)} claims hold" if found else "No claim was decided"
    verdict = f"{decided}; {len(failed)} of {len(content['stages'])} stages failed."
    return Report("Speed", outcome, verdict, tuple(sections), dict(content))  # type: ignore[arg-type]


def _claims(found: list[Check]) -> Block:
    if not found:
        return Text("Nothing that these stages can decide on this machine.")
    rows = tuple((each.claim, each.found, "yes" if each.holds else "no") for each in found)
    return Table("Decided from the figures below.", ("claim", "found", "holds"), rows, words=3)


def _of(each: Mapping[str, Any]) -> str:
    return "" if each["model"] is None else f", {each['model']}"


def _rates(content: Mapping[str, Any]) -> str:
    """η of each network, where it was written down."""
    told = [(each["model"], each["result"].get("learning_rate")) for each in done(content, "loops")]
    if not told or any(rate is None for _, rate in told):
        return "η = 1e-4 for 64 images and in proportion"
    named = ", ".join(f"{rate:.3g} for {name}" for name, rate in told)
    return f"η = {named}; the paper's 1e-4 is for 64 images, and small networks take it for more"


def _setting(content: Mapping[str, Any]) -> list[str]:
    machine, settings = content["environment"], content["settings"]
    passes = settings["images"] * settings["epochs"]
    lines = [
        f"Machine: {machine['hardware']} ({machine['device']}, threads: {machine['threads']}), "
        f"torch {machine['torch']}, famr {machine['famr']}",
        f"{settings['images']} images to forget, {settings['epochs']} epochs: {passes:,} sample passes in batches of "
        f"{settings['batch']}, {settings['precision']}",
        f"Medians of {settings['repeats']} calls, the loops in turn",
    ]
    for model in content["models"]:
        height, width = model["image_side"]
        lines.append(
            f"{model['name']}: {model['spec']}{''.join(f', {k} {v}' for k, v in model['arguments'].items())}; "
            f"{model['weights'] / 1e6:.1f} million weights, {height}×{width} px, "
            f"{model['sample_pass_flops'] / 1e9:.2f} GFLOP a sample pass (three times the forward pass)"
        )
    return lines


def _stages(content: Mapping[str, Any]) -> dict[str, tuple[Block, ...]]:
    """The blocks of each stage that was run and did not fail."""
    return {
        "Ceiling": tuple(_ceiling(each["result"]) for each in done(content, "ceiling")),
        "Loops": _loops(done(content, "loops"), trained=bool(done(content, "retraining"))),
        "Fresh processes": _fresh(done(content, "fresh")),
        "Retraining": _retraining(content),
        "Memory": _memory(done(content, "memory")),
        "Growth": _growth(done(content, "growth")),
        "Alternatives": tuple(
            block for each in done(content, "alternatives") for block in _alternatives(each["result"])
        ),
    }


def _ceiling(result: Mapping[str, Any]) -> Block:
    rates = ", ".join(f"{each['side']}: {each['tflops']:.3g}" for each in result["rates"])
    return Text(
        f"The best square matrix product of random {result['precision']} numbers runs at {result['tflops']:.3g} "
        f"TFLOP/s (side {result['side']}; {rates})."
    )


def _left_out(records: list[dict[str, Any]]) -> str:
    """What our loop does without, where it was counted."""
    shares = []
    for each in records:
        ours, plain = (each["result"][loop].get("sample_pass_flops") for loop in ("ours", "plain"))
        if ours is not None and ours < plain:
            shares.append(f"{each['model']} {100 * (1 - ours / plain):.1f} %")
    if not shares:
        return ""
    return f", by the operations that it does (ours does without those nobody reads: {', '.join(shares)})"


AFTER_TRAINING = " The first call comes after a training; on a GPU that has loaded the libraries."


def _loops(records: list[dict[str, Any]], trained: bool) -> tuple[Block, ...]:
    if not records:
        return ()
    times, scores = [], []
    for each in records:
        found = each["result"]
        floor = NOT_AVAILABLE if found["floor"] is None else f"{found['floor']:.3g}"
        for name in ("ours", "plain", "late"):
            if (loop := found.get(name)) is None:
                continue
            share = loop.get("share_of_ceiling")
            times.append(
                (
                    each["model"],
                    LOOPS[name],
                    floor if name != "late" else NOT_AVAILABLE,
                    f"{loop['first']:.3g}",
                    f"{loop['median']:.3g}",
                    f"{1000 * loop['step']:.3g}",
                    NOT_AVAILABLE if share is None else f"{100 * share:.0f}",
                    f"{loop['whole_call']:.3g}",
                )
            )
        agreement = found["agreement"]
        for name in ("original", "ours", "plain", "plain_in_fp32"):
            if name not in agreement:
                continue
            figures = [in_percent(column, value) for column, value in agreement[name].items()]
            apart = f"{agreement['weights_apart']:.1e}" if name == "ours" else "–"
            scores.append((each["model"], name.replace("_", " "), *figures, apart))
    columns = [COLUMNS[name] for name in records[0]["result"]["agreement"]["original"]]
    fed = "; ".join(f"{each['model']} {1000 * each['result']['feeding_seconds_an_epoch']:.3g} ms" for each in records)
    return (
        Table(
            "Seconds of all steps (floor: their operations at the ceiling's rate); a step once the loop has settled in "
            f"milliseconds, and its share of the ceiling{_left_out(records)}; the whole call also copies the model and "
            "measures it. Last layers: our loop where only those may change that the default method edits; what lies "
            f"before them is walked once an image, which is counted.{AFTER_TRAINING if trained else ''}",
            ("model", "loop", "floor", "first call", "median", "step, ms", "% of ceiling", "whole call"),
            tuple(times),
            words=2,
        ),
        Text(f"Bringing the images to the network, an epoch, in our loop: {fed}.{_kernels(records)}"),
        Table(
            "What both loops made of the same network. Weights apart: ‖ours − plain‖ / ‖plain − original‖. Where their "
            "accuracies differ, the plain loop in fp32 shows what rounding alone does: answers that are nearly uniform "
            f"have many near ties. {NO_TIE}",
            ("model", "weights of", *columns, "weights apart"),
            tuple(scores),
            words=2,
        ),
    )


def _kernels(records: list[dict[str, Any]]) -> str:
    """Which kernels of our own were in use; nothing where that was not recorded."""
    if any("kernels" not in each["result"] for each in records):
        return ""
    names = sorted({name for each in records for name in each["result"]["kernels"]})
    return f" Kernels of our own in use: {', '.join(names) or 'none'}."


def _retraining(content: Mapping[str, Any]) -> tuple[Block, ...]:
    loops = {each["model"]: each["result"] for each in done(content, "loops")}
    rows = []
    for each in done(content, "retraining"):
        found = each["result"]
        ours = loops.get(each["model"])
        share = NOT_AVAILABLE if ours is None else f"{100 * ours['ours']['median'] / found['epoch_extrapolated']:.1f}"
        rows.append(
            (
                each["model"],
                f"{1000 * found['step']:.3g}",
                str(found["steps_measured"]),
                f"{found['data_images']:,}",
                f"{found['epoch_extrapolated']:.3g}",
                share,
            )
        )
    if not rows:
        return ()
    return (
        Table(
            "famr.fit, not compiled: the seconds of a step are measured, those of an epoch over all of the data are "
            "extrapolated from them. Last: all steps of forgetting as a share of one such epoch.",
            ("model", "step, ms", "steps measured", "images of the data", "epoch, s (extrapolated)", "forgetting, %"),
            tuple(rows),
        ),
    )


def _fresh(records: list[dict[str, Any]]) -> tuple[Block, ...]:
    if not records:
        return ()
    rows = []
    for each in records:
        found = each["result"]
        calls, waits = (", ".join(f"{value:.3f}" for value in found[name]) for name in ("calls", "waits"))
        rows.append((each["model"], f"{found['median']:.3f}", calls, waits, f"{found['whole_call']:.3g}"))
    return (
        Table(
            "Seconds of all steps by our loop in the first call of a process of its own, in which nothing was trained "
            "before: libraries that a GPU needs are still to be loaded from the disk, as far as that was not done "
            "beside other work. The images are at hand; a command that has to decode some loads meanwhile.",
            ("model", "median", "of each", "of that before the first step", "whole call"),
            tuple(rows),
        ),
    )


def _memory(records: list[dict[str, Any]]) -> tuple[Block, ...]:
    if not records:
        return ()
    rows = []
    for each in records:
        found = each["result"]
        share = found["share_of_allowed"]
        rows.append(
            (
                each["model"],
                *(f"{value / MIB:,.0f}" for value in (found["weights"], *found["used"].values(), found["allowed"])),
                NOT_AVAILABLE if share is None else f"{100 * share:.0f}",
                *(_reserved(found[name]) for name in ("fine-tuning", "ours")),
            )
        )
    return (
        Table(
            "Peak beyond what was there before, in MiB; the images are there before, of both. Allowed: fine-tuning by "
            "plain SGD at the same batch, one copy of the weights, and 5 %. On a CPU: of processes of their own, "
            "the one in the middle. Reserved: what torch kept from others on a GPU at most, in use or not, images and "
            "all.",
            (
                "model",
                "weights",
                "fine-tuning",
                "ours",
                "allowed",
                "% of allowed",
                "fine-tuning reserved",
                "ours reserved",
            ),
            tuple(rows),
        ),
    )


def _reserved(found: Mapping[str, Any]) -> str:
    return f"{found['reserved'] / MIB:,.0f}" if found.get("reserved") else NOT_AVAILABLE


def _growth(records: list[dict[str, Any]]) -> tuple[Block, ...]:
    if not records:
        return ()
    rows = []
    for each in records:
        for part, title in (("with_forget", "forget"), ("with_data", "retained")):
            found = each["result"][part]
            rows += [
                (each["model"], title, f"{point['images']:,}", f"{point['seconds']:.3g}") for point in found["points"]
            ]
    return (
        Table(
            "Seconds of the steps: an epoch, once the loop has settled, over more and more images to forget; two "
            "epochs over the same images to forget while more and more are retained.",
            ("model", "growing", "images", "seconds"),
            tuple(rows),
            words=2,
        ),
    )


def _alternatives(result: Mapping[str, Any]) -> tuple[Block, ...]:
    passes, same = result["equal_passes"], result["equal_result"]
    original = same["original"]
    rows = []
    for row in same["rows"]:
        steps = row["seconds_of_steps"]
        rows.append(
            (
                row["method"],
                "yes" if row["reached"] else "no, the nearest",
                str(row["tried"]),
                f"{row['seconds']:.2f}",
                "–" if steps is None else f"{steps:.2f}",
                f"{row['image_passes']:,}",
                *(in_percent(name, row["scores"][name]) for name in ("forget_accuracy", "retain_accuracy")),
            )
        )
    return (
        Bullets(
            (
                f"Data: {result['data']}; {result['forgotten']} is forgotten: {result['forget_images']} images, "
                f"{result['retained_images']} retained",
                f"Model: {result['model']}",
            )
        ),
        Table(
            f"Seconds of {passes['sample_passes']:,} sample passes (images forward and back) in batches of "
            f"{passes['batch']}; of the default method by all images it passes, all that it does. Medians of "
            f"{len(passes['rows'][0]['calls'])} turns; times ours: within a turn.",
            ("method", "passes in a run", "seconds", "times ours"),
            tuple(
                (row["method"], f"{row['sample_passes']:,}", f"{row['seconds']:.3f}", f"{row['times_ours']:.2f}")
                for row in passes["rows"]
            ),
        ),
        Table(
            "Seconds until at most 2 % of the forgotten class is named and held-out accuracy on the rest is within a "
            f"point of the original's {in_percent('retain_accuracy', original['retain_accuracy'])} %. Each "
            "alternative's first setting that gets there, tuning not counted; of each all that it does, measuring "
            "not.",
            ("method", "got there", "tries", "seconds", "of steps", "image passes", "For-Acc %", "Ret-Acc %"),
            tuple(rows),
            words=2,
        ),
    )
