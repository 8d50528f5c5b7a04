"""The preflight in a worker: its calls one after the other, their results and usage.

Excluded from all statistics. A failed call that the run needs ends the run; other failures are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gevent.event import Event as Signal

from tailgauge.call import MAIN, SECOND, Call
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Ended, Event, Send
from tailgauge.plan import preflight
from tailgauge.plan.preflight import Learnt, PreflightCall
from tailgauge.plan.spend_limit import Amount, Sizing, need, used
from tailgauge.prompts import Maker
from tailgauge.prompts.words import COUNTED, WORDS, token_counts
from tailgauge.protocol_violations import MALFORMED_ANSWER
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import is_self_hosted
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import CENSORED, PREFLIGHT, RETRY, SERVED, AttemptRow, RequestRow
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.prices import Price
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.attempts import Attempts

_MAY_BE_THE_MODEL = {400, 404, 422}  # statuses with which targets refuse a model
_REFUSED = {400, 422}  # statuses with which targets refuse a field
_MODELS = 100  # of a target's list


def try_out(
    scenario: Scenario, attempts: Attempts, recorder: Recorder, prices: Mapping[str, Price],
    makers: Callable[[Learnt, Collection[str]], Mapping[str, Maker]], *, salt: str,
) -> dict[str, Any]:  # fmt: skip
    """Make every preflight call, then one per prefix to be written before the run; returns the message `tried`.

    `makers` use the learnt token counts, and set no marks for some targets; `salt` is that of the run.
    """
    adaptations = _unmarked_engines(scenario, attempts)
    unmarked = preflight.unmarked(adaptations)
    results: list[dict[str, Any]] = []
    counted: dict[int, int] = {}
    short_prompts: list[tuple[str, str, int]] = []
    spent = Amount()

    def run(one: PreflightCall) -> bool:
        nonlocal spent
        price = prices.get(one.model)
        rows = call_once(attempts, recorder, one, partial(_adapt, attempts, adaptations, one.call.target))
        for each in rows:
            spent = spent.plus(used(each, price) or need(one.call, Sizing(), price))
        row = rows[-1]
        total = prompt_tokens(row)
        if total is not None and (one.call.target, one.model) == sized:
            counted[one.words] = total
        elif total is not None and one.words == preflight.SHORT_WORDS:
            short_prompts.append((one.call.target, one.model, total))
        facts = {k: getattr(row, k) for k in ("request_id", "target", "ended", "status", "error_type")}
        facts |= {"message": row.error_body, "model": one.model, "needed": one.needed}
        facts |= {"stop_reason": row.stop_reason, "marked": preflight.is_marked(one.call.prompt)}
        facts |= {"streamed": row.streamed, "wanted_whole": not one.call.stream}
        facts["url"] = attempts.address(one.call, one.traffic)
        usable = row.ended in preflight.USABLE or not one.needed
        if not usable and row.status in _MAY_BE_THE_MODEL:
            facts["models"] = [name for name, _ in attempts.models(one.call.target)[:_MODELS]]
        cached = row.cache_read_input_tokens
        results.append({**facts, "words": one.words, "input_tokens": total, "cached_tokens": cached})
        return usable

    def message(learnt: Learnt, engines: Mapping[str, str | None]) -> dict[str, Any]:
        plain = {target: list(adaptation) for target, adaptation in adaptations.items()}
        return {
            "calls": results, "learnt": list(learnt), "engines": engines, "adaptations": plain,
            "spent": spent.plain(),
        }  # fmt: skip

    first = preflight.preflight_calls(scenario, salt or WORDS[0], unmarked)
    sized = next(iter(scenario.models()))
    if not all(map(run, first)):
        return message(Learnt(), {})
    learnt = preflight.learn(counted)
    exact = preflight.exact_targets(scenario)
    engines = {target: named or attempts.engine(target) for target, named in exact.items()}
    name = sized[0]
    target = scenario.target_of(sized[0])
    if learnt.known and preflight.sized_tables(scenario) and is_self_hosted(target.url):
        engine = engines.get(name) or target.engine or attempts.engine(name)
        counts = token_counts(attempts.tokens(name, engine, COUNTED)) if engine else {}
        learnt = (counts and preflight.learn_words(counted, first[:2], counts)) or learnt
    by_table = makers(learnt, unmarked)
    for one in preflight.writes(scenario, lambda name: by_table[name].pre_warm(), -1 - len(first)):
        run(one)
    return message(learnt._replace(short_prompts=short_prompts), engines)


def _unmarked_engines(scenario: Scenario, attempts: Attempts) -> dict[str, Adaptation]:
    """The targets whose list of models names an engine that caches without marks, and may refuse them."""
    engines = {
        target: attempts.caching_engine(target)
        for target in (MAIN, SECOND)[: len(scenario.targets)]
        if scenario.may_be_unmarked(target)
    }
    return {target: Adaptation(automatic_cache=name) for target, name in engines.items() if name is not None}


def _adapt(attempts: Attempts, adaptations: dict[str, Adaptation], target: str, row: AttemptRow) -> bool:
    """Send from now on what a target asks for in its refusal; false where it does not, or was already adapted to."""
    known = adaptations.get(target, Adaptation())
    if row.status not in _REFUSED or known.max_tokens_field is not None:
        return False
    adaptation = attempts.adaptation(target, row.error_body or "")
    if adaptation is None:
        return False
    adaptations[target] = known._replace(max_tokens_field=adaptation.max_tokens_field)
    attempts.adapt({target: adaptation})
    return True


def prompt_tokens(row: AttemptRow) -> int | None:
    """All tokens of the prompt, as the target counts them."""
    if row.input_tokens is None or row.ended not in SERVED:
        return None
    return row.input_tokens + (row.cache_read_input_tokens or 0) + (row.cache_creation_input_tokens or 0)


def call_once(
    attempts: Attempts, recorder: Recorder, one: PreflightCall, adapts: Callable[[AttemptRow], bool]
) -> list[AttemptRow]:
    """Send a call, wait for its end and write its request; returns the row of the call.

    It is sent a second time, as another row, where the target asks for another form of it and `adapts` knows that, or
    where it does not answer whole.
    """
    now = monotonic_ns()
    origin = RequestRef(one.request_id, PREFLIGHT, one.traffic, now)
    row = _send(attempts, origin, Send(one.call), 0)
    rows = [row]
    again = _again(one, row, adapts)
    if again is not None:
        row = _send(attempts, origin, Send(again, cause=RETRY, of_attempt=0), 1)
        rows.append(row)
    recorder.request(
        RequestRow(
            request_id=one.request_id, stage=PREFLIGHT, traffic=one.traffic, pattern="streaming", session_id=None,
            scheduled_at_ns=now, dispatched_at_ns=now, ended_at_ns=None if row.ended == CENSORED else monotonic_ns(),
            ended=row.ended, legs=1, attempts=len(rows), winner=len(rows) - 1,
            asked_prompt_tokens=max(1, one.words), asked_output_tokens=one.call.max_tokens,
        )
    )  # fmt: skip
    return rows


def _again(one: PreflightCall, row: AttemptRow, adapts: Callable[[AttemptRow], bool]) -> Call | None:
    """Return the call that follows a first try, None where there is none."""
    if adapts(row):
        return one.call
    if one.words and not one.call.stream and row.error_type == MALFORMED_ANSWER:
        return replace(one.call, stream=True)
    return None


def _send(attempts: Attempts, origin: RequestRef, send: Send, attempt: int) -> AttemptRow:
    over = Signal()

    def receive(event: Event) -> None:
        if isinstance(event, Ended):
            over.set()

    attempts.start(origin, send, attempt, receive)
    over.wait()
    attempts.later.finish()
    row = attempts.last_row
    assert row is not None
    return row
