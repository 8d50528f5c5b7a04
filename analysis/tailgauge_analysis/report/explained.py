"""How the figures are made, in the words of docs/metrics.md.

Rule: prose only; a number in it comes from the module that uses it.
"""

from __future__ import annotations

from tailgauge_analysis.metrics.streams import DUE_EACH_MS, DUE_FIRST_MS, FLUID
from tailgauge_analysis.stats.quantiles import BEYOND

ESTIMATORS = f"""\
## How a percentile is made

- **Stage.** Statistics are about requests scheduled in the steady stage.
  Preflight, warm-up and cool-down are outside; the figures over time show them.
- **Estimator.** `inverted_cdf`: of n values the ceil(n p)-th smallest, a value that was observed.
  Values of all workers are pooled as raw rows; percentiles are never averaged.
- **Effective n.** Slow requests come together, so n of them say less than n independent ones.
  With e = 1 where a value exceeds the percentile, in arrival order, n_eff = n / (1 + 2 sum of the autocorrelations of e),
  summed over Geyer's initial positive pairs. Chunk gaps are taken a request at a time.
- **Interval.** 95%, from order statistics at ranks of Binomial(n_eff, p), rescaled to n.
  It assumes no distribution. `?` stands where the sample has no such bound.
- **Unreliable.** Fewer than {BEYOND} effective samples lie beyond the percentile: n_eff (1 - p) < {BEYOND}.
- **n/a.** n is below ln 0.05 / ln p, so that no one-sided 95% bound exists.
- **Shares** carry the exact Clopper-Pearson interval.

## Two views

- **successes**: requests that ended `ok` and have the event.
  `ok` means the protocol's end mark was received and there was content.
- **offered**: every scheduled request of the stage that could have had the metric: a fan-out has a join and no TTFT.
  One that did not end `ok` (error, timeout, still open when the drain ended, dropped before it was sent) counts as slower
  than any success: failing fast never looks fast. A percentile that falls among them prints `failed`,
  or `> drain` where all of them were still open at the end.

A request that its user gave up on purpose is in neither view: it is counted, and no failure of the target.
Requests that were read slowly on purpose are reported apart, as a group of their own.

## What counts of several attempts

A request's clock starts once, at its scheduled time, whatever was sent for it: retries, hedges, a fallback, the same again.
It ends at the answer that its user got, the winner's; since sent counts from the winner's own sending.
Chunk gaps are those of winners. What losers received is counted under what was sent, and nowhere else.

A stamp that is known only as an interval counts at its high end; the report prints the share of such stamps.
"""

OBJECTIVES = """\
## Objectives

An objective bounds one quantile of one metric, in the offered view where the metric has one.
`pass`: the upper end of the interval is within the bound. `fail`: the lower end is beyond it.
`inconclusive`: neither, so that the run was too short to tell.

Beside it stands MLPerf's early stopping at 99%, which says when a run may stop with a pass: the bound on quantile p is met with
the fewest n for which P(Binomial(n, 1 - p) <= beyond) <= 1%. For a p99 that is 459 requests with none beyond the bound, 662 with one,
1,307 with five. Effective requests are counted, on both sides. The outcome and the exit code are those of the interval.
"""

STREAMS = f"""\
## Streams and goodput

- **Tokens a chunk** (`tokens_per_chunk_p50`): output tokens / content chunks of an answer, median over answers.
- **Buffered**: of 10 chunks or more, more than 80% arrive within 5% of the answer's time from sending to the last content,
  or more than 50 tokens come in fewer than 3 chunks. Something on the way collected the stream: its TTFT is no TTFT.
- **Stall**: a chunk gap longer than 1 s and than 10 times the median gap of its answer.
  `stalled_share` is of the answers, `stall_time_share` of the time between chunks.
- **Fluidity**: share of an answer's token deadlines that were met, the first {DUE_FIRST_MS:g} ms after sending, each later one
  {DUE_EACH_MS:g} ms after the one before; time that a token came early may be used by those after it, and a late token misses
  every deadline that passes while it is awaited. `fluid_share` is the share of answers with {FLUID:g} or more.
- **User tokens per second** = 1 / TPOT. `p1` is the slowest of a hundred users.
- **System tokens per second**: output tokens of all attempts within the stage over its length, an attempt's tokens spread evenly
  from its first content to its last.
- **Had nobody left**: where more than 0.1% of the waits were cut short (users who left, requests open when the drain ended),
  the quantiles of TTFT and end to end by Kaplan-Meier: a wait that was cut short counts as longer than it was seen to be.
- **Goodput**: requests that ended ok within every objective's bound, of all that were offered; users who left on purpose apart.
  Its interval is Clopper-Pearson on the effective n. `per_s` is good requests a second.
"""
