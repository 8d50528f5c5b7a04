"""The decoder: stamps that say what is known, chunks as columns, and no exception whatever a peer sends."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.decoder import KIND_CODE, AnswerSettings, Stamp, StreamDecoder, tree_of
from tailgauge.protocols.errors import class_of_error, error_of, looks_like_error
from tailgauge.protocols.event_ids import EventIds
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.sse_parser import MAX_EVENT
from tailgauge.protocols.table import Target
from tailgauge.rows.schema import TEXT


def word(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode()


class Reads:
    """Feeds reads at 1100, 1200, ... ns, each taken by our own clock 7 ns later."""

    def __init__(self, on_event=OpenAI.on_event):
        self.decoder = StreamDecoder(on_event)
        self._count = 0

    def feed(self, payload: bytes, *, at_rest: bool = True) -> StreamDecoder:
        at = 1100 + 100 * self._count
        self.decoder.feed(payload, at - 100, at, at + 7, self._count, at_rest=at_rest)
        self._count += 1
        return self.decoder


def event(tree):
    return b"data: %b\n\n" % json.dumps(tree).encode()


def deltas(**fields):
    return event({"choices": [{"index": 0, "delta": fields}]})


def watching(on_event=OpenAI.on_event, **settings):
    return StreamDecoder(on_event, AnswerSettings(**settings))


def fed(*events, **settings):
    """A decoder that got each event in a read of its own, at 1, 2, ... ns."""
    decoder = watching(**settings)
    for number, event in enumerate(events, 1):
        decoder.feed(event, number - 1, number, number, number, at_rest=True)
    return decoder


def answered(*pieces, **settings):
    """A decoder that got an answer in these pieces."""
    return fed(*(deltas(content=piece) for piece in pieces), **settings)


# --- stamps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "lows"),
    [
        ([(word("a"), True)], [None]),
        ([(word("a"), False)], [1000]),  # bytes of framing came after it in the same read
        ([(word("a") + word("b"), True)], [1000, None]),
        ([(word("a") + word("b"), False)], [1000, 1000]),
        ([(word("a") + b"data: {", True)], [1000]),
        ([(word("a") + b": a comment\n\n", True)], [1000]),
        ([(word("a")[:-1], True), (b"\n", True)], [None]),
        (
            [(word("a")[:5], True), (word("a")[5:] + word("b"), True), (word("c"), True)],
            [1100, None, None],
        ),
        ([(word("a") + word("b")[:9], True), (word("b")[9:], True)], [1000, None]),
        ([(b": a comment\n\n" + word("a"), True)], [None]),
    ],
)
def test_an_event_is_exact_only_if_it_ended_its_read(reads, lows):
    feed = Reads()
    for payload, at_rest in reads:
        feed.feed(payload, at_rest=at_rest)
    _, chunks = feed.decoder.take()

    assert [low or None for low in chunks.low] == [(low and low) or None for low in lows]


def test_an_event_that_shared_the_very_first_read_lies_after_the_time_it_was_given():
    """`low` 0 means exact in the columns, so the exchange gives the time the request was sent."""
    decoder = StreamDecoder(OpenAI.on_event)
    decoder.feed(word("a") + word("b"), 50, 100, 107, 0, at_rest=True)

    assert decoder.first_content == Stamp(100, 50, 107)
    assert decoder.last_content == Stamp(100, None, 107)


def test_the_landmarks_of_a_stream_are_stamped():
    feed = Reads()
    feed.feed(b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n')
    feed.feed(b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n')
    feed.feed(word("a"))
    feed.feed(word("b"))
    feed.feed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n')
    decoder = feed.feed(b"data: [DONE]\n\n")

    assert [
        stamp.at for stamp in (decoder.first_event, decoder.first_content, decoder.first_text)
    ] == [
        1100,
        1200,
        1300,
    ]
    assert [stamp.at for stamp in (decoder.last_content, decoder.stopped)] == [1400, 1600]
    assert (decoder.events, decoder.chunks, decoder.finished) == (6, 3, True)


# --- chunks as columns ------------------------------------------------------------------------------------------


def test_chunks_are_taken_in_runs_whose_numbers_follow_each_other():
    feed = Reads()
    feed.feed(word("a") + word("bc"))
    first, chunks = feed.decoder.take()

    assert (first, list(chunks.chars), list(chunks.read_index)) == (0, [1, 2], [0, 0])
    assert feed.decoder.take()[0] == 2
    assert len(feed.decoder.take()[1]) == 0
    feed.feed(word("東京é"))
    first, chunks = feed.decoder.take()
    assert (first, list(chunks.chars), list(chunks.arrived), list(chunks.read_at)) == (
        2,
        [3],
        [1200],
        [1207],
    )
    assert list(chunks.kind) == [KIND_CODE[TEXT]]


# --- what a peer may send ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_event", [Anthropic.on_event, OpenAI.on_event])
@pytest.mark.parametrize("data", [b"", b'{"a":"\\ud800"}'])
def test_nothing_and_an_object_without_anything_that_we_look_for_are_tolerated(on_event, data):
    decoder = Reads(on_event).feed(b"data: " + data + b"\n\n")

    assert decoder.error is None
    assert decoder.tolerated


def test_an_event_without_an_end_is_an_error_and_not_a_growing_memory():
    feed = Reads()
    piece = b"data: " + b"x" * (MAX_EVENT // 4)
    for _ in range(6):
        feed.feed(piece)

    error = feed.decoder.error
    assert (error.kind, error.text) == (
        "event_too_large",
        "over 4 MiB, 10,000 lines or 500,000 values",
    )
    assert feed.decoder.broken
    assert feed.decoder.held == 0


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ("overloaded_error", "Overloaded")),
        ({"error": {"message": "busy", "type": "Service Unavailable", "code": 503}}, ("Service Unavailable", "busy")),
        ({"code": 500, "message": "Context size", "type": "server_error"}, ("server_error", "Context size")),
        ({"error": {"code": 429, "message": "slow"}}, ("429", "slow")),
        ({"error": "model not found"}, ("error", "model not found")),
        ({"detail": "Not Found"}, ("error", "Not Found")),
        ({"error": {"type": "x"}}, ("x", '{"error": {"type": "x"}}')),
        ({"error": {"type": "x\ud800", "message": "y\udfff"}}, ("x?", "y?")),
        ([{"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}], ("RESOURCE_EXHAUSTED", "slow")),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, ("overloaded", "Model is overloaded")),
        ({"error": {"message": "slow", "http_status_code": 429}}, ("error", "slow")),
        ({"choices": [{}], "x_groq": {"id": "1", "error": "over_capacity"}}, ("over_capacity", "over_capacity")),
        ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, ("base_resp 1002", "rate limit")),
        ({"error": {"message": '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "type": "None", "code": "529"}}, ("overloaded_error", "Overloaded")),
        ({"error": {"message": "{not JSON", "type": "x"}}, ("x", "{not JSON")),
        ([1], ("error", "[1]")),
        (None, ("error", "null")),
    ],
)  # fmt: skip
def test_errors_come_in_the_shapes_of_providers_and_engines(tree, expected):
    assert error_of(tree) == expected


ERROR_CLASSES = {  # shape -> the class of its status; None: it is no error
    "Gemini's list": ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], "rate_limited"),
    "TGI's type beside the text": ({"error": "Model is overloaded", "error_type": "overloaded"}, "overloaded"),
    "TGI's status": ({"error": {"message": "slow", "http_status_code": 503}}, "overloaded"),
    "Groq's capacity": ({"choices": [{}], "x_groq": {"error": "over_capacity"}}, "overloaded"),
    "MiniMax's rate limit": ({"choices": None, "base_resp": {"status_code": 1002}}, "rate_limited"),
    "MiniMax's filter": ({"base_resp": {"status_code": 1027}}, "filtered"),
    "MiniMax's success": ({"choices": [{}], "base_resp": {"status_code": 0, "status_msg": ""}}, None),
    "GLM's code": ({"error": {"code": "1302", "message": "concurrency"}}, "rate_limited"),
    "a status in words": ({"status": "error", "message": "slow", "code": 503}, "overloaded"),
    "an event that calls itself one": ({"event": "error", "code": 529}, "overloaded"),
    "Databricks' code": ({"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "Exceeded"}, "rate_limited"),
    "a burst at DashScope": ({"error": {"code": "limit_burst_rate", "message": "too quickly"}}, "rate_limited"),
    "Tencent's capitals": ({"Response": {"Error": {"Code": "RequestLimitExceeded", "Message": "slow"}}}, "rate_limited"),
    "Groq's id alone": ({"choices": [{}], "x_groq": {"id": "1"}}, None),
    "an error that is empty": ({"choices": [{}], "error": {}}, None),
    "a figure of that name": ({"choices": [{}], "error": 0.03}, None),
}  # fmt: skip


@pytest.mark.parametrize(("tree", "expected"), ERROR_CLASSES.values(), ids=ERROR_CLASSES)
def test_an_error_in_an_answer_has_the_class_of_its_status(tree, expected):
    assert looks_like_error(tree) is (expected is not None)
    if expected is not None:
        assert class_of_error(tree) == expected


@pytest.mark.parametrize("module", [Anthropic, OpenAI])
@pytest.mark.parametrize(
    ("data", "error_class", "text"),
    [
        (b'[{"error": {"code": 429, "message": "slow"}}]', "rate_limited", "slow"),
        (b' {"error": {"type": "overloaded_error", "message": "full"}}', "overloaded", "full"),
        (b"upstream gone", None, "upstream gone"),
    ],
)
def test_an_event_named_error_is_one_as_json_and_as_text(module, data, error_class, text):
    decoder = fed(b"event: error\ndata: " + data + b"\n\n", on_event=module.on_event)

    assert (decoder.error.error_class, decoder.error.text) == (error_class, text)
    assert decoder.first_event is not None


# --- thinking between tags --------------------------------------------------------------------------------------

TAGGED = {  # pieces -> number of the piece with the first thinking, and with the first text; the answer's text
    "a tag of its own": (["<think>", "hm", "</think>", "yes"], 2, 4, "yes"),
    "all in one piece": (["<think>hm</think>\n\nyes"], 1, 1, "yes"),
    "an opening tag over two pieces": (["<thi", "nk>hm", "</think>", "yes"], 1, 4, "yes"),
    "an opening tag over two pieces alone": (["<think", ">", "hm", "</think>yes"], 1, 4, "yes"),
    "a closing tag over two pieces": (["<think>hm", "</thi", "nk>yes"], 1, 3, "yes"),
    "a closing tag letter by letter": (["<think>hm", *"</think>", "yes"], 1, 10, "yes"),
    "what looks like a closing tag": (["<think>a</thin", "g>b", "</think>", "yes"], 1, 4, "yes"),
    "a line end before": (["\n", "<think>", "hm", "</think>", "yes"], 1, 5, "yes"),
    "another tag": (["<thinking>", "hm", "</thinking>", "yes"], 2, 4, "yes"),
    "Gemini's tag": (["<thought>hm", "</thought>", "yes"], 1, 3, "yes"),
    "Magistral's tag": (["[THI", "NK]hm", "[/THINK]", "yes"], 1, 4, "yes"),
    "no thinking at all": (["<", "b>yes</b>"], None, 1, "<b>yes</b>"),
    "another tag behind": (["yes", " <think>no</think>"], None, 1, "yes <think>no</think>"),
    "a tag that never comes": (["<thin", "g>"], None, 1, "<thing>"),
}  # fmt: skip


@pytest.mark.parametrize(("pieces", "thinking", "text", "answer"), TAGGED.values(), ids=TAGGED)
def test_thinking_between_tags_is_no_text_wherever_its_tags_are_cut(pieces, thinking, text, answer):
    decoder = answered(*pieces, keep_text=True)

    assert (decoder.first_thinking and decoder.first_thinking.at) == thinking
    assert decoder.first_text.at == text
    assert decoder.text == answer
    assert decoder.first_content.at <= min(text, thinking or text)
    assert ("thinking_in_text" in decoder.tolerated) is (thinking is not None)


def test_a_first_field_is_sought_behind_the_thinking_only():
    pieces = ("<thi", 'nk>{"a": 1, "b": 2}', "</think>", '{"c": 3,', ' "d": 4}')
    decoder = answered(*pieces, watch_field=True)

    assert decoder.first_field.at == 4


ANSWERS = {  # pieces of an answer whose fields are watched for, and whether it is JSON
    "an object": (['{"a":', ' [1, "b"]}'], True),
    "behind thinking": (["<think>no</think>", '{"a": 1}'], True),
    "cut by a limit": (['{"a": 1, "b": "no e'], False),
    "prose": (["Here it is:", ' {"a": 1}'], False),
    "in a fence": (['```json\n{"a": 1}\n```'], False),
}


@pytest.mark.parametrize(("pieces", "is_json"), ANSWERS.values(), ids=ANSWERS)
def test_a_whole_answer_with_fields_is_json_or_not(pieces, is_json):
    decoder = answered(*pieces, watch_field=True, keep_text=True)

    assert decoder.valid_json is None  # it goes on
    decoder.stop()
    assert decoder.valid_json is is_json
    plain = watching(keep_text=True)
    plain.stop()
    assert plain.valid_json is None


def test_gemini_marks_its_thoughts_beside_the_content():
    thought = deltas(content="hm", extra_content={"google": {"thought": True}})
    decoder = fed(thought, deltas(content="yes"), keep_text=True)

    assert (decoder.first_thinking.at, decoder.first_text.at, decoder.text) == (1, 2, "yes")


# --- several completions, several calls -------------------------------------------------------------------------


def completion(number, **delta):
    return event({"id": f"c{number}", "model": "m", "choices": [{"index": 0, "delta": delta}]})


def test_another_completion_before_the_end_of_the_first_breaks_the_stream():
    begun = (completion(1, role="assistant"), completion(1, content="a"))
    other = (completion(2, role="assistant", content=""), completion(2, content="b"))

    assert fed(*begun, *other).error.kind == "second_message"
    assert (
        fed(*begun, completion(2, content="b")).error is None
    )  # gateways with a fresh id on each chunk
    assert fed(*begun, completion(1, role="assistant", content="b")).error is None
    repeated = [completion(number, role="assistant", content="a") for number in range(4)]
    assert fed(*repeated).error is None


def test_tools_of_messages_may_share_an_index_one_behind_the_other():
    reads = []
    for call_id in ("a", "b"):
        tool = {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
        begin = event({"type": "content_block_start", "index": 0, "content_block": tool})
        reads.append(begin + event({"type": "content_block_stop", "index": 0}))
    decoder = fed(*reads, on_event=Anthropic.on_event)

    assert decoder.tools.ready_at_ns == {"a": 1, "b": 2}
    assert "tools_of_equal_index" in decoder.tolerated


@pytest.mark.parametrize(
    ("calls", "count"),
    [
        ([{"index": 0, "id": "", "name": "f"}, {"index": 0, "id": "", "name": "g"}], 2),
        ([{"name": "f"}, {"name": "g"}], 2),
        ([{"name": "f"}, {"name": "f"}], 2),
        ([{"id": None, "name": "f"}, {"name": None}], 1),
        ([{"index": 0, "id": "a", "name": "f"}, {"index": 0, "id": "b", "name": None}], 1),
        ([{"index": 0, "id": "a", "name": "f"}, {"index": 0, "id": "a", "name": "f"}], 1),
        ([{"index": 0, "name": "f"}, {"index": 1, "name": "g"}, {"index": 0}], 2),
    ],
)
def test_calls_are_separate_with_or_without_ids(calls, count):
    pieces = [
        {
            **{key: call[key] for key in ("index", "id") if key in call},
            "function": {"name": call.get("name"), "arguments": "{"},
        }
        for call in calls
    ]
    decoder = fed(*(deltas(tool_calls=[piece]) for piece in pieces))
    decoder.tools_done()

    assert decoder.tools.count == len(decoder.tools.ready_at_ns) == count


# --- what a call asked for --------------------------------------------------------------------------------------


def test_someone_waits_for_the_first_content_and_then_nobody():
    decoder = watching()
    decoder.feed(deltas(role="assistant"), 50, 100, 107, 0, at_rest=True)
    assert decoder.watching
    decoder.feed(word("a"), 100, 200, 207, 1, at_rest=True)

    assert not decoder.watching
    assert decoder.watched is None


def test_someone_waits_for_a_later_chunk_which_may_come_with_others():
    decoder = watching(watch_chunks=3)
    decoder.feed(word("a") + word("b"), 50, 100, 107, 0, at_rest=True)
    assert decoder.watching
    decoder.feed(word("c") + word("d"), 100, 200, 207, 1, at_rest=True)

    assert not decoder.watching
    assert decoder.watched == Stamp(200, 100, 207)
    assert decoder.first_content == Stamp(100, 50, 107)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (word("a") + word("b"), "ab"),
        (word("a") + deltas(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]), "a"),
        (deltas(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]), "{}"),
        (deltas(reasoning_content="hm"), ""),
        (
            b'data: {"choices":[{"delta":{"content":"\\ud800!"}}]}\n\n',
            "?!",
        ),  # it must be possible to send it again
        (b"", ""),
    ],
)
def test_the_answer_is_kept_where_it_is_needed_again(stream, expected):
    assert fed(stream, keep_text=True).text == expected
    assert fed(stream).text is None


# As LiteLLM streams a refusal of Messages as a chat completion.
GATEWAY_REFUSAL = {
    "provider_specific_fields": {
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": None},
    },
    "content": "",
}


def test_the_refusal_of_a_model_behind_a_gateway_is_one_although_the_gateway_names_a_filter():
    feed = Reads()
    for choice in ({"delta": GATEWAY_REFUSAL}, {"delta": {}, "finish_reason": "content_filter"}):
        feed.feed(event({"choices": [choice]}))
    body = {
        "model": "m",
        "choices": [{"message": GATEWAY_REFUSAL, "finish_reason": "content_filter"}],
    }
    whole = StreamDecoder(OpenAI.on_event, on_whole=OpenAI.on_whole)
    OpenAI.on_whole(whole, json.dumps(body).encode())

    for decoder in (feed.decoder, whole):
        assert decoder.stop_reason == "refusal"
        assert decoder.served.stop_details == "cyber"


def test_what_else_a_gateway_passes_on_changes_no_reason():
    feed = Reads()
    for fields in (
        "text",
        {"stop_reason": 1},
        {"citations": [], "stop_details": {"category": "cyber"}},
    ):
        choice = {
            "delta": {"provider_specific_fields": fields, "content": "a"},
            "finish_reason": "stop",
        }
        feed.feed(event({"choices": [choice]}))

    assert feed.decoder.error is None
    assert feed.decoder.stop_reason == "stop"
    assert feed.decoder.served.stop_details is None


def test_a_tool_is_ready_when_another_begins_or_the_answer_ends():
    def argument(index):
        return deltas(tool_calls=[{"index": index, "function": {"arguments": "x"}}])

    for last in (argument(1), b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n'):
        feed = Reads()
        feed.feed(argument(0))
        assert feed.feed(argument(0)).tool_ready is None
        feed.feed(last)

        assert feed.feed(argument(2)).tool_ready == Stamp(1300, None, 1307)


def test_only_a_tools_block_makes_a_tool_ready():
    feed = Reads(Anthropic.on_event)
    for kind, index in (("text", 0), ("server_tool_use", 1), ("tool_use", 2), ("tool_use", 3)):
        block = {"type": "content_block_start", "index": index, "content_block": {"type": kind}}
        feed.feed(event(block))
        decoder = feed.feed(b'data: {"type":"content_block_stop","index":%d}\n\n' % index)

    assert decoder.tool_ready == Stamp(1600, None, 1607)


@given(
    st.binary(max_size=200)
    | st.sampled_from([b"{}", b"[]", b"null", b'{"content":[{}]}', b'{"choices":[]}', b"[" * 9999])
)
@pytest.mark.parametrize("on_whole", [Anthropic.on_whole, Anthropic.on_job, OpenAI.on_whole])
def test_a_body_that_is_not_the_protocol_is_an_error_and_no_exception(on_whole, body):
    decoder = StreamDecoder(Anthropic.on_event, on_whole=on_whole)
    decoder.whole(body, 100, 107, 0)

    assert decoder.error is not None or (on_whole is Anthropic.on_job and not body.strip())
    assert decoder.chunks == 0


def test_an_error_with_status_200_keeps_its_name():
    body = b'{"error": {"type": "overloaded_error", "message": "later"}}'
    for on_whole in (Anthropic.on_whole, OpenAI.on_whole):
        decoder = StreamDecoder(Anthropic.on_event, on_whole=on_whole)
        decoder.whole(body, 100, 107, 0)

        assert (decoder.error.kind, decoder.error.text) == ("overloaded_error", "later")
        assert decoder.error.ended == "overloaded"


def test_results_of_a_batch_are_kept_without_their_messages_and_their_usage_is_added_up():
    def line(name, **result):
        return json.dumps({"custom_id": name, "result": result}).encode()

    message = {
        "model": "tiny",
        "content": ["much"],
        "usage": {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": None},
    }
    error = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    decoder = StreamDecoder(Anthropic.on_event, on_whole=Anthropic.on_job)
    decoder.whole(
        b"\n".join([line("b", type="succeeded", message=message), line("a", type="errored", error=error),
                    line("c", type="succeeded", message=message)]), 100, 107, 0,
    )  # fmt: skip

    assert decoder.usage.live() == {"input_tokens": 6, "output_tokens": 8}
    results = [json.loads(one) for one in decoder.text.splitlines()]
    assert [(one["custom_id"], one["result"]["type"]) for one in results] == [
        ("b", "succeeded"),
        ("a", "errored"),
        ("c", "succeeded"),
    ]
    assert results[1]["result"]["error"] == error
    assert "much" not in decoder.text


# --- the parser ---------------------------------------------------------------------------------------------------

JSONS = (
    b'{"a":1,"a":2}', b"[1e400,-1e400,-0,0,-0.0,1E5,1e-400]", b"[NaN,Infinity,-Infinity]", b'"\\ud800"', b'"\xed\xa0\x80"',
    b'"\\ud83d\\ude00"', b'\xef\xbb\xbf{"a":1}', b'"\x01"', b'"\x7f"', b"01", b"1.", b"-", b"[1,]", b"{} {}", b' {"a" : [ ] } \n',
    b'"\\x"', b'"\\u12"', b"[" * 300 + b"]" * 300, b"9" * 30, b"9" * 5000, b"0.1", b"true", b"nul", b"", b'"\xff"',
    '{"é":"ü"}'.encode(), '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32"), b'{"a":"\\u0000"}', b'"a\nb"',
)  # fmt: skip


def as_the_sdks(data):
    """Both decode an event's bytes as UTF-8 before they read the JSON: no UTF-16, no byte order mark."""
    return json.loads(data.decode())


