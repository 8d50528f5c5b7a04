"""The JSON Schema of an experiment's report.json, draft 2020-12.

Rule: as that of a run's report.json: a promise, written by hand; published as docs/answer.schema.json. `facts` has the
numbers of each kind, which may gain keys.
"""

from __future__ import annotations

from tailgauge_analysis.experiment.answer import FAIL, OPEN, PASS
from tailgauge_analysis.experiment.told import SCHEMA_VERSION
from tailgauge_analysis.runfile import Json
from tailgauge_analysis.verdict import WORST_FIRST

TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}


def _keys(about: str, **keys: Json) -> Json:
    return {"type": "object", "description": about, "required": list(keys), "properties": keys}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _said(about: str, of: Json) -> Json:
    return {**of, "description": about}


_TABLE = _keys("cells as they are shown", caption=TEXT, header=TEXTS, rows=_list(TEXTS))
_CASE = _keys(
    "one thing that a build server shows", name=TEXT, outcome={"enum": [PASS, FAIL, OPEN]}, said=TEXT
)
_RUN = _keys(
    "one run of the experiment", name=TEXT, run_id=TEXT, verdict={"enum": list(WORST_FIRST)}, reason=TEXT
)

KEYS: Json = {
    "schema_version": _said("version of these keys", {"const": SCHEMA_VERSION}),
    "run_id": _said("of the experiment; its runs have their own", TEXT),
    "kind": _said("of question", {"enum": ["headroom", "hedging", "models", "checkup"]}),
    "sentence": _said("the answer", TEXT),
    "facts": _said("the numbers behind it, unrounded, by kind; see docs/experiments.md", {"type": "object"}),
    "table": _said("what an engineer checks", _TABLE),
    "more": _said("further tables", _list(_TABLE)),
    "exit_code": _said("see docs/cli.md", {"enum": [0, 1, 3, 130]}),
    "verdict": _said("the worst of its runs", {"enum": list(WORST_FIRST)}),
    "remarks": _said("what the reader should know", TEXTS),
    "cases": _said("as in junit.xml", _list(_CASE)),
    "runs": _said("in the order in which they ran", _list(_RUN)),
    "smallest": _said("smallest effect that it detects; may be empty", TEXT),
    "rehearsal": _said("true: on the virtual clock alone", {"type": "boolean"}),
    "expected": _said("the answer of the rehearsal before it; may be empty", TEXT),
    "planned": _said("what the rehearsal said that it would take", TEXTS),
    "took": _said("what it took", TEXT),
    "left_out": _said("steps that virtual time cannot show", TEXTS),
    "scenario": _said("its name", TEXT),
    "description": TEXT,
    "target": _said("its URL, or simulated", TEXT),
    "started_at": _said("UTC, ISO 8601", TEXT),
    "command": _said("that does the same again", TEXT),
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
