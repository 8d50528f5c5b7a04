"""The gates: one row of GATES a question about a run.

Rule: a gate looks at the evidence and says nothing (passed), or the verdict it forces, why in plain words, and what to
do about it. Only what can move a reported number is a gate; what merely was hard for the client is an explanation
(explanations.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailgauge import thresholds
from tailgauge.protocol_violations import VIOLATIONS
from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED, DROPS, INVALID
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.load.problems import DAMAGED, MASTER
from tailgauge_analysis.metrics.latency import SUCCESSES, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.quantiles import quantiles
from tailgauge_analysis.stats.warmup import settling
from tailgauge_analysis.text.formatting import clock, count, listed, ms, plain, plural, sentence, share
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.verdict import certificate, losses
from tailgauge_analysis.verdict.clocks import clocks
from tailgauge_analysis.verdict.explanations import more_workers
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


CLOCK_MS = thresholds.CLOCK_MS
IN_FLIGHT, IN_FLIGHT_SHARE = 0.1, 0.01
SPELLS = 3  # told one by one
BUNCHED = 0.5  # of the first chunks came in bunches though most reads were prompt: it was not the client


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
    mostly_prompt = (e.stamps.receive_lag_ms or (0.0,))[0] <= late_ms
    if late and not (e.stamps.first_interval_share > BUNCHED and mostly_prompt):
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
    text = f"The client stood still for more than {thresholds.STALL_NS // 10**6} ms in {share(e.bad.share)} of its seconds ({told}{more})."
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
    if p is None or p.outside <= max(IN_FLIGHT, IN_FLIGHT_SHARE * p.live):
        return None
    return (
        DEGRADED,
        f"The workers counted {p.live:,.1f} attempts in flight in the mean, their rows show {p.from_rows:,.1f}: rows are missing or times are wrong.",
        "Keep the run folder as it is and run again.",
    )


LEFT_OUT = "leave_out"  # of limits.lost_share: nobody gets what a lost worker would have got


def lost(e: Evidence) -> Said | None:
    """Workers or requests are missing."""
    c, run = e.conservation, e.frames.run
    said = losses.sentences(c.workers, closed=run["closed"])
    more = c.lost - sum(one.left for one in c.workers)
    if more > 0:
        other = "other " if len(said) and more < c.lost else ""
        said.append(f"{plural(more, f'{other}scheduled request')}{losses.due(c.unseen)} left no row")
    elif c.unseen:
        said.append(f"what left no row was{losses.due(c.unseen)}")
    if said:
        text = ". ".join([said[0], *map(sentence, said[1:])])
        return INVALID, f"Missing: {text}.", losses.advice(c.workers, closed=run["closed"])
    return _left_out(e) or _unvouched(e)


def _left_out(e: Evidence) -> Said | None:
    """Nothing is missing, but less was sent than planned."""
    c, run = e.conservation, e.frames.run
    quiet = [one for one in c.workers if one.silent or one.state == "lost"]
    held = sum(one.not_sent for one in c.workers)
    leaves_out = table(run["scenario"], "limits").get("lost_share") == LEFT_OUT and run["state"] == "complete"
    away = max(0, c.not_reached - held) if leaves_out and quiet else 0
    if not held + away:
        return None
    names = listed(str(one.worker) for one in quiet if away or one.not_sent)
    who = f"{'workers' if ' ' in names else 'worker'} {names}"
    parts = [f"{plural(held, 'request')} that it held were not sent"] if held else []
    parts += (
        [f"{plural(away, 'request')} of its share were left out, as limits.lost_share asks"] if away else []
    )
    text = f"While {who} could not be reached, {' and '.join(parts)}: the load was lower than planned."
    return DEGRADED, text, "What is here is sound. Run again for the whole load."


def _unvouched(e: Evidence) -> Said | None:
    """Every request has its row, and nobody says that the rest is complete."""
    workers = [one for one in e.conservation.workers if one.is_accounted and not one.has_ended]
    if not workers:
        return None
    names = listed(str(one.worker) for one in workers)
    who = f"{'Worker' if len(workers) == 1 else 'Workers'} {names} {'was' if len(workers) == 1 else 'were'}"
    text = f"{who} lost and left no last word. Each request has its row; that no call of them is missing nobody can say."
    return DEGRADED, text, losses.SEE_LOG


def written(e: Evidence) -> Said | None:
    """Rows were recorded that could not be written."""
    if not e.conservation.unwritten:
        return None
    tables = listed(f"{count(n)} of {plain(name, 40)}" for name, n in e.conservation.unwritten.items())
    workers = [one for one in e.conservation.workers if one.unwritten]
    whose = listed(str(one.worker) for one in workers)
    why = next((f" ({plain(one.why, 200)})" for one in workers if one.why), "")
    return (
        INVALID,
        f"Rows that {'worker' if len(workers) == 1 else 'workers'} {whose} recorded could not be written: {tables}{why}.",
        "Make room on the disk of these workers, or choose another folder with --out, then run again.",
    )


def finished(e: Evidence) -> Said | None:
    """The run did not end as planned, or its master did not see its end."""
    run, state = e.frames.run, e.frames.run["state"]
    master = next((p.text for p in e.frames.problems if p.kind == MASTER), None)
    if state == "unusable":
        said = [plain(str(p["message"]), 300) for p in run["preflight"] if p.get("message")]
        text = f"The target could not be used: {said[-1].rstrip('.') if said else 'the preflight request failed'}."
        return INVALID, text, "Check address, protocol, key and model of the target."
    if state == "failed":
        return INVALID, "The run failed before its end.", "See the notes and the log of the run."
    if master is not None:
        return DEGRADED, f"{master}.", "Give every folder of the run, if its workers ran on several machines."
    if state == "running":
        return _orphaned(e)
    if state in {"interrupted", "guarded"}:
        why = "The run was interrupted" if state == "interrupted" else "A guard ended the run"
        text = f"{why}; {plural(e.conservation.not_reached, 'request')} were not reached."
        return DEGRADED, text, "What is here is sound; it is less than was planned."
    return None


def _orphaned(e: Evidence) -> Said:
    workers = e.conservation.workers
    if not workers or not all(one.has_ended for one in workers):
        return (
            DEGRADED,
            "The run had not ended when this was read, or its master died.",
            "Report it again when it has ended, or give every worker's own folder too.",
        )
    reached = e.conservation.not_reached
    rest = f"; {plural(reached, 'request')} were not reached" if reached else ""
    return (
        DEGRADED,
        f"The run's master died before its workers had ended: the counts are those of its {plural(len(workers), 'worker')}{rest}.",
        "What is here is sound; see the master's log for why it died.",
    )


NAMED = 3  # kinds in one sentence
FAR_BEYOND, AND = 4, 50  # times the tokens that were asked for, and so many chunks besides
ENDLESS = "no end at the deadline, far beyond what was asked for"


def breaches(frames: Frames) -> tuple[list[tuple[str, int]], int]:
    """What was wrong with answers, in words, and with how many, the most first; and how many attempts there were."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    by = attempts["error_type"].value_counts()
    found = [(VIOLATIONS[kind], int(n)) for kind, n in by.items() if kind in VIOLATIONS]
    late = attempts.loc[attempts["ended"] == schema.TIMEOUT, ["request_id", "chunks"]]
    if len(late):
        asked = late["request_id"].map(frames.requests.groupby("request_id")["asked_output_tokens"].max())
        endless = int((late["chunks"] > FAR_BEYOND * asked + AND).sum())
        found += [(ENDLESS, endless)] if endless else []
    return sorted(found, key=lambda one: -one[1]), len(attempts)


