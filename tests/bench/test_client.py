"""The client's benchmark as a user starts it, in its short form."""

import os
import re
from dataclasses import replace

import pytest

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(
    ("limit", "tries"), [(45_000, {}), (45_000, {40: 1}), (99_000, {}), (4_000, {})]
)
def test_capacity_is_the_highest_rung_that_was_honest_a_hiccup_aside(monkeypatch, limit, tries):
    import client
    from measure import Result, median_of
    from reference_server import Load, RigError

    monkeypatch.setattr(client.clients.Cores, "found", lambda: None)
    bench, left, rates = client.Bench(client.ROWS), dict(tries), []

    def run(name: str, load: Load) -> Result:
        rate = load.streams * client.A_STREAM
        rates.append(rate)
        failing = rate > limit or left.get(round(rate / 1e3), 0) > 0
        left[round(rate / 1e3)] = left.get(round(rate / 1e3), 0) - 1
        if failing and len(rates) % 2:
            raise RigError("too much")
        figures = dict.fromkeys(Result.__dataclass_fields__, 0.0)
        error = 6.0 if failing else 0.0
        return Result(**{**figures, "rate": rate, "gap_p99_error": error, "verdict": "VALID"})

    monkeypatch.setattr(bench, "run", run)
    best = bench.capacity("tailgauge", 5.0)

    rungs = [1e3 * rung for rung in client.LADDER if 1e3 * rung <= limit]
    assert [one.rate for one in best] == [pytest.approx(rung, rel=0.01) for rung in rungs[-1:]]
    assert not best or [median_of(best)] == best


def test_parts_fill_their_figures_and_a_peer_that_fails_is_left_out(monkeypatch):
    import client
    import tables
    from measure import Result
    from reference_server import Load, RigError

    monkeypatch.setattr(client.clients.Cores, "found", lambda: None)
    bench = client.Bench(client.ROWS | {"aiperf": client.Row(None)})
    loads = []

    def run(name: str, load: Load) -> Result:
        if name == "aiperf":
            raise RigError("no figures")
        loads.append((name, load))
        figures = Result(**dict.fromkeys(Result.__dataclass_fields__, 1.0))
        errors = {"ttft_p99_error": 0.0, "gap_p99_error": 0.0, "lost": 0}
        return replace(figures, verdict="VALID", mark="", reader="compiled", **errors)

    monkeypatch.setattr(bench, "run", run)
    parts = {name: part(bench) for name, part in client.PARTS.items()}
    text = tables.page(parts, "a machine", 30, [])

    assert " nan " not in text
    assert bench.failed == ["aiperf failed with 200 users", "aiperf failed with 1000 users"]
    assert {name: len(runs) for name, runs in parts["herds"]["1000"].items()} == {
        "reference": 5, "tailgauge": 5, "workers": 1, "python_reader": 1, "locust": 1
    }  # fmt: skip
    assert all(load.batch for name, load in loads[:10])


FAKE = """#!/bin/sh
for word; do case $word in --output-artifact-dir=*) out=${word#*=};; esac; done
mkdir -p $out
echo '{"time_to_first_token": {"avg": 9.0, "p50": 9.0, "p99": 9.0}, "inter_chunk_latency": {"p99": 3.0}}' >$out/profile_export_aiperf.json
exec "$CLIENT" --port="$(echo "$*" | sed 's/.*127.0.0.1:\\([0-9]*\\).*/\\1/')" --streams=2 --seconds=0.2
"""


def test_figures_of_a_peer_are_those_that_it_reports(cc, tmp_path, monkeypatch):
    import peers
    from clients import Cores
    from reference_server import Load, RigError, compiled

    program = tmp_path / "aiperf" / "bin" / "aiperf"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("CLIENT", str(compiled("client")))
    core, run = min(os.sched_getaffinity(0)), peers.installed(tmp_path)[0]["aiperf"]
    load = Load(2, 0.2, chunks=5, ttft_ms=5.0, gap_ms=1.0, at_once=True)
    folders = [tmp_path / name for name in ("works", "fails")]
    for folder in folders:
        folder.mkdir()

    result = run(load, Cores(core, (core,), core), folders[0])
    program.write_text("#!/bin/sh\necho no tokenizer\n")

    assert result.ttft_mean - result.ttft_mean_error == pytest.approx(5.0, abs=4)
    assert result.ttft_mean == 9.0
    assert result.requests > 2
    with pytest.raises(RigError, match="no tokenizer"):
        run(load, Cores(core, (core,), core), folders[1])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_the_short_form_compares_our_client_with_the_native_one(cc, full_size, command, checkout):
    if not full_size:
        pytest.skip("two minutes of load: make verify")
    done = command(["python", checkout / "bench" / "client.py", "--quick"], timeout_s=300)

    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^\| (.*) \| (C reference|Tailgauge|Tailgauge, TLS) \| (.*) \|$", done.stdout, re.MULTILINE
    )
    both = ("C reference", "Tailgauge")
    loads = [
        ("500", both),
        ("40", both),
        ("500", both),
        ("about 500, Poisson", both),
        ("500", ("Tailgauge", "Tailgauge, TLS")),
    ]
    loads.append(("1 chunk, 400/s", both))
    assert [row[:2] for row in rows] == [(load, name) for load, names in loads for name in names]
    assert all(re.match(r"[+-]\d+\.\d\d ", cells) for *_, cells in rows[:2])
