"""Script: the preflight against targets that refuse the model, with and without a list of models."""

from __future__ import annotations

import json
from typing import Any

from starting.script import case, print_facts
from transport.scripts.scripted_server import Server
from worker.scripts.one_call import Rows, endpoint

from tailgauge.call import MAIN
from tailgauge.scenario.model import parse
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.preflight_calls import try_out

LISTED = {"object": "list", "data": [{"id": "qwen-7b"}, {"id": "qwen-7b-lora"}], "has_more": False}


class AllRows(Rows):
    """Keeps requests too."""

    def request(self, row: Any) -> None:
        self.rows.append(row)


def answer(status: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return head.encode() + text


def tried(protocol: str, refusal: bytes, models: bytes) -> dict[str, Any]:
    """The message `tried`, and the first lines of the requests that the target got."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        while request := server.request(sock):
            sock.sendall(models if request.startswith(b"GET ") else refusal)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    scenario = parse({"name": "x", "target": {"url": url, "protocol": protocol}}, "test")
    recorder, counters = AllRows(), Counters()
    attempts = Attempts("run-1", {MAIN: endpoint(url, protocol)}, recorder, counters, 10.0)
    found = try_out(scenario, attempts, recorder, {}, lambda _: {}, "")
    lines = [request.split(b" HTTP")[0].decode() for request in server.requests]
    return {
        "call": found["calls"][-1],
        "requests": lines,
        "rows": len(recorder.rows),
        "open": attempts.in_flight(),
    }


@case
def models() -> Any:
    unknown = {"error": {"message": "The model `tiny` does not exist.", "type": "NotFoundError"}}
    lists, refuses = answer("200 OK", LISTED), answer("404 Not Found", unknown)
    return {
        "openai": tried("openai", refuses, lists),
        "anthropic": tried("anthropic", refuses, lists),
        "400": tried("openai", answer("400 Bad Request", unknown), lists),
        "no list": tried("openai", refuses, refuses),
        "another list": tried("openai", refuses, answer("200 OK", ["a"])),
        "no JSON": tried("openai", refuses, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        "no answer": tried("openai", refuses, b""),
        "boom": tried("openai", answer("500 Internal Server Error", {}), lists),
        "sse": tried("sse", refuses, lists),
    }


print_facts(limit_s=50)  # the SDKs are imported in it
