"""Judge whether something moved the figures: damaged times, a target that breaks its protocol or is not warm yet, the client,
its clocks.

Whether rows are missing: completeness.py; a warm cache: cold_cache.py; a late simulated endpoint: endpoint.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tailgauge.protocol_violations import MALFORMED_USAGE, VIOLATIONS
from tailgauge.rows import schema
from tailgauge.thresholds import CLOCK_MS, DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.stability import WARMUP
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import (
    count,
    listed,
    ms,
    percentile,
    plural,
    sentence,
    share,
    within_sentence,
)
from tailgauge_analysis.verdict import slow_users
from tailgauge_analysis.verdict.client_error import SHARE, SHARE_MOST, ClientError
from tailgauge_analysis.verdict.clocks import clocks
from tailgauge_analysis.verdict.explanations import explanations
from tailgauge_analysis.verdict.late_client import advice_on_cores
from tailgauge_analysis.verdict.verdict import Evidence, Fault

DISORDERED = 0.01  # of the attempts
FIGURES_LISTED = 4
UNMOVED_LISTED = 6
STATIONS = (
    "scheduled_at_ns",
    "dispatched_at_ns",
    "sent_at_ns",
    "first_content_at_ns",
    "last_content_at_ns",
    "ended_at_ns",
)
ORDER_SLACK_NS = 1_000_000  # kernel and process clocks are read a little apart
KINDS_LISTED = 3  # of protocol violations
FAR_BEYOND = 4  # times the requested tokens,
FAR_BEYOND_CHUNKS = 50  # and so many chunks more
ENDLESS = "no end at the deadline, far beyond the requested tokens"


def has_client(evidence: Evidence) -> bool:
    """Return whether a client measured; a dry run has none."""
    return not evidence.frames.run["dry_run"]


def has_kernel_timestamps(evidence: Evidence) -> bool:
    """Return whether a time is the kernel's."""
    return has_client(evidence) and evidence.stamps.kernel_attempts > 0


def is_stability_judged(evidence: Evidence) -> bool:
    """Return whether the load was constant for long enough to tell a warm-up from the rest."""
    return evidence.stability.stable is not None


def ordered(evidence: Evidence) -> Fault | None:
    """Return a fault unless the times of every attempt are in order: a time before that of an earlier station is wrong."""
    attempts = evidence.frames.attempts
    latest = np.full(len(attempts), -np.inf)
    back_ns = np.zeros(len(attempts))
    for name in STATIONS:
        at_ns = attempts[name].to_numpy(np.float64)
        back_ns = np.fmax(back_ns, latest - at_ns)
        latest = np.fmax(latest, at_ns)
    n = int((back_ns > ORDER_SLACK_NS).sum())
    if not n:
        return None
    part = n / len(attempts)
    wrong = (
        f"{count(n)} of {plural(len(attempts), 'attempt')} ({share(part)}) have times out of order"
    )
    text = f"{wrong}, by up to {ms(back_ns.max() / 1e6)} ms: a clock stepped back, or rows are damaged."
    return Fault(INVALID if part > DISORDERED else DEGRADED, text)


def violations(frames: Frames) -> tuple[list[tuple[str, int]], int]:
    """Protocol violations of answers, each with its number, the most frequent first; and the number of attempts."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    kinds = []
    for kind, n in attempts["error_type"].value_counts().items():
        # Counts that cannot be are in no figure, and the report names them: they change no number.
        if kind in VIOLATIONS and kind != MALFORMED_USAGE:
            kinds.append((VIOLATIONS[kind], int(n)))
    late = attempts[attempts["ended"] == schema.TIMEOUT]
    requested = frames.requests.groupby("request_id")["asked_output_tokens"].max()
    limit = FAR_BEYOND * late["request_id"].map(requested) + FAR_BEYOND_CHUNKS
    endless = int((late["chunks"] > limit).sum())
    if endless:
        kinds.append((ENDLESS, endless))
    return sorted(kinds, key=lambda kind: -kind[1]), len(attempts)


def by_protocol(evidence: Evidence) -> Fault | None:
    """Return a fault if answers break the target's protocol; they count as failed."""
    kinds, attempts = violations(evidence.frames)
    if not kinds:
        return None
    texts = [f"{kind} ({count(n)})" for kind, n in kinds[:KINDS_LISTED]]
    other_counts = [n for _, n in kinds[KINDS_LISTED:]]
    if other_counts:
        texts.append(f"{plural(len(other_counts), 'other kind')} ({count(sum(other_counts))})")
    broken = f"{count(sum(n for _, n in kinds))} of {plural(attempts, 'attempt')}"
    return Fault(DEGRADED, f"The target broke its protocol in {broken}: {', '.join(texts)}.")


def settled(evidence: Evidence) -> Fault | None:
    """Return a fault if the warm-up reaches into the steady stage."""
    warmup = evidence.stability.of(WARMUP)
    if warmup is None:
        return None
    return Fault(DEGRADED, warmup.text, f"Set stages.warmup_s to {math.ceil(warmup.to_s)} or more.")


