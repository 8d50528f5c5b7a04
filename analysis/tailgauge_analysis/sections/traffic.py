"""What was sent, by traffic table: requests, legs, attempts by cause, and what sets a table apart.

Counts are of the whole run, preflight excepted: attempts count as attempts, whether or not the user got their answer. No
latency, and no share that another section has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.reading.chunks import Chunks
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import count, plain, plural, share
from tailgauge_analysis.text.json_values import Json, table, text
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section, Table

KEY = ""


@dataclass(frozen=True, slots=True)
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
    chunks: dict[str, int]
    slow_readers: int
    not_streamed: int
    second_target: int
    first_fields: int
    tools_ready: int
    citations: int
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
    """Return every traffic table, in the order of their names."""
    frames = run.frames
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["request_id"].isin(requests["request_id"])]
    kinds = _kinds(requests, attempts, frames.chunks)
    by = dict(iter(attempts.groupby("traffic")))
    none = attempts.iloc[:0]
    tables = table(run.record["scenario"], "traffic")
    exact = {name for name in tables if table(tables, name).get("output") == "exact"}
    sizes = table(run.record, "prompt_sizes")
    entries = {}
    for name, rows in requests.groupby("traffic"):
        of = by.get(name, none), kinds.get(str(name), {}), text(sizes.get(str(name)))
        entries[plain(str(name), 80)] = _entry(rows, *of, is_exact=name in exact)
    return SentTraffic(traffic=entries, estimate=run.record["estimate"])


def _entry(
    requests: pd.DataFrame, attempts: pd.DataFrame, kinds: dict[str, int], sizes: str | None, *, is_exact: bool
) -> Traffic:  # fmt: skip
    started = requests.loc[requests["ended"] != schema.CLIENT_DROP, "legs"]
    causes = attempts["cause"].value_counts()
    (computed, cached), output = prompt_tokens(attempts), attempts["output_tokens"]
    return Traffic(
        pattern=", ".join(sorted({str(p) for p in requests["pattern"].unique()})),
        requests=len(requests),
        ended=_counts(requests["ended"], (*schema.ENDED_CLASSES, schema.CENSORED, schema.CLIENT_DROP)),
        legs_max=int(started.max()) if len(started) else 0,
        legs_per_request=float(started.mean()) if len(started) else None,
        attempts=len(attempts),
        causes={cause: int(causes.get(cause, 0)) for cause in schema.CAUSES},
        chunks=kinds,
        slow_readers=int(attempts["reader_paused_ns"].notna().sum()),
        not_streamed=int((~attempts["streamed"].astype(bool)).sum()),
        second_target=int((attempts["target"] != "main").sum()),
        first_fields=int(attempts["first_field_at_ns"].notna().sum()),
        tools_ready=int(attempts["tool_ready_at_ns"].notna().sum()),
        citations=int(attempts["citations"].sum()),
        turns_max=int((requests["request_id"] % schema.TURNS).max()) + 1 if len(requests) else 0,
        lengths=_lengths(requests, attempts, "asked_output_tokens", output) if is_exact else None,
        prompts=_lengths(requests, attempts, "asked_prompt_tokens", computed + cached) if sizes else None,
        prompt_sizes=sizes,
    )


def _lengths(requests: pd.DataFrame, calls: pd.DataFrame, column: str, tokens: pd.Series[float]) -> Lengths:
    asked = requests[requests["legs"] == 1].set_index("request_id")[column]
    answers = calls[calls["ended"].isin(schema.COMPLETE) & calls["request_id"].isin(asked.index)]
    wanted, got = answers["request_id"].map(asked), tokens[answers.index]
    least, most = (int(wanted.min()), int(wanted.max())) if len(answers) else (0, 0)
    off = (got - wanted).abs().max()
    counted, same = int(got.notna().sum()), int((got == wanted).sum())
    return Lengths(least, most, len(answers), counted, same, None if pd.isna(off) else int(off))


def _counts(values: pd.Series[Any], order: Sequence[str]) -> dict[str, int]:
    """How often each value occurs, known ones first."""
    found = values.value_counts()
    names = [name for name in order if name in found.index]
    return {str(name): int(found[name]) for name in [*names, *sorted(set(found.index) - set(names))]}


def _kinds(requests: pd.DataFrame, attempts: pd.DataFrame, chunks: Chunks) -> dict[str, dict[str, int]]:
    """Chunks of each kind by traffic. Nearly all are text: only the others are counted."""
    total = attempts.groupby("traffic")["chunks"].sum()
    other = chunks.kinds
    names = requests.set_index("request_id")["traffic"]
    found = other.groupby([other["request_id"].map(names), "kind"])["n"].sum().to_dict()
    out = {}
    for name in total.index:
        counts = {kind: int(found.get((name, i), 0)) for i, kind in enumerate(schema.CHUNK_KINDS)}
        counts[schema.TEXT] = max(0, int(total[name]) - sum(counts.values()))
        out[str(name)] = counts
    return out


def section(sent: SentTraffic) -> Section | None:
    """What was sent, and what was expected before the run."""
    found = sent.traffic
    rows = tuple(
        (name, one.pattern, count(one.requests), "–" if one.legs_per_request is None else f"{one.legs_per_request:.3g}",
         count(one.attempts), "; ".join(_details(one)) or "–")
        for name, one in found.items()
    )  # fmt: skip
    expected = key_values(sent.estimate)
    return Section(
        "traffic", "Traffic",
        tables=(Table("", ("traffic", "pattern", "requests", "legs per request", "attempts", "details"), rows, prose=(1, 5)),),
        notes=(
            *(f"{name}: {_proof(one.lengths)}" for name, one in found.items() if one.lengths is not None),
            *(f"{name}: {_sizes(one.prompts, one.prompt_sizes)}" for name, one in found.items() if one.prompts and one.prompts.counted),
            *((f"Expected before the run: {expected}.",) if expected else ()),
        ),
        computed=("The whole run without preflight, all attempts.",),
    ) if rows else None  # fmt: skip


def _asked(of: Lengths) -> str:
    varies = of.asked_min != of.asked_max
    return f"{count(of.asked_min)} to {count(of.asked_max)}" if varies else count(of.asked_min)


def _proof(of: Lengths) -> str:
    """Whether the work was fixed, as the scenario asks with `output = "exact"`."""
    if not of.answers:
        return "exact output lengths were asked for, and no request of one leg has a complete answer."
    if not of.counted:
        return "exact output lengths were asked for, and the target reports no output tokens: nothing proves them."
    got = "as many" if of.asked_min != of.asked_max else count(of.asked_min)
    text = f"asked {_asked(of)} output tokens, got {got} in {share(of.same / of.answers)} of {plural(of.answers, 'answer')}."
    return text if of.same == of.answers else f"{text} The work was not fixed."


def _sizes(of: Lengths, how: str | None) -> str:
    """What was asked of the prompts, and what the target counted."""
    by = "by the engine's tokenizer" if how == "exact" else "an estimate by tokens per word"
    off = f", at most {count(of.off_most)} off" if of.off_most else ""
    return f"asked {_asked(of)} prompt tokens ({by}), got as many in {share(of.same / of.counted)} of {plural(of.counted, 'prompt')}{off}."


def _details(one: Traffic) -> list[str]:
    """What sets a traffic table apart, as short phrases."""
    repeated = (f"{cause} {count(n)}" for cause, n in one.causes.items() if n and cause != schema.PRIMARY)
    parts = (("thinking", "thinking chunk"), ("tool_json", "tool input chunk"))
    counted = (
        (one.first_fields, "first field in {}"), (one.tools_ready, "tool input complete in {}"),
        (one.not_streamed, "{} not streamed"), (one.second_target, "{} to the second target"),
        (one.slow_readers, "{} read slowly on purpose"),
    )  # fmt: skip
    texts = [
        ", ".join(repeated),
        ", ".join(plural(one.chunks[kind], name) for kind, name in parts if one.chunks.get(kind)),
        f"up to {one.turns_max} turns per session or user" if one.turns_max > 1 else "",
        *(text.format(plural(n, "attempt")) for n, text in counted if n),
        plural(one.citations, "citation") if one.citations else "",
    ]
    return [text for text in texts if text]


def key_values(tree: Json) -> str:
    """The plain values of a table of run.json: `requests 200, tokens 51,000`."""
    texts = []
    for key, value in tree.items():
        name = plain(str(key), 60)
        if isinstance(value, float):
            texts.append(f"{name} {value:,.6g}")
        elif isinstance(value, int) and not isinstance(value, bool):
            texts.append(f"{name} {value:,}")
        elif isinstance(value, str) and value:
            texts.append(f"{name} {plain(value, 200)}")
    return ", ".join(texts)
