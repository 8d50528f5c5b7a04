"""The report in a terminal, about twenty lines of at most 100 columns, without control characters of others."""

from __future__ import annotations

from pathlib import Path

from tailgauge_analysis.metrics.latency import SUCCESSES
from tailgauge_analysis.report.views import healthy, label
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, interval_text, mark_text, value_text
from tailgauge_analysis.text.tables import fixed_table, wrapped

SHOWN = ("p50", "p95", "p99")
METRICS = ("ttft_sched", "ttft_sent", "tpot", "chunk_gap", "e2e_sched", "join_sched", "turnaround")
MOST_REASONS = 3
MOST_SLOS = 3


def summary(contents: Json, page: Path) -> str:
    """The terminal text."""
    lines = [f"{label(contents)}  {contents['run_id']}"]
    lines += [
        line for reason in contents["reasons"][:MOST_REASONS] for line in wrapped(f"  - {reason['text']}", 2)
    ]
    if len(contents["reasons"]) > MOST_REASONS:
        lines.append(
            f"  - and {plural(len(contents['reasons']) - MOST_REASONS, 'more reason')}: see the report"
        )
    if contents["explanations"] and contents["reasons"]:
        lines += wrapped(f"  client: {contents['explanations'][0]}", 3)
    lines += [line for text in contents["remarks"][:2] for line in wrapped(text, 2)]
    lines += [
        *_conservation(contents),
        *_rates(contents),
        *_latency(contents),
        *_outcomes(contents),
        *_slos(contents),
    ]
    return "\n".join([*lines, f"report: {page}"])


def _conservation(contents: Json) -> list[str]:
    c = contents["conservation"]
    return wrapped(
        f"scheduled {count(c['scheduled'])} = dispatched {count(c['dispatched'])} + client_drop {count(c['client_drop'])}"
        f" + not_reached {count(c['not_reached'])} + lost {count(c['lost'])}",
        1,
    )


def _rates(contents: Json) -> list[str]:
    run = contents["run"]
    rates = ((name, run[f"{name}_per_s"]) for name in ("offered", "accepted", "completed"))
    shown = [
        "Requests/s: " + ", ".join(f"{figures(rate)} {name}" for name, rate in rates if rate is not None)
    ]
    found = contents["stability"]["findings"]  # which are among the remarks
    return wrapped("; ".join(shown), 1) + ([] if found else wrapped(contents["stability"]["sentence"], 2))


def _latency(contents: Json) -> list[str]:
    rows = [r for r in contents["latency"] if r["metric"] in METRICS and r["view"] == SUCCESSES and r["n"]]
    if not rows:
        return ["no latency: no request succeeded"]
    cells = [("among successes, ms", *SHOWN, "95% interval of p99", "n", "n_eff")]
    for row in rows:
        by = {q["label"]: q for q in row["quantiles"]}
        p99 = by["p99"]
        ends = interval_text(p99) if p99["value_is"] == VALUE else "too few requests"
        mark = " *" if mark_text(p99) else ""
        values = (value_text(by[label]) for label in SHOWN)
        cells.append((row["title"], *values, ends + mark, count(row["n"]), count(p99["n_eff"])))
    lines = fixed_table(("<28", ">9", ">9", ">9", "<22", ">10", ">10"), cells)
    if contents["tpot_missing"]["sentence"]:
        lines += wrapped(contents["tpot_missing"]["sentence"], 2)
    if any(line.rstrip().find(" *") > 0 for line in lines[1:]):
        lines.append("* unreliable: fewer than 5 slow episodes, or n_eff below 50")
    return lines


def _outcomes(contents: Json) -> list[str]:
    ended = ", ".join(
        f"{row['ended']} {count(row['requests']['k'])} ({share(row['requests']['value'])})"
        for row in contents["outcomes"]
    )
    return [*wrapped(f"requests of the steady stage: {ended or 'none'}", 1), *wrapped(healthy(contents), 2)]


def _slos(contents: Json) -> list[str]:
    lines = []
    for slo in contents["slos"][:MOST_SLOS]:
        q = slo["quantile"]
        seen = f"{q['label']} {value_text(q)}" if q else "not measured"
        ends = f" ms [{interval_text(q)}]" if q and q["value_is"] == VALUE else ""
        line = f"SLO {plain(slo['name'], 40)}: {slo['outcome']}: {slo['metric']} {seen}{ends}, bound {ms(slo['max_ms'])} ms"
        lines += wrapped(line, 1)
    if len(contents["slos"]) > MOST_SLOS:
        lines.append(f"and {plural(len(contents['slos']) - MOST_SLOS, 'SLO')} more: see the report")
    return lines
