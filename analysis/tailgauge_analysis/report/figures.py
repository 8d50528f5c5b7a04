"""The figures, as Plotly JSON: draws what others computed, with few enough points for any size of run.

Every axis has a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailgauge.rows import schema
from tailgauge.thresholds import fewest_for
from tailgauge_analysis.metrics.latency import OFFERED, waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.timeline import FEWEST_WINDOWS, PS, WAITS, Heat, Timeline, width
from tailgauge_analysis.objectives.outcome import FAIL, ObjectiveResult
from tailgauge_analysis.reading.chunks import BLOCK
from tailgauge_analysis.report import plot as draw
from tailgauge_analysis.report.plot import BLUE, GREEN, GREY, LINES, ORANGE, PURPLE, Figure, Panel, Tree
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import objectives
from tailgauge_analysis.sections.cache import section as cache
from tailgauge_analysis.sections.cache.effect import EACH
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.hedging.section import METRICS as HEDGED
from tailgauge_analysis.sections.latency_under_load import section as latency_under_load
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.sections.slopes import Regression
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import percentile, plain, plural

CLASS_COLOURS = {
    schema.OK: "#86b8a2", schema.CUT: "#b9c96a", schema.EMPTY: "#6fa8c9", schema.REFUSED: "#5b4b9a",
    schema.FILTERED: "#8f83c4", schema.ABORTED: "#7d2f2f", schema.CANCELLED: GREY, schema.RATE_LIMITED: ORANGE,
    schema.OVERLOADED: "#b8622a", schema.SERVER_ERROR: "#c94f4f", schema.CLIENT_ERROR: PURPLE,
    schema.CONNECT_ERROR: "#7a4fa3", schema.TIMEOUT: "#a33b5c", schema.STREAM_ERROR: "#d1719b",
    schema.TRUNCATED: "#8c6d46", schema.PLUGIN_ERROR: "#4a4a4a", schema.CENSORED: "#6b7c92", schema.CLIENT_DROP: "#c9a13b",
}  # fmt: skip
RED = "#c94f4f"
POINTS = 400
PER_CENT = {"range": [0, 103]}  # of an axis
CLOSEST, UNIFIED = "closest", "x unified"  # what the hover shows
TOOK = "%{y:.3~%} took longer than %{x:,.4~g} ms"
IN_SIGHT = 4  # times the slowest value: the bound of an objective beyond is not drawn


def figures(run: Run) -> list[Figure]:
    """Every figure that the run has data for, in the order of the page."""
    drawn = (
        _timeline(run), _tail(run), _gaps(run), _classes(run), _client(run),
        _heat(run.result(_over_time).heat, run.result(_over_time).wait), _against(run.result(latency_under_load.compute).slopes), _rate_limits(run), _cache_over_time(run), _cache(run),
        _tokens(run.result(_over_time)), _last_leg(run), _hedging(run),
    )  # fmt: skip
    return [figure for figure in drawn if figure is not None]


def _over_time(run: Run) -> Timeline:
    return Timeline(run.frames)


def _timeline(run: Run) -> Figure | None:
    t = run.result(_over_time)
    if not t.offered_per_s.any():
        return None
    shown = np.concatenate([t.ttft_max_ms, *(one.values_ms for one in t.ttft)])
    highest = float(shown[np.isfinite(shown)].max(initial=0.0))
    ends = np.array([0.0, float(t.end_s[-1])])
    in_sight = _bounds(run, WAITS[t.wait], highest)
    bounds = [_bound(one, ends, np.full(2, bound)) for one, bound in in_sight]
    rates = (
        draw.curve(t.at_s, t.offered_per_s, "offered", GREY, "%{y:,.4~g}/s", dash="dot"),
        draw.curve(t.at_s, t.ended_per_s, "ended", GREEN, "%{y:,.4~g}/s"),
    )
    panels = (
        Panel(f"{t.wait} since<br>scheduled (ms)", [*_ttft(t), *bounds]),
        Panel("requests<br>per second", rates),
        Panel("requests<br>in flight", [draw.curve(t.end_s, t.in_flight, "in flight", PURPLE, "%{y:,.0f}")]),
    )
    plot = draw.stacked(panels, heights=(0.46, 0.27, 0.27))
    grey = {"type": "rect", "fillcolor": GREY, "opacity": 0.14, "line": {"width": 0}}
    for start, stop in (
        (0.0, run.steady.from_s),
        (run.steady.to_s, ends[1]),
    ):  # not the steady stage
        if min(stop, ends[1]) > start:
            draw.mark(plot, start, min(stop, ends[1]), **grey)
    caption = (
        f"Rates and requests in flight: one point per {_seconds(t.width_s)}, by scheduled time. {_ttft_caption(t)} "
        f"{t.wait} without failures. Shaded: outside the statistics."
    )
    return draw.finish("timeline", "The run over time", caption, 520, plot)


def _bounds(run: Run, metric: str, highest: float) -> list[tuple[ObjectiveResult, float]]:
    """The objectives on a latency whose bounds are in sight of values up to `highest`, with these."""
    of = [
        (one, one.bound)
        for one in run.result(objectives.compute).slo
        if one.metric == metric and one.bound is not None
    ]
    return [(one, bound) for one, bound in of if bound <= IN_SIGHT * highest]


def _bound(one: ObjectiveResult, x: Floats, y: Floats) -> Tree:
    """The line of an objective, with its name."""
    line = {"color": RED if one.outcome == FAIL else GREEN, "width": 1.5, "dash": "dash"}
    name = f"{plain(one.label, 60)}: {one.line.bound}"
    return draw.points(x, y, name, "lines", line=line, hoverinfo="skip")


def _ttft(t: Timeline) -> list[Tree]:
    """Percentiles of windows that hold enough requests; without a p99, single requests and their maximum."""
    colours, hover = {0.5: BLUE, 0.99: ORANGE}, "%{y:,.4~g} ms"
    lines: list[Tree] = []
    for one in t.ttft:
        line = draw.curve(one.at_s, one.values_ms, f"{t.wait} {percentile(one.p)}", colours[one.p], hover)
        mode = "lines+markers" if len(one.at_s) < 100 else "lines"
        lines.append(line | {"mode": mode, "marker": {"size": 4}})
    if any(one.p == PS[-1] for one in t.ttft):
        return lines[::-1]
    marker = {"size": 4, "opacity": 0.5, "color": GREY}
    dots = draw.points(*t.points, f"{t.wait} of a request", "markers", marker=marker, hoverinfo="skip")
    return [dots, draw.curve(t.at_s, t.ttft_max_ms, f"{t.wait} maximum", ORANGE, hover), *lines]


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


def _tail(run: Run) -> Figure | None:
    lines, bounds = [], []
    for name, colour, dash in (
        ("ttft_sched", BLUE, "solid"),
        ("ttft_sent", GREEN, "dot"),
        ("e2e_sched", ORANGE, "solid"),
        ("turnaround", PURPLE, "solid"),
    ):
        x, y = survival(*waits(BY_NAME[name], run.of_target, OFFERED).tail())
        if len(x):
            lines.append(draw.curve(x, y, BY_NAME[name].title, colour, TOOK, shape="hv", dash=dash))
            ends = np.array([y.min(), 1.0])
            bounds += [_bound(one, np.full(2, at), ends) for one, at in _bounds(run, name, float(x[-1]))]
    if not lines:
        return None
    plot = tails(lines, "share of offered requests that took longer")
    plot["data"].extend(bounds)
    caption = (
        "A line crosses the level of p99 at its p99. A line that ends level above the bottom shows the share of requests "
        "without an answer by then."
    )
    return draw.finish("tail", "Latency tail", caption, 360, plot)


def survival(at: Floats, beyond: Floats) -> tuple[Floats, Floats]:
    """The share beyond each time above 0, at few enough points, dense in the tail; times ascending."""
    at, beyond = at[at > 0], beyond[at > 0]
    n = len(at)
    if not n:
        return at, beyond
    ranks = np.concatenate((np.linspace(0, n - 1, POINTS // 2), n - np.geomspace(1, n, POINTS // 2)))
    ranks = np.unique(np.clip(ranks.astype(int), 0, n - 1))
    x, y = at[ranks], beyond[ranks]
    if y[-1] > 0:  # failures: the line runs on, level
        x, y = np.append(x, x[-1] * 1.5), np.append(y, y[-1])
    else:  # a logarithmic axis has no zero: nothing was slower than the last value
        x, y = x[:-1] if n > 1 else x, y[:-1] if n > 1 else np.ones(1)
    return np.concatenate((x[:1], x)), np.concatenate(([1.0], y))


def tails(lines: Sequence[Tree], y: str, of: str = "latency") -> Tree:
    """Lines of shares that took longer, on logarithmic axes."""
    fewest = min(min(line["y"]) for line in lines)
    steps = [p for p in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if p == 0 or 1 - p >= fewest * 0.99]
    axis = {
        "type": "log", "tickmode": "array", "tickvals": [1 - p for p in steps], "ticktext": [_tail_label(p) for p in steps],
        "range": [np.log10(min(fewest, 0.5)) - 0.1, 0.05],
    }  # fmt: skip
    x = _log_ms(of, min(line["x"][0] for line in lines), max(line["x"][-1] for line in lines))
    return draw.stacked([Panel(y, lines, axis)], x, hovermode=CLOSEST)


def _log_ms(of: str, low: float, high: float) -> Tree:
    """A logarithmic axis of milliseconds."""
    return {"type": "log", **draw.titled(f"{of} (ms, logarithmic)"), **log_ticks(low, high)}


def _gaps(run: Run) -> Figure | None:
    gaps = run.of_target.gaps_ns
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
    line = draw.curve(
        edges, steps, "chunk gap", BLUE, "%{y:.3~%}", shape="hv", fill="tozeroy", showlegend=False
    )
    axis = {"tickformat": ".3~%", "rangemode": "tozero"}
    x = _log_ms("chunk gap", low, high) if wide else draw.titled("chunk gap (ms)")
    plot = draw.stacked([Panel("share of gaps", [line], axis)], x, hovermode=CLOSEST if wide else UNIFIED)
    caption = f"{len(gaps):,} gaps between consecutive content chunks of one answer."
    if zero:
        caption += f" {zero / len(gaps):.2%} are zero (chunks that came in one read) and not drawn."
    caption += " The first bar holds every shorter gap." if least < low else ""
    return draw.finish("gaps", "Chunk gaps", caption, 260, plot)


def _tail_label(p: float) -> str:
    return f"{100 * (1 - p):.4g}%" + (f" (p{100 * p:.6g})" if p else "")


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of each power of ten; every power alone where that would be many."""
    digits = (1, 2, 5) if high / low < 300 else (1,)
    at = [d * 10.0**power for power in range(-5, 9) for d in digits if low / 2 <= d * 10.0**power <= high * 2]
    return {"tickmode": "array", "tickvals": at, "ticktext": [f"{t:,g}" for t in at]}


