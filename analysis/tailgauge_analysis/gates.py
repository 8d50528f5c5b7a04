"""The gates: one row of GATES a question about a run.

Rule: a gate looks at the evidence and says nothing (passed), or the verdict it forces, why in plain words, and what to
do about it. Only what can move a reported number is a gate; what merely was hard for the client is an explanation
(client.py).
"""

from __future__ import annotations

import math

from tailgauge import records
from tailgauge_analysis.client import LAG_NS
from tailgauge_analysis.latency import SUCCESSES, sample
from tailgauge_analysis.metrics import BY_NAME
from tailgauge_analysis.order import disorder
from tailgauge_analysis.problems import DAMAGED, OWNER
from tailgauge_analysis.quantiles import quantiles
from tailgauge_analysis.runfile import table
from tailgauge_analysis.verdict import DEGRADED, INVALID, Evidence, Gate, Said
from tailgauge_analysis.warmup import settling
from tailgauge_analysis.wording import count, ms, plain, plural, share

DROPS = 0.01  # of the scheduled requests
DISORDERED = 0.01  # of the attempts
INTERVALS = 0.01  # of the first chunks
LAGGING = 0.01  # of the seconds
CLIENT_DELAY_MS = 5.0
CLIENT_DELAY_OF_TTFT = 0.01
CLOCK_MS = 1.0
IN_FLIGHT, IN_FLIGHT_OF = 0.1, 0.01
EVEN = ("constant", "poisson", "gamma", "weibull", "closed")  # processes whose rate does not change
SETTLING_S, SETTLING_REQUESTS = 10.0, 200


def _conserved(e: Evidence) -> Said | None:
    c = e.conservation
    if c.scheduled is None:
        return (
            INVALID,
            "Nothing says how many requests were scheduled, so nothing shows that all are here.",
            "Give the folder with run.json or workers/.",
        )
    if not c.broken:
        return None
    more = f" (and {len(c.broken) - 3} more)" if len(c.broken) > 3 else ""
    return (
        INVALID,
        f"The counts do not add up: {'; '.join(c.broken[:3])}{more}.",
        "Keep the run folder as it is and run again.",
    )


def _lost(e: Evidence) -> Said | None:
    c = e.conservation
    workers = [w for w in e.frames.run["workers"] if w["state"] in {"lost", "failed"}]
    gone = [f"{w['worker']} ({plain(w['why'], 200)})" if w["why"] else str(w["worker"]) for w in workers]
    said = []
    if gone:
        said.append(f"{'worker' if len(gone) == 1 else 'workers'} {', '.join(gone)} did not finish")
    if c.lost:
        said.append(f"{plural(c.lost, 'scheduled request')} left no row")
    if not said:
        return None
    return (
        INVALID,
        f"Missing: {'; '.join(said)}.",
        "See the worker's log (memory, machine, network), then run again.",
    )


def _readable(e: Evidence) -> Said | None:
    damaged = [p.text for p in e.frames.problems if p.kind == DAMAGED]
    if not damaged:
        return None
    more = f" (and {len(damaged) - 2} more)" if len(damaged) > 2 else ""
    return (
        INVALID,
        f"{'; '.join(plain(text, 300).rstrip('.') for text in damaged[:2])}{more}.",
        "Check the disk; copy the part again if it was copied.",
    )


def _unique(e: Evidence) -> Said | None:
    n = e.conservation.duplicates
    return (
        (INVALID, f"{plural(n, 'request id')} appear more than once.", "Report only one copy of each part.")
        if n
        else None
    )


def _ordered(e: Evidence) -> Said | None:
    found = disorder(e.frames)
    if not found.attempts:
        return None
    text = (
        f"{plural(found.attempts, 'attempt')} ({share(found.attempts / found.of)}) end before they begin, or were answered "
        f"before they were sent, by up to {ms(found.worst_ms)} ms: a clock went back, or rows are damaged."
    )
    verdict = INVALID if found.attempts > DISORDERED * found.of else DEGRADED
    return (
        verdict,
        text,
        "Let the time service settle (chrony, NTP), keep the run folder as it is and run again.",
    )


def _measured(e: Evidence) -> Said | None:
    if (e.steady.requests["ended"] == records.OK).any():
        return None
    n = len(e.steady.requests)
    if not n:
        return (
            INVALID,
            "Nothing to measure: no request was scheduled in the steady stage.",
            "Run longer, or shorten the warm-up.",
        )
    return INVALID, f"Nothing to measure: none of {plural(n, 'request')} succeeded.", "See the errors below."


