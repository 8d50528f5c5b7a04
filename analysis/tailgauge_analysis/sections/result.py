"""The user's answer: did the target do what was asked of it? And in one line, whether the measurement can be used.

NO ANSWER where no request was answered; FAIL where an objective failed, the default one on complete answers among them, or
the target does not sustain the rate; INCONCLUSIVE where an objective is; else PASS. An INVALID measurement does not change
the result, only the exit code.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tailgauge.errors import Exit
from tailgauge.rows import schema
from tailgauge.scenario.objective import ERRORS
from tailgauge.thresholds import INVALID
from tailgauge_analysis.metrics import slo, stability
from tailgauge_analysis.metrics.latency import OFFERED
from tailgauge_analysis.metrics.slo import share_interval
from tailgauge_analysis.sections.cache.cost import no_price, spent, tariff, with_usage
from tailgauge_analysis.sections.ends import (
    ABORTED_ADVICE,
    ENDED_BY_TARGET,
    REFUSED_ADVICE,
    advice_of_cut,
    cut_share,
    percent,
)
from tailgauge_analysis.sections.findings import ARRIVAL, Findings, remarks
from tailgauge_analysis.stats.quantiles import TOO_FEW, n_min
from tailgauge_analysis.text import section
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share
from tailgauge_analysis.text.json_values import number, table, text
from tailgauge_analysis.text.quantile import VALUE, quantile, value_text
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, NO_ANSWER, PASS, ObjectiveLine, Result

ANSWERED, COMPLETE, BACKLOG, STOPPED = "answered", "complete", "backlog", "stopped"
STATES = {"interrupted": Exit.INTERRUPTED, "unusable": Exit.TARGET, "error": Exit.INTERNAL}  # of a run
ENDS = {
    schema.REFUSED: "refused", schema.FILTERED: "filtered", schema.ABORTED: "aborted by the engine",
    schema.EMPTY: "empty", schema.CANCELLED: "abandoned by their users", schema.RATE_LIMITED: "rejected (429)",
    schema.OVERLOADED: "rejected (overloaded)", schema.SERVER_ERROR: "server errors", schema.CLIENT_ERROR: "rejected (4xx)",
    schema.CONNECT_ERROR: "not connected", schema.TIMEOUT: "timed out", schema.STREAM_ERROR: "broken streams",
    schema.TRUNCATED: "truncated", schema.PLUGIN_ERROR: "ended by an error of a plugin", schema.CENSORED: "still open at the end", schema.CLIENT_DROP: "dropped by the client",
}  # fmt: skip
_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
DRY_RUN = "dry run: nothing was sent, no client was measured"
CHECK_TARGET = "check the target's address, protocol, key and model"


def result(f: Findings) -> Result:
    """The answer of a run."""
    lines = objectives(f)
    if f.frames.run["state"] == "unusable":
        return Result(NO_ANSWER, f"the target could not be used: {_refusal(f)}", lines, advice=CHECK_TARGET)
    if not lines:
        return Result(INCONCLUSIVE, "no request of the steady stage can be judged", advice="run longer")
    if not _is_answered(f):
        text = f"none of {plural(len(f.steady.requests), 'request')} completed"
        advice = CHECK_TARGET if f.failures else _find_limit(f)
        cause = _prevailing_end(f)
        if cause is not None:
            text = f"{cause.sentence}: {text}"
            advice = cause.advice
        return Result(NO_ANSWER, text, lines, (*_stop(f), *_causes(f)), advice)
    return _judged(f, lines)


def _judged(f: Findings, lines: tuple[ObjectiveLine, ...]) -> Result:
    """By the objectives, complete answers first."""
    outcome = section.worst(line.outcome for line in lines)
    cut = cut_share(f.steady.requests)
    if outcome == PASS and len(lines) > 1:
        text = f"{len(lines)} of {len(lines)} objectives met"
        if cut:
            text += f", {percent(cut)} of the complete answers were cut"
        return Result(PASS, text, lines)
    deciding = [line for line in lines if line.outcome == outcome]
    line = next((one for name in (STOPPED, COMPLETE) for one in deciding if one.name == name), deciding[0])
    lines = (line, *(one for one in lines if one is not line))
    details: tuple[str, ...] = ()
    advice = ""
    if outcome == INCONCLUSIVE:
        details, advice = ((line.why,) if line.value else ()), _longer(f, line)
    if outcome == FAIL and any(one.name in {STOPPED, COMPLETE, BACKLOG} for one in deciding):
        details, advice = (*_stop(f), *_causes(f)), _find_limit(f)
    text, part = statement(line, cut), next((one for one in lines if one.name == COMPLETE), None)
    if line.name == BACKLOG and part is not None and part.outcome == INCONCLUSIVE:
        text = f"only {part.value} completed, and {text}"
    cause = _cause_of_failure(f, line, cut) if outcome != PASS else None
    if cause is not None:
        text = f"{cause.sentence}: {text}"
    if cause is not None and outcome == FAIL:
        advice = cause.advice
        details = details or tuple(_causes(f))
    elif outcome == FAIL and not advice:
        advice = _advice_of(f, line)
    return Result(outcome, text, lines, details, advice)


def _figure(line: ObjectiveLine) -> str:
    """Return the figure of an objective by its label: `complete (chat)`."""
    return line.name.split(" ")[0]


def _advice_of(f: Findings, line: ObjectiveLine) -> str:
    """Return what to do about an objective on an end that failed; nothing for other figures."""
    if _figure(line) == "refused":
        return REFUSED_ADVICE
    if _figure(line) == "cut":
        return advice_of_cut(is_natural=f.ends.has_natural)
    return ""


@dataclass(frozen=True, slots=True)
class _Cause:
    """How the answers ended that made a run fail, and what to do about it."""

    sentence: str
    advice: str


def _cause_of_failure(f: Findings, line: ObjectiveLine, cut: float) -> _Cause | None:
    """Return what keeps an objective on complete answers from passing, where it is how answers ended."""
    figure = _figure(line)
    if figure not in ERRORS:
        return None
    cause = _prevailing_end(f)
    ended = f.steady.requests["ended"]
    failed = int((~ended.isin(schema.NOT_FAILED)).sum())
    if figure == ANSWERED and int((ended == schema.CUT).sum()) > failed:
        advice = advice_of_cut(is_natural=f.ends.has_natural)
        return _Cause(f"{percent(cut)} of the complete answers were cut", advice)
    return cause


def _prevailing_end(f: Findings) -> _Cause | None:
    """Return the end that most requests without a complete answer have in common: refused or aborted by the target."""
    ended = f.steady.requests["ended"]
    counts = {str(name): int(n) for name, n in ended.value_counts().items()}
    answers = sum(n for name, n in counts.items() if name in ENDED_BY_TARGET)
    failed = sum(n for name, n in counts.items() if name not in schema.NOT_FAILED)
    model = counts.get(schema.REFUSED, 0)
    filtered = counts.get(schema.FILTERED, 0)
    aborted = counts.get(schema.ABORTED, 0)
    if model + filtered and 2 * (model + filtered) >= failed:
        verbs = [verb for verb, n in (("refused", model), ("filtered", filtered)) if n]
        part = percent((model + filtered) / answers)
        return _Cause(f"{part} of the answers were {' or '.join(verbs)}", REFUSED_ADVICE)
    if aborted and 2 * aborted >= failed:
        part = percent(aborted / answers)
        return _Cause(f"{part} of the answers were aborted by the engine", ABORTED_ADVICE)
    return None


def statement(line: ObjectiveLine, cut: float = 0.0) -> str:
    """An objective in a sentence: `ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)`.

    `cut`: the share of the complete answers that were cut, for the objective on these.
    """
    if line.name == COMPLETE:
        value = line.value if " of " in line.value else f"{line.value} of the requests"
        text = f"{'only ' if line.outcome == FAIL else ''}{value} completed"
        if cut:
            text += f", {percent(cut)} of them cut"
        return f"{text} (objective {line.bound.split()[-1]}, 95% CI {line.interval})"
    if line.name == STOPPED:
        return f"{STOPPED} {line.value}: {line.why}"
    if line.name == BACKLOG:
        return f"the target does not sustain this rate: backlog {line.value}"
    if not line.value:
        return f"{line.name}: {line.why}"
    ends = f" (95% CI {line.interval})" if line.interval else ""
    return f"{line.name} {line.value} {line.bound}{ends}"


def objectives(f: Findings) -> tuple[ObjectiveLine, ...]:
    """Those of the scenario, the default one, and a backlog that grows."""
    lines = [one.line for one in f.slos]
    h = f.health
    if h is not None and h.judged.value is not None:
        bound = f"{'<' if h.judged.value < h.bound else '>='} {100 * h.bound:g}%"
        interval = share_interval(h.judged.low, h.judged.high)
        value = f"{share(h.judged.value)} of {plural(h.judged.n, 'request')}"
        why = "the interval includes the bound: run longer" if h.outcome.upper() == INCONCLUSIVE else ""
        lines.append(ObjectiveLine(COMPLETE, h.outcome.upper(), value, bound, interval, why))
    if f.frames.run["state"] == STOPPED:
        when, _, why = plain(f.frames.run["stopped"], 300).partition(": ")
        lines.append(ObjectiveLine(STOPPED, FAIL, when, "", "", why))
    grows = f.evidence.stability.growth_per_s
    if f.evidence.stability.of(stability.BACKLOG) and grows is not None:
        lines.append(ObjectiveLine(BACKLOG, FAIL, f"grows by {figures(grows)} requests/s", "> 0 requests/s"))
    return tuple(lines)


def measurement(f: Findings) -> section.Measurement:
    """Whether the numbers of a run can be used."""
    worst = max((one.error_ms for one in f.evidence.errors if one.is_used), default=None)
    sentence = "" if worst is None else f"client error {'< 0.1' if worst < 0.1 else ms(worst)} ms"
    if f.frames.run["dry_run"]:
        sentence = DRY_RUN
    if f.reasons:
        sentence = f.reasons[0].text
    reasons = tuple((one.text, one.advice) for one in f.reasons)
    return section.Measurement(f.verdict, sentence, reasons, (*remarks(f), *f.explanations))


def exit_code(f: Findings, answer: Result) -> Exit:
    """Of a run, and of the report of its folder."""
    codes = [section.EXITS[answer.outcome]]
    if f.verdict == INVALID or f.evidence.conservation.lost:
        codes.append(Exit.INVALID)
    if not f.frames.run["rebuilt"]:
        codes.append(STATES.get(f.frames.run["state"], Exit.OK))
    return Exit.worst(codes)


def summary(f: Findings) -> Iterator[tuple[str, str]]:
    """What the target did, in a line each: how much it completed, how fast."""
    rates, done, h = f.evidence.throughput, [], f.health
    if h and not h.outcome:  # else it is an objective
        of = h.complete
        ends = f"95% CI {share_interval(of.low, of.high)}"
        done.append(f"{share(of.value)} of {plural(of.n, 'request')} completed ({ends})")
    if rates.completed_per_s is not None and rates.offered_per_s is not None:
        at = f"{figures(rates.offered_per_s)}/s offered"
        done.append(f"{figures(rates.completed_per_s)} requests/s completed at {at}")
    if rates.output_tokens_per_s is not None:
        done.append(f"{figures(rates.output_tokens_per_s)} tokens/s")
    if done:
        yield "target", ", ".join(done)
    since = "sent" if f.frames.run["arrival"] == "closed" else "sched"
    shown = (
        (f"ttft_{since}", (0.5, 0.95)), ("tpot", (0.5,)), (f"e2e_{since}", (0.95,)), ("join_sched", (0.5, 0.95)),
        ("turnaround", (0.5,)),
    )  # fmt: skip
    rows = {row.metric.name: row for row in f.latency if row.view == OFFERED and row.n}
    parts = []
    for name, ps in shown:
        found = [quantile(q) for q in rows[name].quantiles if q.p in ps] if name in rows else []
        found = [q for q in found if q["value_is"] != TOO_FEW]
        if found:
            unit = " ms" if found[-1]["value_is"] == VALUE else ""
            values = "  ".join(f"{q['label']} {value_text(q)}" for q in found)
            parts.append(f"{name.split('_')[0]} {values}{unit}")
    if parts:
        yield "latency", " | ".join(parts)
    known = (f"{one.label} {one.precision}" for one in f.slos if one.precision)
    yield from (("precision", text) for text in (*known, slo.looked(f.frames.run)) if text)
    if f.evidence.stability.of(stability.BACKLOG) is None:  # else it is the result
        yield from (("steady", text) for text in stability.remarks(f.evidence.stability, f.steady.seconds))
    if f.frames.run["arrival"] in ARRIVAL:
        yield "arrival", ARRIVAL[f.frames.run["arrival"]]


def _is_answered(f: Findings) -> bool:
    """Whether a request completed, or its user left an answer that had begun; also where the client sent none.

    What a stop rule ended has failed at its end: any answer of the run counts.
    """
    requests, every = f.steady.requests, f.frames.requests
    of_run = every.loc[every["stage"] != schema.PREFLIGHT, "ended"]
    if f.frames.run["state"] == STOPPED and of_run.isin(schema.COMPLETE).any():
        return True
    ended = requests["ended"]
    begun = ended.isin(schema.COMPLETE) | (ended == schema.CANCELLED) & requests["left_first_at_ns"].notna()
    return bool(begun.any() or (ended == schema.CLIENT_DROP).all())


def _refusal(f: Findings) -> str:
    messages = [plain(str(one["message"]), 300) for one in f.frames.run["preflight"] if one.get("message")]
    return messages[-1].rstrip(".") if messages else "see the notes of the run"


def _causes(f: Findings) -> Iterator[str]:
    """Why requests did not complete, and what the target completes."""
    counts = f.steady.requests["ended"].value_counts()
    bad = counts.drop(list(schema.COMPLETE), errors="ignore").items()
    names = ENDS | {schema.CLIENT_ERROR: _client_errors(f)}
    ends = [f"{count(n)} {names.get(str(name), name)}{_oldest(f, str(name))}" for name, n in bad]
    if ends:
        yield f"not completed: {', '.join(ends)}"
    has_complete = any(name in schema.COMPLETE for name in counts.index)
    if f.failures and not has_complete and f.failures[0].ended not in ENDED_BY_TARGET:
        first = f.failures[0]
        status = f"HTTP {first.status}" if first.status else first.ended
        yield f"most frequent error: {' '.join(filter(None, [status, first.error_type, plain(first.excerpt, 120)]))}"


def _client_errors(f: Findings) -> str:
    """Return what client errors were: refusals with a status, or answers that are not the protocol's."""
    errors = f.frames.attempts["ended"] == schema.CLIENT_ERROR
    has_refusals = (f.frames.attempts.loc[errors, "status"] >= 400).any()
    return ENDS[schema.CLIENT_ERROR] if has_refusals else "with an answer that is not the protocol's"


