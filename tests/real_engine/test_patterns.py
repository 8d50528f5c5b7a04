"""The packaged patterns against a real engine: what the rows say of them is what the engine did.

Rule: one run a scenario, each with its own engine; several tests look at one run. Nothing here asserts a latency. An engine with one slot serves one call after the other, so what it computes and what it reads
from its cache can be counted exactly. The engine writes its counters at a call's end, `requests_processing` at once.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import pytest
from run_folders.run_data import RunData, RunRows, assert_conserved
from starting.command import Running, variant
from starting.programs import TAILGAUGE

pytestmark = pytest.mark.slow

TOOK_PLACE = {0, 1, 3, 5}  # the verdict and the SLOs depend on the machine
ANSWER = 1600  # tokens of a hedged call: seconds of work that the loser is spared
NOTICED_NS = 500_000_000  # until an engine has seen that a client left, or the client that an answer is there
POLL_S = 0.04

SMALL_PREFIX = {"system_tokens": 300, "few_shot_tokens": 50, "prefixes": 2}
PLANS: dict[str, tuple[dict[str, int], list[str]]] = {
    # scenario: what its engine needs, and what differs from the packaged scenario
    "hedged": (  # two cores bear no more of these long answers for long
        {"parallel": 16, "ctx": 32768},
        [
            *("arrival.rate_per_s=0.25", "arrival.process=constant", "traffic.chat.prompt_tokens=60"),
            *("traffic.chat.hedge.policy=immediate", "traffic.chat.hedge.budget_share=1.0"),
            f"traffic.chat.output_tokens={ANSWER}",
        ],
    ),
    "cached": (
        {"parallel": 1},
        [
            *("arrival.rate_per_s=5", "traffic.assistant.prompt_tokens=40", "traffic.assistant.prompt_sigma=0"),
            "traffic.assistant.output_tokens=10",
            "traffic.assistant.cache.tools_tokens=200",
            *(f"traffic.assistant.cache.{key}={value}" for key, value in SMALL_PREFIX.items()),
        ],
    ),
    "cached_automatic": (
        {"parallel": 1},
        [
            *("target.protocol=openai", "traffic.assistant.cache.breakpoints=[]", "traffic.assistant.cache.tools=0"),
            *("arrival.rate_per_s=5", "traffic.assistant.prompt_tokens=40", "traffic.assistant.prompt_sigma=0"),
            "traffic.assistant.output_tokens=10",
            *(f"traffic.assistant.cache.{key}={value}" for key, value in SMALL_PREFIX.items()),
        ],
    ),
    "fan_out": ({"parallel": 4}, ["arrival.rate_per_s=2"]),
    "sessions": (
        {"parallel": 1},
        [
            *("arrival.rate_per_s=3", "target.protocol=openai"),
            *("traffic.chat.session.think_s=0.1", "traffic.chat.prompt_sigma=0", "traffic.chat.output_tokens=20"),
        ],
    ),
}  # fmt: skip
CACHED = ["cached", "cached_automatic"]
FROM = {"cached_automatic": "cached"}  # where the name is not that of the packaged scenario


@dataclass(frozen=True)
class Result(RunRows):
    """What a run left, and what its engine tells of it."""

    counters: dict[str, float]  # the engine's, when it was idle again
    served: int  # calls that it timed to their end
    samples: list[tuple[int, int, int]]  # asked at, answered at, calls that it held
    cancelled: int  # calls that it stopped on request

    @cached_property
    def everything(self) -> pd.DataFrame:
        """Attempts, the preflight's among them."""
        return self.run.table("attempts")

    @cached_property
    def prompts(self) -> pd.DataFrame:
        """Attempts with the size of their prompts."""
        rows = self.attempts
        return rows.assign(prompt=rows.input_tokens + rows.cache_read_input_tokens)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fresh_engine):
    """One command runs the scenarios one after the other, each against its own engine."""
    folder = tmp_path_factory.mktemp("patterns")
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(fresh_engine(folder / f"{name}.log", **need))
            for name, (need, _) in PLANS.items()
        }
        files = []
        for name, (_, differs) in PLANS.items():
            sets = (f"target.url={engines[name].url}", *differs)
            files.append(variant(folder, FROM.get(name, name), *sets, name=name))
        options = ("--duration=20", "--seed=7", "--json", f"--out={folder}")
        running = Running([TAILGAUGE, "run", *files, *options], folder, {}, folder)
        samples: list[tuple[int, int, int]] = []
        until = time.monotonic() + 250
        while running.process.poll() is None and time.monotonic() < until:
            asked_at = time.monotonic_ns()
            page = engines["hedged"].counters()
            held = int(page["requests_processing"] + page["requests_deferred"])
            samples.append((asked_at, time.monotonic_ns(), held))
            time.sleep(POLL_S)
        finished = running.finish(1)
        summary = [json.loads(text) for text in finished.stdout.splitlines()]
        assert [one["exit_code"] in TOOK_PLACE for one in summary] == [True] * len(PLANS), (
            finished.stderr
        )
        return {
            name: _seen(
                RunData(Path(one["run_dir"])), engines[name], samples if name == "hedged" else []
            )
            for name, one in zip(PLANS, summary, strict=True)
        }


