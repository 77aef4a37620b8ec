"""The first sections of a report: the request, and how it was carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.data.request import Request
from famr.metrics.tables import NOT_AVAILABLE, in_percent
from famr.report.content import Block, Bullets, Section, Table, Text, Thumbnail, Thumbnails
from famr.report.records import RunRecords, without_folder
from famr.unlearn.search import TrialOutcome


def request_section(records: RunRecords, thumbnails: Sequence[Thumbnail]) -> Section:
    """The request in words, the desk's records of it, and how many images it covers.

    Args:
        records: The records of the run.
        thumbnails: Forget images to show; empty unless the user asked for them.
    """
    count = ((records.metrics or {}).get("unlearned") or {}).get("counts", {}).get("forget")
    covers = "The number of images was not recorded." if count is None else f"It covers {count} training images."
    blocks: list[Block] = [
        Text(f"To forget: {records.request.describe()}. {covers}"),
        Text(f"Data: {without_folder((records.run.get('data') or {}).get('spec'))}."),
    ]
    if records.desk is not None:
        blocks += _desk_requests(records.desk)
    if records.request.kind == "samples":
        blocks.append(Text("unlearning/request.json names the samples; their names are not repeated here."))
    if thumbnails:
        shown = f"{len(thumbnails)} of {count or len(thumbnails)} forget images, shown on request."
        blocks.append(Thumbnails(shown, tuple(thumbnails)))
    return Section("Request", tuple(blocks))


def _desk_requests(desk: Mapping[str, Any]) -> list[Block]:
    columns = ("request", "received", "deadline", "to forget", "samples", "found", "not found", "forgotten before")
    rows = tuple(
        (
            request["id"],
            request["received"],
            request["deadline"],
            request["asks"],
            *(str(request[name]) for name in ("samples", "found", "not_found", "forgotten_before")),
        )
        for request in desk["requests"]
    )
    exact = sum(copy["similarity"] is None for copy in desk["duplicates"])
    near = len(desk["duplicates"]) - exact
    listed = "; they are listed in unlearning/requests.json and were not forgotten" if exact + near else ""
    return [
        Table("Requests that this run serves (samples: number of images)", columns, rows, words=4),
        Text(f"Copies of forget images among the retained images: {exact} exact, {near} near-duplicates{listed}."),
    ]


def method_section(records: RunRecords) -> Section:
    """How the original became the unlearned model, and which requests were carried out on it before.

    Args:
        records: The records of the run.
    """
    run, method = records.run, records.run["method"]
    blocks: list[Block] = [
        Text(
            f"A copy of the model “{without_folder(run['original']['model'])}” was edited by Forget-Aligned Model "
            f"Reconstruction (Sanga, Singh, Dubey 2025, arXiv:2506.14515) in {run['steps']} steps over {run['epochs']} "
            f"epochs, {run['seconds']:.1f} seconds on {run['environment']['hardware']}. The steps moved the "
            f"predictions on the forget set towards the target “{method['target']}”; the anchor “{method['anchor']}” "
            "kept the model near the original. The original was not changed."
        ),
        Text(f"The weights moved by {run['drift']:.4g} in the Euclidean norm."),
    ]
    if run.get("why"):
        blocks.append(Text(f"Chosen automatically: {run['why']}."))
    if proxy := run.get("proxy"):
        blocks.append(Text(_proxy(proxy)))
    if trials := run.get("trials"):
        blocks.append(_trials(trials))
    if run.get("earlier"):
        blocks += _earlier_requests(records)
    return Section("Method", tuple(blocks))


def _proxy(proxy: Mapping[str, Any]) -> str:
    """Where the predictions of proxies came from."""
    share, start = proxy["late_share"], "where its training started" if proxy["start_sha256"] else "from random weights"
    trained = f"all layers, begun {start}"
    if share < 1:
        trained = f"{100 * share:.0f} % of the layers, begun {start}; the other layers are the original's"
    return (
        "The target is made from the predictions of a model that never saw the forget set, trained "
        f"{proxy['trained']}: {proxy['epochs']} epochs ({proxy['epochs_of_training']} in the original's training), "
        f"{trained}. "
        f"Source: {proxy['source']}."
    )


def _trials(trials: Sequence[Mapping[str, Any]]) -> Table:
    forgetting_columns = ("trial", "criterion of forgetting", "value", "at most", "strength", "function-space strength")
    kept_columns = ("forget loss", "Ret-Acc before, %", "Ret-Acc after, %", "images lost", "images gained")
    rows = []
    for number, trial in enumerate(trials, start=1):
        forgetting = TrialOutcome.from_json(trial).forgetting
        changed = (trial.get(name) for name in ("lost_images", "gained_images"))
        rows.append(
            (
                f"{number}{' (selected)' if number == len(trials) else ''}",
                forgetting.criterion,
                f"{forgetting.value:.3g}",
                f"{forgetting.limit:.3g}",
                f"{trial['strength']:g}",
                f"{trial['function_strength']:g}",
                f"{trial['loss_after']:.3g}",
                in_percent("accuracy", trial["retained_before"]),
                in_percent("accuracy", trial["retained_after"]),
                *(NOT_AVAILABLE if count is None else str(count) for count in changed),
            )
        )
    caption = "Anchor strengths tried, until one forgot and did not lose significantly more accuracy than the budget"
    return Table(caption, forgetting_columns + kept_columns, tuple(rows), words=2)


def _earlier_requests(records: RunRecords) -> list[Block]:
    accuracies = (records.metrics or {}).get("earlier", {})
    rows = []
    for run in records.run["earlier"]:
        request = Request.from_json(run["request"]).describe()
        rows.append((request, f"{run['drift']:.4g}", in_percent("accuracy", accuracies.get(request))))
    drift = records.run["drift_of_all_runs_at_most"]
    blocks: list[Block] = [
        Text(
            f"This is run {len(rows) + 1} of a chain: earlier requests had been carried out on the same model. "
            f"All runs together moved the weights by at most {drift:.4g}."
        ),
        Table("Earlier requests", ("request", "drift", "accuracy on it now, %"), tuple(rows)),
    ]
    if records.desk is not None:
        checks = records.desk["earlier"]
        blocks.append(Bullets(tuple(f"{check['id']}: {check['verdict']} ({check['says']})" for check in checks)))
        blocks.append(Text(records.desk["lineage"]["says"]))
    return blocks
