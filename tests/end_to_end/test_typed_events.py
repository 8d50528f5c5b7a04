"""Applications that type their events in the JSON are judged by what they say, with the scenarios of the documentation."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from end_to_end.typed_app import BROKEN_AFTER, ENDS, TEXT_PIECES, serving
from run_folders.run_data import assert_conserved
from starting.command import Finished, run_in

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "traffic.md"
REST = """
[arrival]
rate_per_s = 2
[stages]
duration_s = 60
[traffic.questions]
prompt_tokens = 100
output_tokens = 200
"""
LANGSERVE = f"""
[target]
protocol = "sse"
[target.sse]
path = "/langserve/stream"
body = {{ input = "{{prompt}}" }}
content = {{ event = "data", encoding = "json" }}
end = {{ event = "end" }}
{REST}"""
DETAIL = f"""
[target]
protocol = "sse"
[target.sse]
path = "/detail"
content = {{ text = "/token" }}
{REST}"""
SHORT = ("--set=arrival.process=constant", "--set=arrival.rate_per_s=10", "--set=stages.duration_s=2", "--set=stages.warmup_s=0",
         "--set=traffic.questions.output_tokens=10", "--workers=1")  # fmt: skip


def example(name: str) -> str:
    """The scenario of the documentation below a sentence with this name."""
    page = PAGE.read_text(encoding="utf-8")
    (scenario,) = re.findall(rf"\n[^\n]*{name}[^\n]*:\n\n```toml\n(.*?)```", page, re.DOTALL)
    return str(scenario)


@dataclass(frozen=True)
class Judged:
    """The runs against the applications."""

    done: Finished

    def attempts(self, scenario: str) -> dict[str, pd.DataFrame]:
        """The attempts of a run by what the application did."""
        rows = self.done.run_of(scenario).attempts()
        ends = [ENDS[request // 65536 % len(ENDS)] for request in rows.request_id]
        return {end: rows[[one == end for one in ends]] for end in ENDS}

    def report(self, scenario: str) -> str:
        (path,) = (self.done.out / "reports").glob(f"*-{scenario}-*/report.md")
        return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("typed")
    ai_sdk = example("AI SDK").replace('path = "/api/chat"', 'path = "/ai-sdk"')
    texts = {
        "fastapi": example("FastAPI") + REST,
        "ai-sdk": ai_sdk + REST,
        "langserve": LANGSERVE,
        "detail": DETAIL,
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    with serving() as url:
        files = [str(folder / f"{name}.toml") for name in texts]
        key = {"APP_KEY": "key-of-the-app"}
        done = run_in(folder, *files, f"--set=target.url={url}", *SHORT, env=key, timeout_s=150)
    return Judged(done)


def only(rows: pd.DataFrame, *columns: str) -> tuple[object, ...]:
    """What all rows have in these columns."""
    assert len(rows) == 5
    values = set(rows[list(columns)].itertuples(index=False, name=None))
    assert len(values) == 1, values
    return values.pop()


def test_a_fastapi_answer_is_ok_with_its_phases(judged):
    rows = judged.attempts("fastapi")["ok"]

    assert only(rows, "ended", "chunks") == ("ok", len(TEXT_PIECES))
    for phases in rows.phases:
        times = json.loads(phases)
        assert list(times) == ["retrieval", "generation"]
        assert times["retrieval"] < times["generation"]


def test_a_fastapi_error_after_five_words_is_a_failure_with_its_code(judged):
    rows = judged.attempts("fastapi")["broken"]
    text = "The AI service encountered an error. Please try again."

    assert only(rows, "ended", "error_class", "error_type", "error_body", "chunks", "status") == (
        "stream_error", "overloaded", "529", text, BROKEN_AFTER, 200,
    )  # fmt: skip


def test_a_fastapi_error_before_any_word_is_what_its_code_would_be(judged):
    rows = judged.attempts("fastapi")["busy"]

    assert only(rows, "ended", "error_class", "error_type", "chunks") == (
        "rate_limited", "rate_limited", "429", 0,
    )  # fmt: skip


@pytest.mark.parametrize("scenario", ["fastapi", "ai-sdk", "langserve", "detail"])
def test_a_stream_that_just_stops_is_truncated(judged, scenario):
    assert only(judged.attempts(scenario)["cut"], "ended", "error_type") == (
        "truncated",
        "no_end_mark",
    )


def test_an_ai_sdk_stream_is_judged(judged):
    rows = judged.attempts("ai-sdk")

    assert only(rows["ok"], "ended", "chunks", "citations") == ("ok", len(TEXT_PIECES), 1)
    assert list(json.loads(rows["ok"].phases.iloc[0])) == ["tool-input-start"]
    for end, chunks in (("broken", BROKEN_AFTER), ("busy", 0)):
        assert only(rows[end], "ended", "error_type", "error_body", "chunks") == (
            "stream_error", "error", "An error occurred.", chunks,
        )  # fmt: skip


def test_a_langserve_stream_is_judged(judged):
    rows = judged.attempts("langserve")

    assert only(rows["ok"], "ended", "chunks") == ("ok", len(TEXT_PIECES))
    for end, ended in (("broken", "stream_error"), ("busy", "server_error")):
        assert only(rows[end], "ended", "error_class", "error_type", "error_body") == (
            ended, "server_error", "500", "Internal Server Error",
        )  # fmt: skip


def test_a_detail_in_a_200_is_a_failure(judged):
    rows = judged.attempts("detail")

    assert only(rows["ok"], "ended", "chunks") == ("ok", 1)
    for end in ("broken", "busy"):
        assert only(rows[end], "ended", "error_type", "error_body") == (
            "stream_error", "error", "Not authenticated",
        )  # fmt: skip


def test_a_run_with_three_failures_in_four_is_no_success(judged):
    assert judged.done.code in {1, 3}, (
        judged.done.stderr
    )  # 3: a busy machine made the measurement invalid
    assert "Traceback" not in judged.done.stderr
    for scenario in ("fastapi", "ai-sdk", "langserve", "detail"):
        assert_conserved(judged.done.run_of(scenario))
        assert "FAIL" in judged.report(scenario)
