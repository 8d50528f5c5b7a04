"""The machine's calibration certificate that a run cites, and whether its load stayed within the certified rate.

run.json holds what is cited, so a report needs no certificate file. Beyond the certified rate is an explanation, because
the error there is unknown; at a rate at which the calibration failed, the run is DEGRADED.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.metrics.stability import received
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import count, ms, plain
from tailgauge_analysis.text.json_values import Json, number, text
from tailgauge_analysis.text.quantile import Finding, plain_values
from tailgauge_analysis.verdict.verdict import Evidence, Judgement

OVER_S = 5.0  # the busiest stretch of that length, or the steady stage if that is shorter
_NEEDED = ("holds_to_per_s", "ttft_spread_ms", "gap_spread_ms")


class Certified(Finding):
    """What a run cites, and the rate of its busiest worker; without an `id`, `why` is the reason. Rates are chunks/s of one
    worker.
    """

    def __init__(self, frames: Frames, steady: Steady) -> None:
        cited = frames.run["certificate"]
        named, why = text(cited.get("id")), text(cited.get("why")) or "run.json names none"
        if named and None in {number(cited.get(name)) for name in _NEEDED}:
            named, why = "", "its entry in run.json is incomplete"
        hosts = {"", text(cited.get("host"))}
        elsewhere = [str(w["worker"]) for w in frames.run["workers"] if w["host"] not in hosts]
        if named and elsewhere:
            named, why = "", f"worker {', '.join(elsewhere[:5])} ran on another machine"
        if not named:
            cited = {}
        self.id, self.why = plain(named, 60) if named else None, "" if named else plain(why, 300)
        self.made_at = plain(text(cited.get("made_at")), 30)
        self.transport = plain(text(cited.get("transport")), 10)
        self.holds_to_per_s = number(cited.get("holds_to_per_s"))
        self.failed_at_per_s = number(cited.get("failed_at_per_s"))
        self.ttft_spread_ms = number(cited.get("ttft_spread_ms"))
        self.gap_spread_ms = number(cited.get("gap_spread_ms"))
        self.ttft_bias_ms = number(cited.get("ttft_bias_ms"))
        self.gap_bias_ms = number(cited.get("gap_bias_ms"))
        self.busiest, self.busiest_per_s = busiest(frames, steady)

    @property
    def beyond(self) -> bool:
        """Whether a worker received more than what was certified."""
        return self.holds_to_per_s is not None and self.busiest_per_s > self.holds_to_per_s

    @property
    def beyond_failed(self) -> bool:
        """Whether a worker received chunks at a rate at which the calibration failed."""
        return self.failed_at_per_s is not None and self.busiest_per_s >= self.failed_at_per_s


def busiest(frames: Frames, steady: Steady) -> tuple[int | None, float]:
    """The worker with the most chunks/s over OVER_S since the start of the steady stage, and its rate.

    An answer's chunks count as spread evenly from its first to its last.
    """
    most: tuple[int | None, float] = (None, 0.0)
    attempts = frames.attempts
    seen = attempts[(attempts["chunks"] > 0) & attempts["first_content_at_ns"].notna()]
    over = min(OVER_S, steady.seconds)
    if over <= 0:
        return most
    until_s = max(steady.to_s, float(seen["last_content_at_ns"].max()) / 1e9 if len(seen) else 0.0)
    at_s = np.append(np.arange(steady.from_s, until_s - over, max(over / 5, 0.1)), until_s - over)
    by_worker: Any = seen.groupby("worker")
    for worker, rows in by_worker:
        begin = rows["first_content_at_ns"].to_numpy(np.float64) / 1e9
        end = rows["last_content_at_ns"].fillna(rows["first_content_at_ns"]).to_numpy(np.float64) / 1e9
        line = received(begin, np.maximum(end, begin + 1e-3), rows["chunks"].to_numpy(np.float64))
        rate = float((np.interp(at_s + over, *line) - np.interp(at_s, *line)).max(initial=0.0)) / over
        if rate > most[1]:
            most = (int(worker), rate)
    return most


def sentence(one: Certified) -> str:
    """The certificate in a sentence of the report."""
    if one.id is None:
        return f"Certificate: {one.why}. Run `tailgauge calibrate` to measure this machine's error."
    errors = f"{ms(one.ttft_spread_ms)} ms (TTFT since sent) and {ms(one.gap_spread_ms)} ms (chunk gaps)"
    bound, rate = count(one.holds_to_per_s), count(one.busiest_per_s)
    beyond = ", which is more" if one.beyond else ""
    error = f"this machine's error is at most {errors} at p99, up to {bound} chunks/s per worker"
    return f"Certificate {one.id} of {one.made_at[:10]}: {error}. The busiest worker received {rate}{beyond}."


def explanations(one: Certified) -> list[str]:
    """A rate beyond the certified one, unless the check reports it."""
    if not one.beyond or one.beyond_failed:
        return []
    rate, bound = count(one.busiest_per_s), count(one.holds_to_per_s)
    excess = f"worker {one.busiest} received {rate} chunks/s, more than the certified {bound}"
    return [f"{excess}: use more workers, or calibrate with --planned"]


def judge(evidence: Evidence) -> Judgement | None:
    """no worker received chunks at a rate at which calibration found wrong times"""
    one = Certified(evidence.frames, evidence.steady)
    if not one.beyond_failed:
        return None
    assert one.holds_to_per_s is not None
    workers = math.ceil(one.busiest_per_s / one.holds_to_per_s)
    rate, wrong, right = map(count, (one.busiest_per_s, one.failed_at_per_s, one.holds_to_per_s))
    problem = f"Worker {one.busiest} received {rate} chunks/s: in calibration, times were right up to {right} and wrong at {wrong} chunks/s."
    advice = f"Use {workers} times as many workers, on as many cores; calibrate again if the calibration was disturbed."
    return DEGRADED, problem, advice


def to_json(one: Certified) -> Json:
    """The key `certificate` of report.json."""
    return {**plain_values(one), "beyond": one.beyond, "text": sentence(one)}
