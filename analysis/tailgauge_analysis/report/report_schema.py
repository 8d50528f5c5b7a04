"""The JSON Schema of report.json, draft 2020-12.

Rule: written out by hand from small pieces, so that it is a promise and not a print of what happens to be there;
published as docs/report.schema.json. What is stable is described; every other key may hold anything.
"""

from __future__ import annotations

from tailgauge.rows import schema as records
from tailgauge_analysis.metrics.latency import PS
from tailgauge_analysis.metrics.metrics import METRICS
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS
from tailgauge_analysis.report.published import SCHEMA_VERSION, STABLE
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json

VERDICTS = ("VALID", "DEGRADED", "INVALID")
TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "number"}
MAYBE: Json = {"type": ["number", "null"]}
MAYBE_TEXT: Json = {"type": ["string", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
TRUTH: Json = {"type": "boolean"}


def table(about: str, **keys: Json) -> Json:
    """A table in which all these keys stand; it may have more."""
    return {"type": "object", "description": about, "required": list(keys), "properties": keys}


def listing(of: Json, about: str) -> Json:
    """A list of these."""
    return {"type": "array", "description": about, "items": of}


def _one_of(*values: str | None) -> Json:
    return {"enum": list(values)}


def _report(name: str) -> Json:
    return {"type": ["object", "null"], "description": f"{name}; null where the run has nothing of it"}


def said(about: str, of: Json) -> Json:
    """The same, with what it is."""
    return {**of, "description": about}


_PERCENTILE = table(
    "one percentile with its 95% interval",
    value=said("null where there is none; `value_is` says why", MAYBE),
    low=MAYBE,
    high=MAYBE,
    reliable=said("at least 10 effective samples lie beyond it", TRUTH),
    beyond=said("it lies among requests without answer: slower than any success", TRUTH),
    n_eff=COUNT,
    value_is=said("value, n/a (too few samples), failed or > drain (beyond)", TEXT),
    low_is=TEXT,
    high_is=TEXT,
)

_LATENCY = table(
    "one metric of one group and population",
    group=said("name of a traffic table, or all", TEXT),
    metric=said(
        "docs/metrics.md, without the ending _sched or _sent: `since` says that",
        _one_of(
            *dict.fromkeys(metric.name.removesuffix("_sched").removesuffix("_sent") for metric in METRICS)
        ),
    ),
    since=said("when its clock starts; null where neither", _one_of("scheduled", "sent", None)),
    population=said(
        "offered: with the failures, as slower than any success", _one_of("completed", "offered")
    ),
    unit=_one_of("ms", "tokens/s"),
    n=COUNT,
    n_eff=said("effective samples, of the p99; each percentile has its own", COUNT),
    mean=said("null where a request without answer is among them", MAYBE),
    percentiles={
        "type": "object",
        "required": [percentile(p).replace(".", "_") for p in PS],
        "additionalProperties": {"$ref": "#/$defs/percentile"},
    },
)

_CONSERVATION = table(
    "scheduled = dispatched + client_drop + not_reached + lost; dispatched = sum of ended + censored; the whole run, preflight excepted",
    scheduled=said("null where nobody knows", {"type": ["integer", "null"]}),
    dispatched=COUNT,
    client_drop=COUNT,
    not_reached=COUNT,
    lost=COUNT,
    censored=COUNT,
    ended={
        "type": "object",
        "propertyNames": {"enum": list(records.ENDED_CLASSES)},
        "additionalProperties": COUNT,
    },
    found=said("counted as lost by the run's master, and here after all", COUNT),
    missing=listing(
        table(
            "a stretch of the run whose arrivals left no row; seconds of the run clock",
            worker=said("null where nobody knows who held them", {"type": ["integer", "null"]}),
            from_s=NUMBER,
            to_s=said("null: to the end", MAYBE),
            requests=COUNT,
        ),
        "when lost requests were due, as far as known",
    ),
    unwritten=said(
        "rows that were recorded and could not be written, by table",
        {"type": "object", "additionalProperties": COUNT},
    ),
)

_SLO = table(
    "one objective",
    name=TEXT,
    bound=said("in `unit`", NUMBER),
    status=_one_of(PASS, FAIL, INCONCLUSIVE),
    value=MAYBE,
    low=MAYBE,
    high=MAYBE,
    beyond=TRUTH,
    metric=TEXT,
    quantile=NUMBER,
    population=_one_of("completed", "offered"),
    unit=TEXT,
    why=TEXT,
    early_stopping={
        **table(
            "MLPerf's rule at 99%: met where n_eff reaches what so many effective requests beyond the bound need; null without a request",
            beyond=COUNT,
            n_eff=COUNT,
            needed=COUNT,
            met=TRUTH,
        ),
        "type": ["object", "null"],
    },
)

_ERROR = table(
    "one kind of failed attempt, the most frequent first",
    ended=TEXT,
    status={"type": ["integer", "null"]},
    error_type=TEXT,
    limit_kind=TEXT,
    attempts=COUNT,
    steady=COUNT,
    excerpt=TEXT,
)

_NUMBERS: Json = {"type": ["object", "null"], "additionalProperties": MAYBE}
_TOOL = table(
    "the steady stage under another tool's formulas",
    tool=TEXT,
    source=TEXT,
    read=said("year and month in which the formulas were read", TEXT),
    answers=COUNT,
    metrics=listing(
        table(
            "one number of the tool",
            name=TEXT,
            ours=said("our metric beside it", MAYBE_TEXT),
            formula=TEXT,
            why=said("why the two differ", TEXT),
            unit=TEXT,
            n=COUNT,
            mean=MAYBE,
            percentiles=_NUMBERS,
            our_percentiles=_NUMBERS,
            our_value=MAYBE,
        ),
        "in the tool's order",
    ),
)

_RUN = table(
    "which run it was",
    run_id=TEXT,
    scenario=TEXT,
    state=TEXT,
    dry_run=said("on the virtual clock: VALID then says nothing of a real client or target", TRUTH),
    started_at=TEXT,
    steady_requests=COUNT,
    steady_ok=COUNT,
    offered_per_s=MAYBE,
    reproduce=said(
        "the command that runs it again; null where the run does not name its scenario", MAYBE_TEXT
    ),
    target={"type": "object"},
)

_VERDICT = table(
    "whether the numbers can be trusted",
    status=_one_of(*VERDICTS),
    reasons=listing(
        table("one reason, the worst first", gate=TEXT, verdict=_one_of(*VERDICTS), text=TEXT, advice=TEXT),
        "empty for VALID",
    ),
)


_DIAGNOSIS = table(
    "where the slowest requests lose their time",
    kind=_one_of("input", "output", "both", "healthy", "unknown"),
    n=COUNT,
    slow=COUNT,
    share_before_first=said("of what the slow take longer; null where nothing is told", MAYBE),
    low=MAYBE,
    high=MAYBE,
    sentence=TEXT,
)

_SLOPES = table(
    "one regression",
    n=COUNT,
    why=said("why there are no slopes; else empty", TEXT),
    left_out=listing(TEXT, "what hardly varied"),
    slopes=listing(
        table(
            "ms per unit of the title, at one quantile",
            name=TEXT,
            title=TEXT,
            p=NUMBER,
            value_ms=NUMBER,
            low_ms=NUMBER,
            high_ms=NUMBER,
            mark=_one_of("", "unreliable"),
        ),
        "at p50 and p95",
    ),
)

_ALARM = table(
    "one alarm that an operator would set",
    name=TEXT,
    limit=NUMBER,
    rings=_one_of("above", "below"),
    unit=_one_of("ms", "tokens/s", "share"),
    state=_one_of("raised", "quiet", "open", "unknown"),
    value=MAYBE,
    low=MAYBE,
    high=MAYBE,
    n=COUNT,
    why=TEXT,
)

_PRESETS: Json = {
    **table(
        "percentiles of each kind of request against the bounds of uses; null without a latency",
        uses=listing(table("a use", name=TEXT, ttft_ms=NUMBER, total_ms=NUMBER), "the strictest first"),
        segments=listing(
            table("a kind of request", by=TEXT, name=TEXT, outcomes={"type": "object"}), "all of them first"
        ),
        mlperf=said("its rules on p99; null without TTFT or TPOT", {"type": ["object", "null"]}),
        sentence=TEXT,
    ),
    "type": ["object", "null"],
}


def schema() -> Json:
    """The whole schema."""
    stable: Json = {
        "schema_version": {"const": SCHEMA_VERSION},
        "run": _RUN,
        "verdict": _VERDICT,
        "conservation": _CONSERVATION,
        "latency": listing(_LATENCY, "rows with at least one sample"),
        "errors": listing(_ERROR, "of the whole run, preflight excepted"),
        "rate_limits": _report("429s and the buckets behind them"),
        "cache": _report("the prompt cache"),
        "fan_out": _report("requests of several legs"),
        "hedging": _report("second copies"),
        "crossover": _report("two traffic tables that took turns"),
        "slo": listing(_SLO, "in the scenario's order; empty without objectives"),
        "definitions": listing(_TOOL, "one entry a tool"),
        "diagnosis": _DIAGNOSIS,
        "slopes": {"type": "object", "additionalProperties": _SLOPES},
        "presets": _PRESETS,
        "alarms": listing(_ALARM, "always the same seven"),
        "exit_code": said("0, 1 or 3; see docs/cli.md", {"enum": [0, 1, 3]}),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tailgauge:report:{SCHEMA_VERSION}",
        "title": "Tailgauge report.json",
        "type": "object",
        "required": [*STABLE, "exit_code"],
        "properties": stable,
        "$defs": {"percentile": _PERCENTILE},
    }
