"""A wire protocol is added in a file and one row on either side; no other file knows its name."""

import json

import pytest
from extension.scratch import TOOK_PLACE

TABLE = "src/tailgauge/protocols/table.py"
WIRES = "src/tailgauge/simulator/protocols/wire.py"
CLIENT = '''"""Lines: an application that answers with plain lines of JSON in events of one name."""

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

from pydantic import Field

from tailgauge.call import Call
from tailgauge.protocols.custom_sse import flat
from tailgauge.protocols.decoder import KIND_CODE, StreamDecoder, text_or_none
from tailgauge.protocols.protocol import Provider, WireProtocol
from tailgauge.rows.schema import TEXT
from tailgauge.table import Table

_TEXT = KIND_CODE[TEXT]


class JsonLinesSettings(Table):
    """Where the calls go, with `protocol = "json_lines"`."""

    path: str = Field("/generate", description="path of the call")


class JsonLines(WireProtocol):
    """A protocol without an SDK."""

    name = "json_lines"
    summary = "JSON in events"
    settings_type = JsonLinesSettings
    settings: JsonLinesSettings
    provider = Provider("api.lines.example", "LINES_API_KEY", ())

    def client(self, base_url: str, key: str, http_client: Any) -> Any:
        """The HTTP client."""
        http_client.base_url = base_url
        return http_client

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One call."""
        headers = {"x-client-request-id": call_id, "accept-encoding": "identity"}
        return sdk.stream("POST", self.settings.path, json=self._body(call, model), headers=headers)

    def body(self, call: Call, model: str) -> None:
        """Every request goes through the client."""

    def _body(self, call: Call, model: str) -> dict[str, Any]:
        return {"model": model, "input": flat(call.prompt), "limit": call.max_tokens}

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """A piece of text, or the end."""
        decoder.seen()
        tree = json.loads(data)
        decoder.model = decoder.model or text_or_none(tree.get("model"))
        decoder.content(_TEXT, tree.get("piece") or "")
        if tree.get("over"):
            decoder.count(output_tokens=tree.get("tokens"))
            decoder.stop()
'''
SERVER = '''"""JSON lines, from the server's side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tailgauge.simulator.behaviours.limits import Reading
from tailgauge.simulator.behaviours.tokens import count
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply

NAME = "json_lines"
PATH = "/generate"
VERSION_HEADER = ""
REQUEST_ID_HEADER = "x-lines-id"
OVERLOADED_STATUS = 503
SIGNATURES = False
PROMPT_USAGE_FIRST = False
CACHE_LIVES = False
SERVER_TOOLS = False
REFUSAL_CHUNKS = 0
STOP_REASONS: dict[str, str] = {}


def parse(body: dict[str, Any], version: str = "") -> CallRequest:
    """Every body with a model, an input and a limit."""
    try:
        return CallRequest(body["model"], body["limit"], count(body["input"]), stream=True)
    except (KeyError, TypeError) as error:
        raise Refused(400, f"bad body: {error}") from error


def limit_headers(readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    """None."""
    return {}


def error_body(refused: Refused, request_id: str) -> bytes:
    """The error."""
    return json.dumps({"error": {"message": refused.message}}).encode()


def error_event(refused: Refused) -> bytes:
    """The error, as an event."""
    return b"data: %b\\n\\n" % error_body(refused, "")


def ping() -> bytes:
    """None."""
    return b""


def opening(reply: Reply) -> bytes:
    """The model."""
    return b"data: %b\\n\\n" % json.dumps({"model": reply.request.model}).encode()


def around_text(reply: Reply) -> tuple[bytes, bytes]:
    """A piece."""
    return b'data: {"piece": "', b'"}\\n\\n'


def delta(reply: Reply, block: int, kind: str) -> tuple[bytes, bytes]:
    """Only text."""
    return around_text(reply)


def between(reply: Reply, block: int) -> bytes:
    """Nothing."""
    return b""


def closing(reply: Reply) -> bytes:
    """The end, with the count."""
    return b'data: {"over": true, "tokens": %d}\\n\\n' % reply.request.max_tokens


def whole(reply: Reply, contents: Sequence[str]) -> bytes:
    """Never requested."""
    return b"{}"
'''
SCENARIO = """
description = "A protocol of events with pieces"
[target]
protocol = "json_lines"
[arrival]
process = "constant"
rate_per_s = 10.0
[stages]
duration_s = 3.0
warmup_s = 0.0
[traffic.chat]
prompt_tokens = 20
output_tokens = 4
[simulated]
ttft_ms = 20.0
"""


@pytest.fixture
def with_lines(scratch):
    """The copy with one more protocol, on both sides."""
    scratch.write("src/tailgauge/protocols/json_lines.py", CLIENT)
    openai = "from tailgauge.protocols.openai import OpenAI\n"
    scratch.insert(TABLE, openai, "from tailgauge.protocols.json_lines import JsonLines\n")
    scratch.insert(TABLE, " = (Anthropic, OpenAI", ", JsonLines")
    scratch.write("src/tailgauge/simulator/protocols/json_lines.py", SERVER)
    scratch.insert(WIRES, "from tailgauge.simulator.protocols import anthropic", ", json_lines")
    scratch.insert(WIRES, " = (anthropic, openai", ", json_lines")
    scratch.write("scenarios/json_lines.toml", SCENARIO)
    return scratch


@pytest.mark.slow("real]")
@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["real", "dry run"])
def test_a_protocol_touches_three_files_beside_those_of_the_simulator(with_lines, options):
    ran = with_lines.run("-m", "tailgauge", "run", "json_lines", *options, "--out", "out")

    assert ran.returncode in ({0} if options else TOOK_PLACE), ran.stdout + ran.stderr
    run = json.loads(next(with_lines.root.glob("out/runs/*/run.json")).read_text())
    assert run["target"]["protocol"] == "json_lines"
    assert run["conservation"]["ended"] == {"ok": 30}
    assert len([path for path in with_lines.changed if "/simulator/" not in path]) <= 3


def test_what_it_does_not_offer_is_refused(with_lines):
    ran = with_lines.run("-m", "tailgauge", "run", "json_lines", "--set", "traffic.chat.tools=1")

    assert ran.returncode == 2
    assert (
        "traffic.chat.tools: expected target.protocol 'anthropic' or 'openai', got 'json_lines'"
        in ran.stderr
    )
