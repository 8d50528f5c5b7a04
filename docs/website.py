"""What the site of the docs has beside its pages: search, coloured code, a notebook with its outputs, example reports.

mkdocs calls the functions named `on_...` (see `hooks` in mkdocs.yml). Everything works from a file: no request leaves it.
"""

from __future__ import annotations

import functools
import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

DOCS = Path(__file__).parent
NOTEBOOK = "tutorials/notebook"
PLOTLY = "plotly.js"
LIBRARY = DOCS.parent / "analysis/tailgauge_analysis/report/plotly/plotly-cartesian.min.js"
HEADING = re.compile(r'<h[1-3] id="([^"]*)">(.*?)</h[1-3]>', re.DOTALL)
PERMALINK = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# Dry runs: the options of `tailgauge run`, and what their report shows.
EXAMPLES: dict[str, tuple[Sequence[str], str]] = {
    "streaming": ((), "Streamed chat: time to first token, pace of the tokens, and the measurement's own checks"),
    "cached": ((), "Prompt caching: what is read and written, what it saves, and why a call misses"),
    "fan_out": ((), "Five calls per request: the slowest leg, and what waiting for all of them costs"),
    "hedged": ((), "Hedged calls: copies sent, races won, and the tail with and without them"),
    "retry_storm": ((), "Rate limits and naive retries: 429s, amplification, and a FAIL"),
    "curve": ((), "A load curve: latency and throughput by rate, and the knee"),
    "headroom": ((), "Headroom: the sustainable rate, the limit that binds, and the growth that is left"),
}  # fmt: skip

Section = tuple[str, str, str, str]  # title of the page, address, heading, text
_sections: list[Section] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the style of the code, the notebook as a page, and the example reports."""
    _sections.clear()
    add = functools.partial(_add, files, config)
    add("pygments.css", HtmlFormatter(style="default").get_style_defs(".codehilite"))
    add(f"{NOTEBOOK}.md", _notebook(run=config.extra["notebook"]))
    add(PLOTLY, LIBRARY.read_bytes())
    names: list[str] = config.extra["examples"]
    with ThreadPoolExecutor(2) as pool:
        for name, report in zip(names, pool.map(_example, names), strict=True):
            add(f"examples/{name}.html", report)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead to the notebook's page, and from the front page to the example reports."""
    markdown = markdown.replace("notebook.ipynb)", "notebook.md)")
    if page.file.src_uri == "index.md" and config.extra["examples"]:
        names: list[str] = config.extra["examples"]
        lines = [f"- [{name}](examples/{name}.html): {EXAMPLES[name][1]}\n" for name in names]
        before, mark, after = markdown.partition("**From your tool**")
        markdown = f"{before}**Example reports**, from dry runs\n\n{''.join(lines)}\n{mark}{after}"
    return markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Keep the text of a page for the search."""
    _sections.extend(sections(str(page.title), page.url, content))
    return content


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index of the search, as a script: a page that is opened as a file cannot load another one."""
    index = json.dumps(_sections, ensure_ascii=False, separators=(",", ":"))
    Path(config.site_dir, "search_index.js").write_text(
        f"searchIndex({index});\n", encoding="utf-8"
    )


def sections(title: str, url: str, content: str) -> Iterator[Section]:
    """The parts of a page between its headings, as text."""
    headings = list(HEADING.finditer(content))
    ends = [*(heading.start() for heading in headings[1:]), len(content)]
    for heading, end in zip(headings, ends, strict=True):
        name = _text(PERMALINK.sub("", heading[2]))
        yield title, f"{url}#{heading[1]}", name, _text(content[heading.end() : end])


def _text(content: str) -> str:
    return " ".join(html.unescape(TAG.sub(" ", content)).split())


def _add(files: Files, config: MkDocsConfig, name: str, content: str | bytes) -> None:
    files.append(File.generated(config, name, content=content))


def _notebook(*, run: bool) -> str:
    """The notebook as Markdown, run in an empty folder of its own."""
    script = str(DOCS / "notebook.py")
    options = [] if run else ["--no-run"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, script, str(DOCS / f"{NOTEBOOK}.ipynb"), *options],
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return done.stdout


def _example(name: str) -> str:
    """The report of a dry run of a packaged scenario."""
    command = [
        str(Path(sys.executable).with_name("tailgauge")),
        "run",
        name,
        "--dry-run",
        "--seed=1",
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, *EXAMPLES[name][0], "--out", folder],
            check=False,
            capture_output=True,
            text=True,
        )
        reports = list(Path(folder).glob("reports/*/report.html"))
        if len(reports) != 1:
            raise RuntimeError(f"{' '.join(command)}: no report\n{done.stderr}")
        return reports[0].read_text(encoding="utf-8")
