"""The page: one HTML file that opens anywhere, offline, without any request.

Everything shown passes through Jinja's autoescape, but for our style sheet, plotly.js and the figures' JSON, in which `<`
cannot occur. The page's Content-Security-Policy also forbids every request, and every script but these two.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tailgauge_analysis.compare import alternating
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE
from tailgauge_analysis.report.figures import Figure, library
from tailgauge_analysis.report.views import at, healthy, highlights, label, latency_rows, meaning
from tailgauge_analysis.sections import alerts, phases, traffic, use_cases
from tailgauge_analysis.sections.cache import section as cache_section
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency_under_load import slopes
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.text import formatting
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import between, bound, mark_text
from tailgauge_analysis.verdict import client_error, stalls

TEMPLATES = Path(__file__).parent / "templates"

WAITS = {
    "ttft_sched": "TTFT p99 since scheduled",
    "join_sched": "Join p99 since scheduled",
    "turnaround": "Turnaround p99",
}


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
        between=between, bound=bound, mark_text=mark_text, alert_ends=alerts.ends, plural=formatting.plural, traffic_details=traffic.details, at=at, key_values=traffic.key_values,
        alerts_sentence=alerts.sentence, alert_value=alerts.value, use_case_bounds=use_cases.bounds,
        crossover_sentence=alternating.sentence, crossover_rows=alternating.rows,
        slope_rows=slopes.rows, slopes_not_estimated=slopes.not_estimated,
        limits_summary=rate_limits.summary, limits_note=rate_limits.NOTE,
        cache_summary=cache_section.summary, cache_note=cache_section.NOTE,
        fan_out_waits=fan_out.waits, fan_out_facts=fan_out.facts,
        stalls_sentence=stalls.sentence, client_error_rows=client_error.rows_of, client_error_header=client_error.HEADER,
        hedging_rows=hedging.latency_rows, hedging_facts=hedging.facts,
    )  # fmt: skip
    return environment


def html(contents: Json, figures: Sequence[Figure]) -> str:
    """The whole page."""
    outcomes = [slo["outcome"] for slo in contents["slos"]]
    return render(
        "report.html.jinja",
        figures,
        **{**contents, "run_facts": contents["run"]},
        label=label(contents),
        phases_sentence=phases.sentence(contents["phases"]),
        highlights=highlights(contents),
        streaming=traffic.streaming(contents),
        healthy=healthy(contents),
        meaning=meaning(contents),
        waits=WAITS,
        successes=latency_rows(contents, SUCCESSES),
        offered=latency_rows(contents, OFFERED),
        slo_rest=", ".join(f"{k} {name}" for name in (FAIL, INCONCLUSIVE) if (k := outcomes.count(name))),
    )


def render(template: str, figures: Sequence[Figure], **values: Any) -> str:
    """A page: two scripts if it has figures, and the policy that allows only these."""
    sources = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8")) if figures else ("", "")
    return _environment().get_template(template).render(
        figures=[(figure, _in_script(figure.plot)) for figure in figures],
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        plotly_js=Markup(sources[0]),  # noqa: S704 - the library's own file
        script=Markup(sources[1]),  # noqa: S704 - our own file
        script_hashes=Markup(" ".join(map(_hash, sources)) if figures else "'none'"),  # noqa: S704 - base64
        **values,
    )  # fmt: skip


def _hash(script: str) -> str:
    """The source expression of a Content-Security-Policy that lets this script run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _in_script(plot: str) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(plot.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))  # noqa: S704


def _tree(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
