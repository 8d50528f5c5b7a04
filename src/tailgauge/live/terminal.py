"""What `tailgauge run` shows while it runs: a few lines that stay at the bottom of a terminal, else one or two every few seconds.

No line is longer than the terminal is wide. The second line is left out first, then the bar, what is open, what was sent;
errors and 429s stay.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TextIO

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
    """The plan, and which limits will end the run before its end."""
    early = [f"{excess.text}: the run will end early" for excess in excesses_of_plan(settings)]
    return [*plan_lines(settings, workers), *early, *_about_max_requests(settings)]


def _about_max_requests(settings: Settings) -> Iterator[str]:
    """A line on --max-requests where it probably ends the run: it is no number of requests to send."""
    limit = settings.scenario.guard.max_requests
    arrival = settings.scenario.arrival
    calls = settings.estimate.calls
    if "guard.max_requests" not in given_keys(settings) or limit is None or arrival.process == TASKS:
        return
    is_open_ended = arrival.process == CLOSED and not arrival.is_counted
    if is_open_ended or (calls is not None and calls > limit):
        text = "--max-requests is a safety limit and counts warm-up and preflight"
        yield from fold(f"{text}; to send {limit:,} requests: --requests {limit}", columns())


def plan_lines(settings: Settings, workers: int, *, dry_run: bool = False) -> list[str]:
    """The run in a line, `quickstart  2 workers  simulated endpoint  50 requests/s for 30s`, and what it is expected to use."""
    scenario = settings.scenario
    is_simulated = scenario.target.url == SIMULATED
    target = "simulated endpoint" if is_simulated else plain(scenario.target.url)
    load = scenario.arrival.load
    stages = scenario.stages
    if not stages.is_endless:
        load += f" for {span(stages.duration_s)}{_measured(stages)}"
    place = f"{workers} worker{'' if workers == 1 else 's'}  {target}"
    if dry_run:
        place = "dry run: nothing is sent"
    title = f"{scenario.name}  {place}  {load}"
    expected = settings.estimate.lines()
    expected = expected[:1] if is_simulated else expected  # nobody pays for the simulated endpoint
    lines = [title, *expected, *settings.objectives, *short_prefixes(scenario)]
    if scenario.arrival.process != TASKS:
        drawn = "arrivals and sizes" if scenario.arrival.is_open else "think times and sizes"
        again = f"seed {scenario.seed} gives every run these {drawn}; --seed N draws others"
        lines.insert(1 + len(expected), again)
    width = columns()
    return [part for line in lines for part in fold(line, width)]


def _measured(stages: Stages) -> str:
    """`, 13.5 s measured` of a run with a warm-up or a cool-down."""
    measured_s = stages.duration_s - stages.warmup - stages.cooldown_s
    return f", {measured_s:.4g} s measured" if measured_s < stages.duration_s else ""


def span(seconds: float) -> str:
    """`18s`, `2m30s`, `1h05m`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def lines(progress: Progress, tokens_per_s: float, phase: str, width: int) -> list[list[Part]]:
    """The display for a terminal of that width."""
    found = [_counts(progress, phase, width)]
    if width >= NARROW:
        found += [line for line in [_figures(progress, tokens_per_s, width)] if line]
        missed = [objective for objective in progress.objectives if objective.state == MISSED]
        texts = [f"missed so far: {objective}" for objective in missed[:MOST_MISSED]]
        if missed and width >= PLAIN_WIDTH:  # their values are too long for a line
            texts = [f"missed so far: {', '.join(objective.label for objective in missed[:MOST_MISSED])}"]
        found += [[(text, "red")] for line in texts for text in _folded(line, width)]
        found += [[(text, "")] for text in _folded(_not_judged(progress.objectives), width)]
        found += [[(text, "yellow")] for text in _folded(_verdict(progress), width)]
    return found


