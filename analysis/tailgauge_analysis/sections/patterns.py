"""What a pattern gains or costs, in a sentence with its number: one row of ANSWERS for each, one line for each traffic table.

Steady stage, TTFT since scheduled.

Where a user left, the server went on for as long as the tokens take that it made after that, at the median pace of the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import whole_at_ns
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache.cost import prices_of
from tailgauge_analysis.sections.hedging import waste
from tailgauge_analysis.sections.hedging.copies import PROMPT
from tailgauge_analysis.sections.hedging.section import added_range, cost_of, cost_text
from tailgauge_analysis.sections.waiting import Groups, waiting
from tailgauge_analysis.stats.quantiles import FEWEST, TOO_FEW, Floats, Quantile, quantiles
from tailgauge_analysis.text.cells import (
    median_text,
    quantile_cell,
    quantiles_text,
    share_cell,
    values_text,
    with_interval,
)
from tailgauge_analysis.text.formatting import count, plain, plural, sentence, share
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section, Value

KEY = "patterns"
KEYS = list(CALL)
CLOSED = (schema.CANCELLED, schema.TIMEOUT)  # by the user, or because the client waited no longer
QUANTILES = (0.5, 0.95)
HARDLY_ANY = 0.1  # of the retried requests


@dataclass(frozen=True, slots=True)
class Answer:
    """What one traffic table shows of one pattern."""

    traffic: str
    pattern: str
    requests: int
    text: str
    card: Card = field(metadata=UNPUBLISHED)
    what: str = field(metadata=UNPUBLISHED)
    groups: Groups = field(metadata=UNPUBLISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What a pattern gains or costs; `what` the users of each group waited for."""

    text: str
    card: Card
    what: str
    groups: Groups


