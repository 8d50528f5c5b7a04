"""Applications' own streams: which event is what, by name and by values in its JSON; and where their jobs are called."""

import json

import pytest

from tailgauge.errors import ScenarioError
from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.table import Target
from tailgauge.scenario.model import parse

# The streaming example of a FastAPI tutorial: `json.dumps` behind `data: `, the error with the status of the API behind it.
FASTAPI = {
    "content": {"where": {"/type": "text"}, "text": "/text"},
    "error": {"where": {"/type": "error"}, "status": "/code", "message": "/message"},
    "phase": {"where": {"/type": ["start", "status"]}, "name": "/type"},
    "end": {"where": {"/type": "done"}},
}
# The UI message stream of the AI SDK, versions 5 and 6.
AI_SDK = {
    "content": {"where": {"/type": "text-delta"}, "text": "/delta"},
    "error": {"where": {"/type": ["error", "abort"]}, "message": "/errorText"},
    "phase": {"where": {"/type": ["reasoning-start", "tool-input-start"]}, "name": "/type"},
    "citation": {"where": {"/type": ["source-url", "source-document"]}},
}
# LangServe ends an answer by an event without data.
LANGSERVE = {"content": {"event": "data", "encoding": "json"}, "end": {"event": "end"}}
TEXT_PIECES = ("one ", "two ", "three ", "four ", "five ")


def event(tree):
    return b"data: %b\n\n" % json.dumps(tree).encode()


def typed(kind, **values):
    return event({"type": kind, **values})


def decoded(sse, *events):
    """A decoder that has read the events, each in a read of its own."""
    wire = CustomSse(Target(protocol="sse", sse=sse), "http://app")
    decoder = StreamDecoder(
        wire.on_event,
        AnswerSettings(keep_text=True, protocol="sse", takes_bare_names=wire.takes_bare_names),
    )
    for number, event in enumerate(events):
        decoder.feed(event, 10 * number, 10 * number + 9, 10 * number + 9, number, at_rest=True)
    return decoder


def failure(decoder):
    """What an attempt's row would have of the error: its class, its own class, its name, its text."""
    error = decoder.error
    return None if error is None else (error.ended, error.error_class, error.kind, error.text)


DONE = b"data: [DONE]\n\n"
TYPED = [typed("text", text=word) for word in TEXT_PIECES]


def test_a_fastapi_answer_is_complete_with_its_text_and_phases():
    decoder = decoded(FASTAPI, typed("start"), *TYPED, typed("done"), DONE)

    assert failure(decoder) is None
    assert (decoder.text, decoder.chunks, decoder.finished) == ("one two three four five ", 5, True)
    assert list(decoder.phases) == ["start"]
    assert decoder.stopped.at == 69, "the first of two end marks"


def test_a_fastapi_error_after_five_words_breaks_the_stream_and_keeps_its_code():
    error = typed(
        "error", code=529, message="The AI service encountered an error. Please try again."
    )
    decoder = decoded(FASTAPI, typed("start"), *TYPED, error, DONE)

    assert failure(decoder) == (
        "stream_error",
        "overloaded",
        "529",
        "The AI service encountered an error. Please try again.",
    )
    assert decoder.chunks == 5


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (429, "rate_limited"),
        ("429", "rate_limited"),
        (503, "overloaded"),
        (529, "overloaded"),
        (500, "server_error"),
        (400, "client_error"),
    ],
)
def test_a_fastapi_error_before_content_has_the_class_of_its_status(code, ended):
    decoder = decoded(FASTAPI, typed("start"), typed("error", code=code, message="no"), DONE)

    assert failure(decoder) == (ended, ended, str(code), "no")


def test_a_cancelled_fastapi_stream_has_no_end():
    decoder = decoded(FASTAPI, typed("start"), *TYPED, typed("cancelled"))

    assert failure(decoder) is None
    assert not decoder.finished


def test_an_ai_sdk_answer_is_complete():
    decoder = decoded(
        AI_SDK,
        typed("start", messageId="m1"),
        typed("start-step"),
        typed("reasoning-start", id="r"),
        typed("reasoning-delta", id="r", delta="hm"),
        typed("tool-input-start", toolCallId="c", toolName="search"),
        typed("tool-output-error", toolCallId="c", errorText="no index"),
        typed("source-url", sourceId="s", url="https://example.org"),
        typed("text-start", id="t"),
        *(typed("text-delta", id="t", delta=word) for word in TEXT_PIECES),
        typed("text-end", id="t"),
        typed("finish-step"),
        typed("finish", finishReason="stop"),
        DONE,
    )

    assert failure(decoder) is None
    assert (decoder.text, decoder.citations, decoder.finished) == (
        "one two three four five ",
        1,
        True,
    )
    assert list(decoder.phases) == ["reasoning-start", "tool-input-start"]