def _seen(run, engine, samples):
    assert engine.seconds_until_idle(10) < 10
    answered = int((run.table("attempts").ended == "ok").sum())
    served, cancelled = (
        len(engine.served(answered)),
        engine.log.read_text(errors="replace").count("cancel task,"),
    )
    return Result(run, engine.counters(), served, samples, cancelled)


@pytest.mark.parametrize("name", PLANS)
def test_the_books_balance_and_every_request_has_its_answer(runs, name):
    seen = runs[name]
    counts = assert_conserved(seen.run)

    assert counts["ended"] == {"ok": counts["dispatched"]}
    assert counts["dispatched"] > 0
    assert (seen.everything[seen.everything.ended == "ok"].stop_reason.notna()).all()


@pytest.mark.parametrize("name", [*CACHED, "fan_out", "sessions"])
def test_rows_and_engine_count_the_same_calls_and_tokens(runs, name):
    seen = runs[name]
    rows, counters = seen.everything, seen.counters

    assert seen.served == len(rows)
    assert rows.output_tokens.sum() == counters["tokens_predicted_total"]
    assert rows.input_tokens.sum() == counters["prompt_tokens_total"]
    assert rows.cache_read_input_tokens.sum() == counters["prompt_tokens_cached_total"]


@pytest.mark.parametrize("name", CACHED)
def test_a_shared_prefix_is_computed_once(runs, name):
    """Both protocols: one slot, two prefixes that change places in it, and each is worked on by one call alone."""
    seen = runs[name]
    rows = seen.prompts
    computed = rows.input_tokens > rows.prompt / 2

    assert set(rows.prefix) == {0, 1}
    assert computed.groupby(rows.prefix).sum().to_dict() == {0: 1, 1: 1}
    assert rows[~computed].input_tokens.max() < 60  # the question, of 40 words, and its frame
    assert rows[~computed].cache_read_input_tokens.min() > 300
    assert rows.input_tokens.sum() < rows.prompt.sum() / 2


@pytest.mark.parametrize("name", CACHED)
def test_what_the_worker_calls_warm_is_read_and_what_it_calls_cold_comes_first(runs, name):
    rows = runs[name].prompts
    warm = rows[rows.cache_expected == "warm"]
    first = rows.sort_values("dispatched_at_ns").groupby("prefix").head(1)

    assert len(warm) > 0
    assert (warm.cache_read_input_tokens > warm.prompt / 2).all()
    assert list(first.cache_expected) == ["cold", "cold"]
    assert (rows.cache_expected == "cold").sum() == 2


