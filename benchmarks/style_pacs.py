"""A style: `sketch` of PACS forgotten by the paper's algorithm and by the default, beside models retrained without it.

    python -m benchmarks.style_pacs --data DIR --weights FILE --output benchmarks/results/style-pacs-vit_tiny.json

`--tuning` forgets `cartoon` instead, with a grid of settings: settings are chosen there. Methods may see one test image
in five; the other ones are scored.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import famr
from benchmarks.cells import (
    Case,
    Results,
    calibration_images,
    log,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import reference

TRAINING = famr.Training(epochs=8, batch_size=128, learning_rate=2e-4, weight_decay=0.05)
LAYER = "blocks.5"
DEFAULT = famr.FAMR(beta=None, style_layer=LAYER)
METHODS = {
    "paper, η 1e-6": replace(famr.FAMR.paper(), beta=None, style_layer=LAYER, learning_rate=1e-6),
    "default": DEFAULT,
}
GRID = {
    f"α {alpha:g}, function anchor {strength:g}, {epochs} epochs": replace(
        DEFAULT, alpha=alpha, function_strength=strength, epochs=epochs, budget=0.05
    )
    for alpha, strength, epochs in ((0.5, 2, 12), (0.5, 5, 12), (0.5, 5, 24), (1, 10, 24))
}


def main() -> None:
    parser = parser_for(__doc__, "PACS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tuning", action="store_true", help="forget another style, with a grid of settings")
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    start = vit_tiny(arguments.weights, data.labels)
    facts = {
        "benchmark": "style-pacs-vit_tiny",
        "data": "PACS at 112 px, resized to 224 px; 7 classes, 4 styles; 4 of 5 test images scored, the others shown",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
    }
    results = Results(arguments.output, facts)
    request = famr.Request(style=("style", "cartoon" if arguments.tuning else "sketch"))
    splits = famr.split(data, request)
    for seed in arguments.seeds:
        original = train_original(start, data, TRAINING, seed, results, arguments.models)
        retrained = reference(start, splits, TRAINING, seed, arguments.models)
        case = Case.with_calibration(original, retrained, splits, calibration_images(data.test))
        for name, method in (GRID if arguments.tuning else METHODS).items():
            if results.has(name=name, request=request.to_json(), seed=seed):
                continue
            cell = case.forget_or_error(name, method, seed)
            if "error" not in cell:
                first, last = (row["style_distance"] for row in (cell["history"][0], cell["history"][-1]))
                log(f"{name}: Gram distance {100 * (last / first - 1):+.0f} %")
            results.add(cell)


if __name__ == "__main__":
    main()
