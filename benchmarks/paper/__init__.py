"""The paper's tables, figures and observations, made again: `python -m benchmarks.paper --help`."""
