"""Figures of the client's benchmark, from logs whose errors are known."""

import dataclasses
import re

import numpy as np
import pytest

MS, SECOND = 1_000_000, 1_000_000_000
CHUNKS = 50


@pytest.fixture
def rig():
    """The server's side of 400 requests, 25 ms apart: TTFT 200 ms, gaps 20 ms. And a load that fits."""
    from reference_server import Load, RequestLog, Server

    began = SECOND + np.arange(400) * 25 * MS
    at_ns = (began[:, None] + 200 * MS + np.arange(CHUNKS) * 20 * MS).ravel()
    server_log = RequestLog(np.arange(400), began, np.full(400, CHUNKS), at_ns)
    server = Server(0, "", None, {"cpu_share": 0.25, "late_p99_ms": 0.1}, server_log)
    return Load(10, 5.0, CHUNKS), server


@pytest.fixture
def measure(rig):
    """Result of a client that saw each chunk after some ns, and used a quarter of its core."""
    from measure import Used, measured
    from reference_server import RequestLog

    load, server = rig
    server_log = server.log

    def made(after, began_after=0, exact=None, keep=slice(None), counted=None):
        shifted = RequestLog(
            server_log.request,
            server_log.began_ns + began_after,
            server_log.chunks,
            server_log.at_ns + after,
            exact,
        )
        request = shifted.request[keep]
        rows = np.isin(np.repeat(server_log.request, CHUNKS), request)
        seen = RequestLog(
            request,
            shifted.began_ns[keep],
            server_log.chunks[keep],
            shifted.at_ns[rows],
            None if exact is None else exact[rows],
        )
        seconds = SECOND + np.arange(14) * SECOND
        used = Used(seconds, np.arange(14) * 0.25, whole_s=4.0, tree_s=6.0, writer_s=0.2)
        return measured(load, SECOND, server, seen, used, counted)

    return made


def test_a_client_without_error_has_none(measure):
    result = measure(0)

    assert (
        result.ttft_p99_error
        == result.ttft_each_p99
        == result.gap_p99_error
        == result.gap_each_p99
        == 0.0
    )
    assert (result.ttft_p99_reference, result.gap_p99_reference, result.lost) == (200.0, 20.0, 0)
    assert result.honest


def test_errors_are_of_the_requests_that_the_clients_figures_count(measure, rig):
    """It may have sent some in the steady window that were due before."""
    first = np.arange(400 * CHUNKS) // CHUNKS < 200
    late = np.where(first, 50 * MS, 0)
    requests = rig[1].log.request

    assert measure(late).ttft_p99_error == 50.0
    assert measure(late, counted=requests[200:]).ttft_p99_error == 0.0
    assert measure(late, counted=requests[200:]).requests == 200


def test_cost_is_of_the_chunks_sent_meanwhile(measure):
    result = measure(0)

    assert result.us_per_chunk == pytest.approx(0.25e6 / result.rate)
    assert result.rate == pytest.approx(CHUNKS * 40, rel=0.1)
    assert result.us_per_chunk_whole == pytest.approx(4e6 / (400 * CHUNKS))
    assert result.us_per_chunk_tree == pytest.approx(6e6 / (400 * CHUNKS))
    assert result.us_per_request == pytest.approx(0.25e6 / 40, rel=0.02)
    assert (result.cpu_share, result.writer_share) == (pytest.approx(0.25), pytest.approx(0.05))


def test_a_constant_lag_moves_ttft_and_no_gap(measure):
    result = measure(3 * MS)

    assert (result.ttft_p99_error, result.lag_p50, result.gap_each_p99) == (3.0, 3.0, 0.0)


def test_a_request_that_left_late_is_measured_from_its_sending(measure):
    assert measure(0, began_after=-2 * MS).ttft_p99_error == pytest.approx(2.0)


