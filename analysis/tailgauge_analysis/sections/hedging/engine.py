"""What closed calls took by the counters of the engines that served them.

    of closed calls = what the engines counted over the run - the usage in the rows

A call that is closed early has no usage, but its prompt was processed. The counters cover every user of the engines: a count
below the usage, or above what the closed calls can have taken, belongs to another engine or to other users and is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.text.formatting import count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json, whole

LESS = 0.98  # of the usage: a smaller count is of another engine
MORE = 1.05  # times what the closed calls can have taken: more is of other users
READ = "cache_read_input_tokens"
WRITTEN = ["input_tokens", "cache_creation_input_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCount:
    """Tokens over the whole run: by the counters of the engines, and in the rows.

    `prompt_tokens`: processed, without those read from a cache where the usage has these; `without_usage`: calls that have none.
    """

    engines: str
    prompt_tokens: int
    prompt_in_rows: int
    output_tokens: int
    output_in_rows: int
    without_usage: int

    @property
    def beyond_rows(self) -> int:
        """Return the tokens of the calls without usage."""
        return max(0, self.prompt_tokens - self.prompt_in_rows) + max(
            0, self.output_tokens - self.output_in_rows
        )

    @property
    def text(self) -> str:
        """`llama.cpp: 28,500 prompt tokens processed, 15,900 in the rows; 9,200 tokens generated, 8,100 in the rows`."""
        prompt = f"{count(self.prompt_tokens)} prompt tokens processed, {count(self.prompt_in_rows)} in the rows"
        output = f"{count(self.output_tokens)} tokens generated, {count(self.output_in_rows)} in the rows"
        return f"{self.engines}: {prompt}; {output} ({plural(self.without_usage, 'call')} without usage)"


def engine_count(work: list[Json], attempts: pd.DataFrame) -> EngineCount | None:
    """Return the tokens that the engines counted beside those in the rows; None where the counters say nothing of this run.

    `work`: what the counters of each engine rose by over the run, as tables with output, prompt and cached; `attempts`: those
    of the whole run. The counters cover every user of an engine: counts that the calls of the run cannot explain are not
    used.
    """
    output = [whole(engine.get("output")) for engine in work]
    prompt = [whole(engine.get("prompt")) for engine in work]
    cached = [whole(engine.get("cached")) for engine in work]
    if not work or None in output or None in prompt or None in cached:
        return None
    rows = attempts[attempts["sent_at_ns"].notna() & (attempts["stage"] != schema.PREFLIGHT)]
    has_usage = rows["input_tokens"].notna()
    with_usage = rows[has_usage]
    prompt_tokens = sum(filter(None, prompt))
    # Where the usage has the tokens read from a cache, the others are compared: those that were processed.
    if with_usage[READ].notna().all():
        prompt_tokens -= sum(filter(None, cached))
    prompt_in_rows = int(with_usage[WRITTEN].sum().sum())
    counted = EngineCount(
        engines=listed(
            list(dict.fromkeys(plain(str(engine.get("engine")), 40) for engine in work))
        ),
        prompt_tokens=prompt_tokens,
        prompt_in_rows=prompt_in_rows,
        output_tokens=sum(filter(None, output)),
        output_in_rows=int(rows["output_tokens"].sum()),
        without_usage=int((~has_usage).sum()),
    )
    longest_prompt = 0
    if len(with_usage):
        longest_prompt = with_usage[[*WRITTEN, READ]].sum(axis=1).max()
    return counted if _is_possible(counted, float(longest_prompt)) else None


def _is_possible(counted: EngineCount, longest: float) -> bool:
    """Return whether the calls of the run explain the counts; `longest`: prompt."""
    minimum = LESS * counted.prompt_in_rows
    maximum = MORE * (counted.prompt_in_rows + counted.without_usage * longest)
    is_prompt = minimum <= counted.prompt_tokens <= maximum
    return is_prompt and counted.output_tokens >= LESS * counted.output_in_rows