def parsed(parse, data):
    try:
        return repr(parse(data))
    except (ValueError, RecursionError):
        return "refused"


@pytest.mark.parametrize("data", JSONS, ids=lambda data: repr(data[:20]))
def test_the_fast_parser_reads_what_the_sdks_read(data):
    assert parsed(tree_of, data) == parsed(as_the_sdks, data)


def test_the_fast_parser_reads_what_the_sdks_read_of_damaged_json():
    rng = Random(0)
    for _ in range(20_000):
        data = bytearray(rng.choice(JSONS)[:60])
        for _ in range(rng.randrange(3) if data else 0):
            data[rng.randrange(len(data))] = rng.choice(b'0123456789eE+-.,:{}[]"\\u \n\x00\xc3\xa9')

        assert parsed(tree_of, bytes(data)) == parsed(as_the_sdks, bytes(data)), data


def resumed(*connections):
    """The decoder of the last connection; each is its bytes."""
    ids, wire = EventIds(), CustomSse(Target(protocol="sse"), "http://127.0.0.1")
    for number, sent in enumerate(connections):
        decoder = StreamDecoder(wire.on_event, AnswerSettings(event_ids=ids))
        decoder.feed(sent, 1, 2 + number, 3, 0, at_rest=True)
    return decoder, ids


