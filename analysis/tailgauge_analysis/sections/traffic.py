"""What was sent, by traffic table, and how the answers streamed.

Counts are of the whole run, preflight excepted: attempts count as attempts, whether or not the user got their answer. A
share is null where nothing could have it. No latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.chunks import Chunks
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.sections.phases import parse
from tailgauge_analysis.stats.quantiles import rank
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share, share_range
from tailgauge_analysis.text.json_values import Json

MOST_PHASES = 20
RATES = ("offered", "accepted", "completed")
BUFFERED = 0.01  # of the answers, from which a proxy is suspected
_PLURALS = {
    "retry": "retries",
    "hedge": "hedges",
    "fallback": "fallbacks",
    "resubmit": "resubmissions",
    "poll": "polls",
}


def traffic(frames: Frames) -> dict[str, Json]:
    """`traffic` of report.json: every traffic table, in the order of their names."""
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["request_id"].isin(requests["request_id"])]
    kinds = _kinds(requests, attempts, frames.chunks)
    by = dict(iter(attempts.groupby("traffic")))
    none = attempts.iloc[:0]
    return {
        str(name): _entry(rows, by.get(name, none), kinds.get(str(name), {}))
        for name, rows in requests.groupby("traffic")
    }


def _entry(requests: pd.DataFrame, attempts: pd.DataFrame, kinds: dict[str, int]) -> Json:
    started = requests.loc[requests["ended"] != schema.CLIENT_DROP, "legs"]
    causes = attempts["cause"].value_counts()
    return {
        "pattern": ", ".join(sorted({str(p) for p in requests["pattern"].unique()})),
        "requests": len(requests),
        "ended": _counts(requests["ended"], (*schema.ENDED_CLASSES, schema.CENSORED, schema.CLIENT_DROP)),
        "legs": {
            "max": int(started.max()) if len(started) else 0,
            "per_request": float(started.mean()) if len(started) else None,
        },
        "attempts": {"total": len(attempts), **{cause: int(causes.get(cause, 0)) for cause in schema.CAUSES}},
        "hedging": _hedging(requests, attempts),
        "chunks": kinds,
        "phases": _phases(attempts["phases"].dropna()),
        "slow_readers": int(attempts["reader_paused_ns"].notna().sum()),
        "not_streamed": int((~attempts["streamed"].astype(bool)).sum()),
        "second_target": int((attempts["target"] != "main").sum()),
        "first_fields": int(attempts["first_field_at_ns"].notna().sum()),
        "tools_ready": int(attempts["tool_ready_at_ns"].notna().sum()),
        "citations": int(attempts["citations"].sum()),
        "turns_max": int((requests["request_id"] % schema.TURNS).max()) + 1 if len(requests) else 0,
    }


def _counts(values: pd.Series[Any], order: Sequence[str]) -> dict[str, int]:
    """How often each value occurs, known ones first."""
    found = values.value_counts()
    names = [name for name in order if name in found.index]
    return {str(name): int(found[name]) for name in [*names, *sorted(set(found.index) - set(names))]}


def _hedging(requests: pd.DataFrame, attempts: pd.DataFrame) -> Json:
    """Legs that were sent, that were hedged, and that the hedge answered (ended ok)."""
    hedges = attempts[attempts["cause"] == schema.HEDGE]
    keys = ["request_id", "leg"]
    legs, hedged = (len(rows[keys].drop_duplicates()) for rows in (attempts, hedges))
    won = len(hedges.loc[hedges["ended"] == schema.OK, keys].drop_duplicates())
    return {
        "legs": legs,
        "hedged": hedged,
        "won": won,
        "held": _counts(requests["hedge_held"].dropna(), schema.HEDGE_HELD),
        "rate": hedged / legs if legs else None,
        "winner_share": won / hedged if hedged else None,
    }


def _kinds(requests: pd.DataFrame, attempts: pd.DataFrame, chunks: Chunks) -> dict[str, dict[str, int]]:
    """Chunks of each kind by traffic. Nearly all are text: only the others are counted."""
    total = attempts.groupby("traffic")["chunks"].sum()
    other = chunks.kinds
    names = requests.set_index("request_id")["traffic"]
    found = other.groupby([other["request_id"].map(names), "kind"])["n"].sum().to_dict()
    out = {}
    for name in total.index:
        counts = {kind: int(found.get((name, i), 0)) for i, kind in enumerate(schema.CHUNK_KINDS)}
        counts[schema.TEXT] = max(0, int(total[name]) - sum(counts.values()))
        out[str(name)] = counts
    return out


def _phases(recorded: pd.Series[str]) -> list[Json]:
    """Median of when each phase `began`, ms since sent (status event), and of what each duration `took` (Server-Timing)."""
    values: dict[tuple[str, str], list[float]] = {}
    for text in recorded:
        for kind, entries in zip(("began", "took"), parse(text), strict=True):
            for name, value in entries.items():
                values.setdefault((kind, name), []).append(value)
    phases = [
        {
            "name": name,
            "kind": kind,
            "attempts": len(of),
            "p50_ms": float(np.sort(of)[rank(len(of), 0.5) - 1]),
        }
        for (kind, name), of in values.items()
    ]
    return sorted(phases, key=lambda phase: (phase["kind"], phase["p50_ms"]))[:MOST_PHASES]


def details(entry: Json) -> list[str]:
    """What sets a traffic table apart, as short phrases."""
    by, hedging, chunks = entry["attempts"], entry["hedging"], entry["chunks"]
    repeated = (f"{count(by[c])} {c if by[c] == 1 else name}" for c, name in _PLURALS.items() if by[c])
    parts = (("thinking", "thinking chunk"), ("tool_json", "tool input chunk"))
    texts = [", ".join(repeated)]
    if hedging["hedged"]:
        texts.append(
            f"{share(hedging['rate'])} of legs hedged, {share(hedging['winner_share'])} of the hedges won"
        )
    if hedging["held"]:
        why = ", ".join(f"{name} {count(n)}" for name, n in hedging["held"].items())
        texts.append(f"{plural(sum(hedging['held'].values()), 'hedge')} held back: {why}")
    texts.append(", ".join(plural(chunks[kind], name) for kind, name in parts if chunks.get(kind)))
    if entry["turns_max"] > 1:
        texts.append(f"up to {entry['turns_max']} turns per session or user")
    counted = (
        ("first_fields", "first field in {}"), ("tools_ready", "tool input complete in {}"),
        ("not_streamed", "{} not streamed"), ("second_target", "{} to the second target"),
        ("slow_readers", "{} read slowly on purpose"),
    )  # fmt: skip
    texts += [text.format(plural(entry[key], "attempt")) for key, text in counted if entry[key]]
    texts.append(plural(entry["citations"], "citation") if entry["citations"] else "")
    for kind, title in (("began", "start of phases since sent"), ("took", "Server-Timing")):
        phases = [f"{p['name']} {ms(p['p50_ms'])} ms" for p in entry["phases"] if p["kind"] == kind]
        texts.append(f"{title} (median): {', '.join(phases)}" if phases else "")
    return [text for text in texts if text]


def rates(run: Json) -> list[tuple[str, str]]:
    """What was offered, accepted and completed, as name and text."""
    each = [(name, run[f"{name}_per_s"]) for name in RATES]
    requests = ", ".join(f"{figures(rate)} {name}" for name, rate in each if rate is not None)
    rows = [("Requests/s", requests)] if requests else []
    if run["output_tokens_per_s"]:
        rows.append(("Output tokens/s", figures(run["output_tokens_per_s"])))
    return rows


def streaming(contents: Json) -> list[tuple[str, str]]:
    """How the answers streamed, as name and text."""
    streams, good = contents["streams"], contents["goodput"]
    rows = []
    rows += [*rates(contents["run"]), ("Stability", contents["stability"]["sentence"])]
    if good:
        rate = f", {good['per_s']:,.3g}/s" if good["per_s"] is not None else ""
        text = f"{share(good['share'])} of {count(good['offered'])} offered requests met every objective"
        rows.append(("Goodput", f"{text} (95% CI {share_range(good['low'], good['high'])}){rate}"))
    if contents["tpot_missing"]["sentence"]:
        rows.append(("TPOT", contents["tpot_missing"]["sentence"]))
    if streams["user_tokens_per_s_p50"] is not None:
        slowest = f"{ms(streams['user_tokens_per_s_p1'])} for the slowest 1%"
        rows.append(("Tokens/s per user", f"{ms(streams['user_tokens_per_s_p50'])} in the median, {slowest}"))
    if streams["answers"]:
        n = streams["stalls"]
        part = f", in {share(streams['stalled_share'])} of answers" if n else ""
        buffered = f"{count(streams['buffered'])} of {plural(streams['answers'], 'answer')}"
        if (streams["buffered_share"] or 0) > BUFFERED:
            buffered += ". Something between client and target collects the stream: TTFT is not that of the target, and TPOT is unknown"
        rows += [
            ("Stalls", f"{plural(n, 'chunk gap')} over 1 s and 10x the median of the answer{part}"),
            (
                "Fluid answers",
                f"{share(streams['fluid_share'])} of answers keep up with a reader of 10 tokens/s",
            ),
            ("Buffered responses", buffered),
        ]
    if streams["tokens_per_chunk_p50"] is not None:
        rows.append(("Tokens per chunk", f"{streams['tokens_per_chunk_p50']:.3g} in the median"))
    return rows


def key_values(tree: Json) -> str:
    """The plain values of a table of run.json: `requests 200, tokens 51,000`."""
    texts = []
    for key, value in tree.items():
        name = plain(str(key), 60)
        if isinstance(value, float):
            texts.append(f"{name} {value:,.6g}")
        elif isinstance(value, int) and not isinstance(value, bool):
            texts.append(f"{name} {value:,}")
        elif isinstance(value, str) and value:
            texts.append(f"{name} {plain(value, 200)}")
    return ", ".join(texts)
