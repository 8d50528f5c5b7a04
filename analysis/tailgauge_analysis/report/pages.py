"""The documentation pages that are written by the tables they document.

Rule: docs/metrics.md and docs/data-format.md are these functions' results (docs/generate.py writes them, a test
compares them); what a metric, a gate or a column means stands beside its definition, never here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import PS
from tailgauge_analysis.metrics.metrics import METRICS, SCHEDULED, SENT, Metric
from tailgauge_analysis.report.explained import ESTIMATORS, OBJECTIVES, STREAMS
from tailgauge_analysis.stats.quantiles import n_min
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.verdict.checks import GATES

GENERATED = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->"

_LAYOUT = """\
## The run folder

```
runs/<run_id>/
  run.json                              written by the master of the run
  workers/<n>.json                      each worker's own record: its entry of run.json's `workers`, and `run`
  requests/ attempts/ chunks/ health/   part-<worker>-<number>.parquet, or part-<worker>-all.parquet when compacted
  target/part-0-all.parquet             what the simulated endpoint really did; absent for other targets
```

- The worker's number is in the file name, not in a column.
- A file's footer carries `tailgauge.schema_version`. A newer version than the reader's is refused.
- A compacted file's footer carries `tailgauge.replaces`, the names of the parts that it contains, with commas.
  Parts so named are ignored if they are still there.
- `*.tmp` files were never finished. They are counted and ignored.
- Times are int64 nanoseconds of the stamping worker's monotonic clock.
  Run clock = worker clock + `clock.offset_ns` - `start_at_ns`. The endpoint's clock is taken to be the master's.
  One offset serves a worker for the whole run; `clock.error_ns` bounds what it is wrong by, drift (parts in 10^9) included.
- Some string columns may be dictionary-encoded.
- Chunks of one attempt stand together within a row group of a compacted file, by number; a long run's file has several
  groups, and an attempt may go on in the next. There, what the row before says is not said again: an arrival is `arrived_at_ns`,
  or `gap_ns` after the row before, or without either that of the row before; so with `lag_ns`. `tailgauge.rows.chunk_encoding.plain` makes
  of such rows (`pyarrow.parquet.read_table`) rows with every time, and `low_at_ns` where one is not exact.
  Numbers are stored as `DELTA_BINARY_PACKED`, gaps and lags as `BYTE_STREAM_SPLIT`, with zstd.
"""

_HOME = """\
## Rows on their way home

A worker that does not see the master's folder writes the same files into `runs/<run_id>/` of its own, and ships each part once it is finished.
Parts go in the order written, one at a time, in pieces of at most 128 KiB of which at most 4 are unanswered.
The answer to a piece says how much of the part the master has; after 5 s without progress the worker asks again from there, with 1 KiB.
Nothing goes per request.

The master writes `part-<worker>-<number>.tmp` and renames it when all of it is there, its SHA-256 is right, and its footer has the columns and the version above.
It takes parts of `requests`, `attempts`, `chunks` and `health` of at most 256 MiB, under the sender's own number, and replaces no file.
It keeps 64 MB of its disk free. What it does not take it refuses with a reason, and the worker keeps it.
When the run is over, the master folds the parts of each table into one.
The worker removes its own copy when the master has every row; until then `tailgauge report RUN_DIR WORKER_DIR` reads both, and counts no row twice.