@dataclass(frozen=True, slots=True)
class _PatternRows:
    """The rows of one traffic table."""

    stage: Steady
    run: Run

    def in_order(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the last of these attempts of each request, in the order of the requests."""
        last_rows = rows.drop_duplicates("request_id", keep="last").set_index("request_id")
        ids = self.stage.requests["request_id"]
        return last_rows.loc[ids[ids.isin(last_rows.index)]].reset_index()

    def last_with_cause(self, cause: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the attempts with a cause, and those that they repeat, where both have rows."""
        caused = self.stage.attempts[self.stage.attempts["cause"] == cause]
        if caused.empty:
            return caused, caused
        attempts = self.stage.attempts.drop_duplicates(KEYS).set_index(KEYS)
        again = self.in_order(caused)
        keys = again[KEYS].assign(attempt=again["of_attempt"].fillna(-1)).astype("int64")
        is_known = pd.MultiIndex.from_frame(keys).isin(attempts.index)
        originals = attempts.loc[pd.MultiIndex.from_frame(keys[is_known])]
        return again[is_known].reset_index(drop=True), originals.reset_index()

    def ttft_ms(self, is_in_group: pd.Series[bool]) -> Floats:
        """Return the TTFT of the requests of a group since scheduled."""
        rows = self.stage.requests[is_in_group]
        answered = rows["first_at_ns"].where(rows["ended"].isin(schema.COMPLETE))
        return _ms(answered - rows["scheduled_at_ns"])

    def share(self, rows: pd.DataFrame) -> Value:
        """Return the share of the requests that have one of these attempts."""
        ids = self.stage.requests["request_id"]
        return share_cell(self.stage.share(ids.isin(rows["request_id"]).to_numpy(np.bool_)))

    @property
    def number(self) -> str:
        """`148 requests`."""
        return plural(len(self.stage.requests), "request")

    def share_text(self, rows: pd.DataFrame) -> str:
        """`24.3% of 148 requests (95% CI 17.6% – 32.1%)`."""
        cell = self.share(rows)
        return with_interval(replace(cell, text=f"{cell.text} of {self.number}"))

    def wasted_text(
        self, subject: str, brief_subject: str, losers: pd.DataFrame, winners: pd.DataFrame
    ) -> tuple[str, str]:
        """Return tokens and cost of calls whose answers nobody waited for; in brief what they add to the cost, if prices are known.

        `subject`: the calls in the sentence: `the 13 wasted first calls`; `brief_subject`: those in brief: `wasted calls`.
        """
        limits = self.stage.requests.set_index("request_id")["asked_output_tokens"]
        losers = losers.assign(asked_output_tokens=losers["request_id"].map(limits))
        losses = waste.waste(losers, winners, self.run.frames.server_log)
        cost = cost_of(self.stage.attempts, losers, winners, self.run.result(prices_of))
        output = f"{count(losses.output_low)} to {count(losses.output_high)} output tokens"
        if losses.server_log is not None:
            output = f"{count(losses.server_log.made_tokens)} output tokens (endpoint's log)"
        input_tokens = _input_tokens(losses)
        text = (
            f"{sentence(subject)} took {input_tokens} and {output}. The cost is {cost_text(cost)}"
        )
        if cost.low_share is None:
            return text, f"{brief_subject} took {output}"
        return (
            text,
            f"{brief_subject} add {added_range(cost)} to the cost of the complete answers",
        )


def _input_tokens(losses: waste.Waste) -> str:
    """Return the input tokens of calls, and where their numbers come from."""
    known = losses.losers - losses.input_unknown
    if not known:
        return "an unknown number of input tokens"
    reported = losses.input_reported
    sources = []
    if reported == losses.losers:
        sources.append("reported by the target")
    elif reported:
        sources.append(f"reported by the target for {count(reported)} of them")
    if known > reported:
        sources.append(f"those of the second call for {count(known - reported)}")
    if losses.input_unknown:
        sources.append(f"unknown for {count(losses.input_unknown)}")
    return f"{count(losses.input_tokens)} input tokens ({', '.join(sources)})"


def _progressive(pattern: _PatternRows) -> Sentence | None:
    """Return what a fast model beside the large one gains: how much earlier the first content is seen, and for how many more tokens.

    None where no request of the traffic table has two such answers. Leg 0 is the large model, leg 1 the fast one.
    """
    rows = pattern.stage.requests
    rows = rows[(rows["answer"] == schema.EARLIEST_LEG) & rows["ended"].isin(schema.COMPLETE)]
    if not len(rows):
        return None
    kind = "text" if pattern.stage.first_token == schema.TEXT else "content"
    content_at_ns = rows[f"first_{kind}_at_ns"]
    scheduled_ns = rows["scheduled_at_ns"]
    first_seen_ns = rows["first_at_ns"] - scheduled_ns
    large_first_ns = content_at_ns - scheduled_ns
    calls = pattern.stage.attempts[pattern.stage.attempts["request_id"].isin(rows["request_id"])]
    large_tokens = calls.loc[calls["leg"] == 0, "output_tokens"].sum()
    fast_tokens = calls.loc[calls["leg"] == 1, "output_tokens"].sum()
    is_fast_first = pattern.stage.share_of(
        rows, (first_seen_ns < large_first_ns).to_numpy(np.bool_)
    )
    number = plural(len(rows), "request")
    extra = f"{share(fast_tokens / max(1.0, large_tokens))} more output tokens"
    whole_answer = _median_text(rows["whole_at_ns"] - scheduled_ns)
    text = f"the first {kind} took {_median_text(first_seen_ns)}, with the large model alone {_median_text(large_first_ns)}; the whole answer took {whole_answer}. "
    text += f"The fast model came first in {with_interval(share_cell(is_fast_first))} of {number}, for {extra}"
    card = Card(
        label="progressive",
        value=share_cell(is_fast_first),
        detail=f"of {number} saw the fast model first",
        lines=(
            f"first {kind} {_brief_median(*_quantiles(first_seen_ns))}, large model alone {_brief_median(*_quantiles(large_first_ns))}",
            f"{extra} than the large model alone",
        ),
    )
    groups = {
        "first content seen": _ms(first_seen_ns),
        "of the large model": _ms(large_first_ns),
        "whole answer": _ms(rows["whole_at_ns"] - scheduled_ns),
    }
    return Sentence(text=text, card=card, what="Times count since scheduled.", groups=groups)


def _of_second_calls(pattern: _PatternRows, cause: str, label: str, did: str) -> Sentence | None:
    """Return what second calls gain and cost, after a fallback or a resubmission; None without any.

    `cause`: that of the second calls; `label`: of the card; `did`: what the requests did, as `fell back`. The first calls are
    wasted: nobody waits for their answers.
    """
    second_calls, first_calls = pattern.last_with_cause(cause)
    if not len(second_calls):
        return None
    failed = int((~first_calls["ended"].isin(CLOSED)).sum())
    suffix = ""
    if failed:
        suffix = f", {count(failed)} of them after a failure"
    answered = pattern.stage.share_of(
        second_calls, second_calls["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    )
    n = len(second_calls)
    wasted_calls = f"the {count(n)} wasted first calls"
    if n == 1:
        wasted_calls = "the wasted first call"
    wasted_text, cost = pattern.wasted_text(wasted_calls, "wasted calls", first_calls, second_calls)
    answered_text = (
        f"{with_interval(share_cell(answered))} of the second calls got a complete answer"
    )
    text = f"{pattern.share_text(second_calls)} {did}{suffix}; {answered_text}. {wasted_text}"
    lines = (f"{share(answered.value)} of the second calls got a complete answer", cost)
    card = Card(
        label=label,
        value=pattern.share(second_calls),
        detail=f"of {pattern.number} {did}",
        lines=lines,
    )
    has_second_call = pattern.stage.requests["request_id"].isin(second_calls["request_id"])
    groups = {
        "one call": pattern.ttft_ms(~has_second_call),
        did: pattern.ttft_ms(has_second_call),
    }
    return Sentence(
        text=text, card=card, what="TTFT since scheduled; no answer is slowest.", groups=groups
    )


def _cancel(pattern: _PatternRows) -> Sentence | None:
    """Return what users who left an answer cost: how many left, and what the target did after that; None where none left.

    Hedge copies that were closed count in hedging, and requests of several legs nowhere here. With a server log: how long the
    target went on generating, by the tokens that it made, at the median pace of the answers.
    """
    attempts = pattern.stage.attempts
    requests = pattern.stage.requests
    is_left = (requests["ended"] == schema.CANCELLED) & (requests["answer"] == schema.SINGLE)
    calls = attempts[(attempts["ended"] == schema.CANCELLED) & attempts["cause"].ne(schema.HEDGE)]
    calls = calls[calls["request_id"].isin(requests.loc[is_left, "request_id"])]
    if calls.empty:
        return None
    calls = pattern.in_order(calls)
    after_leaving = "it is not known what the target generates after a user left"
    after_leaving_in_short = after_leaving
    call_log = pattern.run.frames.server_log.drop_duplicates(KEYS)
    # Each left call with its row in the log; the log's own end has the suffix.
    call_log = calls[[*KEYS, "ended_at_ns"]].merge(call_log, on=KEYS, suffixes=("", "_there"))
    after_cancel = call_log["tokens_after_cancel"]
    if after_cancel.notna().any():
        tpot_ns = BY_NAME["tpot"].ns(pattern.stage)
        token_ns = 0.0
        if np.isfinite(tpot_ns).any():
            token_ns = np.nanmedian(tpot_ns)
        went_on_ns = (call_log["cancelled_at_ns"] - call_log["ended_at_ns"]).clip(
            lower=0
        ) + after_cancel * token_ns
        tokens = round(after_cancel.sum())
        (went_on,) = _quantiles(went_on_ns.dropna())
        if not after_cancel.sum() and not went_on_ns.max() > 0:
            after_leaving = "when a user left, the server stopped generating at once"
            after_leaving_in_short = after_leaving
        elif went_on.mark == TOO_FEW:
            after_leaving = (
                f"after users left, the server made {plural(tokens, 'more token')} in all"
            )
            after_leaving_in_short = after_leaving
        else:
            after_leaving = (
                f"after a user left, the server generated for another {median_text(went_on)}. "
                f"It made {plural(tokens, 'more token')} in all"
            )
            after_leaving_in_short = f"the server generated for another {_brief_median(went_on)}, {plural(tokens, 'token')} in all"
    # The tokens of a left answer are not known: its usage never came.
    left_calls = (
        f"the {plural(len(calls), 'call')} that {'a user' if len(calls) == 1 else 'users'} left"
    )
    without_usage = calls.assign(output_tokens=np.nan)
    wasted_text, cost = pattern.wasted_text(left_calls, "these calls", calls, without_usage)
    text = f"Users left {pattern.share_text(calls)}. {sentence(after_leaving)}. {wasted_text}"
    detail = f"of {pattern.number} were left by their users"
    card = Card(
        label="cancel",
        value=pattern.share(calls),
        detail=detail,
        lines=(after_leaving_in_short, cost),
    )
    is_read = requests["ended"].isin(schema.COMPLETE)
    whole_answer_ns = (
        requests.loc[is_read, "whole_at_ns"] - requests.loc[is_read, "scheduled_at_ns"]
    )
    groups = {
        "until users left": _ms(calls["ended_at_ns"] - calls["scheduled_at_ns"]),
        "until others had the whole answer": _ms(whole_answer_ns),
    }
    return Sentence(text=text, card=card, what="Times count since scheduled.", groups=groups)


def _two_calls(pattern: _PatternRows) -> Sentence | None:
    """Return what a second call for structured fields adds to a call for prose: latency and tokens; None where no request makes two.

    Leg 0 is the call for prose, leg 1 the one for fields. A second call without a complete answer counts as never whole.
    """
    attempts = pattern.stage.attempts
    requests = pattern.stage.requests
    request_ids = requests.loc[
        (requests["answer"] == schema.SINGLE) & (requests["legs"] > 1), "request_id"
    ]
    calls = attempts[attempts["request_id"].isin(request_ids)]
    if not calls["leg"].eq(1).any():
        return None
    first_calls = pattern.in_order(calls[calls["leg"] == 0]).set_index("request_id")
    second_calls = pattern.in_order(calls[calls["leg"] == 1]).set_index("request_id")
    prose_whole_ns = whole_at_ns(first_calls)
    fields_whole_ns = whole_at_ns(second_calls).where(
        second_calls["ended"].isin(schema.COMPLETE), np.inf
    )
    added = _quantiles((fields_whole_ns - prose_whole_ns).dropna(), QUANTILES)
    first_call = _quantiles((prose_whole_ns - first_calls["scheduled_at_ns"]).dropna(), QUANTILES)
    usage = [*PROMPT, "output_tokens"]
    first_tokens = count(first_calls[usage].sum(axis=1).mean())
    second_tokens = count(second_calls[usage].sum(axis=1).mean())
    tokens_text = f"it adds {second_tokens} tokens per request to {first_tokens}"
    text = f"the second call adds {quantiles_text(*added)} to {quantiles_text(*first_call)}; {tokens_text}"
    added_ms = quantile_cell(added[0])
    card = Card(
        label="two calls",
        value=replace(added_ms, text=f"{added_ms.text} ms"),
        detail=f"added by the second call (p50) to the first call's {values_text(first_call[:1])}",
        lines=(tokens_text,),
    )
    scheduled_ns = first_calls["scheduled_at_ns"]
    groups = {
        "first call": _ms(prose_whole_ns - scheduled_ns),
        "both calls": _ms(fields_whole_ns - scheduled_ns),
    }
    return Sentence(
        text=text, card=card, what="Times run from scheduled to the whole answer.", groups=groups
    )


def _retry(pattern: _PatternRows) -> Sentence | None:
    """Return what retries gain and cost; None without a retry.

    How many of the retried requests completed, how many calls and tokens the retries took, and how much later the others failed.
    """
    attempts = pattern.stage.attempts
    retries = attempts[(attempts["cause"] == schema.RETRY) & attempts["sent_at_ns"].notna()]
    if retries.empty:
        return None
    requests = pattern.stage.requests
    is_retried = requests["request_id"].isin(retries["request_id"])
    retried = requests[is_retried]
    is_complete = retried["ended"].isin(schema.COMPLETE)
    completed = pattern.stage.share_of(retried, is_complete.to_numpy(np.bool_))
    share_of_attempts = len(retries) / int(attempts["sent_at_ns"].notna().sum())
    cost = f"{count(len(retries))} {'retry' if len(retries) == 1 else 'retries'}, {share(share_of_attempts)} of all attempts"
    if wasted_tokens := _wasted_tokens(retries):
        cost += f", {count(wasted_tokens)} tokens of retries that failed"
    text = f"{pattern.share_text(retries)} were retried, and {with_interval(share_cell(completed))} of these completed; {cost}"
    text += _failed_later(attempts, retried[~is_complete])
    # Where hardly any retried request completed, the sentence begins with it.
    if (completed.value or 0.0) < HARDLY_ANY:
        text = f"Retrying gained {'hardly anything' if completed.k else 'nothing'}: {text}"
    card = Card(
        label="retried",
        value=pattern.share(retries),
        detail=f"of {pattern.number} were retried",
        lines=(
            f"{count(completed.k)} of the {count(completed.n)} retried requests completed",
            cost,
        ),
        tone="warn" if (completed.value or 0.0) < HARDLY_ANY else "",
    )
    groups = {"one call": pattern.ttft_ms(~is_retried), "retried": pattern.ttft_ms(is_retried)}
    return Sentence(
        text=text, card=card, what="TTFT since scheduled; no answer is slowest.", groups=groups
    )


def _failed_later(attempts: pd.DataFrame, failed: pd.DataFrame) -> str:
    """Return how much later than their first attempt the requests failed that no retry saved."""
    first_ended = attempts.groupby("request_id")["ended_at_ns"].min().reindex(failed["request_id"])
    later = (failed["ended_at_ns"] - first_ended.to_numpy()).dropna()
    quantiles = _quantiles(later)
    if quantiles[0].mark == TOO_FEW:
        return ""
    return f". Retried requests that did not complete ended {median_text(*quantiles)} after their first attempt had failed"


def _wasted_tokens(retries: pd.DataFrame) -> float:
    """Return tokens that the target counted for retries without a complete answer."""
    failed = retries[~retries["ended"].isin(schema.COMPLETE)]
    return float(failed[[*PROMPT, "output_tokens"]].sum().sum())


ANSWERS: dict[str, Callable[[_PatternRows], Sentence | None]] = {
    "progressive": _progressive,
    "fallback": lambda pattern: _of_second_calls(pattern, schema.FALLBACK, "fallback", "fell back"),
    "resubmit": lambda pattern: _of_second_calls(
        pattern, schema.RESUBMIT, "resubmit", "were sent twice"
    ),
    "cancel": _cancel,
    "two calls": _two_calls,
    "retry": _retry,
}


def compute(run: Run) -> list[Answer]:
    """Return for each traffic table what each pattern that its rows show gained or cost: a sentence with a card.

    A pattern is a way to make requests: progressive, fallback, resubmit, cancel, two calls, retry. Counted is the steady
    stage without slow readers. Fewer than FEWEST requests are named a small sample.
    """
    without_slow_readers = run.without_slow_readers
    answers = []
    for table in sorted(without_slow_readers.requests["traffic"].unique()):
        stage = without_slow_readers.of_traffic(table, gaps=False)
        name = plain(str(table), 80)
        n = len(stage.requests)
        pattern_rows = _PatternRows(stage, run)
        small_sample = ""
        if n < FEWEST:
            small_sample = f" Small sample: {plural(n, 'request')}."
        for pattern_name, answer_of in ANSWERS.items():
            # None where no request of the table was made so.
            result = answer_of(pattern_rows)
            if result is None:
                continue
            lines = result.card.lines
            if small_sample:
                lines = (*result.card.lines, small_sample.strip())
            card = replace(result.card, lines=lines)
            answer = Answer(
                traffic=name,
                pattern=pattern_name,
                requests=n,
                text=f"{result.text}.{small_sample}",
                card=card,
                what=result.what,
                groups=result.groups,
            )
            answers.append(answer)
    return answers


def section(answers: list[Answer]) -> Section | None:
    """Return the section; None where each request is one call that is read to its end."""
    if not answers:
        return None
    facts = []
    for answer in answers:
        facts.append((f"{answer.traffic}, {answer.pattern}", answer.text))
    main = _main(answers)
    figures = waiting(
        "patterns",
        "How long users waited",
        f"{main.traffic}, {main.pattern}. {main.what}",
        main.groups,
    )
    return Section(
        name="patterns",
        title="What the patterns gain and cost",
        facts=tuple(facts),
        figures=tuple(figures),
        card=_card(answers),
    )


def _main(answers: list[Answer]) -> Answer:
    """Return that of the traffic table with most requests."""
    return max(answers, key=lambda answer: answer.requests)


def _card(answers: list[Answer]) -> Card:
    """Return the card of the traffic table with most requests; the values of the others in a line each."""
    main = _main(answers)
    if len(answers) == 1:
        return main.card
    lines = [*main.card.lines]
    for answer in answers:
        if answer is not main:
            card = answer.card
            pattern = "" if answer.pattern == main.pattern else f" ({answer.pattern})"
            lines.append(f"{answer.traffic}: {card.value.text} {card.detail}{pattern}")
    number = plural(main.requests, "request")
    detail = main.card.detail.replace(number, f"{number} of traffic {main.traffic}", 1)
    if detail == main.card.detail:
        detail += f", traffic {main.traffic}"
    return replace(main.card, detail=detail, lines=tuple(lines))


def _quantiles(ns: pd.Series[float], ps: tuple[float, ...] = QUANTILES[:1]) -> list[Quantile]:
    return quantiles(np.asarray(ns, np.float64) / 1e6, ps)


def _ms(ns: pd.Series[float]) -> Floats:
    """Return the times in ms; inf where there is none."""
    return np.asarray(ns.fillna(np.inf) / 1e6, np.float64)


def _median_text(ns: pd.Series[float]) -> str:
    return median_text(*_quantiles(ns))


def _brief_median(median: Quantile) -> str:
    """`6.03 ms (median)`."""
    return with_interval(Value(quantile_cell(median).text), " ms", "median")
