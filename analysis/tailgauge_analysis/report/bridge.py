"""The sections that do not return a `Section` yet: their old templates and Markdown. Goes away with the last of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tailgauge_analysis.compare import alternating
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES
from tailgauge_analysis.report.figures import Figure, library
from tailgauge_analysis.report.page import _hash, _in_script
from tailgauge_analysis.report.views import at, healthy, latency_rows
from tailgauge_analysis.sections.cache import section as cache_section
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.text import formatting
from tailgauge_analysis.text.formatting import count, markdown_safe, ms, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import between, bound, cell, mark_text, value_text
from tailgauge_analysis.text.tables import markdown_table
from tailgauge_analysis.verdict import client_error, losses, stalls
from tailgauge_analysis.verdict.losses import Stretch

TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    """The templates, compiled once, with what they may call."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ms=formatting.ms,
        count=formatting.count,
        share=formatting.share,
        clock=formatting.clock,
        plain=formatting.plain,
        tree=_tree,
    )
    environment.globals.update(
        between=between, bound=bound, mark_text=mark_text, plural=formatting.plural, at=at,
        crossover_sentence=alternating.sentence, crossover_rows=alternating.rows,
        limits_summary=rate_limits.summary, limits_note=rate_limits.NOTE,
        cache_summary=cache_section.summary, cache_note=cache_section.NOTE,
        stalls_sentence=stalls.sentence, client_error_rows=client_error.rows_of, client_error_header=client_error.HEADER,
    )  # fmt: skip
    return environment


def old_html(contents: Json, figures: Sequence[Figure]) -> Markup:
    """The old sections of a page."""
    page = (
        _environment()
        .get_template("bridge.html.jinja")
        .render(
            **{**contents, "run_facts": contents["run"]},
            figures=[(figure, _in_script(figure.plot)) for figure in figures],
            healthy=healthy(contents),
            successes=latency_rows(contents, SUCCESSES),
            offered=latency_rows(contents, OFFERED),
        )
    )
    return Markup(page)  # noqa: S704 - escaped by the template


