"""The 54 faults: what each is, what must happen, which test covers it; and `docs/faults.md`, written from the tests.

    python tests/fault_table.py      run the fault tests and write the document

A test names its row with `@fault(13)`, and the outcome with `seen(13, …)`: the document's cell is that text, and the
test fails where the outcome is another.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs/faults.md"
COLLECT = "FAMR_FAULTS_SEEN"
Test = TypeVar("Test", bound=Callable[..., Any])


def fault(row: int) -> Callable[[Test], Test]:
    """Mark a test with the row of the table that it covers; `rows_of` reads the mark from the source."""
    assert row in FAULTS
    return lambda test: test


class Row(NamedTuple):
    fault: str
    expected: str


FAULTS: dict[int, Row] = {
    number: Row(*words)
    for number, words in enumerate(
        (
            ("empty forget set, or a filter that matches nothing", "2, and how many rows were searched"),
            ("the forget set is all data, or nothing is retained", "2"),
            ("class out of range or negative", "2, with the valid range and names"),
            ("unknown or ambiguous class name", "2, with the nearest names"),
            ("label order of data and checkpoint differ", "3, showing both orders; accepted only with a flag"),
            ("data has more or fewer classes than the head", "3, listing the difference"),
            ("a forget id is not in the data", "2; or recorded as not found"),
            ("duplicate ids, or an id that fits two files", "2, listing them"),
            ("the same pixels among forgotten and retained", "warned and listed; forgotten, too, with a flag"),
            ("corrupt, empty or foreign file in the forget set", "3, never skipped silently"),
            ("corrupt image in the retain set", "skipped up to a limit and counted; above it 3"),
            ("truncated JPEG or PNG", "as a corrupt file"),
            ("decompression bomb of 144 or 400 million pixels", "3, from the header, by famr's own limit"),
            ("CMYK, 16 bits, palette, alpha, EXIF rotation, animation", "converted as the source pipeline does"),
            ("Unicode, newline, `<script>`, 255-byte names", "work, and are shown as text"),
            ("empty class folder", "warned; the class keeps its index"),
            ("hidden files, `.DS_Store`, `UP.PNG`", "dotfiles ignored, suffixes in any case"),
            ("link out of the data, or in a circle", "ignored with a warning; never a new class"),
            ("data changes or vanishes during the run", "3"),
            ("hub data set offline, gated or removed", "3; offline and token state, never the token"),
            ("checkpoint with missing or unexpected tensors", "4, listing them; no random head"),
            ("tensor of another shape", "4: tensor, expected, got"),
            ("safetensors truncated, huge header, overlap, overflow, a name twice", "4"),
            ("truncated, empty or random `.pth`", "4, in one wording"),
            ("Git LFS pointer instead of weights", "4, saying so"),
            ("pickle with code in a `.pth`", "4, naming the function it would call; never run"),
            ("zip bomb as `.pth`", "4, from the list of contents"),
            ("tensor of stride 0 with 10¹² elements", "4, before any copy"),
            ("NaN or infinity in the weights", "4, naming the tensor"),
            ("NaN or infinity in gradient or Fisher", "5: batch and layer; nothing written"),
            ("conjugate gradients do not converge, negative curvature", "more damping, then 5 with the residual"),
            ("fused attention has no second derivative", "the plain kernel is used"),
            ("BatchNorm or dropout active in a pass", "forced to evaluation; statistics unchanged"),
            ("retained accuracy below the gate, or nothing forgotten", "7; no certificate"),
            ("too few images for the claimed false-positive rate", "reported; no pass"),
            ("out of memory", "smaller batches, same result; else 5"),
            ("no GPU, or a device that is not there", "the CPU; 2 where a device was named"),
            ("disk full before or during writing", "6; the old output intact"),
            ("kill −9 while writing", "output absent or old; litter removed at the next start"),
            ("SIGINT, SIGTERM", "130; the second stops at once"),
            ("power loss", "files and folder synced; a half-valid run is rejected"),
            ("output exists, is an input, or is a link", "2 unless `--overwrite`; never followed"),
            ("folder that cannot be written to", "6 before any work"),
            ("two runs on one output", "the second gets 6, with the first one's process id"),
            ("resume with other settings, code or data", "2, naming the field"),
            ("one of several processes dies or hangs", "all stop, 5; no partial files"),
            ("processes see different data", "3 before the first step"),
            ("ledger or envelope edited, cut, reordered, of another key", "`verify` gives 7 and the first bad entry"),
            ("clock goes backwards", "the sequence number decides; warned"),
            ("a class name that breaks renderers", "shown as text"),
            ("NaN or an integer beyond 2⁵³ in canonical JSON", "written as null or text before signing"),
            ("second request on an unlearned model", "allowed; linked to the earlier run"),
            ("torch and torchvision of different builds", "4, saying so"),
            ("fewer processes started than asked for", "2, with both numbers"),
        ),
        start=1,
    )
}

ELSEWHERE: dict[int, tuple[str, tuple[str, ...]]] = {
    5: (
        "3: Data and checkpoint name the same classes in another order; accepted with `--match-labels-by-name`",
        (
            "test_forget_command.py::test_labels_in_another_order_are_matched_only_on_request",
            "test_labels.py::test_another_order_is_refused_and_both_orders_shown",
        ),
    ),
    9: (
        "`famr request run` lists copies, exact and near, and forgets them too with `--include-duplicates`",
        ("test_desk.py::test_copies_of_forgotten_images_are_listed_and_included_only_when_asked",),
    ),
    40: (
        "a run leaves its last state, which is written every ten seconds; `--resume` ends with the same weights",
        ("test_resuming.py::test_resumed_forgetting_ends_with_the_weights_of_an_uninterrupted_run",),
    ),
    45: (
        "2: What is unfinished here is another run: it differs in method, seed",
        ("test_resume.py::test_the_state_of_another_run_is_refused",),
    ),
    30: (
        "step, layer and images are named; images that are not finite are an error before the first step",
        (
            "test_loop.py::test_a_loss_that_is_not_finite_names_its_step_and_stops",
            "test_loop.py::test_images_that_are_not_finite_are_an_error_before_the_first_step",
        ),
    ),
    31: (
        "damping raised tenfold, then 5 with residual and damping",
        (
            "test_curvature.py::test_conjugate_gradients_solve_and_report_their_residual",
            "test_curvature.py::test_conjugate_gradients_stop_at_negative_curvature",
        ),
    ),
    32: (
        "second derivatives through attention agree",
        ("test_curvature.py::test_attention_can_be_differentiated_twice",),
    ),
    33: (
        "running statistics unchanged, dropout off",
        (
            "test_loop.py::test_batchnorm_statistics_do_not_move",
            "test_loop.py::test_dropout_is_off_so_that_two_runs_with_different_seeds_agree",
        ),
    ),
    34: (
        "7; nothing is written, so there is nothing to certify",
        ("test_search.py::test_gates_on_the_command_line_write_nothing",),
    ),
    35: (
        "the verdict is `cannot tell`, which is no pass",
        (
            "test_audit.py::test_too_few_images_cannot_tell",
            "test_audit_shadows.py::test_too_few_images_or_models_cannot_tell",
        ),
    ),
    36: (
        "each batch is split into micro-batches, with one warning and the same result; else 5",
        (
            "test_oom.py::test_a_run_that_runs_out_of_memory_splits_its_batches_and_ends_the_same",
            "test_oom.py::test_where_one_image_is_too_much_the_error_says_so_and_the_network_is_as_it_was",
        ),
    ),
    46: (
        "5: Another process of this run ended, or did not answer in time; no run folder and no staging is left",
        (
            "test_distributed.py::test_a_killed_process_ends_the_other",
            "test_distributed.py::test_a_process_that_hangs_ends_the_other_at_the_timeout",
            "test_distributed.py::test_both_processes_end_with_the_error_of_the_one_that_fails",
        ),
    ),
    47: (
        "3: The processes of this run do not see the same: the pixels of the forget images.",
        (
            "test_distributed.py::test_the_same_names_with_other_pixels_are_refused",
            "test_distributed.py::test_an_error_in_one_process_is_raised_in_both",
        ),
    ),
    54: (
        "2: 2 processes were asked for, and 1 started.",
        ("test_distributed.py::test_fewer_processes_than_asked_for_are_an_error",),
    ),
    48: (
        "7, naming the first bad entry or file",
        (
            "test_provenance_ledger.py::test_a_change_in_the_middle_is_named",
            "test_provenance_ledger.py::test_a_cut_a_forged_and_a_longer_tail_are_named",
            "test_provenance.py::test_a_changed_envelope_and_another_key_fail",
        ),
    ),
    50: (
        "rich, HTML, Markdown, SVG and matplotlib show it as text",
        (
            "test_report.py::test_hostile_names_are_text_everywhere",
            "test_forget_command.py::test_hostile_names_are_shown_and_do_not_act",
        ),
    ),
    51: (
        "NaN becomes null, a large integer becomes text",
        ("test_provenance_formats.py::test_whatever_is_signable_has_one_form_that_reading_gives_back",),
    ),
    52: (
        "allowed; run.json lists every earlier request, and the report names the chain",
        (
            "test_sequence.py::test_three_digits_one_after_another_stay_forgotten",
            "test_desk_cli.py::test_the_report_of_a_chain_names_its_requests",
        ),
    ),
}
"""Rows that tests elsewhere cover: what they assert, and their names."""

CHANGED: dict[int, str] = {
    5: "The flag is `--match-labels-by-name`: a map from name to name could be mistyped.",
    7: "There is no `--allow-missing`: `famr request` records what was not found; `famr forget` is strict.",
    9: "`famr request` searches for copies; `famr forget` forgets exactly what the request names.",
    10: "There is no `--skip-unreadable`: it would change what is forgotten. The image is named, to be removed.",
    11: "There is no `--max-bad`: every image that is used must be readable, so that counts are exact.",
    40: "No state is written on a signal: the last one is at most ten seconds old, and a resumed run ends the same.",
    19: "Whenever a file is read, its size and time are compared with those at opening; not all data is read again.",
    34: "There is no `rejected/` folder: a model that failed its gates must not be mistaken for one that passed.",
}
"""Where the behaviour differs from the one first planned, and why."""

OPEN: dict[int, str] = {}
"""Rows, or parts of rows, that do not behave as listed yet, with the reason."""


def seen(row: int, text: str) -> None:
    """Compare the outcome of a fault with the document; where COLLECT is set, collect it for the document instead."""
    assert row in FAULTS
    cell = re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
    if collected := os.environ.get(COLLECT):
        with Path(collected).open("a", encoding="utf-8") as file:
            file.write(json.dumps([row, cell]) + "\n")
        return
    line = next(line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row} |"))
    assert cell in line, f"docs/faults.md on fault {row}: {line}\noutcome: {cell}\nRun `make faults`."


def told(code: int, err: str) -> str:
    """The outcome of a command in one line: its exit code and its error."""
    first = next(
        (line for line in err.splitlines() if line.startswith("famr: ") and "famr: note" not in line), "famr: ?"
    )
    return f"{code}: {first.removeprefix('famr: ')}"


def rows_of() -> dict[int, list[str]]:
    """The names of the tests of each row, read from the decorators in the sources."""
    found: dict[int, list[str]] = {}
    for file in sorted(TESTS.rglob("test_faults*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "fault":
                        found.setdefault(ast.literal_eval(mark.args[0]), []).append(f"{file.name}::{node.name}")
    for row, (_, names) in ELSEWHERE.items():
        found.setdefault(row, []).extend(names)
    return found


def document(observed: dict[int, list[str]]) -> str:
    """The table as Markdown."""
    tests = rows_of()
    open_rows = [row for row in FAULTS if row in OPEN]
    lines = [
        "# Faults",
        "",
        "What can go wrong, what must happen, and what happens in the tests. `make faults` writes this page from the",
        "tests; each test fails where the outcome differs from it. A number at the beginning is the exit code: 2 usage",
        "or request, 3 data, 4 checkpoint, 5 numerics, 6 storage, 7 gate, 130 stopped. In all of them the inputs are",
        "unchanged, nothing is left at the output path, and no traceback is shown without `--debug`.",
        "",
        f"Of {len(FAULTS)} rows {len(FAULTS) - len(open_rows)} behave as listed or as changed; open in whole or in "
        f"part: {', '.join(map(str, open_rows)) or 'none'}.",
        "",
        "| # | fault | expected | outcome | tests |",
        "|---|---|---|---|---|",
    ]
    for number, row in FAULTS.items():
        cells = list(
            dict.fromkeys([*observed.get(number, []), *([ELSEWHERE[number][0]] if number in ELSEWHERE else [])])
        )
        if number in CHANGED:
            cells.append(f"*Changed:* {CHANGED[number]}")
        if number in OPEN:
            cells.append(f"**Open:** {OPEN[number]}.")
        names = ", ".join(f"`{name.partition('::')[2]}`" for name in tests.get(number, [])) or "–"
        lines.append(f"| {number} | {row.fault} | {row.expected} | {'<br>'.join(cells)} | {names} |")
    return "\n".join(lines) + "\n"


def written_seen() -> dict[int, list[str]]:
    """The outcomes in the document, without the words that `document` adds."""
    found: dict[int, list[str]] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| (\d+) \|", line):
            cell = re.split(r"(?<!\\)\|", line)[4].strip()
            row = int(match[1])
            added = {ELSEWHERE[row][0]} if row in ELSEWHERE else set()
            found[row] = [
                part for part in cell.split("<br>") if part and not part.startswith("*") and part not in added
            ]
    return found


def main() -> None:
    collected = TESTS.parent / "build/faults-seen.jsonl"
    collected.parent.mkdir(exist_ok=True)
    collected.write_text("", encoding="utf-8")
    files = [str(file) for file in sorted(TESTS.rglob("test_faults*.py")) if file.stem != "test_faults_table"]
    program = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files]
    done = subprocess.run(program, env={**os.environ, COLLECT: str(collected)}, check=False)
    if done.returncode != 0:
        sys.exit("docs/faults.md was not written: a fault does not behave as its test expects.")
    observed: dict[int, list[str]] = {}
    for line in collected.read_text(encoding="utf-8").splitlines():
        row, text = json.loads(line)
        observed.setdefault(row, []).append(text)
    DOCUMENT.write_text(document(observed), encoding="utf-8")
    print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
