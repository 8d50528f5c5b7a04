"""The user's answer: did the target do what was asked of it? And in one line, whether the measurement can be used.

The rules of RULES are asked in their order. INTERRUPTED where the user ended the run, NO ANSWER where no request was
answered; FAIL where an objective failed, the default one on complete answers among them, or the target does not sustain the
rate; INCONCLUSIVE where most answers of a short run came after the load ended, or an objective is; COMPLETED without an
objective where too few requests completed to show the default one; else PASS. An INVALID measurement does not change the
result, only the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from tailgauge.errors import Exit
from tailgauge.rows import schema
from tailgauge.scenario.figures import BOUNDS_EVERY_FAILURE
from tailgauge.thresholds import ENDLESS_S, INVALID
from tailgauge_analysis.metrics import backlog, stability
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES
from tailgauge_analysis.metrics.steady import at_slots, is_counted, is_of_tasks
from tailgauge_analysis.metrics.throughput import whole_run
from tailgauge_analysis.objectives import health, outcome
from tailgauge_analysis.objectives.health import COMPLETE
from tailgauge_analysis.objectives.objective import on_latency
from tailgauge_analysis.objectives.outcome import ObjectiveResult
from tailgauge_analysis.objectives.precision import looked
from tailgauge_analysis.objectives.text import share_interval
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import errors, load_steps, objectives, throughput
from tailgauge_analysis.sections.advice import (
    EQUAL_REJECTIONS,
    REFUSED_ADVICE,
    Cause,
    of_growth,
    of_preflight,
    of_rejections,
    prevailing,
)
from tailgauge_analysis.sections.cache.cost import no_price, prices_of, spent, with_usage
from tailgauge_analysis.sections.ends import (
    ENDED_BY_TARGET,
    advice_of_cut,
    cut_share,
    has_natural,
    percent,
)
from tailgauge_analysis.sections.failures import LIMIT, OVERLOAD, STILL_OPEN, list_of_ends
from tailgauge_analysis.sections.length import beyond_answers, longer
from tailgauge_analysis.sections.measurement import explanations
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile
from tailgauge_analysis.text import section
from tailgauge_analysis.text.cells import common_mark, named_values, quantile_cell, with_interval
from tailgauge_analysis.text.formatting import (
    count,
    figures,
    listed,
    ms,
    plain,
    plural,
    share,
    within_sentence,
)
from tailgauge_analysis.text.json_values import number, table
from tailgauge_analysis.text.quantile import FAILED, interval_text
from tailgauge_analysis.text.section import (
    COMPLETED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    NO_ANSWER,
    PASS,
    Numbers,
    ObjectiveLine,
    Result,
    Value,
)
from tailgauge_analysis.verdict.checks import CLIENT_ERROR
from tailgauge_analysis.verdict.client_error import NOTICED_MS, ClientError
from tailgauge_analysis.verdict.completeness import refusal, task_errors
from tailgauge_analysis.verdict.distortion import figure_names, unusable_figures

ANSWERED = "answered"
BACKLOG = "backlog"
STOPPED = "stopped"
SILENT = "silent"
LOAD_STEP = "load step"
# Requests without an answer explain why these objectives fail.
OF_ANSWERS = frozenset({STOPPED, COMPLETE, BACKLOG, SILENT, LOAD_STEP})
ERROR_RATE = "error_rate"
REJECTIONS = {"429_rate": LIMIT, "529_rate": OVERLOAD}  # kinds of failure
LONGER = ": run longer"  # at the end of why an objective is inconclusive
INTERRUPTED_STATE = "interrupted"
# The exit code of a run by its state; of other states its outcome decides.
STATES = {
    INTERRUPTED_STATE: Exit.INTERRUPTED,
    "unusable": Exit.TARGET,
    "error": Exit.INTERNAL,
}
_TOKENS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
# How requests arrive (arrival of run.json), where it changes the meaning of the numbers.
ARRIVAL = {
    "closed": "Closed loop: arrivals waited for answers; the tail is not what open traffic would see.",
    "partly open": "Partly open: sessions arrived on schedule, their later turns waited for answers.",
}
OF_TASKS = (
    "Closed loop: a user waits for its answer, so a slow target gets less traffic. "
    "Latency counts since sent, in Locust's statistics since the task's call."
)
Lines = tuple[ObjectiveLine, ...]
GAP = "chunk_gap"
SHOWN_FINDS = 2  # objectives
SHOWN_TABLES = 3  # of the traffic
BEYOND = " beyond "  # in `7.6% of requests beyond 800 ms`
MOST_TASK_ERRORS = 3  # beside the most frequent
DRY_RUN = "dry run: nothing was sent, so there is no measurement error"


Rule = Callable[[Run, Lines], Result | None]


def result(run: Run) -> Result:
    """Return the answer of a run: that of the first of RULES that has one, else that every objective is met."""
    lines = run.result(objective_lines)
    for rule in RULES:
        answer = rule(run, lines)
        if answer is not None:
            return answer
    return _pass_result(run, lines)


def _unusable(run: Run, lines: Lines) -> Result | None:
    """The preflight found that the target cannot be used."""
    if run.record["state"] != "unusable":
        return None
    return Result(
        NO_ANSWER,
        f"the target could not be used: {refusal(run.record) or 'see the notes of the run'}",
        lines,
        advice=of_preflight(run),
    )


def _interrupted(run: Run, lines: Lines) -> Result | None:
    """The user ended the run: what was recorded until then, without advice to run longer."""
    if run.record["state"] != INTERRUPTED_STATE or run.record["rebuilt"]:
        return None
    requests = run.frames.requests
    recorded = int((requests["stage"] != schema.PREFLIGHT).sum())
    text = f"{_interrupted_when(run)}; {plural(recorded, 'request')} recorded in runs/{run.record['run_id']}"
    decided = tuple(line for line in lines if line.value and line.outcome in {PASS, FAIL})
    return Result(INTERRUPTED, text, decided, tuple(_causes(run)))


def _interrupted_when(run: Run) -> str:
    """Return when the user ended the run: `after 12 of 60 s`, or `after 2 s, before the steady stage`.

    The time counts from the start of the load to when no more requests were let in. After all of the load the text is `after the
    load of 60 s, before all requests had ended`. A run of Locust's tasks has no planned length.
    """
    record = run.record
    start_ns = record["start_at_ns"]
    load_end_ns = record["admission_end_at_ns"] or record["ended_at_ns"]
    if start_ns is None or load_end_ns is None:
        return "during the run"
    passed_s = max(0.0, (load_end_ns - start_ns) / 1e9)
    planned_s = number(table(record["scenario"], "stages").get("duration_s"))
    # A length that means none.
    if planned_s == ENDLESS_S:
        planned_s = None
    if not len(run.steady.requests):
        return f"after {figures(passed_s)} s, before the steady stage"
    if planned_s is None or is_of_tasks(run.record["scenario"]):
        return f"after {figures(passed_s)} s"
    if passed_s >= planned_s:
        return f"after the load of {figures(planned_s)} s, before all requests had ended"
    return f"after {figures(passed_s)} of {figures(planned_s)} s"


def _nothing_judged(_run: Run, lines: Lines) -> Result | None:
    """No request of the steady stage, and no objective."""
    if lines:
        return None
    return Result(INCONCLUSIVE, "no request of the steady stage can be judged")


def _task_errors(run: Run, lines: Lines) -> Result | None:
    """Tasks of a locustfile raised exceptions: requests that they did not make cannot count as completed."""
    counts = task_errors(run.record)
    if not counts:
        return None
    (text, number), *rest = counts.most_common(MOST_TASK_ERRORS + 1)
    details = []
    for message, times in rest[:MOST_TASK_ERRORS]:
        details.append(f"{count(times)} {plain(message, 200)}")
    errors = plural(counts.total(), "task error")
    sentence = f"{errors}: {plain(text, 200)}"
    if rest:
        sentence = f"{errors}, {count(number)} of them {plain(text, 200)}"
    return Result(
        FAIL,
        sentence,
        lines,
        tuple(details),
        "fix the tasks: they did not make the requests after these lines",
    )


def _no_answer(run: Run, lines: Lines) -> Result | None:
    """No request got an answer."""
    if _is_answered(run):
        return None
    text = f"none of {plural(len(run.steady.requests), 'request')} completed"
    cause = prevailing(run)
    advice = ""
    if cause is not None:
        advice = cause.advice
    return Result(NO_ANSWER, _with_cause(cause, text), lines, (*_causes(run), *_stop(run)), advice)


def _failed(run: Run, lines: Lines) -> Result | None:
    """An objective failed, a stop rule ended the run, or the target does not sustain the rate."""
    failed = [line for line in lines if line.outcome == FAIL]
    if not failed:
        return None
    decisive, cause, text = _decisive(run, failed)
    completed = run.result(objectives.compute).health
    if decisive.name == BACKLOG and completed and (completed.judged.value or 1.0) < completed.bound:
        text = f"only {share(completed.judged.value)} of {plural(completed.judged.n, 'request')} completed, and {text}"
    details, advice = _consequences(run, failed, decisive, cause)
    return Result(FAIL, text, _decisive_first(decisive, lines), details, advice)


def _answered_late(run: Run, lines: Lines) -> Result | None:
    """In a short run most answers came after the load ended: it shows nothing of what the target sustains."""
    text = ""
    if not is_counted(run.frames):
        text = backlog.answers_after_load(run.without_slow_readers)
    if not text:
        return None
    return Result(INCONCLUSIVE, text, lines, advice=beyond_answers(run))


def _inconclusive(run: Run, lines: Lines) -> Result | None:
    """An objective is inconclusive."""
    inconclusive = [line for line in lines if line.outcome == INCONCLUSIVE]
    if not inconclusive:
        return None
    decisive, cause, text = _decisive(run, inconclusive)
    advice = longer(run, decisive, is_explained=cause is not None)
    reason = decisive.why
    if not advice and cause is not None:
        advice = cause.advice
        reason = reason.partition(LONGER)[0]
    if run.result(load_steps.compute) is not None:
        reason = reason.partition(LONGER)[0]
    details = (reason,) if decisive.value and reason else ()
    return Result(INCONCLUSIVE, text, _decisive_first(decisive, lines), details, advice)


def _completed(run: Run, lines: Lines) -> Result | None:
    """Without an objective: how many requests completed. It is a PASS where they are enough to show the default share."""
    target = run.result(objectives.compute).health
    if target is None or target.outcome not in {health.COMPLETED, outcome.PASS}:
        return None
    limits = "; ".join(filter(None, [_uncounted(run), health.not_excluded(target)]))
    text = ", ".join(_counts(run, target))
    if target.outcome == outcome.PASS:
        text = ", ".join([text, *_not_judged(run)])
        return Result(PASS, f"{text} ({limits})", lines)
    text = f"{text} ({limits})"
    cause = prevailing(run, schema.COMPLETE)
    advice = ""
    if cause is not None:
        advice = cause.advice
    return Result(COMPLETED, _with_cause(cause, text), lines, tuple(_causes(run)), advice)


def _pass_result(run: Run, lines: Lines) -> Result:
    """Every objective is met."""
    cut = cut_share(run.steady.requests)
    if len(lines) == 1:
        remarks = (*_cut_text(cut), *_not_judged(run))
        return Result(PASS, statement(lines[0], remarks), lines)
    remarks = (*_cut_text(cut), *_not_judged(run))
    text = ", ".join([f"{len(lines)} of {len(lines)} objectives met", *remarks])
    return Result(PASS, text, lines)


RULES: tuple[Rule, ...] = (
    _unusable,
    _interrupted,
    _task_errors,
    _nothing_judged,
    _no_answer,
    _failed,
    _answered_late,
    _inconclusive,
    _completed,
)


def _with_cause(cause: Cause | None, text: str) -> str:
    """Return the text of an outcome behind its cause."""
    if cause is None or not cause.sentence:
        return text
    return f"{cause.sentence}: {text}"


def _decisive_first(decisive: ObjectiveLine, lines: Lines) -> Lines:
    """Return the objectives, the decisive one first."""
    return (decisive, *(line for line in lines if line is not decisive))


def _not_judged(run: Run) -> tuple[str, ...]:
    """Return what a reader may take a PASS for, and it is not: a statement about latency without an objective on one."""
    if on_latency(run.record["scenario"]):
        return ()
    return ("no objective on latency",)


def _counts(run: Run, target: health.Health) -> Iterator[str]:
    """`238 of 240 requests completed`, `35% of them cut`, `1 failed`, `1 abandoned`."""
    requests = run.steady.requests
    yield health.completed_text(target)
    cut = cut_share(requests)
    if cut:
        yield f"{percent(cut)} of them cut"
    ended = requests["ended"]
    yield f"{count((~ended.isin(schema.NOT_FAILED)).sum())} failed"
    abandoned = int((ended == schema.CANCELLED).sum())
    if abandoned:
        yield f"{count(abandoned)} abandoned"


def _uncounted(run: Run) -> str:
    """`35 of the warm-up not counted`; empty where every request was of the steady stage."""
    stages = run.frames.requests.drop_duplicates("request_id")["stage"].value_counts()
    outside = ((schema.WARMUP, "warm-up"), (schema.COOLDOWN, "cool-down"))
    texts = []
    for stage, name in outside:
        requests = stages.get(stage, 0)
        if requests:
            texts.append(f"{count(requests)} of the {name}")
    if not texts:
        return ""
    return f"{' and '.join(texts)} not counted"


def _cut_text(cut: float) -> tuple[str, ...]:
    """Return how many of the complete answers were cut."""
    if not cut:
        return ()
    return (f"{percent(cut)} of the complete answers were cut",)


def _decisive(run: Run, lines: list[ObjectiveLine]) -> tuple[ObjectiveLine, Cause | None, str]:
    """Return which of these objectives decides, why it does not pass, and both in a sentence."""
    decisive = _most_decisive(lines)
    cut = cut_share(run.steady.requests)
    cause = _cause_of_failure(run, decisive, cut)
    if decisive.name != COMPLETE:
        return decisive, cause, _with_cause(cause, statement(decisive))
    text = statement(decisive, _cut_text(cut), _uncounted(run))
    return decisive, cause, _with_cause(cause, text)


def _most_decisive(lines: list[ObjectiveLine]) -> ObjectiveLine:
    """Return the most decisive line: a stop, then complete answers, then silence, then a step of the load, then the first of the scenario."""
    for name in (STOPPED, COMPLETE, SILENT, LOAD_STEP):
        for line in lines:
            if line.name == name:
                return line
    return lines[0]


def _consequences(
    run: Run, failed: list[ObjectiveLine], decisive: ObjectiveLine, cause: Cause | None
) -> tuple[tuple[str, ...], str]:
    """Return details of a failed run, and the advice."""
    names = {line.name for line in failed}
    details: tuple[str, ...] = ()
    if not OF_ANSWERS.isdisjoint(names):
        details = (*_causes(run), *_stop(run))
    if cause is not None:
        listed = [*(details or _causes(run))]
        for line in failed:
            if line.name == BACKLOG:
                listed.append(statement(line))
        return tuple(listed), cause.advice
    if not {BACKLOG, LOAD_STEP}.isdisjoint(names):
        return details, of_growth(run)
    return details, _advice_of(run, decisive)


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
        return of_rejections(run, REJECTIONS[_figure(line)])
    return ""


def _cause_of_failure(run: Run, line: ObjectiveLine, cut: float) -> Cause | None:
    """Return why an objective on answers does not pass, where requests failed or were cut."""
    figure = _figure(line)
    if line.name in {STOPPED, SILENT, LOAD_STEP}:
        return prevailing(run)
    if figure not in BOUNDS_EVERY_FAILURE:
        return None
    ended = run.steady.requests["ended"]
    failed = int((~ended.isin(schema.NOT_FAILED)).sum())
    if figure == ANSWERED and int((ended == schema.CUT).sum()) > failed:
        advice = advice_of_cut(is_natural=has_natural(run.record["scenario"]))
        return Cause(f"{percent(cut)} of the complete answers were cut", advice)
    if figure == ERROR_RATE:
        return prevailing(run, schema.NOT_FAILED)
    return prevailing(run, schema.COMPLETE)


def statement(line: ObjectiveLine, remarks: Sequence[str] = (), uncounted: str = "") -> str:
    """Return an objective in a sentence: `ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)`.

    `remarks`: put before the brackets, of complete answers behind them. `uncounted`: requests that its number of requests leaves out. Complete answers, and
    what is no objective of the scenario (a stop, silence, a step of the load, a backlog), have sentences of their own.
    """
    if line.name == COMPLETE:
        value = f"{line.value} of the requests"
        if " of " in line.value:
            value = line.value
        text = f"{'only ' if line.outcome == FAIL else ''}{value} completed"
        uncounted_text = ""
        if uncounted:
            uncounted_text = f"; {uncounted}"
        text += f" (objective {line.bound.split()[-1]}, 95% CI {line.interval}{uncounted_text})"
        return ", ".join([text, *remarks])
    sentences = {
        STOPPED: f"{STOPPED} {line.value}: {line.why}",
        SILENT: f"the target has been silent {line.value}, to the end of the load",
        LOAD_STEP: line.why,
        BACKLOG: f"the target does not sustain {_rate_text(line)}: backlog {line.value}",
    }
    if line.name in sentences:
        return sentences[line.name]
    if not line.value:
        return f"{line.name}: {line.why}"
    text = ", ".join([f"{line.name} {line.value} {line.bound}", *remarks])
    return f"{text}{line.brackets}"


def _rate_text(line: ObjectiveLine) -> str:
    """`this rate`, and beside a rate how many may be in flight."""
    if not line.why:
        return "this rate"
    return f"this rate {line.why}"


def objective_lines(run: Run) -> tuple[ObjectiveLine, ...]:
    """Return what the result is decided by, as objectives: those of the scenario with a gate, then those that every run has.

    Those are complete answers where they decide; a stop rule that ended the run; a silent target; a step of the load that the
    target did not sustain; a backlog. The last four are there only where they failed.
    """
    judged = run.result(objectives.compute)
    lines = []
    for objective in judged.slo:
        if objective.gate:
            lines.append(objective.line)
    complete_line = None
    if judged.health is not None:
        complete_line = health.line(judged.health)
    if complete_line is not None:
        lines.append(complete_line)
    if run.record["state"] == STOPPED:
        # The record has when and why, with a colon between.
        stopped_when, _, reason = plain(run.record["stopped"], 600).partition(": ")
        lines.append(ObjectiveLine(STOPPED, FAIL, stopped_when, "", why=reason))
    gone_s = run.evidence.stability.gone_since_s
    if gone_s is not None:
        lines.append(
            ObjectiveLine(
                SILENT,
                FAIL,
                f"since {figures(gone_s)} s",
                "to the end",
                numbers=_silence_numbers(gone_s),
            )
        )
    broken = _broken_step(run, judged.slo)
    if broken:
        lines.append(ObjectiveLine(LOAD_STEP, FAIL, "", "", why=broken))
    growth_per_s = run.evidence.stability.growth_per_s
    if run.evidence.stability.of(stability.BACKLOG) and growth_per_s is not None:
        value = f"grows by {figures(growth_per_s)} requests/s"
        # ` at 8 in flight`, where the scenario limits what is in flight.
        slots = at_slots(run.record["scenario"]).strip()
        numbers = Numbers(value=growth_per_s, bound=0.0, low=None, high=None, unit="requests_per_s")
        bound = "> 0 requests/s"
        lines.append(ObjectiveLine(BACKLOG, FAIL, value, bound, why=slots, numbers=numbers))
    return tuple(lines)


def _broken_step(run: Run, judged: Sequence[ObjectiveResult]) -> str:
    """Return which step of the load broke the target; empty where none did, or where every objective is met over the whole stage."""
    if not judged:
        return load_steps.broken(run)
    if all(objective.line.outcome == PASS for objective in judged):
        return ""
    return load_steps.missed(run)


def _silence_numbers(gone_s: float) -> Numbers:
    """Return the silence of the target, since a second of the run."""
    return Numbers(value=gone_s, bound=None, low=None, high=None, unit="s")


def remarks(run: Run) -> list[str]:
    """Return what a reader must know of the traffic before the numbers."""
    conservation = run.evidence.conservation
    texts = stability.remarks(run.evidence.stability, run.steady.seconds)
    texts += _arrival(run)
    if pooled := load_steps.remark(run):
        texts.append(pooled)
    if n := conservation.found:
        has_losses = any(loss.found for loss in conservation.workers)
        where = "found in the other folders given" if has_losses else "written after all"
        verb = "was" if n == 1 else "were"
        texts.insert(0, f"{plural(n, 'request')} counted as lost by the master {verb} {where}.")
    if slow := int(run.steady.attempts["reader_paused_ns"].notna().sum()):
        read = f"{plural(slow, 'attempt')} read slowly on purpose, reported separately"
        texts.append(f"{read}: their times are those of the reader.")
    return texts


def measurement(run: Run) -> section.Measurement:
    """Return whether the numbers of a run can be used."""
    used = run.evidence.used_errors
    sentence = _error_text(used)
    polls_ms = max((error.polls_ms for error in used), default=0.0)
    if polls_ms:
        sentence += f", turnaround known within {ms(polls_ms)} ms (between two polls)"
    if run.record["dry_run"]:
        sentence = DRY_RUN
    if run.reasons:
        sentence = run.reasons[0].text
    reasons = tuple((reason.text, reason.advice) for reason in run.reasons)
    notes = (*remarks(run), *run.result(explanations))
    return section.Measurement(run.verdict, sentence, reasons, notes, _moved(run))


def _error_text(errors: Sequence[ClientError]) -> str:
    """`measurement error of end to end since sent p95 at most 2.33 ms, of chunk gap p99 0.02 ms`; empty without an error."""
    if not errors:
        return ""
    worst = max(errors, key=lambda error: error.moved_ms)
    if worst.moved_ms < NOTICED_MS:
        return f"measurement error < {NOTICED_MS:g} ms"
    text = f"measurement error of {within_sentence(worst.label)} at most {ms(worst.moved_ms)} ms"
    gaps = [error for error in errors if error.metric == GAP]
    if not gaps or worst.metric == GAP:
        return text
    of_gap = max(gaps, key=lambda error: error.moved_ms)
    return f"{text}, of {within_sentence(of_gap.label)} {ms(of_gap.moved_ms)} ms"


def _moved(run: Run) -> str:
    """Return the figures that alone make the run INVALID; empty where anything else does."""
    checks = set()
    for reason in run.reasons:
        if reason.verdict == INVALID:
            checks.add(reason.check)
    if checks != {CLIENT_ERROR}:
        return ""
    unusable = unusable_figures(run.evidence.used_errors)
    return figure_names([error for error in unusable if error.decides])


def exit_code(run: Run, answer: Result) -> Exit:
    """Return the exit code of a run, and of the report of its folder."""
    codes = [section.EXITS[answer.outcome]]
    if run.verdict == INVALID or run.evidence.conservation.lost:
        codes.append(Exit.INVALID)
    if not run.record["rebuilt"]:
        codes.append(STATES.get(run.record["state"], Exit.OK))
    return Exit.worst(codes)


def summary(run: Run) -> Iterator[tuple[str, str]]:
    """Yield how much the target completed, and how fast."""
    if rates := ", ".join(_rates(run)):
        yield "rates", rates
    if latency := " | ".join(_latencies(run)):
        pooled = ""
        if run.result(load_steps.compute):
            pooled = f" ({load_steps.POOLED})"
        yield "latency", latency + pooled
    if used := run.result(throughput.compute).slots:
        yield "slots", used.sentence


def labelled_remarks(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what limits the summary: the smallest violation found, precision, a rising latency, arrivals that waited."""
    violations = list(_violations(run))
    more = ""
    if len(violations) > SHOWN_FINDS:
        more = "; more in the report"
    has_failed = run.result(result).outcome == FAIL
    if violations and not has_failed and run.record["state"] != INTERRUPTED_STATE:
        yield (
            "detects",
            f"if {' or '.join(violations[:SHOWN_FINDS])}, 4 of 5 runs like this one would fail{more}",
        )
    for objective in run.result(objectives.compute).slo:
        if objective.precision:
            yield "precision", f"{objective.label} {objective.precision}"
    looked_text = looked(run.record)
    if looked_text:
        yield "precision", looked_text
    # A backlog is the result.
    for text in stability.remarks(run.evidence.stability, run.steady.seconds, names_backlog=False):
        yield "steady", text
    for text in _arrival(run):
        yield "arrival", text


