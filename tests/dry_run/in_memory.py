"""Dry runs whose rows stay in memory."""

from pathlib import Path
from random import Random

from simulator.engine.fluid import fluid

from tailgauge.dry_run.run import DryRun
from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import plan
from tailgauge.simulator.behaviours.stragglers import prompt_key

UNBOUNDED = {"in_flight_per_worker": 60_000, "attempt_deadline_s": 1e6, "drain_s": 1e6}
OPEN_BUDGET = {"budget_share": 1.0, "budget_burst": 1e6, "throttle_tokens": 0.0}


class Kept:
    """The rows of one dry run."""

    def __init__(self):
        self.requests, self.attempts, self.server_rows, self.chunks_of = [], [], [], {}

    def request(self, row):
        self.requests.append(row)

    def attempt(self, row):
        self.attempts.append(row)

    def server_log(self, row):
        self.server_rows.append(row)

    def chunks(self, key, chunks):
        self.chunks_of[key] = chunks

    def by_request(self):
        """Attempts of each request, in the order of sending."""
        found = {}
        for row in sorted(
            self.attempts, key=lambda row: (row.dispatched_at_ns, row.leg, row.attempt)
        ):
            found.setdefault(row.request_id, []).append(row)
        return found

    def latencies_s(self, skip=0.1):
        """From schedule to end of the requests that went well, in order of arrival; the first share is left out."""
        rows = sorted(self.requests, key=lambda row: row.scheduled_at_ns)
        return [
            (r.ended_at_ns - r.scheduled_at_ns) / 1e9
            for r in rows[int(skip * len(rows)) :]
            if r.ended == "ok"
        ]


def scenario_of(tree):
    return parse({"name": "dry-run", **tree}, "test")


def plan_of(scenario):
    stages = scenario.stages
    return plan(
        scenario.arrival,
        scenario.traffic,
        stages.duration_s,
        scenario.seed,
        warmup_s=stages.warmup,
        folder=Path(),
    )


def run_in_memory(tree, **more):
    """The rows of a scenario's dry run, with the run itself."""
    scenario = scenario_of(tree)
    kept = Kept()
    kept.run = DryRun(scenario, plan_of(scenario), kept, **more)
    kept.run.run()
    return kept


def queueing(work_ms, **config):
    """An engine as queueing theory has it: a call's answer comes whole, at the end of its work, given by the call's key."""
    return fluid(lambda job: work_ms(str(job.key)), **config)


def exponential_ms(mean_ms, seed=1, *, shared=False):
    """Work of a call: exponential, drawn for each call, or for all copies of it together."""
    return lambda key: Random(f"{seed}/{prompt_key(key) if shared else key}").expovariate(
        1 / mean_ms
    )


def evenly(rate_per_s, seconds, **tables):
    """A scenario whose requests come at equal distances."""
    return {
        "arrival": {"process": "constant", "rate_per_s": rate_per_s},
        "stages": {"duration_s": seconds, "warmup_s": 0.0},
        **tables,
    }


def flow(n, rate_per_s, **traffic):
    """A scenario of about n Poisson arrivals; nothing of the client is in their way."""
    return {
        "arrival": {"rate_per_s": rate_per_s},
        "stages": {"duration_s": n / rate_per_s, "warmup_s": 0.0},
        "limits": UNBOUNDED,
        "traffic": {"main": {"prompt_tokens": 1, "output_tokens": 1, **traffic}},
    }
