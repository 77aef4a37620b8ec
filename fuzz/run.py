"""Run the coverage-guided fuzzers for a while and count.

    python -m fuzz.run --seconds 60                 every target, one after the other
    python -m fuzz.run --seconds 60 --only header   one of them
    python -m fuzz.run --output FILE                add the totals to a result file, as `make fuzz` does

Each target starts from `fuzz/corpus/TARGET` and from what earlier runs have kept in `build/fuzz-corpus`, where it adds
what reached new code. An input that crashes is kept in `build/fuzz`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "fuzz/corpus"
FOUND = ROOT / "build/fuzz-corpus"
CRASHES = ROOT / "build/fuzz"
LARGEST = 4096
"""Bytes of an input: the parsers' ways through a file need no more."""
MODULES = ["famr", "json", "csv", "zipfile", "PIL"]


def fuzz(name: str, seconds: int) -> None:
    """One target in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=MODULES):
        from fuzz.targets import TARGETS

        TARGETS[name](b"")  # imports what the target imports
    options = [f"-max_total_time={seconds}", f"-max_len={LARGEST}", "-timeout=20", "-rss_limit_mb=4096"]
    places = [f"-artifact_prefix={CRASHES}/{name}-", str(FOUND / name), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", "-seed=1", *places], TARGETS[name])
    atheris.Fuzz()


def run_all(names: list[str], seconds: int) -> dict[str, dict[str, int]]:
    """Each target in a process of its own: how many inputs it tried, how many crashed, and how many it knows now."""
    from fuzz.targets import seeds

    CRASHES.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in names:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        (FOUND / name).mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(seeds(name)):
            (CORPUS / name / f"seed-{number}").write_bytes(content)
        before = set(CRASHES.iterdir())
        program = [sys.executable, "-m", "fuzz.run", "--seconds", str(seconds), "--target", name]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
        tried = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        if tried is None:
            sys.exit(f"The fuzzer of {name} did not run:\n{done.stderr[-3000:]}")
        known = {file.name for folder in (CORPUS, FOUND) for file in (folder / name).iterdir()}
        crashes = len(set(CRASHES.iterdir()) - before)
        counts[name] = {"inputs": int(tried[1]), "crashes": crashes, "corpus": len(known)}
        if counts[name]["crashes"]:
            print(done.stderr[-3000:], file=sys.stderr)
    return counts


def main() -> None:
    """Parse the options, and fuzz."""
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--output", type=Path, help="a result file, to which this run is added")
    parser.add_argument("--target", choices=TARGETS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.target:
        fuzz(asked.target, asked.seconds)
        return
    counts = run_all(asked.only or list(TARGETS), asked.seconds)
    print(json.dumps(counts, indent=2))
    if asked.output is not None:
        from benchmarks.cells import Results

        facts = {"benchmark": "fuzz-parsers", "fuzzer": f"atheris {metadata.version('atheris')}"}
        Results(asked.output, facts).add({"seconds": asked.seconds, "targets": counts})
    sys.exit(any(count["crashes"] for count in counts.values()))


if __name__ == "__main__":
    main()