@pytest.mark.parametrize("settings", [AI_SDK, {"content": AI_SDK["content"]}])
def test_an_ai_sdk_error_is_one_with_and_without_a_table_for_it(settings):
    text_pieces = [typed("text-delta", id="t", delta=word) for word in TEXT_PIECES]
    decoder = decoded(
        settings,
        typed("start"),
        *text_pieces,
        typed("error", errorText="An error occurred."),
        typed("finish"),
        DONE,
    )

    assert failure(decoder) == ("stream_error", None, "error", "An error occurred.")


def test_an_ai_sdk_abort_is_a_failure():
    decoder = decoded(AI_SDK, typed("text-delta", id="t", delta="one"), typed("abort"), DONE)

    assert failure(decoder)[0] == "stream_error"
    assert failure(decoder)[2] == "abort"


def test_a_langserve_answer_ends_by_an_event_without_data():
    decoder = decoded(
        LANGSERVE,
        b'event: metadata\r\ndata: {"run_id": "7"}\r\n\r\n',
        b'event: data\r\ndata: "a \\"b\\""\r\n\r\n',
        b'event: data\r\ndata: ""\r\n\r\n',
        b"event: end\r\n\r\n",
    )

    assert failure(decoder) is None
    assert (decoder.text, decoder.finished) == ('a "b"', True)


@pytest.mark.parametrize(
    ("text_pieces", "ended"),
    [((), "server_error"), ((b'event: data\r\ndata: "a"\r\n\r\n',), "stream_error")],
)
def test_a_langserve_error_has_its_status(text_pieces, ended):
    message = '{"status_code": 500, "message": "Internal Server Error"}'
    decoder = decoded(LANGSERVE, *text_pieces, f"event: error\r\ndata: {message}\r\n\r\n".encode())

    assert failure(decoder) == (ended, "server_error", "500", "Internal Server Error")
    assert not decoder.finished


