"""The page in a real browser, wide and narrow, with no network."""

import json
import shutil

import pytest

CHROMIUM = shutil.which("chromium")
WIDTHS = (1440, 390)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr", "--v=0", "--allow-file-access-from-files", "--virtual-time-budget=8000",
    "--window-size=1500,1000",
)  # fmt: skip

CONTROL = "http://control.invalid/"  # the frame around the pages asks for it: the test would see a request

# A frame has the width that a window may not have; the page inside answers to it as to a window.
FRAMES = """<!doctype html><meta charset="utf-8">{frames}<script>
fetch("{control}").catch(() => 0);
addEventListener("load", () => setTimeout(() => {{
  const seen = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, root = page.documentElement;
    return {{
      width: frame.clientWidth, content: root.scrollWidth, plots: page.querySelectorAll(".plot").length,
      drawn: page.querySelectorAll(".plot .main-svg:first-child").length,
      wide: [...page.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, pre, .plot")
        && e.getBoundingClientRect().right > root.clientWidth + 1).map((e) => e.tagName + "." + e.className),
      buttons: [...page.querySelectorAll(".modebar-btn")].map((e) => e.dataset.title),
      verdict: page.querySelector("#verdict").textContent,
    }};
  }});
  document.body.textContent = "SEEN" + JSON.stringify(seen) + "SEEN";
}}, 2000));
</script>"""


@pytest.fixture
def seen(made, command, tmp_path):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    ended = {**dict.fromkeys(range(300, 320), "rate_limited"), 350: "client_drop"}
    error = {"status": 429, "error_type": "rate_limit_error", "error_body": "x" * 2000}
    slo = {"ttft_p99": {"metric": "ttft_sched", "quantile": 0.99, "max_ms": 1000.0}}
    report = made(n=600, ended=ended, error=error, slo=slo, cpu_share=0.95, run_id="R" * 100)
    page, net = tmp_path / "frames.html", tmp_path / "net.json"
    frames = "".join(
        f'<iframe src="{report.html.as_uri()}" style="width:{w}px;height:900px;border:0"></iframe>'
        for w in WIDTHS
    )
    page.write_text(FRAMES.format(frames=frames, control=CONTROL))
    done = command(
        [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--log-net-log={net}",
            "--dump-dom",
            page.as_uri(),
        ],
        timeout_s=60,
    )
    return json.loads(done.stdout.split("SEEN")[1]), done.stderr, json.loads(net.read_text())


def requests_of_pages(net):
    """Requests that a page made; the browser's own have no origin."""
    asked = [event["params"] for event in net["events"] if "initiator" in event.get("params", {})]
    return {
        p["url"]
        for p in asked
        if p["initiator"] != "not an origin" and not p["url"].startswith(("file:", "data:"))
    }


def test_the_page_opens_at_both_widths_without_errors_or_requests(seen):
    frames, log, net = seen

    assert [frame["width"] for frame in frames] == list(WIDTHS)
    for frame in frames:
        assert frame["wide"] == []
        assert frame["content"] <= frame["width"]
        assert frame["plots"] == frame["drawn"] >= 5
        assert frame["verdict"] == "DEGRADED"
        assert [title for title in frame["buttons"] if "hare" in title or "loud" in title] == []
    assert "Zoom" in frames[0]["buttons"]
    assert [line for line in log.splitlines() if "CONSOLE" in line and CONTROL not in line] == []
    assert requests_of_pages(net) == {CONTROL}