def _finished(e: Evidence) -> Said | None:
    state = e.frames.run["state"]
    owner = next((p.text for p in e.frames.problems if p.kind == OWNER), None)
    if state == "unusable":
        said = [plain(str(p["message"]), 300) for p in e.frames.run["preflight"] if p.get("message")]
        text = f"The target could not be used: {said[-1].rstrip('.') if said else 'the preflight request failed'}."
        return INVALID, text, "Check address, protocol, key and model of the target."
    if state == "failed":
        return INVALID, "The run failed before its end.", "See the notes and the log of the run."
    if owner is not None:
        return DEGRADED, f"{owner}.", "Give every folder of the run, if its workers ran on several machines."
    if state == "running":
        return (
            DEGRADED,
            "The run had not ended when this was read, or its owner died.",
            "Report it again when it has ended.",
        )
    if state in {"interrupted", "guarded"}:
        why = "The run was interrupted" if state == "interrupted" else "A guard ended the run"
        text = f"{why}; {plural(e.conservation.not_reached, 'request')} were not reached."
        return DEGRADED, text, "What is here is sound; it is less than was planned."
    return None


def _dropped(e: Evidence) -> Said | None:
    drops, scheduled = e.conservation.client_drop, e.conservation.scheduled or 0
    if not drops:
        return None
    text = f"{plural(drops, 'request')} ({share(drops / scheduled if scheduled else 1.0)} of the scheduled) found the in-flight cap reached and were never sent."
    verdict = INVALID if not scheduled or drops / scheduled > DROPS else DEGRADED
    return verdict, text, "Raise limits.in_flight_per_worker, use more workers, or ask for a lower rate."


def _prompt(e: Evidence) -> Said | None:
    delays, _ = sample(BY_NAME["client_delay"], e.of_target, SUCCESSES)
    ttft, _ = sample(BY_NAME["ttft_sched"], e.of_target, SUCCESSES)
    if not len(delays):
        return None
    p99 = quantiles(delays, (0.99,))[0].value or 0.0
    p50 = (quantiles(ttft, (0.5,))[0].value or 0.0) if len(ttft) else 0.0
    bound = max(CLIENT_DELAY_MS, CLIENT_DELAY_OF_TTFT * p50)
    if p99 <= bound:
        return None
    late = e.of_target.requests.loc[BY_NAME["client_delay"].ns(e.of_target) > bound * 1e6, "request_id"]
    attempts = e.of_target.attempts
    first = attempts[(attempts["leg"] == 0) & (attempts["attempt"] == 0)]
    new = int(first.loc[first["request_id"].isin(late), "connection_is_new"].sum())
    text = f"The client delay is {ms(p99)} ms at p99, above {ms(bound)} ms: since-scheduled times contain it. Of the {plural(len(late), 'late request')}, {count(new)} opened a connection."
    return (
        DEGRADED,
        text,
        "Use more workers or a lower rate; raise target.connections if connections are opened often.",
    )


def _exact(e: Evidence) -> Said | None:
    if e.stamps.first_interval_share <= INTERVALS:
        return None
    text = f"{share(e.stamps.first_interval_share)} of the first chunks shared a socket read with later ones: their time is an interval, counted at its end."
    return DEGRADED, text, "Use more workers, or look for a proxy that buffers the stream."


def _punctual(e: Evidence) -> Said | None:
    by_user = e.stamps.user_attempts or any(w["stamps"] == "user" for w in e.frames.run["workers"])
    seconds, lagging = sum(w.seconds for w in e.workers), sum(w.seconds_lagging for w in e.workers)
    if not by_user or (seconds and lagging <= LAGGING * seconds):
        return None
    said = (
        f"the event loop was more than {LAG_NS // 10**6} ms late in {lagging} of {seconds} seconds"
        if seconds
        else "no health row shows the loop lag"
    )
    return (
        DEGRADED,
        f"Reads were stamped by the process itself, not by the kernel, and {said}.",
        "Run the workers on Linux, or use more of them.",
    )