def _classes(run: Run) -> Figure | None:
    t = run.result(_over_time)
    if not t.classes_per_s:
        return None
    order = {name: i for i, name in enumerate(CLASS_COLOURS)}
    bars = [
        {
            "type": "bar", "x": draw.numbers(t.at_s), "y": draw.numbers(t.classes_per_s[name]), "name": name, "width": t.width_s,
            "marker": {"color": CLASS_COLOURS.get(name, GREY), "line": {"width": 0}}, "hovertemplate": "%{y:,.4~g}/s",
        }
        for name in sorted(t.classes_per_s, key=lambda name: order.get(name, len(order)))
    ]  # fmt: skip
    top = float(np.sum(list(t.classes_per_s.values()), axis=0).max())
    panel = Panel("requests per second", bars, {"range": [0, top * 1.06]})
    plot = draw.stacked([panel], barmode="stack", bargap=0)
    return draw.finish(
        "classes", "Request outcomes over time", "By scheduled time, warm-up included.", 280, plot
    )


def _tokens(t: Timeline) -> Figure | None:
    if not t.tokens_per_s.any():
        return None
    style = {"shape": "hvh", "fill": "tozeroy", "showlegend": False}
    line = draw.curve(t.at_s, t.tokens_per_s, "output tokens", BLUE, "%{y:,.4~g} tokens/s", **style)
    caption = (
        "Of complete answers, spread evenly from the first to the last content of each. Warm-up included."
    )
    plot = draw.stacked([Panel("output tokens<br>per second", [line])])
    return draw.finish("tokens", "Output tokens over time", caption, 280, plot)


