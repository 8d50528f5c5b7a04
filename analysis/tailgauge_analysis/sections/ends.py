"""How answers ended: their stop reasons and classes, errors inside them, and what was read although it is not the protocol's.

Calls of the whole run except preflight. An answer is a call that the target ended itself: whole, cut, empty, refused,
filtered or aborted. What the network or the client ended is none; polls of jobs are none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tailgauge.ends import NO_FINISH_REASON, UNKNOWN_FINISH_REASON
from tailgauge.protocol_violations import MALFORMED_USAGE, TOLERATED
from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import by_request
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import count, plain, plural, sentence, share
from tailgauge_analysis.text.json_values import Json, tables
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import (
    INCOMPLETE,
    INEXACT,
    Finding,
    Section,
    Table,
    Value,
)

KEY = "ends"
ENDED_BY_TARGET = schema.SERVED | {schema.ABORTED}
VERBS = {
    schema.OK: "ended ok",
    schema.CUT: "were cut",
    schema.EMPTY: "were empty",
    schema.REFUSED: "were refused",
    schema.FILTERED: "were filtered",
    schema.ABORTED: "were aborted",
}
OTHER_ENDS = {  # of calls without an answer, where the name of the class is not the text
    schema.TIMEOUT: "timed out",
    schema.CENSORED: "still open at the end",
    schema.CLIENT_DROP: "dropped by the client",
    schema.RATE_LIMITED: "rate-limited",
    schema.STREAM_ERROR: "broken by an error",
}
MEANINGS = (
    "ok: the answer ended by itself, or at the length that output_tokens asks for.",
    'cut: a token limit ended the answer before output_tokens. With ends = "natural", every answer that a token limit ended is cut.',
    "refused: the model refused to answer.",
    "filtered: a content filter removed the answer or its end.",
    "aborted: the engine gave up, or the stop reason is missing, or Tailgauge does not know the stop reason.",
)
ABORT_VERBS = {  # where all aborted answers are so
    NO_FINISH_REASON: "named no finish reason",
    UNKNOWN_FINISH_REASON: "named an unknown finish reason",
}
NATURAL = "natural"  # `ends` of a traffic table
CUT_ADVICE = (
    "raise output_tokens if the answers should be longer, or raise the target's own limit on tokens"
)
CUT_NATURAL_ADVICE = "raise output_tokens, so that answers can end by themselves"
NOTICEABLE = 0.01  # of the answers, from which a finding changes the figures
ROWS = 20  # of a table
NAMES = 10  # in a sentence
# Values of usage_marks.
INPUT = "input"
OUTPUT = "output"
MARKS = {
    INPUT: "input counts beyond what was sent",
    OUTPUT: "output counts beyond what was requested",
    MALFORMED_USAGE: "usage contradicts the request or the answer",
}
UNUSED = "they are in no figure of cache, cost, TPOT or tokens per second"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """The answers with one stop reason and class; tokens are medians of requests with one leg."""

    stop_reason: str | None
    ended: str
    answers: int
    asked_output_tokens: float | None
    output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInside:
    """One kind of error inside an answer with status 200."""

    error_type: str
    error_class: str
    """the class that its status would have"""
    ended: str
    after_content: bool
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How the answers of the whole run ended. Counts by name are of answers, the most frequent first."""

    answers: int
    calls: int
    """answers, and calls that ended without one: rejected, broken off, timed out, cancelled or still open"""
    classes: dict[str, int]
    aborts: dict[str, int]
    """aborted answers by the name of their error, which is no_finish_reason or unknown_finish_reason where none is known"""
    stop_reasons: tuple[StopReason, ...]
    stop_details: dict[str, int]
    errors: tuple[ErrorInside, ...]
    tolerated: dict[str, int]
    """what was not the protocol's and was read as the SDK reads it"""
    responses: int
    """calls that got a response, of any status"""
    not_understood: dict[str, int]
    """of responses: limit headers and usage fields that the table of vendors does not have"""
    unused_counts: dict[str, int]
    """token counts that are in no figure: input, output (beyond the request), malformed_usage"""
    contradictions: dict[str, int]
    """of malformed_usage: what contradicts what"""
    has_natural: bool
    """traffic whose answers should end by themselves is among it"""
    other_models: dict[str, int]
    """answers by the model that they name, where it is not the one of the request"""
    other_calls: dict[str, int] = field(metadata=UNPUBLISHED)
    """calls that ended without an answer, by how they ended"""


