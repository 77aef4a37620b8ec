"""`famr demo`: train, forget, retrain and compare on scikit-learn's digits, in about a minute on two cores.

The default method forgets a class; the paper's algorithm stands beside it, with η and the batch size set for so small a
network. Those two, the class and the width of the network were once picked by the paper's row, on these very images:
the demo shows how the tool is used and is no evidence for a method.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from famr.cli.opening import DataSource
from famr.cli.options import OutputDir, Overwrite, Quiet, Seed
from famr.cli.printing import Result, print_scores, progress, say
from famr.config import FAMR
from famr.data import Images, open_data
from famr.data.augmentation import Augmentation
from famr.data.calibration import calibration_split
from famr.data.request import Request
from famr.data.splits import Splits, split
from famr.evaluation.evaluate import compare
from famr.extras import require_extra
from famr.metrics.scores import Scores
from famr.models import Classifier, new_model
from famr.proxies.recipe import ProxyRecipe
from famr.report.figures import write_epochs
from famr.runs.folder import atomic_folder, check_output, write_json
from famr.training import Trained, Training, fit
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor
from famr.unlearn.result import Unlearned

MODEL = "timm:vit_tiny_patch16_224"
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 192, "depth": 3, "num_heads": 3}
FORGOTTEN = "3"
TRAINING = Training(
    epochs=15, batch_size=32, learning_rate=1e-3, augmentation=Augmentation(smallest_area=0.8, mirror=False)
)
METHOD = FAMR()
PAPER = replace(FAMR.paper(), learning_rate=3e-4, batch_size=16)


@dataclass(frozen=True)
class DemoReport:
    """The result of the demo.

    Attributes:
        scores: Of the default method.
        paper: Of the paper's algorithm.
        picked: Which settings the default method picked, and why.
        seconds: Of each training and run.
        output_dir: The folder with the models and the figure.
    """

    scores: Scores
    paper: Scores
    picked: str
    seconds: dict[str, float]
    output_dir: Path

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "scores": self.scores.to_json(),
            "paper": self.paper.to_json(),
            "picked": self.picked,
            "seconds": self.seconds,
            "output_dir": str(self.output_dir),
        }

    def show(self) -> None:
        """Print a table and what it means."""
        print_scores(
            self.scores, f"A small ViT on digits, forgetting class {FORGOTTEN}", beside={"paper's Alg. 1": self.paper}
        )
        print(
            f"unlearned is the default method: {self.picked}.\n"
            f"The row of the paper's Alg. 1 is plain SGD on the batch sum, η = {PAPER.learning_rate:g} and batches "
            f"of {PAPER.batch_size} set for so small a model\n(the paper: η = {FAMR.paper().learning_rate:g} and ViTs "
            f"of 5 to 300 million weights); λ = {PAPER.strength:g} and {PAPER.epochs} epochs are the paper's.\n"
            "One class of a tiny data set: an example of use, not evidence for a method."
        )
        print(
            f"Seconds: training {self.seconds['original']:.1f}, forgetting {self.seconds['unlearned']:.1f} "
            f"(paper's {self.seconds['paper']:.1f}), "
            f"retraining {self.seconds['retrained']:.1f}."
        )
        say(f"models and figure: {self.output_dir}/original, unlearned, retrained, forgetting.png")


def demo_command(
    output_dir: OutputDir = Path("famr-demo"), overwrite: Overwrite = False, seed: Seed = 0, quiet: Quiet = False
) -> Result:
    """Train, forget a class, retrain without it, and compare, on embedded data.

    Args:
        output_dir: Folder of the models and the figure.
        overwrite: Replace it.
        seed: Of every random draw.
        quiet: Show no progress.
    """
    report = run_demo(output_dir, overwrite=overwrite, seed=seed, quiet=quiet)
    return Result(report.to_json(), report.show)


def run_demo(output_dir: Path, *, overwrite: bool, seed: int, quiet: bool) -> DemoReport:
    """Train, forget with both methods, retrain, compare; the folder appears whole or not at all.

    Args:
        output_dir: Folder of the models and the figure.
        overwrite: Replace it.
        seed: Of every random draw.
        quiet: Show no progress.
    """
    require_extra("matplotlib", "report")
    check_output(output_dir, overwrite)
    data = open_data("digits")
    splits = split(data, Request(classes=[FORGOTTEN]))
    seen, scored = calibration_split(splits)
    source = DataSource("digits").to_json()
    start = new_model(MODEL, data.labels, arguments=SMALL, from_scratch=True, seed=seed)

    def train(images: Images, title: str) -> Trained:
        with progress(TRAINING.steps(len(images)), title, quiet) as on_event:
            return fit(start, images, TRAINING, seed=seed, device="cpu", on_event=on_event)

    with atomic_folder(output_dir, overwrite=overwrite) as folder:
        original = train(data.train, "training the original")
        original.save(folder / "original", data=source)
        title = f"forgetting class {FORGOTTEN}"
        recipe = ProxyRecipe(TRAINING, start, source="the training of the original")
        result = _forget(original.model, seen, METHOD, recipe, seed, title, quiet)
        paper = _forget(original.model, seen, PAPER, recipe, seed, f"{title} as the paper does", quiet)
        assert splits.retain is not None
        retrained = train(splits.retain, f"retraining without class {FORGOTTEN}")
        retrained.save(folder / "retrained", data=source, without=splits.request, left_out=splits.forget)
        scores, paper_scores = (
            compare(original.model, run.model, retrained.model, scored, device="cpu") for run in (result, paper)
        )
        started_from: dict[str, Any] = {"model": str(output_dir / "original"), "weights": None, "arguments": {}}
        result.save(folder / "unlearned", scores=scores, original=started_from, data=source)
        rows = [asdict(row) for row in result.history]
        write_epochs(rows, f"Forgetting class {FORGOTTEN} of digits", folder / "forgetting.png")
        seconds = {
            "original": original.seconds,
            "unlearned": result.seconds_of_all or result.seconds,
            "paper": paper.seconds_of_all or paper.seconds,
            "retrained": retrained.seconds,
        }
        report = DemoReport(scores, paper_scores, result.why, seconds, output_dir)
        write_json(folder / "demo.json", report.to_json())
    return report


def _forget(
    model: Classifier, splits: Splits, method: FAMR, recipe: ProxyRecipe, seed: int, title: str, quiet: bool
) -> Unlearned:
    with progress(None, title, quiet) as on_event:
        monitor = Monitor(on_event=on_event)
        return forget(model, splits, method, recipe=recipe, seed=seed, device="cpu", monitor=monitor)