ERRORS = {  # without a table: the data, and the class, name and text that it has before content
    "an object": ({"error": {"type": "overloaded_error", "message": "busy"}}, ("overloaded", "overloaded_error", "busy")),
    "an object and a status": ({"error": {"message": "busy"}, "status": 503}, ("overloaded", "503", "busy")),
    "a text": ({"error": "out of memory"}, ("stream_error", "error", "out of memory")),
    "a text and a status": ({"error": "slow down", "status_code": 429}, ("rate_limited", "429", "slow down")),
    "true": ({"error": True, "message": "no"}, ("stream_error", "error", "no")),
    "a detail": ({"detail": "Not authenticated"}, ("stream_error", "error", "Not authenticated")),
    "a type": ({"type": "error", "content": "no"}, ("stream_error", "error", '{"type": "error", "content": "no"')),
    "a message and a status": ({"message": "bad gateway", "code": 502}, ("server_error", "502", "bad gateway")),
    "with empty content": ({"text": "", "error": {"message": "no", "code": 500}}, ("server_error", "500", "no")),
    "in a type of another name": ({"type": "done", "error": "no"}, ("stream_error", "error", "no")),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_a_common_shape_of_an_error_is_one_without_a_table(case):
    tree, (ended, kind, text) = ERRORS[case]
    decoder = decoded({"content": {"text": "/text"}}, event(tree), DONE)
    error = failure(decoder)

    assert (error[0], error[2]) == (ended, kind)
    assert error[3].startswith(text)


NO_ERRORS = {
    "null": {"error": None, "text": "a"},
    "false": {"error": False},
    "empty": {"error": ""},
    "a number": {"error": 0.03},
    "a detail of a typed event": {"type": "progress", "detail": "searching"},
    "a message with a good status": {"message": "fine", "code": 200},
    "a message alone": {"message": "hello"},
    "content with an error beside it": {"text": "a", "error": "retried"},
    "a list": [{"error": "no"}],
    "a number alone": 503,
}


@pytest.mark.parametrize("case", NO_ERRORS)
def test_what_is_no_error_stays_none(case):
    decoder = decoded({"content": {"text": "/text"}}, event(NO_ERRORS[case]), DONE)

    assert failure(decoder) is None


def test_plain_text_that_looks_like_an_error_is_content():
    decoder = decoded({}, b'data: {"error": "a story"}\n\n', b'data: {"detail": 1}\n\n', DONE)

    assert failure(decoder) is None
    assert decoder.text == '{"error": "a story"}{"detail": 1}'


def test_an_event_named_error_is_one_whatever_it_says():
    decoder = decoded({"content": {"text": "/text"}}, b"event: error\ndata: out of luck\n\n", DONE)

    assert failure(decoder) == ("stream_error", None, "error", "out of luck")


def test_the_status_the_name_and_the_text_of_an_error_stand_where_the_scenario_says():
    error = {
        "where": {"/kind": "failed"},
        "status": "/http/status",
        "type": "/why/name",
        "message": "/why/text",
    }
    tree = {
        "kind": "failed",
        "http": {"status": 429},
        "why": {"name": "quota", "text": "later"},
        "message": "other",
    }
    decoder = decoded({"content": {"text": "/t"}, "error": error}, event(tree))

    assert failure(decoder) == ("rate_limited", "rate_limited", "quota", "later")


@pytest.mark.parametrize(
    ("where", "tree", "matches"),
    [
        ({"/a": "x"}, {"a": "x"}, True),
        ({"/a": "x"}, {"a": "y"}, False),
        ({"/a": "x"}, {}, False),
        ({"/a": ["x", 3]}, {"a": 3}, True),
        ({"/a": 1}, {"a": 1.0}, True),
        ({"/a": 1}, {"a": True}, False),
        ({"/a": True}, {"a": 1}, False),
        ({"/a": True}, {"a": True}, True),
        ({"/a": "1"}, {"a": 1}, False),
        ({"/a": None}, {"a": None}, True),
        ({"/a": None}, {}, False),
        ({"/a/0/b~1c": "x"}, {"a": [{"b/c": "x"}]}, True),
        ({"/a/7": "x"}, {"a": []}, False),
        ({"/a": "x", "/b": 2}, {"a": "x", "b": 2}, True),
        ({"/a": "x", "/b": 2}, {"a": "x", "b": 3}, False),
        ({"/a": "x"}, {"a": ["x"]}, False),
        ({"/a": "x"}, ["a"], False),
    ],
)
def test_a_value_is_matched_as_json_compares_it(where, tree, matches):
    decoder = decoded(
        {"content": {"text": "/t"}, "citation": {"where": where}},
        event(tree),
    )

    assert (decoder.citations == 1) is matches


def test_name_and_values_must_both_hold():
    settings = {"content": {"event": "delta", "where": {"/kind": "text"}, "text": "/t"}}
    data = b'data: {"kind": "text", "t": "a"}\n\n'
    decoder = decoded(
        settings,
        data,
        b"event: delta\n" + data,
        b'event: delta\ndata: {"kind": "json", "t": "b"}\n\n',
        DONE,
    )

    assert decoder.text == "a"
    assert decoder.chunks == 1


def test_of_several_tables_that_match_the_first_in_the_order_counts():
    """Error, phase, citation, content."""
    settings = {
        "content": {"text": "/t"},
        "citation": {"where": {"/c": True}},
        "phase": {"where": {"/p": True}, "name": "/t"},
        "error": {"where": {"/e": True}, "message": "/t"},
    }
    trees = [{"t": "content"}, {"t": "cited", "c": True}, {"t": "phase", "c": True, "p": True},
             {"t": "error", "c": True, "p": True, "e": True}]  # fmt: skip
    decoder = decoded(settings, *(event(tree) for tree in trees), DONE)

    assert (decoder.text, decoder.citations, list(decoder.phases)) == ("content", 1, ["phase"])
    assert failure(decoder)[3] == "error"


def test_the_last_piece_of_an_answer_may_come_with_its_end():
    settings = {
        "content": {"text": "/response"},
        "end": {"where": {"/done": True}},
        "output_tokens": "/eval_count",
    }
    decoder = decoded(
        settings,
        b'data: {"response": "a", "done": false}\n\n',
        b'data: {"response": "b", "done": true, "eval_count": 2}\n\n',
    )

    assert failure(decoder) is None
    assert (decoder.text, decoder.finished, decoder.usage.live()["output_tokens"]) == (
        "ab",
        True,
        2,
    )


def test_the_end_of_plain_text_is_no_text():
    decoder = decoded(
        {"end": {"where": {"/type": "end"}}}, b"data: a\n\n", b'data: {"type": "end"}\n\n'
    )

    assert (decoder.text, decoder.finished) == ("a", True)


def test_an_error_in_the_last_event_is_a_failure():
    settings = {"content": {"text": "/t"}, "end": {"where": {"/done": True}}}
    decoder = decoded(
        settings, b'data: {"t": "a"}\n\n', b'data: {"done": true, "error": "gone"}\n\n'
    )

    assert failure(decoder) == ("stream_error", None, "error", "gone")


def test_data_that_is_no_json_is_named_where_content_is_read_from_json():
    decoder = decoded(FASTAPI, typed("start"), b'data: {"type": "te\n\n', DONE)

    assert failure(decoder)[2] == "malformed_event"


def test_other_events_need_no_json():
    decoder = decoded(FASTAPI, b"event: ping\ndata: now\n\n", b"data: \n\n", *TYPED, DONE)

    assert failure(decoder) is None


def test_a_phase_without_a_name_is_one():
    settings = {"content": {"text": "/t"}, "phase": {"event": "status", "name": "/phase"}}
    decoder = decoded(
        settings,
        b'event: status\ndata: {"phase": {}}\n\n',
        b'event: status\ndata: {"phase": 2}\n\n',
    )

    assert list(decoder.phases) == ["unnamed", "2"]


COMPLAINTS = {
    "a pointer without a slash": (
        {"content": {"where": {"type": "text"}, "text": "/t"}}, "content.where: 'type' must be a JSON pointer such as /type"),
    "an empty pointer": ({"error": {"where": {"": "x"}}}, "error.where: '' must be a JSON pointer such as /type"),
    "a tilde": ({"error": {"where": {"/a~b": "x"}}}, "error.where: '/a~b' must be a JSON pointer"),
    "a tilde in a text": ({"content": {"text": "/a~b"}}, "content.text: must write ~ as ~0"),
    "a table": (
        {"error": {"where": {"/a": {"b": 1}}}},
        'error.where: /a: expected a value, got a table: write a longer pointer, "/a/b"',
    ),
    "a table in a list": ({"error": {"where": {"/a": ["x", {"b": 1}]}}}, "error.where: /a: expected a value, got a table"),
    "an empty list": ({"error": {"where": {"/a": []}}}, "error.where: /a: expected at least one value in the list"),
    "a list in a list": ({"error": {"where": {"/a": [["x"]]}}}, "error.where: /a: expected text, a number, true or false"),
    "no number": ({"error": {"where": {"/a": float("nan")}}}, "error.where: /a: expected text, a number, true or false"),
    "no table": ({"error": {"where": "/a"}}, "error.where: expected a table"),
    "text by values only": ({"content": {"where": {"/a": 1}}}, "content.text: expected a pointer such as /text"),
    "a phase by values only": ({"phase": {"where": {"/a": 1}}}, "phase.name: expected a pointer such as /name"),
    "a phase by nothing": ({"phase": {"name": "/a"}}, "phase: event or where is needed"),
    "an encoding beside a pointer": ({"content": {"text": "/a", "encoding": "json"}}, "content.encoding: does not apply"),
    "the same events": (
        {"content": {"text": "/t"}, "phase": {"event": "status"}, "citation": {"event": "status"}},
        "target.sse: phase and citation match the same events: tell them apart by event or where",
    ),
    "the events of content": ({"phase": {"event": ""}}, "phase and content match the same events"),
    "an old key": ({"status_event": "x"}, "target.sse.status_event: unknown key"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPLAINTS)
def test_a_table_that_cannot_be_meant_is_refused_with_what_to_write(case):
    sse, complaint = COMPLAINTS[case]
    with pytest.raises(ScenarioError) as raised:
        parse(
            {"name": "x", "target": {"protocol": "sse", "url": "http://127.0.0.1:1", "sse": sse}},
            "f.toml",
        )

    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("job", "url"),
    [
        ("/v1/jobs/7", "http://app:8000/v1/jobs/7"),
        ("http://app:8000/v1/jobs/7?x=1", "http://app:8000/v1/jobs/7?x=1"),
        ("job_7", "http://app:8000/base/ask/job_7"),  # a name stands below the path of the calls
    ],
)
def test_a_job_is_where_the_target_says(job, url):
    wire = CustomSse(Target(protocol="sse", sse={"path": "/ask"}), "http://app:8000/base")

    assert wire._job_url("http://app:8000/base/", job) == url


@pytest.mark.parametrize(
    "job",
    ["http://evil/7", "https://app:8000/7", "//evil/7", "http://app:9/7", "http://x@app:8000/7"],
)
def test_a_job_on_another_host_is_never_called(job):
    wire = CustomSse(Target(protocol="sse"), "http://app:8000")

    with pytest.raises(ValueError, match="another host"):
        wire._job_url("http://app:8000", job)
