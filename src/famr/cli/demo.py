"""`famr demo`: the whole story on scikit-learn's digits, in about a minute on two cores.

The class, the width of the network, η and the batch size were picked among some thirty tries by their outcome on these
very images. The demo shows how the tool is used; it is no evidence for the method, and other classes come out worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.augmentation import Augmentation
from famr.cli.printing import print_scores, progress, say
from famr.data import Images, open_data
from famr.evaluation import Scores, compare
from famr.method import FAMR
from famr.models import new_model
from famr.report.plots import draw_forgetting
from famr.request import Request, split
from famr.runs import check_output, save_trained, save_unlearned, staged, write_json
from famr.train import Trained, Training, fit
from famr.unlearning import forget

MODEL = "timm:vit_tiny_patch16_224"
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 192, "depth": 3, "num_heads": 3}
FORGOTTEN = "3"
TRAINING = Training(
    epochs=15, batch_size=32, learning_rate=1e-3, augmentation=Augmentation(smallest_area=0.8, mirror=False)
)
METHOD = FAMR(learning_rate=3e-4, batch_size=16)


@dataclass(frozen=True)
class Story:
    """What the demo found, and where it left it."""

    scores: Scores
    seconds: dict[str, float]
    output_dir: Path

    def to_json(self) -> dict[str, Any]:
        """As one object."""
        return {"scores": self.scores.to_json(), "seconds": self.seconds, "output_dir": str(self.output_dir)}

    def tell(self) -> None:
        """As a table and a few sentences."""
        paper = FAMR.paper()
        print_scores(self.scores, f"A small ViT on digits, forgetting class {FORGOTTEN}")
        print(
            f"Alg. 1 of the paper, plain SGD on the batch sum, with η = {METHOD.learning_rate:g} and batches of "
            f"{METHOD.batch_size} set for so small a model\n(the paper: η = {paper.learning_rate:g} and ViTs "
            f"of 5 to 300 million weights); λ = {METHOD.strength:g} and {METHOD.epochs} epochs are the paper's.\n"
            "Class and settings were picked by their outcome here: an example of use, not evidence for the method."
        )
        print(
            f"Seconds: training {self.seconds['original']:.1f}, forgetting {self.seconds['unlearned']:.1f}, "
            f"retraining {self.seconds['retrained']:.1f}."
        )
        say(f"models and figure: {self.output_dir}/original, unlearned, retrained, forgetting.png")


def run_demo(output_dir: Path, *, overwrite: bool, seed: int, quiet: bool) -> Story:
    """Train, forget, retrain, compare; everything lands in `output_dir` at once."""
    check_output(output_dir, overwrite)
    data = open_data("digits")
    splits = split(data, Request(classes=[FORGOTTEN]))
    facts = {
        "spec": "digits",
        "root": None,
        "label_column": None,
        "split_seed": 0,
        "match_labels_by_name": False,
        "forget_only": False,
    }
    start = new_model(MODEL, data.labels, arguments=SMALL, from_scratch=True, seed=seed)

    def trained_on(images: Images, title: str) -> Trained:
        steps = TRAINING.epochs * max(1, len(images) // TRAINING.batch_size)
        with progress(steps, title, quiet) as on_event:
            return fit(start, images, TRAINING, seed=seed, device="cpu", on_event=on_event)

    with staged(output_dir, overwrite=overwrite) as folder:
        original = trained_on(data.train, "training the original")
        save_trained(original, folder / "original", data=facts)
        steps = METHOD.epochs * -(-len(splits.forget) // METHOD.batch_size)
        with progress(steps, f"forgetting class {FORGOTTEN}", quiet) as on_event:
            result = forget(original.model, splits, METHOD, seed=seed, device="cpu", on_event=on_event)
        assert splits.retain is not None
        retrained = trained_on(splits.retain, f"retraining without class {FORGOTTEN}")
        save_trained(retrained, folder / "retrained", data=facts, without=splits.request)
        scores = compare(original.model, result.model, retrained.model, splits, device="cpu")
        place: dict[str, Any] = {"model": str(output_dir / "original"), "weights": None, "arguments": {}}
        save_unlearned(result, folder / "unlearned", scores=scores, original=place, data=facts)
        draw_forgetting(result.history, f"Forgetting class {FORGOTTEN} of digits", folder / "forgetting.png")
        seconds = {
            "original": original.seconds,
            "unlearned": result.seconds,
            "retrained": retrained.seconds,
        }
        write_json(folder / "demo.json", {"scores": scores.to_json(), "seconds": seconds})
    return Story(scores, seconds, output_dir)
