"""What `tailgauge run` shows: the plan before its start, then a few lines that stay at the bottom of a terminal.

Without a terminal it prints one or two lines every few seconds. Log messages stand above the lines. No line is longer than
the terminal is wide: the second one is left out first, then the bar, then what is open, then what was sent; errors and 429s
stay. Width and colours of a terminal are in screen.py, results in the analysis.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TextIO

from click import style

from tailgauge.live.screen import columns
from tailgauge.master.objectives import MET, MISSED, LiveObjective
from tailgauge.master.progress import Progress
from tailgauge.plan.estimate import short_prefixes
from tailgauge.plan.guard import excesses_of_plan, given_keys
from tailgauge.plan.resolve import Settings
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.quantile_sketch import quantile
from tailgauge.sanitize import harmless, plain
from tailgauge.scenario.model import Stages
from tailgauge.schedule.settings import CLOSED, TASKS
from tailgauge.thresholds import VALID, fewest_for

PLAIN_EVERY_S = 5.0
RECENT_S = 10.0  # of which tokens/s are
# Columns: of a terminal that does not say how wide it is, and where there is no terminal.
WIDTH = 80
PLAIN_WIDTH = 1000  # of the display before it is folded
PLAIN_INDENT = "      "
NARROW = 60  # columns: below, there is one line
BAR = (6, 31)  # columns of the bar, fewest and most
FOLDED = 2  # lines of one message
MOST_MISSED = 3  # missed objectives that are named

Part = tuple[str, str]  # text and its colour


def announcement(settings: Settings, workers: int) -> list[str]:
    """Return the plan, and which limits will end the run before its end."""
    early = [f"{excess.text}: the run will end early" for excess in excesses_of_plan(settings)]
    return [*plan_lines(settings, workers), *early, *_about_max_requests(settings)]


def _about_max_requests(settings: Settings) -> Iterator[str]:
    """Yield a line on --max-requests where it probably ends the run: it is no number of requests to send."""
    limit = settings.scenario.guard.max_requests
    arrival = settings.scenario.arrival
    calls = settings.estimate.calls
    if (
        "guard.max_requests" not in given_keys(settings)
        or limit is None
        or arrival.process == TASKS
    ):
        return
    is_open_ended = arrival.process == CLOSED and not arrival.is_counted
    if is_open_ended or (calls is not None and calls > limit):
        text = "--max-requests is a safety limit and counts warm-up and preflight"
        yield from fold(f"{text}; to send {limit:,} requests: --requests {limit}", columns())


def plan_lines(settings: Settings, workers: int, *, dry_run: bool = False) -> list[str]:
    """Return the run in a line, and what it is expected to use, in lines of the terminal's width.

    The first one is `quickstart 2 workers simulated endpoint 50 requests/s for 30s`. Then the seed, what each objective
    needs, and prefixes that are too short for a cache. `dry_run`: nothing is sent.
    """
    scenario = settings.scenario
    is_simulated = scenario.target.url == SIMULATED
    target = "simulated endpoint"
    if not is_simulated:
        target = plain(scenario.target.url)
    load = scenario.arrival.load
    stages = scenario.stages
    if not stages.is_endless:
        load += f" for {span(round(stages.duration_s))}{_measured(stages)}"
    place = f"{workers} worker{'' if workers == 1 else 's'}  {target}"
    if dry_run:
        place = "dry run: nothing is sent"
    title = f"{scenario.name}  {place}  {load}"
    expected = settings.estimate.lines()
    if is_simulated:  # nobody pays for the simulated endpoint
        expected = expected[:1]
    lines = [title, *expected, *settings.objectives, *short_prefixes(scenario)]
    if scenario.arrival.process != TASKS:
        drawn = "arrivals and sizes" if scenario.arrival.is_open else "think times and sizes"
        again = f"seed {scenario.seed} draws the same {drawn} in every run; --seed N draws others"
        lines.insert(1 + len(expected), again)
    width = columns()
    return list(chain.from_iterable(fold(line, width) for line in lines))


def _measured(stages: Stages) -> str:
    """`, 13.5 s measured` of a run with a warm-up or a cool-down."""
    measured_s = stages.duration_s - stages.warmup - stages.cooldown_s
    if measured_s < stages.duration_s:
        return f", {round(measured_s, 1):g} s measured"
    return ""


def span(seconds: float) -> str:
    """`18s`, `2m30s`, `1h05m`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def lines(progress: Progress, tokens_per_s: float, phase: str, width: int) -> list[list[Part]]:
    """Return the display for a terminal of that width: lines of parts with their colours.

    Counts first, then figures, missed objectives, those that are not judged, and a verdict that is not VALID; a narrow
    terminal has the counts alone. `phase`: as `draining`, empty of the run itself. Without a terminal `width` is
    PLAIN_WIDTH, and the lines are folded later.
    """
    rows = [_counts(progress, phase, width)]
    if width < NARROW:
        return rows
    figures = _figures(progress, tokens_per_s, width)
    if figures:
        rows.append(figures)
    misses = [objective for objective in progress.objectives if objective.state == MISSED]
    misses = misses[:MOST_MISSED]
    texts = [f"missed so far: {objective}" for objective in misses]
    if misses and width >= PLAIN_WIDTH:  # their values are too long for a line
        labels = ", ".join(objective.label for objective in misses)
        texts = [f"missed so far: {labels}"]
    for text in texts:
        rows += _coloured_lines(text, width, "red")
    rows += _coloured_lines(_not_judged(progress.objectives), width, "")
    rows += _coloured_lines(_verdict(progress), width, "yellow")
    return rows


