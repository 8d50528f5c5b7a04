"""What a scenario adds to its requests, as a server sees it: headers, fields, a session's header, exact answers, URLs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from end_to_end.recorder import Received, Recorder
from starting.command import Finished, run_in

pytestmark = pytest.mark.slow

SECRET = "9" + "zQ3xV7bN1mK5" * 3
ADDED = """
name = "{protocol}"
[target]
url = "{url}"
protocol = "{protocol}"
headers = {{ x-fixed = "a b", User-Agent = "mine/1", x-ids = "{{request_id}} {{traffic}} {{arrival}} {{{{x}}}}", x-gateway = {{ env = "MY_GATEWAY" }} }}
body = {{ temperature = 0.25, stream_options = {{ extra = true }}, least = "{{max_tokens}}", deep = [{{ key = {{ env = "MY_GATEWAY" }} }}] }}
{more}
[arrival]
process = "constant"
rate_per_s = 8
[stages]
duration_s = 2
warmup_s = 0
[traffic.again]
prompt_tokens = 20
output_tokens = 7
headers = {{ X-Fixed = "of again" }}
body = {{ metadata = {{ user = "user {{session_id}}" }} }}
session = {{ turns_mean = 2.0, think_s = 0.05 }}
retry = {{ policy = "naive", naive_wait_s = 0.01 }}
[traffic.hedged]
pattern = "hedged"
prompt_tokens = 20
output_tokens = 9
hedge = {{ policy = "fixed", delay_ms = 100, budget_share = 1.0, budget_burst = 1000 }}
"""
MORE = {
    "anthropic": "",
    "openai": "",
    "sse": """[target.sse]
