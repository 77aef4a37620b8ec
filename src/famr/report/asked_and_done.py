"""The first sections of a report: what was asked, and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.data.request import Request
from famr.metrics.tables import in_percent
from famr.report.content import Block, Bullets, Section, Table, Text, Thumbnail, Thumbnails
from famr.report.facts import Facts, without_path


def asked(facts: Facts, pictures: tuple[Thumbnail, ...]) -> Section:
    """The request in words, the desk's records of it, and how many images it covers."""
    forget = ((facts.metrics or {}).get("unlearned") or {}).get("counts", {}).get("forget")
    covers = (
        "The number of images it covers was not recorded." if forget is None else f"It covers {forget} training images."
    )
    blocks: list[Block] = [
        Text(f"To forget: {facts.request.describe()}. {covers}"),
        Text(f"Data: {without_path((facts.run.get('data') or {}).get('spec'))}."),
    ]
    if facts.desk is not None:
        blocks += _requests(facts.desk)
    if facts.request.kind == "samples":
        blocks.append(Text("The samples are named in unlearning/request.json; their names are not repeated here."))
    if pictures:
        total = forget or len(pictures)
        blocks.append(
            Thumbnails(f"{len(pictures)} of {total} forgotten images, shown because that was asked for.", pictures)
        )
    return Section("What was asked", tuple(blocks))


def _requests(desk: Mapping[str, Any]) -> list[Block]:
    columns = ("request", "received", "deadline", "asked for", "samples", "found", "not found", "forgotten before")
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
    exact = sum(found["similarity"] is None for found in desk["duplicates"])
    near = len(desk["duplicates"]) - exact
    return [
        Table("Requests that this run answers (samples: number of images)", columns, rows, words=4),
        Text(
            f"Copies of forgotten images among those that stay: {exact} exact, {near} near-duplicates"
            f"{'; they are listed in unlearning/requests.json and were not forgotten' if exact + near else ''}."
        ),
    ]


def done(facts: Facts) -> Section:
    """How the original became the unlearned model, and where in a chain of runs it stands."""
    run, method = facts.run, facts.run["method"]
    environment = run["environment"]
    blocks: list[Block] = [
        Text(
            f"A copy of the model “{without_path(run['original']['model'])}” was edited by "
            "Forget-Aligned Model Reconstruction (Sanga, Singh, Dubey 2025, arXiv:2506.14515) in "
            f"{run['steps']} steps over {run['epochs']} epochs, {run['seconds']:.1f} seconds on "
            f"{environment['hardware']}. "
            f"On the forget set its answers were driven to the target “{method['target']}”, while the anchor "
            f"“{method['anchor']}” held it near the original. The original was not changed."
        ),
        Text(f"The weights moved by {run['drift']:.4g} in the Euclidean norm."),
    ]
    if run.get("why"):
        blocks.append(Text(f"Picked by the tool: {run['why']}."))
    trials = run.get("trials") or []
    if len(trials) > 1:
        blocks.append(_trials(trials))
    if run.get("earlier"):
        blocks += _chain(facts)
    return Section("What was done", tuple(blocks))


def _trials(trials: list[Mapping[str, Any]]) -> Table:
    columns = ("try", "strength", "For-Acc, %", "forgetting loss, nats", "retained before, %", "retained after, %")
    rows = tuple(
        (
            f"{place}{' (kept)' if place == len(trials) else ''}",
            f"{trial['strength']:g}",
            in_percent("accuracy", trial["forget_accuracy"]),
            f"{trial['loss_after']:.3g}",
            in_percent("accuracy", trial["retained_before"]),
            in_percent("accuracy", trial["retained_after"]),
        )
        for place, trial in enumerate(trials, start=1)
    )
    return Table("Strengths that were tried until one forgot within the budget", columns, rows)


def _chain(facts: Facts) -> list[Block]:
    now = (facts.metrics or {}).get("earlier", {})
    rows = []
    for run in facts.run["earlier"]:
        asks = Request.from_json(run["request"]).describe()
        rows.append((asks, f"{run['drift']:.4g}", in_percent("accuracy", now.get(asks))))
    total = facts.run["drift_of_all_runs_at_most"]
    blocks: list[Block] = [
        Text(
            f"This is run {len(rows) + 1} of a chain: the model had been made to forget before. "
            f"All runs together moved the weights by at most {total:.4g}."
        ),
        Table("Forgotten before", ("request", "drift", "accuracy on it now, %"), tuple(rows)),
    ]
    desk = facts.desk
    if desk is not None:
        blocks.append(
            Bullets(tuple(f"{check['id']}: {check['verdict']} ({check['says']})" for check in desk["earlier"]))
        )
        blocks.append(Text(desk["lineage"]["says"]))
    return blocks