def _arrival(run: Run) -> Iterator[str]:
    """Yield how requests arrive, where it changes the meaning of the numbers."""
    if is_of_tasks(run.record["scenario"]):
        yield OF_TASKS
    elif run.record["arrival"] in ARRIVAL:
        yield ARRIVAL[run.record["arrival"]]


def _violations(run: Run) -> Iterator[str]:
    """Yield the smallest violation of each objective that a run like this one would find: `only 43.0% of requests completed`."""
    lines = []
    for line in run.result(objective_lines):
        if line.finds and line.outcome != FAIL:
            lines.append(line)
    for line in lines:
        if line.name == COMPLETE:
            yield f"only {line.finds} of requests completed"
        elif BEYOND in line.finds:
            yield f"{line.finds.replace(BEYOND, ' exceeded ')} ({line.name})"
        else:
            yield f"{line.name} were {line.finds}"


def _rates(run: Run) -> Iterator[str]:
    """Yield how much completed; a rate of 0 is left out: everything ended after the steady stage."""
    rates = run.evidence.throughput
    target = run.result(objectives.compute).health
    if target and not target.outcome:  # else it is an objective
        complete = target.complete
        interval = f"95% CI {share_interval(complete.low, complete.high)}"
        limits = "; ".join(filter(None, [interval, _uncounted(run)]))
        yield f"{share(complete.value)} of {plural(complete.n, 'request')} completed ({limits})"
    if is_counted(run.frames) or backlog.answers_after_load(run.without_slow_readers):
        yield from _rates_of_whole_run(run)
        return
    if rates.completed_per_s and rates.text:
        yield rates.text
    if rates.output_tokens_per_s:
        yield f"{figures(rates.output_tokens_per_s)} output tokens/s"


