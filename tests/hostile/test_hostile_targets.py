"""A target that means harm: the run ends in bounded time and memory, its verdict says so, and nothing of it comes alive.

Rule: runs of one command, in each protocol, meet every behaviour of `behaviours` (at full size in each of them); a last one
meets one before it begins. What the target did, and to whom, is in the log of the target itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import psutil
import pytest
from end_to_end.everything_written import Channel, everything
from hostile.answers import MARK
from hostile.behaviours import BEHAVIOURS, mix
from hostile.target import Target
from run_folders.run_data import RunData, assert_conserved
from starting import browser
from starting.command import Finished, Running
from starting.programs import TAILGAUGE

pytestmark = [pytest.mark.patient, pytest.mark.slow]

KEY = "Zz9-canary-of-the-malicious-target-0123456789"
DEADLINE_S, RATE, LATE_S = 4, 12, 1.5
SCENARIO = """
[target]
url = "{url}"
protocol = "{protocol}"
api_key_env = "MY_ENGINE"
[arrival]
process = "constant"
rate_per_s = {rate}
[stages]
duration_s = {seconds}
warmup_s = 0
[traffic.chat]
pattern = "streaming"
prompt_tokens = 20
output_tokens = 20
[limits]
attempt_deadline_s = {deadline_s}
drain_s = 20
[stop]
min_completed = 0
connect_errors = 0
{more}
"""
SSE = """
[target.sse]
path = "/sse"
content = { text = "/text" }
phase = { event = "status", name = "/phase" }
output_tokens = "/usage/output_tokens"
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
FLOODS = {name for name, behaviour in BEHAVIOURS.items() if behaviour.is_flood}
PROTOCOLS = ("anthropic", "openai", "sse")
MOST_MEMORY = 400 << 20  # of a worker, at any time


def scenario(
    url: str,
    protocol: str,
    seconds: float,
    more: str,
    rate: float = RATE,
    deadline_s: float = DEADLINE_S,
) -> str:
    return SCENARIO.format(
        url=url, protocol=protocol, seconds=seconds, more=more, rate=rate, deadline_s=deadline_s
    )


