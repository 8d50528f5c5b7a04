"""The gates: one row of GATES a question about a run.

Rule: a gate looks at the evidence and says nothing (passed), or the verdict it forces, why in plain words, and what to
do about it. Only what can move a reported number is a gate; what merely was hard for the client is an explanation
(explanations.py).
"""

from __future__ import annotations

import math

from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED, DROPS, INVALID
from tailgauge_analysis.load.problems import DAMAGED
from tailgauge_analysis.metrics.latency import SUCCESSES, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.warmup import settling
from tailgauge_analysis.text.formatting import ms, plain, plural, sentence, share
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.verdict import certified, gates_of_loss, protocol
from tailgauge_analysis.verdict.event_order import disorder
from tailgauge_analysis.verdict.explanations import more_workers
from tailgauge_analysis.verdict.gates_of_client import (
    blurred,
    delayed,
    exact,
    present,
    punctual,
    steady_clock,
    synchronous,
    waited,
)
from tailgauge_analysis.verdict.verdict import Evidence, Gate, Said

DISORDERED = 0.01  # of the attempts
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
    if (e.steady.requests["ended"] == schema.OK).any():
        return None
    n = len(e.steady.requests)
    if not n:
        return (
            INVALID,
            "Nothing to measure: no request was scheduled in the steady stage.",
            "Run longer, or shorten the warm-up.",
        )
    return INVALID, f"Nothing to measure: none of {plural(n, 'request')} succeeded.", "See the errors below."


def _dropped(e: Evidence) -> Said | None:
    drops, scheduled = e.conservation.client_drop, e.conservation.scheduled or 0
    if not drops:
        return None
    text = f"{plural(drops, 'request')} ({share(drops / scheduled if scheduled else 1.0)} of the scheduled) found the in-flight cap reached and were never sent."
    verdict = INVALID if not scheduled or drops / scheduled > DROPS else DEGRADED
    more = sentence(more_workers(e.frames, e.steady))
    return verdict, text, f"{more}, raise limits.in_flight_per_worker, or ask for a lower rate."


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
    Gate("finished", "the run ended as planned and its master recorded it", gates_of_loss.finished),
    Gate("parts", "every Parquet part can be read", _readable),
    Gate(
        "lost", "no worker and no scheduled request is lost, nor left out because of it", gates_of_loss.lost
    ),
    Gate("written", "every row that was recorded could be written", gates_of_loss.written),
    Gate(
        "conservation",
        "scheduled, dispatched and ended requests add up, in the rows and in run.json",
        _conserved,
    ),
    Gate(
        "in_flight",
        "attempts in flight, counted live and again from the rows, agree within 0.1 s and the worker's lag, but for 1% of them",
        present,
        True,
    ),
    Gate("unique", "every request id appears once", _unique),
    Gate("order", "no attempt's times contradict each other (INVALID above 1% of the attempts)", _ordered),
    Gate("measured", "at least one request of the steady stage succeeded", _measured),
    Gate("protocol", "no answer of the whole run breaks the target's protocol", protocol.kept),
    Gate(
        "settled",
        "under an even load of 10 s and 200 requests or more, no warm-up moves the mean TTFT by more than 5%",
        _settled,
    ),
    Gate(
        "drops", "no request was dropped at the in-flight cap (INVALID above 1% of the scheduled)", _dropped
    ),
    Gate("client_delay", "client delay at p99 is at most 5 ms or 1% of the TTFT median", delayed, True),
    Gate(
        "pool_waits",
        "calls wait for a connection at most 5 ms, or 1% of the TTFT median, at p99",
        waited,
        True,
    ),
    Gate("exact", "at most 1% of first chunks are interval-stamped", exact, True),
    Gate(
        "bad_seconds",
        "workers stand still for more than 50 ms in at most 10% of the seconds, or in one alone (INVALID above 50%)",
        blurred,
        True,
    ),
    Gate(
        "loop_lag",
        "under user-clock stamps, the event loop is at most 5 ms late and the core at most at 70% in 99% of seconds",
        punctual,
        True,
    ),
    Gate("clock_offset", "every worker's clock offset is known within 1 ms", synchronous, True),
    Gate("clock_step", "no wall clock stepped by more than 1 ms within a second", steady_clock, True),
    Gate(
        "certificate",
        "no worker received chunks at a rate at which the client failed when it was calibrated",
        certified.judge,
        True,
    ),
)