def test_errors_that_cancel_in_the_percentile_show_in_the_single_ones(measure):
    swing = np.tile([0, 4 * MS], 400 * CHUNKS // 2)
    result = measure(swing)

    assert result.gap_each_p99 == 4.0
    assert result.gap_p99_error == 4.0
    assert measure(-swing).ttft_each_p99 == 0.0


def test_a_client_that_is_five_percent_off_is_not_honest(measure):
    assert measure(9 * MS).honest
    assert not measure(11 * MS).honest
    assert not measure(np.tile([0, 2 * MS], 400 * CHUNKS // 2)).honest


def test_a_run_that_is_not_valid_or_lost_requests_is_not_honest(measure):
    good = measure(0)

    assert dataclasses.replace(good, verdict="VALID").honest
    assert not dataclasses.replace(good, verdict="DEGRADED").honest
    assert not measure(0, keep=slice(0, 390)).honest


def test_shares_of_exact_stamps(measure):
    exact = np.tile(np.arange(CHUNKS) != 0, 400)

    result = measure(0, exact=exact)

    assert result.exact == pytest.approx(1 - 1 / CHUNKS)


def test_requests_that_the_client_does_not_have_are_lost(measure):
    assert measure(0, keep=slice(0, 390)).lost == 10


def test_users_come_at_phases_that_spread_over_a_gap():
    from reference_server import Load

    for streams in (20, 50, 200, 500, 1000):
        load = Load(streams, 5)
        phases = np.sort(np.arange(streams) * load.spacing_ms % load.gap_ms)
        apart = np.diff(np.append(phases, phases[0] + load.gap_ms))

        assert 2 < load.settled_s < 8
        assert apart.max() < 3 * load.gap_ms / streams


def test_an_open_loop_is_settled_when_as_many_answers_end_as_begin():
    from reference_server import Load

    load = Load(0, 5.0, rate_per_s=120.0, poisson=True)
    at_s = load.arrivals_s()

    assert load.settled_s > load.answer_s == pytest.approx(4.18)
    assert (at_s[0], len(at_s)) == (0.0, round(120 * load.duration_s))
    assert (np.diff(at_s) >= 0).all()
    assert np.diff(at_s).std() == pytest.approx(1 / 120, rel=0.2)
    assert np.diff(Load(0, 5.0, rate_per_s=120.0).arrivals_s()) == pytest.approx(1 / 120)


def test_figures_that_another_program_reports_are_held_against_the_server_log(rig):
    from measure import reported

    _, server = rig

    result = reported(server, {"mean": 203.0, "p50": 202.0, "p99": 230.0}, 25.0, tree_s=4.0)

    assert (result.ttft_mean_error, result.ttft_p50_error, result.ttft_p99_error) == (
        3.0,
        2.0,
        30.0,
    )
    assert (result.gap_p99_error, result.us_per_chunk_tree) == (5.0, 4e6 / (400 * CHUNKS))
    assert (
        reported(server, {"mean": 203.0, "p50": 202.0, "p99": 230.0}, None, 4.0).gap_p99_error
        is None
    )


def test_medians_are_of_numbers_and_the_most_frequent_of_words(measure):
    from measure import median_of

    runs = [dataclasses.replace(measure(lag), verdict=verdict, mark="")
            for lag, verdict in ((0, "VALID"), (9 * MS, "DEGRADED"), (1 * MS, "DEGRADED"))]  # fmt: skip

    middle = median_of(runs)

    assert (middle.ttft_p99_error, middle.verdict, middle.mark) == (1.0, "DEGRADED", "")
    assert middle.exact is None


@pytest.fixture
def parts(measure):
    """Everything measured, with a client that is 3 ms late, and cost twice that of the native one."""
    good = measure(0)
    bad = dataclasses.replace(
        measure(3 * MS), reader="compiled", verdict="VALID", mark="few slow periods", exact=1.0, us_per_chunk=2 * good.us_per_chunk,
        us_per_chunk_whole=2 * good.us_per_chunk_whole, us_per_request=2 * good.us_per_request, first_request_s=1.5, page_s=1.0,
    )  # fmt: skip
    invalid = dataclasses.replace(
        bad, verdict="INVALID", ttft_p99_error=70.0, ttft_invalid=True, gap_invalid=True
    )
    slow = dataclasses.replace(bad, first_request_s=3.0)
    rounds = {name: [good] for name in ("reference", "locust")} | {
        name: [bad] for name in ("tailgauge", "changing", "tls")
    }
    return {
        "herds": {"500": rounds, "2000": rounds | {"tailgauge": [invalid, invalid, bad]}},
        "spread": {"500": rounds},
        "tls": {"500": {"tailgauge": [bad], "tls": [dataclasses.replace(bad, us_per_chunk=3 * good.us_per_chunk)]}},
        "short": {"1 chunk, 400/s": rounds, "5 chunks, 3000/s": rounds},
        "minute": {"500": rounds},
        "capacity": {"spread": {"reference": [good], "tailgauge": [dataclasses.replace(bad, rate=good.rate / 2)]},
                     "herds": {"reference": [good], "tailgauge": []}},
        "mock": {"100": rounds},
        "start": {"10": {"tailgauge": [bad], "anthropic": [bad], "workers_8": [slow]}},
    }  # fmt: skip


def test_the_page_tells_what_was_missed(parts):
    import tables

    text = tables.page(parts, "a machine", 12, ["aiperf is not installed"])
    missed = [
        "| TTFT p99 error, herd of 500 | at most 1 ms | 3.00 ms | 200% |",
        "| TTFT p99 error, herd of 2000, unless INVALID | at most 2 ms | 3.00 ms | 50% |",
        "| honest capacity, spread, ratio to C | at least 0.6 | 0.50 | 17% |",
        "| honest capacity, herds, ratio to C | at least 0.45 | 0.00 | 100% |",
        "| CPU per chunk, steady, 500 streams, ratio to C | at most 1.6 | 2.00 | 25% |",
        "| TLS, ratio to plain | at most 1.25 | 1.50 | 20% |",
        "| CPU per request at 400/s, ratio to Locust by hand | at most 1.5 | 2.00 | 33% |",
        "| first request of 8 workers, ratio to one | at most 1.5 | 2.00 | 33% |",
    ]
    left_out = [
        "gap p99 error, herd of 500",
        "CPU per request at 800/s",
        "| 2000 | Tailgauge | +0.00 | +3.00 |",
        "| 500 | C reference |",
    ]

    assert "9 of 17 are met; these are missed:" in text
    assert [line for line in missed if line not in text] == []
    assert [line for line in left_out if line in text] == []
    assert "| herds | Tailgauge | - |" in text
    assert re.search(r"\| 500 \| Tailgauge, TLS \| ([^|]+ \| ){3}1\.50 \|", text)
    assert "| VALID 1, INVALID 2 |" in text
    assert "The C reference's TTFT p99 errors are at most 0.00 ms." in text
    assert "Left out: aiperf is not installed." in text


def test_tables_have_as_many_cells_as_heads(parts):
    import tables

    text = tables.page(parts, "a machine", 2, [])
    found = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]

    assert len(found) == 9
    assert all(line.count("|") == table[0].count("|") for table in found for line in table)
