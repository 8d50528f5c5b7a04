"""Script: the preflight at targets that want their requests in another form, and where our own code fails."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import gevent
from starting.script import print_facts
from transport.scripts.scripted_server import REST_S, Server
from worker.one_call import ORIGIN, PLAIN, endpoint, made, recording
from worker.scripts.preflight_calls import AllRows, answer, stream

from tailgauge.call import MAIN, Call
from tailgauge.patterns.events import Send
from tailgauge.protocols.additions import OF_MODEL
from tailgauge.scenario.model import parse
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.preflight_calls import try_out

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


def tried(
    refuses: Any,
    refusal: bytes,
    maker: str = "somebody",
    traffic: dict[str, Any] | None = None,
    **target: Any,
) -> dict[str, Any]:
    """The message `tried`, the bodies and the rows of a preflight at a server that refuses some bodies."""
    bodies: list[dict[str, Any]] = []
    server: Server

    def handler(sock: Any, _: int) -> None:
        while request := server.request(sock):
            if request.startswith(b"GET "):
                sock.sendall(answer("200 OK", {"data": [{"id": "tiny", OF_MODEL: maker}]}))
                continue
            body = json.loads(request.partition(b"\r\n\r\n")[2])
            bodies.append(body)
            sock.sendall(refusal if refuses(body) else stream(20))

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    chosen = {"protocol": "openai", **target}
    tree = {"name": "x", "target": {"url": url, **chosen}, "traffic": {"main": traffic or {}}}
    scenario = parse(tree, "test")
    recorder = AllRows()
    attempts = Attempts("run-1", {MAIN: endpoint(url, **chosen)}, recorder, Counters(), 10.0)
    message = try_out(scenario, attempts, recorder, {}, lambda *_: {}, salt="")
    rows = [asdict(row) for row in recorder.rows]
    return {
        "adaptations": message["adaptations"],
        "calls": message["calls"],
        "bodies": bodies,
        "attempts": [[row["request_id"], row["attempt"], row["cause"], row["ended"]] for row in rows if "cause" in row],
        "requests": [[row["request_id"], row["attempts"], row["winner"], row["ended"]] for row in rows if "cause" not in row],
    }  # fmt: skip


def limits() -> Any:
    """The target refuses `max_tokens`, as several put it."""
    return {
        name: tried(lambda body: "max_tokens" in body, answer(*refusal))
        for name, refusal in REFUSALS.items()
    }


def named_limits() -> Any:
    """The scenario names the field: nothing else is tried."""
    refusal = answer(*REFUSALS["openai"])
    return {
        name: tried(lambda body: "max_tokens" in body, refusal, max_tokens_field=name)
        for name in ("max_tokens", "max_completion_tokens", "none")
    }


def marks() -> Any:
    """Cache marks at targets whose lists of models name an engine, or none."""
    refused = answer(
        "400 Bad Request", {"error": {"message": "Unknown parameter: prompt_cache_breakpoint"}}
    )

    def has_marks(body: dict[str, Any]) -> bool:
        return "prompt_cache" in json.dumps(body)

    found = {
        maker: tried(has_marks, refused, maker, CACHE)
        for maker in ("vllm", "sglang", "llamacpp", "somebody", "tailgauge")
    }
    no_marks = {**CACHE, "cache": {**CACHE["cache"], "breakpoints": []}}
    found["breakpoints = []"] = tried(has_marks, refused, traffic=no_marks)
    found["named"] = tried(has_marks, refused, traffic=CACHE, engine="vllm")
    return found


def our_bug() -> Any:
    """Our own code raises while it prepares a call: that is no answer of the target's."""
    from tailgauge.protocols import openai

    def broken(_: Any) -> Any:
        raise KeyError("planted")

    before = openai._messages
    server = recording(stream(20))
    warm = endpoint(server.url.removesuffix("/v1"), "openai")
    made(warm, Call(PLAIN, 5))
    gevent.sleep(2 * REST_S)  # its connection rests: the next call is prepared at once
    openai._messages = broken
    try:
        return {
            "preflight": tried(lambda _: False, b""),
            "in the run": broken_call(warm),
            "requests": len(server.requests),
        }
    finally:
        openai._messages = before


def broken_call(warm: Any) -> dict[str, Any]:
    """A call of the run that cannot be prepared, on an idle connection."""
    recorder, bugs, received = AllRows(), [], []
    attempts = Attempts("run-1", {MAIN: warm}, recorder, Counters(), 10.0)
    attempts.on_bug = bugs.append
    attempts.start(ORIGIN, Send(Call(PLAIN, 5)), 0, received.append)
    with gevent.Timeout(10):
        while attempts.open:
            gevent.sleep(0.002)
    row = asdict(recorder.rows[0])
    return {
        "row": [row["ended"], row["error_type"], row["error_body"], row["status"]],
        "bugs": [repr(bug) for bug in bugs],
        "received": [event.ended for event in received],
    }


if __name__ == "__main__":
    print_facts(limits, named_limits, marks, our_bug, limit_s=50)
