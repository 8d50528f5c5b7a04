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
from tailgauge_analysis.reading.chunks import blocks
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.formatting import count, plural
from tailgauge_analysis.text.json_values import Json, tables

THINKING, INTERLEAVED, NO_USAGE, BEYOND, NOT_STREAMED, BUFFERED, READ_LATE, AT_ONCE = (
    "thinking", "interleaved", "no_usage", "beyond_request", "not_streamed", "buffered", "read_late", "at_once",
)  # fmt: skip
REASONS = {
    MALFORMED_USAGE: f"the target reports {VIOLATIONS[MALFORMED_USAGE]}",
    NO_USAGE: "the target reports no output tokens",
    BEYOND: "the target reports more output tokens than were requested",
    THINKING: "the answer has thinking, and the target does not report its tokens",
    INTERLEAVED: "thinking lies between parts of the text",
    NOT_STREAMED: "too few characters for the tokens, so some tokens were not streamed",
    BUFFERED: "the stream was buffered",
    READ_LATE: "the client read the first chunks late",
    AT_ONCE: "all content arrived at the same moment",
}

TOKENS_PER_CHAR = 4  # at most: a character has four bytes, a token one at least
# Chunks closer than a tenth of the run's median gap, within these bounds, arrived together.
NEAR_MS = (0.05, 0.5)
# Chunks of an answer that is judged, and of a piece that no target sends at once.
ENOUGH = 10
MANY = 4
LATE_MS = 5.0  # since its last look, the client itself collected the first chunks
FEW_CHUNKS = 3
MANY_TOKENS = 50
# Sizes of a proxy's buffer in bytes, and how near to one of them a piece is.
PAGES = 4096 * 2 ** np.arange(5)
OF_PAGE = 0.12


def paced(answers: pd.DataFrame, chunks: pd.Series[int], scenario: Json) -> pd.DataFrame:
    """The answers with where the span begins, its tokens, and why they do not count."""
    visible_from = answers[["first_text_at_ns", "first_tool_json_at_ns"]].min(axis=1).to_numpy(np.float64)
    names = ("first_content_at_ns", "last_thinking_at_ns", "output_tokens", "thinking_tokens")
    first, thinking_to, output, thinking = (answers[name].to_numpy(np.float64) for name in names)
    shown = answers["first_thinking_at_ns"].notna().to_numpy()
    unknown = np.isnan(thinking) | (shown & (thinking == 0))  # some gateways show thinking and count none
    each = (shown | unknown) & (np.abs(output - chunks.to_numpy(np.float64)) <= 1 + 0.01 * output)
    asked = answers["traffic"].isin(_thinkers(scenario)).to_numpy()
    after = (shown | (thinking > 0) | (unknown & asked)) & ~each
    reason = np.full(len(answers), None, object)
    reasons = {
        INTERLEAVED: after & (thinking_to > visible_from), THINKING: after & unknown, NO_USAGE: np.isnan(output),
        BEYOND: answers["usage_marks"].str.contains("output", na=False).to_numpy(np.bool_),
        MALFORMED_USAGE: answers["error_type"].eq(MALFORMED_USAGE).to_numpy(np.bool_),
    }  # fmt: skip
    for name, holds in reasons.items():
        reason[holds & ~np.isnan(first)] = name
    begin = np.where(after, visible_from, first)
    tokens = np.where(after, output - thinking, output)
    return answers.assign(pace_from_ns=begin, pace_tokens=tokens, pace_missing=reason)


def _thinkers(scenario: Json) -> set[str]:
    """Traffic tables that ask for thinking."""
    return {name for name, of in tables(scenario, "traffic").items() if of.get("thinking", "off") != "off"}


