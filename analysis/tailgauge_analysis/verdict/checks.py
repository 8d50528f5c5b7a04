"""The checks of the measurement, one row of CHECKS each; the docstring of its function says when it passes.

A check passes (None) or gives the verdict that it forces, the problem, and what to do about it. Only what can distort a
reported number is a check; what made the client's work harder is an explanation (client.py).
"""

from __future__ import annotations

import math

import numpy as np

from tailgauge.protocol_violations import MALFORMED_USAGE, VIOLATIONS
from tailgauge.rows import schema
from tailgauge.thresholds import CLOCK_MS, DEGRADED, DROPS, INVALID, VALID, WORST_FIRST
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.stability import WARMUP
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_record import DAMAGED, MASTER
from tailgauge_analysis.text.formatting import clock, count, listed, ms, plain, plural, sentence, share
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.verdict import cold_cache, conservation
from tailgauge_analysis.verdict.client import bad_seconds, connections, explanations, more_workers
from tailgauge_analysis.verdict.client_error import allowed
from tailgauge_analysis.verdict.timestamps import clocks, endpoint_delays
from tailgauge_analysis.verdict.verdict import Check, Evidence, Judgement

DISORDERED = 0.01  # of the attempts
IN_FLIGHT, IN_FLIGHT_SHARE = 0.1, 0.01
ENDPOINT_MS = 2.0
STALLS_LISTED = 3
FIGURES_LISTED = 3
STATIONS = (
    "scheduled_at_ns", "dispatched_at_ns", "sent_at_ns", "first_content_at_ns", "last_content_at_ns", "ended_at_ns",
)  # fmt: skip
ORDER_SLACK_NS = 1_000_000  # kernel and process clocks are read a little apart
KINDS_LISTED = 3  # of protocol violations
FAR_BEYOND, AND = 4, 50  # times the requested tokens, and so many chunks more
CUT = {
    "interrupted": "The run was interrupted",
    "cut_short": "The run was cut short (Stop on the web page, or Locust's -t)",
    "guarded": "The run stopped at one of its limits",
    "stopped": "A stop rule ended the run",
}
ENDLESS = "no end at the deadline, far beyond the requested tokens"

KEEP_AND_RERUN = "Keep the run folder and run again."
SETTLE_CLOCKS = "Let time synchronization settle (chrony, NTP), then run again."


# Is everything here?


def _finished(e: Evidence) -> Judgement | None:
    """the run ended as planned and its master recorded it"""
    run, state = e.frames.run, e.frames.run["state"]
    master = next((p.text for p in e.frames.problems if p.kind == MASTER), None)
    if state == "unusable":
        messages = [plain(str(p["message"]), 300) for p in run["preflight"] if p.get("message")]
        why = messages[-1].rstrip(".") if messages else "the preflight request failed"
        problem = f"The target could not be used: {why}."
        return INVALID, problem, "Check the target's address, protocol, key and model."
    if state in {"failed", "error"}:
        why = next((f": {plain(one.why, 300).rstrip('.')}" for one in e.conservation.workers if one.why), "")
        return INVALID, f"The run failed before its end{why}.", "See the run's notes and log."
    if master is not None:
        return DEGRADED, f"{master}.", "Pass every folder of the run if its workers ran on several machines."
    if state == "running":
        return _orphaned(e)
    if state in CUT:
        return DEGRADED, f"{CUT[state]}{_not_reached(e)}.", "The recorded data is sound but incomplete."
    return None


def _not_reached(e: Evidence) -> str:
    """`; 3 requests were not reached`; empty where all were, or none was planned, as with tasks."""
    n = e.conservation.not_reached
    return f"; {plural(n, 'request')} {'was' if n == 1 else 'were'} not reached" if n else ""


def _orphaned(e: Evidence) -> Judgement:
    workers = e.conservation.workers
    if not workers or not all(one.has_ended for one in workers):
        problem = "The run had not ended when it was read, or its master died."
        return DEGRADED, problem, "Report it again after its end, or pass every worker's folder too."
    of = f"{plural(len(workers), 'worker')}{_not_reached(e)}"
    problem = f"The master died before its workers ended: the counts come from {of}."
    return DEGRADED, problem, "The recorded data is sound. See the master's log for the cause."


