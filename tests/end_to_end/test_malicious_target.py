"""A target that means harm: the run ends in bounded time and memory, its verdict says so, and nothing of it comes alive.

Rule: one run meets every behaviour of `malicious_answers`; a second one, of the same command, meets one before it begins. What the
target did, and to whom, is in the log of the target itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from end_to_end.everything_written import Channel, everything
from end_to_end.malicious_answers import BEHAVIOURS, MARK
from end_to_end.malicious_target import Target
from run_folders.run_data import RunData, assert_conserved
from starting import browser
from starting.command import Finished, Running
from starting.programs import TAILGAUGE

KEY = "Zz9-canary-of-the-malicious-target-0123456789"
DEADLINE_S, RATE = 2, 40
SCENARIO = """
[target]
url = "{url}"
protocol = "{protocol}"
api_key_env = "MY_ENGINE"
[arrival]
process = "constant"
rate_per_s = 40
[stages]
duration_s = {seconds}
warmup_s = 0
[traffic.chat]
pattern = "streaming"
prompt_tokens = 20
output_tokens = 20
[limits]
attempt_deadline_s = 2
drain_s = 20
"""
# What would run on any page that lets its own scripts run.
PLANT = f"""(() => {{
  const planted = document.createElement("script");
  planted.textContent = "window.{MARK} = 9";
  document.body.append(planted);
  document.body.insertAdjacentHTML("beforeend", "<button onclick='window.{MARK} = 8'></button>");
  document.body.lastElementChild.click();
}})()"""
# What a person's terminal, editor or build server must never be sent.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# behaviour -> how the row ends: class and type. What is large may take the whole deadline, and end as a timeout instead.
TOO_BIG, PACKED, BAD = "head_too_large", "compressed", ("stream_error", "malformed_event")
ENDS = {
    "fair": ("ok", ""), "big_header": ("client_error", TOO_BIG), "many_headers": ("client_error", TOO_BIG),
    "few_bytes_many_headers": ("client_error", TOO_BIG), "interim": ("client_error", TOO_BIG), "slow_interim": ("client_error", TOO_BIG),
    "slow_head": ("timeout", ""), "noise": ("client_error", TOO_BIG), "redirect": ("client_error", "not_json"),
    "endless_error": ("server_error", "too_large"), "endless_line": ("stream_error", "event_too_large"),
    "endless_event": ("stream_error", "event_too_large"), "endless_comments": ("stream_error", "too_large"),
    "endless_text": ("stream_error", "too_many_events"), "endless_long_lines": ("stream_error", "too_large"),
    "endless_trickle": ("timeout", ""), "endless_pings": ("timeout", ""), "endless_bad_events": BAD,
    "endless_chunk_line": ("stream_error", "framing"), "endless_trailers": ("stream_error", "framing"),
    "tiny_chunks": ("stream_error", "event_too_large"), "huge_chunk": ("stream_error", "too_large"),
    "bomb": ("stream_error", PACKED), "bomb_error": ("client_error", PACKED), "bomb_by_charset": ("client_error", "not_json"),
    "small_gzip": ("stream_error", PACKED), "not_utf8": BAD, "half_characters": ("ok", ""),
    **dict.fromkeys(("negative", "absurd", "text", "not_a_number", "infinite"), ("ok", "malformed_usage")),
    **dict.fromkeys(("very_long", "usage_is_a_list", "deep", "array"), BAD),
    "duplicated": ("ok", ""), "long_event": ("stream_error", "event_too_large"), "page": ("client_error", "not_an_event_stream"),
    "script": ("ok", ""), "script_400": ("client_error", MARK), "script_429": ("rate_limited", MARK), "script_500": ("server_error", MARK),
    "script_event": ("stream_error", MARK), "echo": ("ok", ""), "echo_error": ("client_error", "[redacted]"),
    "echo_event": ("stream_error", "[redacted]"),
}  # fmt: skip
LARGE = {"bomb_error", "bomb_by_charset", "long_event"}
FLOODS = {name for name in BEHAVIOURS if name.startswith("endless_")} | {"big_header", "many_headers", "interim", "slow_head", "noise",
          "slow_interim", "tiny_chunks", "huge_chunk"}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The command, what it left, and what the target did."""

    done: Finished
    did: list[dict[str, Any]]
    channel: bytes
    scenarios: tuple[str, ...]

    def folder(self, kind: str, scenario: str) -> Path:
        (found,) = (self.done.out / kind).glob(f"*-{scenario}-*")
        return found

    @cached_property
    def runs(self) -> list[RunData]:
        return [RunData(self.folder("runs", scenario)) for scenario in self.scenarios]

    @cached_property
    def attempts(self) -> pd.DataFrame:
        """Rows of all runs with the behaviour that each met."""
        rows = pd.concat([run.table("attempts").assign(run=run.path.name) for run in self.runs])
        rows["id"] = (
            rows.run
            + "/"
            + rows.request_id.astype(str)
            + "/"
            + rows.leg.astype(str)
            + "/"
            + rows.attempt.astype(str)
        )
        rows = rows.assign(error_type=rows.error_type.fillna(""))
        return rows.merge(
            pd.DataFrame(self.did)[["id", "behaviour", "bytes", "cut", "seconds"]], on="id", validate="1:1"
        )

    def report(self, scenario: str, name: str) -> str:
        return (self.folder("reports", scenario) / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def seen(
    malicious: Callable[[], Target], tmp_path_factory: pytest.TempPathFactory, full_size: bool
) -> Result:
    """A run against every behaviour, in each protocol where there is time, and one that cannot begin."""
    folder, target = tmp_path_factory.mktemp("malicious"), malicious()
    protocols = ("anthropic", "openai") if full_size else ("anthropic",)
    seconds = 2 * len(BEHAVIOURS) / RATE + 0.1
    for name, path in (
        *((protocol, f"mix/{protocol}") for protocol in protocols),
        ("unusable", "now/echo_error"),
    ):
        protocol = name if name in protocols else "anthropic"
        text = SCENARIO.format(url=f"{target.url}/{path}", protocol=protocol, seconds=seconds)
        (folder / f"{name}.toml").write_text(text)
    channel = Channel(folder / "channel")
    files = [str(folder / f"{name}.toml") for name in (*protocols, "unusable")]
    line = [TAILGAUGE, "run", *files, "--workers=1", "--out", str(folder / "out")]
    done = Running(line, folder / "out", {"MY_ENGINE": KEY, **channel.env}, folder).finish(200)
    return Result(done, target.end(), channel.sent, protocols)


def test_every_behaviour_was_met_and_each_request_has_one_row(seen: Result) -> None:
    for run in seen.runs:
        assert_conserved(run)
        assert run.facts["state"] == "complete"
    met = seen.attempts[seen.attempts.stage != "preflight"].groupby("run").behaviour.agg(set)

    assert all(set(BEHAVIOURS) | {"fair"} == behaviours for behaviours in met)
    assert set(ENDS) == set(BEHAVIOURS) | {"fair"}


@pytest.mark.parametrize("name", ENDS)
def test_each_ends_under_its_own_name(seen: Result, name: str) -> None:
    rows = seen.attempts[seen.attempts.behaviour == name]
    ended, kind = ENDS[name]
    summary = {(row.ended, MARK if MARK in row.error_type else row.error_type) for row in rows.itertuples()}

    assert summary
    assert summary <= {(ended, kind), *([("timeout", "")] if name in FLOODS | LARGE else [])}


def test_nothing_is_read_without_end(seen: Result) -> None:
    """Each flood ended because we hung up, at the latest at the deadline."""
    floods = seen.attempts[seen.attempts.behaviour.isin(FLOODS)]

    assert floods.cut.all()
    assert (floods.ended_at_ns - floods.sent_at_ns < (DEADLINE_S + 5) * 1e9).all()
    assert floods[floods.behaviour == "big_header"].bytes.max() < 64 << 20, "of a gigabyte"
    assert (floods.body_bytes <= 257 << 20).all()


def test_memory_stays_bounded(seen: Result) -> None:
    """Bombs of a gigabyte, floods at once: the worker holds what its bounds allow."""
    for run in seen.runs:
        rss = run.table("health").rss_bytes
        assert rss.max() < 600e6
        assert rss.max() - rss.iloc[0] < 250e6


def test_counts_that_cannot_be_are_null(seen: Result) -> None:
    usage = seen.attempts[
        seen.attempts.behaviour.isin({"negative", "absurd", "text", "not_a_number", "infinite", "very_long"})
    ]
    fair = seen.attempts[seen.attempts.behaviour == "fair"]

    assert usage.error_body.str.contains("output_tokens = |ValueError", regex=True).all()
    assert not (usage.output_tokens > 1).any()
    assert (fair.output_tokens == 2).all()


def test_the_verdict_names_it(seen: Result) -> None:
    for scenario in seen.scenarios:
        verdict = json.loads(seen.report(scenario, "report.json"))["verdict"]
        (reason,) = [one for one in verdict["reasons"] if one["check"] == "protocol"]

        assert verdict["status"] != "VALID"
        assert re.match(
            r"The target broke its protocol in \d+ of \d+ attempts: \w.* \(\d+\), ", reason["text"]
        )
        for text in (
            seen.done.stdout,
            seen.report(scenario, "report.md"),
            seen.report(scenario, "report.html"),
        ):
            assert reason["text"].partition(":")[0] in " ".join(text.split())


def test_a_target_that_cannot_be_used_is_named_in_its_own_words_without_their_power(seen: Result) -> None:
    assert seen.done.code == 4
    assert "Traceback" not in seen.done.stderr
    (line,) = [line for line in seen.done.stderr.splitlines() if "/now/echo_error answered HTTP 401" in line]
    assert "evil" in line, "what it sent is reported"


def test_no_terminal_obeys_it(seen: Result) -> None:
    assert CONTROL.findall(seen.done.stdout) == []
    assert CONTROL.findall(seen.done.stderr) == []


def test_no_file_for_people_or_programs_has_its_powers(seen: Result) -> None:
    for scenario in seen.scenarios:
        page, text, summary, cases = (
            seen.report(scenario, name) for name in ("report.html", "report.md", "report.json", "junit.xml")
        )
        ours = page.partition("* plotly.js (")[0]

        assert [CONTROL.findall(one) for one in (ours, text, summary, cases)] == [[]] * 4
        assert f"<script>window.{MARK}" not in ours + text
        assert f"&lt;script&gt;window.{MARK}" in ours
        assert "<img" not in ours + text
        assert not re.search(r"(?<!\\)\]\(", text)
        assert json.loads(summary)["errors"]
        assert ET.fromstring(cases).tag == "testsuite"  # noqa: S314 - what we wrote ourselves
        assert json.loads((seen.folder("runs", scenario) / "run.json").read_text())["verdict"]["verdict"]


def test_no_key_that_it_repeats_is_written_or_said(seen: Result) -> None:
    echoed = seen.attempts[seen.attempts.behaviour == "echo"]
    texts = everything(seen.done)

    assert KEY.lower() not in "\n".join(texts).lower()
    for name in ("server_request_id", "rate_limit_headers", "stop_reason", "model", "phases"):
        assert echoed[name].str.contains("[redacted]", regex=False).all(), name
    assert all(KEY[:12] not in text for text in texts), "nor the beginning of it"
    assert seen.channel.count(b"tailgauge:tried") > len(seen.runs)
    assert KEY[:12].encode() not in seen.channel


@pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_text_and_runs_none_of_it(seen: Result, tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text(
        f"<!doctype html><title>x</title><img src=x onerror=\"window.{MARK}=2;console.error('ran')\">"
    )
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(control.as_uri(), 1200)
        assert chromium.run(f"window.{MARK}") == 2, "a browser that would run it"
        reply = len(chromium.complaints())
        assert reply
        for scenario in seen.scenarios:
            chromium.open((seen.folder("reports", scenario) / "report.html").as_uri(), 1200)
            chromium.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

            assert chromium.run(f"typeof window.{MARK}") == "undefined"
            assert f"<script>window.{MARK}" in chromium.run("document.body.innerText")
            assert (
                chromium.run(
                    "document.querySelectorAll('img, iframe, object, embed, [onerror], [onload]').length"
                )
                == 0
            )
            assert chromium.run("document.querySelectorAll('.plot .main-svg:first-child').length") > 0
        assert chromium.requests() == set()
        assert len(chromium.complaints()) == reply
        chromium.run(PLANT)
        assert chromium.run(f"typeof window.{MARK}") == "undefined", (
            "not even a script that was in the page would run"
        )
