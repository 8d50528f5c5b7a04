"""Targets that want their requests in another form: found in the preflight, once, and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from transport.scripted_server import REST_S, Server
from worker.one_call import ORIGIN, PLAIN, Rows, answer, endpoint, made, recording, stream

from tailgauge.call import MAIN, Call
from tailgauge.master.progress import adaptation_notes, preflight_failure
from tailgauge.patterns.events import Send
from tailgauge.protocols import openai
from tailgauge.protocols.additions import OF_MODEL
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import Target
from tailgauge.scenario.model import parse
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.preflight_calls import try_out

pytestmark = pytest.mark.gevent

UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
REFUSALS = {
    "openai": ("400 Bad Request", {"error": {"message": UNSUPPORTED, "code": "unsupported_parameter"}}),
    "litellm": ("400 Bad Request", {"error": {"message": f"litellm.BadRequestError: AzureException - {UNSUPPORTED}"}}),
    "pydantic": ("422 Unprocessable", {"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]}),
    "too large": ("400 Bad Request", {"error": {"message": "max_tokens is too large: 16. It has 8 at most"}}),
    "another field": ("400 Bad Request", {"error": {"message": "Unsupported parameter: 'stream_options'"}}),
    "no JSON": ("400 Bad Request", "max_tokens? No."),
    "429": ("429 Too Many Requests", {"error": {"message": UNSUPPORTED}}),
}  # fmt: skip
CACHE = {"pattern": "cached", "cache": {"system_tokens": 2000}}


class Preflight:
    """A preflight at a server that refuses some bodies."""

    def __init__(
        self,
        refuses: Callable[[dict[str, Any]], bool],
        refusal: bytes,
        maker: str = "somebody",
        traffic: dict[str, Any] | None = None,
        **target: Any,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        server: Server

        def handler(sock: Any, _: int) -> None:
            while request := server.request(sock):
                if request.startswith(b"GET "):
                    sock.sendall(answer("200 OK", {"data": [{"id": "tiny", OF_MODEL: maker}]}))
                    continue
                body = json.loads(request.partition(b"\r\n\r\n")[2])
                self.bodies.append(body)
                sock.sendall(refusal if refuses(body) else stream(20))

        server = Server(handler)
        url = server.url.removesuffix("/v1")
        chosen = {"protocol": "openai", **target}
        tree = {"name": "x", "target": {"url": url, **chosen}, "traffic": {"main": traffic or {}}}
        self.rows = Rows()
        attempts = Attempts("run-1", {MAIN: endpoint(url, **chosen)}, self.rows, Counters(), 10.0)
        scenario = parse(tree, "test")
        message = try_out(scenario, attempts, self.rows, {}, lambda *_: {}, salt="")
        self.adaptations = message["adaptations"]
        self.calls = message["calls"]
        self.ended = [call["ended"] for call in self.calls]


# --- the field with the maximum of output tokens ------------------------------------------------------------------


def with_limits(refusal: str, **target: Any) -> Preflight:
    """The target refuses `max_tokens`, as several put it."""
    return Preflight(lambda body: "max_tokens" in body, answer(*REFUSALS[refusal]), **target)


def limits_of(seen: Preflight) -> list[list[str]]:
    return [sorted({"max_tokens", "max_completion_tokens"} & set(body)) for body in seen.bodies]


@pytest.mark.parametrize("refusal", ["openai", "litellm", "pydantic"])
def test_a_refused_limit_is_sent_under_its_other_name_from_then_on(refusal):
    """The second try is a retry of the same request."""
    seen = with_limits(refusal)

    assert seen.adaptations == {"main": ["max_completion_tokens", None]}
    assert limits_of(seen) == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]
    assert seen.ended == ["ok", "ok"]
    attempts = [(row.request_id, row.attempt, row.cause, row.ended) for row in seen.rows.attempts]
    assert attempts == [
        (-1, 0, "primary", "client_error"),
        (-1, 1, "retry", "ok"),
        (-2, 0, "primary", "ok"),
    ]
    requests = [(row.request_id, row.attempts, row.winner, row.ended) for row in seen.rows.requests]
    assert requests == [(-1, 2, 1, "ok"), (-2, 1, 0, "ok")]


@pytest.mark.parametrize(
    ("refusal", "calls"),
    [
        ("too large", 1),
        ("another field", 1),
        ("no JSON", 1),
        ("429", 2),
    ],  # a run makes sense with a 429
)
def test_other_refusals_are_not_tried_again(refusal, calls):
    seen = with_limits(refusal)

    assert (seen.adaptations, len(seen.bodies)) == ({}, calls)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("max_tokens", [["max_tokens"]]),
        ("max_completion_tokens", [["max_completion_tokens"]] * 2),
        ("none", [[], []]),
    ],
)
def test_what_the_scenario_names_is_sent_and_nothing_else_is_tried(name, fields):
    seen = with_limits("openai", max_tokens_field=name)

    assert (limits_of(seen), seen.adaptations) == (fields, {})
    if name == "max_tokens":
        text = preflight_failure("http://h", "openai", seen.calls[0])
        assert text.startswith(
            "target http://h answered HTTP 400: Unsupported parameter: 'max_tokens' is not supported"
        )
        assert text.endswith(
            "It refuses max_tokens: use --set target.max_tokens_field=max_completion_tokens, "
            "or with `none` send no maximum of output tokens"
        )


def test_at_the_provider_the_older_name_is_tried_where_the_newer_is_refused():
    wire = OpenAI(Target(protocol="openai"), "https://api.openai.com/v1")
    refusal = "Unrecognized request argument supplied: "

    assert wire.adaptation(refusal + "max_completion_tokens") == Adaptation("max_tokens")
    assert wire.adaptation(refusal + "max_tokens") is None
    assert wire.adaptation("") is None


# --- cache marks --------------------------------------------------------------------------------------------------


def with_marks(maker: str = "somebody", breakpoints: Any = None, **target: Any) -> Preflight:
    """The target's list of models names an engine, or none; it refuses marks."""
    message = "Unknown parameter: prompt_cache_breakpoint"
    cache = (
        CACHE["cache"] if breakpoints is None else {**CACHE["cache"], "breakpoints": breakpoints}
    )
    return Preflight(
        lambda body: "prompt_cache" in json.dumps(body),
        answer("400 Bad Request", {"error": {"message": message}}),
        maker,
        {**CACHE, "cache": cache},
        **target,
    )


