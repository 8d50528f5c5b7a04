"""The figures, as Plotly JSON: draws what others computed, with few enough points for any size of run.

Every axis has a unit. Colours and grid that depend on light or dark are set by the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
from plotly.subplots import make_subplots

from tailgauge.rows import schema
from tailgauge.thresholds import fewest_for
from tailgauge_analysis.load.chunks import BLOCK
from tailgauge_analysis.metrics.latency import OFFERED, waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slo import FAIL, ObjectiveResult
from tailgauge_analysis.metrics.timeline import FEWEST_WINDOWS, PS, Heat, Timeline, width
from tailgauge_analysis.sections.cache.effect import EACH
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.sections.hedging.section import METRICS as HEDGED
from tailgauge_analysis.sections.latency_under_load.slopes import Regression
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import percentile, plain, plural

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3f7fbf", "#d9822b", "#2f9e6e", "#9067c6", "#8a8f98"
LINES = (BLUE, ORANGE, GREEN, PURPLE, "#c2577b", "#3aa6b9", "#a08530", GREY)
CLASS_COLOURS = {
    schema.OK: "#86b8a2", schema.EMPTY: "#6fa8c9", schema.CANCELLED: GREY, schema.RATE_LIMITED: ORANGE,
    schema.OVERLOADED: "#b8622a", schema.SERVER_ERROR: "#c94f4f", schema.CLIENT_ERROR: PURPLE,
    schema.CONNECT_ERROR: "#7a4fa3", schema.TIMEOUT: "#a33b5c", schema.STREAM_ERROR: "#d1719b",
    schema.TRUNCATED: "#8c6d46", schema.CENSORED: "#6b7c92", schema.CLIENT_DROP: "#c9a13b",
}  # fmt: skip
RED = "#c94f4f"
POINTS = 400
IN_SIGHT = 4  # times the slowest value: the bound of an objective beyond is not drawn
LIBRARY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
plotly.io.templates.default = (
    None  # the page has looks of its own: Plotly's would be loaded to be thrown away
)
TIME = "time since the start of the run (s)"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its caption says what is seen, `plot` is Plotly JSON."""

    name: str
    title: str
    caption: str
    height: int
    plot: str


def figures(findings: Findings) -> list[Figure]:
    """Every figure that the run has data for, in the order of the page."""
    drawn = (
        _timeline(findings), _tail(findings), _gaps(findings), _classes(findings), _client(findings),
        _heat(findings.timeline.heat, findings.timeline.wait), _against(findings.slopes), _rate_limits(findings), _cache_over_time(findings), _cache(findings),
        _tokens(findings.timeline), _last_leg(findings), _fan_out(findings), _hedging(findings),
    )  # fmt: skip
    return [figure for figure in drawn if figure is not None]


def library() -> str:
    """plotly.js with its two-dimensional figures only, a third of the whole; to be put on the page once."""
    return LIBRARY.read_text(encoding="utf-8")


def _timeline(findings: Findings) -> Figure | None:
    t = findings.timeline
    if not t.offered_per_s.any():
        return None
    plot = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.46, 0.27, 0.27]
    )
    for trace in _ttft(t):
        plot.add_trace(trace, 1, 1)
    plot.add_trace(_line(t.at_s, t.offered_per_s, "offered", GREY, "%{y:,.4~g}/s", dash="dot"), 2, 1)
    plot.add_trace(_line(t.at_s, t.ended_per_s, "ended", GREEN, "%{y:,.4~g}/s"), 2, 1)
    plot.add_trace(_line(t.end_s, t.in_flight, "in flight", PURPLE, "%{y:,.0f}"), 3, 1)
    for row, title in enumerate(
        (f"{t.wait} since<br>scheduled (ms)", "requests<br>per second", "requests<br>in flight"), 1
    ):
        plot.update_yaxes(title_text=title, rangemode="tozero", row=row, col=1)
    shown = np.concatenate([t.ttft_max_ms, *(one.values_ms for one in t.ttft)])
    highest = float(shown[np.isfinite(shown)].max(initial=0.0))
    ends = np.array([0.0, float(t.end_s[-1])])
    for one in _bounds(findings, "ttft_sched", highest):
        assert one.bound is not None
        plot.add_trace(_bound(one, ends, np.full(2, one.bound)), 1, 1)
    _time_axis(plot, 3)
    _outside(plot, findings, t)
    caption = (
        f"Rates and requests in flight: one point per {_seconds(t.width_s)}, by scheduled time. {_ttft_caption(t)} "
        f"{t.wait} without failures. Shaded: outside the statistics."
    )
    return finish("timeline", "The run over time", caption, 520, plot)


