"""The page of the kills, from their result file."""

from __future__ import annotations

from typing import Any

from benchmarks.certificate_tables import markdown

SAYS = {
    "kills": "runs killed at a random time",
    "too_late": "of these, over before the kill",
    "with_a_state": "of these, with a state to go on from",
    "corrupt_outputs": "outputs neither absent nor whole",
    "changed_inputs": "inputs changed",
    "failed_resumes": "runs that could not go on to the end, or left something behind",
    "other_weights": "runs that ended with other weights than one that nobody killed",
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
