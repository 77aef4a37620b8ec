"""What the records say of a chain: what it has cost, what stays forgotten, and which requests a run answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from famr.desk.lineage import Forgetting, Look, Spent, is_spent, read_step, spent, stays_forgotten, told
from famr.desk.records import (
    Job,
    all_requests,
    answered_by,
    duplicates_of,
    job_of,
    jobs,
    look_of,
    samples_of,
)
from famr.desk.workspace import Workspace


def cost_of(workspace: Workspace, chain: Sequence[int]) -> Spent:
    """What the runs of these jobs have cost together."""
    return spent(read_step(workspace.run_folder(number)) for number in chain)


def looked_back(workspace: Workspace, job: int) -> dict[str, tuple[Forgetting, str]]:
    """For each request that was done before a job: whether it is still forgotten after it."""
    rows = workspace.connection.execute("SELECT request FROM looks WHERE job = ? AND moment = 'after'", [job])
    earlier = sorted({number for (number,) in rows} - set(answered_by(workspace, job)))
    now = {number: look_of(workspace, job, number, "after") for number in earlier}
    return compared(workspace, now)


def compared(workspace: Workspace, now: Mapping[int, Look | None]) -> dict[str, tuple[Forgetting, str]]:
    """Hold what is measured now of requests that are done against what was measured right after their runs."""
    known = {record.number: record for record in all_requests(workspace)}
    found = {}
    for number, look in now.items():
        own = job_of(workspace, number)
        before, then = (look_of(workspace, own, number, moment) for moment in ("before", "after"))
        found[known[number].id] = stays_forgotten(known[number].scope.kind, before, then, look)
    return found


def describe(workspace: Workspace, job: Job) -> dict[str, Any]:
    """What the run folder says about the requests it answers; the same whenever it is asked."""
    chain = [*(each.number for each in jobs(workspace, "done") if each.number < job.number), job.number]
    cost, budget = cost_of(workspace, chain), workspace.settings.budget
    return {
        "requests": [summary(workspace, number) for number in answered_by(workspace, job.number)],
        "duplicates": [asdict(each) for each in duplicates_of(workspace, job.number)],
        "earlier": [
            {"id": id_, "verdict": verdict, "says": says}
            for id_, (verdict, says) in looked_back(workspace, job.number).items()
        ],
        "lineage": {
            "parent": Path(workspace.model_after(job.parent)).name,
            "runs": [workspace.run_folder(number).name for number in chain],
            "drift_at_most": cost.drift,
            "retained_loss": cost.retained_loss,
            "budget": {"retained_loss": budget.retained_loss, "drift": budget.drift},
            "retrain_now": is_spent(cost, budget),
            "says": told(cost, budget),
        },
    }


def summary(workspace: Workspace, number: int) -> dict[str, Any]:
    """A request in figures, without the names of its samples."""
    record = next(each for each in all_requests(workspace) if each.number == number)
    samples = samples_of(workspace, number)
    counts = {
        state: sum(max(each.images, 1) for each in samples if each.state == state)
        for state in ("found", "not found", "forgotten before")
    }
    return {
        "id": record.id,
        "received": record.received.isoformat(),
        "deadline": record.deadline.isoformat(),
        "asks": record.scope.describe(),
        "samples": sum(counts.values()),
        "found": counts["found"],
        "not_found": counts["not found"],
        "forgotten_before": counts["forgotten before"],
    }


def chain_told(workspace: Workspace) -> str:
    """What the whole chain has cost so far, in a sentence."""
    chain = [job.number for job in jobs(workspace, "done")]
    return told(cost_of(workspace, chain), workspace.settings.budget)
