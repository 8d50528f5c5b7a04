"""The preflight in a worker: its calls, their results and usage.

The long call of the first model begins at the first content of the short one, which shows that calls are answered; a refusal
costs one call. Both are read to their ends, where the usage stands. The others follow one after the other. Excluded from all statistics. A failed call that the run needs ends the run; other failures are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gevent
from gevent.event import AsyncResult as Future
from gevent.event import Event as Signal

from tailgauge.call import MAIN, SECOND, Call
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Ended, Event, FirstContent, Send
from tailgauge.plan import preflight
from tailgauge.plan.preflight import Learnt, PreflightCall
from tailgauge.plan.spend_limit import Amount, Sizing, need, used
from tailgauge.prompts import Maker
from tailgauge.prompts.words import COUNTED, WORDS, token_counts
from tailgauge.protocol_violations import MALFORMED_ANSWER
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import is_self_hosted
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import (
    CANCELLED,
    CENSORED,
    PREFLIGHT,
    RETRY,
    SERVED,
    AttemptRow,
    RequestRow,
)
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.prices import Price
from tailgauge.transport.exchange import STALE
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.attempts import Attempts

_MAY_BE_THE_MODEL = {400, 404, 422}  # statuses with which targets refuse a model
_REFUSED = {400, 422}  # statuses with which targets refuse a field
_MODELS = 100  # of a target's list
_TRIES = 3  # of one call: on a fresh connection, and in another form
_PAUSE_S = 1.0  # between questions whether a target is ready
_SILENT_S = 10.0  # of a call without an answer, after which a note reports it
_NOTE_S = 10.0  # between notes that a target is waited for
Notify = Callable[[str], None]


def _nothing() -> None:
    """Nothing follows the first content."""


def try_out(
    scenario: Scenario, attempts: Attempts, recorder: Recorder, prices: Mapping[str, Price],
    makers: Callable[[Learnt, Collection[str]], Mapping[str, Maker]], *, salt: str,
    notify: Notify = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Make every preflight call, then one per prefix to be written before the run; returns the message `tried`.

    `makers` use the learnt token counts, and set no marks for some targets; `salt` is that of the run. `notify` takes texts
    about what it waits for.
    """
    spent = _wait_until_ready(scenario, attempts, recorder, prices, notify)
    adaptations = _unmarked_engines(scenario, attempts)
    unmarked = preflight.unmarked(adaptations)
    results: dict[int, dict[str, Any]] = {}  # by request
    counted: dict[int, int] = {}
    short_prompts: list[tuple[str, str, int]] = []

    def run(
        one: PreflightCall,
        on_content: Callable[[], object] = _nothing,
        beside: Future | None = None,
    ) -> bool:
        nonlocal spent
        price = prices.get(one.model)
        adapts = partial(_adapt, attempts, adaptations, one.call.target)
        deadline_s = scenario.limits.attempt_deadline_s
        with _silence_noted(attempts, one, notify, deadline_s):
            rows = call_once(attempts, recorder, one, adapts, on_content=on_content, beside=beside)
        for each in rows:
            spent = spent.plus(used(each, price) or need(one.call, Sizing(), price))
        row = rows[-1]
        total = prompt_tokens(row)
        if total is not None and (one.call.target, one.model) == sized:
            counted[one.words] = total
        elif total is not None and one.words == preflight.SHORT_WORDS:
            short_prompts.append((one.call.target, one.model, total))
        facts = {
            k: getattr(row, k) for k in ("request_id", "target", "ended", "status", "error_type")
        }
        facts |= {"message": row.error_body, "model": one.model, "needed": one.needed}
        facts |= {"stop_reason": row.stop_reason, "marked": preflight.is_marked(one.call.prompt)}
        facts |= {"streamed": row.streamed, "wanted_whole": not one.call.stream}
        facts["url"] = attempts.address(one.call, one.traffic)
        is_usable = row.ended in preflight.USABLE and not preflight.is_loading(
            row.status, row.error_body
        )
        usable = is_usable or not one.needed
        if not usable and row.status in _MAY_BE_THE_MODEL:
            facts["models"] = [name for name, _ in attempts.models(one.call.target)[:_MODELS]]
        cached = row.cache_read_input_tokens
        results[one.request_id] = {
            **facts,
            "words": one.words,
            "input_tokens": total,
            "cached_tokens": cached,
        }
        return usable

    def message(learnt: Learnt, engines: Mapping[str, str | None]) -> dict[str, Any]:
        plain = {target: list(adaptation) for target, adaptation in adaptations.items()}
        return {
            "calls": [results[number] for number in sorted(results, reverse=True)], "learnt": list(learnt), "engines": engines, "adaptations": plain,
            "spent": spent.plain(),
        }  # fmt: skip

    first = preflight.preflight_calls(scenario, salt or WORDS[0], unmarked)
    sized = next(iter(scenario.models()))
    if not (_run_both(run, first[0], first[1], attempts) and all(map(run, first[2:]))):
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