def _client(run: Run) -> Figure | None:
    health = run.frames.health
    if not len(health):
        return None
    step = width(float(health["at_ns"].max()) / 1e9)
    columns = (
        ("cpu_share", 100, "CPU<br>(% of a core)", "%{y:.3~g}%"),
        ("loop_lag_max_ns", 1e-6, "loop lag,<br>worst (ms)", "%{y:,.4~g} ms"),
        ("receive_lag_max_ns", 1e-6, "receive lag,<br>worst (ms)", "%{y:,.4~g} ms"),
    )
    panels: list[Panel] = []
    for column, factor, title, hover in columns:
        lines = []
        for i, (worker, rows) in enumerate(health.groupby("worker")):
            worst = rows.groupby((rows["at_ns"] / 1e9 // step).astype(int))[column].max() * factor
            at = worst.index.to_numpy(np.float64) * step
            more = {"legendgroup": str(worker), "showlegend": not panels}
            values = worst.to_numpy(np.float64)
            lines.append(draw.curve(at, values, f"worker {worker}", LINES[i % len(LINES)], hover, **more))
        panels.append(Panel(title, lines))
    caption = (
        "Receive lag: from the kernel's timestamp of the bytes to the read. It distorts no kernel timestamp."
    )
    return draw.finish("client", "Client state", caption, 480, draw.stacked(panels))


AXES = {
    "ttft_sent": ("uncached prompt tokens", "TTFT since sent (ms)", "%{x:,.0f} tokens: %{y:,.4~g} ms"),
    "tpot": (
        "answers arriving at the same time",
        "TPOT of one gap (ms)",
        "%{x:,.3~g} arriving: %{y:,.4~g} ms",
    ),
}
SCALE = [[0.0, "#dce9f5"], [0.35, "#7fb2dc"], [0.7, "#3f7fbf"], [1.0, "#12365c"]]


def _heat(heat: Heat | None, name: str) -> Figure | None:
    if heat is None:
        return None
    shares = heat.counts / np.maximum(1, heat.counts.sum(axis=0))
    tiles = {
        "type": "heatmap", "x": draw.numbers(heat.at_s), "y": draw.numbers(heat.middle_ms),
        "z": [[round(float(v) * 100, 1) if v else None for v in row] for row in shares],
        "colorscale": SCALE, "zmin": 0, "hovertemplate": "%{x:,.0f} s, about %{y:,.3~g} ms: %{z:.3~g}%<extra></extra>",
        "colorbar": {**draw.titled("% of the<br>requests"), "thickness": 10, "outlinewidth": 0},
    }  # fmt: skip
    axis = {"type": "log", **log_ticks(float(heat.edges_ms[0]), float(heat.edges_ms[-1]))}
    panel = Panel(f"{name} since<br>scheduled (ms, logarithmic)", [tiles], axis)
    plot = draw.stacked([panel], hovermode=CLOSEST)
    caption = (
        f"One column per {_seconds(heat.width_s)}, by scheduled time, warm-up included: the share of answered requests by waiting time. "
        "Two bands are two kinds of answers; a band that rises is a growing queue."
    )
    return draw.finish("heat", f"{name} over time", caption, 300, plot)


def _against(found: list[Regression]) -> Figure | None:
    def sure(one: Regression) -> list[float]:
        return [s.p for s in one.slopes if s.name == one.against and s.value is not None and not s.mark]

    shown = [one for one in found if len(one.x) > 1 and sure(one)]
    if not shown:
        return None
    panels: list[Panel] = []
    for one in shown:
        x, y, hover = AXES[one.of]
        marker = {"size": 5, "opacity": 0.55, "color": BLUE if one.of == "ttft_sent" else GREEN}
        style = {"marker": marker, "hovertemplate": hover + "<extra></extra>", "showlegend": False}
        dots = draw.points(one.x, one.y, y.partition(" (")[0], "markers", **style)
        lines = [_line_of(one, p, "solid" if p == 0.5 else "dot", not panels) for p in sure(one)]
        panels.append(Panel(y, [dots, *lines], x=x))
    caption = (
        "One dot per answer, or gap between its chunks, at most 400, evenly over the stage. The lines have the reliable slopes of the table; other "
        "influences on latency are in the dots, not in the lines."
    )
    title = "TTFT against prompt tokens, TPOT against concurrent answers"
    plot = draw.stacked(panels, gap=0.2, hovermode=CLOSEST)
    return draw.finish("against", title, caption, 260 * len(shown) + 60, plot)


def _line_of(one: Regression, p: float, dash: str, named: bool) -> Tree:
    """A line of the slope at p, through the mean x and the p-quantile of what the slope leaves."""
    slope = next(s.value or 0.0 for s in one.slopes if (s.name, s.p) == (one.against, p))
    each = slope / (1000 if one.of == "ttft_sent" else 1)
    start = float(np.quantile(one.y - each * one.x, p, method="inverted_cdf"))
    ends = np.array([one.x.min(), one.x.max()])
    line = {"color": ORANGE, "width": 2, "dash": dash}
    style = {"line": line, "showlegend": named, "hoverinfo": "skip"}
    return draw.points(ends, start + each * ends, f"p{p * 100:g}", "lines", **style)


def _cache_over_time(run: Run) -> Figure | None:
    """A line for each traffic table, where one spans several bins."""
    if not any(len(one.over_time.at_s) > 2 for one in run.result(cache.compute).cache):
        return None
    reads, costs = [], []
    for i, one in enumerate(run.result(cache.compute).cache):
        at, name, colour = one.over_time.at_s, plain(one.traffic, 40), LINES[i % len(LINES)]
        style = {"hover": "%{y:.3~g}%", "shape": "hvh"}
        reads.append(draw.curve(at, 100 * one.over_time.read_share, name, colour, **style))
        costs.append(draw.curve(at, 100 * one.over_time.cost_share, name, colour, **style, showlegend=False))
    panels = (
        Panel("input tokens<br>read (%)", reads, PER_CENT),
        Panel("input cost (% of<br>without a cache)", costs),
    )
    step = _seconds(max(one.over_time.width_s for one in run.result(cache.compute).cache))
    caption = f"One point per {step}, by the time of sending, warm-up included."
    plot = draw.stacked(panels, gap=0.1)
    return draw.finish("cache-over-time", "Cache reads and input cost over time", caption, 360, plot)


def _cache(run: Run) -> Figure | None:
    """One figure: of the traffic table with the most answers of which some read and some did not."""
    both = [
        one
        for one in run.result(cache.compute).cache
        if min(len(one.worth.hit_ms), len(one.worth.miss_ms)) >= EACH
    ]
    if not both:
        return None
    one = max(both, key=lambda one: len(one.worth.hit_ms) + len(one.worth.miss_ms))
    hits, misses = one.worth.hit_ms, one.worth.miss_ms
    lines = [
        draw.curve(*_steps(values), f"{title} ({len(values):,})", colour, "%{y:.3~g}% within %{x:,.4~g} ms", shape="hv", dash=dash)
        for values, title, colour, dash in (
            (hits, "read from the cache", BLUE, "solid"),
            (misses, "read nothing", ORANGE, "dot"),
        )
    ]  # fmt: skip
    low, high = float(min(hits[0], misses[0])), float(max(hits[-1], misses[-1]))
    wide = low > 0 and high / low > 20
    x = _log_ms("TTFT since sent", low, high) if wide else draw.titled("TTFT since sent (ms)")
    plot = draw.stacked([Panel("answers (%)", lines, PER_CENT)], x, hovermode=CLOSEST)
    caption = (
        f"{plain(one.traffic, 80)}, answers of the steady stage. The gap between the lines is not the effect of the cache alone: "
        "hits and misses may differ in length and time. The regression accounts for that."
    )
    return draw.finish("cache-ttft", "TTFT with and without the cache", caption, 360, plot)


def _steps(values: Floats) -> tuple[Floats, Floats]:
    """Per cent of the ascending values at most x, at few enough points."""
    ranks = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(np.int64))
    return values[ranks], 100 * (ranks + 1) / len(values)


LAST_FEWEST = 20  # requests, below which the last legs are not drawn


def _last_leg(run: Run) -> Figure | None:
    """One figure: of the traffic table with the most requests whose last leg is known."""
    known = [(one.critical, one) for one in run.result(fan_out.compute) if one.critical]
    last, one = max(known, key=lambda pair: pair[0].n, default=(None, None))
    if last is None or one is None or last.n < LAST_FEWEST:
        return None
    shares = [[p.value or 0.0, p.low or 0.0, p.high or 0.0] for p in last.positions]
    value, low, high = np.array(shares).T * 100
    bars = {
        "type": "bar", "x": list(range(len(last.positions))), "y": draw.numbers(value), "marker": {"color": BLUE},
        "error_y": {**draw.error_bars(value, low, high), "color": GREY, "thickness": 1},
        "hovertemplate": "leg %{x}: %{y:.3~g}%<extra></extra>", "showlegend": False,
    }  # fmt: skip
    word = "longest" if one.is_sequential else "last"
    even, ends = 100 * last.even, {"x0": 0, "x1": 1, "xref": "x domain"}
    line = {"type": "line", "line": {"color": ORANGE, "dash": "dash", "width": 1.5}}
    panel = Panel(f"requests in which the leg is {word} (%)", [bars])
    x = draw.titled("leg (number)") | {"dtick": max(1, len(last.positions) // 10)}
    plot = draw.stacked(
        [panel], x, hovermode=CLOSEST, shapes=[{**line, **ends, "y0": even, "y1": even, "yref": "y"}]
    )
    caption = f"{one.traffic}, {last.n:,} requests, with 95% intervals. Dashed: every leg alike."
    return draw.finish("fan-out-last", f"Which leg is {word}", caption, 300, plot)


def _hedging(run: Run) -> Figure | None:
    """A control and its variants: the first metric that they have."""
    controls = {one.versus.traffic for one in run.result(hedging.compute) if one.versus}
    shown = [one for one in run.result(hedging.compute) if one.traffic in controls or one.versus]
    shared = [name for name in HEDGED if shown and all(name in one.waits for one in shown)]
    if not shared:
        return None
    lines = []
    for i, one in enumerate(shown):
        x, y = survival(*one.waits[shared[0]].tail())
        name = f"{one.traffic} ({'no hedges' if one.is_control else 'hedged'})"
        if len(x):
            lines.append(draw.curve(x, y, name, GREY if one.is_control else LINES[i % 7], TOOK, shape="hv"))
    if len(lines) < 2:
        return None
    plot = tails(lines, "share of offered requests that took longer")
    caption = f"{HEDGED[shared[0]]} since scheduled, failures slowest. The ratios have the intervals."
    return draw.finish("hedging", "Latency tail with and without hedges", caption, 380, plot)


def _rate_limits(run: Run) -> Figure | None:
    """The figure, where a call got a 429."""
    found = run.result(rate_limits.compute)
    if found is None or found.bins is None or not found.bins.refused.any():
        return None
    bins, levels = found.bins, [one for one in found.buckets if one.levels is not None]
    levels = [one for one in levels if one is found.binding.bucket] or levels[:1]
    at, per, known = bins.at_s, bins.width_s, ~np.isnan(bins.share)
    edge = {"line": {"width": 0, "color": ORANGE}, "hoverinfo": "skip"}
    band = {"fill": "tonexty", "fillcolor": "rgba(217,130,43,0.22)"}
    shares = (
        draw.points(at[known], 100 * bins.high[known], "", "lines", showlegend=False, **edge),
        draw.points(at[known], 100 * bins.low[known], "95% interval", "lines", **edge, **band),
        draw.curve(at, 100 * bins.share, "429s", ORANGE, "%{y:.3~g}%"),
    )
    rates = [draw.curve(at, bins.attempts / per, "attempts", GREY, "%{y:,.4~g}/s", dash="dot")]
    colours = [colour for colour in LINES if colour != GREY]
    for i, (kind, counts) in enumerate(bins.by_kind.items(), 1):
        name = f"429s, {kind_name(kind)}"
        rates.append(draw.curve(at, counts / per, name, colours[i % len(colours)], "%{y:,.4~g}/s"))
    panels = [Panel("429s<br>(% of attempts)", shares, PER_CENT), Panel("per second", rates)]
    about = ""
    for one in levels:
        assert one.levels is not None
        kind = kind_name(one.kind)
        line = draw.curve(one.levels.at_s, one.levels.lowest, f"{kind} left at least", BLUE, "%{y:,.4~g}")
        panels.append(Panel(f"{kind}<br>left in the bucket", [line]))
        about = " Below: the lowest level of the bucket in each bin, by the headers."
    caption = f"One point per {_seconds(per)}, by the time of sending, the whole run; the band is the exact 95% interval.{about}"
    return draw.finish(
        "refusals", "429s over time", caption, 160 * len(panels) + 60, draw.stacked(panels, gap=0.08)
    )
