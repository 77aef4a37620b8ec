"""Deviation certificates on CIFAR-100 with ViT-Ti: the paper's preset and the default, and what they cost.

    python -m benchmarks.certificates_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/certificates-cifar100-vit_tiny.json

One class, one seed, with a retrained network; seconds of forgetting, certifying and retraining in one run.
"""

from __future__ import annotations

import time

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    CLASS_SEED,
    Results,
    cifar100_facts,
    log,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from famr.bench.tasks import drawn_classes
from famr.certificates.page import format_number

METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR(effort="quick")}


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanczos-steps", type=int, default=30)
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    start = vit_tiny(arguments.weights, data.labels)
    results = Results(arguments.output, cifar100_facts("certificates-cifar100-vit_tiny", class_seed=CLASS_SEED))
    request = famr.Request(classes=drawn_classes(data.labels, 1, CLASS_SEED))
    splits = famr.split(data, request)
    assert splits.retain is not None
    original = train_original(start, data, CIFAR100_TRAINING, arguments.seed, results, arguments.models)
    retrained = famr.fit(start(arguments.seed), splits.retain, CIFAR100_TRAINING, seed=arguments.seed)
    log(f"retrained without {request.describe()}: {retrained.seconds:.1f} s")
    for name, method in METHODS.items():
        start_time = time.perf_counter()
        result = famr.forget(original, splits, method, seed=arguments.seed, monitor=famr.Monitor(track_retain=False))
        forgotten = time.perf_counter()
        certificate = famr.certify(
            result, splits, retrained=retrained.model, lanczos_steps=arguments.lanczos_steps, on_part=log
        )
        seconds = {
            "forgetting": forgotten - start_time,
            "certifying": time.perf_counter() - forgotten,
            "retraining": retrained.seconds,
        }
        for claim in certificate.claims:
            result_text = f"{format_number(claim.value)} against {format_number(claim.bound)}, holds: {claim.holds}"
            log(f"{name}, {claim.name}: {claim.not_available or result_text}")
        log(f"{name}: {seconds}")
        results.add({"name": name, "seed": arguments.seed, "seconds": seconds, "certificate": certificate.to_json()})


if __name__ == "__main__":
    main()