def compute(run: Run) -> Ends:
    """Count how the answers of a run ended."""
    attempts = run.frames.attempts
    attempts = attempts[attempts["stage"] != schema.PREFLIGHT]
    calls = attempts[~attempts["cause"].isin((schema.POLL, schema.CANCEL))]
    answers = calls[calls["ended"].isin(ENDED_BY_TARGET)]
    return Ends(
        answers=len(answers),
        calls=len(calls),
        classes=_classes(answers["ended"]),
        aborts=_counts(
            answers.loc[answers["ended"] == schema.ABORTED, "error_type"], separator=None
        ),
        stop_reasons=_stop_reasons(answers, run.frames.requests),
        stop_details=_counts(answers["stop_details"], separator=None),
        errors=_errors(calls),
        tolerated=_counts(answers["tolerated"], separator=","),
        responses=int(calls["status"].notna().sum()),
        not_understood=_counts(calls["not_understood"], separator=","),
        unused_counts=_unused_counts(answers),
        contradictions=_contradictions(answers),
        has_natural=has_natural(run.record["scenario"]),
        other_models=_other_models(answers),
        other_calls=_other_calls(calls["ended"]),
    )


def _other_models(answers: pd.DataFrame) -> dict[str, int]:
    """Return how many answers name each model that is not the one of their request; a fallback is named elsewhere."""
    named = answers[answers["model"].fillna("").ne("") & answers["fallback"].isna()]
    counts: Counter[str] = Counter()
    for (requested, model), rows in named.groupby(["asked_model", "model"], observed=True):
        if not is_same_model(str(requested), str(model)):
            counts[plain(str(model), 80)] += len(rows)
    return dict(counts.most_common())


def _other_calls(ended: pd.Series[str]) -> dict[str, int]:
    """Return how many calls ended in which other way than an answer, the most frequent first."""
    counts = {}
    for name, number in ended[~ended.isin(ENDED_BY_TARGET)].value_counts().items():
        if number:
            counts[str(name)] = int(number)
    return counts


def is_same_model(requested: str, model: str) -> bool:
    """Return whether a response names the model of its request: perhaps with a date, a folder or another case."""
    shorter, longer = sorted(map(_without_folder, (requested, model)), key=len)
    return longer.startswith(shorter)


def _without_folder(model: str) -> str:
    return model.lower().rstrip("/").rpartition("/")[2]


def has_natural(scenario: Json) -> bool:
    """Return whether the scenario has traffic whose answers should end by themselves."""
    traffic = tables(scenario, "traffic").values()
    return any(table.get("ends") == NATURAL for table in traffic)


def cut_share(requests: pd.DataFrame) -> float:
    """Return the share of the complete answers of these requests that a limit cut."""
    complete = int(requests["ended"].isin(schema.COMPLETE).sum())
    cut = int((requests["ended"] == schema.CUT).sum())
    if not complete:
        return 0.0
    return cut / complete


def _classes(ended: pd.Series[str]) -> dict[str, int]:
    counts = ended.value_counts()
    classes = {}
    for name in VERBS:
        if name in counts.index:
            classes[name] = int(counts[name])
    return classes