def _readable(e: Evidence) -> Judgement | None:
    """every Parquet part can be read"""
    damaged = [p.text for p in e.frames.problems if p.kind == DAMAGED]
    if not damaged:
        return None
    more = f" (and {len(damaged) - 2} more)" if len(damaged) > 2 else ""
    problem = f"{'; '.join(plain(text, 300).rstrip('.') for text in damaged[:2])}{more}."
    return INVALID, problem, "Check the disk; if the part was copied, copy it again."


def _lost(e: Evidence) -> Judgement | None:
    """no worker and no scheduled request is lost"""
    c, run = e.conservation, e.frames.run
    missing = conservation.sentences(c.workers, closed=run["closed"])
    more = c.lost - sum(one.left for one in c.workers)
    if more > 0:
        other = "other " if len(missing) and more < c.lost else ""
        missing.append(f"{plural(more, f'{other}scheduled request')}{conservation.due(c.unseen)} have no row")
    elif c.unseen:
        missing.append(f"requests without a row were{conservation.due(c.unseen)}")
    if missing:
        problem = ". ".join([missing[0], *map(sentence, missing[1:])])
        return INVALID, f"Missing: {problem}.", conservation.advice(c.workers, closed=run["closed"])
    return _unconfirmed(e)


def _unconfirmed(e: Evidence) -> Judgement | None:
    """Every request has its row, but the worker never confirmed that these are all rows."""
    workers = [one for one in e.conservation.workers if one.is_accounted and not one.has_ended]
    if not workers:
        return None
    names = listed(str(one.worker) for one in workers)
    who = f"{'Worker' if len(workers) == 1 else 'Workers'} {names} {'was' if len(workers) == 1 else 'were'}"
    problem = f"{who} lost without a final report. Every request has its row, but attempts may be missing."
    return DEGRADED, problem, conservation.SEE_LOG


def _written(e: Evidence) -> Judgement | None:
    """every recorded row was written"""
    if not e.conservation.unwritten:
        return None
    tables = listed(f"{count(n)} of {plain(name, 40)}" for name, n in e.conservation.unwritten.items())
    workers = [one for one in e.conservation.workers if one.unwritten]
    whose = f"{'worker' if len(workers) == 1 else 'workers'} {listed(str(one.worker) for one in workers)}"
    why = next((f" ({plain(one.why, 200)})" for one in workers if one.why), "")
    advice = "Free disk space on these workers, or choose another folder with --out, then run again."
    return INVALID, f"Rows recorded by {whose} could not be written: {tables}{why}.", advice


def _conserved(e: Evidence) -> Judgement | None:
    """scheduled, dispatched and ended requests add up, in the rows and in run.json"""
    c = e.conservation
    if c.scheduled is None:
        problem = "The number of scheduled requests is unknown, so nothing shows that all are here."
        return INVALID, problem, "Pass the folder with run.json or workers/."
    if not c.broken:
        return None
    more = f" (and {len(c.broken) - 3} more)" if len(c.broken) > 3 else ""
    return INVALID, f"The counts do not add up: {'; '.join(c.broken[:3])}{more}.", KEEP_AND_RERUN


def _in_flight(e: Evidence) -> Judgement | None:
    """attempts in flight, counted live and from the rows, agree within 0.1 s and the worker's lag for 99% of them"""
    # Little's law: attempts counted in flight against those in the rows.
    p = e.in_flight
    if p is None or p.outside <= max(IN_FLIGHT, IN_FLIGHT_SHARE * p.live):
        return None
    counted = f"{p.live:,.1f} attempts in flight on average, their rows show {p.from_rows:,.1f}"
    return DEGRADED, f"Workers counted {counted}: rows are missing or times are wrong.", KEEP_AND_RERUN


def _unique(e: Evidence) -> Judgement | None:
    """every request id appears once"""
    n = e.conservation.duplicates
    problem = f"{plural(n, 'request id')} {'appears' if n == 1 else 'appear'} more than once."
    return (INVALID, problem, "Report only one copy of each part.") if n else None


