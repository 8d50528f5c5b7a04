"""The preflight in a worker: its calls, their results and usage. `plan.preflight` says which calls there are.

The long call of the first model begins at the first content of the short one, which shows that calls are answered; a refusal
costs one call. Both are read to their ends, where the usage stands. The others follow one after the other. All are excluded
from all statistics. A failed call that the run needs ends the run; other failures are reported.
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
    """Do nothing at the first content."""


def try_out(
    scenario: Scenario,
    attempts: Attempts,
    recorder: Recorder,
    prices: Mapping[str, Price],
    makers: Callable[[Learnt, Collection[str]], Mapping[str, Maker]],
    *,
    salt: str,
    notify: Notify = lambda _: None,
) -> dict[str, Any]:
    """Make every preflight call, then one per prefix to be written before the run; returns the message `tried`.

    `makers` use the learnt token counts, and set no marks for some targets; `salt` is that of the run. `notify` takes texts
    about what it waits for.
    """
    progress = _Preflight(scenario, attempts, recorder, prices, notify)
    progress.wait_until_ready()
    progress.find_unmarked_engines()
    unmarked = preflight.unmarked(progress.adaptations)
    calls = preflight.preflight_calls(scenario, salt or WORDS[0], unmarked)
    if not (progress.run_both(calls[0], calls[1]) and all(map(progress.run, calls[2:]))):
        return progress.message(Learnt(), {})
    engines = progress.engines()
    learnt = progress.learn(calls[:2], engines)
    by_table = makers(learnt, unmarked)
    for call in preflight.writes(scenario, lambda name: by_table[name].pre_warm(), -1 - len(calls)):
        progress.run(call)
    return progress.message(learnt._replace(short_prompts=progress.short_prompts), engines)


class _Preflight:
    """The calls of one preflight and what they tell, by its parts of the message `tried`."""

    def __init__(
        self,
        scenario: Scenario,
        attempts: Attempts,
        recorder: Recorder,
        prices: Mapping[str, Price],
        notify: Notify,
    ) -> None:
        self._scenario = scenario
        self._attempts = attempts
        self._recorder = recorder
        self._prices = prices
        self._notify = notify
        self._sized = next(iter(scenario.models()))  # target and model whose prompts are measured
        self._tokens: dict[int, int] = {}  # counted by that model, by the words of a prompt
        self._spent = Amount()
        self._results: dict[int, dict[str, Any]] = {}  # by request
        self.adaptations: dict[str, Adaptation] = {}  # by target
        self.short_prompts: list[tuple[str, str, int]] = []  # target, model and tokens of others

    def wait_until_ready(self) -> None:
        """Ask each target whether it is ready, as long as the scenario allows."""
        wait_s = self._scenario.limits.ready_s
        if not wait_s:
            return
        until_ns = monotonic_ns() + round(wait_s * 1e9)
        for call in preflight.readiness_calls(self._scenario):
            url = self._attempts.address(call.call, call.traffic) or ""
            note = partial(_note_wait, self._notify, url)
            rows = _calls_until_ready(self._attempts, self._recorder, call, until_ns, note)
            # A refused connection is no HTTP call.
            self._spend(call, [row for row in rows if row.status is not None])

    def find_unmarked_engines(self) -> None:
        """Adapt to targets whose list of models names an engine that caches without marks, and may refuse them."""
        scenario = self._scenario
        for target in (MAIN, SECOND)[: len(scenario.targets)]:
            if not scenario.may_be_unmarked(target):
                continue
            engine = self._attempts.caching_engine(target)
            if engine is not None:
                self.adaptations[target] = Adaptation(automatic_cache=engine)

    def run_both(self, short: PreflightCall, long: PreflightCall) -> bool:
        """Run a short call, and a long one from the first content of the short on; return whether the short one is usable.

        The results of both are kept. If the short call is not usable, the long one is closed, or never
        begun.
        """
        is_usable = Future()
        greenlets: list[gevent.Greenlet] = []

        def begin_long() -> None:
            if not greenlets:
                greenlets.append(gevent.spawn(self.run, long, partner=is_usable))

        usable = False
        try:
            usable = self.run(short, begin_long)
        finally:
            # The long call waits for this before it is judged.
            is_usable.set(usable)
            if not usable:
                self._attempts.abort_open(CANCELLED)
        if usable and not greenlets:  # a whole answer has no content before its end
            self.run(long)
        for greenlet in greenlets:
            greenlet.get()
        return usable

    def run(
        self,
        call: PreflightCall,
        on_content: Callable[[], object] = _nothing,
        partner: Future | None = None,
    ) -> bool:
        """Make a call and keep its result; returns whether the run may go on. `partner` as in `call_once`."""
        attempts = self._attempts
        deadline_s = self._scenario.limits.attempt_deadline_s
        with _silence_noted(attempts, call, self._notify, deadline_s):
            rows = call_once(
                attempts,
                self._recorder,
                call,
                partial(_adapt, attempts, self.adaptations, call.call.target),
                on_content=on_content,
                partner=partner,
            )
        self._spend(call, rows)
        row = rows[-1]
        input_tokens = prompt_tokens(row)
        if input_tokens is not None:
            self._note_size(call, input_tokens)
        is_loading = preflight.is_loading(row.status, row.error_body)
        is_usable = row.ended in preflight.USABLE and not is_loading
        may_go_on = is_usable or not call.needed
        self._results[call.request_id] = self._result(
            call, row, input_tokens, lists_models=not may_go_on and row.status in _MAY_BE_THE_MODEL
        )
        return may_go_on

    def _spend(self, call: PreflightCall, rows: Sequence[AttemptRow]) -> None:
        """Count what a call and its repetitions have used, or might have."""
        price = self._prices.get(call.model)
        for row in rows:
            amount = used(row, price) or need(call.call, Sizing(), price)
            self._spent = self._spent.plus(amount)

    def _note_size(self, call: PreflightCall, input_tokens: int) -> None:
        """Keep how many tokens a target has counted for a prompt."""
        target = call.call.target
        if (target, call.model) == self._sized:
            self._tokens[call.words] = input_tokens
        elif call.words == preflight.SHORT_WORDS:
            self.short_prompts.append((target, call.model, input_tokens))

    def _result(
        self, call: PreflightCall, row: AttemptRow, input_tokens: int | None, *, lists_models: bool
    ) -> dict[str, Any]:
        """Return what the master learns of a call; with the target's models where the model may be the error."""
        target = call.call.target
        result = {
            "request_id": row.request_id,
            "target": row.target,
            "ended": row.ended,
            "status": row.status,
            "error_type": row.error_type,
            "message": row.error_body,
            "model": call.model,
            "needed": call.needed,
            "stop_reason": row.stop_reason,
            "marked": preflight.is_marked(call.call.prompt),
            "streamed": row.streamed,
            "wanted_whole": not call.call.stream,
            "url": self._attempts.address(call.call, call.traffic),
        }
        if lists_models:
            result["models"] = [name for name, _ in self._attempts.models(target)[:_MODELS]]
        result["words"] = call.words
        result["input_tokens"] = input_tokens
        result["cached_tokens"] = row.cache_read_input_tokens
        return result

    def engines(self) -> dict[str, str | None]:
        """Return the engines of targets that are asked for exact answers; None where one is not known."""
        targets = preflight.exact_targets(self._scenario)
        return {
            target: engine or self._attempts.engine(target) for target, engine in targets.items()
        }

    def learn(self, calls: Sequence[PreflightCall], engines: Mapping[str, str | None]) -> Learnt:
        """Return what the measured model counts, exactly where its engine tells the tokens of our words."""
        scenario = self._scenario
        learnt = preflight.learn(self._tokens)
        name = self._sized[0]
        target = scenario.target_of(name)
        is_asked = learnt.known and preflight.sized_tables(scenario) and is_self_hosted(target.url)
        if not is_asked:
            return learnt
        engine = engines.get(name) or target.engine or self._attempts.engine(name)
        if not engine:
            return learnt
        counts = token_counts(self._attempts.tokens(name, engine, COUNTED))
        if not counts:
            return learnt
        return preflight.learn_words(self._tokens, calls, counts) or learnt

    def message(self, learnt: Learnt, engines: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the results of all calls, in their order, and what follows from them."""
        results = [self._results[number] for number in sorted(self._results, reverse=True)]
        adaptations = {target: list(plain) for target, plain in self.adaptations.items()}
        return {
            "calls": results,
            "learnt": list(learnt),
            "engines": engines,
            "adaptations": adaptations,
            "spent": self._spent.plain(),
        }


def _note_wait(notify: Notify, url: str, row: AttemptRow, left_s: float) -> None:
    """Tell that a target is waited for, and for how long at most."""
    state = f"answered HTTP {row.status}" if row.status else "cannot be reached"
    limit = f"{math.ceil(left_s)} s at most (limits.ready_s)"
    notify(f"{url} {state}: waiting until it is ready, {limit}")


@contextmanager
def _silence_noted(
    attempts: Attempts, call: PreflightCall, notify: Notify, deadline_s: float
) -> Iterator[None]:
    """Tell that a call of the preflight has had no answer for a while."""
    url = attempts.address(call.call, call.traffic)
    silence = f"no answer from {url} within {_SILENT_S:g} s"
    text = f"{silence}: is it still loading? Waiting for {deadline_s:g} s at most"
    timer = gevent.spawn_later(_SILENT_S, notify, text)
    try:
        yield
    finally:
        timer.kill()


def _adapt(
    attempts: Attempts, adaptations: dict[str, Adaptation], target: str, row: AttemptRow
) -> bool:
    """Send from now on what a target asks for in its refusal; False where it asks for nothing, or got it already."""
    current = adaptations.get(target, Adaptation())
    if row.status not in _REFUSED or current.max_tokens_field is not None:
        return False
    adaptation = attempts.adaptation(target, row.error_body or "")
    if adaptation is None:
        return False
    adaptations[target] = current._replace(max_tokens_field=adaptation.max_tokens_field)
    attempts.adapt({target: adaptation})
    return True


def prompt_tokens(row: AttemptRow) -> int | None:
    """Return all tokens of the prompt, as the target counts them."""
    if row.input_tokens is None or row.ended not in SERVED:
        return None
    cached = (row.cache_read_input_tokens or 0) + (row.cache_creation_input_tokens or 0)
    return row.input_tokens + cached


def call_once(
    attempts: Attempts,
    recorder: Recorder,
    call: PreflightCall,
    adapts: Callable[[AttemptRow], bool],
    *,
    on_content: Callable[[], object] = _nothing,
    partner: Future | None = None,
) -> list[AttemptRow]:
    """Send a call, wait for its end and write its request; returns the rows of the call.

    It is sent again, as another row, where an idle connection was closed just then, where the target asks for another form of
    it and `adapts` knows that, or where it does not answer whole; once for each reason. `partner`: whether the call during
    which it was sent is usable; then this one is sent again, alone, where it was not served.
    """
    now_ns = monotonic_ns()
    origin = RequestRef(call.request_id, PREFLIGHT, call.traffic, now_ns)
    rows = [_send(attempts, origin, Send(call.call), 0, on_content)]
    if partner is not None and rows[0].ended not in SERVED and partner.get():
        rows.append(_send_again(attempts, origin, call.call, 1))
    repetition = _repetition(call, call.call, rows, adapts)
    while repetition is not None and len(rows) < _TRIES:
        rows.append(_send_again(attempts, origin, repetition, len(rows)))
        repetition = _repetition(call, repetition, rows, adapts)
    _write(recorder, call, rows, now_ns)
    return rows


def _calls_until_ready(
    attempts: Attempts,
    recorder: Recorder,
    call: PreflightCall,
    until_ns: int,
    note: Callable[[AttemptRow, float], None],
) -> list[AttemptRow]:
    """Send a call again and again while its target loads; `note` takes now and then the last row, and the seconds left."""
    now_ns = monotonic_ns()
    origin = RequestRef(call.request_id, PREFLIGHT, call.traffic, now_ns)
    rows = [_send(attempts, origin, Send(call.call), 0)]
    note_at_ns = now_ns
    while preflight.may_become_ready(rows[-1]) and monotonic_ns() < until_ns:
        if monotonic_ns() >= note_at_ns:
            note(rows[-1], (until_ns - monotonic_ns()) / 1e9)
            note_at_ns = monotonic_ns() + round(_NOTE_S * 1e9)
        gevent.sleep(_PAUSE_S)
        rows.append(_send_again(attempts, origin, call.call, len(rows)))
    _write(recorder, call, rows, now_ns)
    return rows


def _write(
    recorder: Recorder, call: PreflightCall, rows: Sequence[AttemptRow], begun_ns: int
) -> None:
    """Write the request of a call; of several attempts the last one counts."""
    ended = rows[-1].ended
    request = RequestRow(
        request_id=call.request_id,
        stage=PREFLIGHT,
        traffic=call.traffic,
        pattern="streaming",
        session_id=None,
        scheduled_at_ns=begun_ns,
        dispatched_at_ns=begun_ns,
        ended_at_ns=None if ended == CENSORED else monotonic_ns(),
        ended=ended,
        legs=1,
        attempts=len(rows),
        winner=len(rows) - 1,
        asked_prompt_tokens=max(1, call.words),
        asked_output_tokens=call.call.max_tokens,
    )
    recorder.request(request)


def _repetition(
    planned: PreflightCall,
    call: Call,
    rows: Sequence[AttemptRow],
    adapts: Callable[[AttemptRow], bool],
) -> Call | None:
    """Return the call that follows these tries, the last of them of this call; None where there is none."""
    row = rows[-1]
    if row.error_type == STALE:  # the SDKs send it again, too
        is_first = all(earlier.error_type != STALE for earlier in rows[:-1])
        return call if is_first else None
    if adapts(row):
        return planned.call
    if planned.words and not call.stream and row.error_type == MALFORMED_ANSWER:
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
    """Send a call of the preflight and wait for its row."""
    end = Signal()

    def receive(event: Event) -> None:
        if isinstance(event, FirstContent):
            on_content()
        elif isinstance(event, Ended):
            end.set()

    attempts.start(origin, send, attempt, receive)
    end.wait()
    attempts.later.finish()
    return attempts.preflight_rows[origin.request_id]
