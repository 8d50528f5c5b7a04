"""Fan-outs of a run, against runs written leg by leg and dry runs."""

import re

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.fan_out.section import compute, section

SEARCH = {"pattern": "fan_out", "prompt_tokens": 10, "output_tokens": 5}
SIMULATED = {"ttft_ms": 150, "ttft_sigma": 0.6, "chunk_gap_ms": 8}


def found(folder):
    return {one.traffic: one for one in compute(Run([folder]))}


def values(quantiles):
    return [q.value for q in quantiles]


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory, full_size):
    """The same legs side by side and one after the other, quorums, and a table with two kinds of legs."""
    kinds = [
        {"prompt_tokens": 10, "output_tokens": 5, "count": 3},
        {"prompt_tokens": 10, "output_tokens": 80},
    ]
    tree = {
        "arrival": {"rate_per_s": 40.0},
        "stages": {"duration_s": 600.0 if full_size else 35.0, "warmup_s": 0.0},
        "traffic": {
            "side": SEARCH | {"fan_out": {"legs": 4}},
            "row": SEARCH | {"fan_out": {"legs": 4, "order": "sequential"}},
            "some": SEARCH | {"fan_out": {"legs": 4, "join": "first_k", "k": 2}},
            "kinds": SEARCH | {"fan_out": {"kinds": kinds, "at_once": 2}},
        },
        "simulated": SIMULATED,
    }
    return found(dry_run_folder(tree, tmp_path_factory.mktemp("fan")))


@pytest.mark.slow
def test_a_dry_run_recovers_its_ground_truth(dry_run):
    """Legs are drawn one by one: 150 e^(0.6 z) + 4 gaps of 8 ms."""
    one = dry_run["side"]
    drawn = 150 * np.exp(0.6 * np.random.default_rng(1).standard_normal((100_000, 4))) + 32
    slowest = np.quantile(drawn.max(axis=1), (0.5, 0.95))
    single = np.quantile(drawn, (0.5, 0.95))
    cost = [slowest[0] / np.median(drawn)]

    assert one.complete == one.requests > 250
    assert values(one.slowest) == pytest.approx(values(one.joined), abs=1e-3)
    for found, planted in ((one.slowest, slowest), (one.single, single), (one.cost, cost)):
        for q, value in zip(found, planted, strict=False):
            assert q.low * 0.97 <= value <= q.high * 1.03
    assert one.partial.failed == one.partial.closed == one.partial.never_sent == 0
    assert sum(p.k for p in one.critical.positions) == one.complete
    for position in one.critical.positions:
        assert position.low < 0.29
        assert position.high > 0.21


@pytest.mark.slow
def test_legs_closed_at_the_join_have_no_time_of_one_leg(dry_run):
    one = dry_run["some"]

    assert (one.single, one.cost) == ((), ())
    assert one.partial.closed == 2 * one.requests
    assert one.critical.n == one.requests


@pytest.mark.slow
def test_kinds_and_places(dry_run):
    """The long leg, asked last, is what nearly every request waits for."""
    one = dry_run["kinds"]

    assert one.bounded
    assert one.critical.most == 3
    assert one.critical.positions[3].value > 0.9


@pytest.mark.slow
def test_each_table_has_its_waits_and_its_column_of_results(dry_run):
    both = section(list(dry_run.values()))
    side, facts = both.tables[0], both.tables[-1]
    rows = {row[0]: row for row in side.rows}

    heavy = "leg 3 is last in "
    assert both.answer.startswith(f"kinds: {heavy}")
    assert "(25.0% if all were alike); join of 4 legs: p" in both.answer
    assert [table.title for table in both.tables[:2]] == ["Waits of kinds", "Waits of row"]
    assert facts.header == ("", "kinds", "row", "side", "some")
    assert rows["One leg"][-1] == f"{4 * dry_run['kinds'].complete:,}"
    assert both.card.label == "fan-out"
    assert both.card.detail == "at p95 for the slowest of a request's 4 legs"
    assert {line.partition(": ")[0] for line in both.card.lines[1:]} < set(dry_run)
    alone = section([dry_run["side"]])
    heaviest = section([dry_run["kinds"]]).card
    assert heaviest.lines[0].startswith("leg 3 is last in ")
    assert heaviest.value.interval
    assert alone.answer.startswith("Join of 4 legs: p")
    assert re.search(r"At p\d\d, the slowest leg takes [\d.]+x ", alone.answer)
    assert {"Slowest leg relative to one leg", "Partial failures"} <= dict(alone.facts).keys()


