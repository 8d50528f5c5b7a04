"""The pace of an answer: tokens that were streamed, and the time that these took. TPOT and all that hangs on it are made of both.

Tokens and time cover the same span. An answer without thinking counts whole, from its first content; so does one with a chunk
for each token. Of any other answer with thinking, be it shown, summarised or hidden, only what follows the thinking counts:
from the first text or tool input, and the output tokens that are not thinking. The span ends with the last content.

Where the pace cannot be known there is a reason (REASONS) and no value.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.protocol_violations import MALFORMED_USAGE, VIOLATIONS
from tailgauge.rows import schema
from tailgauge_analysis.metrics import hidden_tokens, pieces
from tailgauge_analysis.reading.chunks import NO_RANGES, GapRanges
from tailgauge_analysis.stats.quantiles import Floats, Ints, rank
from tailgauge_analysis.text.formatting import count, plural
from tailgauge_analysis.text.json_values import Json, tables

THINKING = "thinking"
INTERLEAVED = "interleaved"
NO_USAGE = "no_usage"
BEYOND = "beyond_request"
NOT_STREAMED = "not_streamed"
HIDDEN = "hidden"
BUFFERED = "buffered"
READ_LATE = "read_late"
AT_ONCE = "at_once"
REASONS = {
    MALFORMED_USAGE: f"the target reports {VIOLATIONS[MALFORMED_USAGE]}",
    NO_USAGE: "the target reports no output tokens",
    BEYOND: "the target reports more output tokens than were requested",
    THINKING: "the answer has thinking, and the target does not report its tokens",
    INTERLEAVED: "thinking lies between parts of the text",
    NOT_STREAMED: "too few characters for the tokens, so some tokens were not streamed",
    HIDDEN: "the usage counts tokens that were made before the first content and never streamed",
    BUFFERED: "the stream was buffered",
    READ_LATE: "the client read the first chunks late",
    AT_ONCE: "all content arrived at the same moment",
}
USAGE_OPTION = 'An OpenAI endpoint reports them if the body of the task has "stream_options": {"include_usage": true}.'

AMBIGUOUS_SHARE = 0.01  # of the answers, from which percentiles are marked
AMBIGUOUS = (
    "more than 1.2 tokens per chunk, and the run does not show whether some of these tokens were never streamed: "
    "lengths vary too little, or waits too much"
)
TOKENS_PER_CHAR = 4  # at most: a character has four bytes, a token one at least
LATE_MS = 5.0  # since its last look, the client itself collected the first chunks


def paced(answers: pd.DataFrame, chunks: pd.Series[int], scenario: Json) -> pd.DataFrame:
    """Return the answers with where the span begins (pace_from_ns), its tokens, and why they have no pace (pace_missing).

    `chunks`: how many each answer has. The span begins with the first content, or where an answer has thinking, behind it;
    its tokens are without those of the thinking then. pace_missing is a name of REASONS, None of an answer with a pace.
    """
    visible_from = (
        answers[["first_text_at_ns", "first_tool_json_at_ns"]].min(axis=1).to_numpy(np.float64)
    )
    first_ns = answers["first_content_at_ns"].to_numpy(np.float64)
    thinking_to = answers["last_thinking_at_ns"].to_numpy(np.float64)
    output = answers["output_tokens"].to_numpy(np.float64)
    thinking = answers["thinking_tokens"].to_numpy(np.float64)
    has_thinking = answers["first_thinking_at_ns"].notna().to_numpy()
    # Some gateways show thinking and count none.
    is_unknown = np.isnan(thinking) | (has_thinking & (thinking == 0))
    # With a chunk for each token the thinking was streamed as text is: the whole answer counts.
    has_chunk_per_token = (has_thinking | is_unknown) & (
        np.abs(output - chunks.to_numpy(np.float64)) <= 1 + 0.01 * output
    )
    requests_thinking = answers["traffic"].isin(_thinkers(scenario)).to_numpy()
    skips_thinking = (
        has_thinking | (thinking > 0) | (is_unknown & requests_thinking)
    ) & ~has_chunk_per_token
    reason = np.full(len(answers), None, object)
    reasons = {
        INTERLEAVED: skips_thinking & (thinking_to > visible_from),
        THINKING: skips_thinking & is_unknown,
        NO_USAGE: np.isnan(output),
        BEYOND: answers["usage_marks"].str.contains("output", na=False).to_numpy(np.bool_),
        MALFORMED_USAGE: answers["error_type"].eq(MALFORMED_USAGE).to_numpy(np.bool_),
    }
    # Where several hold, the last one is given.
    for name, holds in reasons.items():
        reason[holds & ~np.isnan(first_ns)] = name
    begin = np.where(skips_thinking, visible_from, first_ns)
    tokens = np.where(skips_thinking, output - thinking, output)
    return answers.assign(pace_from_ns=begin, pace_tokens=tokens, pace_missing=reason)


def _thinkers(scenario: Json) -> set[str]:
    """Traffic tables that ask for thinking."""
    names = set()
    for name, settings in tables(scenario, "traffic").items():
        if settings.get("thinking", "off") != "off":
            names.add(name)
    return names


def judge(
    requests: pd.DataFrame, gaps_ns: Floats, sizes: Ints, chars: Ints, ranges: GapRanges = NO_RANGES
) -> None:
    """Add to `requests`, in place, why answers have no pace as far as only their chunks show it (pace_missing).

    Also adds `buffered` (something between client and target collected the stream) and `pace_ambiguous` (tokens may be hidden).
    `sizes`: gaps of each answer; `chars`: its characters, 0 where they are unknown; `ranges`: gaps that are known within a range only.
    """
    streamed = requests["streamed"].eq(True).to_numpy(np.bool_)
    tokens = requests["pace_tokens"].to_numpy(np.float64)
    body_bytes = requests["body_bytes"].to_numpy(np.float64)
    # A token has a character at least, or it was not streamed.
    sent = np.where(chars > 0, np.minimum(tokens, chars), tokens)
    buffered, at_once = pieces.collected(gaps_ns, sizes, sent, body_bytes, ranges)
    read_late = (
        requests["first_content_at_ns"] - requests["first_content_low_at_ns"] > LATE_MS * 1e6
    )
    # Only an answer of which every chunk was kept is judged by its gaps.
    recorded = streamed & (requests["answer_chunks"].to_numpy(np.float64) == sizes + 1)
    in_pieces = buffered & recorded
    at_once = at_once & recorded
    buffered = in_pieces & ~read_late.to_numpy(np.bool_)
    requests["buffered"] = buffered
    missing = requests["pace_missing"].to_numpy(object, copy=True)
    reasons = {
        NOT_STREAMED: (chars > 0) & (tokens > TOKENS_PER_CHAR * chars),
        BUFFERED: buffered,
        READ_LATE: in_pieces,
        AT_ONCE: at_once & (tokens >= 2),
    }
    # The first reason that holds is given.
    for name, holds in reasons.items():
        missing[holds & pd.isna(missing)] = name
    # Hidden tokens are looked for where the target declares no thinking.
    undeclared = streamed & pd.isna(missing) & (requests["pace_skip"].to_numpy(np.float64) == 0)
    undeclared &= ~(requests["thinking_tokens"].to_numpy(np.float64) > 0)
    suspicion = hidden_tokens.judge(requests, chars.astype(np.float64), undeclared)
    missing[(suspicion == hidden_tokens.HIDDEN).to_numpy(np.bool_)] = HIDDEN
    requests["pace_ambiguous"] = (suspicion == hidden_tokens.AMBIGUOUS).to_numpy(np.bool_)
    missing[~streamed] = None
    requests["pace_missing"] = missing


def tokens_per_chunk(requests: pd.DataFrame) -> Floats:
    """Tokens per chunk of each answer; NaN if unknown."""
    is_known = requests["pace_missing"].isna() | requests["buffered"]
    tokens = requests["pace_tokens"].where(is_known & (requests["pace_chunks"] > 0))
    return (tokens / requests["pace_chunks"]).to_numpy(np.float64)


def is_coalesced(requests: pd.DataFrame) -> bool:
    """Return whether the median answer has several tokens per chunk."""
    ratios = np.sort(tokens_per_chunk(requests))
    ratios = ratios[~np.isnan(ratios)]
    return len(ratios) > 0 and bool(ratios[rank(len(ratios), 0.5) - 1] > hidden_tokens.COALESCED)


def ambiguous(requests: pd.DataFrame) -> str:
    """Return why token counts may be too high for the pace; empty where they are not, or only of few answers."""
    is_complete = requests["streamed"].eq(True) & requests["ended"].isin(schema.COMPLETE)
    n = int(requests.loc[is_complete, "pace_ambiguous"].sum())
    if n <= AMBIGUOUS_SHARE * is_complete.sum():
        return ""
    return f"{count(n)} of {plural(int(is_complete.sum()), 'answer')} have {AMBIGUOUS}"


def missing(requests: pd.DataFrame, *, has_usage_option: bool = True) -> Json:
    """Return `tpot_missing` of report.json: for which answers TPOT is unknown, the most frequent reason first.

    `has_usage_option`: False where a locustfile makes the bodies, which may not ask an OpenAI endpoint for the usage.
    """
    answers = requests[requests["streamed"].eq(True) & requests["ended"].isin(schema.COMPLETE)]
    frequencies = answers["pace_missing"].value_counts()
    reasons = []
    texts = []
    for name, frequency in frequencies.items():
        reason = str(name)
        reasons.append({"reason": reason, "answers": int(frequency), "text": REASONS[reason]})
        texts.append(f"{REASONS[reason]} ({count(int(frequency))})")
    n = len(answers)
    total = int(frequencies.sum())
    sentence = ""
    if total:
        population = f"{count(total)} of {plural(n, 'answer')}"
        sentence = f"TPOT is unknown for {population}: {'; '.join(texts)}."
    if NO_USAGE in frequencies.index and not has_usage_option:
        sentence += f" {USAGE_OPTION}"
    return {"of": n, "answers": total, "reasons": reasons, "sentence": sentence}
