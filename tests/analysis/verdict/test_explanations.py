"""Explanations, each from both sides: who, when, what to do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.verdict.explanations import explanations
from tailgauge_analysis.verdict.late_client import connections

MS = 1_000_000
ROWS = 6  # 100 requests at 20 a second on one worker; from 1 s on steady


def at(second, value, usual=0):
    """A column of health rows with a value in the second that ends there."""
    return np.where(np.arange(1, ROWS + 1) == second, value, usual)


def from_on(second, value):
    return np.where(np.arange(1, ROWS + 1) >= second, value, 0)


@pytest.fixture(scope="module")
def explained(synthetic, tmp_path_factory):
    """Sentences of a run with these columns in its health rows."""
    spec = {"n": 100, "rate_per_s": 20.0, "chunks": 1, "offsets_ns": (0,)}
    frames = load([synthetic.write(tmp_path_factory.mktemp("run"), **spec)])
    stage = steady(frames)

    def sentences(silent=(), **columns):
        changed = {"loop_lag_max_ns": 0, **columns}
        run = frames.run | {"workers": [frames.run["workers"][0] | {"silent": list(silent)}]}
        frames_of_run = replace(frames, run=run, health=frames.health.assign(**changed))
        return [explanation.text for explanation in explanations(frames_of_run, stage)]

    return sentences


def lag(lag_ms, **more):
    return {"loop_lag_max_ns": at(3, int(lag_ms * MS))} | {
        name: at(3, value) for name, value in more.items()
    }


@pytest.mark.parametrize(
    ("health", "text"),
    [
        ({}, None),
        ({"cpu_share": at(3, 0.89, 0.2)}, None),
        ({"cpu_share": at(3, 0.6, 0.2), "core_wait_ns": at(3, 290 * MS)}, None),
        ({"cpu_share": at(3, 0.6, 0.2), "core_wait_ns": at(3, 310 * MS)}, "was at 60% of a core and waited for a free core 31% of the time from 00:02 to 00:03: use 2 workers"),
        ({"cpu_share": at(3, 0.96, 0.2)}, "was at 96% of its core from 00:02 to 00:03: use 2 workers"),
        (lag(5.0), None),
        (lag(20.0, cpu_share=0.3), "had an event loop up to 20.0 ms late (at 00:03), above 5 ms in 1 of 4 seconds"),
        (lag(80.0, cpu_share=0.3), "above 5 ms in 1 of 4 seconds; its core was at 30.0% then, so the event loop was blocked"),
        (lag(80.0, cpu_share=0.8), "above 5 ms in 1 of 4 seconds"),
        (lag(80.0, core_wait_ns=41 * MS), "it waited 41.0 ms of that second for a core that other processes used"),
        (lag(80.0, core_wait_ns=40 * MS), "the event loop was blocked"),
        (lag(80.0, gc_pause_ns=41 * MS), "(Python's garbage collector)"),
        ({"pool_waits": from_on(4, 7), "pool_wait_max_ns": at(4, 5 * MS)}, None),
        ({"pool_waits": from_on(4, 7), "pool_wait_max_ns": at(4, 6 * MS)}, "opened connections for 7 attempts, which waited up to 6.00 ms (at 00:04): open them before the run with target.preopened"),
        ({"pool_waits": from_on(1, 7), "pool_wait_max_ns": at(1, 60 * MS)}, None),  # before the steady stage
        ({"reads": from_on(3, 1000), "retransmits": from_on(3, 1)}, None),
        ({"reads": from_on(3, 1000), "retransmits": from_on(3, 1), "out_of_order": from_on(4, 2)}, "lost packets on the network: 1 segment retransmitted, 2 packets out of order"),
    ],
)  # fmt: skip
def test_difficulties_are_explained(explained, health, text):
    sentences = explained(**health)

    if text is None:
        assert sentences == []
    else:
        assert any(one.startswith("worker 0 ") and text in one for one in sentences), sentences


@pytest.mark.parametrize(
    ("silent", "froze"),
    [((0.5, 3.2), True), ((3.5, 6.0), False), ((0.2, 6.0), False), ((0.5, None), False)],
)
def test_a_worker_that_froze_blames_no_plug_in(explained, silent, froze):
    """2.4 s late at 00:03, in a silence of about as long; in a longer one it was the network, which makes nothing late."""
    since, until = silent
    sentences = explained(silent=[Stretch(since, until)], **lag(2400.0))

    assert ("the process or its machine was suspended" in sentences[0]) == froze
    assert ("the event loop was blocked" in sentences[0]) != froze


def test_a_late_loop_on_a_full_core_blames_no_plug_in(explained):
    sentences = explained(**lag(80.0, cpu_share=0.8))

    assert len(sentences) == 1
    assert sentences[0].endswith("above 5 ms in 1 of 4 seconds")


def test_the_largest_comes_first_whichever_worker_it_was(synthetic, tmp_path):
    """Worker 0 was 20 ms late, worker 1 for 300 ms."""
    frames = load(
        [synthetic.write(tmp_path / "run", n=100, rate_per_s=20.0, chunks=1, offsets_ns=(0, 7))]
    )
    first = (frames.health["worker"] == 0).to_numpy()
    health = frames.health.assign(loop_lag_max_ns=np.where(first, 20 * MS, 300 * MS))
    found = explanations(replace(frames, health=health), steady(frames))

    assert [explanation.text[:8] for explanation in found] == ["worker 1", "worker 0"]
    assert "300 ms late" in found[0].text


def calls(every_ms, lasts_ms, n=200, opens=lambda _: True, ended=lambda _: "ok"):
    """Calls of one worker, one each `every_ms`."""
    sent = np.arange(n) * every_ms * MS
    return pd.DataFrame({
        "worker": 0, "target": "main", "sent_at_ns": sent * 1.0, "ended_at_ns": (sent + lasts_ms * MS) * 1.0,
        "connection_is_new": [opens(i) for i in range(n)], "ended": [ended(i) for i in range(n)], "reader_paused_ns": np.nan,
    })  # fmt: skip


CLOSES, OPEN_BEFORE = (
    "the target closes its connections",
    "open them before the run with target.preopened = 20",
)


@pytest.mark.parametrize(
    ("attempts", "target", "text"),
    [
        (calls(100, 50), {}, f"{CLOSES} (200 calls took 200): let it, and a proxy in front of it, keep them open"),
        (calls(100, 50, opens=lambda i: i % 10 == 0), {}, f"{CLOSES} (200 calls took 20)"),
        (calls(100, 50), {"preopened": 100, "connections": 1000}, CLOSES),
        (calls(10, 194, opens=lambda i: i < 20), {}, OPEN_BEFORE),
        (calls(10, 194, opens=lambda i: i < 20 or i == 70), {"connections": 1000}, OPEN_BEFORE),
        (calls(10, 194), {"connections": 5}, "keep more of them with target.connections = 20"),
        (calls(10, 194), {"connections": 500, "preopened": 20}, CLOSES),
        (calls(100, 50, opens=lambda i: i % 2 == 0, ended=lambda i: "cancelled" if i % 2 else "ok"), {}, "calls that were cut short or broke off (100) took theirs along"),
        (calls(10, 194, n=0), {}, "open them before the run with target.preopened"),
    ],
)  # fmt: skip
def test_advice_on_connections_can_help(attempts, target, text):
    """A target that closes them is named: none that is opened before the run would be there when it is needed."""
    frames = SimpleNamespace(run={"scenario": {"target": target}}, attempts=attempts)

    found = connections(frames)
    assert found.startswith(text)
    assert ("preopened" in found) == ("preopened" in text)


def test_users_of_locust_are_not_told_to_open_connections_before():
    scenario = {"target": {}, "arrival": {"process": "tasks"}}
    few = SimpleNamespace(
        run={"scenario": scenario}, attempts=calls(10, 194, opens=lambda i: i < 20)
    )
    all_closed = SimpleNamespace(run={"scenario": scenario}, attempts=calls(100, 50))

    assert connections(few) == "the first requests of the users do"
    assert connections(all_closed).startswith(CLOSES)