@pytest.mark.slow
def test_failed_legs_are_counted_and_named(mixed, tmp_path):
    run = mixed()
    for i in range(40):
        legs = [{"leg": k, "first": 100 + k} for k in range(3)]
        if i < 4:
            legs[1] = {"leg": 1, "ended": "server_error"}
        ended = "server_error" if i < 2 else "ok"
        run.request(i * 100, legs, "fan", "fan_out", ended=ended, joined_ms=None if i < 2 else 123)
    run.request(
        4100,
        [{"leg": 0, "first": 90}, {"leg": 1, "ended": "overloaded"}, {"leg": 1, "attempt": 1, "cause": "retry", "sent": 200, "first": 400}, {"leg": 2, "first": 95}],
        "fan", "fan_out", joined_ms=421,
    )  # fmt: skip
    folder = run.write(tmp_path / "run")
    one = found(folder)["fan"]
    partial = one.partial
    slowest = max(one.slowest, key=lambda q: q.p)
    report = make([folder], tmp_path)

    assert (one.requests, one.complete, one.legs, one.without_answer) == (41, 37, 3, 2)
    assert (partial.failed, partial.requests_with_failed, partial.ok_with_failed) == (4, 4, 2)
    assert (partial.retries, partial.failed_share.n) == (1, 123)
    # From the first attempt of the leg to its last content.
    assert slowest.value == pytest.approx(419.95)
    for shown in (report.markdown.read_text(), report.html.read_text()):
        assert "4 legs failed (3.3%" in shown


@pytest.mark.slow
def test_hardly_any_fan_outs_are_no_traceback(mixed, tmp_path):
    run = mixed()
    run.request(0, [{"first": 100}])
    run.request(0, [{"leg": k, "first": 100} for k in range(3)], "fan", "fan_out", joined_ms=121)
    run.request(
        5, [{"leg": 0, "ended": "censored", "sent": None}], "open", "fan_out", ended="censored"
    )
    report = make([run.write(tmp_path / "run")], tmp_path)

    by = {one["traffic"]: one for one in report.data["fan_out"]}
    assert by["open"]["complete"] == 0
    assert "open: too few joined requests" in report.markdown.read_text()
    assert by["fan"]["complete"] == 1
    assert by["fan"]["critical"] is None  # its legs were over in the same moment: none was the last


@pytest.mark.parametrize("trailing_ms", [0.0, 1.0, 300.0])
def test_legs_and_joins_end_at_their_last_content(mixed, tmp_path, trailing_ms):
    """Usage events and the end of the stream come late on leg 0, whose content is there first."""
    run = mixed()
    for i in range(60):
        legs = [{"leg": k, "first": 100 + 10 * k + i % 7} for k in range(3)]
        legs[0]["end"] = legs[0]["first"] + 20 + trailing_ms
        ends = [leg.get("end", leg["first"] + 21) for leg in legs]
        run.request(i * 100, legs, "fan", "fan_out", joined_ms=max(ends))
    one = found(run.write(tmp_path / "run"))["fan"]

    assert values(one.slowest) == pytest.approx([142.95, 145.95, 145.95])
    assert values(one.joined) == pytest.approx([143, 146, 146])
    assert [position.k for position in one.critical.positions] == [0, 0, 60]


@pytest.mark.parametrize(
    ("legs", "joined_ms", "value"),
    [
        # At its deadline: leg 1 was closed then; leg 0 was whole long before.
        ([{"first": 100}, {"first": 150, "end": 400, "ended": "cancelled"}], 400, 400),
        # An answer without content has only its end; a leg after the join does not move it.
        ([{"ended": "empty", "end": 90}, {"first": 60, "end": 200}, {"first": 300, "end": 380}], 200, 90),
    ],
)  # fmt: skip
def test_a_join_ends_where_it_did(mixed, tmp_path, legs, joined_ms, value):
    run = mixed()
    legs = [{"leg": number, **leg} for number, leg in enumerate(legs)]
    for i in range(60):
        run.request(i * 100, legs, "fan", "fan_out", joined_ms=joined_ms)
    one = found(run.write(tmp_path / "run"))["fan"]

    assert one.joined[0].value == pytest.approx(value)
