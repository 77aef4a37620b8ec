"""The pages of the kills, of the soak and of the fuzzers, from their result files."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head

KILL_COUNTS = {
    "kills": "runs killed at a random time",
    "with_a_state": "of these, with a saved state; the remaining ones were killed before the first",
    "corrupt_outputs": "outputs neither absent nor whole",
    "changed_inputs": "inputs changed",
    "resumes": "runs that finished after `--resume` and left nothing behind",
    "other_weights": "runs that ended with other weights than an uninterrupted one",
    "too_late": "runs that ended before the kill came, and were started again",
}


def kills_page(name: str, content: dict[str, Any]) -> str:
    """The counts."""
    (cell,) = content["cells"]
    parts = [
        *page_head(content["benchmark"], name),
        "`famr forget` of a class of the digits, killed (SIGKILL) and then started again with `--resume`; the state is "
        f"saved after every epoch. One run takes {cell['seconds_of_one_run']:.1f} s.",
        markdown_table([("what", "number"), *((text, str(cell[count])) for count, text in KILL_COUNTS.items())]),
        f"{machine_line(content)}.",
    ]
    return "\n\n".join(parts) + "\n"


def soak_page(name: str, content: dict[str, Any]) -> str:
    """Requests, injected faults, memory and open files."""
    (cell,) = content["cells"]
    injected, expected = (sum(seen[count] for seen in cell["faults"].values()) for count in ("injected", "as_expected"))
    counts = [
        ("requests, one after the other in one process", cell["requests"]),
        ("faults injected", injected),
        ("of these, with the exit code that the fault must have", expected),
        ("requests finished", cell["finished"]),
        ("of these, verified against signature and ledger at once", cell["verified"]),
        ("of these, verified again at the end", cell["verified_at_the_end"]),
        ("different requests; the same one always ended with the same weights", cell["different_requests"]),
        ("violations: files left behind, changed inputs, tracebacks, wrong exit codes", len(cell["wrong"])),
    ]
    columns = ("injected", "too_late", "as_expected")
    faults = [(fault, *(str(seen[column]) for column in columns)) for fault, seen in cell["faults"].items()]
    readings = [(str(r["requests"]), f"{r['memory'] / 1e6:.0f}", str(r["open_files"])) for r in cell["looks"]]
    warm, last = cell["looks"][1], cell["looks"][-1]
    share = 100 * (last["memory"] / warm["memory"] - 1)
    parts = [
        *page_head(content["benchmark"], name),
        "`famr forget` of a class of the digits by a tiny network, `report`, `sign` and `verify`, again and again, "
        f"with faults at random. {cell['seconds']:.0f} s, seed {cell['seed']}.",
        markdown_table([("what", "number"), *((text, str(count)) for text, count in counts)]),
        *(f"- {text}" for text in cell["wrong"]),
        f"Memory of the process grew by {share:.1f} % between request {warm['requests']} and the end; open files: "
        f"{warm['open_files']} then, {last['open_files']} at the end.",
        "## Faults",
        markdown_table([("fault", "injected", "came too late", "as expected"), *faults]),
        "## Memory and open files",
        markdown_table([("after requests", "memory, MB", "open files"), *readings]),
        f"{machine_line(content)}.",
    ]
    return "\n\n".join(parts) + "\n"


def fuzz_page(name: str, content: dict[str, Any]) -> str:
    """Each fuzzer with the inputs it tried and the crashes it found."""
    cells = content["cells"]
    targets = sorted({target for cell in cells for target in cell["targets"]})
    rows = []
    for target in targets:
        seen = [cell["targets"][target] for cell in cells if target in cell["targets"]]
        last = seen[-1]
        tried, crashes = sum(each["inputs"] for each in seen), sum(each["crashes"] for each in seen)
        rows.append((f"`{target}`", f"{tried:,}", str(crashes), str(last["crashes"]), str(last["corpus"])))
    totals = [str(sum(int(row[column].replace(",", "")) for row in rows)) for column in range(1, 5)]
    heads = ("parser", "inputs tried", "crashes found", "crashes in the last run", "inputs in its corpus")
    parts = [
        *page_head(content["benchmark"], name, "; `make fuzz` adds a run to it"),
        f"Coverage-guided fuzzers (atheris) on every parser of untrusted input: {len(cells)} "
        f"{'run' if len(cells) == 1 else 'runs'}, {sum(cell['seconds'] for cell in cells)} s a parser in all. A crash "
        "is any error that is not a FamrError; one that is not in the last run was fixed.",
        markdown_table([heads, *rows, ("all", f"{int(totals[0]):,}", *totals[1:])]),
        f"Machine: {content['environment']['hardware']}, famr {content['environment']['famr']}.",
    ]
    return "\n\n".join(parts) + "\n"