def _coloured_lines(text: str, width: int, colour: str) -> list[list[Part]]:
    return [[(line, colour)] for line in _folded(text, width)]


def _counts(progress: Progress, phase: str, width: int) -> list[Part]:
    """Return the first line: time, bar, what was sent and is open, errors, 429s.

    The bar is left out where there are no columns for it, then what is open, then what was sent; errors and 429s stay.
    """
    passed_s = min(max(0.0, progress.passed_s), progress.duration_s)
    begin = f"{span(passed_s):>4} "
    end = f" {span(progress.duration_s)}"
    if progress.planned is not None:
        end = f" {progress.planned:,} requests"
    parts: list[Part] = []
    if phase:
        parts.append((f"  {phase}", "cyan"))
    parts += [
        (f"  {progress.sent:,} sent", ""),
        (f"  {progress.in_flight:,} open", ""),
        (f"  {progress.failed:,} err", "red" if progress.failed else ""),
        (f"  {progress.limited:,} 429", "yellow" if progress.limited else ""),
    ]
    # Columns that are left for the bar.
    columns = min(width - _length(parts) - len(begin + end), BAR[1])
    if columns >= BAR[0]:
        full = round(columns * progress.share)
        bar = ("━" * full, "green"), ("─" * (columns - full), "bright_black")
        return [(begin, ""), *bar, (end, ""), *parts]
    parts.insert(0, (begin.rstrip(), ""))
    for name in (" open", " sent"):
        if _length(parts) > width:
            parts = [part for part in parts if not part[0].endswith(name)]
    return parts


def _figures(progress: Progress, tokens_per_s: float, width: int) -> list[Part]:
    """Return the second line: drops, waits, latency, tokens/s, objectives; the last are left out first where they do not
    fit.

    A percentile is shown once enough answers decide it. Empty where there is nothing to show.
    """
    bins = progress.all.ttft
    answers = sum(bins.values())
    quantiles = []
    for p in (0.5, 0.95):
        value = quantile(bins, p)
        if value is not None and answers >= fewest_for(p):
            quantiles.append(f"p{p * 100:.0f} {value:,.0f}")
    parts: list[Part] = []
    if progress.dropped:
        parts.append((f"   {progress.dropped:,} dropped", "yellow"))
    if progress.waiting:
        wait = f"up to {_waited(progress.slot_wait_s)}"
        parts.append((f"   {progress.waiting:,} wait for a slot, {wait}", "yellow"))
    if quantiles:
        parts.append((f"   ttft {'  '.join(quantiles)} ms", ""))
    if tokens_per_s:
        parts.append((f"   {tokens_per_s:,.0f} tok/s", ""))
    if text := _met_text(progress.objectives):
        parts.append((f"   {text}", ""))
    while parts and _length(parts) + 2 > width:
        parts.pop()
    if not parts:
        return []
    return [("  ", ""), *parts]


def _waited(seconds: float) -> str:
    """`0.4 s`, `18s`, `2m30s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return span(seconds)


def _met_text(objectives: Sequence[LiveObjective]) -> str:
    """`objective met so far`, `2 of 3 objectives met so far`; "" where none is known yet."""
    judged = [objective for objective in objectives if objective.state in {MET, MISSED}]
    count = sum(objective.state == MET for objective in judged)
    if len(objectives) == 1:
        return "objective met so far" if count else ""
    if not judged:
        return ""
    return f"{count} of {len(objectives)} objectives met so far"


def _not_judged(objectives: Sequence[LiveObjective]) -> str:
    """`not judged yet: error_rate (too few requests)`, of what is left where others are judged."""
    unjudged = [objective for objective in objectives if objective.state not in {MET, MISSED}]
    if not unjudged or len(unjudged) == len(objectives):
        return ""
    texts = [f"{objective.label} ({objective.state})" for objective in unjudged]
    return f"not judged yet: {', '.join(texts)}"


def _verdict(progress: Progress) -> str:
    """Return the verdict on the measurement with its reason, where it is not VALID."""
    if progress.verdict == VALID:
        return ""
    text = f"{progress.verdict} so far"
    if progress.reason:
        text += f": {progress.reason}"
    return text


def _folded(text: str, width: int) -> list[str]:
    if not text:
        return []
    return fold(f"     {text}", width, "     ")[:FOLDED]


def _length(parts: list[Part]) -> int:
    return sum(len(text) for text, _ in parts)


def fold(text: str, width: int, indent: str = "  ") -> list[str]:
    """Return the text in lines of at most that width."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _plain(drawn: list[list[Part]], width: int) -> str:
    """Return the display without its bar, in lines of at most that width; a part that fits into a line is not broken."""
    header, *rest = drawn
    counts = [text for text, _ in header if not set(text) & set("━─")]
    counts.insert(1, "of")
    rows = ["".join(counts)]
    parts = [text.strip() for text, _ in chain.from_iterable(rest)]
    for part in filter(None, parts):
        if len(f"{rows[-1]}   {part}") <= width:
            rows[-1] += f"   {part}"
        else:
            rows.append(PLAIN_INDENT + part)
    return "\n".join(chain.from_iterable(fold(row, width, PLAIN_INDENT) for row in rows))


