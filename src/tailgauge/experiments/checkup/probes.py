"""The probes of calls that affect each other, through a shared prefix, as the legs of a fan-out or by the load; and of clients
that leave.

prefix cache    why calls miss, what that costs, and the benefit of a warm prefix. Counted calls of the steady stage;
                causes as in the cache section of a report. Costs are in prices of an input token: a read 0.1, a write
                1.25 (2 for an hour), output 5. A miss costs what reading the same tokens would have saved.
                Where usage has no cached tokens, the engine's own counters say whether there is a cache, else the first
                content: a warm prefix that is faster than a cold one was cached
fan-out         the join, compared with the slowest of as many single calls. Requests with all their legs. The
                prediction is the slowest of K single calls, one drawn for each leg from those of its kind, which assumes
                that legs do not affect each other; both medians are resampled, the single calls too
load in steps   a quarter of today's rate, a burst, and today's rate again. A request belongs to the part in which it
                was scheduled. Times to the first content are since sent. Retries are compared with the
                `retry-after` of the 429 before them
clients that leave   whether the endpoint stops generating, and what it bills. By the endpoint's server log, call by call.
                Without one by its engine's token count, all calls together:

                    generated after leaving = the engine's count - usage of whole answers - what the cancelled ones received

                Who leaves is random, so the cancelled answers would have been as long as the whole ones of the same run. The
                count covers all users of the engine: a count higher than possible is noted and gives no finding. Without
                either there is no answer
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.checks import CHECKS
from tailgauge.experiments.checkup.judge import Gain, Measured, Medians, ProbeCheck, ProbeResult
from tailgauge.experiments.checkup.light import known
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis import (
    CALL,
    NO_READS,
    NORMAL_975,
    RELATIVE,
    SEED,
    CacheSettings,
    Floats,
    Frames,
    Json,
    Legs,
    Mask,
    count,
    counted,
    early_s,
    ended_as,
    fixed_hit,
    has_retry_after,
    legs,
    ms,
    number,
    proportion,
    share,
    sliding_hit,
)
from tailgauge_analysis import (
    cache_calls as calls,
)
from tailgauge_analysis import (
    cache_settings as settings,
)
from tailgauge_analysis.sections.cache import misses

PRICES = ("read", "write_5m", "write_1h", "output")
READ, WRITE, WRITE_HOUR, OUTPUT = (float(RELATIVE[name]) for name in PRICES)
DRAWS = 2000
WORSE = 1.25  # times the prediction
SETTLING = 0.1  # of the run, after the burst
SLOWER = 2.0  # times, for longer than that
FASTER = 0.1  # first content of a warm prefix: a sign of a cache


def cached(reading: RunReading, per_s: Floats, ttl: str, *, has_marks: bool) -> ProbeResult:
    """Result of a run with the traffic as it is and with a cold prefix. `per_s`: how often each prefix is used, by the
    scenario; `ttl`: the lifetime that its mark requests; `has_marks`: of the protocol.
    """
    known = settings(reading.frames.run)
    every = steady_calls(reading, known, salted={judge.COLD})
    sent, cold = every[every["traffic"] == judge.WARM], every[every["traffic"] == judge.COLD]
    uncached = every.loc[every["traffic"] != judge.COLD, "cause"].eq(misses.NO_CACHE)
    if uncached.sum() >= judge.FEWEST:  # then it is why all miss
        short = sent["cause"] == misses.BELOW_MINIMUM
        sent = sent.assign(cause=sent["cause"].where(short, misses.NO_CACHE))
    warm = sent[sent["counted"]]
    first = sent if not len(warm) else warm[(warm["cause"] == "") & warm["hit"]]
    times = [(one["began_ns"].dropna() / 1e6).to_numpy(np.float64) for one in (cold, first)]
    shown, ratio = list[Measured](), judge.medians(times[0], times[1], 1 + FASTER)
    if ratio is not None:
        ends = "{:.2f} to {:.2f}".format(*ratio.ends)
        shown.append(Measured("first content cold / warm (medians)", f"{ratio.value:.2f}x", ends, len(sent)))
    if len(sent) and not len(warm):
        return ProbeResult(without_usage(reading.frames.run["engine_cache"], sent, ratio), tuple(shown))
    checks = [
        of_cause(warm, misses.NO_CACHE), _unmarked(warm, has_marks=has_marks), of_cause(warm, misses.BELOW_MINIMUM),
        of_cause(warm, misses.UNSTABLE), of_cause(warm, misses.UNEXPLAINED), *_lifetime(warm, per_s, ttl, known),
    ]  # fmt: skip
    return ProbeResult(tuple(checks), tuple(shown))


def without_usage(counted: Json, sent: pd.DataFrame, ratio: Medians | None) -> tuple[ProbeCheck, ...]:
    """Whether there is a cache at all, where the target's usage has no cached tokens."""
    read, prompt = (number(counted.get(key)) for key in ("cached", "prompt"))
    why = "the usage has no cached tokens; vLLM adds them with --enable-prompt-tokens-details"
    if read is not None and prompt:
        text = f"{counted['engine']} counts {share(read / prompt)} of {count(prompt)} prompt tokens read from its cache"
        none = np.full(len(sent), read < NO_READS * prompt)
        one = ProbeCheck("no_cache", len(sent), 0.0 if none.all() else 1.0, text, _lost(sent, none))
    elif ratio is not None and ratio.p_value < judge.STRICT:
        text = f"{why}; a cold prefix takes {ratio.text} the time to first content of a warm one"
        one = ProbeCheck("no_cache", len(sent), 1.0, text)
    else:
        text = "too few answers" if ratio is None else f"cold over warm first content {ratio.text}"
        text = f"{why}; {text}: no sign of a cache, or of no use here"
        one = judge.inconclusive("no_cache", text, len(sent))
    probe = CHECKS["no_cache"].probe
    others = [name for name, spec in CHECKS.items() if spec.probe == probe and name != "no_cache"]
    return (one, *(judge.inconclusive(name, why, len(sent)) for name in others))