path = "/ask"
content = { text = "/choices/0/delta/content" }
output_tokens = "/usage/completion_tokens"
body = { q = "{prompt}", n = "{max_tokens}", of = "{session_id}" }
""",
}
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions", "sse": "/ask"}
LEGS = """
[traffic.legs]
pattern = "fan_out"
output_tokens = 6
output = "exact"
fan_out = { legs = 3 }
"""


@dataclass(frozen=True)
class Recorded:
    """The runs, and what the server received for each protocol."""

    done: Finished
    posts: dict[str, list[Received]]
    before: dict[str, list[Received]]
    refused: list[str]


@pytest.fixture
def recorder() -> Iterator[Callable[..., Recorder]]:
    made: list[Recorder] = []

    def start(engine: str = "vllm") -> Recorder:
        made.append(Recorder(engine))
        return made[-1]

    yield start
    for each in made:
        each.close()


def run(folder: Path, *files: str, env: dict[str, str] | None = None) -> Finished:
    return run_in(folder, *(str(folder / f"{name}.toml") for name in files), "--workers=1", env=env)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder, servers = tmp_path_factory.mktemp("added"), {name: Recorder() for name in MORE}
    for name, server in servers.items():
        text = ADDED.format(protocol=name, url=server.url, more=MORE[name])
        if name == "openai":
            text = text.replace("output_tokens = 7", 'output_tokens = 7\noutput = "exact"')
            text = text.replace("output_tokens = 9", 'output_tokens = 9\noutput = "exact"') + LEGS
        (folder / f"{name}.toml").write_text(text)
    done = run(folder, *MORE, env={"MY_GATEWAY": SECRET})
    posts = {name: server.posts for name, server in servers.items()}
    before = {
        name: [one for one in server.received if one not in posts[name] and one.path != "/metrics"]
        for name, server in servers.items()
    }  # the engine's page is read by the master, without what is added
    yield Recorded(
        done, posts, before, [why for server in servers.values() for why in server.refused]
    )
    for server in servers.values():
        server.close()


@pytest.mark.parametrize("protocol", MORE)
def test_every_attempt_of_the_rows_was_received_hedges_and_retries_included(seen, protocol):
    rows = seen.done.run_of(protocol).table("attempts")
    rows = rows[(rows.stage != "preflight") & rows.sent_at_ns.notna()]
    received = [one.call for one in seen.posts[protocol]]

    assert sorted(received) == sorted(zip(rows.request_id, rows.leg, rows.attempt, strict=True)), (
        seen.done.stderr
    )
    assert {"primary", "retry", "hedge"} <= set(rows.cause)
    assert {one.path for one in seen.posts[protocol]} == {PATHS[protocol]}
    assert seen.refused == []


@pytest.mark.parametrize("protocol", MORE)
def test_headers_are_those_that_were_asked_for_in_every_attempt(seen, protocol):
    rows = seen.done.run_of(protocol).requests().set_index("request_id")
    for one in seen.posts[protocol]:
        request, traffic = one.call[0], rows.traffic[one.call[0]]

        assert one.header("x-fixed") == ["of again" if traffic == "again" else "a b"]
        assert one.header("user-agent") == ["mine/1"]
        assert one.header("x-ids") == [f"{request} {traffic} {request // 65536} {{x}}"]
        assert one.header("x-gateway") == [SECRET]
        assert one.header("x-session-id") == (
            [str(int(rows.session_id[request]))] if traffic == "again" else []
        )
    turns = rows[rows.traffic == "again"].groupby("session_id").size()
    assert turns.max() > 1, "some session has several turns, all with one number"


@pytest.mark.parametrize("protocol", MORE)
def test_fields_are_merged_into_the_body_that_the_sdk_builds(seen, protocol):
    rows = seen.done.run_of(protocol).requests().set_index("request_id")
    sizes = {"again": 7, "hedged": 9, "legs": 6}
    for one in seen.posts[protocol]:
        request, traffic = one.call[0], rows.traffic[one.call[0]]
        size = sizes[traffic]
        expected = {
            "temperature": 0.25,
            "least": size,
            "deep": [{"key": SECRET}],
            "stream_options": {"extra": True},
        }
        if protocol == "openai":
            expected["stream_options"] = {"include_usage": True, "extra": True}
            expected |= {"ignore_eos": True, "min_tokens": size, "max_tokens": size}
        if protocol == "anthropic":
            expected["max_tokens"] = size
        if protocol == "sse":
            expected |= {"n": size, "of": str(request - request % 65536)}
        if traffic == "again":
            expected["metadata"] = {"user": f"user {request - request % 65536}"}

        assert one.body.items() >= expected.items()
        others = {"anthropic": {"model", "messages", "stream", "max_tokens"}, "sse": {"q"},
                  "openai": {"model", "messages", "stream"}}  # fmt: skip
        assert set(one.body) == set(expected) | others[protocol]


@pytest.mark.parametrize("protocol", MORE)
def test_the_calls_before_the_run_have_them_too(seen, protocol):
    calls = [one for one in seen.before[protocol] if one.body is not None]

    assert len(calls) >= 2
    for one in seen.before[protocol]:
        assert one.header("x-gateway") == [SECRET]
    assert all(one.body["temperature"] == 0.25 for one in calls)
    assert any(one.path == "/v1/models" for one in seen.before[protocol]) == (protocol == "openai")


def test_the_full_url_is_shown_and_recorded(seen):
    for protocol, path in PATHS.items():
        urls = {call["url"] for call in seen.done.run_of(protocol).facts["preflight"]}

        assert len(urls) == 1
        assert urls.pop().endswith(path)
        assert re.search(
            rf"calls go to http://127\.0\.0\.1:\d+{path}\n", seen.done.stderr + seen.done.stdout
        )


def test_the_report_proves_exact_answers(seen):
    rows = seen.done.run_of("openai").table("attempts")
    ok = rows[(rows.stage != "preflight") & (rows.ended == "ok")]
    (report,) = (seen.done.out / "reports").glob("*-openai-*/report.md")
    text, data = report.read_text(), json.loads(report.with_name("report.json").read_text())

    assert seen.done.run_of("openai").facts["engines"] == {"main": "vllm"}
    for name, size in (("again", 7), ("hedged", 9)):
        n = (ok.traffic == name).sum()
        assert (
            f"{name}: the requests asked for {size} output tokens and got {size} in 100% of {n} answers."
            in text
        )
        lengths = data["traffic"][name]["lengths"]
        assert lengths["same"] == lengths["counted"] == lengths["answers"] == n > 0
    assert set(ok[ok.traffic == "legs"].output_tokens) == {6}
    assert (
        "output tokens and got"
        not in next((seen.done.out / "reports").glob("*-sse-*/report.md")).read_text()
    )


def test_the_secret_is_nowhere(seen):
    texts = [seen.done.stdout, seen.done.stderr]
    texts += [
        path.read_bytes().decode(errors="replace")
        for path in seen.done.out.rglob("*")
        if path.is_file()
    ]

    assert len(texts) > 20
    assert [text[:100] for text in texts if SECRET in text] == []


EXACT = """
[target]
url = "{url}"
protocol = "openai"
{engine}
[arrival]
rate_per_s = 5
[stages]
duration_s = 1
warmup_s = 0
[traffic.chat]
output = "exact"
output_tokens = 11
"""


def test_an_unknown_engine_is_named_or_refused(recorder, tmp_path):
    """The list of models names a gateway: nothing is sent but the preflight. Named, its fields are sent."""
    gateway = recorder("a gateway")
    (tmp_path / "unknown.toml").write_text(EXACT.format(url=gateway.url, engine=""))
    refused = run(tmp_path, "unknown")

    assert refused.code == 2
    assert "target.engine: expected one of vllm, sglang, llama.cpp" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert gateway.posts == []
    (tmp_path / "named.toml").write_text(
        EXACT.format(url=gateway.url, engine='engine = "llama.cpp"')
    )
    named = run(tmp_path, "named")

    assert named.code in {0, 1, 3, 5}, named.stderr  # the recorder refuses some calls, for retries
    assert {(one.body["n_predict"], one.body["ignore_eos"]) for one in gateway.posts} == {
        (11, True)
    }
    (report,) = (tmp_path / "out" / "reports").glob("*-named-*/report.md")
    proof = r"chat: the requests asked for 11 output tokens and got 11 in 0% of \d+ answers?\. The work was not fixed\."
    assert re.search(proof, report.read_text())
