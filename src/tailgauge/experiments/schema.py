"""The JSON Schema of an experiment's report.json, draft 2020-12.

Rule: as that of a run's report.json: a promise, written by hand; published as docs/answer.schema.json. `facts` has the
numbers of each kind, which may gain keys.
"""

from __future__ import annotations

from tailgauge.experiments.answer import FAIL, OPEN, PASS
from tailgauge.experiments.contents import SCHEMA_VERSION
from tailgauge_analysis.report.report_schema import TEXT, listing, said, table
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.verdict import WORST_FIRST

TEXTS: Json = {"type": "array", "items": TEXT}

_TABLE = table("cells as they are shown", caption=TEXT, header=TEXTS, rows={"type": "array", "items": TEXTS})
_CASE = table(
    "one thing that a build server shows", name=TEXT, outcome={"enum": [PASS, FAIL, OPEN]}, said=TEXT
)
_RUN = table(
    "one run of the experiment", name=TEXT, run_id=TEXT, verdict={"enum": list(WORST_FIRST)}, reason=TEXT
)

KEYS: Json = {
    "schema_version": said("version of these keys", {"const": SCHEMA_VERSION}),
    "run_id": said("of the experiment; its runs have their own", TEXT),
    "kind": said("of question", {"enum": ["headroom", "hedging", "models", "checkup"]}),
    "sentence": said("the answer", TEXT),
    "facts": said("the numbers behind it, unrounded, by kind; see docs/experiments.md", {"type": "object"}),
    "table": said("what an engineer checks", _TABLE),
    "more": listing(_TABLE, "further tables"),
    "exit_code": said("see docs/cli.md", {"enum": [0, 1, 3, 130]}),
    "verdict": said("the worst of its runs", {"enum": list(WORST_FIRST)}),
    "remarks": said("what the reader should know", TEXTS),
    "cases": listing(_CASE, "as in junit.xml"),
    "runs": listing(_RUN, "in the order in which they ran"),
    "smallest": said("smallest effect that it detects; may be empty", TEXT),
    "dry_run": said("true: on the virtual clock alone", {"type": "boolean"}),
    "expected": said("the answer of the rehearsal before it; may be empty", TEXT),
    "planned": said("what the rehearsal said that it would take", TEXTS),
    "took": said("what it took", TEXT),
    "left_out": said("steps that virtual time cannot show", TEXTS),
    "scenario": said("its name", TEXT),
    "description": TEXT,
    "target": said("its URL, or simulated", TEXT),
    "started_at": said("UTC, ISO 8601", TEXT),
    "command": said("that does the same again", TEXT),
}  # fmt: skip


def schema() -> Json:
    """The whole schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tailgauge:answer:{SCHEMA_VERSION}",
        "title": "report.json of a Tailgauge experiment",
        "type": "object",
        "required": list(KEYS),
        "properties": KEYS,
    }
