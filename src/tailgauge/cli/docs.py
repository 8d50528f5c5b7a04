"""`tailgauge docs`: the pages of the documentation that come with the package, listed, printed and searched."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tailgauge.errors import UsageError
from tailgauge.live import screen
from tailgauge.sanitize import plain
from tailgauge.suggestions import near_names

# Folders with their weights in a search.
FOLDERS = {
    "tutorials": 1.0,
    "how-to": 1.0,
    "reference": 1.0,
    "explanation": 0.5,
}
PAGES = 6  # shown of those that match
LINES = 3  # shown of a page
HEADING = 10.0  # times a line of text: what a match in a heading counts
SHORT_PAGE = 50  # lines; of shorter pages every match counts alike
NEAR_TERMS = 5
# Words of other tools, and what the pages call the same.
SYNONYMS = {
    "slo": "objective",
    "sla": "objective",
    "goodput": "objective",
    "qps": "rate",
    "rps": "rate",
    "vus": "concurrency",
    "users": "concurrency",
    "percentile": "quantile",
    "threshold": "objective",
}


@click.command("docs")
@click.argument("terms", nargs=-1, metavar="[PAGE | WORD...]")
def docs(terms: tuple[str, ...]) -> None:
    """List, print or search the documentation.

    Without an argument, list the pages. With the name of a PAGE, print that page. With one or more search words (WORD...),
    list the lines that contain all these words.
    """
    from tailgauge.scenario.packaged import packaged

    root = packaged("docs")
    pages = {path.stem: path for folder in FOLDERS for path in sorted((root / folder).glob("*.md"))}
    if not terms:
        screen.show(f"{root}\n" + "\n".join(_list(pages)))
    elif len(terms) == 1 and terms[0] in pages:
        screen.show(pages[terms[0]].read_text(encoding="utf-8"), nl=False)
    else:
        if terms[0] == "search":
            terms = terms[1:] or terms
        if len(terms) == 1:
            _note_nearest_page(terms[0], pages)
        screen.show("\n".join(_search(terms, pages)))


def _note_nearest_page(term: str, pages: Mapping[str, Path]) -> None:
    """Print on standard error which page may have been meant."""
    near = near_names(term, pages, cutoff=0.8)
    if near:
        screen.show(
            f"docs: no page {term[:80]}; did you mean `tailgauge docs {near[0]}`?", err=True
        )


def _list(pages: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each page, under the name of its folder: its name and its title."""
    width = max(map(len, pages), default=0)
    for folder in FOLDERS:
        yield from ("", folder)
        for name, path in pages.items():
            if path.parent.name == folder:
                title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
                yield f"  {name:<{width}}  {title}"


@dataclass(frozen=True, slots=True)
class PageMatch:
    """The lines of a page that match, headings first. `weight`: how much of the page is about the words."""

    name: str
    title: str
    lines: Sequence[str]
    weight: float


def _search(terms: Sequence[str], pages: Mapping[str, Path]) -> Iterator[str]:
    """Yield the output of a search: the pages with all words in one line, the best first, with excerpts; UsageError if
    none has.

    `pages`: files by name. Whole words are looked for first, and their beginnings only where no page has them all.
    """
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items()}
    # An end of the pattern: first of whole words, then of their beginnings.
    for end in (r"(?!\w)", r"\w*"):
        patterns = [_pattern(term, end) for term in terms]
        matches = []
        for name, path in pages.items():
            match = _match(path, texts[name], patterns)
            if match is not None:
                matches.append(match)
        if matches:
            break
    else:
        raise UsageError(_nothing_found(terms, texts))
    matches.sort(key=lambda match: -match.weight)
    for match in matches[:PAGES]:
        yield f"{match.name}  {match.title}"
        yield from (f"  {_excerpt(line, patterns[0])}" for line in match.lines[:LINES])
        yield ""
    omitted = [match.name for match in matches[PAGES:]]
    if omitted:
        text = f"also in {', '.join(omitted)}"
        yield textwrap.fill(text, screen.columns(), subsequent_indent="  ", break_on_hyphens=False)
    yield "print a page with: tailgauge docs " + matches[0].name


def _pattern(term: str, end: str) -> re.Pattern[str]:
    """Find a word, or what the pages call the same."""
    alternatives = [f"{re.escape(term)}{end}"]
    if term.lower() in SYNONYMS:
        alternatives.append(rf"{SYNONYMS[term.lower()]}\w*")
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})", re.IGNORECASE)


def _match(path: Path, text: str, patterns: Sequence[re.Pattern[str]]) -> PageMatch | None:
    """Return the lines of a page that have all words; None if none has, and its name and title have not.

    `weight`: how many lines match, a heading and the title HEADING times as much, relative to the page's length and by
    its folder. Headings come first, code last.
    """
    headings: list[str] = []
    prose: list[str] = []
    code: list[str] = []
    title, *lines = text.splitlines()
    is_code = False
    for line in lines:
        is_fence = line.startswith("```")
        is_code ^= is_fence
        if is_fence or not all(pattern.search(line) for pattern in patterns):
            continue
        if is_code:
            code.append(line)
        elif line.startswith("#"):
            headings.append(line)
        else:
            prose.append(line)
    in_title = all(pattern.search(f"{path.stem} {title}") for pattern in patterns)
    matches = [*headings, *prose, *code]
    if not matches and not in_title:
        return None
    weight = (len(matches) + HEADING * (len(headings) + in_title)) / (len(lines) + SHORT_PAGE)
    weight *= FOLDERS[path.parent.name]
    return PageMatch(path.stem, title.removeprefix("# "), matches, weight)


def _excerpt(line: str, pattern: re.Pattern[str]) -> str:
    """Return the part of a line around its first match, as wide as the terminal allows; the whole line if it fits."""
    width = screen.columns() - 2
    text = plain(" ".join(line.strip("|#-* ").split()), 5000)
    if len(text) <= width:
        return text
    # A third of the width stands before the match, and the part begins and ends with whole words.
    match = pattern.search(text)
    start = 0
    if match is not None:
        start = min(match.start() - width // 3, len(text) - width + 4)
    head = ""
    if start > 0:
        start = text.find(" ", start) + 1
        head = "... "
    start = max(0, start)
    text_width = width - len(head)
    if len(text) - start <= text_width:
        return head + text[start:]
    body = text[start : start + text_width - 4]
    return f"{head}{body.rpartition(' ')[0]} ..."


def _nothing_found(terms: Sequence[str], texts: Mapping[str, str]) -> str:
    """Name the words of the pages, and the pages, that are spelled nearly so."""
    vocabulary = set(texts)
    for text in texts.values():
        vocabulary.update(word.lower() for word in re.findall(r"[A-Za-z_]{3,}", text))
    near: list[str] = []
    for term in terms:
        near += near_names(term, sorted(vocabulary), NEAR_TERMS, cutoff=0.6)
    problem = f"docs: nothing found for {plain(' '.join(terms), 60)!r}"
    if near:
        return f"{problem}; similar words: {', '.join(near)}"
    return f"{problem}; `tailgauge docs` lists the pages"
