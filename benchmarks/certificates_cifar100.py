"""Deviation certificates on CIFAR-100 with ViT-Ti: the paper's preset and the default, and what they cost.

    python -m benchmarks.certificates_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/certificates-cifar100-vit_tiny.json

One class, one seed, with a retrained network; seconds of forgetting, certifying and retraining in one run.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import famr
from benchmarks.cells import Results, drawn_classes, log, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from famr.certificates.page import figure

METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR()}


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanczos-steps", type=int, default=30)
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    start = vit_tiny(arguments.weights, data.labels)
    facts = {
        "benchmark": "certificates-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "class_seed": CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    request = famr.Request(classes=drawn_classes(data.labels, 1, CLASS_SEED))
    splits = famr.split(data, request)
    assert splits.retain is not None
    original = train_original(start, data, TRAINING, arguments.seed, results, arguments.models)
    retrained = famr.fit(start(arguments.seed), splits.retain, TRAINING, seed=arguments.seed)
    log(f"retrained without {request.describe()}: {retrained.seconds:.1f} s")
    for name, method in METHODS.items():
        begin = time.perf_counter()
        result = famr.forget(original, splits, method, seed=arguments.seed, monitor=famr.Monitor(track_retain=False))
        forgotten = time.perf_counter()
        certificate = famr.certify(
            result, splits, retrained=retrained.model, lanczos_steps=arguments.lanczos_steps, on_part=log
        )
        seconds = {
            "forgetting": forgotten - begin,
            "certifying": time.perf_counter() - forgotten,
            "retraining": retrained.seconds,
        }
        for claim in certificate.claims:
            found = claim.not_available or f"{figure(claim.value)} against {figure(claim.bound)}, holds: {claim.holds}"
            log(f"{name}, {claim.name}: {found}")
        log(f"{name}: {seconds}")
        results.add({"name": name, "seed": arguments.seed, "seconds": seconds, "certificate": certificate.to_json()})


if __name__ == "__main__":
    main()
