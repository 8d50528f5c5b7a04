"""Jobs in real runs and in dry runs, against the endpoint's log: turnaround, wasted polls, lost and expired jobs, users who give up.

Rule: what became of a job is counted by the endpoint's log, and its times are compared with those of the same run.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import run_scenarios

pytestmark = pytest.mark.slow

LOAD = (
    "arrival.rate_per_s=25", "stages.duration_s=3", "stages.warmup_s=0", "simulated.jobs.turnaround_s=0.5",
    "traffic.reports.job.poll_s=0.1", "traffic.reports.job.backoff=1.0", "traffic.reports.cancel.share=0.2",
    "traffic.reports.cancel.after_s=0.4",
)  # fmt: skip
OUTCOMES = ("lost=0.15", "gone=0.15", "expired=0.15", "failed=0.15")


class Jobs:
    """A run's requests, attempts and log, preflight left out."""

    def __init__(self, folder: Path) -> None:
        self.run = RunData(folder)
        self.requests, self.attempts, self.log = (
            rows[rows.request_id >= 0]
            for rows in map(self.run.table, ("requests", "attempts", "target"))
        )

    @cached_property
    def turnaround(self) -> pd.DataFrame:
        """Of the requests that are ok: ours, and the log's from the submission's arrival to the result's last byte."""
        ok = self.requests[self.requests.ended == "ok"].set_index("request_id")
        calls = (
            self.log[self.log.request_id.isin(ok.index)]
            .sort_values("attempt")
            .groupby("request_id")
        )
        logged = calls.ended_at_ns.last() - calls.received_at_ns.first()
        return pd.DataFrame({"ours": ok.ended_at_ns - ok.scheduled_at_ns, "logged": logged})

    def wasted(self, requests: pd.Index[int]) -> dict[str, int]:
        """Polls that were answered `under way`: by our rows, and by what the log says of the job at that time."""
        polls = self.attempts[
            (self.attempts.cause == "poll") & self.attempts.request_id.isin(requests)
        ]
        ours = polls[
            polls.stop_reason.isna()
            & ~polls.attempt.eq(polls.groupby("request_id").attempt.transform("max"))
        ]
        submitted = self.log[self.log.status == 202].set_index("request_id")
        ends = submitted.received_at_ns + submitted.planned_ttft_ns
        of_jobs = self.log[(self.log.attempt > 0) & self.log.request_id.isin(requests)]
        early = of_jobs[of_jobs.headers_at_ns < of_jobs.request_id.map(ends)]
        return {"ours": len(ours), "logged": len(early)}


def ran(out: Path, *sets: str, dry: bool = False) -> Jobs:
    changes = [f"--set={one}" for one in (*LOAD, *sets)]
    (report,), _ = run_scenarios(
        ["job"], *changes, *(["--dry-run"] if dry else []), out=out, timeout_s=300
    )
    return Jobs(Path(report["run_dir"]))


@pytest.fixture(scope="module", params=[False, True], ids=["real", "dry run"])
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    outcomes = (f"simulated.jobs.{outcome}" for outcome in OUTCOMES)
    return ran(tmp_path_factory.mktemp("jobs"), *outcomes, dry=request.param)


def test_turnaround_and_wasted_polls_are_those_of_the_log(jobs):
    assert_conserved(jobs.run)
    found, is_dry = jobs.turnaround, bool(jobs.run.facts.get("dry_run"))
    assert len(found) > 20
    assert (found.ours >= found.logged).all()
    for share in (0.5, 0.95):
        assert np.quantile(found.ours, share) < 1.5 * np.quantile(found.logged, share)
    wasted = jobs.wasted(found.index)
    assert wasted["logged"] > 2 * len(found)
    assert abs(wasted["ours"] - wasted["logged"]) <= (
        0 if is_dry else len(found) // 4
    )  # one may end as it is polled
    assert not is_dry or (found.ours == found.logged).all()


def test_each_job_ends_in_a_class_of_its_outcome(jobs):
    polls = jobs.attempts[jobs.attempts.cause == "poll"].sort_values("attempt")
    last = polls.drop_duplicates("request_id", keep="last").set_index("request_id")
    ended = jobs.requests.set_index("request_id").ended
    for status in (404, 410):
        lost = last.index[last.status == status]
        answered = polls.request_id[polls.status == status]
        assert len(lost) == len(answered) > 0
        assert set(jobs.log.request_id[jobs.log.status == status]) >= set(lost)
        assert set(ended[lost]) == {"client_error"}
    for state, class_ in (("expired", "timeout"), ("failed", "server_error")):
        found = last.index[last.stop_reason == state]
        assert len(found) > 0
        assert set(ended[found]) == {class_}


def test_a_job_of_a_user_who_gave_up_is_cancelled_and_polled_no_more(jobs):
    left = jobs.requests.loc[jobs.requests.ended == "cancelled", "request_id"]
    assert len(left) > 0
    calls = (
        jobs.attempts[jobs.attempts.request_id.isin(left)]
        .sort_values("attempt")
        .groupby("request_id")
        .cause
    )
    assert set(calls.last()) == {"cancel"}
    assert set(jobs.attempts.loc[jobs.attempts.cause == "cancel", "request_id"]) == set(left)


@pytest.mark.alone_at_full_size
def test_ten_thousand_jobs_need_no_more_memory_than_one_thousand(tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify: two minutes of jobs")
    jobs = ran(
        tmp_path, "arrival.rate_per_s=100", "stages.duration_s=100", "traffic.reports.job.poll_s=0.3", "simulated.jobs.kept=500",
    )  # fmt: skip

    assert len(jobs.requests) > 9000
    memory = jobs.run.table("health").sort_values("at_ns").rss_bytes
    tenth = len(memory) // 10
    early, late = memory.iloc[tenth : 2 * tenth].median(), memory.iloc[-2 * tenth : -tenth].median()
    assert late < early * 1.1
