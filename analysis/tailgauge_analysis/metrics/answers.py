"""Selects the attempt whose answer each user received.

One row per request, with the attempt that answered it. A request may have several attempts (retries, hedges, a fallback,
the same again, polls) and several legs; its clock starts once, at its scheduled time, whatever the attempts were.

- The answer of a request that is complete (ok or cut) is the attempt of leg 0 that its pattern named as the winner. Where it named none
  (older runs, or only another leg answered), it is the complete attempt with the earliest content.
- Of a progressive request the large model's answer is the answer (leg 0), but a user sees first whatever comes first:
  its TTFT, and its first text, is that of the earlier of both legs.
- Of an answer in pieces (a resumed stream) the last attempt is the answer, with the beginning of the first piece. No piece
  says how many tokens they have together.
- A fan-out has no answer of its own, only the moment at which its legs are joined. A batch has neither.
- A job ended between the last poll at which it was under way and the poll that brought the news: `ended_low_at_ns` is when
  its result would have been here had it ended right after the former.
- Losers of a hedge and answers that were given up are no answers: nobody saw them.
- A request that its user left, or that was still open at the end, has no answer; what was seen of it before is known.
- A slow reader's attempts show the reader. Its requests are marked (`slow_reader`): `requests_without_slow_readers` leaves
  them out of a whole run, steady.py out of the steady stage.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import table

# The user, or the end of the run, cut the wait short.
LEFT = (schema.CANCELLED, schema.CENSORED)
ONE_ANSWER = (schema.SINGLE, schema.PIECES, schema.EARLIEST_LEG)  # requests that get one answer
ANSWER = (
    "leg",
    "attempt",
    "cause",
    "streamed",
    "sent_at_ns",
    "first_content_at_ns",
    "first_content_low_at_ns",
    "first_text_at_ns",
    "first_text_low_at_ns",
    "first_thinking_at_ns",
    "first_tool_json_at_ns",
    "tool_ready_at_ns",
    "first_field_at_ns",
    "first_event_at_ns",
    "last_content_at_ns",
    "last_content_low_at_ns",
    "input_tokens",
    "output_tokens",
    "thinking_tokens",
    "chunks",
    "model",
    "last_thinking_at_ns",
    "body_bytes",
    "error_type",
    "usage_marks",
)
_OF_FIRST_PIECE = (
    "sent_at_ns",
    "first_content_at_ns",
    "first_content_low_at_ns",
    "first_text_at_ns",
    "first_text_low_at_ns",
    "first_event_at_ns",
)
_OF_LAST_PIECE = ("last_content_at_ns", "last_content_low_at_ns")
_RENAMED = {name: f"answer_{name}" for name in ("attempt", "leg", "cause", "chunks")}


def first_token_of(frames: Frames) -> str:
    """Return which content ends the TTFT: `any`, or `text`."""
    setting = table(frames.run["scenario"], "report").get("first_token")
    return schema.TEXT if setting == schema.TEXT else "any"


def answered(requests: pd.DataFrame, attempts: pd.DataFrame, first_token: str) -> pd.DataFrame:
    """Return the requests, each with the columns ANSWER of the attempt that answered it and with times of its whole course.

    Times are ns of the run clock, NaN where there is none: first_... of what the user received first, whole_at_ns of the whole
    answer, left_... of what a request showed that its user left or that was open at the end. `first_token`: `text`, or `any`
    content.
    """
    complete = _with_pieces_joined(requests, attempts)
    complete = complete.loc[complete["ended"].isin(schema.COMPLETE), ["request_id", *ANSWER]]
    answered_requests = requests[
        requests["ended"].isin(schema.COMPLETE) & requests["answer"].isin(ONE_ANSWER)
    ]
    complete = complete[complete["request_id"].isin(answered_requests["request_id"])]
    winner = complete["request_id"].map(by_request(answered_requests)["winner"])
    # The winner that the pattern named, else the attempt whose content came first.
    is_not_winner = (complete["leg"] != 0) | (complete["attempt"] != winner)
    ordered = complete.assign(is_not_winner=is_not_winner).sort_values(
        ["is_not_winner", "first_content_at_ns"], kind="stable"
    )
    joined = requests.join(
        by_request(ordered)[list(ANSWER)].rename(columns=_RENAMED), on="request_id"
    )
    ids = joined["request_id"]
    started = first_attempts(attempts)
    for name in ("dispatched_at_ns", "sent_at_ns"):
        joined[f"first_{name}"] = ids.map(started[name])
    first_column = "first_text_at_ns" if first_token == schema.TEXT else "first_content_at_ns"
    # What the user received first: of the answer, or of a progressive request from its faster leg.
    joined[["first_at_ns", "first_low_at_ns", "shown_sent_at_ns"]] = _first_stamps(
        joined, attempts, first_column
    )
    text = _first_stamps(joined, attempts, "first_text_at_ns")
    joined["shown_text_at_ns"] = text["first_text_at_ns"]
    joined["shown_text_low_at_ns"] = text["first_text_low_at_ns"]
    # An answer of several legs is whole with the last of them.
    last_content_ns = complete.groupby("request_id")["last_content_at_ns"].max()
    whole_at = joined["last_content_at_ns"].where(~(joined["legs"] > 1), ids.map(last_content_ns))
    joined["whole_at_ns"] = whole_at.where(joined["answer_attempt"].notna())
    joined["joined_at_ns"] = _joined_by_content_ns(requests, attempts)
    # A job ended at some time between two polls: this is the earliest.
    joined["ended_low_at_ns"] = ids.map(_ended_right_after_poll_ns(requests, attempts))
    joined["slow_reader"] = ids.isin(slow_readers(attempts))
    # The attempt that showed something first, else the one that was sent last.
    abandoned = attempts[attempts["request_id"].isin(ids[joined["ended"].isin(LEFT)])]
    abandoned = by_request(
        abandoned.sort_values([first_column, "sent_at_ns"], ascending=[True, False], kind="stable")
    )
    joined["left_sent_at_ns"] = ids.map(abandoned["sent_at_ns"])
    joined["left_first_at_ns"] = ids.map(abandoned[first_column])
    return joined


def by_request(rows: pd.DataFrame, keep: Literal["first", "last"] = "first") -> pd.DataFrame:
    """Return one row of each request, under its number."""
    return rows.drop_duplicates("request_id", keep=keep).set_index("request_id")


def first_attempts(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the first attempt of each request, of its first leg, under the request's number."""
    return by_request(attempts[(attempts["leg"] == 0) & (attempts["attempt"] == 0)])