# Are the values possible, and is there something to measure?


def _ordered(e: Evidence) -> Judgement | None:
    """every attempt's times are in order (INVALID above 1% of attempts)"""
    # A time before that of an earlier station is wrong, and so is every latency computed from it.
    latest = np.full(len(e.frames.attempts), -np.inf)
    back_ns = np.zeros(len(e.frames.attempts))
    for name in STATIONS:
        at = e.frames.attempts[name].to_numpy(np.float64)
        back_ns = np.fmax(back_ns, latest - at)
        latest = np.fmax(latest, at)
    wrong = back_ns > ORDER_SLACK_NS
    n = int(wrong.sum())
    if not n:
        return None
    some, most = (
        f"{count(n)} of {plural(len(wrong), 'attempt')} ({share(n / len(wrong))})",
        back_ns[wrong].max() / 1e6,
    )
    problem = (
        f"{some} have times out of order, by up to {ms(most)} ms: a clock stepped back, or rows are damaged."
    )
    return INVALID if n > DISORDERED * len(wrong) else DEGRADED, problem, SETTLE_CLOCKS


def _measured(e: Evidence) -> Judgement | None:
    """at least one request of the steady stage was sent"""
    if len(e.steady.requests):
        return None
    longer = "Run longer, or shorten the warm-up."
    advice = "First let the planned load be sent." if e.conservation.unsent else longer
    return INVALID, "Nothing to measure: no request of the steady stage was sent.", advice


def _answered(e: Evidence) -> Judgement | None:
    """at least one request of the steady stage succeeded"""
    n = len(e.steady.requests)
    if not n or e.steady.requests["ended"].isin(schema.COMPLETE).any():
        return None
    problem = f"Nothing to compare: none of {plural(n, 'request')} succeeded."
    return INVALID, problem, "See the errors of its report."


def violations(frames: Frames) -> tuple[list[tuple[str, int]], int]:
    """Protocol violations of answers, each with its number, the most frequent first; and the number of attempts."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    by = attempts["error_type"].value_counts()
    # Counts that cannot be are in no figure, and the report names them: they change no number.
    kinds = VIOLATIONS.keys() - {MALFORMED_USAGE}
    found = [(VIOLATIONS[kind], int(n)) for kind, n in by.items() if kind in kinds]
    late = attempts.loc[attempts["ended"] == schema.TIMEOUT, ["request_id", "chunks"]]
    if len(late):
        requested = late["request_id"].map(frames.requests.groupby("request_id")["asked_output_tokens"].max())
        endless = int((late["chunks"] > FAR_BEYOND * requested + AND).sum())
        found += [(ENDLESS, endless)] if endless else []
    return sorted(found, key=lambda one: -one[1]), len(attempts)


def _protocol(e: Evidence) -> Judgement | None:
    """no answer breaks the target's protocol"""
    # Such an answer counts as failed; what sends one may be a proxy or another service.
    found, attempts = violations(e.frames)
    if not found:
        return None
    kinds = [f"{kind} ({count(n)})" for kind, n in found[:KINDS_LISTED]]
    rest = sum(n for _, n in found[KINDS_LISTED:])
    kinds += [f"{plural(len(found) - KINDS_LISTED, 'other kind')} ({count(rest)})"] if rest else []
    some = f"{count(sum(n for _, n in found))} of {plural(attempts, 'attempt')}"
    problem = f"The target broke its protocol in {some}: {', '.join(kinds)}."
    advice = "See the errors below: is it the target that answers, or a proxy or another service? These answers count as failed."
    return DEGRADED, problem, advice


def _settled(e: Evidence) -> Judgement | None:
    """under constant load for at least 10 s and 200 requests, no warm-up reaches into the steady stage"""
    found = e.stability.of(WARMUP)
    if not found:
        return None
    return DEGRADED, found.text, f"Set stages.warmup_s to {math.ceil(found.to_s)} or more."


# Did the client distort a number?


