"""What page, Markdown and terminal all show of the contents: the verdict's label, latency rows."""

from __future__ import annotations

from tailgauge_analysis.metrics.latency import SUCCESSES
from tailgauge_analysis.metrics.metrics import UNIT
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.formatting import plural, share, share_range
from tailgauge_analysis.text.json_values import Json

MEANING = {
    "VALID": "The numbers can be used.",
    "DEGRADED": "The numbers can be used with the reservations below.",
    "INVALID": "Do not use these numbers.",
}
DRY_RUN = (
    "Dry run against the simulated endpoint on a simulated clock: no client was measured and no real target called, so "
    "checks of the client do not apply."
)
COALESCED = 1.2  # tokens per chunk, above which TPOT after the first chunk is shown


def label(contents: Json) -> str:
    """The verdict as it is printed."""
    return f"{contents['verdict']} dry run" if contents["dry_run"] else str(contents["verdict"])


def meaning(contents: Json) -> str:
    """The verdict in a sentence."""
    if not contents["dry_run"]:
        return MEANING[contents["verdict"]]
    return f"{DRY_RUN} {MEANING['INVALID']}" if contents["verdict"] == "INVALID" else DRY_RUN


def healthy(contents: Json) -> str:
    """The health of the target in a sentence; nothing without a request."""
    h = contents["health"]
    if not h:
        return ""
    ends = f"95% CI {share_range(h['low'], h['high'])}"
    return (
        f"Health of the target: {h['outcome']}: {share(h['share'])} of {plural(h['offered'], 'offered request')} got a complete "
        f"answer ({ends}), {share(h['bound'])} expected."
    )


def latency_rows(contents: Json, view: str) -> list[Json]:
    """Rows of a view without those that repeat another, and without p99.9 if no row has one."""
    rows = [row for row in contents["latency"] if (row["view"], row["unit"]) == (view, UNIT) and row["n"]]
    rows = [row for row in rows if view == SUCCESSES or row["without_answer"]]
    same = [row["quantiles"] for row in rows if row["metric"] == "ttft_sched"]
    rows = [r for r in rows if r["metric"] not in {"ttft_text", "ttft_event"} or r["quantiles"] not in same]
    if (contents["streams"]["tokens_per_chunk_p50"] or 0) <= COALESCED:
        rows = [row for row in rows if row["metric"] != "tpot_c"]
    if all(row["quantiles"][-1]["value_is"] == TOO_FEW for row in rows):
        rows = [{**row, "quantiles": row["quantiles"][:-1]} for row in rows]
    return rows


def at(row: Json, label: str) -> Json:
    """The quantile of a row with that label."""
    return next(q for q in row["quantiles"] if q["label"] == label)
