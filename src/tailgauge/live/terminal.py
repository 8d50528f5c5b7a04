"""The live display: a progress bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
from typing import TextIO

from tqdm import tqdm

from tailgauge.master.progress import Progress
from tailgauge.quantile_sketch import quantile
from tailgauge.sanitize import harmless
from tailgauge.thresholds import fewest_for

PLAIN_EVERY_S = 5.0


def figures(progress: Progress) -> str:
    """The live figures of a run in one line."""
    text = f"sent {progress.sent:,}  in flight {progress.in_flight:,}"
    answers = sum(progress.ttft.values())
    names = (("p50", 0.5), ("p99", 0.99) if answers >= fewest_for(0.99) else ("max", 1.0))
    values = [(name, quantile(progress.ttft, p)) for name, p in names if answers >= fewest_for(0.5) or p == 1]
    shown = [f"{name} {value:,.0f}" for name, value in values if value is not None]
    text += f"  TTFT {' '.join(shown)} ms" if shown else ""
    text += f"  429s {progress.limited:,} attempts  failed {progress.failed:,}"
    text += f"  dropped {progress.dropped:,}" if progress.dropped else ""
    return f"{text}  {verdict(progress)}"


def verdict(progress: Progress) -> str:
    """The live verdict with its first reason."""
    return f"{progress.verdict} so far" + (f": {progress.reason}" if progress.reason else "")


class Display:
    """Shows progress on standard error; standard output stays for results."""

    def __init__(self, duration_s: float, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._duration_s = duration_s
        self._plain_at_s = 0.0
        self._bar: tqdm[None] | None = None
        if stream.isatty():
            tqdm.monitor_interval = 0  # its watchdog thread would be a greenlet here
            layout = "{percentage:3.0f}% |{bar:16}| {desc}"
            self._bar = tqdm(
                total=duration_s, bar_format=layout, file=stream, dynamic_ncols=True, leave=False
            )

    def print_line(self, text: str) -> None:
        """Print a line without control characters, which a target's text may contain."""
        text = harmless(text).replace("\n", " ")
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def show(self, progress: Progress, *, draining: bool) -> None:
        """Show the current figures."""
        passed = min(max(0.0, progress.passed_s), self._duration_s)
        text = figures(progress) + ("  draining" if draining else "")
        if self._bar is not None:
            self._bar.n = round(passed, 1)
            left = tqdm.format_interval(round(self._duration_s - passed))
            self._bar.set_description_str(f"{left} left  {text}")
        elif progress.passed_s >= self._plain_at_s:
            self._plain_at_s += PLAIN_EVERY_S
            self.print_line(f"{passed:5.0f} s of {self._duration_s:g} s  {text}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def conclude(self, progress: Progress) -> None:
        """Print the last line, after the drain."""
        self.close()
        self._stream.write(f"drained  {figures(progress)}\n")
        self._stream.flush()
