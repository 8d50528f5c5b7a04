"""Judge whether everything is here: the run to its end, every request, every row, every planned arrival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED, DROPS, INVALID
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.reading.run_record import DAMAGED, MASTER
from tailgauge_analysis.text.formatting import count, listed, plain, plural, sentence, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict import losses, unsent
from tailgauge_analysis.verdict.conservation import Conservation
from tailgauge_analysis.verdict.late_client import advice_on_cores
from tailgauge_analysis.verdict.losses import Loss
from tailgauge_analysis.verdict.verdict import Evidence, Fault

GUARDED = "guarded"
CUT = {
    "interrupted": "The run was interrupted",
    "cut_short": "The run was cut short (Stop on the web page, or Locust's -t)",
    GUARDED: "The run stopped at one of its limits",
    "stopped": "A stop rule ended the run",
}
BROKEN_LISTED = 3
PARTS_LISTED = 2
CAUSES_LISTED = 3


def finished(evidence: Evidence) -> Fault | None:
    """Return a fault unless the run ended as planned and its master recorded it.

    INVALID: the target could not be used, or the run failed. DEGRADED: the run was cut short, or its master left no record.
    """
    run = evidence.frames.run
    state = run["state"]
    if state == "unusable":
        text = f"The target could not be used: {refusal(run) or 'the preflight request failed'}."
        return Fault(INVALID, text, "Check the target's address, protocol, key and model.")
    if state in {"failed", "error"}:
        text = "The run failed before its end"
        reason = _reason(evidence.conservation.workers)
        if reason:
            text += f": {plain(reason, 300).rstrip('.')}"
        return Fault(INVALID, f"{text}.", "See the run's notes and log.")
    for problem in evidence.frames.problems:
        if problem.kind == MASTER:
            advice = "Pass every folder of the run if its workers ran on several machines."
            return Fault(DEGRADED, f"{problem.text}.", advice)
    if state == "running":
        return _orphaned(evidence.conservation)
    if state in CUT:
        return Fault(DEGRADED, f"{CUT[state]}{_not_reached(evidence.conservation)}.")
    return None


def refusal(run: Json) -> str:
    """Return the last message of the preflight; empty without one."""
    for call in reversed(run["preflight"]):
        if call.get("message"):
            return plain(str(call["message"]), 300).rstrip(".")
    return ""


def _reason(workers: Sequence[Loss]) -> str:
    """Return the first reason that a worker gives; empty without one."""
    for loss in workers:
        if loss.why:
            return loss.why
    return ""


def _not_reached(counted: Conservation) -> str:
    """`; 3 requests were not reached`; empty where all were, or none was planned, as with tasks."""
    n = counted.not_reached
    if not n:
        return ""
    return f"; {plural(n, 'request')} {_was(n)} not reached"


def _was(n: int) -> str:
    return "was" if n == 1 else "were"


def _orphaned(counted: Conservation) -> Fault:
    workers = counted.workers
    if not workers or not all(loss.has_ended for loss in workers):
        text = "The run had not ended when it was read, or its master died."
        return Fault(
            DEGRADED, text, "Report it again after its end, or pass every worker's folder too."
        )
    source = f"{plural(len(workers), 'worker')}{_not_reached(counted)}"
    text = f"The master died before its workers ended: the counts come from {source}."
    return Fault(DEGRADED, text, "The recorded data is sound. See the master's log for the cause.")


def readable(evidence: Evidence) -> Fault | None:
    """Return a fault unless every Parquet part can be read."""
    damaged = []
    for problem in evidence.frames.problems:
        if problem.kind == DAMAGED:
            damaged.append(plain(problem.text, 300).rstrip("."))
    if not damaged:
        return None
    remainder = _and_more(damaged, PARTS_LISTED)
    return Fault(INVALID, f"{'; '.join(damaged[:PARTS_LISTED])}{remainder}.")


def _and_more(texts: list[str] | tuple[str, ...], limit: int) -> str:
    if len(texts) <= limit:
        return ""
    return f" (and {len(texts) - limit} more)"


def nothing_lost(evidence: Evidence) -> Fault | None:
    """Return a fault if a worker or a scheduled request is lost."""
    counted = evidence.conservation
    missing = losses.sentences(counted.workers)
    unassigned = counted.lost - sum(loss.lost for loss in counted.workers)
    if unassigned > 0:
        noun = (
            "other scheduled request"
            if missing and unassigned < counted.lost
            else "scheduled request"
        )
        missing.append(f"{plural(unassigned, noun)} have no row")
    if not missing:
        return _confirmed(counted)
    texts = [missing[0], *map(sentence, missing[1:])]
    return Fault(INVALID, f"Missing: {'. '.join(texts)}.", losses.advice(counted.workers))


def _confirmed(counted: Conservation) -> Fault | None:
    """Return a fault unless every worker that the master lost confirmed that these are all its rows."""
    workers = []
    for loss in counted.workers:
        if loss.is_unconfirmed:
            workers.append(str(loss.worker))
    if not workers:
        return None
    subject = f"{_workers(workers)} {_was(len(workers))}"
    rest = "lost without a final report. Every request has its row, but attempts may be missing."
    return Fault(DEGRADED, f"{sentence(subject)} {rest}")


def _workers(names: list[str]) -> str:
    return f"{'worker' if len(names) == 1 else 'workers'} {listed(names)}"


def written(evidence: Evidence) -> Fault | None:
    """Return a fault unless every recorded row was written."""
    counted = evidence.conservation
    if not counted.unwritten:
        return None
    tables = []
    for name, n in counted.unwritten.items():
        tables.append(f"{count(n)} of {plain(name, 40)}")
    losing = [loss for loss in counted.workers if loss.unwritten]
    names = _workers([str(loss.worker) for loss in losing])
    text = f"Rows recorded by {names} could not be written: {listed(tables)}"
    reason = _reason(losing)
    if reason:
        text += f" ({plain(reason, 200)})"
    return Fault(INVALID, f"{text}.")


def conserved(evidence: Evidence) -> Fault | None:
    """Return a fault unless the counts add up."""
    counted = evidence.conservation
    if counted.scheduled is None:
        text = "The number of scheduled requests is unknown, so nothing shows that all are here."
        return Fault(INVALID, text, "Pass the folder with run.json or workers/.")
    if not counted.broken:
        return None
    remainder = _and_more(counted.broken, BROKEN_LISTED)
    return Fault(
        INVALID,
        f"The counts do not add up: {'; '.join(counted.broken[:BROKEN_LISTED])}{remainder}.",
    )


def unique(evidence: Evidence) -> Fault | None:
    """Return a fault unless every request id appears once."""
    n = evidence.conservation.duplicates
    if not n:
        return None
    return Fault(
        INVALID, f"{plural(n, 'request id')} {'appears' if n == 1 else 'appear'} more than once."
    )


def none_dropped(evidence: Evidence) -> Fault | None:
    """Return a fault if requests were dropped at the in-flight cap."""
    counted = evidence.conservation
    drops = counted.client_drop
    if not drops:
        return None
    part = drops / (counted.scheduled or drops)
    dropped = f"{plural(drops, 'request')} ({share(part)} of scheduled) {_was(drops)} dropped"
    core_advice = advice_on_cores(evidence.frames, evidence.steady)
    advice = ""
    if core_advice:
        advice = sentence(f"{core_advice}, raise limits.in_flight_per_worker, or lower the rate.")
    return Fault(_graded(part), f"{dropped} at the in-flight cap and never sent.", advice)


def _graded(part: float) -> str:
    """Return the verdict for a share of the scheduled requests that was not sent."""
    return INVALID if part > DROPS else DEGRADED


def all_sent(evidence: Evidence) -> Fault | None:
    """Return a fault if requests that were due were never sent, with the causes; those dropped at the in-flight cap do not count.

    Its verdict depends on their share of the scheduled requests.
    """
    counted = evidence.conservation
    if not counted.unsent:
        return None
    part = counted.unsent / (counted.scheduled or counted.unsent)
    causes = unsent.causes(evidence.frames.run, counted.unsent, counted.workers)
    subject = f"{plural(counted.unsent, 'request')} ({share(part)} of scheduled) were never sent"
    texts = [f"{sentence(cause.text)}." for cause in causes[:CAUSES_LISTED]]
    text = " ".join([f"{subject}: the load was lower than planned.", *texts])
    advice = causes[0].advice
    if not advice:  # the workers were too slow
        core_advice = advice_on_cores(evidence.frames, evidence.steady)
        advice = "Lower the rate."
        if core_advice:
            advice = sentence(f"{core_advice}, or lower the rate.")
        text += _highest_rate(evidence)
    return Fault(_graded(part), text, advice)


def _highest_rate(evidence: Evidence) -> str:
    """Return what a worker that was too slow could do."""
    sent = evidence.frames.requests.groupby("worker")["dispatched_at_ns"].agg(
        ["count", "min", "max"]
    )
    rate = float((sent["count"] / (sent["max"] - sent["min"]).clip(lower=1) * 1e9).max())
    if not rate >= 1:  # nor where no request was dispatched
        return ""
    return f" One worker sent {count(round(rate))} requests/s."


def task_errors(record: Json) -> Counter[str]:
    """Return how often tasks of a locustfile raised each exception."""
    errors = Counter[str]()
    for worker in record["workers"]:
        errors.update(worker["task_errors"])
    return errors


def measured(evidence: Evidence) -> Fault | None:
    """Return a fault unless a request of the steady stage was sent, with what to do about it by the reason that the run shows."""
    if len(evidence.steady.requests):
        return None
    text = "Nothing to measure: no request of the steady stage was sent."
    run = evidence.frames.run
    if task_errors(run):
        return Fault(INVALID, text, "Fix the tasks that raised exceptions.")
    has_sent_nothing = (evidence.frames.requests["stage"] == schema.PREFLIGHT).all()
    if is_of_tasks(run["scenario"]) and has_sent_nothing:
        advice = "Send a request in a task: self.client.post(...) or self.stream(...)."
        return Fault(INVALID, text, advice)
    if run["state"] == GUARDED and run["arrival"] == "closed":
        advice = "Without a warm-up, --requests N sends exactly N and measures them all."
        return Fault(INVALID, text, advice)
    advice = "First let the planned load be sent." if evidence.conservation.unsent else ""
    return Fault(INVALID, text, advice)


def answered(evidence: Evidence) -> Fault | None:
    """Return a fault if requests of the steady stage were sent and none succeeded."""
    requests = evidence.steady.requests
    if not len(requests) or requests["ended"].isin(schema.COMPLETE).any():
        return None
    return Fault(
        INVALID, f"Nothing to compare: none of {plural(len(requests), 'request')} succeeded."
    )
