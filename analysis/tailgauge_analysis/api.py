"""The public API: the names of the analysis, some of its statistics among them, that notebooks and experiments import.

Nothing is defined here: each name comes from the module that has it. The analysis itself, its report included, imports those
modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailgauge_analysis.comparing.block_growth import block_growth
from tailgauge_analysis.comparing.comparison import STABLE, Growing
from tailgauge_analysis.comparing.curve import (
    RATE,
    UNKNOWN,
    Curve,
    CurveObjective,
    CurveOutcome,
    CurvePoint,
    CurveQuantile,
    Ends,
)
from tailgauge_analysis.comparing.curve_files import FILES_NOTE
from tailgauge_analysis.comparing.curve_files import files as curve_files
from tailgauge_analysis.comparing.curve_pictures import objectives as curve_objectives
from tailgauge_analysis.comparing.curve_pictures import pictures as curve_pictures
from tailgauge_analysis.comparing.effect import unequal_work
from tailgauge_analysis.comparing.pairs import BLOCK_E2E
from tailgauge_analysis.comparing.run_summary import answered as block_answered
from tailgauge_analysis.comparing.run_summary import work as block_work
from tailgauge_analysis.comparing.variant_blocks import block_pairs
from tailgauge_analysis.metrics.backlog import FEWEST_FOR_GROWTH
from tailgauge_analysis.metrics.latency import OFFERED, offered_ms, waits
from tailgauge_analysis.metrics.latency import row as latency_row
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.pace import AT_ONCE, BUFFERED, tokens_per_chunk
from tailgauge_analysis.metrics.pace import missing as tpot_missing
from tailgauge_analysis.metrics.stability import BACKLOG
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import waiting
from tailgauge_analysis.objectives.goodput import good_requests, unknown_pace
from tailgauge_analysis.objectives.objective import Criterion, criteria, on_latency
from tailgauge_analysis.objectives.outcome import decide as decide_objective
from tailgauge_analysis.reading.frames import CALL, Frames, ended_as
from tailgauge_analysis.reading.frames import load as load_frames
from tailgauge_analysis.reading.rate_limit_headers import INPUT, OUTPUT, REQUESTS, TOKENS
from tailgauge_analysis.runs import Percentile, Run, compare, list_runs, load
from tailgauge_analysis.sections.cache.calls import CacheSettings
from tailgauge_analysis.sections.cache.calls import settings as cache_settings
from tailgauge_analysis.sections.cache.cost import RELATIVE, no_price, spent, tariff, with_usage
from tailgauge_analysis.sections.cache.section import Cache as CacheResult
from tailgauge_analysis.sections.cache.section import compute as cache_results
from tailgauge_analysis.sections.cache.shares import fixed_hit, sliding_hit
from tailgauge_analysis.sections.fan_out.section import FanOut
from tailgauge_analysis.sections.fan_out.section import compute as fan_outs
from tailgauge_analysis.sections.hedging.section import compute as hedging_variants
from tailgauge_analysis.sections.latency_under_load.diagnosis import diagnosis
from tailgauge_analysis.sections.objectives import compute as judged_objectives
from tailgauge_analysis.sections.rate_limits.buckets import (
    DECISIONS,
    Bucket,
    Estimate,
    known_buckets,
)
from tailgauge_analysis.sections.rate_limits.costs import uncharged
from tailgauge_analysis.sections.rate_limits.refusals import kinds as refusal_kinds
from tailgauge_analysis.sections.rate_limits.refusals import refused as refused_attempts
from tailgauge_analysis.sections.rate_limits.section import compute as rate_limits
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR
from tailgauge_analysis.sections.streaming import streams as stream_flow
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.bootstrap import ratio as ratio_interval
from tailgauge_analysis.stats.contrast import Contrast, mean_contrast, quantile_contrast
from tailgauge_analysis.stats.estimate import Estimate as MeanEstimate
from tailgauge_analysis.stats.proportions import Proportion, counted, proportion, times_to_decide
from tailgauge_analysis.stats.quantile_regression import predicted as predicted_quantile
from tailgauge_analysis.stats.quantiles import (
    FEW_EPISODES,
    NORMAL_975,
    TOO_FEW,
    Floats,
    Ints,
    Mask,
    Quantile,
    at_level,
    n_min,
    quantiles,
)
from tailgauge_analysis.stats.stationarity import growth as growth_between
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.cells import quantile_cell, share_cell, with_interval
from tailgauge_analysis.text.formatting import (
    count,
    figures,
    listed,
    ms,
    ms_or_failed,
    percentile,
    plural,
    sentence,
    share,
)
from tailgauge_analysis.text.json_values import Json, number
from tailgauge_analysis.text.picture import (
    BLUE,
    GREEN,
    GREY,
    RED,
    Mark,
    Panel,
    Picture,
    PlotCurve,
    estimate_curve,
    tail_curve,
    tail_picture,
)
from tailgauge_analysis.text.quantile import UNPUBLISHED as FOR_FIGURES
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.quantile import quantile as quantile_values
from tailgauge_analysis.text.section import (
    EXITS,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    PASS,
    Card,
    Cell,
    Column,
    Measurement,
    Numbers,
    ObjectiveLine,
    Report,
    Result,
    Section,
    Table,
    TextFiles,
    Tone,
    Value,
)
from tailgauge_analysis.text.section import worst as worst_outcome
from tailgauge_analysis.verdict.checks import CHECKS, CLIENT_ERROR, COMPARABLE, COUNTED
from tailgauge_analysis.verdict.cold_cache import SHARE as NO_READS
from tailgauge_analysis.verdict.distortion import figures_moved_beside
from tailgauge_analysis.verdict.explanations import wait_for_core_ms
from tailgauge_analysis.verdict.verdict import Check, reasons
from tailgauge_analysis.verdict.verdict import worst as worst_verdict

if TYPE_CHECKING:  # plotly and Jinja take a second to load
    from tailgauge_analysis.report.report import FinishedReport, write_report

__all__ = [
    "AT_ONCE",
    "BACKLOG",
    "BLOCK_E2E",
    "BLUE",
    "BUFFERED",
    "BY_NAME",
    "CALL",
    "CHECKS",
    "CLIENT_ERROR",
    "COMPARABLE",
    "COUNTED",
    "DECISIONS",
    "EXITS",
    "FAIL",
    "FEWEST_FOR_GROWTH",
    "FEW_EPISODES",
    "FILES_NOTE",
    "FOR_FIGURES",
    "GREEN",
    "GREY",
    "INCONCLUSIVE",
    "INPUT",
    "INTERRUPTED",
    "MOST_FACTOR",
    "NORMAL_975",
    "NO_READS",
    "OFFERED",
    "OUTPUT",
    "PASS",
    "RATE",
    "RED",
    "RELATIVE",
    "REQUESTS",
    "SEED",
    "STABLE",
    "TOKENS",
    "TOO_FEW",
    "UNKNOWN",
    "Bucket",
    "CacheResult",
    "CacheSettings",
    "Card",
    "Cell",
    "Check",
    "Column",
    "Contrast",
    "Criterion",
    "Curve",
    "CurveObjective",
    "CurveOutcome",
    "CurvePoint",
    "CurveQuantile",
    "Ends",
    "Estimate",
    "FanOut",
    "FinishedReport",
    "Floats",
    "Frames",
    "Growing",
    "Ints",
    "Json",
    "Mark",
    "Mask",
    "MeanEstimate",
    "Measurement",
    "Numbers",
    "ObjectiveLine",
    "Panel",
    "Percentile",
    "Picture",
    "PlotCurve",
    "Proportion",
    "Quantile",
    "Report",
    "Result",
    "Run",
    "Section",
    "Steady",
    "Table",
    "TextFiles",
    "Tone",
    "Value",
    "Waits",
    "at_level",
    "block_answered",
    "block_growth",
    "block_pairs",
    "block_work",
    "cache_results",
    "cache_settings",
    "compare",
    "count",
    "counted",
    "criteria",
    "curve_files",
    "curve_objectives",
    "curve_pictures",
    "decide_objective",
    "diagnosis",
    "ended_as",
    "estimate_curve",
    "fan_outs",
    "figures",
    "figures_moved_beside",
    "fixed_hit",
    "good_requests",
    "growth_between",
    "hedging_variants",
    "judged_objectives",
    "kind_name",
    "known_buckets",
    "latency_row",
    "list_runs",
    "listed",
    "load",
    "load_frames",
    "mean_contrast",
    "ms",
    "ms_or_failed",
    "n_min",
    "no_price",
    "number",
    "offered_ms",
    "on_latency",
    "percentile",
    "plain_values",
    "plural",
    "predicted_quantile",
    "proportion",
    "quantile_cell",
    "quantile_contrast",
    "quantile_values",
    "quantiles",
    "rate_limits",
    "ratio_interval",
    "reasons",
    "refusal_kinds",
    "refused_attempts",
    "sentence",
    "share",
    "share_cell",
    "sliding_hit",
    "spent",
    "stream_flow",
    "tail_curve",
    "tail_picture",
    "tariff",
    "times_to_decide",
    "tokens_per_chunk",
    "tpot_missing",
    "uncharged",
    "unequal_work",
    "unknown_pace",
    "wait_for_core_ms",
    "waiting",
    "waits",
    "with_interval",
    "with_usage",
    "worst_outcome",
    "worst_verdict",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in {"FinishedReport", "write_report"}:
        raise AttributeError(f"module 'tailgauge_analysis' has no attribute {name!r}")
    return getattr(import_module("tailgauge_analysis.report.report"), name)
