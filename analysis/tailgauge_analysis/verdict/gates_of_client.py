"""The gates that ask whether the client itself moved a number.

Rule: each looks at what a lag, a wait, a stamp or a clock did to the figures, by the bounds of `trust`; what only was
hard for the client is an explanation. The advice says how many workers where a core was the trouble.
"""

from __future__ import annotations

import numpy as np

from tailgauge import thresholds
from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.metrics.latency import SUCCESSES, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.quantiles import quantiles
from tailgauge_analysis.text.formatting import clock, count, ms, plural, sentence, share
from tailgauge_analysis.verdict.clocks import clocks
from tailgauge_analysis.verdict.explanations import more_workers
from tailgauge_analysis.verdict.verdict import Evidence, Said

CLOCK_MS = thresholds.CLOCK_MS
IN_FLIGHT, IN_FLIGHT_OF = 0.1, 0.01
SPELLS = 3  # told one by one
MOST = 0.5  # of the first chunks came in bunches though most reads were prompt: it was not the client


def delayed(e: Evidence) -> Said | None:
    """Requests left late."""
    delays, _ = sample(BY_NAME["client_delay"], e.of_target, SUCCESSES)
    if not len(delays):
        return None
    p99, bound = quantiles(delays, (0.99,))[0].value or 0.0, _bound(e)
    if p99 <= bound:
        return None
    late = e.of_target.requests.loc[BY_NAME["client_delay"].ns(e.of_target) > bound * 1e6, "request_id"]
    attempts = e.of_target.attempts
    first = attempts[(attempts["leg"] == 0) & (attempts["attempt"] == 0)]
    new = int(first.loc[first["request_id"].isin(late), "connection_is_new"].sum())
    text = f"The client delay is {ms(p99)} ms at p99, above {ms(bound)} ms: since-scheduled times contain it. Of the {plural(len(late), 'late request')}, {count(new)} opened a connection."
    more = sentence(more_workers(e.frames, e.steady))
    return (
        DEGRADED,
        text,
        f"{more} or a lower rate; raise target.connections if connections are opened often.",
    )


def waited(e: Evidence) -> Said | None:
    """Calls waited for a connection."""
    attempts = e.of_target.attempts
    opening = attempts[["dns_ns", "connect_ns", "tls_ns"]].sum(
        axis=1, min_count=1
    )  # all that older rows tell
    waits = (attempts["pool_wait_ns"].fillna(opening) / 1e6).to_numpy(np.float64)[
        attempts["sent_at_ns"].notna().to_numpy(np.bool_)
    ]
    waits = np.nan_to_num(waits)
    if not len(waits):
        return None
    p99, bound = quantiles(waits, (0.99,))[0].value or 0.0, _bound(e)
    if p99 <= bound:
        return None
    return (
        DEGRADED,
        f"Calls waited {ms(p99)} ms for a connection at p99, above {ms(bound)} ms: {plural(int((waits > bound).sum()), 'call')} of {count(len(waits))}. Times since scheduled contain it, and of retries and hedges all times do.",
        "Open connections before the run with target.preopened, and keep enough of them with target.connections.",
    )


def _bound(e: Evidence) -> float:
    """What the client may add at p99, in ms."""
    ttft, _ = sample(BY_NAME["ttft_sched"], e.of_target, SUCCESSES)
    return thresholds.delay_bound_ms((quantiles(ttft, (0.5,))[0].value or 0.0) if len(ttft) else 0.0)


def exact(e: Evidence) -> Said | None:
    """First chunks are known as intervals only."""
    if e.stamps.first_interval_share <= thresholds.INTERVALS:
        return None
    text = f"{share(e.stamps.first_interval_share)} of the first chunks shared a socket read with later ones: their time is an interval, counted at its end."
    told = [w for w in e.workers if w.first_interval_share is not None]
    worst = max(told, key=lambda w: w.first_interval_share or 0.0, default=None)
    if worst is not None and len(told) > 1:
        text += f" Most on worker {worst.worker}: {share(worst.first_interval_share)}."
    late_ms = thresholds.USER_LAG_NS / 1e6
    late = bool(e.bad.spells) or any(w.loop_lag_max_ms > late_ms for w in e.workers)
    mostly_prompt = (e.stamps.handover_ms or (0.0,))[0] <= late_ms
    if late and not (e.stamps.first_interval_share > MOST and mostly_prompt):
        more = sentence(more_workers(e.frames, e.steady))
        return DEGRADED, text, f"{more}, and see below what the client was doing meanwhile."
    prompt = "prompt at most times" if late else "prompt"
    return (
        DEGRADED,
        text,
        f"The workers were {prompt}: look for a proxy that buffers the stream, or a target that sends in bunches.",
    )


def blurred(e: Evidence) -> Said | None:
    """Workers stood still in too many seconds."""
    word = thresholds.by_bad_seconds(e.bad.bad, e.bad.seconds)
    if word == thresholds.VALID:
        return None
    longest = sorted(e.bad.spells, key=lambda spell: spell.from_s - spell.to_s)[:SPELLS]
    told = "; ".join(
        f"worker {s.worker} from {clock(s.from_s)} to {clock(s.to_s)}: {s.said} by up to {ms(s.worst_ms)} ms"
        for s in longest
    )
    more = f"; and {plural(len(e.bad.spells) - SPELLS, 'more spell')}" if len(e.bad.spells) > SPELLS else ""
    text = f"The client stood still for more than {thresholds.STOOD_NS // 10**6} ms in {share(e.bad.share)} of its seconds ({told}{more})."
    most = sentence(more_workers(e.frames, e.steady))
    return word, text, f"{most} if their cores were full, else see below what held them up."


def punctual(e: Evidence) -> Said | None:
    """The process stamped its reads itself, and was late."""
    by_user = e.stamps.user_attempts or any(w["stamps"] == "user" for w in e.frames.run["workers"])
    seconds, beyond = sum(w.seconds for w in e.workers), sum(w.seconds_beyond_user for w in e.workers)
    if not by_user or (seconds and beyond <= thresholds.USER_SECONDS * seconds):
        return None
    said = (
        f"the event loop was more than {thresholds.USER_LAG_NS // 10**6} ms late, or the core at more than {thresholds.USER_CPU:.0%}, in {beyond} of {seconds} seconds"
        if seconds
        else "no health row shows the loop lag"
    )
    more = sentence(more_workers(e.frames, e.steady))
    return (
        DEGRADED,
        f"Reads were stamped by the process itself, not by the kernel, and {said}.",
        f"{more}, or run the workers on Linux by its kernel's clock.",
    )


def synchronous(e: Evidence) -> Said | None:
    """A worker's clock offset is not known well enough."""
    workers = e.frames.run["workers"]
    unknown = [str(number) for number in clocks(e.frames).unknown]
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
        f"The clock offset is {'; '.join(said)}. Latencies stay exact; what sets times of several workers side by side is known no closer.",
        "Use a quieter or shorter network path between workers and master.",
    )


def steady_clock(e: Evidence) -> Said | None:
    """A wall clock stepped."""
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


def present(e: Evidence) -> Said | None:
    """Little's law: what was counted in flight is not what the rows say."""
    p = e.presence
    if p is None or p.outside <= max(IN_FLIGHT, IN_FLIGHT_OF * p.live):
        return None
    return (
        DEGRADED,
        f"The workers counted {p.live:,.1f} attempts in flight in the mean, their rows show {p.from_rows:,.1f}: rows are missing or times are wrong.",
        "Keep the run folder as it is and run again.",
    )
