"""A style: `sketch` of PACS forgotten by uniform KL and Gram-matrix loss, with a model that never saw sketches.

python -m benchmarks.style_pacs --data DIR --weights FILE \
        --output benchmarks/results/style-pacs-vit_tiny.json
"""

from __future__ import annotations

from dataclasses import asdict, replace

import famr
from benchmarks.cells import Case, Results, log, train_original, usual_arguments, vit_tiny
from benchmarks.references import reference

TRAINING = famr.Training(epochs=8, batch_size=128, learning_rate=2e-4, weight_decay=0.05, compile=False)


def main() -> None:
    parser = usual_arguments(__doc__, "PACS")
    parser.add_argument("--style", default="sketch")
    parser.add_argument("--layer", default="blocks.5")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}")
    start = vit_tiny(arguments.weights, data.labels)
    paper = replace(famr.FAMR.paper(), beta=None, style_layer=arguments.layer)
    facts = {
        "benchmark": "style-pacs-vit_tiny",
        "data": "PACS at 112 px, resized to 224 px; 7 classes, 4 styles",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "method": paper.to_json(),
    }
    results = Results(arguments.output, facts)
    original = train_original(start, data, TRAINING, arguments.seed, results, arguments.models)
    splits = famr.split(data, famr.Request(style=("style", arguments.style)))
    case = Case(original, reference(start, splits, TRAINING, arguments.seed, arguments.models), splits)
    for rate in arguments.learning_rates:
        for alpha in (1.0, 0.0):
            method = replace(paper, learning_rate=rate, alpha=alpha)
            try:
                results.add(case.forget(f"style, η {rate:g}, α {alpha:g}", method, arguments.seed))
            except famr.FamrError as error:
                log(f"learning rate {rate:g}, alpha {alpha:g}: {error}")
                results.add({"seed": arguments.seed, "method": method.to_json(), "error": error.what})


if __name__ == "__main__":
    main()