def _rates_of_whole_run(run: Run) -> Iterator[str]:
    """Yield the rates of a run without a steady stage to speak of, over the time that it took."""
    whole = whole_run(run.frames)
    if whole is None:
        return
    yield f"{figures(whole.completed_per_s)} requests/s over {figures(whole.seconds)} s"
    if whole.output_tokens_per_s is not None:
        yield f"{figures(whole.output_tokens_per_s)} output tokens/s"


def _latencies(run: Run) -> Iterator[str]:
    """Yield the percentiles that a reader looks for first, with the metrics in a fixed order, then which traffic has which times.

    Of everything offered, but the chunk gap among successes. A percentile of too few values is left out. In a closed loop
    they are since sent.
    """
    clock = "sent" if run.record["arrival"] == "closed" else "sched"
    ps_by_metric = {
        f"ttft_{clock}": (0.5, 0.95),
        "tpot": (0.5,),
        GAP: (0.5, 0.99),
        f"e2e_{clock}": (0.5, 0.95),
        "join_sched": (0.5, 0.95),
        "turnaround": (0.5,),
    }
    views = {GAP: SUCCESSES}
    row_by_name = {}
    for row in run.evidence.latency:
        name = row.metric.name
        if row.n and row.view == views.get(name, OFFERED):
            row_by_name[name] = row
    for name, shown_ps in ps_by_metric.items():
        if name not in row_by_name:
            continue
        quantiles = [quantile for quantile in row_by_name[name].quantiles if quantile.p in shown_ps]
        reliable = [quantile for quantile in quantiles if quantile.mark != TOO_FEW]
        if not reliable:
            continue
        title = "chunk gap"
        if name != GAP:
            title = name.split("_")[0]
        yield f"{title} {values_text(reliable)}"
    # Which traffic has the time of a join or of a job instead of those of an answer.
    yield from populations(run.without_slow_readers.requests)