def _stop(f: Findings) -> Iterator[str]:
    """What a run that a stop rule ended has spent, its preflight included."""
    if f.frames.run["state"] != STOPPED:
        return
    sent = f.frames.attempts[f.frames.attempts["sent_at_ns"].notna()]
    used, prices = with_usage(sent), tariff(f.frames.run)
    total, unpriced = spent(used, prices.price)
    unknown = f"cost unknown ({no_price(unpriced, prices.why)})"
    cost = unknown if total is None else f"{figures(float(total))} {prices.unit}"
    unknown = f", usage of {plural(len(sent) - len(used), 'call')} unknown" if len(used) < len(sent) else ""
    yield f"spent: {plural(len(sent), 'call')}, {count(used[list(_TOKENS)].sum().sum())} tokens, {cost}{unknown}"


def _oldest(f: Findings, ended: str) -> str:
    """How long the first of the requests that were open at the end had waited."""
    run, requests = f.frames.run, f.steady.requests
    if ended != schema.CENSORED or run["ended_at_ns"] is None or run["start_at_ns"] is None:
        return ""
    first = requests.loc[requests["ended"] == ended, "scheduled_at_ns"].min()
    return f" (the first for {figures((run['ended_at_ns'] - run['start_at_ns'] - first) / 1e9)} s)"


def _longer(f: Findings, line: ObjectiveLine) -> str:
    """What decides an objective on a percentile that had too few requests."""
    scenario = f.frames.run["scenario"]
    seconds = number(table(scenario, "stages").get("duration_s"))
    one = next((one for one in f.slos if one.line is line), None)
    if one and one.precision:
        return ""
    has_plan = table(scenario, "arrival").get("process") != "tasks"
    if not (has_plan and seconds and one and one.p and 0 < one.n < n_min(one.p)):
        return "" if line.value and "run longer" in line.why else "run longer"  # once is enough
    return f"run longer: --duration {10 * math.ceil(seconds * n_min(one.p) / one.n / 10 * 1.05)}s"


def _find_limit(f: Findings) -> str:
    """What to do about a target that does not complete what it is offered."""
    if f.frames.run["arrival"] == "closed":
        return "use fewer users, or look at the errors"
    target = f.frames.run["target"]
    url = "" if target.get("simulated") else text(target.get("url"))
    at = f" --target {shlex.quote(plain(url, 200))}" if url else ""
    return f"lower the rate, or find the limit: tailgauge run headroom{at}"
