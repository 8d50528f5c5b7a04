"""The preflight in a worker: its calls one after the other, their results and usage.

Excluded from all statistics. A failed call that the run needs ends the run; other failures are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gevent.event import Event as Signal

from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Ended, Event, Send
from tailgauge.plan import preflight
from tailgauge.plan.preflight import Learnt, PreflightCall
from tailgauge.plan.spend_limit import Amount, Sizing, need, used
from tailgauge.prompts import Maker
from tailgauge.prompts.words import COUNTED, WORDS, token_counts
from tailgauge.protocols.table import is_self_hosted
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import CENSORED, PREFLIGHT, SERVED, AttemptRow, RequestRow
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.prices import Price
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.attempts import Attempts

_MAY_BE_THE_MODEL = {400, 404, 422}  # statuses with which targets refuse a model
_MODELS = 100  # of a target's list


def try_out(
    scenario: Scenario, attempts: Attempts, recorder: Recorder, prices: Mapping[str, Price],
    makers: Callable[[Learnt], Mapping[str, Maker]], salt: str,
) -> dict[str, Any]:  # fmt: skip
    """Make every preflight call, then one per prefix to be written before the run; returns the message `tried`.

    `makers` use the learnt token counts; `salt` is that of the run.
    """
    results: list[dict[str, Any]] = []
    counted: dict[int, int] = {}
    spent = Amount()

    def run(one: PreflightCall) -> bool:
        nonlocal spent
        row = call_once(attempts, recorder, one)
        price = prices.get(one.model)
        spent = spent.plus(used(row, price) or need(one.call, Sizing(), price))
        total = prompt_tokens(row)
        if total is not None and (one.call.target, one.model) == sized:
            counted[one.words] = total
        facts = {k: getattr(row, k) for k in ("request_id", "target", "ended", "status", "error_type")}
        facts |= {"message": row.error_body, "model": one.model, "needed": one.needed}
        facts["url"] = attempts.address(one.call, one.traffic)
        usable = row.ended in preflight.USABLE or not one.needed
        if not usable and row.status in _MAY_BE_THE_MODEL:
            facts["models"] = [name for name, _ in attempts.models(one.call.target)[:_MODELS]]
        cached = row.cache_read_input_tokens
        results.append({**facts, "words": one.words, "input_tokens": total, "cached_tokens": cached})
        return usable

    first, sized = preflight.preflight_calls(scenario, salt or WORDS[0]), next(iter(scenario.models()))
    if not all(map(run, first)):
        return {"calls": results, "learnt": list(Learnt()), "engines": {}, "spent": spent.plain()}
    learnt = preflight.learn(counted)
    exact = preflight.exact_targets(scenario)
    engines = {target: named or attempts.engine(target) for target, named in exact.items()}
    name, target = sized[0], scenario.target_of(sized[0])
    if learnt.known and preflight.sized_tables(scenario) and is_self_hosted(target.url):
        engine = engines.get(name) or target.engine or attempts.engine(name)
        counts = token_counts(attempts.tokens(name, engine, COUNTED)) if engine else {}
        learnt = (counts and preflight.learn_words(counted, first[:2], counts)) or learnt
    by_table = makers(learnt)
    for one in preflight.writes(scenario, lambda name: by_table[name].pre_warm(), -1 - len(first)):
        run(one)
    return {"calls": results, "learnt": list(learnt), "engines": engines, "spent": spent.plain()}


def prompt_tokens(row: AttemptRow) -> int | None:
    """All tokens of the prompt, as the target counts them."""
    if row.input_tokens is None or row.ended not in SERVED:
        return None
    return row.input_tokens + (row.cache_read_input_tokens or 0) + (row.cache_creation_input_tokens or 0)


def call_once(attempts: Attempts, recorder: Recorder, one: PreflightCall) -> AttemptRow:
    """Send a call, wait for its end and write its request; returns the row of the call."""
    now, over = monotonic_ns(), Signal()

    def receive(event: Event) -> None:
        if isinstance(event, Ended):
            over.set()

    attempts.start(RequestRef(one.request_id, PREFLIGHT, one.traffic, now), Send(one.call), 0, receive)
    over.wait()
    attempts.later.finish()
    row = attempts.last_row
    assert row is not None
    recorder.request(
        RequestRow(
            request_id=one.request_id, stage=PREFLIGHT, traffic=one.traffic, pattern="streaming", session_id=None,
            scheduled_at_ns=now, dispatched_at_ns=now, ended_at_ns=None if row.ended == CENSORED else monotonic_ns(),
            ended=row.ended, legs=1, attempts=1, winner=0,
            asked_prompt_tokens=max(1, one.words), asked_output_tokens=one.call.max_tokens,
        )
    )  # fmt: skip
    return row
