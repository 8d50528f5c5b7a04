"""Locust's own web page: each start on it is a run, and the live view that it leads to shows them.

Rule: one Locust with two runs, and one browser, serve all. The worker's name is markup, as a hostile one's could be.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from axe_core_python.base import AXE_SCRIPT
from prometheus_client.parser import text_string_to_metric_families
from run_folders.run_data import RunData, assert_conserved
from starting import browser
from starting.command import QUICK, Running, free_port, until
from starting.programs import LOCUST

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
LOCUSTFILE = f"""
from locust import events

@events.init.add_listener
def rename(environment, **_):
    environment.runner.client_id = {HOSTILE!r}

from tailgauge.locust_app.users import Traffic

class Streaming(Traffic):
    scenario = "streaming"
"""
OBJECTIVE = '--set=slo.fast={metric="ttft",quantile=0.5,max_ms=1000}'
SETS = (
    *QUICK,
    "--set=arrival.rate_per_s=30",
    "--set=stages.duration_s=4",
    "--set=stages.warmup_s=0",
    OBJECTIVE,
)
LAYOUT = """(() => {
  const root = document.documentElement, all = (query) => [...document.querySelectorAll(query)];
  return {
    title: document.title, content: root.scrollWidth, verdict: document.querySelector("#word").textContent,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, ground: getComputedStyle(document.body).backgroundColor,
    drawn: all(".plot .main-svg:first-child").length, lines: all(".plot .scatterlayer .js-line").length,
    tiles: Object.fromEntries(all(".tile").map((e) => [e.children[0].textContent, e.querySelector("span").textContent])),
    objectives: all("#objectives li").map((e) => [...e.children].map((part) => part.textContent).join(": ")),
    workers: all("#workers tr").map((row) => [...row.cells].map((cell) => cell.textContent)),
    planted: all("main img, main script").length,
    wide: all("body *").filter((e) => !e.closest(".scroll, .plot")
      && e.getBoundingClientRect().right > root.clientWidth + 1).map((e) => e.tagName + "." + e.className),
  };
})()"""
FINDINGS = """axe.run(document, {{ resultTypes: ["violations"], {only} }}).then((told) => told.violations.map((rule) =>
  `${{rule.id}}: ${{rule.nodes[0].html.slice(0, 200)}}`))"""
CHECKS = {"light": "", "dark": 'runOnly: ["color-contrast"]'}  # colours are all that changes
DRAWN = """new Promise((drawn) => {
  const asked = () => document.querySelectorAll(".plot .scatterlayer .js-line").length >= 8 ? setTimeout(drawn, 200) : setTimeout(asked, 50);
  asked();
})"""
TAB = """new Promise((there) => {
  const asked = () => {
    const tab = [...document.querySelectorAll('[role="tab"]')].find((e) => e.textContent === "Tailgauge");
    if (tab) { there(true); tab.click(); } else setTimeout(asked, 50);
  };
  asked();
})"""
THERE = """new Promise((there) => {
  const asked = () => location.pathname === "/tailgauge" && document.readyState === "complete" ? there(true) : setTimeout(asked, 50);
  asked();
})"""


@dataclass
class Page:
    """A Locust with its web page at `url`, and what was seen of it."""

    url: str
    out: Path
    seen: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        return urllib.request.urlopen(self.url + path, timeout=10)

    def live(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.load(self.get("/tailgauge/live.json"))
        return summary

    def status(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Status and body of a request with these headers; `HERE` is the page's address."""
        here = urllib.parse.urlsplit(self.url).netloc
        with contextlib.closing(http.client.HTTPConnection(here, timeout=10)) as connection:
            connection.request(
                method, path, headers={k: v.replace("HERE", here) for k, v in headers.items()}
            )
            answer = connection.getresponse()
            assert answer.headers.get("Access-Control-Allow-Origin") != "*"
            return answer.status, answer.read().decode()

    def begin(self) -> None:
        """Start a run; Locust's page, opened before its state has changed, would not notice."""
        form = urllib.parse.urlencode({"user_count": 1, "spawn_rate": 1}).encode()
        assert json.load(urllib.request.urlopen(f"{self.url}/swarm", form, timeout=10))["success"]
        until(lambda: self._state() not in {"ready", "stopped"})

    def await_end(self, number: int) -> None:
        until(lambda: self._ended() == number)
        until(lambda: self._state() == "stopped")

    def _state(self) -> str:
        return str(json.load(self.get("/stats/requests"))["state"])

    def _ended(self) -> int:
        files = (self.out / "runs").glob("*/run.json")
        return sum(json.loads(f.read_text())["verdict"] is not None for f in files)


