"""When failures began: from the start, from a moment on, or in one stretch of the run; and whether the target was gone.

A target is gone in a stretch without any sign of it in which calls found no connection. What was open is cut as it goes:
those streams and the refused calls have one cause. Such a stretch counts only if it is longer than chance makes it, by the share of
such failures outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.unanswered import SIGNS
from tailgauge_analysis.metrics.waiting import seconds
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import failures
from tailgauge_analysis.sections.failures import Failures
from tailgauge_analysis.stats.quantiles import Floats, Mask

FEWEST = 3  # requests on each side of a moment
ALL = 0.9  # of the requests of a stretch that fail
NONE = 0.1
# Failures that come while a call is open; others come with the call.
_AT_END = (failures.GONE, failures.UNREACHABLE, failures.RESET, failures.BROKEN_OFF)
SHORTEST_TIMER_S = 0.3
OF_TIMER = 0.8  # of the times, that are near the typical one
CHANCE = 0.01  # of a stretch of failures that is nothing but chance
# Calls end so when a target goes away.
_CUT = (schema.CONNECT_ERROR, schema.TRUNCATED, schema.STREAM_ERROR)
_OTHERWISE = (failures.NAME, failures.TLS, failures.OTHER_PROTOCOL)  # which has another cause
_NOT_ANSWERED = (*_CUT, schema.TIMEOUT, schema.CENSORED, schema.CANCELLED)


@dataclass(frozen=True, slots=True)
class Onset:
    """Seconds of the run from which, and until which, nearly every request fails; None: from the start, to the end."""

    since_s: float | None = None
    until_s: float | None = None

    @property
    def text(self) -> str:
        """Return ` since 8.1 s`; empty where failures are spread over the run."""
        if self.since_s is not None and self.until_s is not None:
            return f" from {self.since_s:,.1f} s to {self.until_s:,.1f} s"
        if self.since_s is not None:
            return f" since {self.since_s:,.1f} s"
        if self.until_s is None:
            return ""
        return f" until {self.until_s:,.1f} s"


def onset(run: Run, kind_failures: Failures, every: Failures) -> Onset:
    """Return when these failures, of one kind, were all that came; `every`: failures of any kind."""
    rows = kind_failures.rows
    is_at_end = rows["kind"].isin(_AT_END)
    at_ns = (
        rows["sent_at_ns"].where(~is_at_end, rows["ended_at_ns"]).fillna(rows["scheduled_at_ns"])
    )
    at_s = seconds(at_ns)
    if len(at_s) < FEWEST:
        return Onset()
    if (rows["kind"] == failures.GONE).all():
        return _of_outage(run, at_s)
    return _of_kind(run, kind_failures, every, at_s)


def _of_kind(run: Run, kind_failures: Failures, all_failures: Failures, at_s: Floats) -> Onset:
    """Return from when to when nearly every request failed with one kind of failure; both None where such failures are spread over the run.

    `at_s`: when the failures of the kind came. `all_failures`: those of any kind. Fewer than FEWEST requests on a side show
    nothing.
    """
    first_s = float(at_s.min())
    last_s = float(at_s.max())
    requests = run.steady.requests
    scheduled_s = seconds(requests["scheduled_at_ns"])
    ended_s = seconds(requests["ended_at_ns"])
    failed_anyhow = requests["request_id"].isin(all_failures.rows["request_id"]).to_numpy(np.bool_)
    failed_so = requests["request_id"].isin(kind_failures.rows["request_id"]).to_numpy(np.bool_)
    is_before = ended_s < first_s
    is_after = scheduled_s >= first_s
    # Hardly any request failed that ended before.
    worked_before = _is_share_within(failed_anyhow, is_before, high=NONE)
    # Where others failed before, for another reason, these are all that comes.
    is_only_this_from_then_on = int(is_before.sum()) >= FEWEST and _is_share_within(
        failed_so, is_after, low=ALL
    )
    if is_only_this_from_then_on or (
        worked_before and _is_share_within(failed_anyhow, is_after, low=ALL)
    ):
        return Onset(since_s=first_s)
    worked_after = _is_share_within(failed_anyhow, scheduled_s > last_s, high=NONE)
    # From the first failure to the last, in between requests that did not fail.
    is_inside = (scheduled_s >= first_s) & (scheduled_s <= last_s)
    if not worked_after or not _is_share_within(failed_anyhow, is_inside, low=ALL):
        return Onset()
    if worked_before:
        return Onset(since_s=first_s, until_s=last_s)
    if not is_before.any():
        return Onset(until_s=last_s)
    return Onset()


def with_outage(run: Run, every: Failures) -> Failures:
    """Return these failures; those of a stretch in which the target was gone have the kind GONE.

    The target was gone where calls found no connection, or were cut, in a stretch without any sign of it. Such a stretch
    counts only if chance hardly makes it, by the share of these failures outside.
    """
    rows = every.rows
    is_cut = rows["ended"].isin(_CUT) & ~rows["kind"].isin(_OTHERWISE) & rows["ended_at_ns"].notna()
    if not (is_cut & (rows["kind"] == failures.UNREACHABLE)).any():
        return every
    is_gone = _in_worst_stretch(run, rows, is_cut.to_numpy(np.bool_))
    gone_count = int(is_gone.sum())
    other_requests = len(run.steady.requests) - gone_count
    is_refused = rows["kind"] == failures.UNREACHABLE
    if not other_requests or not is_refused[is_gone].any():
        return every
    cut_elsewhere = int(is_cut.sum()) - gone_count
    # Laplace's rule: one more failure and one more success than there were.
    share_elsewhere = (cut_elsewhere + 1) / (other_requests + 2)
    # How many stretches of so many failures in a row the run would have by chance.
    chance = len(run.steady.requests) * share_elsewhere**gone_count
    if chance > CHANCE:
        return every
    kinds = rows["kind"].where(~is_gone, failures.GONE)
    return replace(every, rows=rows.assign(kind=kinds))


def outage(run: Run) -> Onset | None:
    """Return from when and until when the target was gone, refused calls or gave no sign; None where it was there."""
    outage_failures = with_outage(run, run.result(failures.incomplete)).of_kind(failures.GONE)
    if len(outage_failures):
        return _of_outage(run, seconds(outage_failures.rows["ended_at_ns"]))
    gone_s = run.evidence.stability.gone_since_s
    if gone_s is None:
        return None
    return Onset(since_s=gone_s)


def _in_worst_stretch(run: Run, rows: pd.DataFrame, is_cut: Mask) -> Mask:
    """Return which of these failures are in the stretch between two calls with a sign that has most of them."""
    sent_s, signs_s = run.result(_calls_with_a_sign)
    ended_s = seconds(rows["ended_at_ns"])
    # The number of a stretch; 0 before the first sign.
    number = np.searchsorted(sent_s, ended_s, side="right")
    last_sign_s = np.concatenate([[-np.inf], signs_s])[number]
    is_without_sign = is_cut & (ended_s >= last_sign_s)
    counts = np.bincount(number[is_without_sign], minlength=1)
    # A target that shuts down refuses calls while it still answers those that are open.
    is_refused = (rows["kind"] == failures.UNREACHABLE).to_numpy(np.bool_)
    in_stretch: Mask = number == counts.argmax()
    return in_stretch & (is_without_sign | is_refused)


def _calls_with_a_sign(run: Run) -> tuple[Floats, Floats]:
    """Return when calls were sent of which there came a sign, in order, and the last sign of all those up to each."""
    attempts = run.frames.attempts
    attempts = attempts[attempts["stage"] != schema.PREFLIGHT]
    signs_ns = attempts[[*SIGNS]].max(axis=1)
    is_answered = ~attempts["ended"].isin(_NOT_ANSWERED)
    signs_ns = signs_ns.where(~is_answered, attempts["ended_at_ns"])
    sent_s = seconds(attempts["sent_at_ns"])
    calls = pd.DataFrame({"sent": sent_s, "sign": seconds(signs_ns)})
    calls = calls.dropna().sort_values("sent")
    last_signs = calls["sign"].cummax()
    return calls["sent"].to_numpy(np.float64), last_signs.to_numpy(np.float64)


def _of_outage(run: Run, at_s: Floats) -> Onset:
    """Return when the first call failed that the target left, and the last one if it came back."""
    sent_s, _ = run.result(_calls_with_a_sign)
    first_s = float(at_s.min())
    last_s = float(at_s.max())
    was_there = bool((sent_s <= first_s).any())
    came_back = bool((sent_s >= last_s).any())
    return Onset(first_s if was_there else None, last_s if came_back else None)


def _is_share_within(has_failed: Mask, part: Mask, *, low: float = 0.0, high: float = 1.0) -> bool:
    """Return whether enough requests are in this part, and their share that failed is within bounds."""
    if int(part.sum()) < FEWEST:
        return False
    return low <= float(has_failed[part].mean()) <= high


def common_s(values: Floats) -> float | None:
    """Return the seconds that nearly all of these times have in common, as those of a timer; None where they differ."""
    finite = values[np.isfinite(values)]
    if len(finite) < FEWEST:
        return None
    typical = float(np.median(finite))
    near = np.abs(finite - typical) <= max(0.05, 0.1 * typical)
    is_timer = typical >= SHORTEST_TIMER_S and float(near.mean()) >= OF_TIMER
    return typical if is_timer else None