class Display:
    """Shows progress on standard error; standard output stays for results.

    While it is open on a terminal, log messages go through it, so that they stand above its lines.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._colours = self._is_terminal and not os.environ.get("NO_COLOR")
        self._plain_at_s = 0.0
        self._drawn: list[list[Part]] = []
        self._recent: deque[tuple[float, int]] = deque([(0.0, 0)])  # output tokens by time
        self._handlers: list[logging.StreamHandler[Any]] = []
        for handler in logging.getLogger().handlers:
            if not self._is_terminal or not isinstance(handler, logging.StreamHandler):
                continue
            if handler.stream is stream:
                self._handlers.append(handler)
                handler.setStream(self)

    @property
    def _width(self) -> int:
        """Columns that can be used: with the last one in use some terminals go to the next line."""
        try:
            return (os.get_terminal_size(self._stream.fileno()).columns or WIDTH) - 1
        except OSError:
            return WIDTH - 1

    def print_line(self, text: str) -> None:
        """Print a line without control characters, which a target's text may contain."""
        self.write(" ".join(harmless(text).split("\n")) + "\n")

    def write(self, text: str) -> None:
        """Print whole lines above the display, folded to the terminal's width."""
        if self._is_terminal:
            folded: list[str] = []
            for line in text.splitlines():
                folded += fold(line, self._width) or [""]
            text = "".join(f"{line}\n" for line in folded)
        drawn = self._drawn
        self._clear()
        self._put(text)
        self._draw(drawn)

    def flush(self) -> None:
        """For a log handler."""
        with suppress(OSError):
            self._stream.flush()

    def _put(self, text: str) -> None:
        """Write; a terminal that is gone, or a full disk behind the stream, ends no run."""
        with suppress(OSError):
            self._stream.write(text)

    def show(self, progress: Progress, *, phase: str = "") -> None:
        """Show the current figures; `phase` if it is not the run itself."""
        tokens_per_s = self._tokens_per_s(progress)
        if self._is_terminal:
            drawn = lines(progress, tokens_per_s, phase, self._width)
            self._clear()
            self._draw(drawn)
        elif progress.passed_s >= self._plain_at_s:
            self._plain_at_s += PLAIN_EVERY_S
            drawn = lines(progress, tokens_per_s, phase, PLAIN_WIDTH)
            self.write(harmless(_plain(drawn, columns())) + "\n")

    def _tokens_per_s(self, progress: Progress) -> float:
        """Output tokens a second of the answers that ended in the last seconds."""
        recent = self._recent
        at_s = progress.passed_s
        recent.append((at_s, progress.all.output_tokens))
        while recent[1][0] <= at_s - RECENT_S:
            recent.popleft()
        since_s, tokens = recent[0]
        if at_s > since_s:
            return (progress.all.output_tokens - tokens) / (at_s - since_s)
        return 0.0

    def _clear(self) -> None:
        if self._drawn:
            up = ""
            if len(self._drawn) > 1:
                up = f"\x1b[{len(self._drawn) - 1}A"
            self._put(f"\r{up}\x1b[J")
        self._drawn = []

    def _draw(self, drawn: list[list[Part]]) -> None:
        rows = []
        for line in drawn:
            rows.append("".join(map(self._coloured, line)))
        self._put("\n".join(rows))
        self.flush()
        self._drawn = drawn

    def _coloured(self, part: Part) -> str:
        text, colour = part
        text = harmless(text)
        if colour and self._colours:
            return style(text, fg=colour)
        return text

    def close(self) -> None:
        """Remove the lines."""
        self._clear()
        self.flush()
        for handler in self._handlers:
            handler.setStream(self._stream)

    def conclude(self, progress: Progress) -> None:
        """Remove the lines, and print the counts after the drain; the result follows."""
        self.close()
        self.write(_plain([_counts(progress, "drained", PLAIN_WIDTH)], columns()) + "\n")