def judge(requests: pd.DataFrame, gaps_ns: Floats, sizes: Ints, chars: Ints) -> None:
    """Add the reasons that only the chunks of the answers show, and `buffered`; `sizes`: gaps of each, `chars`: characters."""
    streamed = requests["streamed"].eq(True).to_numpy(np.bool_)
    tokens = requests["pace_tokens"].to_numpy(np.float64)
    buffered, at_once = pieces(gaps_ns, sizes, tokens, requests["body_bytes"].to_numpy(np.float64))
    read_late = requests["first_content_at_ns"] - requests["first_content_low_at_ns"] > LATE_MS * 1e6
    recorded = streamed & (requests["answer_chunks"].to_numpy(np.float64) == sizes + 1)
    in_pieces = buffered & recorded
    at_once = at_once & recorded
    buffered = in_pieces & ~read_late.to_numpy(np.bool_)
    requests["buffered"] = buffered
    missing = requests["pace_missing"].to_numpy(object, copy=True)
    reasons = {
        NOT_STREAMED: (chars > 0) & (tokens > TOKENS_PER_CHAR * chars), BUFFERED: buffered, READ_LATE: in_pieces,
        AT_ONCE: at_once & (tokens >= 2),
    }  # fmt: skip
    for name, holds in reasons.items():
        missing[holds & pd.isna(missing)] = name
    missing[~streamed] = None
    requests["pace_missing"] = missing


def pieces(gaps_ns: Floats, sizes: Ints, tokens: Floats, body_bytes: Floats) -> tuple[Mask, Mask]:
    """Which answers were buffered, and which arrived at one moment.

    A piece is a series of chunks that arrived together. Buffered: more than 50 tokens in fewer than 3 chunks; or at least 10
    chunks in one or two pieces, in pieces of 4 chunks or more from the first on, or in pieces of one size in bytes, that of a
    proxy's buffer. How long the answer was waited for does not matter.
    """
    near = _near_ns(gaps_ns)
    buffered, at_once = np.zeros((2, len(sizes)), np.bool_)
    begin = np.cumsum(sizes) - sizes
    for some in blocks(sizes):
        counts = sizes[some]
        starts = np.cumsum(counts) - counts
        gaps = gaps_ns[begin[some.start] : begin[some.start] + int(counts.sum())]
        of = np.repeat(np.arange(len(counts)), counts)
        apart = np.flatnonzero(gaps > near)
        answer_of = of[apart]
        chunks = counts + 1
        number = 1 + np.bincount(answer_of, minlength=len(counts))
        first = chunks.copy()
        split, at = np.unique(answer_of, return_index=True)
        first[split] = apart[at] - starts[split] + 1
        large = (first >= MANY) & (chunks >= MANY * number)
        large |= _paged(apart, answer_of, body_bytes[some] / chunks)
        few = (chunks < FEW_CHUNKS) & (tokens[some] > MANY_TOKENS)
        buffered[some] = few | ((chunks >= ENOUGH) & ((number <= 2) | large))
        at_once[some] = number == 1
    return buffered, at_once


def _near_ns(gaps_ns: Floats) -> float:
    least, most = (1e6 * ms for ms in NEAR_MS)
    some = gaps_ns[:: 1 + len(gaps_ns) // 1_000_000]
    apart = some[some > least]
    return float(np.clip(np.median(apart) / 10, least, most)) if len(apart) else least


def _paged(apart: Ints, answer_of: Ints, bytes_per_chunk: Floats) -> Mask:
    """Whether two full pieces or more, neither the first nor the last, are of one size, that of a buffer."""
    inner = np.flatnonzero(answer_of[1:] == answer_of[:-1])
    lengths = np.diff(apart)[inner]
    answers = answer_of[1:][inner]
    of = pd.Series(lengths).groupby(answers).agg(["min", "max", "mean", "size"])
    size = of["mean"].to_numpy() * bytes_per_chunk[of.index]
    near_page = np.abs(size[:, None] / PAGES - 1).min(axis=1) <= OF_PAGE
    out = np.zeros(len(bytes_per_chunk), np.bool_)
    out[of.index] = (of["size"] >= 2) & (of["min"] >= 2) & (of["max"] - of["min"] <= 2) & near_page
    return out


def missing(requests: pd.DataFrame) -> Json:
    """`tpot_missing` of report.json: for which answers TPOT is unknown, the most frequent reason first."""
    answers = requests[requests["streamed"].eq(True) & requests["ended"].isin(schema.COMPLETE)]
    found = answers["pace_missing"].value_counts()
    counts = {str(name): int(n) for name, n in found.items()}
    reasons = [{"reason": name, "answers": n, "text": REASONS[name]} for name, n in counts.items()]
    why = "; ".join(f"{REASONS[name]} ({count(n)})" for name, n in counts.items())
    n = len(answers)
    total = int(found.sum())
    sentence = f"TPOT is unknown for {count(total)} of {plural(n, 'answer')}: {why}." if total else ""
    return {"of": n, "answers": total, "reasons": reasons, "sentence": sentence}