def _dropped(e: Evidence) -> Judgement | None:
    """no request was dropped at the in-flight cap (INVALID above 1% of scheduled)"""
    drops, scheduled = e.conservation.client_drop, e.conservation.scheduled or 0
    if not drops:
        return None
    part = share(drops / scheduled if scheduled else 1.0)
    problem = f"{plural(drops, 'request')} ({part} of scheduled) {'was' if drops == 1 else 'were'} dropped at the in-flight cap and never sent."
    verdict = INVALID if not scheduled or drops / scheduled > DROPS else DEGRADED
    more = more_workers(e.frames, e.steady)
    advice = f"{more}, raise limits.in_flight_per_worker, or lower the rate."
    if not more:
        advice = "lower the rate if the target cannot keep up, else raise limits.in_flight_per_worker."
    return verdict, problem, sentence(advice)


def _unsent(e: Evidence) -> Judgement | None:
    """every request that was due was sent or dropped at the in-flight cap (INVALID above 1% of scheduled not sent)"""
    c, run = e.conservation, e.frames.run
    if not c.unsent:
        return None
    part = c.unsent / (c.scheduled or c.unsent)
    leaves_out = table(run["scenario"], "limits").get("lost_share") == conservation.LEFT_OUT
    causes = conservation.causes(run, c, leaves_out=leaves_out)
    problem = f"{plural(c.unsent, 'request')} ({share(part)} of scheduled) were never sent: the load was lower than planned. "
    problem += " ".join(f"{sentence(one.text)}." for one in causes[: conservation.MOST])
    advice = causes[0].advice
    if not advice:
        more = more_workers(e.frames, e.steady)
        advice = sentence(f"{more}, or lower the rate." if more else "lower the rate.")
        problem += _most_sent(e)
    return INVALID if part > DROPS else DEGRADED, problem, advice


def _most_sent(e: Evidence) -> str:
    """What a worker that was too slow could do."""
    sent = e.frames.requests.groupby("worker")["dispatched_at_ns"].agg(["count", "min", "max"])
    rate = float((sent["count"] / (sent["max"] - sent["min"]).clip(lower=1) * 1e9).max())
    return f" One worker sent {count(round(rate))} requests/s." if rate >= 1 else ""


def _distorted(e: Evidence) -> Judgement | None:
    """no figure of an objective or of the headline is off by more than 5%, a quarter of its interval's half width, or 0.5
    ms because of the client (INVALID above 10% or 1 ms)
    """
    # The worst figure that an objective or the headline uses, and who was late when.
    bad = [one for one in e.errors if one.is_used and one.verdict != VALID]
    bad.sort(key=lambda one: (WORST_FIRST.index(one.verdict), -one.error_ms / one.limit_ms))
    if not bad:
        return None
    worst = bad[0]
    late = f", {ms(worst.late_shift)} ms of it by requests sent late" if worst.late_shift else ""
    more = [label for label in dict.fromkeys(one.label for one in bad) if label != worst.label]
    others = f" Also above its limit: {listed(more[:FIGURES_LISTED])}." if more else ""
    by = f"by {ms(worst.error_ms)} ms (limit {ms(worst.limit_ms)} ms){late}"
    moved = f"The client may have moved {worst.label} ({ms(worst.highs_value)} ms) {by}."
    problem = f"{moved}{others}{_who(e, worst.limit_ms)}"
    opened = _opened(e, worst.limit_ms) if worst.late_shift else ""
    if workers := more_workers(e.frames, e.steady):
        advice = f"{sentence(workers)} or a lower rate."
    elif explanations(e.frames, e.steady):
        advice = "See the causes below."
    else:
        advice = "Use a lower rate, or a machine with nothing else to do."
    return worst.verdict, problem, advice + opened


def _who(e: Evidence, over_ms: float) -> str:
    """Workers and seconds with the largest lags above the limit, the largest first."""
    spells = bad_seconds(e.frames, e.steady, over_ms * 1e6).spells
    shown = "; ".join(
        f"worker {s.worker} from {clock(s.from_s)} to {clock(s.to_s)}, {s.cause} by up to {ms(s.worst_ms)} ms"
        for s in spells[:STALLS_LISTED]
    )
    rest = len(spells) - STALLS_LISTED
    more = f"; and {plural(rest, 'more stall')}" if rest > 0 else ""
    return f" Largest: {shown}{more}." if spells else ""


