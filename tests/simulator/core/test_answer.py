"""An answer driven by hand: what is due when, how each fault changes it, and what the server log has in the end."""

from __future__ import annotations

import pytest

from tailgauge.rows.schema import ServerLogRow
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.core.answer import Answer, answer_to
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.exchange import Exchange
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import CallRequest, Refused

MS = 1_000_000
START = 1000 * MS
TOKENS = 5
MODEL = {"ttft_ms": 100.0, "chunk_gap_ms": 10.0}
ENGINE = {"profile": "tiny", "engine": {"overhead_ms": 0.0}}


class Hand:
    """A driver whose clock is set by hand."""

    def __init__(self, **table):
        self.at_ns = START
        self.core = Endpoint(Simulated(**table), 1, self)

    def now_ns(self) -> int:
        return self.at_ns

    def wall_ns(self) -> int:
        return self.at_ns

    def engine_changed(self):
        """The engine is driven by `answer`."""

    def answer(self, *, stream: bool = True) -> Answer:
        """The answer to a call that comes now, with all its times known."""
        row = ServerLogRow(
            "r/1/0/0", 1, 0, 0, "anthropic", 200, self.at_ns, None, None, [], None, None, 0, 0
        )
        exchange = Exchange(self.core, row, anthropic, 1)
        exchange.accept(CallRequest("m", TOKENS, 20, stream), {})
        exchange.admit(self.at_ns)
        answer = answer_to(exchange)
        engine = self.core.engine
        while engine is not None and (due_ns := engine.next_due_ns()) is not None:
            self.core.advance(due_ns)
        return answer


def faulty(kind, **more):
    return {"faults": {"one": {"kind": kind, "share": 1.0, **more}}}


@pytest.fixture(params=[MODEL, ENGINE], ids=["model", "engine"])
def source(request):
    return request.param


def test_the_latency_model_has_every_time_at_once():
    answer = Hand(**MODEL).answer()

    assert answer.due_ns == [START + (100 + 10 * i) * MS for i in range(TOKENS)]
    assert (answer.opens_ns, answer.complete, answer.ending) == (START + 100 * MS, True, "end_mark")
    assert answer.end_ns(answer.due_ns[-1]) == answer.due_ns[-1]


@pytest.mark.parametrize("kind", ["error_event", "cut", "reset"])
@pytest.mark.parametrize("at_chunk", [0, 3, 50])
def test_a_stream_breaks_off_after_its_chunk(source, kind, at_chunk):
    plain, broken = (
        Hand(**source).answer(),
        Hand(**source, **faulty(kind, at_chunk=at_chunk)).answer(),
    )

    assert broken.due_ns == plain.due_ns[:at_chunk]
    assert (broken.complete, broken.ending) == (True, kind)
    broken.finish(START, len(broken.due_ns))
    assert broken.exchange.row.ended_at_ns is None


def test_a_stall_moves_the_chunks_from_its_own_on(source):
    plain = Hand(**source).answer().due_ns
    first, late, behind = (
        Hand(**source, **faulty("stall", at_chunk=at_chunk, seconds=3.0)).answer()
        for at_chunk in (0, 2, TOKENS)
    )

    assert first.due_ns == [at + 3000 * MS for at in plain]
    assert late.due_ns == plain[:2] + [at + 3000 * MS for at in plain[2:]]
    assert late.end_ns(late.due_ns[-1]) == late.due_ns[-1]
    assert (behind.due_ns, behind.end_ns(0)) == (plain, 3000 * MS)


def test_slow_headers_move_everything_and_early_ones_nothing(source):
    plain = Hand(**source).answer()
    slow, early = (
        Hand(**source, **faulty(kind, seconds=2.0)).answer()
        for kind in ("slow_headers", "early_headers")
    )

    assert plain.opens_ns is not None
    assert slow.opens_ns == plain.opens_ns + 2000 * MS
    assert slow.due_ns == [at + 2000 * MS for at in plain.due_ns]
    assert (early.due_ns, early.headers_at_once, plain.headers_at_once) == (
        plain.due_ns,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("kind", "status", "ended", "chunks"),
    [
        ("stall", 200, True, 1),
        ("error_event", 529, True, 0),
        ("cut", 200, False, 0),
        ("reset", 200, False, 0),
    ],
)
def test_an_answer_in_one_piece_takes_of_a_fault_what_it_can(source, kind, status, ended, chunks):
    plain = Hand(**source).answer(stream=False)
    answer = Hand(**source, **faulty(kind, at_chunk=1, seconds=1.0)).answer(stream=False)
    assert plain.opens_ns is not None
    assert answer.opens_ns is not None
    answer.opened(answer.opens_ns)
    answer.finish(answer.opens_ns, chunks)
    row = answer.exchange.row

    assert answer.opens_ns - plain.opens_ns == (1000 * MS if kind == "stall" else 0)
    assert (row.status, row.ended_at_ns is not None, len(row.chunk_sent_at_ns)) == (
        status,
        ended,
        chunks,
    )


def test_an_error_in_place_of_the_answer_is_refused_and_costs_nothing(source):
    hand = Hand(**source, **faulty("status", status=500), limits={"itpm": 100, "itpm_burst": 100})
    with pytest.raises(Refused) as caught:
        hand.answer()

    assert caught.value.status == 500
    assert [reading.remaining for reading in hand.core.limits.readings(START)] == [100]


def test_a_client_that_leaves_ends_the_bill_at_what_it_got():
    answer = Hand(**MODEL).answer()
    answer.opened(START + 100 * MS)
    answer.leave(START + 125 * MS, 3)
    answer.log_chunks(answer.due_ns[:3])
    row = answer.exchange.row

    assert answer.over
    assert (row.billed_output_tokens, row.output_tokens, row.tokens_after_cancel) == (3, 3, 0)
    assert row.cancelled_at_ns == START + 125 * MS