def _bounds(findings: Findings, metric: str, highest: float) -> list[ObjectiveResult]:
    """The objectives on a latency whose bounds are in sight of values up to `highest`."""
    return [
        one
        for one in findings.slos
        if one.metric == metric and one.bound is not None and one.bound <= IN_SIGHT * highest
    ]


def _bound(one: ObjectiveResult, x: Floats, y: Floats) -> go.Scatter:
    """The line of an objective, with its name."""
    line = {"color": RED if one.outcome == FAIL else GREEN, "width": 1.5, "dash": "dash"}
    name = f"{plain(one.label, 60)}: {one.line.bound}"
    return go.Scatter(x=numbers(x), y=numbers(y), name=name, mode="lines", line=line, hoverinfo="skip")


def _ttft(t: Timeline) -> list[go.Scatter]:
    """Percentiles of windows that hold enough requests; without a p99, single requests and their maximum."""
    colours = {0.5: BLUE, 0.99: ORANGE}
    hover = "%{y:,.4~g} ms"
    lines = [
        _line(one.at_s, one.values_ms, f"{t.wait} {percentile(one.p)}", colours[one.p], hover).update(
            mode="lines+markers" if len(one.at_s) < 100 else "lines", marker={"size": 4}
        )
        for one in t.ttft
    ]
    if any(one.p == PS[-1] for one in t.ttft):
        return lines[::-1]
    dots = go.Scatter(
        x=numbers(t.points[0]), y=numbers(t.points[1]), mode="markers", name=f"{t.wait} of a request", hoverinfo="skip",
        marker={"size": 4, "opacity": 0.5, "color": GREY},
    )  # fmt: skip
    return [dots, _line(t.at_s, t.ttft_max_ms, f"{t.wait} maximum", ORANGE, hover), *lines]


def _ttft_caption(t: Timeline) -> str:
    shown = [
        f"{t.wait} {percentile(one.p)}: windows of {plural(one.width_s, 'second')} with at least {one.fewest:,} requests."
        for one in t.ttft
    ]
    if not any(one.p == PS[-1] for one in t.ttft):
        which = "each request" if t.points_every == 1 else f"one of {t.points_every} requests"
        shown.append(
            f"A point is {which}, and the maximum is of each {_seconds(t.width_s)}: this run is too short for a "
            f"{percentile(PS[-1])} over time, which needs {FEWEST_WINDOWS} windows of {fewest_for(PS[-1])} requests."
        )
    return " ".join(shown)


def _seconds(width_s: int) -> str:
    return "second" if width_s == 1 else f"{width_s} seconds"


def _outside(plot: go.Figure, findings: Findings, t: Timeline) -> None:
    """Shade what is not the steady stage."""
    end = float(t.end_s[-1])
    for start, stop in ((0.0, findings.steady.from_s), (findings.steady.to_s, end)):
        if min(stop, end) > start:
            plot.add_vrect(
                x0=start, x1=min(stop, end), fillcolor=GREY, opacity=0.14, line_width=0, row="all", col=1
            )