class Memory:
    """The most memory that each worker of a command ever had, as the kernel says."""

    def __init__(self, pid: int) -> None:
        self.most: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(psutil.Process(pid),))
        self._thread.start()

    def _look(self, root: psutil.Process) -> None:
        while not self._over.wait(0.1):
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                for child in root.children(recursive=True):
                    if "worker" in child.cmdline() or "worker" in child.name():
                        text = Path(f"/proc/{child.pid}/status").read_text()
                        self.most[child.pid] = int(re.findall(r"VmHWM:\s*(\d+)", text)[0]) << 10

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@dataclass(frozen=True)
class Result:
    """The command, what it left, and what the target did."""

    done: Finished
    did: list[dict[str, Any]]
    channel: bytes
    scenarios: tuple[str, ...]
    memory: dict[int, int]

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
        parts = [rows[name].astype(str) for name in ("request_id", "leg", "attempt")]
        rows["id"] = rows.run.str.cat(parts, sep="/")
        rows = rows.assign(error_type=rows.error_type.fillna(""))
        return rows.merge(
            pd.DataFrame(self.did)[["id", "behaviour", "bytes", "cut", "last_at_ns"]],
            on="id",
            validate="1:1",
        )

    def report(self, scenario: str, name: str) -> str:
        return (self.folder("reports", scenario) / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def seen(malicious: Callable[[], Target], tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Runs against every behaviour in each protocol, and one that cannot begin."""
    folder, target = tmp_path_factory.mktemp("hostile"), malicious()
    seconds = len(mix()) / RATE + 0.1
    paths = {name: f"mix/{name}" for name in PROTOCOLS}
    for name, path in {**paths, "unusable": "now/echo_error"}.items():
        protocol = name if name in PROTOCOLS else "anthropic"
        more = SSE if protocol == "sse" else ""
        text = scenario(f"{target.url}/{path}", protocol, seconds, more)
        (folder / f"{name}.toml").write_text(text)
    channel = Channel(folder / "channel")
    files = [str(folder / f"{name}.toml") for name in (*PROTOCOLS, "unusable")]
    line = [TAILGAUGE, "run", *files, "--workers=1", "--out", str(folder / "out")]
    running = Running(line, folder / "out", {"MY_ENGINE": KEY, **channel.env}, folder)
    memory = Memory(running.process.pid)
    try:
        done = running.finish(400)
    finally:
        memory.end()
    return Result(done, target.end(), channel.sent, PROTOCOLS, memory.most)


def test_every_behaviour_was_met_and_each_request_has_one_row(seen):
    for run in seen.runs:
        assert_conserved(run)
        assert run.facts["state"] == "complete"
        assert run.requests().ended.ne("client_drop").all()
    met = seen.attempts[seen.attempts.stage != "preflight"].groupby("protocol").behaviour.agg(set)

    names = set(BEHAVIOURS) | {"fair"}
    for protocol, run in zip(PROTOCOLS, seen.runs, strict=True):
        assert met[protocol] <= names
        # On a machine that stops for a while some are skipped, as the run says.
        assert (
            len(names - met[protocol]) <= run.facts["conservation"]["not_reached"] <= len(names) / 5
        )
    assert set(mix()) == names
    assert len(BEHAVIOURS) >= 150


def test_nobody_crashed(seen):
    texts = [seen.done.stdout, seen.done.stderr]
    texts += [path.read_text() for path in seen.done.out.rglob("*.log")]

    assert [text for text in texts if "Traceback" in text] == []


@pytest.mark.parametrize("name", ["fair", *BEHAVIOURS])
def test_each_ends_under_its_own_name(seen, name):
    rows = seen.attempts[seen.attempts.behaviour == name]
    wrong, late = [], 0
    for row in rows.itertuples():
        ends = BEHAVIOURS[name].ends_as(row.protocol) if name != "fair" else ("ok",)
        kind = MARK if MARK in row.error_type else row.error_type
        if row.ended in ends or f"{row.ended}:{kind}" in ends:
            continue
        # A busy target: its threads may have no turn for seconds.
        in_time = row.last_at_ns < row.sent_at_ns + (DEADLINE_S - LATE_S) * 1e9
        if row.ended == "timeout" and name not in FLOODS and not in_time:
            late += 1
        else:
            wrong.append((row.protocol, row.ended, row.error_type, row.error_body, ends))

    assert wrong == []
    if rows.empty and any(run.facts["conservation"]["not_reached"] for run in seen.runs):
        pytest.skip("a busy machine: it was not sent, and the run says so")
    assert len(rows) >= 1
    if late == len(rows):
        pytest.skip("the target itself had not answered before the deadline")


def test_nothing_is_read_without_end(seen):
    """Each flood ended because we hung up, at the latest at the deadline."""
    floods = seen.attempts[seen.attempts.behaviour.isin(FLOODS)]

    assert floods.cut.all()
    assert (floods.ended_at_ns - floods.sent_at_ns < (DEADLINE_S + 5) * 1e9).all()
    assert floods[floods.behaviour == "big_header"].bytes.max() < 64 << 20, "of a gigabyte"
    most = (
        256 + 4 + 2
    )  # MiB: of a body, of what the reader holds before it reads no more, and of the reads around that
    assert (floods.body_bytes <= most << 20).all()


def test_memory_stays_bounded(seen):
    """Bombs of a gigabyte, floods at once: the worker holds what its bounds allow."""
    assert seen.memory
    assert max(seen.memory.values()) < MOST_MEMORY, seen.memory
    for run in seen.runs:
        assert run.table("health").rss_bytes.max() < MOST_MEMORY


def test_many_that_hold_much_at_once_stay_within_the_bound(malicious, tmp_path):
    """Conversations that keep each answer, with 480 of the largest heads, lines, events and texts."""
    target, seconds = malicious(), 16
    session = "[traffic.chat.session]\nturns_mean = 4\nthink_s = 0.2\n"
    text = scenario(f"{target.url}/crowd", "openai", seconds, session, rate=30, deadline_s=12)
    (tmp_path / "crowd.toml").write_text(text)
    file, out = str(tmp_path / "crowd.toml"), str(tmp_path / "out")
    line = [TAILGAUGE, "run", file, "--workers=1", "--out", out]
    running = Running(line, tmp_path / "out", {"MY_ENGINE": KEY}, tmp_path)
    memory = Memory(running.process.pid)
    try:
        done = running.finish(200)
    finally:
        memory.end()
    rows = done.run.table("attempts")

    assert "Traceback" not in done.stdout + done.stderr
    assert_conserved(done.run)
    assert len(rows) >= 0.9 * 30 * seconds
    assert max(memory.most.values()) < MOST_MEMORY, rows.groupby(
        ["ended", "error_type"], dropna=False
    ).size()


def test_counts_that_cannot_be_are_null(seen):
    named = seen.attempts.error_body.str.contains(
        "output_tokens = |ValueError", regex=True, na=False
    )
    usage = seen.attempts[seen.attempts.behaviour.str.startswith("usage_") & named]
    fair = seen.attempts[seen.attempts.behaviour == "fair"]
    fair = fair[fair.ended == "ok"]  # a busy target may be late

    assert len(usage) >= 8
    assert len(fair) >= 10
    assert not (usage.output_tokens > 1).any()
    assert (fair.output_tokens == 2).all()


def test_the_verdict_names_it(seen):
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


def test_a_target_that_cannot_be_used_is_named_in_its_own_words_without_their_power(seen):
    assert seen.done.code == 4
    assert "Traceback" not in seen.done.stderr
    (line,) = [
        line
        for line in seen.done.stderr.splitlines()
        if re.search(r"/now/echo_error\S* answered HTTP 401", line)
    ]
    assert "evil" in line, "what it sent is reported"


def test_no_terminal_obeys_it(seen):
    assert CONTROL.findall(seen.done.stdout) == []
    assert CONTROL.findall(seen.done.stderr) == []


def test_no_file_for_people_or_programs_has_its_powers(seen):
    for scenario in seen.scenarios:
        page, text, summary, cases = (
            seen.report(scenario, name)
            for name in ("report.html", "report.md", "report.json", "junit.xml")
        )
        ours = page.partition("* plotly.js (")[0]

        assert [CONTROL.findall(one) for one in (ours, text, summary, cases)] == [[]] * 4
        assert f"<script>window.{MARK}" not in ours + text
        assert f"&lt;script&gt;window.{MARK}" in ours
        assert "<img" not in ours + text
        assert not re.search(r"(?<!\\)\]\(", text)
        assert json.loads(summary)["errors"]
        assert ET.fromstring(cases).tag == "testsuite"  # noqa: S314 - what we wrote ourselves
        assert json.loads((seen.folder("runs", scenario) / "run.json").read_text())["verdict"][
            "verdict"
        ]


def test_no_key_that_it_repeats_is_written_or_said(seen):
    echoed = seen.attempts[seen.attempts.behaviour == "echo"]
    texts = everything(seen.done)

    assert KEY.lower() not in "\n".join(texts).lower()
    known = echoed[echoed.protocol != "sse"]
    for name in ("server_request_id", "rate_limit_headers", "phases"):
        assert echoed[name].str.contains("[redacted]", regex=False).all(), name
    for name in ("stop_reason", "model"):
        assert known[name].str.contains("[redacted]", regex=False).all(), name
    assert all(KEY[:12] not in text for text in texts), "nor the beginning of it"
    assert seen.channel.count(b"tailgauge:tried") > len(seen.runs)
    assert KEY[:12].encode() not in seen.channel


@pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_text_and_runs_none_of_it(seen, tmp_path):
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
            chromium.run(
                "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
            )

            assert chromium.run(f"typeof window.{MARK}") == "undefined"
            assert f"<script>window.{MARK}" in chromium.run("document.body.innerText")
            assert (
                chromium.run(
                    "document.querySelectorAll('img, iframe, object, embed, [onerror], [onload]').length"
                )
                == 0
            )
            assert (
                chromium.run("document.querySelectorAll('.plot .main-svg:first-child').length") > 0
            )
        assert chromium.requests() == set()
        assert len(chromium.complaints()) == reply
        chromium.run(PLANT)
        assert chromium.run(f"typeof window.{MARK}") == "undefined", (
            "not even a script that was in the page would run"
        )