def steady_calls(reading: RunReading, known: CacheSettings, salted: set[str] | None = None) -> pd.DataFrame:
    """Calls of the steady stage, with the cause of each miss; `counted` are those whose usage has its cached tokens."""
    found = calls(reading.frames, known)
    found["cause"] = misses.causes(found, known, salted or set())
    return found[found["stage"] == schema.STEADY].reset_index(drop=True)


def of_cause(found: pd.DataFrame, cause: str, name: str = "") -> ProbeCheck:
    """Whether more calls than allowed miss for one cause; the check is called `name`, or as the cause."""
    name = name or cause
    met = (found["cause"] == cause).to_numpy(np.bool_)
    if cause == misses.UNEXPLAINED and not (found["read"] + found["created"]).any():
        met = met & (found["cache_marks"] > 0).to_numpy(np.bool_)  # no call was marked
    text, at = f"{judge.of_all(met)} calls, {judge.part(met)}", found["first_difference"][met].dropna()
    if cause == misses.UNSTABLE and len(at):
        text += f"; first difference at byte {int(at.mode().iloc[0]):,}"
    return judge.of_share(name, met, text, _lost(found, met))


def cost(found: pd.DataFrame) -> Floats:
    """What each call costs, in prices of an input token."""
    prompt = found["uncached"] + READ * found["read"] + WRITE * found["short"] + WRITE_HOUR * found["hour"]
    return np.asarray(prompt + OUTPUT * found["output_tokens"].fillna(0), np.float64)


def _lost(found: pd.DataFrame, met: Mask) -> Gain:
    """What the calls that miss would have saved. Of a call that wrote nothing: at most what a warm one reads."""
    if not met.any():
        return judge.NONE
    wrote = (WRITE - READ) * found["short"] + (WRITE_HOUR - READ) * found["hour"]
    nothing = (found["created"] == 0) & (found["read"] == 0)
    lost = wrote.where(~nothing, (1 - READ) * found["uncached"]).to_numpy(np.float64) * met
    return judge.saved(lost, cost(found))


def _unmarked(warm: pd.DataFrame, *, has_marks: bool) -> ProbeCheck:
    """Prefixes without a mark that the target does not cache automatically."""
    if not has_marks:
        return ProbeCheck("unmarked", len(warm), 1.0, "this protocol has no cache marks")
    bare = (warm["cache_marks"].fillna(0) == 0) & (warm["read"] == 0) & (warm["created"] == 0)
    met = (bare & (warm["cause"] != misses.NO_CACHE)).to_numpy(np.bool_)
    text = f"{judge.of_all(met)} calls have no mark, and read and write nothing"
    return judge.of_share("unmarked", met, text, _lost(warm, met))