def _with_pieces_joined(requests: pd.DataFrame, attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts; where several are pieces of one answer, each has the values of the whole answer.

    It begins with the first piece and ends with the last; chunks and bytes are summed. Its tokens are unknown, because no
    piece says how many all have together.
    """
    in_pieces = attempts["request_id"].isin(
        requests.loc[requests["answer"] == schema.PIECES, "request_id"]
    )
    if not in_pieces.any():
        return attempts
    pieces = attempts[in_pieces & attempts["first_content_at_ns"].notna()].sort_values(
        "attempt", kind="stable"
    )
    pieces = pieces[pieces.groupby("request_id")["attempt"].transform("size") > 1]
    first_pieces = by_request(pieces)
    last_pieces = by_request(pieces, "last")
    joined = attempts.copy()
    is_joined = joined["request_id"].isin(first_pieces.index)
    ids = joined.loc[is_joined, "request_id"]
    total = pieces.groupby("request_id")[["chunks", "body_bytes"]].sum()
    sources = (
        (_OF_FIRST_PIECE, first_pieces),
        (_OF_LAST_PIECE, last_pieces),
        (tuple(total), total),
    )
    for names, source in sources:
        for name in names:
            joined.loc[is_joined, name] = ids.map(source[name])
    joined.loc[is_joined, ["output_tokens", "thinking_tokens"]] = None
    return joined


def first_sign_at_ns(attempts: pd.DataFrame) -> pd.Series[float]:
    """Return when the target first answered each attempt: its headers, or else its first content."""
    return attempts["headers_at_ns"].fillna(attempts["first_content_at_ns"])


def whole_at_ns(attempts: pd.DataFrame) -> pd.Series[float]:
    """Return when the answer of each attempt was whole: its last content, not the usage or end mark after it."""
    return attempts["last_content_at_ns"].fillna(attempts["ended_at_ns"])


def prompt_tokens(calls: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """Tokens of each prompt that were computed, and that were read from a cache; NaN where the target does not say."""
    read = calls["cache_read_input_tokens"].fillna(0)
    created = calls["cache_creation_input_tokens"].fillna(0)
    return calls["input_tokens"] + created, read.where(calls["input_tokens"].notna())


def _ended_right_after_poll_ns(requests: pd.DataFrame, attempts: pd.DataFrame) -> pd.Series[float]:
    """Return when each job would have been fetched had it ended right after the poll, or the submission, before the news."""
    jobs = by_request(requests[requests["answer"] == schema.TURNAROUND])
    is_sent = attempts["sent_at_ns"].notna()
    calls = attempts[is_sent & attempts["request_id"].isin(jobs.index)]
    calls = calls.sort_values(["request_id", "attempt"], kind="stable")
    brings_news = (calls["cause"] == schema.POLL) & calls["stop_reason"].notna()
    news = by_request(calls[brings_news], "last")
    news_attempt = calls["request_id"].map(news["attempt"])
    is_answered = calls["ended"].isin(schema.COMPLETE)
    is_open = is_answered & (calls["attempt"] < news_attempt)
    last_open = by_request(calls[is_open], "last")["sent_at_ns"]
    earlier: pd.Series[float] = (news["sent_at_ns"] - last_open.reindex(news.index)).clip(lower=0)
    return jobs["ended_at_ns"].reindex(news.index) - earlier


def _joined_by_content_ns(requests: pd.DataFrame, attempts: pd.DataFrame) -> pd.Series[float]:
    """Return when each request was joined: where the end of a leg's stream met the condition, at the last content of its legs."""
    joins = by_request(requests)["joined_at_ns"]
    has_answer = attempts["ended"].isin(schema.WITH_ANSWER)
    legs = attempts.loc[has_answer, ["request_id", "last_content_at_ns", "ended_at_ns"]]
    joined_ns = legs["request_id"].map(joins)
    is_in_time = (legs["ended_at_ns"] <= joined_ns) & joined_ns.notna()
    ends = legs.loc[is_in_time, "ended_at_ns"].groupby(legs["request_id"]).max()
    content = whole_at_ns(legs[is_in_time]).groupby(legs["request_id"]).max()
    last_content_ns = requests["request_id"].map(content.where(ends == joins.reindex(ends.index)))
    return requests["joined_at_ns"].where(
        (requests["answer"] != schema.JOIN) | last_content_ns.isna(), last_content_ns
    )


def _first_stamps(joined: pd.DataFrame, attempts: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the stamps of the attempt that showed something first: the answer, or a progressive request's faster leg."""
    columns = [column, column.replace("_at_ns", "_low_at_ns"), "sent_at_ns"]
    stamps = joined[columns].copy()
    progressive = joined[
        (joined["answer"] == schema.EARLIEST_LEG) & joined["answer_attempt"].notna()
    ]
    if len(progressive):
        candidates = attempts[attempts["ended"].isin(schema.NOT_FAILED) & attempts[column].notna()]
        candidates = candidates[
            candidates["request_id"].isin(progressive["request_id"])
        ].sort_values(column, kind="stable")
        earliest = (
            by_request(candidates)[columns]
            .reindex(progressive["request_id"])
            .set_axis(progressive.index)
        )
        stamps.loc[progressive.index] = earliest.where(
            earliest[column].notna(), stamps.loc[progressive.index]
        )
    return stamps


def requests_without_slow_readers(frames: Frames) -> pd.DataFrame:
    """Return the requests of a run without its preflight, and without those that were read slowly on purpose."""
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
        "request_id"
    )
    return requests[~requests["request_id"].isin(slow_readers(frames.attempts))]


def not_streamed(attempts: pd.DataFrame) -> pd.Series[int]:
    """Requests of which an attempt was not streamed: the answer comes whole."""
    return attempts.loc[~attempts["streamed"].astype(bool), "request_id"]


def slow_readers(attempts: pd.DataFrame) -> pd.Series[int]:
    """Requests of which an attempt was read slowly on purpose."""
    return attempts.loc[attempts["reader_paused_ns"].notna(), "request_id"]
