"""The default method, nothing retuned, on other images and on another kind of network, each with its retraining.

    python -m benchmarks.elsewhere --setting tiny_imagenet-vit_tiny --data DIR --weights FILE \
        --output benchmarks/results/tiny_imagenet-vit_tiny.json
    python -m benchmarks.elsewhere --setting cifar100-resnet18 --data DIR \
        --output benchmarks/results/cifar100-resnet18.json

ViT-Ti begins with ImageNet weights. The ResNet (BatchNorm) begins with random ones and sees 64 px.
One test image in five is shown to the method (for the temperature); the others are scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import famr
from benchmarks.cells import Case, Results, drawn_classes, log, one_in_five, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED
from benchmarks.references import reference
from famr.data.transforms import Preprocessing

PIXELS = 64
METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR()}


@dataclass(frozen=True)
class Setting:
    """A network, images and a training."""

    data: str
    model: str
    training: famr.Training
    start: Callable[[Path | None, tuple[str, ...]], Callable[[int], famr.Classifier]]


def pretrained(weights: Path | None, labels: tuple[str, ...]) -> Callable[[int], famr.Classifier]:
    """ViT-Ti with ImageNet weights."""
    if weights is None:
        raise SystemExit("This setting needs --weights.")
    return vit_tiny(weights, labels)


def resnet18(_weights: Path | None, labels: tuple[str, ...]) -> Callable[[int], famr.Classifier]:
    """ResNet-18 with random weights, for small images."""
    small = Preprocessing((PIXELS, PIXELS), (PIXELS, PIXELS), (0.5,) * 3, (0.5,) * 3)

    def start(seed: int) -> famr.Classifier:
        fresh = famr.new_model("timm:resnet18", labels, from_scratch=True, seed=seed)
        return replace(fresh, preprocessing=small)

    return start


SETTINGS = {
    "tiny_imagenet-vit_tiny": Setting(
        "Tiny-ImageNet, 100 classes, 120 training images each, resized to 224 px",
        "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        famr.Training(epochs=6, batch_size=256, learning_rate=3e-4, weight_decay=0.05),
        pretrained,
    ),
    "cifar100-resnet18": Setting(
        "CIFAR-100, official split, resized to 64 px",
        "timm:resnet18 (BatchNorm), trained from random weights",
        famr.Training(epochs=12, batch_size=512, learning_rate=3e-3, weight_decay=0.05, compile=False),
        resnet18,
    ),
}


def main() -> None:
    parser = usual_arguments(__doc__, "data set's", weights_required=False)
    parser.add_argument("--setting", required=True, choices=list(SETTINGS))
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    setting = SETTINGS[arguments.setting]
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    start = setting.start(arguments.weights, data.labels)
    facts = {
        "benchmark": arguments.setting,
        "data": f"{setting.data}; 4 of 5 test images scored, the others shown",
        "model": setting.model,
        "training": asdict(setting.training),
        "class_seed": CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    shown = one_in_five(data.test)
    for seed in arguments.seeds:
        original = train_original(start, data, setting.training, seed, results, arguments.models)
        for name in drawn_classes(data.labels, arguments.classes, CLASS_SEED):
            request = famr.Request(classes=[name])
            if results.has(request=request.to_json(), seed=seed):
                continue
            splits = famr.split(data, request)
            retrained = reference(start, splits, setting.training, seed, arguments.models)
            case = Case.with_test_apart(original, retrained, splits, shown)
            for label, method in METHODS.items():
                try:
                    results.add(case.forget(label, method, seed, track=False))
                except famr.FamrError as error:
                    log(f"{label}: {error}")
                    results.add({"name": label, "request": request.to_json(), "seed": seed, "error": error.what})


if __name__ == "__main__":
    main()
