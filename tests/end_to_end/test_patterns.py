"""The sentence of each pattern in a real run, beside the endpoint's log of the same calls.

Rule: counts and tokens are those of the log; a time is at least the log's, and near it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_folders.run_data import RunData
from starting.command import run_scenarios

pytestmark = pytest.mark.slow

SCENARIO = """
[target]
url = "simulated"
protocol = "anthropic"
[arrival]
rate_per_s = 80
[stages]
duration_s = 4
warmup_s = 0
[traffic]
falls = { weight = 3, prompt_tokens = 50, output_tokens = 10, fallback = { after_s = 0.3 } }
again = { weight = 3, prompt_tokens = 50, output_tokens = 10, cancel = { share = 0.5, after_s = 0.15, resubmit = true } }
leaves = { weight = 2, prompt_tokens = 50, output_tokens = 20, cancel = { share = 0.5, after_chunks = 5 } }
early = { pattern = "progressive", prompt_tokens = 50, output_tokens = 20, progressive = { fast_tokens = 5 } }
fields = { pattern = "structured", prompt_tokens = 50, output_tokens = 10, structured = { mode = "two_calls", field_tokens = 12 } }
nightly = { pattern = "batch", prompt_tokens = 50, output_tokens = 7, batch = { requests = 3, poll_s = 0.1 } }
[simulated]
ttft_ms = 200
ttft_sigma = 0.6
chunk_gap_ms = 5
[simulated.jobs]
turnaround_s = 0.8
turnaround_sigma = 0.5
"""


class Sentences:
    """The sentences, and the log by traffic, leg and attempt."""

    def __init__(self, run: RunData, report: dict[str, Any]) -> None:
        self.run, self.facts = run, report["run"]
        self.turnaround = report["transports"][0]["times"][0]["value"]
        self.texts = {one["traffic"]: one["text"] for one in report["patterns"]}
        asked = run.requests()[["request_id", "traffic", "scheduled_at_ns"]]
        log = run.table("target").merge(asked, on="request_id")
        log["first"] = [sent[0] if len(sent) else np.nan for sent in log.chunk_sent_at_ns]
        log["last"] = [sent[-1] if len(sent) else np.nan for sent in log.chunk_sent_at_ns]
        self.rows = log

    def of(self, traffic: str, leg: int = 0, attempt: int = 0) -> pd.DataFrame:
        rows = self.rows[(self.rows.traffic == traffic) & (self.rows.leg == leg)]
        return rows[rows.attempt == attempt].set_index("request_id").sort_values("scheduled_at_ns")

    def number(self, traffic: str, before: str) -> float:
        found = re.search(rf"{re.escape(before)} ([\d.,]+)", self.texts[traffic])
        assert found is not None, self.texts[traffic]
        return float(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Sentences:
    out = tmp_path_factory.mktemp("patterns")
    path = out / "patterns.toml"
    path.write_text(SCENARIO)
    (facts,), _ = run_scenarios([str(path)], "--seed=20261", out=out, timeout_s=120)
    folder = Path(facts["run_dir"])
    return Sentences(
        RunData(folder), json.loads((out / "reports" / folder.name / "report.json").read_text())
    )


def near(number: float, logged: float) -> bool:
    """As long as by the log, or a little longer."""
    return 0.98 * logged - 1 <= number <= 1.5 * logged + 20


def p(values: pd.Series[float], share: float) -> float:
    return float(np.quantile(values / 1e6, share, method="inverted_cdf"))


@pytest.mark.parametrize("traffic", ["falls", "again"])
def test_second_calls_are_counted(seen, traffic):
    first, second = seen.of(traffic), seen.of(traffic, attempt=1)

    assert seen.number(traffic, f"{len(first)} requests (95% CI") > 0
    assert float(seen.texts[traffic].split("%")[0]) == pytest.approx(
        100 * len(second) / len(first), abs=0.06
    )


def test_what_duplicates_and_users_who_left_took(seen):
    lost, left = seen.of("again").loc[seen.of("again", attempt=1).index], seen.of("leaves")
    # By the log alone it is not known who left an answer that was sent to its end.
    attempts = seen.run.table("attempts")
    left = left[left.index.isin(attempts[attempts.ended == "cancelled"].request_id)]
    for traffic, rows in (("again", lost), ("leaves", left)):
        made = rows.output_tokens.sum() + rows.tokens_after_cancel.fillna(0).sum()
        assert len(rows) > 5
        assert "input tokens (reported by the target" in seen.texts[traffic]
        assert seen.number(traffic, ") and") == made
    assert f"The {len(lost)} wasted first calls took " in seen.texts["again"]
    assert seen.number("leaves", "Users left") == pytest.approx(
        100 * len(left) / len(seen.of("leaves")), abs=0.06
    )
    assert re.search(
        rf"made {left.tokens_after_cancel.sum():.0f} more tokens?", seen.texts["leaves"]
    )


def test_what_a_second_leg_gains_or_adds(seen):
    large, fast = seen.of("early"), seen.of("early", leg=1)
    first = np.fmin(large["first"], fast["first"].reindex(large.index)) - large.scheduled_at_ns
    prose, fields = seen.of("fields"), seen.of("fields", leg=1)
    tokens = (fields.input_tokens + fields.output_tokens).mean()

    assert near(seen.number("early", "first content took"), p(first, 0.5))
    assert near(
        seen.number("early", "with the large model alone"),
        p(large["first"] - large.scheduled_at_ns, 0.5),
    )
    assert near(seen.number("fields", "adds p50"), p(fields["last"] - prose["last"], 0.5))
    assert f"adds {tokens:,.0f} tokens per request to " in seen.texts["fields"]


def test_the_turnaround_of_batches_is_drawn_and_reported_from_their_submission_to_their_results(
    seen,
):
    rows = seen.rows[seen.rows.traffic == "nightly"].sort_values("attempt")
    submitted, results = (rows.drop_duplicates("request_id", keep=keep).set_index("request_id") for keep in ("first", "last"))  # fmt: skip
    took = results.ended_at_ns - submitted.scheduled_at_ns
    planned = submitted.planned_ttft_ns

    assert planned.nunique() == len(submitted) > 20
    assert (took.reindex(planned.index) >= planned).all()
    assert near(seen.turnaround, p(took, 0.5))
    # The endpoint took it between the two, and then its time began.
    earliest, latest = (
        rows.request_id.map(at + planned)
        for at in (submitted.received_at_ns, submitted.headers_at_ns)
    )
    assert (rows.received_at_ns >= latest).groupby(rows.request_id).sum().max() <= 2, (
        "the first poll after it finds it"
    )
    assert (rows.headers_at_ns >= earliest).groupby(rows.request_id).sum().min() >= 2, (
        "and the results follow"
    )
    assert set(results.output_tokens) == {21}
    tokens = results.loc[
        results.ended_at_ns < (seen.facts["steady_to_s"] * 1e9 + _start_ns(seen.run.path))
    ]
    assert seen.facts["output_tokens_per_s"] * 4 > tokens.output_tokens.sum() > 0


def _start_ns(folder: Path) -> int:
    return int(json.loads((folder / "run.json").read_text())["start_at_ns"])
