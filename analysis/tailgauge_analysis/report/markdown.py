"""report.md: the same numbers as the page, for reviews. `_rows` makes untrusted text harmless in every table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailgauge_analysis.compare import alternating
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES
from tailgauge_analysis.report.views import at, highlights, label, latency_rows, meaning
from tailgauge_analysis.sections import alerts, traffic, use_cases
from tailgauge_analysis.sections.cache import section as cache_section
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.load import slopes
from tailgauge_analysis.sections.phases import sentence
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.text.formatting import count, markdown_safe, ms, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import bound, cell
from tailgauge_analysis.verdict import losses, stalls
from tailgauge_analysis.verdict.losses import Stretch

PERCENTILES = ("p50 (ms)", "p95 (ms)", "p99 (ms)")
WHOLE = ("e2e_sched", "join_sched", "turnaround")


def markdown(contents: Json) -> str:
    """The whole report."""
    blocks = [
        f"# {markdown_safe(contents['scenario'])}",
        f"**{label(contents)}** {meaning(contents)}",
        *[
            f"- {markdown_safe(reason['text'])} {markdown_safe(reason['advice'])}"
            for reason in contents["reasons"]
        ],
        *[f"- Client: {markdown_safe(text)}." for text in contents["explanations"]],
        markdown_safe(contents["headline"]),
        *[f"- {markdown_safe(text)}" for text in contents["remarks"]],
        *[f"- **{one.title}.** {markdown_safe(one.text)}" for one in highlights(contents)],
        "## Requests",
        _conservation(contents["conservation"]),
        _outcomes(contents["outcomes"]),
        *[f"- {markdown_safe(text)}" for text in contents["conservation"]["broken"]],
        *[f"- {markdown_safe(problem['text'])}" for problem in contents["problems"]],
        "## Latency",
        *_latency(contents),
        *_streaming(contents),
        *_stalls(contents["bad_seconds"]),
        *_groups(contents["groups"]),
        *_load(contents),
        *_phases(contents["phases"]),
        *_slos(contents["slos"]),
        *_use_cases(contents),
        *_crossover(contents["crossover"]),
        *_rate_limits(contents["rate_limits"]),
        *_cache(contents["cache"]),
        *_fan_out(contents["fan_out"]),
        *_hedging(contents["hedging"]),
        "## Traffic",
        _traffic(contents["traffic"]),
        *_failures(contents["failures"]),
        *_definitions(contents["definitions"]),
        "## Environment",
        *_environment(contents),
    ]
    return "\n\n".join(block for block in blocks if block).replace("\n\n- ", "\n- ") + "\n"


def _rows(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are numbers and stand right."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(markdown_safe(cell) for cell in row)} |" for row in rows)])


def _conservation(c: Json) -> str:
    rows = [
        (name, count(c[name])) for name in ("scheduled", "dispatched", "client_drop", "not_reached", "lost")
    ]
    rows += [(f"ended: {name}", count(n)) for name, n in c["ended"].items()]
    return _rows(("whole run", "requests"), [*rows, ("censored", count(c["censored"]))])


def _outcomes(outcomes: Sequence[Json]) -> str:
    rows = [
        (
            row["ended"],
            count(row["requests"]),
            share(row["share"]),
            f"{share(row['low'])} – {share(row['high'])}",
        )
        for row in outcomes
    ]
    return _rows(("steady stage", "requests", "share", "95% interval"), rows) if rows else ""


def _latency(contents: Json) -> list[str]:
    out = []
    for view, title in (
        (SUCCESSES, "Among successes"),
        (OFFERED, "Of everything offered, failures counted as slowest"),
    ):
        rows = latency_rows(contents, view)
        if rows:
            header = (title, *(f"{q['label']} (ms)" for q in rows[0]["quantiles"]), "n", "n_eff (p99)")
            cells = [
                (
                    row["title"],
                    *(_cell(q) for q in row["quantiles"]),
                    count(row["n"]),
                    count(at(row, "p99")["n_eff"]),
                )
                for row in rows
            ]
            out.append(_rows(header, cells))
    return out or ["No request succeeded in the steady stage."]


def _streaming(contents: Json) -> list[str]:
    rows = traffic.streaming(contents)
    return [_rows(("streaming", "steady stage"), rows)] if rows else []


def _groups(groups: Sequence[Json]) -> list[str]:
    if len(groups) < 2:
        return []
    rows = []
    for group in groups:
        by = {row["metric"]: row["quantiles"] for row in group["latency"]}
        first, whole = by.get("ttft_sched", ()), [by[name] for name in WHOLE if name in by]
        cells = [_brief(qs) for qs in (first, whole[0] if whole else ())]
        rows.append(
            (f"{group['by']}: {group['name']}", count(group["requests"]), share(group["ok_share"]), *cells)
        )
    header = (
        "group, failures counted as slowest",
        "requests",
        "ok",
        "TTFT p50 / p95 / p99 (ms)",
        "whole answer, join or turnaround (ms)",
    )
    return ["## By kind of request", _rows(header, rows)]


def _brief(quantiles: Sequence[Json]) -> str:
    return (
        " / ".join(ms(q["value_ms"]) if q["value_is"] == "value" else q["value_is"] for q in quantiles) or "–"
    )


def _traffic(tables: Json) -> str:
    rows = [
        (name, one["pattern"], count(one["requests"]), f"{one['legs']['per_request'] or 0:.3g}", count(one["attempts"]["total"]), "; ".join(traffic.details(one)) or "–")
        for name, one in tables.items()
    ]  # fmt: skip
    header = ("traffic, whole run", "pattern", "requests", "legs per request", "attempts", "details")
    return _rows(header, rows) if rows else ""


def _cell(q: Json) -> str:
    shown = ms(q["value_ms"]) if q["value_is"] == "value" else q["value_is"]
    interval = f" ({bound(q, 'low')} – {bound(q, 'high')})" if "value" in {q["value_is"], q["low_is"]} else ""
    return f"{shown}{interval}{' unreliable' if q['mark'] == 'unreliable' else ''}"


def _slos(slos: Sequence[Json]) -> list[str]:
    rows = [
        (slo["name"], f"{slo['metric']} {slo['quantile']['label'] if slo['quantile'] else ''}", ms(slo["max_ms"]),
         _cell(slo["quantile"]) if slo["quantile"] else "–", slo["outcome"], slo["why"])
        for slo in slos
    ]  # fmt: skip
    return (
        [
            "## Objectives",
            _rows(("objective", "metric", "bound (ms)", "measured (ms)", "outcome", "why"), rows),
        ]
        if rows
        else []
    )


def _rate_limits(limits: Json | None) -> list[str]:
    if limits is None:
        return []
    text = rate_limits.summary(limits)
    tables = [_rows(header, rows) for _, header, rows in text["tables"]]
    facts = [_rows(("rate limits", "value"), text["facts"])]
    return ["## Rate limits", markdown_safe(limits["sentence"]), *facts, *tables, rate_limits.NOTE]


def _cache(cache: Json | None) -> list[str]:
    if cache is None:
        return []
    blocks = ["## Prompt cache", markdown_safe(cache["sentence"])]
    for name, entry in cache["traffic"].items():
        text = cache_section.summary(entry)
        blocks.append(_rows((f"cache, {markdown_safe(name)}", "value"), text["facts"]))
        blocks += [_rows(header, rows) for _, header, rows in text["tables"]]
    return [*blocks, cache_section.NOTE]


def _fan_out(found: Json | None) -> list[str]:
    if found is None:
        return []
    blocks = ["## Fan-out"]
    for one in found["tables"]:
        waits = [(name, *map(cell, qs), count(qs[0]["n"])) for name, qs in fan_out.waits(one)]
        blocks += [
            markdown_safe(one["sentence"]),
            _rows((markdown_safe(one["traffic"]), *PERCENTILES, "n"), waits),
        ]
        blocks.append(_rows(("legs", "value"), fan_out.facts(one)))
    return blocks


def _hedging(hedges: Json | None) -> list[str]:
    if hedges is None:
        return []
    found = hedges["variants"]
    rows = [
        (f"{name}, {metric}", *map(cell, qs), count(qs[0]["n"]))
        for name, metric, qs in hedging.latency_rows(found)
    ]
    return [
        "## Hedging",
        *(markdown_safe(one["sentence"]) for one in found if not one["is_control"]),
        *([hedges["interference"]] if hedges["interference"] else []),
        _rows(("since scheduled, failures slowest", *PERCENTILES, "n"), rows),
        *(_rows((markdown_safe(one["traffic"]), "value"), hedging.facts(one)) for one in found),
    ]


def _load(contents: Json) -> list[str]:
    fitted = contents["slopes"]
    rows = [
        (name, title, *map(slopes.cell, found), count(fitted[metric]["n"]))
        for name, title, metric, found in slopes.rows(fitted)
    ]
    table = [_rows(("cost (95% CI)", "of", "p50", "p95", "n"), rows)] if rows else []
    return [
        "## Latency under load",
        markdown_safe(contents["diagnosis"]["sentence"]),
        *table,
        *map(markdown_safe, slopes.not_estimated(fitted)),
    ]


def _stalls(bad: Json | None) -> list[str]:
    if bad is None or not bad["spells"]:
        return []
    return [markdown_safe(stalls.sentence(bad)), _rows(stalls.HEADER, stalls.rows(bad))]


def _crossover(found: Json | None) -> list[str]:
    if found is None:
        return []
    table = (
        [_rows(("of everything offered", *alternating.HEADER), alternating.rows(found))]
        if found["rows"]
        else []
    )
    return ["## A/B comparison in alternating blocks", markdown_safe(alternating.sentence(found)), *table]


def _use_cases(contents: Json) -> list[str]:
    found = contents["presets"]
    blocks = ["## Fit by use case", markdown_safe(alerts.sentence(contents["alerts"]))]
    if found is not None:
        blocks.insert(1, markdown_safe(found["sentence"]))
        blocks.append(_rows(("segment, failures slowest", *use_cases.header(found)), use_cases.rows(found)))
    return [*blocks, _rows(("alert", "fires", "measured", "n", "state"), alerts.rows(contents["alerts"]))]


def _phases(found: Json | None) -> list[str]:
    out = ["## Time breakdown", markdown_safe(sentence(found))]
    for table, title in (("split", "by the server log"), ("events", "phase"), ("timings", "Server-Timing")):
        parts = found[table] if found else []
        if parts:
            header = (title, "share", *(f"{q['label']} (ms)" for q in parts[0]["quantiles"]), "n")
            rows = [
                (one["name"], share(one["share"]), *map(_cell, one["quantiles"]), count(one["n"]))
                for one in parts
            ]
            out.append(_rows(header, rows))
    return out if out[2:] else []


def _definitions(tools: Sequence[Json]) -> list[str]:
    header = ("name there", "p50", "p99", "n", "here", "p50", "p99", "formula")
    out = []
    for one in tools:
        rows = [
            (
                f"{one['tool']}: {row['name']} ({row['unit']})",
                *_ends(row["percentiles"], row["mean"]),
                count(row["n"]),
                row["ours"] or "–",
                *_ends(row["our_percentiles"], row["our_value"]),
                row["formula"],
            )
            for row in one["metrics"]
        ]
        out.append(_rows(header, rows))
    return ["## Metrics as other tools define them", *out] if out else []


def _ends(percentiles: Json | None, total: float | None) -> tuple[str, str]:
    """p50 and p99, or the one number that a total has."""
    return (ms(percentiles["p50"]), ms(percentiles["p99"])) if percentiles else (ms(total), "–")


def _failures(failures: Sequence[Json]) -> list[str]:
    rows = [
        (
            f["ended"],
            f["status"] if f["status"] is not None else "–",
            f["error_type"] or "–",
            count(f["attempts"]),
            f["excerpt"],
        )
        for f in failures
    ]
    return ["## Errors", _rows(("class", "status", "type", "attempts", "first body"), rows)] if rows else []


def _environment(contents: Json) -> list[str]:
    environment, run = contents["environment"], contents["run"]
    facts = [
        ("run", contents["run_id"]), ("state", run["state"]), ("started", run["started_at"] or "unknown"),
        ("target", f"{run['target']['url'] or 'unknown'} ({run['target']['protocol'] or 'protocol unknown'})"),
        ("seed", "unknown" if environment["seed"] is None else environment["seed"]),
        ("run it again", run["reproduce"] or "–"),
        *(("version of " + key, value) for key, value in environment["versions"].items()),
    ]  # fmt: skip
    header = (
        "worker",
        "host",
        "state",
        "clock offset (ms)",
        "drift (ppm)",
        "requests",
        "missing",
        "rows lost",
    )
    workers = [_rows(header, map(_worker, environment["workers"]))] if environment["workers"] else []
    certificate = [markdown_safe(contents["certificate"]["text"])] if contents["certificate"] else []
    return [
        *certificate,
        _rows(("what", "value"), facts),
        *workers,
        markdown_safe(contents["clocks"]["sentence"]),
    ]


def _worker(w: Json) -> tuple[object, ...]:
    error = "" if w["error_ns"] is None else f" ± {_offset(w['error_ns'])}"
    drift = "–" if w["drift_ppb"] is None else f"{w['drift_ppb'] / 1000:.3g}"
    state = "; ".join([w["state"], *w["kept"]])
    missing = count(w["missing_requests"]) + losses.due([Stretch(**one) for one in w["missing"]])
    return (
        w["worker"], w["host"], state, _offset(w["offset_ns"]) + error, drift, count(w["requests"]), missing,
        count(w["rows_lost"]),
    )  # fmt: skip


def _offset(ns: int | None) -> str:
    return "–" if ns is None else ms(ns / 1e6)
