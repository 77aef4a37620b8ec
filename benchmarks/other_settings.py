"""The default method, not retuned, on other images and on another kind of network, each with its retraining.

    python -m benchmarks.other_settings --setting tiny_imagenet-vit_tiny --data DIR --weights FILE \
        --output benchmarks/results/tiny_imagenet-vit_tiny.json
    python -m benchmarks.other_settings --setting cifar100-resnet18 --data DIR \
        --output benchmarks/results/cifar100-resnet18.json

ViT-Ti starts from ImageNet weights, the ResNet (BatchNorm) from random ones, with images of 64 px. Methods may see one
test image in five (for the temperature); the other ones are scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import famr
from benchmarks.cells import (
    CLASS_SEED,
    Case,
    Results,
    Start,
    calibration_images,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import reference
from famr.bench.tasks import drawn_classes
from famr.data.transforms import Preprocessing

PIXELS = 64
METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR(effort="quick")}


@dataclass(frozen=True)
class Setting:
    """A network, images and a training."""

    data: str
    model: str
    training: famr.Training
    start: Callable[[Path | None, tuple[str, ...]], Start]


def pretrained(weights: Path | None, labels: tuple[str, ...]) -> Start:
    """ViT-Ti with ImageNet weights."""
    if weights is None:
        raise SystemExit("This setting needs --weights.")
    return vit_tiny(weights, labels)


def resnet18(_weights: Path | None, labels: tuple[str, ...]) -> Start:
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
    parser = parser_for(__doc__, "data set's", weights_required=False)
    parser.add_argument("--setting", required=True, choices=list(SETTINGS))
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    setting = SETTINGS[arguments.setting]
    data = open_parquet(arguments.data)
    start = setting.start(arguments.weights, data.labels)
    facts = {
        "benchmark": arguments.setting,
        "data": f"{setting.data}; 4 of 5 test images scored, the others shown",
        "model": setting.model,
        "training": asdict(setting.training),
        "class_seed": CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    calibration = calibration_images(data.test)
    for seed in arguments.seeds:
        original = train_original(start, data, setting.training, seed, results, arguments.models)
        for name in drawn_classes(data.labels, arguments.classes, CLASS_SEED):
            request = famr.Request(classes=[name])
            if results.has(request=request.to_json(), seed=seed):
                continue
            splits = famr.split(data, request)
            retrained = reference(start, splits, setting.training, seed, arguments.models)
            case = Case.with_calibration(original, retrained, splits, calibration)
            for label, method in METHODS.items():
                results.add(case.forget_or_error(label, method, seed))


if __name__ == "__main__":
    main()