def _stop_reasons(answers: pd.DataFrame, requests: pd.DataFrame) -> tuple[StopReason, ...]:
    # The rows do not say what each of several legs asked for.
    single = requests
    if "legs" in requests:
        single = requests[requests["legs"] == 1]
    limits = by_request(single)["asked_output_tokens"]
    rows = answers.assign(asked=answers["request_id"].map(limits))
    reasons = []
    for (reason, ended), group in rows.groupby(
        ["stop_reason", "ended"], dropna=False, observed=True
    ):
        measured = group[group["asked"].notna() & group["output_tokens"].notna()]
        reasons.append(
            StopReason(
                stop_reason=name_or_none(reason),
                ended=str(ended),
                answers=len(group),
                asked_output_tokens=_median(measured["asked"]),
                output_tokens=_median(measured["output_tokens"]),
            )
        )
    return tuple(sorted(reasons, key=lambda row: -row.answers))


def name_or_none(value: Any) -> str | None:
    """Return what a target calls something, made harmless; None where it is null."""
    if pd.isna(value):
        return None
    return plain(str(value), 80)


def _median(values: pd.Series[float]) -> float | None:
    if not len(values):
        return None
    return float(values.median())


def _counts(texts: pd.Series[str], *, separator: str | None) -> dict[str, int]:
    """Return how many rows have each text, or each of the texts between separators."""
    counts: Counter[str] = Counter()
    for text, rows in texts.dropna().value_counts().items():
        parts = [str(text)]
        if separator:
            parts = str(text).split(separator)
        names = {plain(part.strip(), 100) for part in parts}
        counts.update(dict.fromkeys(names, int(rows)))
    return dict(counts.most_common())


def _errors(calls: pd.DataFrame) -> tuple[ErrorInside, ...]:
    inside = calls[calls["error_class"].notna()]
    inside = inside.assign(after_content=inside["first_content_at_ns"].notna())
    keys = ["error_type", "error_class", "ended", "after_content"]
    errors = []
    for (kind, error_class, ended, after_content), group in inside.groupby(
        keys, dropna=False, observed=True
    ):
        errors.append(
            ErrorInside(
                error_type=name_or_none(kind) or "",
                error_class=str(error_class),
                ended=str(ended),
                after_content=bool(after_content),
                attempts=len(group),
            )
        )
    return tuple(sorted(errors, key=lambda row: -row.attempts))


def _unused_counts(answers: pd.DataFrame) -> dict[str, int]:
    counts = _counts(answers["usage_marks"], separator=",")
    malformed = int((answers["error_type"] == MALFORMED_USAGE).sum())
    if malformed:
        counts[MALFORMED_USAGE] = malformed
    return counts


def _contradictions(answers: pd.DataFrame) -> dict[str, int]:
    return _counts(
        answers.loc[answers["error_type"] == MALFORMED_USAGE, "error_body"], separator=None
    )


# --- in words -----------------------------------------------------------------------------------------------------


def section(ends: Ends) -> Section | None:
    """Return the section; None where the target ended no answer and nothing else is to say."""
    facts = tuple(_facts(ends))
    if not ends.answers and not ends.errors and not facts:
        return None
    listed = (_stop_table(ends), _error_table(ends.errors))
    notes = tuple(_notes(ends))
    is_plain = set(ends.classes) <= {schema.OK}
    answer = _with_rest(ends)
    return Section(
        "ends",
        "How answers ended",
        f"{sentence(answer)}.",
        facts,
        tuple(table for table in listed if table.rows),
        notes=notes,
        computed=(
            "The tables count the calls whose answer the target itself ended, in the whole run without preflight.",
            *MEANINGS,
        ),
        brief=() if is_plain else (answer,),
        is_folded=is_plain and ends.calls == ends.answers and not (ends.errors or facts or notes),
        findings=tuple(_findings(ends)),
    )