def values_text(quantiles: Sequence[Quantile]) -> str:
    """Return percentiles as the terminal shows them: `p50 302 ms, p95 608 ms (CI 535-715, few independent values)`.

    The interval stands only beside a mark, which says why a percentile is not reliable. A mark that all of them have stands once,
    at the end. A percentile without a value has neither.
    """
    cells = [quantile_cell(quantile) for quantile in quantiles]
    shared_mark = common_mark(cells)
    texts = []
    for cell in cells:
        text = with_interval(Value(cell.text), " ms")
        interval = ""
        if cell.interval:
            interval = f"CI {interval_text(cell.interval).replace(' – ', '-')}"
        mark = "" if shared_mark else cell.mark
        remarks = ", ".join(filter(None, [interval, mark]))
        if cell.mark and remarks and cell.text != FAILED:
            text += f" ({remarks})"
        texts.append(text)
    values = named_values(quantiles, texts)
    if shared_mark:
        return f"{values}; each: {shared_mark}"
    return values


def populations(requests: pd.DataFrame) -> Iterator[str]:
    """Yield what a join or a turnaround is, and of which traffic it is where others have other times."""
    answers = requests.drop_duplicates("traffic").set_index("traffic")["answer"]
    kinds = answers[~answers.isin({schema.JOIN, schema.TURNAROUND})]
    texts = []
    has_others = answers.nunique() > 1
    for answer, title in (
        (schema.JOIN, "join: time until all awaited calls of a fan-out have answered"),
        (
            schema.TURNAROUND,
            "turnaround: time from the scheduled submission of a job until its result is fetched",
        ),
    ):
        tables = answers[answers == answer]
        if len(tables):
            of_traffic = f" (traffic {_names(list(tables.index))})" if has_others else ""
            texts.append(f"{title}{of_traffic}")
    if texts and len(kinds):
        texts.append(f"the other latencies: traffic {_names(list(kinds.index))}")
    if texts:
        yield "; ".join(texts)


