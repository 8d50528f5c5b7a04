"""A server that records what it receives, and refuses fields that no engine documents as they come.

It answers three protocols, and lists its models as vLLM does. Of every four arrivals, the first attempt of one fails and
that of another is slow, so that calls are repeated and hedged. It takes nothing from the code under test.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_S = 0.4
NATURAL = 3  # tokens of an answer that may end where the model ends it


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: list[tuple[str, str]]
    body: Any

    def header(self, name: str) -> list[str]:
        return [value for one, value in self.headers if one.lower() == name]

    @property
    def call(self) -> tuple[int, int, int]:
        """Request, leg and attempt, from the call's own id."""
        request, leg, attempt = self.header("x-client-request-id")[0].split("/")[-3:]
        return int(request), int(leg), int(attempt)


@dataclass
class Recorder:
    """The server; `engine` as its list of models names it."""

    engine: str = "vllm"
    received: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                recorder.received.append(Received(self.path, self.headers.items(), None))
                models = [
                    {"id": "tiny", "object": "model", "created": 0, "owned_by": recorder.engine}
                ]
                self._send(
                    200, json.dumps({"object": "list", "data": models}).encode(), "application/json"
                )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                one = Received(self.path, self.headers.items(), body)
                recorder.received.append(one)
                request, _, attempt = one.call
                if request >= 0 and attempt == 0 and request // 65536 % 4 == 0:
                    self._send(503, b'{"error":{"message":"busy"}}', "application/json")
                    return
                if request >= 0 and attempt == 0 and request // 65536 % 4 == 1:
                    time.sleep(SLOW_S)
                if why := invalid(body):
                    recorder.refused.append(why)
                    self._send(
                        400, json.dumps({"error": {"message": why}}).encode(), "application/json"
                    )
                    return
                self._send(200, answer(self.path, body).encode(), "text/event-stream")

            def _send(self, status: int, body: bytes, kind: str) -> None:
                try:
                    self.send_response(status)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the loser of a hedge was closed

            def log_message(self, *_: Any) -> None:
                """Nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def posts(self) -> list[Received]:
        """The calls, without those before the run."""
        return [one for one in self.received if one.body is not None and one.call[0] >= 0]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def invalid(body: dict[str, Any]) -> str:
    """vLLM's documented types and bounds; empty where they hold."""
    most, least = body.get("max_tokens"), body.get("min_tokens", 0)
    if "ignore_eos" in body and not isinstance(body["ignore_eos"], bool):
        return "ignore_eos: a boolean"
    if type(least) is not int or least < 0 or (type(most) is int and least > most):
        return "min_tokens: a whole number from 0 to max_tokens"
    if not isinstance(body.get("temperature", 1.0), int | float):
        return "temperature: a number"
    return ""


def answer(path: str, body: dict[str, Any]) -> str:
    """A short stream of the protocol whose path it is."""
    exact = body.get("ignore_eos") and body.get("min_tokens")
    tokens = body["min_tokens"] if exact else min(NATURAL, body.get("max_tokens", NATURAL))
    if path.startswith("/v1/messages"):
        events = [
            {"type": "message_start", "message": {"id": "m", "model": "tiny", "usage": {"input_tokens": 9, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}},
            {"type": "message_stop"},
        ]  # fmt: skip
        return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    pieces = [{"choices": [{"index": 0, "delta": {"content": "yes "}}]} for _ in range(tokens)]
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    end = [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    return "".join(f"data: {json.dumps(one)}\n\n" for one in pieces + end) + "data: [DONE]\n\n"