def _counts(progress: Progress, phase: str, width: int) -> list[Part]:
    """Time, what was sent, what is open, errors, 429s."""
    passed = min(max(0.0, progress.passed_s), progress.duration_s)
    begin = f"{span(passed):>4} "
    end = f" {span(progress.duration_s)}"
    if progress.planned is not None:
        end = f" {progress.planned:,} requests"
    parts: list[Part] = [(f"  {phase}", "cyan")] if phase else []
    parts += [
        (f"  {progress.sent:,} sent", ""), (f"  {progress.in_flight:,} open", ""),
        (f"  {progress.failed:,} err", "red" if progress.failed else ""),
        (f"  {progress.limited:,} 429", "yellow" if progress.limited else ""),
    ]  # fmt: skip
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
    """Latency, tokens, drops; as many of them as fit."""
    bins = progress.all.ttft
    answers = sum(bins.values())
    values = {f"p{p * 100:.0f}": quantile(bins, p) for p in (0.5, 0.95) if answers >= fewest_for(p)}
    latency = "  ".join(f"{name} {value:,.0f}" for name, value in values.items() if value is not None)
    parts: list[Part] = [(f"   {progress.dropped:,} dropped", "yellow")] if progress.dropped else []
    if progress.waiting:
        parts.append(
            (f"   {progress.waiting:,} wait for a slot, up to {_waited(progress.slot_wait_s)}", "yellow")
        )
    parts += [(f"   ttft {latency} ms", "")] if latency else []
    parts += [(f"   {tokens_per_s:,.0f} tok/s", "")] if tokens_per_s else []
    if text := _met(progress.objectives):
        parts.append((f"   {text}", ""))
    while parts and _length(parts) + 2 > width:
        parts.pop()
    return [("  ", ""), *parts] if parts else []


def _waited(seconds: float) -> str:
    """`0.4 s`, `18s`, `2m30s`."""
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


def _met(objectives: Sequence[LiveObjective]) -> str:
    """`objective met so far`, `2 of 3 objectives met so far`; "" where none is known yet."""
    known = [one for one in objectives if one.state in {MET, MISSED}]
    met = sum(one.state == MET for one in known)
    if len(objectives) == 1:
        return "objective met so far" * met
    return f"{met} of {len(objectives)} objectives met so far" if known else ""


def _not_judged(objectives: Sequence[LiveObjective]) -> str:
    """`not judged yet: error_rate (too few requests)`, of what is left where others are judged."""
    left = [f"{one.label} ({one.state})" for one in objectives if one.state not in {MET, MISSED}]
    if not left or len(left) == len(objectives):
        return ""
    return f"not judged yet: {', '.join(left)}"


def _verdict(progress: Progress) -> str:
    """The verdict on the measurement with its reason, where it is not VALID."""
    if progress.verdict == VALID:
        return ""
    return f"{progress.verdict} so far" + (f": {progress.reason}" if progress.reason else "")


def _folded(text: str, width: int) -> list[str]:
    return fold(f"     {text}", width, "     ")[:FOLDED] if text else []


def _length(parts: list[Part]) -> int:
    return sum(len(text) for text, _ in parts)


def fold(text: str, width: int, indent: str = "  ") -> list[str]:
    """The text in lines of at most that width."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _plain(drawn: list[list[Part]], width: int) -> str:
    """The display without its bar, in lines of at most that width; a part that fits into a line is not broken."""
    first, *more = drawn
    counts = [text for text, _ in first if not set(text) & set("━─")]
    counts.insert(1, "of")
    rows = ["".join(counts)]
    parts = [text.strip() for line in more for text, _ in line]
    for part in filter(None, parts):
        if len(f"{rows[-1]}   {part}") <= width:
            rows[-1] += f"   {part}"
        else:
            rows.append(PLAIN_INDENT + part)
    return "\n".join(line for row in rows for line in fold(row, width, PLAIN_INDENT))


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
        handlers = [one for one in logging.getLogger().handlers if isinstance(one, logging.StreamHandler)]
        self._handlers = [one for one in handlers if self._is_terminal and one.stream is stream]
        for handler in self._handlers:
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
            folded = [part for line in text.splitlines() for part in fold(line, self._width) or [""]]
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
        return (progress.all.output_tokens - tokens) / (at_s - since_s) if at_s > since_s else 0.0

    def _clear(self) -> None:
        if self._drawn:
            up = f"\x1b[{len(self._drawn) - 1}A" if len(self._drawn) > 1 else ""
            self._put(f"\r{up}\x1b[J")
        self._drawn = []

    def _draw(self, drawn: list[list[Part]]) -> None:
        self._put("\n".join("".join(self._coloured(part) for part in line) for line in drawn))
        self.flush()
        self._drawn = drawn

    def _coloured(self, part: Part) -> str:
        text, colour = harmless(part[0]), part[1]
        return style(text, fg=colour) if colour and self._colours else text

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