A part that cannot be written ends the run; its rows stay in memory and are tried once more at the end, and what is left then is `unwritten` in run.json.
So does a disk on which one part takes 30 s, or behind which 200,000 rows or 5,000,000 chunks wait.
"""

_WORKER_KEYS = (
    "one entry a worker: worker, name, host, pid, state (drained, lost, failed, running, joining), clock (offset_ns, error_ns, drift_ppb), "
    "stamps (kernel, user), why (what made it fail), leased, "
    "counts (dispatched, client_drop, not_reached, ended, censored), rows by table, unwritten (rows by table that were recorded and could not "
    "be written), missing (from_s, to_s, requests: stretches of the run whose arrivals it held and left no row of), silent (from_s, to_s: "
    "nothing was heard of it; to_s null: ever again), late_s (when a late joiner began, else null); the last four absent in older runs"
)

# Keys of run.json: name, meaning.
RUN_KEYS = (
    ("schema_version", "version of this format"),
    ("run_id", "`<UTC>-<scenario>-<4 hex>`, the folder's name"),
    (
        "state",
        "running, complete, interrupted, guarded (a limit of the run was reached), failed or unusable (the preflight failed)",
    ),
    ("scenario", "the resolved scenario, every default written out, without secrets"),
    ("scenario_file", "the file it came from"),
    ("overrides", "what the command line changed"),
    ("started_at", "wall-clock start, ISO 8601 UTC; a label only"),
    ("start_at_ns", "master's monotonic clock at the zero of the run clock"),
    ("admission_end_at_ns", "master's clock when no more requests were admitted; null if that never came"),
    ("ended_at_ns", "master's clock at the end of the drain; null if that never came"),
    ("seed", "seed of arrivals, sizes and prompts"),
    ("arrival", "open, closed or partly open"),
    ("dry_run", "true: a rehearsal on the simulated endpoint's virtual clock; absent or false: real time"),
    ("trace", "of a replayed trace: rows read, and dropped by reason; absent without one"),
    ("estimate", "calls, tokens and cost expected before the run, null where unknown; absent in older runs"),
    ("tokens_per_word", "tokens a word of the prompts' text, as learnt before the run; null if unknown"),
    (
        "overhead_tokens",
        "tokens of a prompt that are not its text, as learnt before the run; null if unknown",
    ),
    ("target", "url, simulated, protocol"),
    ("second_target", "the same of the second target; null without one"),
    ("versions", "versions of tailgauge and of what it stands on"),
    ("master", "host, pid, kernel, cpu_count, python and what else tells this machine from another"),
    ("workers", _WORKER_KEYS),
    (
        "conservation",
        "scheduled, dispatched, client_drop, not_reached, lost, ended by class, censored; preflight excepted",
    ),
    (
        "engine_tokens",
        "tokens that the target's own engine counts on its page /metrics: engine (vLLM or llama.cpp), before, after; null where users do not leave, at a provider, at the embedded endpoint, and where the page could not be read or the engine did not come to rest; absent from a rehearsal and in older runs",
    ),
    (
        "certificate",
        "what the run cites of this machine's certificate: id, made_at, host, transport (plain or tls), rates in chunks/s, errors in ms; or id null and why; absent from a rehearsal",
    ),
    ("notes", "what the master found worth telling"),
    (
        "preflight",
        "request_id, target, model, words, input_tokens, ended, status, error_type, message of each preflight request, and whether the run needed it",
    ),
    ("verdict", "null until the analysis puts verdict, reasons and exit_code there"),
)

# Keys of report.json that keep their names and meanings: name, meaning.
STABLE_KEYS = (
    ("schema_version", "version of these keys; 1 had other names"),
    (
        "run",
        "run_id, scenario, description, dry_run (true: on the virtual clock), state, times of the steady stage, rates offered and ok, target, preflight, reproduce (the command that runs it again)",
    ),
    (
        "verdict",
        "status (VALID, DEGRADED or INVALID), reasons (gate, verdict, text, advice; worst first), explanations (what was hard for the client), gates (gate, asks, verdict)",
    ),
    (
        "conservation",
        "scheduled, dispatched, client_drop, not_reached, lost, censored, ended by class: recounted from the rows, preflight excepted; also found (counted as lost by the master, and here after all), missing (worker, from_s, to_s, requests: when lost requests were due, as far as known), unwritten (rows by table), duplicates, missing_rows, broken (disagreements)",
    ),
    (
        "latency",
        "group (a traffic table, or all), metric, since (scheduled, sent or null), population (completed or offered), unit, n, n_eff, mean, percentiles; see below",
    ),
    (
        "errors",
        "ended, status, error_type, limit_kind, attempts, steady, excerpt of the most frequent kinds of failed attempts",
    ),
    (
        "rate_limits",
        "429s by kind and over time, buckets, binding limit, growth, retry-after, retries; null for a run that met no limit, saw no header of one and retried nothing; see docs/reports.md",
    ),
    (
        "cache",
        "sentence, and by traffic table: hit shares, write amplification, misses by cause, expiry, TTFT (worth), cost; null where no traffic has to do with a cache; see docs/reports.md",
    ),
    ("fan_out", "joins against predictions from the legs; null without fan-outs; see docs/reports.md"),
    ("hedging", "what second copies gained and cost; null without them; see docs/reports.md"),
    (
        "slo",
        "name, bound, status (pass, fail, inconclusive), value, low, high, beyond, metric, quantile, population, unit, why, early_stopping (beyond, n_eff, needed, met; see docs/metrics.md)",
    ),
    (
        "definitions",
        "the same rows under the formulas of other tools: tool, source, read, answers, metrics (name, ours, formula, why, unit, n, mean, percentiles, our_percentiles, our_value)",
    ),
)

# Its other keys, which may change: name, meaning.
REPORT_KEYS = (
    ("exit_code", "0, 1 (an objective failed) or 3 (INVALID, rows lost, or an objective inconclusive)"),
    ("headline", "one sentence"),
    ("outcomes", "ended, requests, share, low, high of the steady stage"),
    ("remarks", "what a reader must know of the traffic: closed loop, slow readers, users who left"),
    (
        "traffic",
        "by name of the traffic table: what was sent in the whole run except preflight, see below",
    ),
    (
        "streams",
        "how evenly the answers came: tokens a chunk, buffered streams, stalls, fluidity, tokens per second; see docs/metrics.md",
    ),
    (
        "uncut",
        "where waits were cut short: metric, title, n, cut, quantiles by Kaplan-Meier; see docs/metrics.md",
    ),
    (
        "phases",
        "where the time went, as far as the target tells: answers, told, split (by its own log), events (status events), timings (Server-Timing): name, n, share, quantiles; null where it told nothing",
    ),
    (
        "diagnosis",
        "where the slowest requests lose their time: kind (input, output, both, healthy, unknown), n, slow, p50_ms, p95_ms, slow_p50_ms, share_before_first with low and high, tokens_times, pace_times, sentence",
    ),
    (
        "slopes",
        "what tokens and neighbours cost, of ttft_sent and tpot: n, why (none), left_out, slopes (name, title, p, label, value_ms, low_ms, high_ms, mark); see docs/reports.md",
    ),
    (
        "crossover",
        "arms that took turns in this run: a, b, block_s, washout_s, and the keys of `tailgauge compare --json` but exit_code; null without a crossover",
    ),
    (
        "presets",
        "bounds that others set: uses, segments (by, name, ttft, total, outcomes by use and percentile), mlperf (ttft_p99, tpot_p99, rules), sentence; null without a latency",
    ),
    (
        "alarms",
        "name, title, limit, rings (above, below), unit, state (raised, quiet, open, unknown), value, low, high, n, why",
    ),
    ("goodput", "offered, good, n_eff, share, low, high, per_s; null without an objective"),
    (
        "groups",
        "by (traffic, slow reader, name, tag), name, pattern, requests, ok, cancelled, ok_share, low, high, latency (offered view)",
    ),
    ("smaller_groups", "groups that are not shown"),
    (
        "stamps",
        "exact and interval stamps, kernel and user stamps, attempts that opened a connection, receive lag",
    ),
    ("other_failures", "attempts that ended with a rarer error"),
    (
        "client",
        "health of each worker over the steady stage: mean and worst second of what its health rows hold",
    ),
    (
        "in_flight",
        "attempts in flight in the mean, over `seconds` of all workers: live (counted by the workers), from_rows (the rows' own arrivals times their stay: Little's law), outside (what cannot be a worker's lag); null without health rows",
    ),
    (
        "bad_seconds",
        "seconds, bad, share, spells (worker, from_s, to_s, worst_ms, said; the longest 20), figures (metric, view, n, left_out, quantiles with and without); null without health rows",
    ),
    (
        "certificate",
        "what the run cites of this machine's certificate: id (null: none, and why), made_at, transport, rates and errors, busiest (worker), busiest_per_s, beyond, text; null for a rehearsal",
    ),
    (
        "truth",
        "how long after the endpoint wrote it the first content arrived; within_ms: by the workers' clocks; null without its log",
    ),
    (
        "clocks",
        "how far clocks may be apart: between_ms (two workers), to_target_ms, calls_in_flight (within how many those over all workers are known), unknown (workers), sentence",
    ),
    (
        "environment",
        "versions, master, seed, models, scenario, and workers: state, host, clock, what came home and what did not (missing_requests, missing, found, not_sent, rows_lost, unwritten, silent, late_s)",
    ),
    ("problems", "kind and text of everything that was wrong with the data"),
)

# Keys of one entry of report.json's `traffic`: name, meaning.
TRAFFIC_KEYS = (
    ("pattern", "the traffic pattern"),
    ("requests", "scheduled, preflight excepted"),
    ("ended", "requests by class"),
    ("legs", "max, per_request (mean)"),
    ("attempts", "total, and by cause: primary, retry, hedge, fallback, resubmit, poll"),
    (
        "hedging",
        "legs sent, hedged of them, won by the hedge, held (due but not sent, by reason), rate (hedged / legs), winner_share (won / hedged)",
    ),
    ("chunks", "received, by kind: text, thinking, tool_json"),
    (
        "phases",
        "name, kind, attempts, p50_ms: of status events when the phase began, since sent; of Server-Timing what it took",
    ),
    ("slow_readers", "attempts that were read slowly on purpose"),
    ("not_streamed", "attempts that asked for the whole answer at once"),
    ("second_target", "attempts sent to the second target"),
    ("first_fields", "attempts in which a first field was seen complete"),
    ("tools_ready", "attempts in which a tool's input was complete"),
    ("citations", "citation events"),
    ("turns_max", "turns of the longest session"),
)

_PUBLISHED = """\
For programs. [report.schema.json](report.schema.json) is its JSON Schema (draft 2020-12).
These keys keep their names and meanings as long as `schema_version` does; a table may gain keys.
"""

_PERCENTILE = """\
`metric` is a name of [metrics.md](metrics.md) without its ending `_sched` or `_sent`, for `since` says that.
`percentiles` has p50, p90, p95, p99 and p99_9, each with value, low and high (95% interval, in `unit`), reliable (10 effective samples
or more lie beyond it), beyond (it lies among requests without answer), n_eff, and value_is, low_is, high_is as below.
Those of a rate in tokens/s count from the fast end: 99% of the answers are at least as fast as the p99, and `low` is still the smaller number.
The row's n_eff is that of its p99. Rows without a sample are left out.
"""

_QUANTILE = """\
A `quantile` has p, label, n, n_eff, mark (empty, `unreliable` or `n/a`) and three numbers in milliseconds: `value_ms`, `low_ms`, `high_ms`.
Beside each stands `value_is`, `low_is`, `high_is`: `value`, or why the number is null:
`failed` or `> drain` (the rank falls among requests without answer), `n/a`, or `none` (no such bound exists).
There is no NaN and no infinity.
"""


def metrics_page() -> str:
    """docs/metrics.md."""
    parts = ["# Metrics", GENERATED, "Times are measured in nanoseconds."]
    rows = [(f"`{m.name}`", m.title, m.unit, _since(m), m.level, _views(m)) for m in METRICS]
    parts += [
        _rows(("metric", "title", "unit", "clock starts", "one value a", "views"), rows),
        "## Each metric",
    ]
    for metric in METRICS:
        needs = ", ".join(f"`{need}`" for need in metric.needs)
        parts.append(
            f"### `{metric.name}`\n\n{metric.title} = {metric.formula}.\n{metric.meaning}\nNeeds {needs}."
        )
    needed = ", ".join(f"{percentile(p)} {n_min(p):,}" for p in PS)
    gates = [(f"`{gate.name}`", gate.asks) for gate in GATES]
    verdict = (
        "## Verdict\n\nEach gate that is not passed gives a reason with what to do about it; the verdict is the worst of them.\n"
        "Client CPU, loop lag and garbage collection explain a failed gate; under kernel stamps they are none themselves."
    )
    parts += [
        ESTIMATORS.strip(),
        STREAMS.strip(),
        f"Fewest samples for a percentile: {needed}.",
        OBJECTIVES.strip(),
        verdict,
    ]
    return "\n\n".join([*parts, _rows(("gate", "passes if"), gates)]) + "\n"


def data_format_page() -> str:
    """docs/data-format.md."""
    parts = [
        "# Data format",
        GENERATED,
        f"Schema version {schema.SCHEMA_VERSION}.",
        _LAYOUT.strip(),
        _HOME.strip(),
    ]
    for table, row in schema.TABLES.items():
        columns = [
            (f"`{c.name}`", c.kind.replace("<", "&lt;"), "yes" if c.nullable else "", c.meaning)
            for c in schema.columns(table)
        ]
        about = (row.__doc__ or "").strip()
        parts.append(
            f"## {table}\n\n{about}\n\n{_rows(('column', 'type', 'may be null', 'meaning'), columns)}"
        )
    parts.append("## run.json\n\n" + _keys(RUN_KEYS))
    own = "Written by the worker itself, so that a run whose master died can be rebuilt: the keys of its entry in `workers`,"
    parts.append(
        f"## workers/&lt;n>.json\n\n{own}\nand `run` with run_id, scenario, start_at_ns, started_at, seed, arrival and target.\n"
        "`cpu_s`: the process's CPU time at the start of the run (`at_start`) and when its last part was closed (`at_end`), "
        "and that of its writer's threads (`writer`), in seconds."
    )
    traffic = "An entry of `traffic` counts attempts, whoever saw their answers, and has these keys.\n\n"
    parts.append(
        f"## report.json\n\n{_PUBLISHED.strip()}\n\n{_keys(STABLE_KEYS)}\n\n{_PERCENTILE.strip()}\n\n"
        f"It also has these keys, which may change with any version.\n\n{_keys(REPORT_KEYS)}\n\n{traffic}{_keys(TRAFFIC_KEYS)}\n\n{_QUANTILE.strip()}"
    )
    parts.append("## Schema history\n\n" + _rows(("version", "release", "change"), history()))
    return "\n\n".join(parts) + "\n"


def history() -> list[tuple[str, str, str]]:
    """Version, release and change of every schema, as records.py tells it."""
    lines = (schema.__doc__ or "").partition("Schema history")[2].splitlines()[1:]
    rows: list[tuple[str, str, str]] = []
    for line in filter(str.strip, lines):
        first, _, rest = line.strip().partition(" ")
        if first.isdigit():
            release, _, change = rest.strip().partition(" ")
            rows.append((first, release, change.strip()))
        else:  # a change that goes on
            rows[-1] = (*rows[-1][:2], f"{rows[-1][2]} {line.strip()}")
    return rows


def _since(metric: Metric) -> str:
    return {SCHEDULED: "at the scheduled time", SENT: "when it is sent"}.get(
        metric.since, "at the first of the two events"
    )


def _views(metric: Metric) -> str:
    return "successes, offered" if metric.offered else "successes"


def _keys(rows: Iterable[tuple[str, str]]) -> str:
    return _rows(("key", "meaning"), [(f"`{name}`", meaning) for name, meaning in rows])


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
