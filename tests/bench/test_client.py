"""The client's benchmark as a user starts it, in its short form."""

import os
import re

import pytest


@pytest.mark.parametrize(("limit", "tries"), [(45_000, {}), (45_000, {40: 1}), (99_000, {}), (4_000, {})])
def test_capacity_is_the_highest_rung_that_was_honest_a_hiccup_aside(monkeypatch, limit, tries):
    import client
    from measure import Result, median_of
    from reference_server import Load, RigError

    monkeypatch.setattr(client.clients.Cores, "found", lambda: None)
    bench, left, rates = client.Bench(None, lambda _: None), dict(tries), []

    def run(name: str, load: Load) -> Result:
        rate = load.streams * client.A_STREAM
        rates.append(rate)
        failing = rate > limit or left.get(round(rate / 1e3), 0) > 0
        left[round(rate / 1e3)] = left.get(round(rate / 1e3), 0) - 1
        if failing and len(rates) % 2:
            raise RigError("too much")
        figures = dict.fromkeys(Result.__dataclass_fields__, 0.0)
        return Result(**{**figures, "rate": rate, "gap_p99_error": 6.0 if failing else 0.0})

    monkeypatch.setattr(bench, "run", run)
    best = bench.capacity("tailgauge", 5.0)

    rungs = [1e3 * rung for rung in client.LADDER if 1e3 * rung <= limit]
    assert (best.rate if best else None) == (pytest.approx(rungs[-1], rel=0.01) if rungs else None)
    assert best is None or median_of([best]) == best


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_the_short_form_compares_our_client_with_the_native_one(cc, full_size, command, checkout):
    if not full_size:
        pytest.skip("two minutes of load: make verify")
    done = command(["python", checkout / "bench" / "client.py", "--quick"], timeout_s=300)

    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"\| (50|500) \| (C reference|Tailgauge, kernel timestamps) \| [\d,]+ \| ([\d.]+) ", done.stdout
    )
    cost = {(int(streams), name): float(us) for streams, name, us in rows}
    assert len(cost) == 4
    for streams in (50, 500):
        assert cost[streams, "C reference"] < cost[streams, "Tailgauge, kernel timestamps"]
