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
from tailgauge_analysis.sections.hedging.section import added, cost_of, cost_text
from tailgauge_analysis.sections.waiting import Groups, waiting
from tailgauge_analysis.stats.quantiles import FEWEST, TOO_FEW, Floats, Quantile, quantiles
from tailgauge_analysis.text.cells import (
    quantile_cell,
    quantiles_text,
    share_cell,
    values_text,
    with_interval,
)
from tailgauge_analysis.text.formatting import count, plain, plural, share
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section, Value

KEY = "patterns"
KEYS = list(CALL)
CLOSED = (schema.CANCELLED, schema.TIMEOUT)  # by the user, or because the client waited no longer
PS = (0.5, 0.95)
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
class _Of:
    """The rows of one traffic table."""

    stage: Steady
    run: Run

    def in_order(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The last of these attempts of each request, in the order of the requests."""
        last = rows.drop_duplicates("request_id", keep="last").set_index("request_id")
        ids = self.stage.requests["request_id"]
        return last.loc[ids[ids.isin(last.index)]].reset_index()

    def of_cause(self, cause: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The attempts with a cause, and those that they repeat, where both have rows."""
        caused = self.stage.attempts[self.stage.attempts["cause"] == cause]
        if caused.empty:
            return caused, caused
        attempts = self.stage.attempts.drop_duplicates(KEYS).set_index(KEYS)
        again = self.in_order(caused)
        keys = again[KEYS].assign(attempt=again["of_attempt"].fillna(-1)).astype("int64")
        known = pd.MultiIndex.from_frame(keys).isin(attempts.index)
        first = attempts.loc[pd.MultiIndex.from_frame(keys[known])]
        return again[known].reset_index(drop=True), first.reset_index()

    def first_ms(self, is_in_group: pd.Series[bool]) -> Floats:
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

    def lost(self, losers: pd.DataFrame, winners: pd.DataFrame) -> tuple[str, str]:
        """Tokens and cost of calls whose answers nobody waited for; in brief what they add to the cost, if prices are known."""
        asked = self.stage.requests.set_index("request_id")["asked_output_tokens"]
        losers = losers.assign(asked_output_tokens=losers["request_id"].map(asked))
        found = waste.waste(losers, winners, self.run.frames.server_log)
        cost = cost_of(self.stage.attempts, losers, winners, self.run.result(prices_of))
        output = f"{count(found.output_low)} to {count(found.output_high)}"
        if found.server_log is not None:
            output = f"{count(found.server_log.made_tokens)} (endpoint's log)"
        text = f"input tokens {count(found.input_tokens)}, output tokens {output}, cost {cost_text(cost)}"
        if cost.low_share is None:
            return text, f"{output} output tokens"
        return text, f"cost {added(cost)}"


def _progressive(of: _Of) -> Sentence | None:
    rows = of.stage.requests
    rows = rows[(rows["answer"] == schema.EARLIEST_LEG) & rows["ended"].isin(schema.COMPLETE)]
    if not len(rows):
        return None
    what = "text" if of.stage.first_token == schema.TEXT else "content"
    alone = rows[f"first_{what}_at_ns"]
    since = rows["scheduled_at_ns"]
    seen = rows["first_at_ns"] - since
    large = alone - since
    calls = of.stage.attempts[of.stage.attempts["request_id"].isin(rows["request_id"])]
    whole, fast = (calls.loc[calls["leg"] == leg, "output_tokens"].sum() for leg in (0, 1))
    first = of.stage.share_of(rows, (seen < large).to_numpy(np.bool_))
    n = plural(len(rows), "request")
    extra = f"{share(fast / max(1.0, whole))} more output tokens"
    whole_answer = _times(rows["whole_at_ns"] - since)
    text = f"first {what} {_times(seen)}, of the large model alone {_times(large)}; whole answer {whole_answer}. "
    text += f"The fast model came first in {with_interval(share_cell(first))} of {n}, for {extra}"
    card = Card(
        label="progressive",
        value=share_cell(first),
        detail=f"of {n} saw the fast model first",
        lines=(
            f"first {what} {values_text(_quantiles(seen))}, large model alone {values_text(_quantiles(large))}",
            extra,
        ),
    )
    waited = {
        "first content seen": seen,
        "of the large model": large,
        "whole answer": rows["whole_at_ns"] - since,
    }
    groups = {name: _ms(ns) for name, ns in waited.items()}
    return Sentence(text=text, card=card, what="Of each request, since scheduled.", groups=groups)


def _second(of: _Of, cause: str, label: str, did: str) -> Sentence | None:
    """Of a fallback or a resubmission."""
    again, first = of.of_cause(cause)
    if not len(again):
        return None
    failed = int((~first["ended"].isin(CLOSED)).sum())
    after = f", {count(failed)} of them after a failure" if failed else ""
    answered = of.stage.share_of(again, again["ended"].isin(schema.COMPLETE).to_numpy(np.bool_))
    lost, cost = of.lost(first, again)
    second = f"{with_interval(share_cell(answered))} of the second calls answered"
    calls = plural(len(again), "first call")
    text = f"{of.share_text(again)} {did}{after}; {second}. {calls} in vain: {lost}"
    lines = (f"{share(answered.value)} of the second calls answered", cost)
    card = Card(label=label, value=of.share(again), detail=f"of {of.number} {did}", lines=lines)
    is_again = of.stage.requests["request_id"].isin(again["request_id"])
    groups = {"one call": of.first_ms(~is_again), did: of.first_ms(is_again)}
    return Sentence(text=text, card=card, what="TTFT since scheduled; no answer is slowest.", groups=groups)


def _cancel(of: _Of) -> Sentence | None:
    attempts = of.stage.attempts
    requests = of.stage.requests
    is_left = (requests["ended"] == schema.CANCELLED) & (requests["answer"] == schema.SINGLE)
    calls = attempts[(attempts["ended"] == schema.CANCELLED) & attempts["cause"].ne(schema.HEDGE)]
    calls = calls[calls["request_id"].isin(requests.loc[is_left, "request_id"])]
    if calls.empty:
        return None
    calls = of.in_order(calls)
    how = "what the target makes after that is not known"
    short = how
    log = of.run.frames.server_log.drop_duplicates(KEYS)
    log = calls[[*KEYS, "ended_at_ns"]].merge(log, on=KEYS, suffixes=("", "_there"))
    after = log["tokens_after_cancel"]
    if after.notna().any():
        pace = BY_NAME["tpot"].ns(of.stage)
        each = np.nanmedian(pace) if np.isfinite(pace).any() else 0.0
        stopped = (log["cancelled_at_ns"] - log["ended_at_ns"]).clip(lower=0) + after * each
        tokens = f"and made {plural(round(after.sum()), 'more token')}"
        how = f"the server went on for {_times(stopped.dropna())} {tokens}"
        short = f"the server went on for {values_text(_quantiles(stopped.dropna()))} {tokens}"
    lost, cost = of.lost(calls, calls.assign(output_tokens=np.nan))
    text = f"{of.share_text(calls)} were left by their users; {how}. Their answers: {lost}"
    detail = f"of {of.number} were left by their users"
    card = Card(label="cancel", value=of.share(calls), detail=detail, lines=(cost, short))
    is_read = requests["ended"].isin(schema.COMPLETE)
    stayed = requests.loc[is_read, "whole_at_ns"] - requests.loc[is_read, "scheduled_at_ns"]
    groups = {
        "until users left": _ms(calls["ended_at_ns"] - calls["scheduled_at_ns"]),
        "until others had the whole answer": _ms(stayed),
    }
    return Sentence(text=text, card=card, what="Since scheduled.", groups=groups)


def _second_call(of: _Of) -> Sentence | None:
    attempts = of.stage.attempts
    requests = of.stage.requests
    of_two = requests.loc[(requests["answer"] == schema.SINGLE) & (requests["legs"] > 1), "request_id"]
    calls = attempts[attempts["request_id"].isin(of_two)]
    if not calls["leg"].eq(1).any():
        return None
    first, second = (of.in_order(calls[calls["leg"] == leg]).set_index("request_id") for leg in (0, 1))
    prose = whole_at_ns(first)
    fields = whole_at_ns(second).where(second["ended"].isin(schema.COMPLETE), np.inf)
    times = (fields - prose, prose - first["scheduled_at_ns"])
    more, alone = (_quantiles(one.dropna(), PS) for one in times)
    tokens = [count(one[[*PROMPT, "output_tokens"]].sum(axis=1).mean()) for one in (first, second)]
    counted = f"and {tokens[1]} tokens per request to {tokens[0]}"
    text = f"the second call adds {quantiles_text(*more)} to {quantiles_text(*alone)}, {counted}"
    added_ms = quantile_cell(more[0])
    card = Card(
        label="two calls",
        value=replace(added_ms, text=f"{added_ms.text} ms"),
        detail=f"added by the second call (p50), to {values_text(alone[:1])}",
        lines=(counted,),
    )
    scheduled = first["scheduled_at_ns"]
    groups = {"first call": _ms(prose - scheduled), "both calls": _ms(fields - scheduled)}
    return Sentence(text=text, card=card, what="Until the whole answer, since scheduled.", groups=groups)


def _retry(of: _Of) -> Sentence | None:
    """Of retries: how many of the retried requests completed, and how many calls, tokens and seconds the retries took."""
    attempts = of.stage.attempts
    retries = attempts[(attempts["cause"] == schema.RETRY) & attempts["sent_at_ns"].notna()]
    if retries.empty:
        return None
    requests = of.stage.requests
    is_retried = requests["request_id"].isin(retries["request_id"])
    retried = requests[is_retried]
    is_complete = retried["ended"].isin(schema.COMPLETE)
    completed = of.stage.share_of(retried, is_complete.to_numpy(np.bool_))
    of_calls = len(retries) / int(attempts["sent_at_ns"].notna().sum())
    cost = (
        f"{count(len(retries))} {'retry' if len(retries) == 1 else 'retries'}, {share(of_calls)} of all calls"
    )
    if wasted := _wasted_tokens(retries):
        cost += f", {count(wasted)} tokens of retries that failed"
    text = f"{of.share_text(retries)} were retried, and {with_interval(share_cell(completed))} of these completed; {cost}"
    text += _failed_later(attempts, retried[~is_complete])
    if (completed.value or 0.0) < HARDLY_ANY:
        text = f"Retrying gained {'hardly anything' if completed.k else 'nothing'}: {text}"
    card = Card(
        label="retried",
        value=of.share(retries),
        detail=f"of {of.number} were retried",
        lines=(f"{count(completed.k)} of these {count(completed.n)} completed", cost),
        tone="warn" if (completed.value or 0.0) < HARDLY_ANY else "",
    )
    groups = {"one call": of.first_ms(~is_retried), "retried": of.first_ms(is_retried)}
    return Sentence(text=text, card=card, what="TTFT since scheduled; no answer is slowest.", groups=groups)


def _failed_later(attempts: pd.DataFrame, failed: pd.DataFrame) -> str:
    """How much later than their first attempt the requests failed that no retry saved."""
    first_ended = attempts.groupby("request_id")["ended_at_ns"].min().reindex(failed["request_id"])
    later = (failed["ended_at_ns"] - first_ended.to_numpy()).dropna()
    found = _quantiles(later)
    if found[0].mark == TOO_FEW:
        return ""
    return f"; the others failed later than at their first attempt, by {quantiles_text(*found)}"


def _wasted_tokens(retries: pd.DataFrame) -> float:
    """Tokens that the target counted for retries without a complete answer."""
    failed = retries[~retries["ended"].isin(schema.COMPLETE)]
    return float(failed[[*PROMPT, "output_tokens"]].sum().sum())


ANSWERS: dict[str, Callable[[_Of], Sentence | None]] = {
    "progressive": _progressive,
    "fallback": lambda of: _second(of, schema.FALLBACK, "fallback", "fell back"),
    "resubmit": lambda of: _second(of, schema.RESUBMIT, "resubmit", "were sent twice"),
    "cancel": _cancel,
    "two calls": _second_call,
    "retry": _retry,
}


def compute(run: Run) -> list[Answer]:
    """Return every pattern that a traffic table shows."""
    of_target = run.of_target
    found = []
    for table in sorted(of_target.requests["traffic"].unique()):
        stage = of_target.of_traffic(table, gaps=False)
        name = plain(str(table), 80)
        n = len(stage.requests)
        of = _Of(stage, run)
        few = f" Small sample: {plural(n, 'request')}." if n < FEWEST else ""
        for pattern, make in ANSWERS.items():
            made = make(of)
            if made is None:
                continue
            lines = (*made.card.lines, few.strip()) if few else made.card.lines
            card = replace(made.card, lines=lines)
            found.append(Answer(name, pattern, n, f"{made.text}.{few}", card, made.what, made.groups))
    return found


def section(found: list[Answer]) -> Section | None:
    """None where each request is one call that is read to its end."""
    if not found:
        return None
    facts = tuple((f"{one.traffic}, {one.pattern}", one.text) for one in found)
    main = _main(found)
    figures = waiting(
        "patterns", "How long users waited", f"{main.traffic}, {main.pattern}. {main.what}", main.groups
    )
    return Section(
        name="patterns",
        title="What the patterns gain and cost",
        facts=facts,
        figures=tuple(figures),
        card=_card(found),
    )


def _main(found: list[Answer]) -> Answer:
    """Return that of the traffic table with most requests."""
    return max(found, key=lambda answer: answer.requests)


def _card(found: list[Answer]) -> Card:
    """The card of the traffic table with most requests; the values of the others in a line each."""
    main = _main(found)
    others = [answer for answer in found if answer is not main]
    if not others:
        return main.card
    lines = [f"{one.traffic}: {one.card.value.text} {one.card.detail} ({one.pattern})" for one in others]
    detail = f"{main.card.detail}, {main.traffic}"
    return replace(main.card, detail=detail, lines=(*main.card.lines, *lines))


def _quantiles(ns: pd.Series[float], ps: tuple[float, ...] = PS[:1]) -> list[Quantile]:
    return quantiles(np.asarray(ns, np.float64) / 1e6, ps)


def _ms(ns: pd.Series[float]) -> Floats:
    """In ms; inf where there is none."""
    return np.asarray(ns.fillna(np.inf) / 1e6, np.float64)


def _times(ns: pd.Series[float]) -> str:
    return quantiles_text(*_quantiles(ns))