def _names(traffic: Sequence[str]) -> str:
    """`chat and agent`."""
    return listed([plain(name, 80) for name in traffic], SHOWN_TABLES)


def _is_answered(run: Run) -> bool:
    """Return whether a request completed, or its user left an answer that had begun; also where the client sent none.

    What a stop rule ended has failed at its end: any answer of the run counts.
    """
    requests = run.steady.requests
    every = run.frames.requests
    of_run = every.loc[every["stage"] != schema.PREFLIGHT, "ended"]
    if run.record["state"] == STOPPED and of_run.isin(schema.COMPLETE).any():
        return True
    ended = requests["ended"]
    begun = (
        ended.isin(schema.COMPLETE)
        | (ended == schema.CANCELLED) & requests["left_first_at_ns"].notna()
    )
    return bool(begun.any() or (ended == schema.CLIENT_DROP).all())


def _causes(run: Run) -> Iterator[str]:
    """Yield how the requests without a complete answer ended, and the most frequent error where no request completed.

    Without an error of the target, or where the reason of the stop has it already, there is no second line.
    """
    ends = []
    # How many requests ended how: `rejected (401)`; of those still open how long the first has waited.
    for label, requests in list_of_ends(run).items():
        ends.append(f"{count(requests)} {label}{_oldest(run, label)}")
    if ends:
        yield f"not completed: {', '.join(ends)}"
    has_complete = bool(run.steady.requests["ended"].isin(schema.COMPLETE).any())
    error_kinds = run.result(errors.compute).errors
    if EQUAL_REJECTIONS in run.record["stopped"]:
        return  # the reason of the stop has this error
    if error_kinds and not has_complete and error_kinds[0].ended not in ENDED_BY_TARGET:
        most_frequent = error_kinds[0]
        status = most_frequent.ended
        if most_frequent.status:
            status = f"HTTP {most_frequent.status}"
        yield f"most frequent error: {' '.join(filter(None, [status, most_frequent.error_type, plain(most_frequent.excerpt, 120)]))}"


