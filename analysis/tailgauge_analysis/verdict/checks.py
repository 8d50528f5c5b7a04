"""The table of trust: which figures are wrong if a check fails, by what error, why, and what to do about it.

Only what can distort a reported number is a check; what made the client's work harder is an explanation (explanations.py).
"""

from __future__ import annotations

from tailgauge_analysis.verdict import cold_cache, completeness, distortion, endpoint
from tailgauge_analysis.verdict.losses import SEE_LOG
from tailgauge_analysis.verdict.verdict import Check

EVERY = "every figure"
CLIENT_ERROR = "client_error"
SINCE_SCHEDULED = "offered rate, latency since scheduled"

CHECKS: tuple[Check, ...] = (
    Check(
        name="finished",
        figures=EVERY,
        passes_if="the run ended as planned and its master recorded it",
        cause="Ctrl-C, a limit, a stop rule; a refused preflight; a dead master",
        advice="The recorded data is sound but incomplete.",
        judge=completeness.finished,
    ),
    Check(
        name="parts",
        figures=EVERY,
        passes_if="every Parquet part can be read",
        cause="a damaged disk, an interrupted copy",
        advice="Check the disk; if the part was copied, copy it again.",
        judge=completeness.readable,
    ),
    Check(
        name="lost",
        figures="counts, shares of requests, upper percentiles",
        passes_if="no worker and no scheduled request is lost",
        cause="a killed worker, a lost network",
        advice=SEE_LOG,
        judge=completeness.nothing_lost,
    ),
    Check(
        name="written",
        figures="counts, shares of requests, upper percentiles",
        passes_if="every recorded row was written",
        cause="a full disk",
        advice="Free disk space on these workers, or choose another folder with --out, then run again.",
        judge=completeness.written,
    ),
    Check(
        name="conservation",
        figures="counts, shares of requests",
        passes_if="scheduled, dispatched and ended requests add up, in the rows and in run.json",
        cause="changed files, a defect of Tailgauge",
        advice="Keep the run folder and run again.",
        judge=completeness.conserved,
    ),
    Check(
        name="unique",
        figures="counts, shares of requests",
        passes_if="every request id appears once",
        cause="copied parts",
        advice="Report only one copy of each part.",
        judge=completeness.unique,
    ),
    Check(
        name="order",
        figures="latency",
        passes_if="every attempt's times are in order (INVALID above 1% of attempts)",
        cause="a clock that stepped back, damaged rows",
        advice="Let time synchronization settle (chrony, NTP), then run again.",
        judge=distortion.ordered,
    ),
    Check(
        name="protocol",
        figures="share of complete answers",
        passes_if="no answer breaks the target's protocol",
        cause="a proxy, another service",
        advice="See Errors in the report: is it the target that answers, or a proxy or another service? These answers count as failed.",
        judge=distortion.by_protocol,
    ),
    Check(
        name="settled",
        figures="latency, throughput",
        passes_if="no warm-up reaches into the steady stage (under constant load, from 10 s and 200 requests on)",
        cause="a target slower at first",
        advice="Raise stages.warmup_s.",
        judge=distortion.settled,
        applies=distortion.is_stability_judged,
    ),
    Check(
        name="cold_cache",
        figures="time to first token, cost",
        passes_if="at most 2% of the prompt tokens were cached where the plan expects none",
        cause="an earlier run with the same prompts",
        advice="Leave repeat_prompts off, or restart the engine before the run.",
        judge=cold_cache.cold,
        applies=cold_cache.has_counts,
    ),
    Check(
        name="drops",
        figures=SINCE_SCHEDULED,
        passes_if="no request was dropped at the in-flight cap (INVALID above 1% of scheduled)",
        cause="a target that cannot keep up, a low cap, too few workers",
        advice="Lower the rate if the target cannot keep up, else raise limits.in_flight_per_worker.",
        judge=completeness.none_dropped,
    ),
    Check(
        name="unsent",
        figures=SINCE_SCHEDULED,
        passes_if="every due request was sent or dropped at the cap (INVALID above 1% of scheduled)",
        cause="a slow worker, a stalled master, a lost network",
        advice="Lower the rate.",
        judge=completeness.all_sent,
    ),
    Check(  # behind why it was not sent
        name="measured",
        figures=EVERY,
        passes_if="at least one request of the steady stage was sent",
        cause="a run as short as its warm-up",
        advice="Run longer, or shorten the warm-up.",
        judge=completeness.measured,
    ),
    Check(
        name=CLIENT_ERROR,
        figures="those that it names",
        passes_if="the client shifts no figure of an objective or of the first latency table by more than 5%, a quarter of its interval's half width,"
        " or 0.5 ms (INVALID if more than 10% or 1 ms may have changed an objective's outcome, or without objectives on latency a TTFT or e2e)",
        cause="a busy core, a blocked event loop, new connections",
        advice="Use a lower rate, or a machine with nothing else to do.",
        judge=distortion.undistorted,
        applies=distortion.has_client,
    ),
    Check(
        name="slow_users",
        figures="counts, throughput",
        passes_if="users of a closed loop waited for the client at most 5% of their time (INVALID above 10%)",
        cause="many answers that end together, a busy core",
        advice="Use more workers, or a machine with nothing else to do.",
        judge=distortion.as_fast_as_users,
        applies=distortion.has_users,
    ),
    Check(
        name="clock_offset",
        figures="counts in flight, order of calls of several workers",
        passes_if="every worker's clock offset is known within 1 ms",
        cause="a long or busy network path",
        advice="Use a shorter or less busy network path between workers and master.",
        judge=distortion.synchronized,
        applies=distortion.has_client,
    ),
    Check(
        name="clock_step",
        figures="latency by kernel timestamps",
        passes_if="no wall clock stepped by more than 1 ms within a second",
        cause="time synchronization",
        advice="Let time synchronization settle (chrony, NTP), then run again.",
        judge=distortion.steady_clock,
        applies=distortion.has_kernel_timestamps,
    ),
    Check(
        name="endpoint",
        figures="latency of the simulated endpoint",
        passes_if="the simulated endpoint's own lateness moved no figure by more than 5%, a quarter of its interval's half width, or 2"
        " ms",
        cause="a shared core",
        advice="Lower the load, start fewer users at once, or give the simulated endpoint its own core: these times are its own.",
        judge=endpoint.lateness,
        applies=endpoint.has_log,
    ),
)
COUNTED: tuple[Check, ...] = tuple(check for check in CHECKS if check.name != CLIENT_ERROR)
"""Of a run whose requests are counted and not timed: what the client adds to a latency moves no count."""
COMPARABLE: tuple[Check, ...] = (
    *CHECKS,
    Check(
        name="answered",
        figures=EVERY,
        passes_if="at least one request of the steady stage succeeded",
        cause="a target that fails",
        advice="See the errors of its report.",
        judge=completeness.answered,
    ),
)
"""Of a run whose latencies are compared with those of others; of a single run, no answer is a result."""