def _lifetime(warm: pd.DataFrame, per_s: Floats, ttl: str, known: CacheSettings) -> list[ProbeCheck]:
    """Whether entries live until they are used again: by the scenario's rates, because a probe is shorter than a cache
    lifetime; what expired within the probe is checked too.
    """
    measured = of_cause(warm, misses.EXPIRED)
    longest, duration = ("1h", "an hour") if ttl in {"5m", "1h"} else ("12h", "12 hours")
    gone, gone_hour = (_gone(per_s, known, lives) for lives in (ttl, longest))
    marked = len(warm) and (warm["cache_marks"] > 0).all() and (warm["created"] + warm["read"]).any()
    gap_s = 1 / float(per_s.mean())
    gap = f"{gap_s:,.0f}" if gap_s >= 100 else f"{gap_s:.3g}"
    text = f"a prefix is used every {gap} s, its entry lives for {known.lives_s[ttl]:g} s"
    if not marked:
        return [judge.inconclusive("once", "no call has a mark, or nothing is cached"), measured]
    if gone <= CHECKS["expired"].share:
        return [ProbeCheck("once", len(warm), 1.0, text), measured]
    text = f"{text}: {share(gone)} of the calls find it expired, {share(gone_hour)} with marks for {duration} (Poisson arrivals)"
    found = "once" if gone_hour > CHECKS["once"].share else "expired"
    by_plan = ProbeCheck(found, len(warm), 0.0, text, _rewritten(warm, gone))
    other = ProbeCheck("once", len(warm), 1.0, text) if found == "expired" else replace(measured, p_value=1.0)
    return [by_plan, other]


def _gone(per_s: Floats, known: CacheSettings, ttl: str) -> float:
    """The share of calls that find their entry expired."""
    lived = per_s * known.lives_s[ttl]
    hits = sliding_hit(lived) if known.sliding else fixed_hit(lived)
    return 1 - float((hits * per_s).sum() / per_s.sum())


def _rewritten(warm: pd.DataFrame, gone: float) -> Gain:
    """What it costs to write these entries again instead of reading them."""
    again = ((WRITE - READ) * (warm["created"] + warm["read"])).to_numpy(np.float64)
    spent = cost(warm) + (WRITE - READ) * warm["read"].to_numpy(np.float64)
    return judge.scaled(judge.saved(again, spent), gone)


def fan_out(reading: RunReading, name: str) -> ProbeResult:
    """Result of a run: the joins of one table, whether one leg is heavy, and whether legs share their prefix."""
    steady = reading.steady.only((reading.steady.requests["traffic"] == name).to_numpy(np.bool_))
    found = legs(reading.frames.run["scenario"], steady)
    calls = steady_calls(reading, settings(reading.frames.run))
    calls = calls[calls["counted"] & (calls["traffic"] == name)].reset_index(drop=True)
    refused = ended_as(steady.sent, *judge.REFUSED)
    text = f"{judge.of_all(refused)} calls were refused"
    checks = [judge.of_share("legs_refused", refused, text)]
    # Whether legs read the prefix that they share.
    for check, cause in (("race", misses.RACE), ("per_slot", misses.UNEXPLAINED)):
        why = "this traffic has no shared prefix"
        checks.append(of_cause(calls, cause, check) if len(calls) else judge.inconclusive(check, why))
    joins = np.empty(0)
    if found:
        joins = found[0].times_ms[found[0].complete].max(axis=1)
        checks.append(heavy_leg(found[0]))
    measured = judge.latencies("join of a fan-out", joins)
    return ProbeResult(tuple(checks), tuple(measured), {"joins": joins}, judge.failed(reading))


def heavy_leg(of: Legs) -> ProbeCheck:
    """Whether requests would be done much sooner without one leg, or one kind of them: the one for which most would."""
    times, several = of.times_ms[of.complete], len(np.unique(of.kinds)) > 1
    groups = of.kinds if several else np.arange(times.shape[1])
    if len(np.unique(groups)) < 2 or not len(times):
        return judge.inconclusive("heavy_leg", "no request with all of several legs")
    join = times.max(axis=1)
    without = [times[:, groups != group].max(axis=1) for group in np.unique(groups)]
    heavy = [times[:, groups == group].min(axis=1) > WORSE * others for group, others in enumerate(without)]
    most = max(range(len(heavy)), key=lambda group: int(heavy[group].sum()))
    rest, typical = without[most], [ms(float(np.median(one))) for one in (join, without[most])]
    text = f"{'legs of kind' if several else 'leg'} {most + 1} of {len(heavy)}: {share(float(heavy[most].mean()))} of the requests wait for it a quarter longer than for the others (median join {typical[0]} ms, without it {typical[1]} ms)"
    return judge.of_share("heavy_leg", heavy[most], text, judge.saved(np.maximum(join - rest, 0), join))