def _findings(ends: Ends) -> Iterator[Finding]:
    """Yield what of the ends changes the meaning of the figures: cut answers, unusable token counts, answers of another model.

    A finding needs more than the share NOTICEABLE of the answers. Its weight orders the findings of the report; `stated` is a
    phrase of a result that says the same.
    """
    if not ends.answers:
        return
    cut_answers = ends.classes.get(schema.CUT, 0)
    cut_share_of_complete = 0.0
    if cut_answers:
        cut_share_of_complete = cut_answers / (cut_answers + ends.classes.get(schema.OK, 0))
    if cut_share_of_complete > NOTICEABLE:
        text = f"{percent(cut_share_of_complete)} of the complete answers were cut at a token limit: end to end is the time of these shorter answers."
        yield Finding(text, INCOMPLETE + cut_share_of_complete, stated=" cut")
    unused_share = max(ends.unused_counts.values(), default=0) / ends.answers
    if unused_share > NOTICEABLE:
        text = f"{percent(unused_share)} of the answers have token counts that cannot be right: no figure uses these counts."
        yield Finding(text, INEXACT + unused_share)
    other_model_share = sum(ends.other_models.values()) / ends.answers
    if other_model_share > NOTICEABLE:
        name = next(iter(ends.other_models))
        text = f"{percent(other_model_share)} of the answers name another model than the request: {name}."
        yield Finding(text, INEXACT + other_model_share)


def _with_rest(ends: Ends) -> str:
    """Return how the calls without an answer ended, and how the answers: shares are of answers only."""
    rest = ends.calls - ends.answers
    if not rest:
        return _answer(ends)
    endings = []
    for name, number in ends.other_calls.items():
        text = OTHER_ENDS.get(name, name.replace("_", " "))
        if number < rest:
            text = f"{count(number)} {text}"
        endings.append(text)
    text = f"{count(rest)} of {plural(ends.calls, 'call')} received no whole answer"
    return f"{text}: {', '.join(endings)}; {_answer(ends)}"


def _answer(ends: Ends) -> str:
    """Return how the answers ended, in a sentence without a full stop: `50% of 20 answers were refused, 50% ended ok`.

    Only the first share names the number of answers.
    """
    if not ends.answers:
        return "the target ended no answer itself"
    if len(ends.classes) == 1:
        ended = next(iter(ends.classes))
        if ends.answers == 1:
            return f"the only answer: {ended}"
        return f"all {count(ends.answers)} answers {_verb(ends, ended)}"
    parts: list[str] = []
    by_number = sorted(ends.classes.items(), key=lambda item: -item[1])
    for ended, number in by_number:
        population = ""
        if not parts:
            population = f" of {plural(ends.answers, 'answer')}"
        parts.append(f"{percent(number / ends.answers)}{population} {_verb(ends, ended)}")
    return ", ".join(parts)


def _verb(ends: Ends, ended: str) -> str:
    """Return how answers ended; of aborted ones what was seen, where they are all alike."""
    if ended != schema.ABORTED or not ends.aborts or not ends.aborts.keys() <= ABORT_VERBS.keys():
        return VERBS[ended]
    if len(ends.aborts) > 1:
        return "named no known finish reason"
    return ABORT_VERBS[next(iter(ends.aborts))]


def _facts(ends: Ends) -> Iterator[tuple[str, str]]:
    """Yield what is unusual in how answers ended, as names and texts; nothing where all is as usual.

    Counts are of answers, most frequent first, but those of `not_understood` are of responses.
    """
    if ends.stop_details:
        yield "Stop details", _listed(ends.stop_details)
    reasons = _unknown_reasons(ends)
    if reasons:
        note = "not in the table of vendors, so counted as aborted"
        yield "Unknown finish reasons", f"{_listed(reasons)}: {note}"
    if ends.tolerated:
        # What was tolerated, in words instead of its key.
        tolerated = {}
        for name, number in ends.tolerated.items():
            tolerated[TOLERATED.get(name, name)] = number
        yield "Read as the SDK reads it", _of_each(tolerated, ends.answers, "answer")
    if ends.unused_counts:
        unused = {}
        for name, number in ends.unused_counts.items():
            unused[_unused_text(ends, name)] = number
        yield "Token counts not used", f"{_of_each(unused, ends.answers, 'answer')}; {UNUSED}"
    if ends.not_understood:
        yield "Not understood", _of_each(ends.not_understood, ends.responses, "response")


