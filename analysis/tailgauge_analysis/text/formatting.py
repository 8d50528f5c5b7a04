"""Numbers and untrusted text as strings, the same for the page, Markdown and the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from tailgauge import sanitize

plain = sanitize.plain  # text of others, made harmless


def ms(value: float | None) -> str:
    """Milliseconds to three figures or so: 0.042, 4.21, 42.1, 421, 4,210."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    decimals = 3
    if size >= 99.95 or size == 0:
        decimals = 0
    elif size >= 9.995:
        decimals = 1
    elif size >= 0.0995:
        decimals = 2
    return f"{value:,.{decimals}f}"


def ms_or_failed(value: float | None) -> str:
    """As `ms`; a quantile that falls on requests without answer is infinite."""
    if value is not None and math.isinf(value):
        return "failed"
    return ms(value)


def figures(value: float) -> str:
    """Return a rate, a cost: three figures, and thousands marks."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """Return a whole number with thousands marks."""
    if value is None:
        return "–"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share in per cent: 0%, <0.001%, 0.012%, 4.2%, 99.98%, >99.999%; 0% and 100% are exact."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{_decimals(value)}%}"
    if value in {0.0, 1.0} or abs(float(text[:-1])) not in {0.0, 100.0}:
        return text
    return _nearest_share(value)


def _nearest_share(value: float) -> str:
    """Return the text of a share that rounds to none or all, and is neither."""
    if value > 1:
        return ">100%"
    if value > 0.5:
        return ">99.999%"
    if value > 0:
        return "<0.001%"
    if value < -0.5:
        return "<-99.999%"
    return ">-0.001%"


def share_range(low: float | None, high: float | None) -> str:
    """Return an interval of shares: both ends with the decimals of the finer one, more where different ends would read the same;
    each with its own where one is much finer.
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"{share(low)} – {share(high)}"
    low, high = min(low, high), max(low, high)
    fewest_decimals, most_decimals = sorted((_decimals(low), _decimals(high)))
    if fewest_decimals and most_decimals - fewest_decimals > 1:
        return f"{_end(low)} – {_end(high)}"
    for decimals in range(most_decimals, 12):
        ends = f"{low:.{decimals}%}", f"{high:.{decimals}%}"
        if ends[0] != ends[1]:
            return " – ".join(ends)
    return f"{_end(low)} – {_end(high)}"


def _end(value: float) -> str:
    """Return an end of an interval: with as many decimals as tell it from none and all."""
    for decimals in range(_decimals(value), 12):
        text = f"{value:.{decimals}%}"
        if value in {0.0, 1.0} or float(text[:-1]) not in {0.0, 100.0}:
            return text
    return share(value)


def _decimals(value: float) -> int:
    distance = min(abs(value), abs(1 - value)) * 100  # more than all is possible: of a rate, say
    if distance == 0:
        return 0
    if distance >= 0.995:
        return 1
    if distance >= 0.0995:
        return 2
    return 3


def clock(seconds: float) -> str:
    """Return a point of the run clock: 00:12, 1:02:03."""
    hours, rest = divmod(max(0, math.floor(seconds)), 3600)
    text = f"{rest // 60:02d}:{rest % 60:02d}"
    if hours:
        return f"{hours}:{text}"
    return text


def clock_range(from_s: float, to_s: float | None) -> str:
    """`00:17 to 00:21`, `00:17` of what is shorter than the clock shows, `00:17 to the end`."""
    begin = clock(from_s)
    end = "the end"
    if to_s is not None:
        end = clock(to_s)
    if begin == end:
        return begin
    return f"{begin} to {end}"


def between(from_s: float, to_s: float) -> str:
    """`from 00:17 to 00:21`, or `at 00:17` of what is shorter than the clock shows."""
    begin = clock(from_s)
    end = clock(to_s)
    if begin == end:
        return f"at {begin}"
    return f"from {begin} to {end}"


def plural(n: int, word: str) -> str:
    """`1 row`, `2 rows`."""
    if n == 1:
        return f"{n:,} {word}"
    return f"{n:,} {word}s"


def bin_name(width_s: int) -> str:
    """`second`, `5 seconds`."""
    if width_s == 1:
        return "second"
    return plural(width_s, "second")


def listed(names: Iterable[str], limit: int | None = 10) -> str:
    """Return `0, 1 and 2`; `0, 1 and 7 others` where there are more than the limit; None: all."""
    every = list(names)
    leading = every[:-1]
    if limit is not None and len(every) > limit:
        leading = every[: limit - 1]
    ending = f"{len(every) - len(leading)} others"
    if len(leading) == len(every) - 1:
        ending = every[-1]
    if not leading:
        return ending
    return f"{', '.join(leading)} and {ending}"


def sentence(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def within_sentence(title: str) -> str:
    """`chunk gap` of `Chunk gap`; an abbreviation such as TTFT stays."""
    if not title[1:2].islower():
        return title
    return title[:1].lower() + title[1:]


def percentile(p: float) -> str:
    """`p99`, `p99.9`."""
    return f"p{p * 100:.10g}"


# --- tables -------------------------------------------------------------------------------------------------------

BETWEEN = "  "


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    screen_columns: int,
    prose: Sequence[int] = (),
) -> list[str]:
    """Return the lines of a table: as many of the first columns as fit beside each other on the screen, at least one.

    `prose`: columns of words, which stand left as the first one does; numbers stand right. The header wraps between words.
    """
    cells = [list(map(plain, row)) for row in rows]
    widths = []
    # A column is as wide as its widest cell or word of its title.
    for title, *column in zip(header, *cells, strict=True):
        parts = title.split()
        widths.append(max(map(len, (*parts, *column))))
    column_count = _columns_within(screen_columns, widths)
    titles = zip_longest(*map(textwrap.wrap, header[:column_count], widths), fillvalue="")
    left_aligned = {0, *prose}

    def line(row: Sequence[str]) -> str:
        """Return the cells of a row beside each other, without those of columns that do not fit."""
        texts = []
        for i, (cell, width) in enumerate(zip(row[:column_count], widths, strict=False)):
            align = cell.ljust if i in left_aligned else cell.rjust
            texts.append(align(width))
        return BETWEEN.join(texts).rstrip()

    return [line(row) for row in (*titles, *cells)]


def _columns_within(columns: int, widths: Sequence[int]) -> int:
    """Return how many of the first columns fit beside each other, at least one."""
    column_count = 0
    end = -len(BETWEEN)
    for width in widths:
        end += len(BETWEEN) + width
        if end > columns:
            break
        column_count += 1
    return max(1, column_count)
