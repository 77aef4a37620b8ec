"""The page of the audit's calibration: verdicts by kind of audited model, and what each gate contributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head

TITLES = {
    "retrained": "truly retrained",
    "original": "original, as if it were unlearned",
    "head only": "original with an edit of its head alone",
    "unlearned paper": "paper's preset",
    "unlearned quick": "quick",
    "unlearned thorough": "thorough",
}
"""Kinds of audited model, in the order of the tables."""


def calibration_page(name: str, content: dict[str, Any]) -> str:
    """What was audited; verdicts by number of references; gates; cost."""
    training, seeds, summary = content["training"], content["seeds"], content["summary"]
    retrained = next(iter(summary.values()))["retrained"]["models"]
    originals = next(iter(summary.values()))["original"]["models"]
    parts = [
        *page_head("Calibration of the audit on digits", name),
        f"- Data: {content['data']}\n- Model: {content['model']}; {training['epochs']} epochs, batch "
        f"{training['batch_size']}\n- Audited: {retrained} retrained models (seeds {_range(seeds['retrained'])}), each "
        f"against others of them; {originals} originals (seeds {_range(seeds['originals'])}), and of each a head-only "
        "edit, the paper's preset, the quick method and the thorough one (the default, where that takes minutes); "
        "beside each original a never-saw model (seeds "
        f"{_range(seeds['never saw'])})\n{_developed_on(seeds['retrained'][0])}"
        f"- Command: `{content['command']}`, at commit {content['commit']}\n- {_machine(content)}",
        "## Verdicts",
        verdicts_table(summary),
        "A row has the audits of one kind of model against one number of references. Audits of the same model differ "
        "by their references: disjoint sets of the other retrained models. They are not independent, as they share "
        "models, images and controls, so intervals are over models: a model counts by its first audit alone, which is "
        "what its user would see, as its references are a random choice. Failed in any audit is the stricter count, "
        "which grows with the number of audits. Interval: Clopper–Pearson, 95 %, of the models that failed in the "
        "first audit; it takes them as independent, which they are but for shared references and originals. A truly "
        "retrained model may fail by chance: 5 % is what the audit allows for. Pass: nothing but the gates is judged "
        "here, as all models have the same known training.",
        "## Gates that fail retrained models",
        "Audits in which a gate that counts fails a truly retrained model, and in brackets of how many models; an "
        "audit with two such gates is in both rows.",
        false_fails_table(content["audits"]),
        "## Gates",
        "Share of audits, in %, in which a gate counts for retrained models, and in which it fails a model of each "
        "kind, whether it counts or not; "
        f"{_fewest(content)} references. In brackets where it cannot tell.",
        gates_table(next(iter(content["gates"].values()))),
        "## Cost",
        cost_sentence(content["seconds"]),
    ]
    return "\n\n".join(parts) + "\n"


def verdicts_table(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A row for each number of references and kind of model."""
    head = ("audited", "references", "audits", "pass", "cannot tell", "fail", "fail %")
    rows: list[tuple[str, ...]] = [(*head, "models", "failed in the first audit", "95 % interval, %", "in any audit")]
    for kind, title in TITLES.items():
        for count, kinds in summary.items():
            if (found := kinds.get(kind)) is None:
                continue
            low, high = (100 * end for end in found["interval"])
            rows.append(
                (
                    title,
                    count,
                    *(str(found[each]) for each in ("audits", "pass", "cannot tell", "fail")),
                    f"{100 * found['fail'] / found['audits']:.1f}",
                    str(found["models"]),
                    str(found["models failed in the first audit"]),
                    f"{low:.1f} to {high:.1f}",
                    str(found["models failed in any audit"]),
                )
            )
    return markdown_table(rows)


def false_fails_table(audits: Sequence[Mapping[str, Any]]) -> str:
    """A row for each gate that fails a truly retrained model, a column for each number of references."""
    own = [row for row in audits if row["audited"].startswith("retrained ")]
    counts = list(dict.fromkeys(row["references"] for row in own))
    gates = list(dict.fromkeys(gate for row in own for gate in row["fail"] if gate in row["counted"]))
    rows: list[tuple[str, ...]] = [("gate", *(f"{count} references" for count in counts))]
    for gate in gates:
        cells = []
        for count in counts:
            failed = [
                row["audited"]
                for row in own
                if row["references"] == count and gate in row["fail"] and gate in row["counted"]
            ]
            cells.append(f"{len(failed)} ({len(set(failed))})")
        rows.append((gate, *cells))
    return markdown_table(rows)


def gates_table(gates: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    """A row for each gate: how often it counts, and what it says of each kind of model."""
    kinds = [kind for kind in TITLES if any(kind in by_kind for by_kind in gates.values())]
    rows: list[tuple[str, ...]] = [("gate", "counts", *(f"fails: {TITLES[kind]}" for kind in kinds))]
    for gate, by_kind in gates.items():
        rows.append((gate, _percent(by_kind["retrained"]["counted"]), *(_fails(by_kind[kind]) for kind in kinds)))
    return markdown_table(rows)


def cost_sentence(seconds: Mapping[str, Any]) -> str:
    """What one audit takes beside one retraining."""
    audit, retraining = dict(seconds["audit"]), seconds["retraining"]
    total = audit.pop("in all")
    by_part = ", ".join(f"{part} {value:.1f}" for part, value in audit.items() if value >= 0.05)
    trained = "was not measured" if retraining is None else f"took {retraining:.1f} s in the mean"
    times = "" if retraining is None else f", {total / retraining:.1f} times as long"
    return (
        f"Retraining {trained}; one call of `famr.audit` with five references, without shadow models and without a "
        f"never-saw model, took {total:.1f} s{times} ({by_part}). The attacks take a fixed number of steps on eight "
        "models, whatever the network was trained with: beside a training of seconds they are long, beside one of "
        "hours short."
    )


def _fails(found: Mapping[str, float | None]) -> str:
    undecided = found["cannot tell"]
    return _percent(found["fail"]) + (f" ({_percent(undecided)})" if undecided else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


def _range(seeds: tuple[int, int]) -> str:
    first, last = seeds
    return str(first) if first == last else f"{first} to {last}"


def _developed_on(first: int) -> str:
    """That models with smaller seeds are not among the audited ones, and why."""
    if first == 0:
        return ""
    return f"- Seeds 0 to {first - 1} are left out: bounds and intervals of the audit were corrected on these models\n"


def _fewest(content: Mapping[str, Any]) -> str:
    return str(next(iter(content["gates"])))


def _machine(content: Mapping[str, Any]) -> str:
    threads = content["environment"]["threads"]
    return f"{machine_line(content, 'torch', 'timm')}; {threads} {'thread' if threads == 1 else 'threads'}"
