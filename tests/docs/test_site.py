"""The site of the docs works from a file: search, coloured code, copies of blocks, a notebook's outputs, no request outside.

The short form builds it without example reports and without running the notebook; `make verify` builds the whole.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

BUILD = """
import json, sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
build(load_config(sys.argv[1], site_dir=sys.argv[2], strict=True, extra=json.loads(sys.argv[3])))
"""
SEARCH = """new Promise((done) => {
  const field = document.querySelector(".site-search");
  field.value = %s;
  field.dispatchEvent(new Event("input"));
  const look = () => document.querySelector(".site-results").childElementCount
    ? done([...document.querySelectorAll(".site-results a")].map((link) => link.href)) : setTimeout(look, 20);
  look();
})"""


@pytest.fixture(scope="module")
def site(checkout: Path, command, full_size, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    extra = {"notebook": full_size, "examples": ["streaming"] if full_size else []}
    done = command(["python", "-c", BUILD, checkout / "mkdocs.yml", folder, json.dumps(extra)], 120)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_index_of_the_search(site, checkout):
    text = (site / "search_index.js").read_text(encoding="utf-8")
    parts = json.loads(text.removeprefix("searchIndex(").rstrip().removesuffix(");"))
    listed = re.findall(
        r"([\w/-]+)\.md$", (checkout / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
    )

    pages = {url.partition(".html")[0].replace("/index", "/README") for _, url, _, _ in parts}
    assert pages == set(listed)
    assert all(title and heading for title, _, heading, _ in parts)


def test_no_page_names_a_script_or_a_style_outside(site):
    loaded = {
        address
        for page in site.rglob("*.html")
        if page.parent.name != "examples"
        for address in re.findall(
            r'<(?:script|link|img)\b[^>]* (?:src|href)="([^"]+)"', page.read_text("utf-8")
        )
    }

    assert [address for address in loaded if "://" in address] == []
    assert any(address.endswith("site.js") for address in loaded)


@pytest.mark.slow
def test_it_works_from_a_file_in_a_browser(site, browser, tmp_path):
    with browser.Browser(tmp_path) as page:
        page.open((site / "index.html").as_uri(), 1440)
        assert page.run("document.querySelector('img[src$=\"report.png\"]').naturalWidth") > 0
        results = {
            query: page.run(SEARCH % json.dumps(query))
            for query in ("rate limit headroom", "traffic.NAME.hedge", "run token", "xyzzyx")
        }
        assert results["xyzzyx"] == []
        assert any(
            "experiments.html#headroom" in link for link in results["rate limit headroom"][:3]
        )
        assert results["traffic.NAME.hedge"][0].endswith("scenarios.html#trafficnamehedge")
        assert any("many-machines.html#the-run-token" in link for link in results["run token"][:3])

        page.open(results["run token"][0], 390)
        assert page.run("document.documentElement.scrollWidth") <= 390
        page.open((site / "tutorials" / "gate-in-ci.html").as_uri(), 1440)
        colours = page.run(
            "new Set([...document.querySelectorAll('.codehilite span')].map((s) => getComputedStyle(s).color)).size"
        )
        assert colours >= 3
        copied = page.run("""(async () => {
          let text = "";
          Object.defineProperty(navigator, "clipboard", {value: {writeText: async (given) => { text = given; }}});
          document.querySelectorAll(".site-copy")[1].click();
          await new Promise((done) => setTimeout(done, 10));
          return text;
        })()""")
        assert copied == "tailgauge run chat.toml --dry-run\n"
        assert page.requests() == set()
        assert page.complaints() == []


def test_the_notebook_is_a_page_with_its_outputs(site, full_size):
    text = (site / "tutorials" / "notebook.html").read_text(encoding="utf-8")

    assert "A run in a notebook" in text
    assert "notebook.html" in (site / "index.html").read_text(encoding="utf-8")
    assert ("(&#x27;VALID&#x27;, " in text) is full_size
    assert ("examples/streaming.html" in (site / "index.html").read_text("utf-8")) is full_size
    assert (site / "examples" / "streaming.html").exists() is full_size


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("print('<b>')\n2 + 1", "<pre>&lt;b&gt;\n</pre><pre>3</pre>"),
        ("x = 3", ""),
        ("None", ""),
        (
            "class Frame:\n    def _repr_html_(self): return '<table>\\n</table>'\nFrame()",
            "<table></table>",
        ),
        ("import os\nprint(os.getcwd() + '/runs')", "<pre>runs\n</pre>"),
    ],
)
def test_a_cell_shows_what_it_prints_and_its_last_value(cell, shown, checkout):
    notebook = runpy.run_path(str(checkout / "docs" / "notebook.py"))

    assert notebook["execute"](cell, {"__name__": "__main__"}) == shown


def test_a_cell_that_fails_stops_the_build(checkout):
    notebook = runpy.run_path(str(checkout / "docs" / "notebook.py"))

    with pytest.raises(ZeroDivisionError):
        notebook["execute"]("x = 1\n1 / 0", {})