def listening(pid: int) -> set[str]:
    """Addresses on which a process listens."""
    return {c.laddr.ip for c in psutil.Process(pid).net_connections("inet") if c.status == "LISTEN"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """After two runs, the first of them watched: by a browser, where there is one."""
    folder, port = tmp_path_factory.mktemp("live"), free_port()
    (folder / "named.py").write_text(LOCUSTFILE)
    line = [LOCUST, "-f", "named.py", f"--web-port={port}", "--metrics", f"--out={folder}", *SETS]
    running = Running(line, folder, {}, folder)
    page = Page(f"http://127.0.0.1:{port}", folder)
    try:
        until(lambda: running.process.poll() is not None or page.get("/").status == 200)
        assert running.process.poll() is None, running.finish(5).stderr
        page.seen["listens"] = listening(running.process.pid)
        page.seen["before"], page.seen["locust"] = page.live(), page.get("/").read().decode()
        page.begin()
        if browser.CHROMIUM is not None:
            with browser.Browser(folder / "profile", timeout_s=60) as chromium:
                page.seen["browser"] = watch(chromium, page)
        until(lambda: page.live()["run"] is not None and len(page.live()["points"]["at_s"]) > 1)
        page.seen["during"], page.seen["metrics"] = (
            page.live(),
            page.get("/metrics").read().decode(),
        )
        page.await_end(1)
        page.begin()
        page.await_end(2)
        until(lambda: page.live()["run"]["state"] == "complete")
        page.seen["after"] = page.live()
        yield page
    finally:
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
        running.finish(30)


def watch(chromium: browser.Browser, page: Page) -> dict[str, Any]:
    """From Locust's page by the tab to the live view, in both widths and schemes."""
    chromium.send(
        "Emulation.setDeviceMetricsOverride",
        width=1440,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    chromium.send("Page.navigate", url=page.url)
    seen = {"tab": chromium.run(TAB)}
    seen["led"] = chromium.run(THERE)
    for width in (1440, 390):
        chromium.open(f"{page.url}/tailgauge", width)
        chromium.run(DRAWN)
        chromium.run(f"{AXE_SCRIPT}; 0")
        for scheme in ("light", "dark"):
            chromium.scheme(scheme)
            seen[width, scheme] = {
                **chromium.run(LAYOUT),
                "findings": chromium.run(FINDINGS.format(only=CHECKS[scheme])),
            }
    return {**seen, "requests": chromium.requests(), "complaints": chromium.complaints()}


@pytest.fixture
def shown(page: Page) -> dict[Any, Any]:
    """What the browser saw."""
    if "browser" not in page.seen:
        pytest.skip("chromium is not installed")
    summary: dict[Any, Any] = page.seen["browser"]
    return summary


def test_each_start_on_the_web_page_is_a_run_of_its_own(page):
    runs = sorted((page.out / "runs").iterdir())

    assert len(runs) == 2
    for folder in runs:
        counts = assert_conserved(RunData(folder))
        assert counts["scheduled"] == counts["ended"]["ok"] > 50


def test_the_figures_add_up_to_those_of_the_run_that_was_seen_last(page):
    after, run = page.seen["after"], RunData(max((page.out / "runs").iterdir()))
    counts = run.facts["conservation"]

    assert page.seen["before"] == {"run": None}
    assert page.seen["during"]["run"]["run_id"] != after["run"]["run_id"] == run.path.name
    assert (after["now"]["sent"], after["now"]["in_flight"], after["now"]["failed"]) == (
        counts["dispatched"],
        0,
        0,
    )
    attempts = run.attempts()
    assert after["now"]["attempts"] == len(attempts)
    assert after["now"]["output_tokens"] == attempts.output_tokens.sum()
    passed, rates = [0.0, *after["points"]["at_s"]], after["points"]["sent_per_s"]
    sent = sum(rate * (b - a) for rate, a, b in zip(rates, passed, passed[1:], strict=False))
    assert sent == pytest.approx(counts["dispatched"], rel=0.02)
    worker = after["workers"][0]
    assert (worker["name"], worker["state"], worker["clock_error_ms"]) == (HOSTILE, "drained", 0.0)


def test_live_ttft_is_that_of_the_rows(page):
    """Of all first contents: the run is shorter than the window."""
    run = RunData(max((page.out / "runs").iterdir()))
    rows = run.attempts()
    ttft_ms = ((rows.first_content_at_ns - rows.scheduled_at_ns) / 1e6).sort_values()

    assert page.seen["after"]["now"]["ttft_p99_ms"] is None  # of some 120
    for quantile, name in ((0.5, "ttft_p50_ms"), (1.0, "ttft_max_ms")):
        exact = ttft_ms.quantile(quantile, interpolation="higher")
        near = ttft_ms.quantile(quantile, interpolation="lower")
        assert near * 0.99 <= page.seen["after"]["now"][name] <= exact * 1.01


def test_prometheus_reads_the_metrics(page):
    read = {family.name: family for family in text_string_to_metric_families(page.seen["metrics"])}

    (sent,) = read["tailgauge_requests_sent"].samples
    assert sent.value > 0
    (info,) = read["tailgauge_run_info"].samples
    assert info.labels["run_id"] == page.seen["during"]["run"]["run_id"]


def test_the_page_is_on_loopback_unless_another_address_is_named(page):
    assert page.seen["listens"] == {"127.0.0.1"}


OTHER_HOSTS = [
    "evil.example", "evil.example:8089", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example",
    "locahost", "", "[::1].evil.example", "evil.example#127.0.0.1", "0x7f000001", "local host", "a" * 5000,
]  # fmt: skip
OUR_HOSTS = [
    "HERE",
    "localhost:8089",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "10.1.2.3:8089",
    "[::1]:8089",
    "HOSTNAME",
]
OTHER_PAGES = [
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": ""},
    {"Origin": "http://HERE.evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://HERE", "Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example/http://HERE"},
]  # fmt: skip
CHANGES = [
    ("POST", "/stop"),
    ("POST", "/swarm"),
    ("POST", "/user"),
    ("POST", "/stats/reset"),
    ("PUT", "/stop"),
]


def assert_refuses_strangers(page: Page) -> None:
    """DNS rebinding, and pages of other sites."""
    for host in OTHER_HOSTS:
        for method, path in [
            ("GET", "/"),
            ("GET", "/tailgauge/live.json"),
            ("GET", "/metrics"),
            *CHANGES,
        ]:
            headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            status, body = page.status(method, path, headers)
            assert (status, "expected an IP address, localhost or " in body) == (403, True), (
                host,
                method,
                path,
            )
    for method, path in CHANGES:
        for headers in OTHER_PAGES:
            assert page.status(method, path, headers)[0] == 403, (headers, method, path)
    for host in OUR_HOSTS:
        assert (
            page.status(
                "GET",
                "/tailgauge/live.json",
                {"Host": host.replace("HOSTNAME", socket.gethostname())},
            )[0]
            == 200
        )
    assert page.status("GET", "/tailgauge", {"Origin": "http://evil.example"})[0] == 200, (
        "a link is no change"
    )


def test_a_page_of_another_site_neither_reads_nor_changes_anything(page):
    assert_refuses_strangers(page)
    for headers in ({}, {"Origin": "http://HERE", "Sec-Fetch-Site": "same-origin"}):
        assert page.status("POST", "/stats/reset", headers) == (200, "ok")


def test_locusts_page_has_the_tab_and_a_link(page):
    assert '"title": "Tailgauge"' in page.seen["locust"]
    assert '<a href="./tailgauge"' in page.seen["locust"]


@pytest.mark.parametrize(
    "path", ["/tailgauge", "/tailgauge/live.json", "/tailgauge/live.js", "/tailgauge/plotly.min.js"]
)
def test_only_its_own_scripts_may_run_and_only_its_own_pages_may_read(page, path):
    headers = page.get(path).headers

    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Access-Control-Allow-Origin"] == page.url  # and not *, as on Locust's
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", ["master.py", "..%2fweb.py", "live.html%00", "nothing"])
def test_no_other_file_is_served(page, name):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page.get(f"/tailgauge/{name}")


def test_the_tab_on_locusts_page_leads_to_the_live_view(shown):
    assert shown["tab"]
    assert shown["led"]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_is_drawn_and_axe_finds_no_fault(shown, width, scheme):
    summary = shown[width, scheme]

    assert summary["wide"] == []
    assert summary["content"] <= width
    assert (summary["drawn"], summary["dark"]) == (5, scheme == "dark")
    assert summary["lines"] >= 8
    assert summary["findings"] == []
    assert shown[width, "dark"]["ground"] != shown[width, "light"]["ground"]


def test_the_page_shows_the_run(shown):
    summary = shown[390, "dark"]

    assert summary["verdict"] in {"VALID", "DEGRADED", "INVALID"}
    assert summary["tiles"]["TTFT p50"].endswith(" ms")
    assert summary["tiles"]["Output tokens"].endswith("/s")
    (objective,) = summary["objectives"]
    assert re.fullmatch(r"met: ttft p50 [\d.]+ ms, objective < 1,000 ms", objective)
    assert int(summary["tiles"]["Sent"].replace(",", "")) > 0
    assert (summary["tiles"]["429s"], summary["tiles"]["Dropped"]) == ("0", "0")


def test_markup_in_a_name_is_shown_as_text_and_does_nothing(shown):
    summary = shown[1440, "light"]

    ((name, _, state, *_),) = summary["workers"]
    assert name == f"0 · {HOSTILE}"
    assert state in {"running", "drained"}
    assert summary["planted"] == 0
    assert summary["title"].endswith("Tailgauge")


def test_the_browser_asked_this_machine_only_and_complained_of_nothing(shown, page):
    assert {url for url in shown["requests"] if not url.startswith(page.url)} == set()
    assert [json.dumps(summary) for summary in shown["complaints"]] == []


STORM = (
    "--set=stop.min_completed=0",
    "--rate=7", "--duration=10", "--set=stages.warmup_s=0", "--set=arrival.process=constant",
    "--set=arrival.shape.kind=piecewise", "--set=arrival.shape.points=[[0,1],[0.3,1],[0.3,0.02],[1,0.02]]",
    "--set=simulated.limits.rpm=240", "--set=simulated.limits.burst=4", "--set=traffic.chat.retry.policy=naive",
    "--set=traffic.chat.retry.max_retries=2", "--set=traffic.chat.retry.naive_wait_s=0.05",
)  # fmt: skip


def test_the_number_of_429s_is_the_same_in_terminal_page_metrics_and_report(start):
    """Of attempts: nearly all requests are retried, and some fail with a 429 in the end. Quiet follows the storm."""
    page = Page(f"http://127.0.0.1:{(port := free_port())}", Path())
    running = start("run", "streaming", "--workers=2", f"--web={port}", "--metrics", *STORM, *QUICK)
    running.wait_for_start(1)
    assert_refuses_strangers(page)
    until(lambda: page.live()["now"]["at_s"] > 8, timeout_s=30)
    now, metrics = page.live()["now"], page.get("/metrics").read().decode()
    done = running.finish()
    attempts = done.run.attempts()
    rows = int((attempts["ended"] == "rate_limited").sum())
    failed = int((done.run.requests()["ended"] == "rate_limited").sum())
    scraped = {
        sample.labels["outcome"]: sample.value  # of one traffic table at one target
        for family in text_string_to_metric_families(metrics)
        if family.name == "tailgauge_attempts_ended"
        for sample in family.samples
    }
    (text,) = re.findall(r" drained .*  (\d+) err  (\d+) 429", done.stderr)
    report = done.report_data

    assert 0 < failed < rows
    assert (now["limited"], scraped["rate_limited"], int(text[1])) == (rows, rows, rows)
    assert report["rate_limits"]["run_refused"] == rows
    assert sum(one["attempts"] for one in report["errors"] if one["status"] == 429) == rows
    assert (now["failed"], int(text[0])) == (failed, failed)
