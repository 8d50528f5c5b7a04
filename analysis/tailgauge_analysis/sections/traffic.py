"""What was sent, by traffic table: requests, legs, attempts by cause, and what sets a table apart.

Counts are of the whole run, preflight excepted: attempts count as attempts, whether or not the user got their answer. No
latency, and no share that another section has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import count, plain, plural, share
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section, Table

KEY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a table, of prompts or of its exact outputs: what was asked, and how many complete answers have as many.

    Of requests with one leg: the rows do not say what each of several asked for. `counted`: those whose tokens are known.
    """

    asked_min: int
    asked_max: int
    answers: int
    counted: int
    same: int
    off_most: int | None = None
    """the largest difference between asked and got; null if none is known"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one traffic table sent: attempts, whoever received their answers."""

    pattern: str
    requests: int
    ended: dict[str, int]
    legs_max: int
    legs_per_request: float | None
    attempts: int
    causes: dict[str, int]
    slow_readers: int
    not_streamed: int
    second_target: int
    turns_max: int
    lengths: Lengths | None = None
    """of outputs, where they were asked to be exact"""
    prompts: Lengths | None = None
    """of prompts that are a generated question alone"""
    prompt_sizes: str | None = None
    """of these: exact, or an estimate"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTraffic:
    """What was sent, and what was expected before the run."""

    traffic: dict[str, Traffic]
    """by traffic table: what was sent in the whole run, preflight excluded"""
    estimate: Json = field(metadata=UNPUBLISHED)


def compute(run: Run) -> SentTraffic:
    """Return what each traffic table sent in the whole run without preflight, in the order of their names; and what was expected before.

    A request that has several rows counts once.
    """
    frames = run.frames
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
        "request_id"
    )
    attempts = frames.attempts[frames.attempts["request_id"].isin(requests["request_id"])]
    by_name = dict(iter(attempts.groupby("traffic")))
    tables = table(run.record["scenario"], "traffic")
    prompt_sizes = table(run.record, "prompt_sizes")
    entries = {}
    for name, rows in requests.groupby("traffic"):
        attempts_of_table = by_name.get(name, attempts.iloc[:0])
        is_exact = table(tables, str(name)).get("output") == "exact"
        entry = _entry(
            rows, attempts_of_table, text(prompt_sizes.get(str(name))), is_exact=is_exact
        )
        # Each task of a Locust user makes requests of its own, which are no turns.
        if is_of_tasks(run.record["scenario"]):
            entry = replace(entry, turns_max=1)
        entries[plain(str(name), 80)] = entry
    return SentTraffic(traffic=entries, estimate=run.record["estimate"])


def _entry(
    requests: pd.DataFrame, attempts: pd.DataFrame, sizes: str | None, *, is_exact: bool
) -> Traffic:
    """Return what one traffic table sent, by the rows of its requests and of all their attempts.

    `sizes`: exact or an estimate, where prompts are a generated question alone, whose size can be compared; else empty.
    `is_exact`: outputs were asked to have an exact length. Requests that the client dropped had no legs.
    """
    legs = requests.loc[requests["ended"] != schema.CLIENT_DROP, "legs"]
    cause_counts = attempts["cause"].value_counts()
    computed_tokens, cached_tokens = prompt_tokens(attempts)
    output_tokens = attempts["output_tokens"]
    legs_max = 0
    legs_per_request = None
    if len(legs):
        legs_max = int(legs.max())
        legs_per_request = float(legs.mean())
    turns_max = 0
    if len(requests):
        turns_max = int((requests["request_id"] % schema.TURNS).max()) + 1
    lengths = None
    if is_exact:
        lengths = _lengths(requests, attempts, "asked_output_tokens", output_tokens)
    prompts = None
    if sizes:
        prompts = _lengths(
            requests, attempts, "asked_prompt_tokens", computed_tokens + cached_tokens
        )
    return Traffic(
        pattern=", ".join(sorted(map(str, requests["pattern"].unique()))),
        requests=len(requests),
        ended=_counts(
            requests["ended"], (*schema.ENDED_CLASSES, schema.CENSORED, schema.CLIENT_DROP)
        ),
        legs_max=legs_max,
        legs_per_request=legs_per_request,
        attempts=len(attempts),
        causes={cause: int(cause_counts.get(cause, 0)) for cause in schema.CAUSES},
        slow_readers=int(attempts["reader_paused_ns"].notna().sum()),
        not_streamed=int((~attempts["streamed"].astype(bool)).sum()),
        second_target=int((attempts["target"] != "main").sum()),
        turns_max=turns_max,
        lengths=lengths,
        prompts=prompts,
        prompt_sizes=sizes,
    )


def _lengths(
    requests: pd.DataFrame, calls: pd.DataFrame, column: str, tokens: pd.Series[float]
) -> Lengths:
    limits = requests[requests["legs"] == 1].set_index("request_id")[column]
    answers = calls[calls["ended"].isin(schema.COMPLETE) & calls["request_id"].isin(limits.index)]
    wanted = answers["request_id"].map(limits)
    lengths = tokens[answers.index]
    off = (lengths - wanted).abs().max()
    asked_min = 0
    asked_max = 0
    if len(answers):
        asked_min = int(wanted.min())
        asked_max = int(wanted.max())
    off_most = None
    if not pd.isna(off):
        off_most = int(off)
    return Lengths(
        asked_min=asked_min,
        asked_max=asked_max,
        answers=len(answers),
        counted=int(lengths.notna().sum()),
        same=int((lengths == wanted).sum()),
        off_most=off_most,
    )


def _counts(values: pd.Series[Any], order: Sequence[str]) -> dict[str, int]:
    """Return how often each value occurs, known ones first."""
    frequencies = values.value_counts()
    unknown = sorted(set(frequencies.index) - set(order))
    counts = {}
    for name in (*order, *unknown):
        if name in frequencies.index:
            counts[str(name)] = int(frequencies[name])
    return counts


def section(sent: SentTraffic) -> Section | None:
    """Return the section: a row for each traffic table, lengths that were asked and got, and what was expected; None without traffic.

    One table without anything special is a sentence, and folded.
    """
    if not sent.traffic:
        return None
    columns = (
        ("traffic", lambda row: row[0]),
        ("pattern", lambda row: row[1].pattern),
        ("requests", lambda row: count(row[1].requests)),
        ("legs per request", lambda row: _legs(row[1])),
        ("attempts", lambda row: count(row[1].attempts)),
        ("details", lambda row: "; ".join(_details(row[1])) or "–"),
    )
    notes = []
    for name, entry in sent.traffic.items():
        if entry.lengths is not None:
            notes.append(f"{name}: {_fixed_work_text(entry.lengths)}")
        if entry.prompts and entry.prompts.counted:
            notes.append(f"{name}: {_prompt_sizes_text(entry.prompts, entry.prompt_sizes)}")
    expected_text = _expected(sent.estimate)
    if expected_text:
        notes.append(f"Expected before the run: {expected_text}.")
    first_entry = next(iter(sent.traffic.values()))
    is_plain = len(sent.traffic) == 1 and not [*_details(first_entry), *notes]
    answer = ""
    if is_plain:
        answer = f"The run has {plural(first_entry.requests, 'request')} (pattern {first_entry.pattern})."
    return Section(
        name="traffic",
        title="Traffic",
        answer=answer,
        tables=(Table.of("", sent.traffic.items(), columns, prose=(1, 5)),),
        notes=tuple(notes),
        computed=("The table counts all attempts of the whole run without preflight.",),
        is_folded=is_plain,
    )


def _legs(entry: Traffic) -> str:
    if entry.legs_per_request is None:
        return "–"
    return f"{entry.legs_per_request:.3g}"


def _asked_range(lengths: Lengths) -> str:
    varies = lengths.asked_min != lengths.asked_max
    if varies:
        return f"{count(lengths.asked_min)} to {count(lengths.asked_max)}"
    return count(lengths.asked_min)


def _fixed_work_text(lengths: Lengths) -> str:
    """Return whether the work was fixed, as the scenario asks with `output = "exact"`."""
    if not lengths.answers:
        return (
            "exact output lengths were asked for, but no request of one leg has a complete answer."
        )
    if not lengths.counted:
        return "exact output lengths were asked for, but the target reports no output tokens, so that nothing proves them."
    amount = "as many"
    if lengths.asked_min == lengths.asked_max:
        amount = count(lengths.asked_min)
    text = f"the requests asked for {_asked_range(lengths)} output tokens and got {amount} in {share(lengths.same / lengths.answers)} of {plural(lengths.answers, 'answer')}."
    if lengths.same == lengths.answers:
        return text
    return f"{text} The work was not fixed."


def _prompt_sizes_text(lengths: Lengths, precision: str | None) -> str:
    """Return what was asked of the prompts, and what the target counted."""
    source = (
        "by the engine's tokenizer" if precision == "exact" else "an estimate by tokens per word"
    )
    off = ""
    if lengths.off_most:
        off = f", at most {count(lengths.off_most)} off"
    return f"prompts of {_asked_range(lengths)} tokens were planned ({source}); the target counted as many in {share(lengths.same / lengths.counted)} of {plural(lengths.counted, 'prompt')}{off}."


def _details(entry: Traffic) -> Iterator[str]:
    """Yield what sets a traffic table apart, as short phrases."""
    repeated = []
    for cause, n in entry.causes.items():
        if n and cause != schema.PRIMARY:
            repeated.append(f"{cause} {count(n)}")
    if repeated:
        yield ", ".join(repeated)
    if entry.turns_max > 1:
        yield f"up to {entry.turns_max} turns per session or user"
    if entry.not_streamed:
        yield f"{plural(entry.not_streamed, 'attempt')} not streamed"
    if entry.second_target:
        yield f"{plural(entry.second_target, 'attempt')} to the second target"
    if entry.slow_readers:
        yield f"{plural(entry.slow_readers, 'attempt')} read slowly on purpose"


def _expected(estimate: Json) -> str:
    """Return what the plan was expected to use: `1,566 requests, 313,200 input and up to 78,300 output tokens, up to 0.13 USD`.

    `estimate`: that of the record, of which any number may be missing; empty without a number of requests.
    """
    requests = number(estimate.get("requests"))
    if requests is None:
        return ""
    texts = [plural(int(requests), "request")]
    calls = number(estimate.get("calls"))
    if calls is not None and calls != requests:
        texts[0] += f" in {plural(int(calls), 'call')}"
    tokens_in = number(estimate.get("input_tokens"))
    tokens_out = number(estimate.get("output_tokens"))
    if tokens_in is not None and tokens_out is not None:
        texts.append(f"{count(tokens_in)} input and up to {count(tokens_out)} output tokens")
    cost = number(estimate.get("cost"))
    if cost is None:
        texts.append("cost unknown (no price known for the model)")
    else:
        amount = f"{cost:.2g}"
        if cost >= 1:
            amount = f"{cost:,.2f}"
        texts.append(f"up to {amount} {plain(text(estimate.get('currency')), 20)}")
    return ", ".join(texts)