def _run_both(
    run: Callable[..., bool], short: PreflightCall, long: PreflightCall, attempts: Attempts
) -> bool:
    """Run a call, and another one from its first content on; returns whether the first is usable."""
    is_usable = Future()
    besides: list[gevent.Greenlet] = []

    def begin_long() -> None:
        if not besides:
            besides.append(gevent.spawn(run, long, beside=is_usable))

    usable = False
    try:
        usable = run(short, begin_long)
    finally:
        is_usable.set(usable)
        if not usable:
            attempts.abort_open(CANCELLED)
    if usable and not besides:  # a whole answer has no content before its end
        run(long)
    for beside in besides:
        beside.get()
    return usable


def _wait_until_ready(
    scenario: Scenario,
    attempts: Attempts,
    recorder: Recorder,
    prices: Mapping[str, Price],
    notify: Notify,
) -> Amount:
    """Ask each target whether it is ready, as long as the scenario allows; returns what that has used."""
    spent = Amount()
    wait_s = scenario.limits.ready_s
    if not wait_s:
        return spent
    until_ns = monotonic_ns() + round(wait_s * 1e9)
    for one in preflight.readiness_calls(scenario):
        url = attempts.address(one.call, one.traffic) or ""
        note = partial(_note_wait, notify, url)
        for row in _calls_until_ready(attempts, recorder, one, until_ns, note):
            if row.status is not None:  # a refused connection is no HTTP call
                price = prices.get(one.model)
                spent = spent.plus(used(row, price) or need(one.call, Sizing(), price))
    return spent


def _note_wait(notify: Notify, url: str, row: AttemptRow, left_s: float) -> None:
    did = f"answered HTTP {row.status}" if row.status else "cannot be reached"
    notify(
        f"{url} {did}: waiting until it is ready, {math.ceil(left_s)} s at most (limits.ready_s)"
    )


@contextmanager
def _silence_noted(
    attempts: Attempts, one: PreflightCall, notify: Notify, deadline_s: float
) -> Iterator[None]:
    """Say that a call of the preflight has had no answer for a while."""
    url = attempts.address(one.call, one.traffic)
    text = f"no answer from {url} within {_SILENT_S:g} s: is it still loading? Waiting for {deadline_s:g} s at most"
    timer = gevent.spawn_later(_SILENT_S, notify, text)
    try:
        yield
    finally:
        timer.kill()


def _unmarked_engines(scenario: Scenario, attempts: Attempts) -> dict[str, Adaptation]:
    """The targets whose list of models names an engine that caches without marks, and may refuse them."""
    engines = {
        target: attempts.caching_engine(target)
        for target in (MAIN, SECOND)[: len(scenario.targets)]
        if scenario.may_be_unmarked(target)
    }
    return {
        target: Adaptation(automatic_cache=name)
        for target, name in engines.items()
        if name is not None
    }


def _adapt(
    attempts: Attempts, adaptations: dict[str, Adaptation], target: str, row: AttemptRow
) -> bool:
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
    return (
        row.input_tokens
        + (row.cache_read_input_tokens or 0)
        + (row.cache_creation_input_tokens or 0)
    )