def _synchronous(e: Evidence) -> Said | None:
    workers = e.frames.run["workers"]
    unknown = [str(w["worker"]) for w in workers if w["offset_ns"] is None]
    wide = [
        f"worker {w['worker']} {ms((w['error_ns'] or 0) / 1e6)} ms"
        for w in workers
        if (w["error_ns"] or 0) > CLOCK_MS * 1e6
    ]
    said = [f"unknown for worker {', '.join(unknown)}"] if unknown else []
    said += [f"known only within: {', '.join(wide)}"] if wide else []
    if not said:
        return None
    return (
        DEGRADED,
        f"The clock offset is {'; '.join(said)}. Latencies stay exact, times across workers do not.",
        "Use a quieter or shorter network path between workers and owner.",
    )


def _steady_clock(e: Evidence) -> Said | None:
    stepped = [
        f"worker {w.worker} by {ms(w.clock_step_max_ms)} ms"
        for w in e.workers
        if w.clock_step_max_ms > CLOCK_MS
    ]
    if not stepped:
        return None
    return (
        DEGRADED,
        f"The wall clock stepped within a second: {', '.join(stepped)}. Kernel stamps are wall-clock times.",
        "Let the time service settle (chrony, NTP) before a run.",
    )


def _present(e: Evidence) -> Said | None:
    p = e.presence
    if p is None or p.outside <= max(IN_FLIGHT, IN_FLIGHT_OF * p.live):
        return None
    return (
        DEGRADED,
        f"The workers counted {p.live:,.1f} attempts in flight in the mean, their rows show {p.from_rows:,.1f}: rows are missing or times are wrong.",
        "Keep the run folder as it is and run again.",
    )


def _settled(e: Evidence) -> Said | None:
    """Only where the load was meant to be the same all the time, and the stage is long enough to tell."""
    arrival = table(e.frames.run["scenario"], "arrival")
    even = arrival.get("process") in EVEN and table(arrival, "shape").get("kind", "flat") == "flat"
    waits, _ = sample(BY_NAME["ttft_sched"], e.of_target, SUCCESSES)
    if not even or len(waits) < SETTLING_REQUESTS or e.steady.seconds < SETTLING_S:
        return None
    found = settling(waits)
    if found is None or not found.material:
        return None
    if not found.settles:
        return (
            DEGRADED,
            "The TTFT had not settled by the middle of the steady stage: there is no steady state to report.",
            "Look for a rate above what the target can serve, or run much longer.",
        )
    answered = e.of_target.requests.loc[e.of_target.requests["first_at_ns"].notna(), "scheduled_at_ns"]
    until_s = float(answered.iloc[found.cut]) / 1e9
    return (
        DEGRADED,
        f"The first {until_s - e.steady.from_s:,.3g} s of the steady stage look like warm-up: they move the mean TTFT by {share(abs(found.bias))}.",
        f"Set stages.warmup_s to {math.ceil(until_s)} or more.",
    )


GATES = (
    Gate("finished", "the run ended as planned and its owner recorded it", _finished),
    Gate("parts", "every Parquet part can be read", _readable),
    Gate("lost", "no worker and no scheduled request is lost", _lost),
    Gate(
        "conservation",
        "scheduled, dispatched and ended requests add up, in the rows and in run.json",
        _conserved,
    ),
    Gate(
        "in_flight",
        "attempts in flight, counted live and again from the rows, agree within 0.1 s, but for 1% of them",
        _present,
        True,
    ),
    Gate("unique", "every request id appears once", _unique),
    Gate("order", "no attempt's times contradict each other (INVALID above 1% of the attempts)", _ordered),
    Gate("measured", "at least one request of the steady stage succeeded", _measured),
    Gate(
        "settled",
        "under an even load of 10 s and 200 requests or more, no warm-up moves the mean TTFT by more than 5%",
        _settled,
    ),
    Gate(
        "drops", "no request was dropped at the in-flight cap (INVALID above 1% of the scheduled)", _dropped
    ),
    Gate("client_delay", "client delay at p99 is at most 5 ms or 1% of the TTFT median", _prompt, True),
    Gate("exact", "at most 1% of first chunks are interval-stamped", _exact, True),
    Gate(
        "loop_lag",
        "under user-clock stamps, the event loop is at most 5 ms late in 99% of seconds",
        _punctual,
        True,
    ),
    Gate("clock_offset", "every worker's clock offset is known within 1 ms", _synchronous, True),
    Gate("clock_step", "no wall clock stepped by more than 1 ms within a second", _steady_clock, True),
)