def test_later_turns_are_longer_and_what_was_said_before_is_read_from_the_cache(runs):
    """Each turn carries the conversation as it was, byte by byte: the engine finds the turn before in its cache, whole.

    It drops a prompt from its cache now and then: of some 180 turns one or two were not found.
    """
    seen = runs["sessions"]
    rows = seen.prompts.assign(
        turn=seen.prompts.request_id % 65536, session=seen.prompts.request_id // 65536
    )
    before = rows.assign(turn=rows.turn + 1)[["session", "turn", "prompt", "ended_at_ns"]]
    later = rows.merge(before, on=["session", "turn"], suffixes=("", "_before"))

    assert len(later) == (rows.turn > 0).sum() >= 5
    assert (later.sent_at_ns > later.ended_at_ns_before).all()
    assert (later.prompt > later.prompt_before + 40).all()  # a question of 60 words and the answer
    assert (later.cache_read_input_tokens >= later.prompt_before).mean() > 0.95
    assert (rows[rows.turn == 0].cache_read_input_tokens < 20).all()  # the frame of every prompt


def test_every_leg_of_a_fan_out_reaches_the_engine_and_some_at_the_same_time(runs):
    seen = runs["fan_out"]
    preflight = len(seen.everything) - len(seen.attempts)

    assert set(seen.requests.legs) == {5}
    assert seen.attempts.groupby("request_id").leg.agg(sorted).map(tuple).unique().tolist() == [
        (0, 1, 2, 3, 4)
    ]
    assert seen.served - preflight == 5 * len(seen.requests)
    begun, ended = (
        seen.attempts.first_content_at_ns.to_numpy(),
        seen.attempts.ended_at_ns.to_numpy(),
    )
    assert (
        max(((begun <= at) & (ended > at)).sum() for at in begun) >= 2
    )  # two were written at a time
    ends = seen.attempts.groupby("request_id").ended_at_ns.max()
    joined = seen.requests.set_index("request_id").joined_at_ns
    assert joined.to_dict() == ends.to_dict()


def test_every_hedged_call_has_one_whole_answer_and_one_loser_that_was_closed(runs):
    seen = runs["hedged"]
    copies = seen.attempts.sort_values("attempt").groupby("request_id")
    won = seen.requests.set_index("request_id").winner
    winners = seen.attempts[seen.attempts.attempt == seen.attempts.request_id.map(won)]
    losers = seen.attempts.drop(winners.index)

    assert copies.cause.agg(tuple).unique().tolist() == [("primary", "hedge")]
    assert set(winners.ended) == {"ok"}
    assert set(winners.output_tokens) == {ANSWER}
    assert set(losers.ended) == {"cancelled"}
    closed, begun = (rows.set_index("request_id") for rows in (losers, winners))
    assert (closed.cancelled_at_ns.sort_index() >= begun.first_content_at_ns.sort_index()).all()


def test_losers_of_hedges_cost_the_engine_next_to_nothing(runs):
    seen = runs["hedged"]
    answered = seen.everything.output_tokens.sum()  # losers tell no usage
    losers = (seen.attempts.ended == "cancelled").sum()
    wasted = seen.counters["tokens_predicted_total"] - answered

    assert losers > 0
    assert 0 <= wasted < losers * ANSWER / 10


def test_the_engine_stops_working_on_a_loser_while_its_winner_goes_on(runs):
    """But for half a second from each call or cancellation on, and before each end, the engine holds as many calls as the rows have open."""
    seen = runs["hedged"]
    rows = seen.everything
    begun = rows.sent_at_ns.to_numpy()
    over = rows.cancelled_at_ns.fillna(rows.ended_at_ns).to_numpy()
    ended = rows.ended_at_ns[rows.cancelled_at_ns.isna()].to_numpy()
    unsure = [(at, at + NOTICED_NS) for at in (*begun, *rows.cancelled_at_ns.dropna())]
    unsure += [(at - NOTICED_NS, at + NOTICED_NS // 5) for at in ended]
    idle = [
        (int(((begun <= asked) & (over > asked)).sum()), held)
        for asked, answered, held in seen.samples
        if not any(begin < answered and asked < end for begin, end in unsure)
    ]

    assert [pair for pair in idle if pair[0] != pair[1]] == []
    assert sum(held > 0 for _, held in idle) >= 1
    assert seen.cancelled == (rows.ended == "cancelled").sum() >= 2  # each copy had reached it