def _unused_text(ends: Ends, name: str) -> str:
    """Return why counts are not used; of a contradiction the most frequent one."""
    text = MARKS.get(name, name)
    if name != MALFORMED_USAGE or not ends.contradictions:
        return text
    return f"{text} ({next(iter(ends.contradictions))})"


def _unknown_reasons(ends: Ends) -> dict[str, int]:
    """Return the reasons of aborted answers that are not the name of their error, as a known one is."""
    counts: dict[str, int] = {}
    for row in ends.stop_reasons:
        is_named = row.ended == schema.ABORTED and row.stop_reason is not None
        if is_named and UNKNOWN_FINISH_REASON in ends.aborts and row.stop_reason not in ends.aborts:
            counts[repr(row.stop_reason)] = row.answers
    return counts


def _listed(counts: Mapping[str, int]) -> str:
    parts = []
    for name, number in list(counts.items())[:NAMES]:
        parts.append(f"{name} ({count(number)})")
    rest = len(counts) - len(parts)
    if rest > 0:
        parts.append(f"{rest} more")
    return ", ".join(parts)


def _of_each(counts: Mapping[str, int], total: int, noun: str) -> str:
    """`[DONE] behind message_stop: 20 of 20 answers`."""
    parts = []
    for name, number in list(counts.items())[:NAMES]:
        parts.append(f"{name}: {count(number)} of {plural(max(total, number), noun)}")
    rest = len(counts) - len(parts)
    if rest > 0:
        parts.append(f"{rest} more in report.json")
    return "; ".join(parts)


def _stop_table(ends: Ends) -> Table:
    rows = ends.stop_reasons
    if all(row.stop_reason is None and row.ended == schema.OK for row in rows):
        rows = ()
    cells = []
    for row in rows[:ROWS]:
        part = row.answers / ends.answers
        cells.append(
            (
                row.stop_reason or "none named",
                row.ended,
                count(row.answers),
                Value(share(part), share=part),
                _tokens(row),
            )
        )
    header = ("stop reason", "class", "answers", "share of answers", "output tokens, median")
    hidden = sum(row.answers for row in rows[ROWS:])
    note = ""
    if hidden:
        note = f"{plural(hidden, 'answer')} with rarer reasons not shown."
    return Table("Stop reasons", header, tuple(cells), note)


def _tokens(row: StopReason) -> str:
    if row.asked_output_tokens is None:
        return "–"
    return f"requested {count(row.asked_output_tokens)}, got {count(row.output_tokens)}"


def _error_table(errors: Sequence[ErrorInside]) -> Table:
    cells = []
    for row in errors[:ROWS]:
        place = "after content" if row.after_content else "before content"
        name = Value(row.error_type or "–", place)
        cells.append((name, row.error_class, row.ended, count(row.attempts)))
    header = ("error", "class of its status", "counted as", "attempts")
    return Table("Errors inside an answer with status 200", header, tuple(cells))


def _notes(ends: Ends) -> Iterator[str]:
    short = [row for row in ends.stop_reasons if row.ended == schema.CUT]
    if short:
        yield f"{sentence(advice_of_cut(is_natural=ends.has_natural))}."


def percent(part: float) -> str:
    """Return a share for a sentence, without a decimal that is zero: `50%`, `33.3%`."""
    return share(part).replace(".0%", "%")


def advice_of_cut(*, is_natural: bool) -> str:
    """Return what to do about answers that a limit cut."""
    return CUT_NATURAL_ADVICE if is_natural else CUT_ADVICE
