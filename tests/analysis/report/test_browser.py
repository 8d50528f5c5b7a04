"""The page in a real browser, wide and narrow, light and dark, with no network; and axe-core's opinion of it.

Rule: one browser for all. It first sees a page with a fault of each kind, so that silence means something.
"""

import pytest
from axe_core_python.base import AXE_SCRIPT

pytestmark = [pytest.mark.timed, pytest.mark.slow]

WIDTHS = (1440, 390)
LOOKS = [("everything", width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
LOOKS += [("hostile", 390, "light")]
# The result, the measurement, and whether it was a dry run.
OUTCOMES = {
    "hostile": ("INCONCLUSIVE", "DEGRADED", False),
    "everything": ("DRY RUN", "VALID", False),
}
CONTROL = "http://control.invalid/"
FAULTY = f"""<!doctype html><title>faults</title><body style="width:2000px"><main><img src="data:,"><p style="color:#eee">pale</p>
<script>fetch("{CONTROL}").catch(() => 0); console.error("planted")</script>"""

LAYOUT = """(() => {
  const root = document.documentElement, all = (query) => [...document.querySelectorAll(query)];
  all("details").forEach((one) => { one.open = true; });
  return {
    content: root.scrollWidth, dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: getComputedStyle(document.body).backgroundColor,
    plots: all(".plot").length, drawn: all(".plot .main-svg:first-child").length,
    wide: all("body *").filter((e) => !e.closest(".scroll, .plot, .unseen, .skip")
      && e.getBoundingClientRect().right > root.clientWidth + 1).map((e) => e.tagName + "." + e.className),
    buttons: all(".modebar-btn").map((e) => e.dataset.title),
    outcome: document.querySelector("h1 .outcome")?.textContent, measured: document.querySelector(".measurement summary b")?.textContent,
    dry: document.querySelector(".about")?.textContent.includes("dry run"),
  };
})()"""
FINDINGS = """axe.run(document, {{ resultTypes: ["violations"], {only} }}).then((found) => found.violations.map((rule) => ({{
  rule: rule.id, impact: rule.impact, where: rule.nodes.slice(0, 5).map((node) => node.html.slice(0, 300)),
}})))"""
EVIL = """</script><script>fetch("http://evil.invalid/")</script><img src=x onerror="console.error('ran')">'\"><svg onload=alert(1)>"""
CONTRAST = 'runOnly: ["color-contrast"]'  # all that a change of colours can change


@pytest.fixture(scope="module")
def pages(synthetic, everything, tmp_path_factory):
    """Reports by the kind of run: `hostile` has names and bodies of great length, and scripts in all that a target wrote."""
    from tailgauge_analysis.report.report import make

    out = tmp_path_factory.mktemp("pages")
    ended = {**dict.fromkeys(range(300, 320), "rate_limited"), 350: "client_drop"}
    error = {"status": 429, "error_type": EVIL[:100], "error_body": EVIL + "x" * 2000}
    slo = {"ttft_p99": "ttft_sched p99 < 1000ms"}
    stalled = {"loop_lag_max_ns": [0, 0, 0, 80_000_000, 0], "chunk_intervals": range(26)}
    run = synthetic.write(
        out / "run",
        model=EVIL,
        n=600,
        ended=ended,
        error=error,
        slo=slo,
        cpu_share=0.95,
        run_id="R" * 100,
        health=stalled,
    )
    return {"hostile": make([run], out).html, "everything": everything}


@pytest.fixture(scope="module")
def seen(browser, pages, tmp_path_factory):
    """What the browser says of each page, by run, width and scheme; and of all: requests and complaints."""
    folder = tmp_path_factory.mktemp("browser")
    faulty = folder / "faulty.html"
    faulty.write_text(FAULTY)
    found = {}
    with browser.Browser(folder / "profile") as chromium:

        def look(only=""):
            return {**chromium.run(LAYOUT), "findings": chromium.run(FINDINGS.format(only=only))}

        for run, path in {"faulty": faulty, **pages}.items():
            for width in WIDTHS if run == "everything" else (390,):
                chromium.open(path.as_uri(), width)
                chromium.run(f"{AXE_SCRIPT}; 0")
                found[run, width, "light"] = look()
                if run == "everything":
                    chromium.scheme("dark")
                    found[run, width, "dark"] = look(CONTRAST)
        return found, chromium.requests(), chromium.complaints()


@pytest.mark.parametrize(("run", "width", "scheme"), LOOKS)
def test_the_page_fits_is_drawn_and_axe_finds_no_fault(seen, run, width, scheme):
    page = seen[0][run, width, scheme]

    assert page["wide"] == []
    assert page["content"] <= width
    assert page["plots"] == page["drawn"] >= 5
    assert (page["outcome"], page["measured"], page["dry"]) == OUTCOMES[run]
    assert page["dark"] == (scheme == "dark")
    assert [title for title in page["buttons"] if "hare" in title or "loud" in title] == []
    assert ("Zoom" in page["buttons"]) == (width > 760)
    assert page["findings"] == []


def test_dark_is_another_ground(seen):
    assert len({seen[0]["everything", 390, scheme]["ground"] for scheme in ("light", "dark")}) == 2


def test_no_page_asks_for_anything_or_complains(seen):
    assert seen[1] == {CONTROL}
    assert {entry.get("entry", entry).get("url") or entry["type"] for entry in seen[2]} <= {
        CONTROL,
        "error",
    }
    assert len(seen[2]) == 2, "the planted error, and the planted request that failed"


def test_planted_faults_are_seen(seen):
    faulty = seen[0]["faulty", 390, "light"]

    assert faulty["content"] > 390
    assert {"image-alt", "color-contrast", "html-has-lang"} <= {
        one["rule"] for one in faulty["findings"]
    }
