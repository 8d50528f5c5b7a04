"""The user's answer: did the target do what was asked of it? And in one line, whether the measurement can be used.

NO ANSWER where no request was answered; FAIL where an objective failed, the default one on complete answers among them, or
the target does not sustain the rate; INCONCLUSIVE where an objective is; else PASS. An INVALID measurement does not change
the result, only the exit code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tailgauge.errors import Exit
from tailgauge.rows import schema
from tailgauge.scenario.figures import ERRORS
from tailgauge.thresholds import INVALID
from tailgauge_analysis.metrics import stability
from tailgauge_analysis.metrics.latency import OFFERED
from tailgauge_analysis.objectives import health
from tailgauge_analysis.objectives.health import COMPLETE
from tailgauge_analysis.objectives.precision import looked
from tailgauge_analysis.objectives.text import share_interval
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import errors, objectives
from tailgauge_analysis.sections.advice import (
    CHECK_TARGET,
    REFUSED_ADVICE,
    STILL_OPEN,
    Cause,
    find_limit,
    list_of_ends,
    prevailing,
)
from tailgauge_analysis.sections.cache.cost import no_price, prices_of, spent, with_usage
from tailgauge_analysis.sections.ends import ENDED_BY_TARGET, advice_of_cut, cut_share, has_natural, percent
from tailgauge_analysis.sections.measurement import explanations
from tailgauge_analysis.stats.quantiles import TOO_FEW, n_min
from tailgauge_analysis.text import section
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share
from tailgauge_analysis.text.json_values import number, table
from tailgauge_analysis.text.quantile import VALUE, quantile, value_text
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, NO_ANSWER, PASS, ObjectiveLine, Result

ANSWERED = "answered"
BACKLOG = "backlog"
STOPPED = "stopped"
ERROR_RATE = "error_rate"
REJECTIONS = ("429_rate", "529_rate")
STATES = {"interrupted": Exit.INTERRUPTED, "unusable": Exit.TARGET, "error": Exit.INTERNAL}  # of a run
_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
# How requests arrive (arrival of run.json), where it changes the meaning of the numbers.
ARRIVAL = {
    "closed": "Closed loop: arrivals waited for answers; the tail is not what open traffic would see.",
    "partly open": "Partly open: sessions arrived on schedule, their later turns waited for answers.",
}
DRY_RUN = "dry run: nothing was sent, no client was measured"


def result(run: Run) -> Result:
    """The answer of a run."""
    lines = objective_lines(run)
    if run.record["state"] == "unusable":
        return Result(NO_ANSWER, f"the target could not be used: {_refusal(run)}", lines, advice=CHECK_TARGET)
    if not lines:
        return Result(INCONCLUSIVE, "no request of the steady stage can be judged", advice="run longer")
    if not _is_answered(run):
        text = f"none of {plural(len(run.steady.requests), 'request')} completed"
        cause = prevailing(run)
        advice = find_limit(run) if cause is None else cause.advice
        if cause is not None and cause.sentence:
            text = f"{cause.sentence}: {text}"
        return Result(NO_ANSWER, text, lines, (*_stop(run), *_causes(run)), advice)
    return _judged(run, lines)


def _judged(run: Run, lines: tuple[ObjectiveLine, ...]) -> Result:
    """By the objectives, complete answers first."""
    outcome = section.worst(line.outcome for line in lines)
    cut = cut_share(run.steady.requests)
    if outcome == PASS and len(lines) > 1:
        text = f"{len(lines)} of {len(lines)} objectives met"
        if cut:
            text += f", {percent(cut)} of the complete answers were cut"
        return Result(PASS, text, lines)
    deciding = [line for line in lines if line.outcome == outcome]
    decisive = _most_decisive(deciding)
    lines = (decisive, *(line for line in lines if line is not decisive))
    text = statement(decisive, cut)
    if outcome == PASS:
        return Result(PASS, text, lines)
    cause = _cause_of_failure(run, decisive, cut)
    if cause is not None and cause.sentence:
        text = f"{cause.sentence}: {text}"
    if outcome == INCONCLUSIVE:
        why = (decisive.why,) if decisive.value else ()
        return Result(INCONCLUSIVE, text, lines, why, _longer(run, decisive))
    details, advice = _consequences(run, deciding, decisive, cause)
    partly = [line for line in lines if line.name == COMPLETE and line.outcome == INCONCLUSIVE]
    if decisive.name == BACKLOG and partly:
        text = f"only {partly[0].value} completed, and {text}"
    return Result(FAIL, text, lines, details, advice)


def _most_decisive(lines: list[ObjectiveLine]) -> ObjectiveLine:
    """A stop, then complete answers, then the first of the scenario."""
    for name in (STOPPED, COMPLETE):
        for line in lines:
            if line.name == name:
                return line
    return lines[0]


def _consequences(
    run: Run, failed: list[ObjectiveLine], decisive: ObjectiveLine, cause: Cause | None
) -> tuple[tuple[str, ...], str]:
    """Details of a failed run, and the advice."""
    details: tuple[str, ...] = ()
    advice = ""
    if {STOPPED, COMPLETE, BACKLOG}.intersection(line.name for line in failed):
        details = (*_stop(run), *_causes(run))
        advice = find_limit(run)
    if cause is None:
        return details, advice or _advice_of(run, decisive)
    grows = tuple(statement(line) for line in failed if line.name == BACKLOG)
    return (*(details or _causes(run)), *grows), cause.advice


def _figure(line: ObjectiveLine) -> str:
    """Return the figure of an objective by its label: `complete (chat)`."""
    return line.name.split(" ")[0]


def _advice_of(run: Run, line: ObjectiveLine) -> str:
    """Return what to do about an objective on an end that failed; nothing for other figures."""
    if _figure(line) == "refused":
        return REFUSED_ADVICE
    if _figure(line) == "cut":
        return advice_of_cut(is_natural=has_natural(run.record["scenario"]))
    if _figure(line) in REJECTIONS:
        return find_limit(run)
    return ""


def _cause_of_failure(run: Run, line: ObjectiveLine, cut: float) -> Cause | None:
    """Return why an objective on answers does not pass, where requests failed or were cut."""
    figure = _figure(line)
    if line.name == STOPPED:
        return prevailing(run)
    if figure not in ERRORS:
        return None
    ended = run.steady.requests["ended"]
    failed = int((~ended.isin(schema.NOT_FAILED)).sum())
    if figure == ANSWERED and int((ended == schema.CUT).sum()) > failed:
        advice = advice_of_cut(is_natural=has_natural(run.record["scenario"]))
        return Cause("cut", f"{percent(cut)} of the complete answers were cut", advice)
    return prevailing(run, schema.NOT_FAILED if figure == ERROR_RATE else schema.COMPLETE)


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
    return f"{line.name} {line.measured}"


def objective_lines(run: Run) -> tuple[ObjectiveLine, ...]:
    """Those of the scenario, the default one, and a backlog that grows."""
    judged = run.result(objectives.compute)
    lines = [objective.line for objective in judged.slo if objective.gate]
    complete = None if judged.health is None else health.line(judged.health)
    if complete is not None:
        lines.append(complete)
    if run.record["state"] == STOPPED:
        when, _, why = plain(run.record["stopped"], 300).partition(": ")
        lines.append(ObjectiveLine(STOPPED, FAIL, when, "", "", why))
    grows = run.evidence.stability.growth_per_s
    if run.evidence.stability.of(stability.BACKLOG) and grows is not None:
        lines.append(ObjectiveLine(BACKLOG, FAIL, f"grows by {figures(grows)} requests/s", "> 0 requests/s"))
    return tuple(lines)


def remarks(run: Run) -> list[str]:
    """What a reader must know of the traffic before the numbers."""
    record = run.record
    conservation = run.evidence.conservation
    texts = stability.remarks(run.evidence.stability, run.steady.seconds)
    if record["arrival"] in ARRIVAL:
        texts.append(ARRIVAL[record["arrival"]])
    if n := conservation.found:
        given = any(one.found for one in conservation.workers)
        where = "found in the other folders given" if given else "written after all"
        verb = "was" if n == 1 else "were"
        texts.insert(0, f"{plural(n, 'request')} counted as lost by the master {verb} {where}.")
    if slow := int(run.steady.attempts["reader_paused_ns"].notna().sum()):
        read = f"{plural(slow, 'attempt')} read slowly on purpose, reported separately"
        texts.append(f"{read}: their times are those of the reader.")
    return texts


def measurement(run: Run) -> section.Measurement:
    """Whether the numbers of a run can be used."""
    worst = max((one.error_ms for one in run.evidence.errors if one.is_used), default=None)
    sentence = "" if worst is None else f"client error {'< 0.1' if worst < 0.1 else ms(worst)} ms"
    if run.record["dry_run"]:
        sentence = DRY_RUN
    if run.reasons:
        sentence = run.reasons[0].text
    reasons = tuple((one.text, one.advice) for one in run.reasons)
    return section.Measurement(run.verdict, sentence, reasons, (*remarks(run), *run.result(explanations)))


def exit_code(run: Run, answer: Result) -> Exit:
    """Of a run, and of the report of its folder."""
    codes = [section.EXITS[answer.outcome]]
    if run.verdict == INVALID or run.evidence.conservation.lost:
        codes.append(Exit.INVALID)
    if not run.record["rebuilt"]:
        codes.append(STATES.get(run.record["state"], Exit.OK))
    return Exit.worst(codes)


def summary(run: Run) -> Iterator[tuple[str, str]]:
    """What the target did, in a line each: how much it completed, how fast."""
    rates = run.evidence.throughput
    done = []
    h = run.result(objectives.compute).health
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
    since = "sent" if run.record["arrival"] == "closed" else "sched"
    shown = (
        (f"ttft_{since}", (0.5, 0.95)), ("tpot", (0.5,)), (f"e2e_{since}", (0.95,)), ("join_sched", (0.5, 0.95)),
        ("turnaround", (0.5,)),
    )  # fmt: skip
    rows = {row.metric.name: row for row in run.evidence.latency if row.view == OFFERED and row.n}
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
    known = (f"{one.label} {one.precision}" for one in run.result(objectives.compute).slo if one.precision)
    yield from (("precision", text) for text in (*known, looked(run.record)) if text)
    if run.evidence.stability.of(stability.BACKLOG) is None:  # else it is the result
        yield from (
            ("steady", text) for text in stability.remarks(run.evidence.stability, run.steady.seconds)
        )
    if run.record["arrival"] in ARRIVAL:
        yield "arrival", ARRIVAL[run.record["arrival"]]


def _is_answered(run: Run) -> bool:
    """Whether a request completed, or its user left an answer that had begun; also where the client sent none.

    What a stop rule ended has failed at its end: any answer of the run counts.
    """
    requests = run.steady.requests
    every = run.frames.requests
    of_run = every.loc[every["stage"] != schema.PREFLIGHT, "ended"]
    if run.record["state"] == STOPPED and of_run.isin(schema.COMPLETE).any():
        return True
    ended = requests["ended"]
    begun = ended.isin(schema.COMPLETE) | (ended == schema.CANCELLED) & requests["left_first_at_ns"].notna()
    return bool(begun.any() or (ended == schema.CLIENT_DROP).all())


def _refusal(run: Run) -> str:
    messages = [plain(str(one["message"]), 300) for one in run.record["preflight"] if one.get("message")]
    return messages[-1].rstrip(".") if messages else "see the notes of the run"


def _causes(run: Run) -> Iterator[str]:
    """Why requests did not complete, and what the target completes."""
    ends = [f"{count(number)} {label}{_oldest(run, label)}" for label, number in list_of_ends(run).items()]
    if ends:
        yield f"not completed: {', '.join(ends)}"
    has_complete = bool(run.steady.requests["ended"].isin(schema.COMPLETE).any())
    if (
        run.result(errors.compute).errors
        and not has_complete
        and run.result(errors.compute).errors[0].ended not in ENDED_BY_TARGET
    ):
        first = run.result(errors.compute).errors[0]
        status = f"HTTP {first.status}" if first.status else first.ended
        yield f"most frequent error: {' '.join(filter(None, [status, first.error_type, plain(first.excerpt, 120)]))}"


def _stop(run: Run) -> Iterator[str]:
    """What a run that a stop rule ended has spent, its preflight included."""
    if run.record["state"] != STOPPED:
        return
    sent = run.frames.attempts[run.frames.attempts["sent_at_ns"].notna()]
    used = with_usage(sent)
    prices = run.result(prices_of)
    total, unpriced = spent(used, prices.price)
    unknown = f"cost unknown ({no_price(unpriced, prices.why)})"
    cost = unknown if total is None else f"{figures(float(total))} {prices.unit}"
    unknown = f", usage of {plural(len(sent) - len(used), 'call')} unknown" if len(used) < len(sent) else ""
    yield f"spent: {plural(len(sent), 'call')}, {count(used[list(_TOKENS)].sum().sum())} tokens, {cost}{unknown}"


def _oldest(run: Run, label: str) -> str:
    """How long the first of the requests that were open at the end had waited."""
    record = run.record
    requests = run.steady.requests
    if label != STILL_OPEN or record["ended_at_ns"] is None or record["start_at_ns"] is None:
        return ""
    first = requests.loc[requests["ended"] == schema.CENSORED, "scheduled_at_ns"].min()
    return f" (the first for {figures((record['ended_at_ns'] - record['start_at_ns'] - first) / 1e9)} s)"


def _longer(run: Run, line: ObjectiveLine) -> str:
    """What decides an objective on a percentile that had too few requests."""
    scenario = run.record["scenario"]
    seconds = number(table(scenario, "stages").get("duration_s"))
    one = next((one for one in run.result(objectives.compute).slo if one.line is line), None)
    if one and one.precision:
        return ""
    has_plan = table(scenario, "arrival").get("process") != "tasks"
    if not (has_plan and seconds and one and one.p and 0 < one.n < n_min(one.p)):
        return "" if line.value and "run longer" in line.why else "run longer"  # once is enough
    return f"run longer: --duration {10 * math.ceil(seconds * n_min(one.p) / one.n / 10 * 1.05)}s"