def amplified(joins: Floats, singles: Sequence[tuple[Floats, int]]) -> ProbeCheck:
    """The joins compared with the slowest of single calls: of each kind its times, and how many a request has."""
    width = sum(count for _, count in singles)
    if min(len(joins), *(len(one) for one, _ in singles)) < judge.FEWEST:
        return judge.inconclusive("fan_out", "too few requests with all their legs, or single calls")
    found, typical = _against(joins, singles), float(np.median(joins))
    text = f"median join of {width} calls {ms(typical)} ms, slowest of as many single calls {ms(typical / found.value)} ms: {found.text}"
    return judge.of_medians("fan_out", len(joins), found, text)


def _against(joins: Floats, singles: Sequence[tuple[Floats, int]]) -> Medians:
    rng = np.random.default_rng(SEED)

    def log_ratio(a: Floats, of: Sequence[tuple[Floats, int]]) -> float:
        slowest = np.max([one[rng.integers(0, len(one), (DRAWS, n))].max(axis=1) for one, n in of], axis=0)
        return float(np.log(np.median(a) / np.median(slowest)))

    drawn = [
        log_ratio(rng.choice(joins, len(joins)), [(rng.choice(one, len(one)), n) for one, n in singles])
        for _ in range(judge.REPS)
    ]
    return judge.medians_of(log_ratio(joins, singles), np.array(drawn), WORSE)