@pytest.mark.parametrize("maker", ["vllm", "sglang", "llamacpp"])
def test_an_engine_that_caches_by_itself_gets_no_marks(maker):
    seen = with_marks(maker)

    assert seen.adaptations == {"main": [None, maker]}
    assert {type(body["messages"][0]["content"]) for body in seen.bodies} == {str}
    assert seen.ended == ["ok", "ok"]


@pytest.mark.parametrize("settings", [{"breakpoints": []}, {"engine": "vllm"}])
def test_a_scenario_that_says_so_gets_none_and_no_list_is_asked_for(settings):
    seen = with_marks(**settings)

    assert (seen.adaptations, seen.ended) == ({}, ["ok", "ok"])


@pytest.mark.parametrize("maker", ["somebody", "tailgauge"])
def test_others_get_them_already_in_the_preflight_and_a_refusal_says_what_to_set(maker):
    seen = with_marks(maker)
    (body,) = seen.bodies
    (call,) = seen.calls

    assert body["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert body["prompt_cache_options"] == {"mode": "explicit"}
    assert body["prompt_cache_key"]
    assert preflight_failure("http://h", "openai", call) == (
        "target http://h answered HTTP 400: Unknown parameter: prompt_cache_breakpoint. It takes no cache marks: --set "
        "'traffic.*.cache.breakpoints=[]'"
    )


# --- our own code raises while it prepares a call -----------------------------------------------------------------


def broken(_: Any) -> Any:
    raise KeyError("planted")


def test_a_fault_of_our_own_is_named_as_ours(monkeypatch):
    monkeypatch.setattr(openai, "_messages", broken)
    (call,) = Preflight(lambda _: False, b"").calls

    assert (call["ended"], call["error_type"]) == ("censored", "internal_error")
    assert (call["status"], call["message"]) == (None, "KeyError('planted')")


def test_in_the_run_it_is_reported_at_once_and_leaves_nothing_open(monkeypatch):
    """The call cannot be prepared on the idle connection that a first one left."""
    server = recording(stream(20))
    warm = endpoint(server.url, "openai")
    made(warm, Call(PLAIN, 5))
    gevent.sleep(2 * REST_S)
    monkeypatch.setattr(openai, "_messages", broken)
    rows = Rows()
    bugs = []
    received = []
    attempts = Attempts("run-1", {MAIN: warm}, rows, Counters(), 10.0)
    attempts.on_bug = bugs.append
    attempts.start(ORIGIN, Send(Call(PLAIN, 5)), 0, received.append)
    while attempts.open:
        gevent.sleep(0.002)

    (row,) = rows.rows
    assert (row.ended, row.error_type, row.status) == ("censored", "internal_error", None)
    assert row.error_body == "KeyError('planted')"
    assert [repr(bug) for bug in bugs] == ["KeyError('planted')"]
    assert [event.ended for event in received] == ["censored"]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("adaptation", "texts"),
    [
        (Adaptation(), []),
        (
            Adaptation(max_tokens_field="max_completion_tokens"),
            [
                (
                    "second_target refused the usual field with the maximum of output tokens: max_completion_tokens is sent "
                    'instead. Set second_target.max_tokens_field = "max_completion_tokens" to skip this attempt'
                )
            ],
        ),
        (
            Adaptation(automatic_cache="v\x1b[31mllm"),
            [
                (
                    "second_target lists its models as those of v[31mllm, which caches without marks: none are sent. Set "
                    "breakpoints = [] to skip this check"
                )
            ],
        ),
    ],
)
def test_the_notes_say_what_was_found_and_how_to_say_so(adaptation, texts):
    assert list(adaptation_notes("second_target", adaptation)) == texts