def render(template: str, figures: Sequence[Figure], **values: Any) -> str:
    """A page: two scripts if it has figures, and the policy that allows only these."""
    sources = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8")) if figures else ("", "")
    return _environment().get_template(template).render(
        figures=[(figure, _in_script(figure.plot)) for figure in figures],
        style=Markup((TEMPLATES / "bridge.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        plotly_js=Markup(sources[0]),  # noqa: S704 - the library's own file
        script=Markup(sources[1]),  # noqa: S704 - our own file
        script_hashes=Markup(" ".join(map(_hash, sources)) if figures else "'none'"),  # noqa: S704 - base64
        **values,
    )  # fmt: skip


def _tree(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


WHOLE = ("e2e_sched", "join_sched", "turnaround")
COUNTS = ("scheduled", "dispatched", "client_drop", "not_reached", "lost")


def old_markdown(contents: Json) -> list[str]:
    """The old sections of report.md."""
    return [
        *_requests(contents),
        *_latency(contents),
        *_client_error(contents),
        *_groups(contents["groups"]),
        *_slos(contents["slos"]),
        *_crossover(contents["crossover"]),
        *_rate_limits(contents["rate_limits"]),
        *_cache(contents["cache"]),
        *_failures(contents["failures"]),
        *_definitions(contents["definitions"]),
        *_environment_(contents),
    ]


def _titled(title: str, *blocks: str) -> list[str]:
    """A section, if it has anything."""
    return [f"## {title}", *blocks] if any(blocks) else []


def _requests(contents: Json) -> list[str]:
    c = contents["conservation"]
    counts = [(name, count(c[name])) for name in COUNTS]
    counts += [(f"ended: {name}", count(n)) for name, n in c["ended"].items()]
    outcomes = [
        (
            one["ended"],
            count(one["requests"]),
            share(one["share"]),
            between(one),
        )
        for one in contents["outcomes"]
    ]
    texts = [*c["broken"], *(problem["text"] for problem in contents["problems"])]
    return [
        "## Requests",
        markdown_table(("whole run", "requests"), [*counts, ("censored", count(c["censored"]))]),
        markdown_table(("steady stage", "requests", "share of requests", "95% interval"), outcomes),
        healthy(contents),
        *(f"- {markdown_safe(text)}" for text in texts),
    ]


def _latency(contents: Json) -> list[str]:
    views = ((SUCCESSES, "Among successes"), (OFFERED, "Of everything offered, failures counted as slowest"))
    tables = []
    for view, title in views:
        rows = latency_rows(contents, view)
        labels = [f"{q['label']} (ms)" for q in rows[0]["quantiles"]] if rows else []
        cells = [
            (row["title"], *map(cell, row["quantiles"]), count(row["n"]), count(at(row, "p99")["n_eff"]))
            for row in rows
        ]
        tables += [markdown_table((title, *labels, "n", "n_eff (p99)"), cells)] if rows else []
    return ["## Latency", *(tables or ["No request succeeded in the steady stage."])]


def _groups(groups: Sequence[Json]) -> list[str]:
    rows = []
    for group in groups:
        by = {row["metric"]: row["quantiles"] for row in group["latency"]}
        whole = next((by[name] for name in WHOLE if name in by), ())
        cells = map(_values, (by.get("ttft_sched", ()), whole))
        name = f"{group['by']}: {group['name']}"
        rows.append((name, count(group["requests"]), share(group["ok_share"]), *cells))
    header = (
        "group, failures counted as slowest", "requests", "ok, of those not abandoned", "TTFT p50 / p95 / p99 (ms)",
        "whole answer, join or turnaround (ms)",
    )  # fmt: skip
    return _titled("By kind of request", markdown_table(header, rows)) if len(rows) > 1 else []


def _values(quantiles: Sequence[Json]) -> str:
    return " / ".join(map(value_text, quantiles)) or "–"


def _slos(slos: Sequence[Json]) -> list[str]:
    rows = [
        (slo["name"], f"{slo['metric']} {slo['quantile']['label'] if slo['quantile'] else ''}", ms(slo["max_ms"]),
         cell(slo["quantile"]) if slo["quantile"] else "–", slo["outcome"], slo["why"])
        for slo in slos
    ]  # fmt: skip
    header = ("objective", "metric", "bound (ms)", "measured (ms)", "outcome", "why")
    return _titled("Objectives", markdown_table(header, rows))


def _client_error(contents: Json) -> list[str]:
    bad, rows = contents["bad_seconds"], client_error.rows_of(contents["client_error"])
    stalled = markdown_safe(stalls.sentence(bad)) if bad and bad["spells"] else ""
    return [stalled, markdown_table(client_error.HEADER, rows) if rows else ""]


def _crossover(found: Json | None) -> list[str]:
    if found is None:
        return []
    table = markdown_table(("offered requests, ms", *alternating.HEADER), alternating.rows(found))
    return _titled("A/B comparison in alternating blocks", markdown_safe(alternating.sentence(found)), table)


def _rate_limits(limits: Json | None) -> list[str]:
    if limits is None:
        return []
    text = rate_limits.summary(limits)
    tables = (markdown_table(header, rows) for _, header, rows in text["tables"])
    facts = markdown_table(("rate limits", "value"), text["facts"])
    return ["## Rate limits", markdown_safe(limits["sentence"]), facts, *tables, rate_limits.NOTE]


def _cache(cache: Json | None) -> list[str]:
    if cache is None:
        return []
    blocks = ["## Prompt cache", markdown_safe(cache["sentence"])]
    for name, entry in cache["traffic"].items():
        text = cache_section.summary(entry)
        blocks.append(markdown_table((f"cache, {name}", "value"), text["facts"]))
        blocks += [markdown_table(header, rows) for _, header, rows in text["tables"]]
    return [*blocks, cache_section.NOTE]


def _failures(failures: Sequence[Json]) -> list[str]:
    rows = [
        (f["ended"], "–" if f["status"] is None else f["status"], f["error_type"] or "–", count(f["attempts"]), f["excerpt"])
        for f in failures
    ]  # fmt: skip
    return _titled("Errors", markdown_table(("class", "status", "type", "attempts", "first body"), rows))


def _definitions(tools: Sequence[Json]) -> list[str]:
    header = ("their metric", "p50", "p99", "n", "our metric", "p50", "p99", "formula")
    tables = []
    for one in tools:
        rows = [
            (f"{one['tool']}: {row['name']} ({row['unit']})", *_ends(row["percentiles"], row["mean"]), count(row["n"]),
             row["ours"] or "–", *_ends(row["our_percentiles"], row["our_value"]), row["formula"])
            for row in one["metrics"]
        ]  # fmt: skip
        tables.append(markdown_table(header, rows))
    return _titled("Metrics as other tools define them", *tables)


def _ends(percentiles: Json | None, total: float | None) -> tuple[str, str]:
    """p50 and p99, or the one number that a total has."""
    return (ms(percentiles["p50"]), ms(percentiles["p99"])) if percentiles else (ms(total), "–")


def _environment_(contents: Json) -> list[str]:
    environment, run = contents["environment"], contents["run"]
    facts = [
        ("run", contents["run_id"]), ("state", run["state"]), ("started", run["started_at"] or "unknown"),
        ("target", f"{run['target']['url'] or 'unknown'} ({run['target']['protocol'] or 'protocol unknown'})"),
        ("seed", "unknown" if environment["seed"] is None else environment["seed"]),
        ("reproduce", run["reproduce"] or "–"),
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
    return [
        "## Environment",
        markdown_safe(contents["certificate"]["text"]) if contents["certificate"] else "",
        markdown_table(("what", "value"), facts),
        markdown_table(header, map(_worker, environment["workers"])),
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