def kept(e: Evidence) -> Said | None:
    """The gate: no answer broke the target's protocol."""
    found, of = breaches(e.frames)
    if not found:
        return None
    said = [f"{words} ({count(n)})" for words, n in found[:NAMED]]
    rest = sum(n for _, n in found[NAMED:])
    said += [f"of {plural(len(found) - NAMED, 'other kind')} ({count(rest)})"] if rest else []
    total = sum(n for _, n in found)
    return (
        DEGRADED,
        f"The target broke its protocol in {count(total)} of {plural(of, 'attempt')}: {', '.join(said)}.",
        "See the errors below: does the target answer itself, or a proxy or another service? These answers count as failed.",
    )


STATIONS = (
    "scheduled_at_ns", "dispatched_at_ns", "sent_at_ns", "first_content_at_ns", "last_content_at_ns", "ended_at_ns",
)  # fmt: skip
ORDER_SLACK_NS = 1_000_000  # kernel stamps and the process's own clock are read a little apart


@dataclass(frozen=True, slots=True)
class Disorder:
    """Attempts with a time before an earlier station's, and the longest way back in ms."""

    attempts: int
    of: int
    worst_ms: float


def disorder(frames: Frames) -> Disorder:
    """Count the attempts whose times contradict each other."""
    latest = np.full(len(frames.attempts), -np.inf)
    back = np.zeros(len(frames.attempts))
    for name in STATIONS:
        at = frames.attempts[name].to_numpy(np.float64)
        back = np.fmax(back, latest - at)
        latest = np.fmax(latest, at)
    wrong = back > ORDER_SLACK_NS
    return Disorder(int(wrong.sum()), len(back), float(back[wrong].max(initial=0.0)) / 1e6)


GATES = (
    Gate("finished", "the run ended as planned and its master recorded it", finished),
    Gate("parts", "every Parquet part can be read", _readable),
    Gate("lost", "no worker and no scheduled request is lost, nor left out because of it", lost),
    Gate("written", "every row that was recorded could be written", written),
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
    Gate("protocol", "no answer of the whole run breaks the target's protocol", kept),
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
        certificate.judge,
        True,
    ),
)
