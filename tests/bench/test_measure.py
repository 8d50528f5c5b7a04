"""Figures of the client's benchmark, from logs whose errors are known."""

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

    def made(after, began_after=0, exact=None, keep=slice(None)):
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
        return measured(load, SECOND, server, seen, used)

    return made


def test_a_client_without_error_has_none(measure):
    result = measure(0)

    assert result.ttft_p99_error == result.ttft_each_p99 == result.gap_p99_error == result.gap_each_p99 == 0.0
    assert (result.ttft_p99_reference, result.gap_p99_reference, result.lost) == (200.0, 20.0, 0)
    assert result.honest


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


def test_a_client_that_is_ten_percent_off_is_not_honest(measure):
    assert measure(19 * MS).honest
    assert not measure(21 * MS).honest


def test_shares_of_exact_stamps(measure):
    exact = np.tile(np.arange(CHUNKS) != 0, 400)

    result = measure(0, exact=exact)

    assert (result.exact_first, result.exact) == (0.0, pytest.approx(1 - 1 / CHUNKS))


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


def test_the_page_tells_what_was_missed(measure):
    import tables

    good, bad = measure(0), measure(3 * MS)
    rounds = {"reference": [good], "tailgauge": [bad], "tls": [good], "reading": [good]}
    figures = tables.Figures(
        "a machine",
        3,
        quick=False,
        loads={500: rounds, 1000: rounds},
        requests=rounds,
        long=rounds,
        capacity={"tailgauge": bad},
    )

    text = tables.page(figures, 12)

    assert "| at most | TTFT p99 error, 1000 streams | 1 ms | 3.00 ms | missed by 200% |" in text
    assert "| at most | gap p99 error, 500 streams | 1 ms | 0.00 ms | met |" in text
    assert "missed by 95%" in text  # 2,000 chunks per second of the 40,000


def test_tables_have_as_many_cells_as_heads(measure):
    import tables

    rounds = {"reference": [measure(0)], "tailgauge": [measure(0)]}
    text = tables.page(tables.Figures("a machine", 3, quick=True, loads={50: rounds}, requests=rounds), 2)
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]

    assert len(tables) == 2
    assert all(line.count("|") == table[0].count("|") for table in tables for line in table)


def test_the_page_is_written_between_its_marks(measure, tmp_path, monkeypatch):
    import tables

    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    monkeypatch.setattr(tables, "PAGE", page)

    tables.write("new\n")

    assert page.read_text() == f"before\n{tables.BEGIN}\nnew\n{tables.END}\nafter\n"
