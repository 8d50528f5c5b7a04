"""Two traffic tables that took turns in one run: each block as a block of an experiment.

Rule: the same arithmetic as between runs (effects.py), on stretches of one. Which arm a block was is read off the rows:
the table that most of its requests came from. A block counts from its wash-out to its end, a pair if both blocks are
whole and of different arms.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailgauge.rows import schema
from tailgauge_analysis.compare.block import PS, Block, view
from tailgauge_analysis.compare.contents import contents
from tailgauge_analysis.compare.design import Design
from tailgauge_analysis.compare.effects import effects, overall
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.sign_flips import FEWEST
from tailgauge_analysis.text.formatting import ms, plain, plural, share
from tailgauge_analysis.text.json_values import Json, table

METRICS = ("ttft_sched", "tpot", "e2e_sched", "join_sched", "turnaround")
NOT_COMPARABLE = "not comparable"
ENOUGH = 20
MOST = 500  # pairs


def turns(scenario: Json, of_target: Steady) -> Json | None:
    """What arm B changed, as `tailgauge compare --json` says it; None where no tables took turns."""
    asked = table(scenario, "crossover")
    a, b = asked.get("a"), asked.get("b")
    block_s, washout_s = (_number(asked.get(key)) for key in ("block_s", "washout_s"))
    if not isinstance(a, str) or not isinstance(b, str) or not block_s:
        return None
    pairs = _pairs(of_target, (a, b), block_s, washout_s or 0.0)
    judged = _design(pairs)
    threshold = _number(asked.get("threshold")) or 0.05
    rows = effects(pairs, METRICS, threshold, decide=not judged.against) if pairs else []
    word = NOT_COMPARABLE if judged.against else overall(rows)
    return {"a": a, "b": b, "block_s": block_s, "washout_s": washout_s or 0.0} | contents(
        pairs, rows, judged, [], threshold, word
    )


def _pairs(
    stage: Steady, arms: tuple[str, str], block_s: float, washout_s: float
) -> list[tuple[Block, Block]]:
    traffic = stage.requests["traffic"]
    is_b = (traffic == arms[1]).to_numpy(np.bool_)
    ours = (traffic == arms[0]).to_numpy(np.bool_) | is_b
    at = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    number = np.floor(at / block_s).astype(np.int64)
    counted = ours & (at - number * block_s >= washout_s)
    found = []
    for pair in range(min(MOST, int((stage.seconds + 1e-6) // (2 * block_s)))):
        blocks = [
            _block(stage, counted & (number == 2 * pair + i), is_b, 2 * pair + i, block_s) for i in (0, 1)
        ]
        by = dict(one for one in blocks if one is not None)
        if len(by) == 2:
            found.append((by[False], by[True]))
    return found


def _block(
    stage: Steady, mask: npt.NDArray[np.bool_], is_b: npt.NDArray[np.bool_], number: int, block_s: float
) -> tuple[bool, Block] | None:  # fmt: skip
    """Whether it is arm B's, and its figures; None of a block without requests."""
    if not mask.any():
        return None
    arm = bool(is_b[mask].mean() > 0.5)
    part = stage.only(mask & (is_b == arm), gaps=False)
    ended = part.requests["ended"]
    asked = ended != schema.CANCELLED
    quantiles = {
        (name, q.p): q
        for name in METRICS
        for q in latency.row(BY_NAME[name], part, view(BY_NAME[name]), PS).quantiles
    }
    answered = float((ended == schema.OK).sum() / asked.sum()) if asked.any() else 0.0
    return arm, Block(
        f"block {number}",
        False,
        None,
        "",
        "",
        None,
        None,
        block_s,
        int(asked.sum()),
        answered,
        None,
        quantiles,
    )


def _design(pairs: list[tuple[Block, Block]]) -> Design:
    n = len(pairs)
    if n < FEWEST:
        return Design(
            [
                f"{plural(n, 'pair')} of whole blocks: below {FEWEST} no difference can be told from chance at 5%"
            ],
            [],
        )
    return Design([], [f"{n} pairs; {ENOUGH} or more make the interval narrow"] if n < ENOUGH else [])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


HEADER = ("A", "B", "change", "95% interval", "p (Holm)", "verdict")


def sentence(told: Json) -> str:
    """The answer."""
    arms = f"B ({plain(told['b'], 80)}) against A ({plain(told['a'], 80)})"
    blocks = f"{plural(told['pairs'], 'pair')} of blocks of {told['block_s']:g} s that took turns"
    if told["against"]:
        return f"{arms}: not comparable, {told['against'][0]}."
    found = [row for row in told["rows"] if row["verdict"] == told["verdict"] and row["change"] is not None]
    named = told["verdict"] in {"better", "worse"} and found
    which = f": {_name(found[0])} {change(found[0], 'change')}" if named else ""
    return f"{arms}: {told['verdict']}{which}, over {blocks}; changes below {told['threshold'] * 100:g}% are not worth naming."


def rows(told: Json) -> list[tuple[str, ...]]:
    """A row a metric and percentile that could be compared."""
    return [
        (
            _name(row), _figure(row, "a"), _figure(row, "b"), change(row, "change"),
            f"{change(row, 'low')} to {change(row, 'high')}" if row["low"] is not None else "–",
            "–" if row["p_holm"] is None else "< 0.001" if row["p_holm"] < 0.001 else f"{row['p_holm']:.3f}",
            (row["verdict"] or "not compared") + (f": {row['why']}" if row["why"] else ""),
        )
        for row in told["rows"]
    ]  # fmt: skip


def change(row: Json, key: str) -> str:
    """`+12.3%`; of a share `-1.2 pt`."""
    value = row[key]
    if value is None:
        return "–"
    return f"{value * 100:+.1f}{' pt' if row['unit'] == 'share' else '%'}"


def _name(row: Json) -> str:
    return f"{row['title']} {row['label']}".strip() + (" (ms)" if row["unit"] != "share" else "")


def _figure(row: Json, side: str) -> str:
    return share(row[side]) if row["unit"] == "share" else ms(row[side])
