"""What a call meets in a dry run: faults, contents, cancellation, by the latency model and by an engine alike."""

import pytest
from dry_run.in_memory import evenly, run_in_memory

MS = 1_000_000
MODEL = {"ttft_ms": 200.0, "chunk_gap_ms": 10.0}
ENGINE = {"profile": "llama3-8b-h100"}


def one_call(simulated, target=None, **traffic):
    """The only call of a dry run, with its row of the server log and its chunks."""
    tables = {"main": {"output_tokens": 20, **traffic}}
    kept = run_in_memory(evenly(1.0, 1.0, target=target or {}, simulated=simulated, traffic=tables))
    (attempt,), (log,) = kept.attempts, kept.server_rows
    return attempt, log, kept.chunks_of.get((attempt.request_id, 0, 0))


def fault(kind, **more):
    return {"faults": {"one": {"kind": kind, "share": 1.0, **more}}}


@pytest.fixture(params=[MODEL, ENGINE], ids=["model", "engine"])
def simulated(request):
    return request.param


def test_the_times_of_the_latency_model_are_exact():
    row, log, chunks = one_call(MODEL)

    assert row.first_content_at_ns - row.sent_at_ns == 200 * MS
    assert [at - row.sent_at_ns for at in chunks.arrived] == [
        (200 + 10 * i) * MS for i in range(20)
    ]
    assert row.stopped_at_ns == row.ended_at_ns == row.last_content_at_ns == log.ended_at_ns


@pytest.mark.parametrize(
    ("status", "ended"), [(429, "rate_limited"), (500, "server_error"), (529, "overloaded")]
)
def test_an_error_instead_of_a_stream(simulated, status, ended):
    row, log, _ = one_call({**simulated, **fault("status", status=status, retry_after_s=7)})

    assert (row.ended, row.status, log.status, log.fault) == (ended, status, status, "status")
    assert (row.retry_after_s, row.ended_at_ns) == (7.0, row.sent_at_ns)
    assert row.error_type
    assert row.error_body


@pytest.mark.parametrize(
    ("kind", "ended", "error"),
    [
        ("cut", "truncated", "no_end_mark"),
        ("reset", "truncated", "reset"),
        ("error_event", "stream_error", "overloaded_error"),
    ],
)
@pytest.mark.parametrize("at_chunk", [0, 5, 50])
def test_a_stream_that_breaks_off(simulated, kind, ended, error, at_chunk):
    row, log, chunks = one_call({**simulated, **fault(kind, at_chunk=at_chunk)})

    arrived = min(at_chunk, 20)
    if kind == "error_event" and not arrived:
        ended = "overloaded"  # before content it is what its status would be
    assert (row.ended, row.error_type, row.status, row.stopped_at_ns) == (ended, error, 200, None)
    assert row.chunks == len(log.chunk_sent_at_ns) == (len(chunks) if chunks else 0) == arrived
    assert log.ended_at_ns is None
    assert row.ended_at_ns == (chunks.arrived[-1] if chunks else row.headers_at_ns)


def test_a_stall_and_slow_headers_move_what_comes_behind_them(simulated):
    plain, _, even = one_call(simulated)
    stalled, _, late = one_call({**simulated, **fault("stall", at_chunk=5, seconds=3.0)})
    slow, _, behind = one_call({**simulated, **fault("slow_headers", seconds=2.0)})

    assert list(late.arrived[:5]) == list(even.arrived[:5])
    assert [b - a for a, b in zip(even.arrived[5:], late.arrived[5:], strict=True)] == [
        3000 * MS
    ] * 15
    assert stalled.ended_at_ns - plain.ended_at_ns == 3000 * MS
    assert [b - a for a, b in zip(even.arrived, behind.arrived, strict=True)] == [2000 * MS] * 20
    assert slow.headers_at_ns - plain.headers_at_ns == 2000 * MS


def test_a_stall_behind_the_last_chunk_delays_the_end_only(simulated):
    row, _, chunks = one_call({**simulated, **fault("stall", at_chunk=20, seconds=3.0)})

    assert row.ended_at_ns == chunks.arrived[-1] + 3000 * MS
    assert row.ended == "ok"


def test_early_headers_are_no_content(simulated):
    row, _, _ = one_call({**simulated, **fault("early_headers")})

    assert row.headers_at_ns == row.sent_at_ns
    assert row.first_content_at_ns > row.sent_at_ns + 10 * MS


def test_an_answer_in_one_piece(simulated):
    streamed, _, _ = one_call(simulated)
    row, log, chunks = one_call(simulated, stream=False)

    assert (row.ended, row.streamed, row.chunks, row.output_tokens) == ("ok", False, 1, 20)
    assert row.headers_at_ns == row.ended_at_ns == chunks.arrived[0] == log.chunk_sent_at_ns[0]
    assert row.ended_at_ns == pytest.approx(streamed.ended_at_ns, abs=MS)


def test_thinking_and_tools_have_times_of_their_own(simulated):
    content = {"content": {"thinking_share": 0.25, "tool_share": 0.5}}
    more = {"thinking": "enabled", "thinking_tokens": 1024, "output_tokens": 2000, "tools": 2}
    row, _, chunks = one_call({**simulated, **content}, **more)

    assert (
        row.first_content_at_ns
        == row.first_thinking_at_ns
        < row.first_text_at_ns
        < row.first_tool_json_at_ns
    )
    assert row.first_tool_json_at_ns <= row.tool_ready_at_ns == row.ended_at_ns
    assert (row.thinking_tokens, row.stop_reason, row.output_tokens) == (500, "tool_use", 2000)
    assert sum(chunks.chars) == 2000 * 4


def test_several_tokens_in_a_chunk(simulated):
    row, _, chunks = one_call({**simulated, "tokens_per_chunk": 8})

    assert [chars // 4 for chars in chunks.chars] == [8, 8, 4]
    assert row.ended == "ok"


def test_a_user_who_leaves_after_so_many_chunks(simulated):
    row, log, chunks = one_call(simulated, cancel={"share": 1.0, "after_chunks": 5})

    assert (row.ended, row.chunks, len(chunks), log.output_tokens) == ("cancelled", 5, 5, 5)
    assert row.cancelled_at_ns == log.cancelled_at_ns == chunks.arrived[-1]
    assert log.tokens_after_cancel == 0
    assert (row.input_tokens, row.output_tokens, row.stop_reason) == (
        200,
        1,
        None,
    )  # of the first event


def test_an_engine_that_does_not_stop_wastes_the_rest():
    never = {**ENGINE, "engine": {"cancel_mode": "never"}}
    row, log, _ = one_call(never, cancel={"share": 1.0, "after_chunks": 5})

    assert (row.chunks, log.output_tokens, log.tokens_after_cancel) == (5, 5, 15)


def test_a_full_engine_refuses():
    full = {**ENGINE, "engine": {"slots": 2, "queue_cap": 3}}
    kept = run_in_memory(evenly(100.0, 1.0, simulated=full))
    ended = [row.ended for row in kept.attempts]

    assert ended.count("overloaded") > 50
    assert {row.status for row in kept.server_rows} == {200, 529}


def test_the_other_protocol_says_things_its_own_way():
    limits = {"limits": {"rpm": 600}}
    row, log, _ = one_call({**MODEL, **limits}, {"protocol": "openai"})
    other, _, _ = one_call({**MODEL, **limits})

    assert (row.protocol, log.protocol, row.stop_reason) == ("openai", "openai", "length")
    assert "x-ratelimit-remaining-requests" in row.rate_limit_headers
    assert "anthropic-ratelimit-requests-remaining" in other.rate_limit_headers
