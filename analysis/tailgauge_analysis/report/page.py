"""The page: one HTML file that opens anywhere, offline, without any request.

Everything shown passes through Jinja's autoescape, but for our style sheet, plotly.js and the figures' JSON, in which `<`
cannot occur. The page's Content-Security-Policy also forbids every request, and every script but these two.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tailgauge.command_line import options_of, with_command
from tailgauge_analysis.report.plot import library, plot
from tailgauge_analysis.text.picture import Picture
from tailgauge_analysis.text.section import SIGNS, TONES, Cell, Report, Table

TEMPLATES = Path(__file__).parent / "templates"
ICONS = {"good": "%231a7f4b", "bad": "%23c02b2b", "warn": "%23b27700", "idle": "%236b7280"}
COLUMN = 600  # pixels of one of two columns
LETTER = 7.2
SMALL = 6.4
PADDING = 14
NAME = 150
PROSE = 230
STICKY = 132  # at most, of the names that stay in view while a narrow table scrolls
NAME_LETTERS = 11  # a longer name may wrap
LONG = 28  # letters from which a cell of words wraps
VERY_LONG = 160  # and from which it needs a wide column, else its row is mostly empty
_NUMBER = r"[+\-−]?\d(?:[\d,.:]{0,20}\d)?[%x]?"
WHOLE = re.compile(
    rf"((?<![\w.-])(?:[<>≤≥±=]{{1,2}} )?{_NUMBER}(?:(?: – |-)(?:{_NUMBER}|\?)){{0,2}}"
    r"(?: (?:ms|s|min|h|kB|MB|GB|MiB|GiB|UTC)\b)?)"
)


@cache
def _environment() -> Environment:
    """Return the templates, compiled once, with what they may call."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        tone=lambda outcome: TONES.get(outcome, "idle"),
        in_script=_in_script,
        with_command=with_command,
        options=options_of,
        whole=keep_whole,
        prose_class=prose_class,
        sticky_width=sticky_width,
    )
    environment.tests["wide"] = is_wide
    return environment


def html(report: Report) -> str:
    """Return the whole page."""
    tone = TONES.get(report.state, "idle")
    sources = ("", "")
    if report.figures:
        sources = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            tone=tone,
            signs=SIGNS,
            icon=f"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'%3E%3Ccircle cx='4.5' cy='4.5' r='4' fill='{ICONS[tone]}'/%3E%3C/svg%3E",
            style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
            plotly_js=Markup(sources[0]),  # noqa: S704 - the library's own file
            script=Markup(sources[1]),  # noqa: S704 - our own file
            script_hashes=Markup(" ".join(map(_hash, sources)) if sources[0] else "'none'"),  # noqa: S704 - base64
        )
    )


def _hash(script: str) -> str:
    """Return the source expression of a Content-Security-Policy that lets this script run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _in_script(figure: Picture) -> Markup:
    """JSON that cannot end the script element it stands in; it is ASCII."""
    return Markup(plot(figure).replace("<", "\\u003c"))  # noqa: S704


def keep_whole(text: str) -> Markup:
    """Return a text whose lines break neither within a number, a date or an interval nor before its unit."""
    if "--" in text:  # a command to copy
        return escape(text)
    parts = []
    for number, part in enumerate(WHOLE.split(text)):
        is_one_number = number % 2 == 1
        can_break = " " in part or "-" in part
        if is_one_number and can_break:
            parts.append(Markup("<span class=whole>{}</span>").format(part))
        else:
            parts.append(escape(part))
    return Markup().join(parts)


def sticky_width(table: Table) -> int:
    """Return the least width of the first column in pixels: its longest word is whole, and few names need many lines."""
    names = [table.header[0], *(_text(row[0]) for row in table.rows)]
    longest_name = max(map(len, names))
    longest_word = max(map(len, " ".join(names).split()), default=0)
    letters = max(longest_word, min(longest_name, NAME_LETTERS)) + 2
    return min(STICKY, round(letters * LETTER))


def prose_class(cell: Cell) -> str:
    """Return the class of a cell of words, by its length."""
    length = len(_text(cell))
    if length > VERY_LONG:
        return "prose very-long"
    return "prose long" if length > LONG else "prose"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def is_wide(table: Table) -> bool:
    """Return whether a table needs the whole width of the page."""
    return _width(table) > COLUMN


def _width(table: Table) -> float:
    """About how wide it must be; the names of the rows wrap, as prose does."""
    widths = []
    for i, title in enumerate(table.header):
        widest = max((_pixels(row[i]) for row in table.rows), default=0.0)
        if i in table.prose:
            widths.append(min(PROSE, widest))
        elif i == 0:
            widths.append(min(NAME, widest))
        else:
            widths.append(max(widest, len(title) * SMALL))
    return sum(widths) + PADDING * len(widths)


def _pixels(cell: Cell) -> float:
    if isinstance(cell, str):
        return len(cell) * LETTER
    return max(len(cell.text) * LETTER, len(cell.interval) * SMALL)
