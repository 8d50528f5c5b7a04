"""A wire protocol is added in a file of its own and one row; no other file of the client's side knows its name."""

import json
import subprocess
import sys

import pytest

TABLE = "src/tailgauge/protocols/table.py"
PROTOCOL = '''"""Lines: an application that answers with plain lines of JSON in events of one name."""

from __future__ import annotations

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

    def content_of(self, name: bytes, tree: Any) -> tuple[int, str] | None:
        """Events with a piece and nothing else."""
        return (_TEXT, tree["piece"]) if set(tree) == {"piece"} else None
'''
SCENARIO = """
[target]
protocol = "json_lines"
url = "http://127.0.0.1:PORT"
[arrival]
process = "constant"
rate_per_s = 10.0
[stages]
duration_s = 3.0
warmup_s = 0.0
[traffic.chat]
prompt_tokens = 20
output_tokens = 4
"""
APPLICATION = """
import http.server, json, sys

class Lines(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        events = [{"model": asked["model"]}, *[{"piece": f"word {n} "} for n in range(asked["limit"])]]
        for event in [*events, {"over": True, "tokens": asked["limit"]}]:
            self.wfile.write(b"data: %b\\n\\n" % json.dumps(event).encode())

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lines)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def with_lines(scratch):
    """The copy with one more protocol."""
    scratch.write("src/tailgauge/protocols/json_lines.py", PROTOCOL)
    openai = "from tailgauge.protocols.openai import OpenAI\n"
    scratch.insert(TABLE, openai, "from tailgauge.protocols.json_lines import JsonLines\n")
    scratch.insert(TABLE, "    CustomSse,\n", "    JsonLines,\n")
    return scratch


@pytest.fixture
def server(tmp_path):
    """An application that speaks the new protocol; its port."""
    path = tmp_path / "application.py"
    path.write_text(APPLICATION)
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_protocol_touches_three_files_of_the_client(with_lines, server, tmp_path):
    scenario = tmp_path / "lines.toml"
    scenario.write_text(SCENARIO.replace("PORT", str(server)))

    ran = with_lines.run("-m", "tailgauge", "run", str(scenario), "--out", "out")

    assert ran.returncode in {0, 5}, ran.stderr
    run = json.loads(next(with_lines.root.glob("out/runs/*/run.json")).read_text())
    assert run["conservation"]["ended"] == {"ok": 30}
    assert len(with_lines.changed) <= 3


def test_what_it_does_not_offer_is_refused(with_lines, tmp_path):
    scenario = tmp_path / "lines.toml"
    scenario.write_text(SCENARIO.replace("PORT", "9"))

    ran = with_lines.run("-m", "tailgauge", "run", str(scenario), "--set", "traffic.chat.tools=1")

    assert ran.returncode == 2
    assert (
        "traffic.chat.tools: expected target.protocol 'anthropic' or 'openai', got 'json_lines'" in ran.stderr
    )
