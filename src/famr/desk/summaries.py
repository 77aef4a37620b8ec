"""What the records say of a chain: its cost, what is still forgotten, and which requests a run carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from famr.desk.chain import ChainCost, describe_cost, is_spent, read_run_cost, total_cost
from famr.desk.recheck import Measurement, Recheck, stays_forgotten
from famr.desk.records import (
    Job,
    duplicates_of,
    job_of,
    jobs,
    measurement_of,
    read_request,
    requests_measured_after,
    requests_of,
    samples_of,
)
from famr.desk.workspace import Workspace


def chain_cost(workspace: Workspace, chain: Sequence[int]) -> ChainCost:
    """The summed cost of the runs of some jobs.

    Args:
        workspace: An open workspace.
        chain: Numbers of the jobs.

    Raises:
        CheckpointError: The records of a run are missing or damaged.
    """
    return total_cost(read_run_cost(workspace.run_folder(number)) for number in chain)


def chain_status(workspace: Workspace) -> str:
    """The cost of all finished runs against the budget, in one sentence.

    Args:
        workspace: An open workspace.

    Raises:
        CheckpointError: The records of a run are missing or damaged.
    """
    chain = [job.number for job in jobs(workspace, "done")]
    return describe_cost(chain_cost(workspace, chain), workspace.settings.budget)


def recheck_after(workspace: Workspace, job: int) -> dict[str, tuple[Recheck, str]]:
    """For each request that was done before a job: whether it is still forgotten after it.

    Args:
        workspace: An open workspace.
        job: Number of the job.

    Returns:
        Verdict and figures by id of the request.
    """
    earlier = sorted(set(requests_measured_after(workspace, job)) - set(requests_of(workspace, job)))
    return recheck(workspace, {number: measurement_of(workspace, job, number, "after") for number in earlier})


def recheck(workspace: Workspace, now: Mapping[int, Measurement | None]) -> dict[str, tuple[Recheck, str]]:
    """Compare what is measured now of finished requests with what was measured around their own runs.

    Args:
        workspace: An open workspace.
        now: Measurements on the current model, by number of the request.

    Returns:
        Verdict and figures by id of the request.
    """
    results = {}
    for number, measurement in now.items():
        record, own = read_request(workspace, number), job_of(workspace, number)
        before, after = (measurement_of(workspace, own, number, moment) for moment in ("before", "after"))
        results[record.id] = stays_forgotten(record.scope.kind, before, after, measurement)
    return results


def describe_job(workspace: Workspace, job: Job) -> dict[str, Any]:
    """Content of `unlearning/requests.json` in the run folder of a job; the same whenever it is computed.

    Args:
        workspace: An open workspace.
        job: The job.

    Raises:
        CheckpointError: The records of a run of the chain are missing or damaged.
    """
    chain = [*(done.number for done in jobs(workspace, "done") if done.number < job.number), job.number]
    cost, budget = chain_cost(workspace, chain), workspace.settings.budget
    return {
        "requests": [request_summary(workspace, number) for number in requests_of(workspace, job.number)],
        "duplicates": [asdict(copy) for copy in duplicates_of(workspace, job.number)],
        "earlier": [
            {"id": id_, "verdict": verdict, "says": figures}
            for id_, (verdict, figures) in recheck_after(workspace, job.number).items()
        ],
        "lineage": {
            "parent": Path(workspace.model_after(job.parent)).name,
            "runs": [workspace.run_folder(number).name for number in chain],
            "drift_at_most": cost.drift,
            "retained_loss": cost.retained_loss,
            "budget": {"retained_loss": budget.retained_loss, "drift": budget.drift},
            "retrain_now": is_spent(cost, budget),
            "says": describe_cost(cost, budget),
        },
    }


def request_summary(workspace: Workspace, number: int) -> dict[str, Any]:
    """A request in figures, without the names of its samples.

    Args:
        workspace: An open workspace.
        number: Number of the request.
    """
    record, samples = read_request(workspace, number), samples_of(workspace, number)
    counts = {
        state: sum(max(sample.images, 1) for sample in samples if sample.state == state)
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