def ids_from(first, last):
    return b"".join(b"id: a-%d\ndata: word\n\n" % number for number in range(first, last))


DONE = b"data: [DONE]\n\n"


def test_a_stream_goes_on_over_two_connections():
    decoder, ids = resumed(ids_from(0, 4), b": ping\n\ndata: \n\n" + ids_from(4, 6) + DONE)

    assert (decoder.error, decoder.finished, decoder.chunks) == (None, True, 2)
    assert (ids.last_id, ids.contents) == ("a-5", 6)


def test_a_stream_that_does_not_go_on_where_it_was_cut_is_an_error():
    decoder, _ = resumed(ids_from(0, 4), ids_from(2, 6) + DONE)

    assert decoder.error.kind == "events_repeated"
    assert decoder.finished


def test_a_connection_with_nothing_but_the_end_mark_completes_an_answer():
    decoder, _ = resumed(ids_from(0, 4), DONE)

    assert (decoder.error, decoder.finished, decoder.answer) == (None, True, "")
    assert resumed(DONE)[0].answer is None  # nothing at all is an empty answer


def test_interleaved_tool_calls_are_complete_with_their_last_piece():
    feed = Reads(OpenAI.on_event)
    for index, call_id, text in (
        (0, "a", '{"q": '),
        (1, "b", '{"r": '),
        (0, None, "1}"),
        (1, None, "2}"),
    ):
        call = {"index": index, "function": {"arguments": text}}
        if call_id:
            call |= {"id": call_id, "function": {"name": "f", "arguments": text}}
        feed.feed(deltas(tool_calls=[call]))
    decoder = feed.feed(
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    )

    assert decoder.tools.ready_at_ns == {"a": 1500, "b": 1500}, "only the finish reason shows it"


@pytest.mark.parametrize(
    "tree",
    [
        {"type": "error", "error": {"type": "error", "error": {"type": "overloaded_error"}}},
        {"error": {"error": {"message": "x", "code": 503}}},
        {"error": {"type": "ServiceUnavailableException"}},
        {"error": {"code": "litellm.ServiceUnavailableError"}},
    ],
)
def test_an_error_is_known_however_it_is_wrapped(tree):
    decoder = Reads().feed(event(tree))

    assert decoder.error.ended == "overloaded"


def test_whole_answers_with_a_call_of_a_tool_or_without_ids_are_answers():
    choice = {
        "finish_reason": "function_call",
        "message": {"function_call": {"name": "f", "arguments": "{}"}},
    }
    whole = StreamDecoder(OpenAI.on_event, on_whole=OpenAI.on_whole)
    whole.whole(json.dumps({"choices": [choice]}).encode(), 1, 2, 0)
    message = {"content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}
    bare = StreamDecoder(Anthropic.on_event, on_whole=Anthropic.on_whole)
    bare.whole(json.dumps(message).encode(), 1, 2, 0)

    assert (whole.error, whole.has_content, bare.error, bare.has_content) == (
        None,
        True,
        None,
        True,
    )