def _opened(e: Evidence, over_ms: float) -> str:
    """How many of the late requests opened a connection."""
    late = e.of_target.requests.loc[BY_NAME["client_delay"].ns(e.of_target) > over_ms * 1e6, "request_id"]
    first = e.of_target.attempts[(e.of_target.attempts["leg"] == 0) & (e.of_target.attempts["attempt"] == 0)]
    new = int(first.loc[first["request_id"].isin(late), "connection_is_new"].sum())
    opened = f"{count(new)} of {plural(len(late), 'late request')} opened a connection"
    return f" {opened}: {connections(e.frames)}." if new else ""


def _synchronized(e: Evidence) -> Judgement | None:
    """every worker's clock offset is known within 1 ms"""
    unknown = [str(number) for number in clocks(e.frames).unknown]
    errors_ms = {w["worker"]: (w["error_ns"] or 0) / 1e6 for w in e.frames.run["workers"]}
    wide = [f"worker {of} ± {ms(error_ms)} ms" for of, error_ms in errors_ms.items() if error_ms > CLOCK_MS]
    offsets = [f"unknown for worker {', '.join(unknown)}"] if unknown else []
    offsets += [f"known only within {', '.join(wide)}"] if wide else []
    if not offsets:
        return None
    problem = f"Clock offsets are {'; '.join(offsets)}. Latencies stay exact; times of different workers do not compare closer than that."
    return DEGRADED, problem, "Use a shorter or less busy network path between workers and master."


def _steady_clock(e: Evidence) -> Judgement | None:
    """no wall clock stepped by more than 1 ms within a second"""
    steps_ms = {one.worker: one.clock_step_max_ms for one in e.workers if one.clock_step_max_ms > CLOCK_MS}
    stepped = ", ".join(f"worker {of} by {ms(step_ms)} ms" for of, step_ms in steps_ms.items())
    problem = f"The wall clock stepped within a second: {stepped}. Kernel timestamps use the wall clock."
    return (DEGRADED, problem, SETTLE_CLOCKS) if stepped else None


# Did the simulated endpoint?


def _endpoint(e: Evidence) -> Judgement | None:
    """the simulated endpoint's own lateness moved no figure by more than 5%, a quarter of its interval's half width, or 2
    ms
    """
    # The figure that it moved farthest beyond its limit.
    found = (
        (one, one.found, allowed(one.found, ENDPOINT_MS)) for one in endpoint_delays(e.frames, e.of_target)
    )
    beyond = [(((q.value or 0.0) - one.punctual_ms) / limit, limit, one) for one, q, limit in found]
    most, limit, worst = max(beyond, key=lambda one: one[0], default=(0.0, 0.0, None))
    if worst is None or most <= 1.0:
        return None
    late = f"the simulated endpoint sent chunks up to {ms(worst.late_max_ms)} ms after they were due"
    moved = f"{worst.label} ({ms(worst.found.value)} ms) by {ms(most * limit)} ms (limit {ms(limit)} ms)"
    problem = f"Endpoint saturated: {late}, which moved {moved}."
    advice = "Lower the load, start fewer users at once, or give the simulated endpoint its own core: these times are its own."
    return DEGRADED, problem, advice


CHECKS = (
    Check("finished", _finished),
    Check("parts", _readable),
    Check("lost", _lost),
    Check("written", _written),
    Check("conservation", _conserved),
    Check("in_flight", _in_flight, of_client=True),
    Check("unique", _unique),
    Check("order", _ordered),
    Check("protocol", _protocol),
    Check("settled", _settled),
    Check("cold_cache", cold_cache.judge),
    Check("drops", _dropped),
    Check("unsent", _unsent),
    Check("measured", _measured),  # behind why it was not sent
    Check("client_error", _distorted, of_client=True),
    Check("clock_offset", _synchronized, of_client=True),
    Check("clock_step", _steady_clock, of_client=True),
    Check("endpoint", _endpoint),
)
COMPARABLE = (*CHECKS, Check("answered", _answered))
"""Of a run whose latencies are compared with those of others; of a single run, no answer is a result."""