def _stop(run: Run) -> Iterator[str]:
    """Yield what a run that a stop rule ended has spent, its preflight included."""
    if run.record["state"] != STOPPED:
        return
    sent = run.frames.attempts[run.frames.attempts["sent_at_ns"].notna()]
    used = with_usage(sent)
    prices = run.result(prices_of)
    total, unpriced = spent(used, prices.price)
    cost = f"cost unknown ({no_price(unpriced, prices.why)})"
    if total is not None:
        cost = f"{figures(float(total))} {prices.unit}"
    remark = ""
    if len(used) < len(sent):
        remark = f", usage of {plural(len(sent) - len(used), 'call')} unknown"
    yield f"spent: {plural(len(sent), 'call')}, {count(used[list(_TOKENS)].sum().sum())} tokens, {cost}{remark}"


def _oldest(run: Run, label: str) -> str:
    """Return how long the first of the requests that were open at the end had waited."""
    record = run.record
    requests = run.steady.requests
    if label != STILL_OPEN or record["ended_at_ns"] is None or record["start_at_ns"] is None:
        return ""
    first_ns = requests.loc[requests["ended"] == schema.CENSORED, "scheduled_at_ns"].min()
    return f" (the first for {figures((record['ended_at_ns'] - record['start_at_ns'] - first_ns) / 1e9)} s)"