def _tail(findings: Findings) -> Figure | None:
    plot = go.Figure()
    slowest: list[float] = []
    shortest: list[float] = []
    longest: list[float] = []
    for name, colour, dash in (
        ("ttft_sched", BLUE, "solid"),
        ("ttft_sent", GREEN, "dot"),
        ("e2e_sched", ORANGE, "solid"),
    ):
        at, beyond = waits(BY_NAME[name], findings.of_target, OFFERED).tail()
        if not (at > 0).any():
            continue
        x, y = survival(at[at > 0], beyond[at > 0])
        slowest.append(float(y.min()))
        shortest.append(float(x[0]))
        longest.append(float(x[-1]))
        hover = "%{y:.3~%} took longer than %{x:,.4~g} ms"
        plot.add_trace(_line(x, y, BY_NAME[name].title, colour, hover, shape="hv", dash=dash))
        for one in _bounds(findings, name, longest[-1]):
            assert one.bound is not None
            plot.add_trace(_bound(one, np.full(2, one.bound), np.array([slowest[-1], 1.0])))
    if not slowest:
        return None
    _tail_axes(plot, min(slowest), min(shortest), max(longest))
    caption = (
        "A line crosses the level of p99 at its p99. A line that ends level above the bottom shows the share of requests "
        "without an answer by then."
    )
    return finish("tail", "Latency tail", caption, 420, plot)


