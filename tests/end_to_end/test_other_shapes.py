"""A plugin's protocol whose bodies have no messages, here OpenAI's Responses; and targets that want another form of a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starting.command import Finished, run_in

from tailgauge.errors import Exit

PLUGIN = '''"""OpenAI's Responses."""

import json

from tailgauge.protocols import protocol
from tailgauge.protocols.decoder import KIND_CODE, text_or_none
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.rows.schema import TEXT


class Responses(WireProtocol):
    name = "responses"
    summary = "OpenAI's Responses"
    sdk = "openai"

    def client(self, base_url, key, http_client):
        import openai

        return openai.OpenAI(api_key=key, base_url=base_url, http_client=http_client, **protocol.SDK_OPTIONS)

    def send(self, sdk, call, model, call_id):
        create = sdk.responses.with_streaming_response.create
        return create(**self.body(call, model), extra_headers={"x-client-request-id": call_id})

    def body(self, call, model):
        texts = [part.text for message in call.prompt.messages for part in message.parts]
        return {"model": model, "input": " ".join(texts), "max_output_tokens": call.max_tokens, "stream": True}

    def on_event(self, decoder, name, data):
        event = json.loads(data)
        decoder.seen()
        if event["type"] == "response.output_text.delta":
            decoder.content(KIND_CODE[TEXT], event["delta"])
        elif event["type"] == "response.completed":
            response = event["response"]
            decoder.model = text_or_none(response["model"])
            decoder.count(**{key: response["usage"][key] for key in ("input_tokens", "output_tokens")})
            decoder.stop()


PROTOCOLS = [Responses]
'''
SCENARIO = """
name = "other"
[target]
url = "{url}"
protocol = "{protocol}"
[arrival]
process = "constant"
rate_per_s = 10
[stages]
duration_s = 2
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 7
{more}
"""
UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@dataclass
class Target:
    """A server of Responses and of chat completions without `max_tokens`; keeps the bodies."""

    bodies: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._send(
                    200,
                    json.dumps({"data": [{"id": "tiny", "owned_by": "me"}]}),
                    "application/json",
                )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                bodies.append((self.path, body))
                if "max_tokens" in body:
                    error = {"error": {"message": UNSUPPORTED, "code": "unsupported_parameter"}}
                    self._send(400, json.dumps(error), "application/json")
                    return
                events = responses(body) if self.path.endswith("/responses") else completion(body)
                self._send(200, "".join(events), "text/event-stream")

            def _send(self, status: int, text: str, kind: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def responses(body: dict[str, Any]) -> Iterator[str]:
    for word in ("one ", "two ", "three"):
        yield event({"type": "response.output_text.delta", "delta": word})
    usage = {
        "input_tokens": 9 + len(body["input"].split()),
        "output_tokens": body["max_output_tokens"],
    }
    yield event(
        {"type": "response.completed", "response": {"model": body["model"], "usage": usage}}
    )


def completion(body: dict[str, Any]) -> Iterator[str]:
    prompt = 9 + len(body["messages"][0]["content"].split())
    limit = body["max_completion_tokens"]
    yield event({"model": "tiny", "choices": [{"index": 0, "delta": {"content": "some words"}}]})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": limit}})
    yield "data: [DONE]\n\n"


def event(tree: Any) -> str:
    return (
        f"event: {tree['type']}\ndata: {json.dumps(tree)}\n\n"
        if "type" in tree
        else f"data: {json.dumps(tree)}\n\n"
    )


@pytest.fixture
def target() -> Iterator[Target]:
    server = Target()
    yield server
    server.close()


@pytest.fixture
def run(tmp_path: Path, target: Target) -> Callable[..., Finished]:
    def finish(protocol: str, *options: str, plugin: str = "", more: str = "") -> Finished:
        scenario = tmp_path / "other.toml"
        scenario.write_text(SCENARIO.format(url=target.url, protocol=protocol, more=more))
        if plugin:
            (tmp_path / "shape.py").write_text(plugin)
            options += ("--plugin", "shape.py")
        return run_in(tmp_path, str(scenario), *options)

    return finish


@pytest.mark.slow
def test_a_protocol_without_messages_runs(run, target):
    done = run("responses", plugin=PLUGIN)

    rows = done.run.attempts()
    assert set(rows["ended"]) == {"ok"}, done.stderr
    assert len(rows) == 20
    assert set(rows["output_tokens"]) == {7}
    assert {path for path, _ in target.bodies} == {"/responses"}


BROKEN = [
    ('"input": " ".join(texts)', '"input": call.prompt.nothing', "AttributeError"),
    ('"input": " ".join(texts)', '"input": {}["missing"]', "KeyError: 'missing'"),
    ("return create(", "return create(wrong=1, ", "TypeError"),
]


@pytest.mark.slow("TypeError", "AttributeError")
@pytest.mark.parametrize(("before", "after", "error"), BROKEN, ids=[error for *_, error in BROKEN])
def test_a_plugin_that_cannot_make_a_request_is_named_and_the_target_is_not(
    run, target, before, after, error
):
    done = run("responses", plugin=PLUGIN.replace(before, after))

    assert done.code == Exit.USAGE
    assert "plugin shape.py, line " in done.stderr
    assert error in done.stderr
    assert target.url not in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_every_worker_sends_what_the_preflight_found(run, target):
    done = run("openai", "--workers=2")

    fields = [
        sorted(body.keys() & {"max_tokens", "max_completion_tokens"}) for _, body in target.bodies
    ]
    assert fields == [["max_tokens"], *[["max_completion_tokens"]] * 22]
    rows = done.run.table("attempts")
    assert set(rows[rows["stage"] != "preflight"]["ended"]) == {"ok"}, done.stderr
    notes = [note for note in done.run.facts["notes"] if "max_tokens_field" in note]
    assert len(notes) == 1