def loaded(reading: RunReading, waits: Floats) -> ProbeResult:
    """Result of a run under load; `waits` of its requests, since sent."""
    steady = reading.steady
    duration_s = float(reading.frames.run["scenario"]["stages"]["duration_s"])
    at = steady.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    low_load, after = known(waits[at < judge.BURST_FROM]), known(waits[at >= judge.BURST_TO + SETTLING])
    attempts = steady.sent
    when = attempts["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    burst = (when >= judge.BURST_FROM) & (when < judge.BURST_TO) & (attempts["cause"] == schema.PRIMARY)
    refused = ended_as(attempts[burst], *judge.REFUSED)
    text = "the median wait after the burst is {} that before"
    checks = (
        judge.of_share("burst", refused, f"{judge.of_all(refused)} calls of the burst were refused"),
        judge.compared("unrecovered", after, low_load, SLOWER, text, "too few answers before or after the burst"),
        _no_retry_after(attempts),
        _early_retries(attempts),
    )  # fmt: skip
    return ProbeResult(checks, (), {"low_load": low_load}, judge.failed(reading))


def queueing(today: Floats, low_load: Floats, threshold: float) -> ProbeCheck:
    """The wait at today's rate (light probe) compared with a quarter of it."""
    text = "the median wait at today's rate is {} that at a quarter of it"
    few = "too few answers at a quarter of today's rate"
    return judge.compared("queueing", today, low_load, 1 + threshold, text, few)


def _no_retry_after(attempts: pd.DataFrame) -> ProbeCheck:
    limited = attempts[attempts["ended"] == schema.RATE_LIMITED]
    if not len(limited):
        return judge.inconclusive("no_retry_after", "no 429")
    silent = ~has_retry_after(limited)
    text = f"{judge.of_all(silent)} 429s have no retry-after"
    return judge.of_share("no_retry_after", silent, text, _of_attempts(silent, len(attempts)))


def _early_retries(attempts: pd.DataFrame) -> ProbeCheck:
    early = early_s(attempts)
    if not len(early):
        return judge.inconclusive("early_retries", "no retry after a 429 with retry-after")
    met = early > 0
    text = f"{judge.of_all(met)} retries before retry-after had elapsed, {judge.part(met)}"
    return judge.of_share("early_retries", met, text, _of_attempts(met, len(attempts)))


def _of_attempts(seen: Mask, n: int) -> Gain:
    """The share of all attempts: they depend on each other as much as those of which it was seen."""
    found = proportion(seen)
    return judge.of_proportion(counted(found.k, n, round(n * found.n_eff / found.n)))


# --- clients that leave ---------------------------------------------------------------------------------------------

IGNORED = "cancel_ignored"
WENT_ON = 0.5  # of what was left of the answer
BILLED_TIMES = 1.25  # what was generated
_KEYS = list(CALL)
_UNKNOWN = "unknown what the target {} after a client left: compare its usage report with the tokens received"


def cancelled(reading: RunReading, left_share: float) -> ProbeResult:
    """Result of a run; gains are shares of all answers, of which users cancel `left_share`."""
    attempts = reading.steady.attempts
    ours = attempts[attempts["ended"] == schema.CANCELLED]
    log = reading.frames.server_log.dropna(subset=_KEYS).drop_duplicates(_KEYS)
    both = ours[_KEYS].merge(log, on=_KEYS)
    both = both[both["cancelled_at_ns"].notna()].sort_values("received_at_ns", kind="stable")
    if not len(log):
        unknown = judge.inconclusive(IGNORED, _UNKNOWN.format("generates"))
        ignored = by_engine(reading.frames, left_share) or unknown
        return ProbeResult((ignored, judge.inconclusive("cancel_billed", _UNKNOWN.format("bills"))))
    requests = reading.frames.requests.drop_duplicates("request_id").set_index("request_id")
    whole = both["request_id"].map(requests["asked_output_tokens"]).to_numpy(np.float64)
    columns = both[["output_tokens", "tokens_after_cancel", "billed_output_tokens"]]
    sent, after, billed = columns.fillna(0).to_numpy(np.float64).T
    checks = _ignored(whole, sent, after, left_share), _billed(whole, sent + after, billed, left_share)
    return ProbeResult(checks)


def _ignored(whole: Floats, sent: Floats, after: Floats, left_share: float) -> ProbeCheck:
    went_on = after >= WENT_ON * np.maximum(whole - sent, 1)
    part = share(float(after.sum() / max(1.0, (whole - sent).sum())))
    text = f"{count(float(after.sum()))} tokens generated after the client left, {part} of the rest of {len(after)} answers"
    return judge.of_share(IGNORED, went_on, text, judge.scaled(judge.saved(after, whole), left_share))


def _billed(whole: Floats, generated: Floats, billed: Floats, left_share: float) -> ProbeCheck:
    more = billed > BILLED_TIMES * np.maximum(generated, 1)
    text = f"{count(float(billed.sum()))} tokens billed for {len(billed)} cancelled answers, {count(float(generated.sum()))} generated"
    gain = judge.scaled(judge.saved(np.maximum(billed - generated, 0), whole), left_share)
    return judge.of_share("cancel_billed", more, text, gain)


ALLOWED = 0.25  # of the rest: an engine that stops needs a moment to notice
LEAST_ERROR = 0.01
LEFT = (schema.CANCELLED, schema.CENSORED)  # the client closed both
NO_TOKENS = (schema.RATE_LIMITED, schema.OVERLOADED, schema.CONNECT_ERROR)
COUNTED = "{} counts {} tokens generated after the client left, {} of the rest of {:,} answers"


def by_engine(frames: Frames, left_share: float) -> ProbeCheck | None:
    """The check; None if the engine's count is unknown."""
    counts = frames.run["engine_tokens"]
    if not counts:
        return None
    calls = frames.attempts
    calls = calls[(calls["stage"] != schema.PREFLIGHT) & calls["sent_at_ns"].notna()]
    whole = calls[calls["ended"].isin(schema.COMPLETE)]
    left = calls[calls["ended"].isin(LEFT)]
    tokens = whole["output_tokens"].to_numpy(np.float64)
    others = len(calls) - len(whole) - len(left) - int(calls["ended"].isin(NO_TOKENS).sum())
    n = len(left)
    if min(len(whole), n) < judge.FEWEST:
        text = f"not enough data: {n} cancelled and {len(whole)} whole answers, {judge.FEWEST} of each needed"
        return judge.inconclusive(IGNORED, text, n)
    if np.isnan(tokens).any() or others:
        text = "the engine's count cannot be used: some calls failed or have no usage"
        return judge.inconclusive(IGNORED, text, n)
    had = float(left["chunks"].sum()) * float(tokens.sum()) / max(1.0, float(whole["chunks"].sum()))
    after = counts["after"] - counts["before"] - float(tokens.sum()) - had
    full = n * float(tokens.mean())
    rest = max(full - had, 1.0)
    # Of the sum of n answers, whose mean is that of the whole ones.
    spread = float(tokens.std(ddof=1)) * math.sqrt(n + n**2 / len(whole))
    error = max(LEAST_ERROR, spread / rest)
    part = after / rest
    engine, smallest = counts["engine"], min(1.0, ALLOWED + judge.Z_STRICT * error)
    if part > 1.25 + 3 * error:
        text = f"{engine} counts more tokens than were requested: others use it too"
        return judge.inconclusive(IGNORED, text, n)
    if part < -0.25 - 3 * error:
        return judge.inconclusive(IGNORED, f"{engine} counts fewer tokens than its usage", n)
    ends = (part + z * error for z in (0, -NORMAL_975, NORMAL_975))
    gain = judge.scaled(Gain(*(min(1.0, max(0.0, one * rest / full)) for one in ends)), left_share)
    text = COUNTED.format(engine, count(max(0.0, after)), share(max(0.0, part)), n)
    return ProbeCheck(IGNORED, n, judge.p_above(part, ALLOWED, error), text, gain, smallest)