def survival(at: Floats, beyond: Floats) -> tuple[Floats, Floats]:
    """The share beyond each time, at few enough points, dense in the tail; times ascending."""
    n = len(at)
    ranks = np.unique(
        np.concatenate((np.linspace(0, n - 1, POINTS // 2), n - np.geomspace(1, n, POINTS // 2)))
    ).astype(int)
    ranks = np.unique(np.clip(ranks, 0, n - 1))
    x, y = at[ranks], beyond[ranks]
    if y[-1] > 0:  # failures: the line runs on, level
        x, y = np.append(x, x[-1] * 1.5), np.append(y, y[-1])
    else:  # a logarithmic axis has no zero: nothing was slower than the last value
        x, y = x[:-1] if n > 1 else x, y[:-1] if n > 1 else np.ones(1)
    return np.concatenate((x[:1], x)), np.concatenate(([1.0], y))


def _tail_axes(plot: go.Figure, fewest: float, shortest: float, longest: float) -> None:
    """Logarithmic axes of shares that took longer, down to the share `fewest`."""
    steps = [p for p in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if p == 0 or 1 - p >= fewest * 0.99]
    plot.update_yaxes(
        type="log", title_text="share of offered requests that took longer", tickmode="array",
        tickvals=[1 - p for p in steps], ticktext=[_tail_label(p) for p in steps],
        range=[np.log10(min(fewest, 0.5)) - 0.1, 0.05],
    )  # fmt: skip
    plot.update_xaxes(type="log", title_text="latency (ms, logarithmic)", **_log_ticks(shortest, longest))
    plot.update_layout(hovermode="closest")


def _gaps(findings: Findings) -> Figure | None:
    gaps = findings.of_target.gaps_ns
    parts = [gaps[i : i + BLOCK] for i in range(0, len(gaps), BLOCK)]  # there may be a hundred million
    least = min((float(part[part > 0].min(initial=np.inf)) for part in parts), default=np.inf) / 1e6
    if least == np.inf:
        return None
    some = gaps[:: max(1, len(gaps) // BLOCK)]  # enough to choose a scale by
    middle = float(np.median(some[some > 0])) / 1e6 if (some > 0).any() else least
    low, high = max(least, middle / 100), float(gaps.max()) / 1e6
    wide = high / low > 20
    edges = np.geomspace(low, high, 81) if wide else np.linspace(low * 0.9, high * 1.1, 61)
    counts, zero = np.zeros(len(edges) - 1, np.int64), 0
    for part in parts:
        counts += np.histogram(np.clip(part[part > 0] / 1e6, edges[0], edges[-1]), edges)[0]
        zero += int((part <= 0).sum())
    shares = counts / len(gaps)
    steps = np.append(shares, shares[-1])
    plot = go.Figure(_line(edges, steps, "chunk gap", BLUE, "%{y:.3~%}", shape="hv", fill="tozeroy"))
    plot.update_xaxes(title_text="chunk gap (ms)")
    if wide:
        plot.update_xaxes(type="log", title_text="chunk gap (ms, logarithmic)", **_log_ticks(low, high))
    plot.update_yaxes(title_text="share of gaps", tickformat=".3~%", rangemode="tozero")
    plot.update_layout(showlegend=False)
    caption = f"{len(gaps):,} gaps between consecutive content chunks of one answer."
    caption += (
        f" {zero / len(gaps):.2%} are zero (chunks that came in one read) and not drawn." if zero else ""
    )
    caption += " The first bar holds every shorter gap." if least < low else ""
    return finish("gaps", "Chunk gaps", caption, 320, plot)


def _tail_label(p: float) -> str:
    return f"{100 * (1 - p):.4g}%" + (f" (p{100 * p:.6g})" if p else "")


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of each power of ten; every power alone where that would be many."""
    digits = (1, 2, 5) if high / low < 300 else (1,)
    at = [d * 10.0**power for power in range(-5, 9) for d in digits if low / 2 <= d * 10.0**power <= high * 2]
    return {"tickmode": "array", "tickvals": at, "ticktext": [f"{t:,g}" for t in at]}


def _classes(findings: Findings) -> Figure | None:
    t = findings.timeline
    if not t.classes_per_s:
        return None
    plot = go.Figure()
    order = {name: i for i, name in enumerate(CLASS_COLOURS)}
    for name in sorted(t.classes_per_s, key=lambda name: order.get(name, len(order))):
        plot.add_trace(go.Bar(
            x=numbers(t.at_s), y=numbers(t.classes_per_s[name]), name=name, width=t.width_s,
            marker={"color": CLASS_COLOURS.get(name, GREY), "line": {"width": 0}}, hovertemplate="%{y:,.4~g}/s",
        ))  # fmt: skip
    plot.update_layout(barmode="stack", bargap=0)
    top = float(np.sum(list(t.classes_per_s.values()), axis=0).max())
    plot.update_yaxes(title_text="requests per second", range=[0, top * 1.06])
    plot.update_xaxes(title_text=TIME)
    return finish("classes", "Request outcomes over time", "By scheduled time, warm-up included.", 320, plot)


def _tokens(t: Timeline) -> Figure | None:
    if not t.tokens_per_s.any():
        return None
    plot = go.Figure(
        _line(
            t.at_s, t.tokens_per_s, "output tokens", BLUE, "%{y:,.4~g} tokens/s", shape="hvh", fill="tozeroy"
        )
    )
    plot.update_yaxes(title_text="output tokens<br>per second", rangemode="tozero")
    plot.update_xaxes(title_text=TIME)
    plot.update_layout(showlegend=False)
    caption = "Of answers that ended ok, spread evenly from the first to the last content of each. Warm-up included."
    return finish("tokens", "Output tokens over time", caption, 280, plot)


def _client(findings: Findings) -> Figure | None:
    health = findings.frames.health
    if not len(health):
        return None
    plot = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    step = width(float(health["at_ns"].max()) / 1e9)
    panels = (
        ("cpu_share", 100, "CPU<br>(% of a core)", "%{y:.3~g}%"),
        ("loop_lag_max_ns", 1e-6, "loop lag,<br>worst (ms)", "%{y:,.4~g} ms"),
        ("receive_lag_max_ns", 1e-6, "receive lag,<br>worst (ms)", "%{y:,.4~g} ms"),
    )
    for i, (worker, rows) in enumerate(health.groupby("worker")):
        binned = rows.groupby((rows["at_ns"] / 1e9 // step).astype(int))[[name for name, *_ in panels]].max()
        at = binned.index.to_numpy(np.float64) * step
        for row, (name, factor, _, hover) in enumerate(panels, 1):
            values = binned[name].to_numpy(np.float64) * factor
            line = _line(at, values, f"worker {worker}", LINES[i % len(LINES)], hover)
            plot.add_trace(line.update(legendgroup=str(worker), showlegend=row == 1), row, 1)
    for row, (_, _, title, _) in enumerate(panels, 1):
        plot.update_yaxes(title_text=title, rangemode="tozero", row=row, col=1)
    _time_axis(plot, 3)
    caption = (
        "Receive lag: from the kernel's timestamp of the bytes to the read. It distorts no kernel timestamp."
    )
    return finish("client", "Client state", caption, 480, plot)


def _line(x: Floats, y: Floats, name: str, colour: str, hover: str, **more: Any) -> go.Scatter:
    line: dict[str, Any] = {"color": colour, "width": 1.8}
    line |= {key: more.pop(key) for key in ("shape", "dash") if key in more}
    mode = "lines+markers" if len(x) < 3 else "lines"
    return go.Scatter(
        x=numbers(x), y=numbers(y), name=name, mode=mode, line=line, hovertemplate=hover, **more
    )


def numbers(values: Floats) -> list[float | None]:
    """Plain numbers of six figures; None breaks a line where there is no value."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def _time_axis(plot: go.Figure, last_row: int) -> None:
    plot.update_xaxes(title_text=TIME, row=last_row, col=1)
    plot.update_layout(hoversubplots="axis")


def finish(name: str, title: str, caption: str, height: int, plot: go.Figure) -> Figure:
    """What all figures have in common goes into the plain tree: Plotly would look at each value for a millisecond."""
    tree = plot.to_plotly_json()
    layout = tree["layout"]
    layout |= {
        "template": {},
        "height": height,
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "hovermode": layout.get("hovermode", "x unified"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    for key, axis in layout.items():
        if key.startswith("xaxis"):
            axis |= {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
        elif key.startswith("yaxis"):
            axis |= {"automargin": True, "zeroline": False}
            axis.setdefault("title", {})["standoff"] = 10
    return Figure(name, title, caption, height, str(plotly.io.to_json(tree, validate=False)))


AXES = {
    "ttft_sent": ("uncached prompt tokens", "TTFT since sent (ms)", "%{x:,.0f} tokens: %{y:,.4~g} ms"),
    "tpot": ("answers arriving at the same time (mean)", "TPOT (ms)", "%{x:,.3~g} beside it: %{y:,.4~g} ms"),
}
SCALE = [[0.0, "#dce9f5"], [0.35, "#7fb2dc"], [0.7, "#3f7fbf"], [1.0, "#12365c"]]


def _heat(heat: Heat | None, name: str) -> Figure | None:
    if heat is None:
        return None
    shares = heat.counts / np.maximum(1, heat.counts.sum(axis=0))
    plot = go.Figure(
        go.Heatmap(
            x=numbers(heat.at_s), y=numbers(heat.middle_ms),
            z=[[round(float(v) * 100, 1) if v else None for v in row] for row in shares],
            colorscale=SCALE, zmin=0, hovertemplate="%{x:,.0f} s, about %{y:,.3~g} ms: %{z:.3~g}%<extra></extra>",
            colorbar={"title": {"text": "% of the<br>requests"}, "thickness": 10, "outlinewidth": 0},
        )
    )  # fmt: skip
    ticks = _log_ticks(float(heat.edges_ms[0]), float(heat.edges_ms[-1]))
    plot.update_yaxes(type="log", title_text=f"{name} since scheduled (ms, logarithmic)", **ticks)
    plot.update_xaxes(title_text=TIME)
    plot.update_layout(hovermode="closest")
    caption = (
        f"One column per {_seconds(heat.width_s)}, by scheduled time, warm-up included: the share of answered requests by waiting time. "
        "Two bands are two kinds of answers; a band that rises is a growing queue."
    )
    return finish("heat", f"{name} over time", caption, 340, plot)


def _against(found: list[Regression]) -> Figure | None:
    sure = {one.of: [s.p for s in one.slopes if s.name == one.against and not s.mark] for one in found}
    shown = [one for one in found if len(one.x) > 1 and sure[one.of]]
    if not shown:
        return None
    plot = make_subplots(rows=len(shown), cols=1, vertical_spacing=0.2)
    for row, one in enumerate(shown, 1):
        x_title, y_title, hover = AXES[one.of]
        colour = BLUE if one.of == "ttft_sent" else GREEN
        dots = go.Scatter(
            x=numbers(one.x), y=numbers(one.y), mode="markers", name=y_title.partition(" (")[0], showlegend=False,
            marker={"size": 5, "opacity": 0.55, "color": colour}, hovertemplate=hover + "<extra></extra>",
        )  # fmt: skip
        plot.add_trace(dots, row, 1)
        for p in sure[one.of]:
            plot.add_trace(_line_of(one, p, "solid" if p == 0.5 else "dot", row == 1), row, 1)
        plot.update_xaxes(title_text=x_title, row=row, col=1)
        plot.update_yaxes(title_text=y_title, rangemode="tozero", row=row, col=1)
    plot.update_layout(hovermode="closest")
    caption = (
        "One dot per answer, at most 400, evenly over the stage. The lines have the reliable slopes of the table; other "
        "influences on latency are in the dots, not in the lines."
    )
    return finish(
        "against",
        "TTFT against prompt tokens, TPOT against concurrent answers",
        caption,
        260 * len(shown) + 60,
        plot,
    )


def _line_of(one: Regression, p: float, dash: str, named: bool) -> go.Scatter:
    """A line of the slope at p, through the mean x and the p-quantile of what the slope leaves."""
    slope = next(s.value for s in one.slopes if (s.name, s.p) == (one.against, p))
    each = slope / (1000 if one.of == "ttft_sent" else 1)
    start = float(np.quantile(one.y - each * one.x, p, method="inverted_cdf"))
    ends = np.array([one.x.min(), one.x.max()])
    return go.Scatter(
        x=numbers(ends), y=numbers(start + each * ends), mode="lines", name=f"p{p * 100:g}", showlegend=named,
        line={"color": ORANGE, "width": 2, "dash": dash}, hoverinfo="skip",
    )  # fmt: skip


def _cache_over_time(findings: Findings) -> Figure | None:
    """A line for each traffic table, where one spans several bins."""
    if not any(len(one.over_time.at_s) > 2 for one in findings.cache):
        return None
    plot = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    for i, one in enumerate(findings.cache):
        of, name, colour = one.over_time, plain(one.traffic, 40), LINES[i % len(LINES)]
        hover = "%{y:.3~g}%"
        plot.add_trace(_line(of.at_s, 100 * of.read_share, name, colour, hover, shape="hvh"), 1, 1)
        cost = _line(of.at_s, 100 * of.cost_share, name, colour, hover, shape="hvh", showlegend=False)
        plot.add_trace(cost, 2, 1)
    plot.update_yaxes(title_text="input tokens<br>read (%)", range=[0, 103], row=1, col=1)
    plot.update_yaxes(title_text="input cost (% of<br>without a cache)", rangemode="tozero", row=2, col=1)
    _time_axis(plot, 2)
    step = _seconds(max(one.over_time.width_s for one in findings.cache))
    caption = f"One point per {step}, by the time of sending, warm-up included."
    return finish("cache-over-time", "Cache reads and input cost over time", caption, 360, plot)


def _cache(findings: Findings) -> Figure | None:
    """One figure: of the traffic table with the most answers of which some read and some did not."""
    both = [one for one in findings.cache if min(len(one.worth.hit_ms), len(one.worth.miss_ms)) >= EACH]
    if not both:
        return None
    one = max(both, key=lambda one: len(one.worth.hit_ms) + len(one.worth.miss_ms)).worth
    name = next(cache.traffic for cache in both if cache.worth is one)
    plot = go.Figure()
    for values, title, colour, dash in (
        (one.hit_ms, "read from the cache", BLUE, "solid"),
        (one.miss_ms, "read nothing", ORANGE, "dot"),
    ):
        x, y = _steps(values)
        hover = "%{y:.3~g}% within %{x:,.4~g} ms"
        plot.add_trace(_line(x, y, f"{title} ({len(values):,})", colour, hover, shape="hv", dash=dash))
    low = min(float(one.hit_ms[0]), float(one.miss_ms[0]))
    high = max(float(one.hit_ms[-1]), float(one.miss_ms[-1]))
    plot.update_xaxes(title_text="TTFT since sent (ms)")
    if low > 0 and high / low > 20:
        ticks = _log_ticks(low, high)
        plot.update_xaxes(type="log", title_text="TTFT since sent (ms, logarithmic)", **ticks)
    plot.update_yaxes(title_text="answers (%)", range=[0, 103])
    plot.update_layout(hovermode="closest")
    caption = (
        f"{plain(name, 80)}, answers of the steady stage. The gap between the lines is not the effect of the cache alone: "
        "hits and misses may differ in length and time. The regression accounts for that."
    )
    return finish("cache-ttft", "TTFT with and without the cache", caption, 360, plot)


def _steps(values: Floats) -> tuple[Floats, Floats]:
    """Per cent of the ascending values at most x, at few enough points."""
    ranks = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(np.int64))
    return values[ranks], 100 * (ranks + 1) / len(values)


FAN_OUT_FEWEST, LAST_FEWEST = 100, 20  # requests, below which a tail, and the last legs, are not drawn


def _fan_out(findings: Findings) -> Figure | None:
    """One figure: of the traffic table with the most complete requests."""
    drawn = [one for one in findings.fan_out if one.curves is not None and one.complete >= FAN_OUT_FEWEST]
    if not drawn:
        return None
    one = max(drawn, key=lambda one: one.complete)
    assert one.curves is not None
    lines = one.curves
    plot = go.Figure()
    for shares, name, colour, dash in (
        (lines.measured, "measured", BLUE, "solid"),
        (lines.conditional, "if legs shared only the load of the moment", ORANGE, "dash"),
        (lines.naive, "if legs were independent", GREEN, "dot"),
    ):
        kept = (shares > 0.5 / one.complete) & (lines.at_ms > 0)
        hover = "%{y:.3~%} took longer than %{x:,.4~g} ms"
        plot.add_trace(_line(lines.at_ms[kept], shares[kept], name, colour, hover, dash=dash))
    steps = [p for p in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999) if 1 - p >= 0.99 / one.complete]
    plot.update_yaxes(
        type="log", title_text="share of requests whose slowest leg took longer", tickmode="array",
        tickvals=[1 - p for p in steps], ticktext=[_tail_label(p) for p in steps],
        range=[np.log10(0.5 / one.complete), 0.05],
    )  # fmt: skip
    low, high = float(lines.at_ms[lines.at_ms > 0].min()), float(lines.at_ms.max())
    ticks = _log_ticks(low, high)
    plot.update_xaxes(type="log", title_text="slowest leg, since sent (ms, logarithmic)", **ticks)
    plot.update_layout(hovermode="closest")
    caption = (
        f"{one.traffic}, {one.complete:,} requests. From dotted to dashed: drift of the load. From dashed to solid: "
        "a cause shared by the legs of a request."
    )
    return finish("fan-out-slowest", "Slowest leg, measured and predicted", caption, 380, plot)


def _last_leg(findings: Findings) -> Figure | None:
    """One figure: of the traffic table with the most requests whose last leg is known."""
    known = [
        (one.critical, one) for one in findings.fan_out if one.critical and one.critical.n >= LAST_FEWEST
    ]
    if not known:
        return None
    last, one = max(known, key=lambda pair: pair[0].n)
    shares = np.array([[p.value or 0.0, p.low or 0.0, p.high or 0.0] for p in last.positions]).T * 100
    plot = go.Figure(
        go.Bar(
            x=list(range(len(last.positions))), y=numbers(shares[0]), marker={"color": BLUE},
            error_y={
                "type": "data", "symmetric": False, "array": numbers(shares[2] - shares[0]),
                "arrayminus": numbers(shares[0] - shares[1]), "color": GREY, "thickness": 1,
            },
            hovertemplate="leg %{x}: %{y:.3~g}%<extra></extra>",
        )
    )  # fmt: skip
    plot.add_hline(y=100 * last.even, line={"color": ORANGE, "dash": "dash", "width": 1.5})
    word = "longest" if one.is_sequential else "last"
    plot.update_yaxes(title_text=f"requests in which the leg is {word} (%)", rangemode="tozero")
    plot.update_xaxes(title_text="leg (number)", dtick=max(1, len(last.positions) // 10))
    plot.update_layout(hovermode="closest", showlegend=False)
    caption = f"{one.traffic}, {last.n:,} requests, with 95% intervals. Dashed: every leg alike."
    return finish("fan-out-last", f"Which leg is {word}", caption, 300, plot)


def _hedging(findings: Findings) -> Figure | None:
    """A control and its variants: the first metric that they have."""
    controls = {one.versus.traffic for one in findings.hedging if one.versus}
    shown = [one for one in findings.hedging if one.traffic in controls or one.versus]
    shared = [name for name in HEDGED if shown and all(name in one.waits for one in shown)]
    if not shared:
        return None
    plot, times, fewest = go.Figure(), [], []
    for i, one in enumerate(shown):
        at, beyond = one.waits[shared[0]].tail()
        if not (at > 0).any():
            continue
        x, y = survival(at[at > 0], beyond[at > 0])
        name, colour = (
            (f"{one.traffic} (no hedges)", GREY)
            if one.is_control
            else (f"{one.traffic} (hedged)", LINES[i % 7])
        )
        plot.add_trace(_line(x, y, name, colour, "%{y:.3~%} took longer than %{x:,.4~g} ms", shape="hv"))
        times += [float(x[0]), float(x[-1])]
        fewest.append(float(y.min()))
    if len(fewest) < 2:
        return None
    _tail_axes(plot, min(fewest), min(times), max(times))
    caption = f"{HEDGED[shared[0]]} since scheduled, failures slowest. The ratios have the intervals."
    return finish("hedging", "Latency tail with and without hedges", caption, 380, plot)


def _rate_limits(findings: Findings) -> Figure | None:
    """The figure, where a call got a 429."""
    found = findings.rate_limits
    if found is None or found.bins is None or not found.bins.refused.any():
        return None
    bins, levels = found.bins, [one for one in found.buckets if one.levels is not None]
    levels = [one for one in levels if one is found.binding.bucket] or levels[:1]
    rows = 3 if levels else 2
    plot = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    at, share = bins.at_s, bins.share
    known = ~np.isnan(share)
    edge = {"mode": "lines", "line": {"width": 0, "color": ORANGE}, "hoverinfo": "skip", "showlegend": False}
    plot.add_trace(go.Scatter(x=numbers(at[known]), y=numbers(100 * bins.high[known]), **edge), 1, 1)
    band = {
        **edge,
        "showlegend": True,
        "name": "95% interval",
        "fill": "tonexty",
        "fillcolor": "rgba(217,130,43,0.22)",
    }
    plot.add_trace(go.Scatter(x=numbers(at[known]), y=numbers(100 * bins.low[known]), **band), 1, 1)
    plot.add_trace(_line(at, 100 * share, "429s", ORANGE, "%{y:.3~g}%"), 1, 1)
    per = bins.width_s
    plot.add_trace(_line(at, bins.attempts / per, "attempts", GREY, "%{y:,.4~g}/s", dash="dot"), 2, 1)
    colours = [colour for colour in LINES if colour != GREY]
    for i, (kind, counts) in enumerate(bins.by_kind.items()):
        name = f"429s, {kind_name(kind)}"
        plot.add_trace(_line(at, counts / per, name, colours[(i + 1) % len(colours)], "%{y:,.4~g}/s"), 2, 1)
    plot.update_yaxes(title_text="429s<br>(% of attempts)", range=[0, 103], row=1, col=1)
    plot.update_yaxes(title_text="per second", rangemode="tozero", row=2, col=1)
    about = ""
    for one in levels:
        assert one.levels is not None
        name = f"{kind_name(one.kind)} left at least"
        plot.add_trace(_line(one.levels.at_s, one.levels.lowest, name, BLUE, "%{y:,.4~g}"), 3, 1)
        plot.update_yaxes(
            title_text=f"{kind_name(one.kind)}<br>left in the bucket", rangemode="tozero", row=3, col=1
        )
        about = " Below: the lowest level of the bucket in each bin, reconstructed from the cost of calls"
        about += " and compared with the headers." if one.levels.compared else "."
    plot.update_xaxes(title_text=TIME, row=rows, col=1)
    plot.update_layout(hoversubplots="axis")
    caption = f"One point per {_seconds(per)}, by the time of sending, the whole run; the band is the exact 95% interval.{about}"
    return finish("refusals", "429s over time", caption, 160 * rows + 60, plot)
