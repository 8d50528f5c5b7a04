"""What the target did against its protocol, and which answers it did not end.

Rule: the rows name what was seen (`tailgauge.protocol_violations`); here it is counted, over the whole run but the preflight, by
attempt. Such an answer is a failure in every table; the gate says it aloud, because what answers like that may be a proxy,
another service, or mean harm, and its other answers need a look too.
"""

from __future__ import annotations

from tailgauge.protocol_violations import BREACHES
from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.text.formatting import count, plural
from tailgauge_analysis.verdict.verdict import Evidence, Said

NAMED = 3  # kinds in one sentence
FAR_BEYOND, AND = 4, 50  # times the tokens that were asked for, and so many chunks besides
ENDLESS = "no end at the deadline, far beyond what was asked for"


def breaches(frames: Frames) -> tuple[list[tuple[str, int]], int]:
    """What was wrong with answers, in words, and with how many, the most first; and how many attempts there were."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    by = attempts["error_type"].value_counts()
    found = [(BREACHES[kind], int(n)) for kind, n in by.items() if kind in BREACHES]
    late = attempts.loc[attempts["ended"] == schema.TIMEOUT, ["request_id", "chunks"]]
    if len(late):
        asked = late["request_id"].map(frames.requests.groupby("request_id")["asked_output_tokens"].max())
        endless = int((late["chunks"] > FAR_BEYOND * asked + AND).sum())
        found += [(ENDLESS, endless)] if endless else []
    return sorted(found, key=lambda one: -one[1]), len(attempts)


def kept(e: Evidence) -> Said | None:
    """The gate: no answer broke the target's protocol."""
    found, of = breaches(e.frames)
    if not found:
        return None
    said = [f"{words} ({count(n)})" for words, n in found[:NAMED]]
    rest = sum(n for _, n in found[NAMED:])
    said += [f"of {plural(len(found) - NAMED, 'other kind')} ({count(rest)})"] if rest else []
    total = sum(n for _, n in found)
    return (
        DEGRADED,
        f"The target broke its protocol in {count(total)} of {plural(of, 'attempt')}: {', '.join(said)}.",
        "See the errors below: does the target answer itself, or a proxy or another service? These answers count as failed.",
    )
