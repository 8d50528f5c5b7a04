"""The page for those who do not see it, or use no mouse: names, headings, tables, contrast, what the keyboard reaches.

Rule: checks of the page's own HTML and style sheet, on runs that have every section; what a browser adds is not asked.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

VOID = {"meta", "link", "br", "img", "input", "hr"}
LANDMARKS = ("header", "main", "footer")
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
INKS = ("text", "muted", "accent")
GROUNDS = ("ground", "surface", "faint")
SIGNALS = ("good", "warn", "bad", "idle")  # each is --tone somewhere
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3, for text of any size


class Element:
    """An element of the page, with what is in it."""

    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children, self.texts = [], []

    def all(self, *tags):
        """Elements within, in the order of the page; of any kind where none is named."""
        for child in self.children:
            if not tags or child.tag in tags:
                yield child
            yield from child.all(*tags)

    @property
    def text(self):
        return " ".join([*self.texts, *(child.text for child in self.children)]).strip()

    def __getitem__(self, name):
        return self.attributes.get(name) or ""


class Page(HTMLParser):
    """The tree of a page; complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.root = self.at = Element("", (), None)
        self.feed(text)
        assert self.at is self.root, f"{self.at.tag} is not closed"
        self.everything = list(self.root.all())

    def handle_starttag(self, tag, attributes):
        element = Element(tag, attributes, self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_endtag(self, tag):
        assert tag == self.at.tag, f"</{tag}> where <{self.at.tag}> is open"
        self.at = self.at.parent

    def handle_data(self, text):
        self.at.texts.append(text)


@pytest.fixture(scope="module", params=["plain", "everything"])
def page(request, synthetic, everything, tmp_path_factory):
    """A run of one kind of traffic with errors, drops and objectives; and a dry run that has every section."""
    from tailgauge_analysis.report.report import make

    if request.param == "everything":
        return Page(everything.read_text())
    out = tmp_path_factory.mktemp("page")
    ended = {**dict.fromkeys(range(300, 320), "rate_limited"), 350: "client_drop"}
    error = {"status": 429, "error_type": "rate_limit_error", "error_body": "slow down"}
    slo = {"ttft_p99": "ttft_sched p99 < 1000ms"}
    return Page(
        make(
            [synthetic.write(out / "run", n=600, ended=ended, error=error, slo=slo)], out
        ).html.read_text()
    )


@pytest.fixture
def body(page):
    (found,) = page.root.all("body")
    return found


def named(page, element):
    """The name that a reader hears, where the page gives one."""
    by = {e["id"]: e.text for e in page.everything if e["id"]}
    caption = next((c.text for c in element.children if c.tag in {"caption", "summary"}), "")
    return element["aria-label"] or by.get(element["aria-labelledby"], "") or caption


@pytest.mark.slow
def test_the_pages_are_of_one_plain_run_and_of_one_with_every_section(page):
    ids = {e["id"] for e in page.everything}

    assert {"objectives", "requests", "latency", "errors", "measurement", "environment"} <= ids
    assert len(ids & {"hedging", "cache", "fan-out"}) in {0, 3}


@pytest.mark.slow
def test_it_has_a_language_a_title_and_may_be_enlarged(page):
    (html,), (title,) = page.root.all("html"), page.root.all("title")
    (viewport,) = [m["content"] for m in page.root.all("meta") if m["name"] == "viewport"]

    assert html["lang"] == "en"
    assert len(title.text) > 10
    assert "scalable" not in viewport
    assert "maximum" not in viewport


@pytest.mark.slow("everything")
def test_everything_is_within_a_landmark_and_the_first_stop_leads_to_the_numbers(page, body):
    shown = [e for e in body.children if e.tag not in {"script", "noscript"}]
    skip, *landmarks = shown

    assert [e.tag for e in landmarks] == list(LANDMARKS)
    assert skip.tag == "a"
    assert skip["href"].removeprefix("#") in {e["id"] for e in page.everything}
    assert all(named(page, section) for section in body.all("section"))


def test_headings_are_in_order(body):
    headings = list(body.all(*HEADINGS))
    levels = [int(h.tag[1]) for h in headings]

    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert all(h.text for h in headings)


def test_references_between_elements_hold(page):
    ids = [e["id"] for e in page.everything if e["id"]]
    asked = [name for e in page.everything for name in e["aria-labelledby"].split()]

    assert sorted(ids) == sorted(set(ids))
    assert set(asked) <= set(ids)


def test_every_table_has_a_name_and_header_cells_that_say_of_what(page, body):
    tables = list(body.all("table"))

    assert len(tables) >= 6
    for table in tables:
        name, header = named(page, table), list(next(table.all("thead")).all("th", "td"))
        assert name
        assert {h["scope"] for h in header} == {"col"}, name
        assert all(h.text for h in header), name
        for row in next(table.all("tbody")).all("tr"):
            first, *rest = row.children
            assert (first.tag, first["scope"]) == ("th", "row"), name
            assert {cell.tag for cell in rest} <= {"td"}, name
            assert sum(int(cell["colspan"] or 1) for cell in row.children) == len(header), name


def test_every_figure_says_what_it_shows(page, body):
    figures = list(body.all("figure"))

    assert len(figures) >= 5
    for figure in figures:
        (plot,) = [e for e in figure.all("div") if e["class"] == "plot"]
        assert plot["role"] == "group", "an image would hide the buttons that Plotly puts into it"
        assert len(plot["aria-label"]) > 40
        assert named(page, figure)
        assert next(figure.all("figcaption")).text


def test_the_keyboard_reaches_what_scrolls_or_opens_in_the_order_of_the_page(page, body):
    assert {e["tabindex"] for e in page.everything} == {"", "0"}
    stops = [e for e in page.everything if e["tabindex"]]
    assert all(e["role"] == "region" and named(page, e) for e in stops)
    scrolls = [
        e
        for e in page.everything
        if "scroll" in e["class"].split() or (e.tag == "pre" and e["class"] != "command")
    ]
    assert scrolls
    assert all(e["tabindex"] == "0" for e in scrolls)
    for details in body.all("details"):
        assert details.children[0].tag == "summary"
        assert named(page, details)
    assert not [
        e for e in page.everything if e.tag not in {"summary", "a", "button"} and e["onclick"]
    ]


def test_nothing_that_is_hidden_from_a_reader_can_be_reached_or_is_shown_by_looks_alone(page):
    for hidden in (e for e in page.everything if e["aria-hidden"] == "true"):
        assert not any(e["tabindex"] or e.tag in {"a", "button", "summary"} for e in hidden.all())
        if hidden.text:
            after = hidden.parent.children[hidden.parent.children.index(hidden) + 1]
            assert after["class"] == "unseen"
            assert after.text
    assert all(e.text for e in page.everything if "tag" in e["class"].split())


def colours(css):
    """The style sheet's colours by scheme: light, and what dark replaces."""
    light, dark = (
        dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )  # fmt: skip
    return {"light": light, "dark": {**light, **dark}}


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_as_defined():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_every_ground_it_may_stand_on(page, scheme):
    (style,) = page.root.all("style")
    of = colours(style.text)[scheme]
    pairs = [(ink, ground) for ink in INKS for ground in GROUNDS]
    pairs += [(ink, "surface") for ink in SIGNALS] + [
        ("on-band", f"band-{signal}") for signal in SIGNALS
    ]

    assert {pair: contrast(of[pair[0]], of[pair[1]]) for pair in pairs if contrast(of[pair[0]], of[pair[1]]) < LEAST_CONTRAST} == {}  # fmt: skip
    used = set(re.findall(r"(?<![-\w])color:\s*([^;}]+)", style.text))
    assert used == {f"var(--{name})" for name in (*INKS, "warn", "tone", "on-band")}, (
        "no colour that was not looked at"
    )