def call_once(
    attempts: Attempts,
    recorder: Recorder,
    one: PreflightCall,
    adapts: Callable[[AttemptRow], bool],
    *,
    on_content: Callable[[], object] = _nothing,
    beside: Future | None = None,
) -> list[AttemptRow]:
    """Send a call, wait for its end and write its request; returns the rows of the call.

    It is sent again, as another row, where an idle connection was closed just then, where the target asks for another form of
    it and `adapts` knows that, or where it does not answer whole; once for each reason. `beside`: whether the call during which
    it was sent is usable; then this one is sent again, alone, where it was not served.
    """
    now_ns = monotonic_ns()
    origin = RequestRef(one.request_id, PREFLIGHT, one.traffic, now_ns)
    rows = [_send(attempts, origin, Send(one.call), 0, on_content)]
    if beside is not None and rows[0].ended not in SERVED and beside.get():
        rows.append(_send_again(attempts, origin, one.call, 1))
    again = _again(one, one.call, rows, adapts)
    while again is not None and len(rows) < _TRIES:
        rows.append(_send_again(attempts, origin, again, len(rows)))
        again = _again(one, again, rows, adapts)
    _write(recorder, one, rows, now_ns)
    return rows


def _calls_until_ready(
    attempts: Attempts, recorder: Recorder, one: PreflightCall, until_ns: int, note: Callable[[AttemptRow, float], None]
) -> list[AttemptRow]:  # fmt: skip
    """Send a call again and again while its target loads; `note` takes now and then the last row, and the seconds left."""
    now_ns = monotonic_ns()
    origin = RequestRef(one.request_id, PREFLIGHT, one.traffic, now_ns)
    rows = [_send(attempts, origin, Send(one.call), 0)]
    note_at_ns = now_ns
    while preflight.may_become_ready(rows[-1]) and monotonic_ns() < until_ns:
        if monotonic_ns() >= note_at_ns:
            note(rows[-1], (until_ns - monotonic_ns()) / 1e9)
            note_at_ns = monotonic_ns() + round(_NOTE_S * 1e9)
        gevent.sleep(_PAUSE_S)
        rows.append(_send_again(attempts, origin, one.call, len(rows)))
    _write(recorder, one, rows, now_ns)
    return rows


def _write(
    recorder: Recorder, one: PreflightCall, rows: Sequence[AttemptRow], begun_ns: int
) -> None:
    """Write the request of a call; of several attempts the last one counts."""
    ended = rows[-1].ended
    recorder.request(
        RequestRow(
            request_id=one.request_id, stage=PREFLIGHT, traffic=one.traffic, pattern="streaming", session_id=None,
            scheduled_at_ns=begun_ns, dispatched_at_ns=begun_ns,
            ended_at_ns=None if ended == CENSORED else monotonic_ns(),
            ended=ended, legs=1, attempts=len(rows), winner=len(rows) - 1,
            asked_prompt_tokens=max(1, one.words), asked_output_tokens=one.call.max_tokens,
        )
    )  # fmt: skip


def _again(
    one: PreflightCall, call: Call, rows: Sequence[AttemptRow], adapts: Callable[[AttemptRow], bool]
) -> Call | None:
    """Return the call that follows these tries, the last of them of this call; None where there is none."""
    row = rows[-1]
    if row.error_type == STALE:  # the SDKs send it again, too
        is_first = all(earlier.error_type != STALE for earlier in rows[:-1])
        return call if is_first else None
    if adapts(row):
        return one.call
    if one.words and not call.stream and row.error_type == MALFORMED_ANSWER:
        return replace(call, stream=True)
    return None


def _send_again(attempts: Attempts, origin: RequestRef, call: Call, attempt: int) -> AttemptRow:
    return _send(attempts, origin, Send(call, cause=RETRY, of_attempt=attempt - 1), attempt)


def _send(
    attempts: Attempts,
    origin: RequestRef,
    send: Send,
    attempt: int,
    on_content: Callable[[], object] = _nothing,
) -> AttemptRow:
    over = Signal()

    def receive(event: Event) -> None:
        if isinstance(event, FirstContent):
            on_content()
        elif isinstance(event, Ended):
            over.set()

    attempts.start(origin, send, attempt, receive)
    over.wait()
    attempts.later.finish()
    return attempts.preflight_rows[origin.request_id]