def undistorted(evidence: Evidence) -> Fault | None:
    """Return a fault if the client moved a figure of an objective or of the first latency table by more than its limit.

    It names the figures not to use (INVALID), those to use with care (DEGRADED), and what was not moved. It is INVALID only if the
    answer of the run rests on one of the first.
    """
    used = evidence.used_errors
    moved = [error for error in used if error.verdict != VALID]
    if not moved:
        return None
    unusable = unusable_figures(used)
    # A figure has one label in both views: it is named once, by the worse of them.
    worse = {error.label for error in unusable}
    doubtful = [error for error in moved if error.label not in worse]
    texts = []
    if unusable:
        texts.append(f"Do not use {figure_names(unusable)}: {_moved(unusable)}.")
    if doubtful:
        texts.append(f"Use {figure_names(doubtful)} with care: {_moved(doubtful)}.")
    titles = {error.title for error in moved}
    unmoved: dict[str, None] = {}
    for error in used:
        if error.title not in titles:
            unmoved[within_sentence(error.title)] = None
    names = list(unmoved)
    # Counts and rates are wrong where the client took the time of a closed loop's users.
    if (evidence.users_share or 0.0) <= SHARE:
        names = ["counts", "rates", *names]
    if names:
        texts.append(f"The client did not move {listed(names, UNMOVED_LISTED)}.")
    is_invalid = any(error.decides for error in unusable)
    return Fault(INVALID if is_invalid else DEGRADED, " ".join(texts), _advice(evidence))


def figures_moved_beside(evidence: Evidence) -> tuple[str, ...]:
    """Name the figures that the client moved, where the outcome rests on none of them; empty where it may."""
    moved = [error for error in evidence.used_errors if error.verdict != VALID]
    if any(error.decides for error in moved):
        return ()
    return tuple(dict.fromkeys(within_sentence(error.title) for error in moved))


def unusable_figures(used: Sequence[ClientError]) -> list[ClientError]:
    """Return the figures in use that the client moved too far, those on which the answer rests first."""
    unusable = [error for error in used if error.verdict == INVALID]
    return sorted(unusable, key=lambda error: not error.decides)


def figure_names(errors: Sequence[ClientError]) -> str:
    """Return their names, as `TTFT since sent p50, p99 and chunk gap p99`."""
    percentiles: dict[str, list[str]] = {}
    for error in errors:
        percentiles.setdefault(within_sentence(error.title), []).append(percentile(error.quantile))
    names = []
    for title, labels in percentiles.items():
        names.append(f"{title} {', '.join(dict.fromkeys(labels))}")
    return listed(names, FIGURES_LISTED)


def _moved(errors: Sequence[ClientError]) -> str:
    """By how much, and whether it sent or read late."""
    worst = max(errors, key=lambda error: error.error_ms)
    cause = "by sending late" if 2 * worst.late_shift > worst.error_ms else "by reading late"
    pronoun = "it" if len(errors) == 1 else "them"
    return f"the client may have moved {pronoun} by up to {ms(worst.error_ms)} ms {cause}"


def _advice(evidence: Evidence) -> str:
    """Return what keeps the client from it, by what the worker's health shows; empty where it shows nothing."""
    causes = explanations(evidence.frames, evidence.steady)
    core_advice = advice_on_cores(evidence.frames, evidence.steady)
    # A worker that was suspended needs a core to catch up, and more workers would not have helped.
    is_suspension = bool(causes) and causes[0].is_suspension
    if core_advice and not is_suspension:
        return sentence(f"{core_advice}.")
    if causes:
        return f"Look at the cause: {causes[0].text}."
    return ""


def has_users(evidence: Evidence) -> bool:
    """Return whether a client sent for the users of a closed loop."""
    return has_client(evidence) and evidence.users_share is not None


def as_fast_as_users(evidence: Evidence) -> Fault | None:
    """Return a fault unless the client let the users of a closed loop send on at once."""
    part = evidence.users_share or 0.0
    if part <= SHARE:
        return None
    return Fault(
        INVALID if part > SHARE_MOST else DEGRADED, slow_users.effect(part), _advice(evidence)
    )


def synchronized(evidence: Evidence) -> Fault | None:
    """Return a fault unless the clock offset of every worker is known to CLOCK_MS."""
    offsets = []
    unmeasured = clocks(evidence.frames).unknown
    if unmeasured:
        offsets.append(f"unknown for worker {', '.join(map(str, unmeasured))}")
    wide = []
    for worker in evidence.frames.run["workers"]:
        error_ms = (worker["error_ns"] or 0) / 1e6
        if error_ms > CLOCK_MS:
            wide.append(f"worker {worker['worker']} ± {ms(error_ms)} ms")
    if wide:
        offsets.append(f"known only within {', '.join(wide)}")
    if not offsets:
        return None
    consequence = (
        "Latencies stay exact; times of different workers do not compare closer than that."
    )
    return Fault(DEGRADED, f"Clock offsets are {'; '.join(offsets)}. {consequence}")


def steady_clock(evidence: Evidence) -> Fault | None:
    """Return a fault if a wall clock stepped within a second."""
    stepped = []
    for worker in evidence.workers:
        step_ms = worker.clock_step_max_ms
        if step_ms > CLOCK_MS:
            stepped.append(f"worker {worker.worker} by {ms(step_ms)} ms")
    if not stepped:
        return None
    text = f"The wall clock stepped within a second: {', '.join(stepped)}. Kernel timestamps use the wall clock."
    return Fault(DEGRADED, text)
