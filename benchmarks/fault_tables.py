"""The pages of the kills, of the soak and of the fuzzers, from their result files."""

from __future__ import annotations

from typing import Any

from benchmarks.certificate_tables import markdown

SAYS = {
    "kills": "runs killed at a random time",
    "with_a_state": "of these, with a state to go on from; the others had not come that far",
    "corrupt_outputs": "outputs neither absent nor whole",
    "changed_inputs": "inputs changed",
    "resumes": "runs that went on to the end with `--resume` and left nothing behind",
    "other_weights": "runs that ended with other weights than one that nobody killed",
    "too_late": "runs that were over before the kill came, and were begun again",
}


def kills_page(name: str, content: dict[str, Any]) -> str:
    """The counts."""
    (cell,) = content["cells"]
    machine = content["environment"]
    parts = [
        f"# {content['benchmark']}",
        f"Made from `{name}.json` by `make tables`.",
        "`famr forget` of a class of the digits, killed (SIGKILL) and then started again with `--resume`; a state is "
        f"kept after every epoch. One run takes {cell['seconds_of_one_run']:.1f} s.",
        markdown([("what", "number"), *((says, str(cell[count])) for count, says in SAYS.items())]),
        f"Machine: {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}.",
    ]
    return "\n\n".join(parts) + "\n"


def soak_page(name: str, content: dict[str, Any]) -> str:
    """What was asked, what went wrong on purpose, and what piled up."""
    (cell,) = content["cells"]
    machine = content["environment"]
    injected, expected = (sum(seen[count] for seen in cell["faults"].values()) for count in ("injected", "as_expected"))
    counts = [
        ("requests, one after the other in one process", cell["requests"]),
        ("faults injected", injected),
        ("of these, with the exit code that the fault must have", expected),
        ("requests finished", cell["finished"]),
        ("of these, verified against signature and ledger at once", cell["verified"]),
        ("of these, verified again at the end", cell["verified_at_the_end"]),
        ("different requests; the same one always ended with the same weights", cell["different_requests"]),
        ("anything left behind, changed, or told by a traceback", len(cell["wrong"])),
    ]
    columns = ("injected", "too_late", "as_expected")
    faults = [(fault, *(str(seen[column]) for column in columns)) for fault, seen in cell["faults"].items()]
    looks = [(str(look["requests"]), f"{look['memory'] / 1e6:.0f}", str(look["open_files"])) for look in cell["looks"]]
    warm, last = cell["looks"][1], cell["looks"][-1]
    share = 100 * (last["memory"] / warm["memory"] - 1)
    parts = [
        f"# {content['benchmark']}",
        f"Made from `{name}.json` by `make tables`.",
        "`famr forget` of a class of the digits by a tiny network, `report`, `sign` and `verify`, again and again, "
        f"with faults at random. {cell['seconds']:.0f} s, seed {cell['seed']}.",
        markdown([("what", "number"), *((says, str(count)) for says, count in counts)]),
        *(f"- {text}" for text in cell["wrong"]),
        f"Memory of the process grew by {share:.1f} % between request {warm['requests']} and the end; open files: "
        f"{warm['open_files']} then, {last['open_files']} at the end.",
        "## Faults",
        markdown([("fault", "injected", "came too late", "as expected"), *faults]),
        "## Memory and open files",
        markdown([("after requests", "memory, MB", "open files"), *looks]),
        f"Machine: {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}.",
    ]
    return "\n\n".join(parts) + "\n"


def fuzz_page(name: str, content: dict[str, Any]) -> str:
    """Each fuzzer with the inputs it tried, and what it found over time."""
    cells = content["cells"]
    targets = sorted({target for cell in cells for target in cell["targets"]})
    rows = []
    for target in targets:
        seen = [cell["targets"][target] for cell in cells if target in cell["targets"]]
        last = seen[-1]
        tried, crashes = sum(each["inputs"] for each in seen), sum(each["crashes"] for each in seen)
        rows.append((f"`{target}`", f"{tried:,}", str(crashes), str(last["crashes"]), str(last["corpus"])))
    whole = [str(sum(int(row[place].replace(",", "")) for row in rows)) for place in range(1, 5)]
    heads = ("parser", "inputs tried", "crashes found", "crashes in the last run", "inputs in its corpus")
    parts = [
        f"# {content['benchmark']}",
        f"Made from `{name}.json` by `make tables`; `make fuzz` adds a run to it.",
        f"Coverage-guided fuzzers (atheris) on whatever famr reads from strangers: {len(cells)} "
        f"{'run' if len(cells) == 1 else 'runs'}, {sum(cell['seconds'] for cell in cells)} s a parser in all. A crash "
        "is any error that is not one of famr's own; one that was found and is not seen in the last run was fixed.",
        markdown([heads, *rows, ("all", f"{int(whole[0]):,}", *whole[1:])]),
        f"Machine: {content['environment']['hardware']}, famr {content['environment']['famr']}.",
    ]
    return "\n\n".join(parts) + "\n"
