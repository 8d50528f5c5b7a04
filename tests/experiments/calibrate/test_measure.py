"""The criteria of a calibration, each from both sides, on arrivals whose error is known."""

import numpy as np
import pytest

from tailgauge.experiments.calibrate import measure
from tailgauge.experiments.calibrate.measure import Joined, distance, step_error
from tailgauge.experiments.calibrate.plan import Window

MS = 1e6
WINDOW = Window(1000.0, 1.0, 11.0)
CHUNKS = 20
MODELS = {
    "constant": lambda _, n: np.full(n, 100 * MS),
    "exponential": lambda rng, n: rng.exponential(100 * MS, n),
    "lognormal": lambda rng, n: 100 * MS * np.exp(rng.normal(0, 0.5, n)),
}


def calls_with(model="lognormal", n=1000, first_off=0.0, gap_off=0.0, late=0.0, lost=0, jitter=0.02):
    """Calls over ten seconds; `first_off` and `gap_off` (ms, of a chunk's arrival) may be arrays of n calls."""
    rng = np.random.default_rng(7)
    sent = np.round(np.sort(rng.uniform(1.0, 10.99, n)) * 1e9)
    waits = MODELS[model](rng, n) + np.abs(rng.normal(0, jitter * MS, n))  # an endpoint is never on the dot
    gaps = 20 * MS * np.exp(rng.normal(0, 0.2 if model != "constant" else 0, (n, CHUNKS - 1)))
    sent_at = np.round(
        sent[:, None] + waits[:, None] + np.column_stack([np.zeros(n), np.cumsum(gaps, axis=1)])
    )
    off = np.zeros((n, CHUNKS))
    off[:, 0] = np.broadcast_to(first_off, n)
    off[:, 1::2] = np.broadcast_to(gap_off, n)[
        :, None
    ]  # every other chunk late: gaps too long and too short in turn
    arrived = sent_at + np.round((off + 0.005) * MS)
    return Joined(
        sent=sent, first=arrived[:, 0], first_exact=np.arange(n) % 10 > 0, late=np.full(n, late * MS),
        sizes=np.full(n, CHUNKS), arrived=arrived.ravel().astype(np.int64), reference=sent_at.ravel().astype(np.int64), lost=lost,
    )  # fmt: skip


def judged(calls, model="lognormal", window=WINDOW):
    return step_error(calls, window, 0.5 if model == "constant" else 0.1, cpu_s=0.5, wait_s=0.1)


@pytest.mark.parametrize("model", MODELS)
def test_a_faithful_client_passes_under_every_law(model):
    found = judged(calls_with(model), model)

    assert found.failed == ()
    assert found.ttft.bias_ms == pytest.approx(0.005)
    assert found.ttft.spread_ms == pytest.approx(0.005)
    assert found.gap.bias_ms == 0
    assert found.exact_first == pytest.approx(0.9)
    assert found.requests_per_s == pytest.approx(100, rel=0.01)
    assert found.sent_per_s == pytest.approx(
        2000, rel=0.1
    )  # some chunks of the last calls are beyond the window
    assert found.cpu_us_per_chunk == pytest.approx(0.5e6 / (found.sent_per_s * 10))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("off", "failed"), [(0.45, False), (0.55, True)])
def test_the_median_may_be_off_by_half_a_millisecond(model, off, failed):
    found = judged(calls_with(model, first_off=off), model)

    assert any("TTFT: the median is off by" in why for why in found.failed) == failed
    assert found.ttft.bias_ms == pytest.approx(off + 0.005)


@pytest.mark.parametrize(("off", "failed"), [(4.0, False), (8.0, True)])
def test_the_p99_of_a_long_ttft_may_be_off_by_two_in_a_hundred(off, failed):
    calls = calls_with(n=1000)
    slowest = np.argsort(calls.reference[::CHUNKS] - calls.sent)[-50:]
    late = np.zeros(1000)
    late[slowest] = off
    found = judged(calls_with(first_off=late))

    assert found.ttft.p99_reference_ms > 250  # 2% of it are more than 5 ms
    assert (any("TTFT: the p99" in why for why in found.failed)) == failed


@pytest.mark.parametrize(("off", "failed"), [(1.9, False), (2.2, True)])
def test_the_p99_of_a_gap_may_be_off_by_two_milliseconds(off, failed):
    late = np.where(np.arange(1000) % 20 == 0, off, 0.0)  # one call in twenty, so that no median moves
    found = judged(calls_with("constant", gap_off=late), "constant")

    assert found.gap.p99_reference_ms == pytest.approx(20, abs=0.01)
    assert any("chunk gaps: the p99" in why for why in found.failed) == failed


def test_a_few_late_chunks_are_not_a_p99():
    late = np.where(np.arange(1000) % 200 == 0, 50.0, 0.0)

    assert judged(calls_with("constant", first_off=late), "constant").failed == ()


@pytest.mark.parametrize(("share", "failed"), [(0.02, False), (0.3, True)])
def test_distributions_may_differ_by_what_chance_explains(share, failed):
    """Some answers are seen early or late by turns: neither median nor p99 of the constant moves beyond its bound."""
    turn = np.arange(1000)
    off = np.where(turn % 100 < share * 100, 1.5, 0.0)
    found = judged(calls_with("constant", first_off=off), "constant")

    assert [why for why in found.failed if "distributions" in why] == (list(found.failed) if failed else [])
    assert bool(found.failed) == failed
    assert found.ttft.distance_bound == pytest.approx(1.63 / np.sqrt(found.ttft.n) + 0.01)


def test_a_late_endpoint_is_no_error_of_the_client():
    found = judged(calls_with(late=500.0))

    assert found.failed == ()
    assert found.endpoint_late_ms == 500
    assert found.strained
    assert not judged(calls_with(late=5.0)).strained


@pytest.mark.parametrize(("wait_s", "crowded"), [(None, False), (0.9, False), (1.1, True)])
def test_a_worker_that_waited_for_a_core_is_noted(wait_s, crowded):
    assert step_error(calls_with(), WINDOW, 0.0, 0.5, wait_s).crowded == crowded  # of ten seconds


def test_an_endpoint_that_sends_less_than_asked_is_at_its_limit():
    assert judged(calls_with(), window=Window(4000.0, 1.0, 11.0)).strained
    assert not judged(calls_with(), window=Window(2000.0, 1.0, 11.0)).strained


@pytest.mark.parametrize(("n", "failed"), [(19, True), (20, False)])
def test_too_few_requests_certify_nothing(n, failed):
    assert any(f"only {n} requests" in why for why in judged(calls_with(n=n)).failed) == failed


def test_an_empty_window_fails_and_does_not_raise():
    found = judged(calls_with(), window=Window(1000.0, 50.0, 60.0))

    assert (found.ttft, found.gap, found.sent_per_s) == (None, None, 0)
    assert found.failed == ("only 0 requests were answered, 20 needed",)


def test_a_call_that_the_client_lacks_fails_the_level():
    assert "1 calls" in judged(calls_with(lost=1)).failed[0]


def test_the_distance_of_two_samples_is_known():
    assert distance(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 3, 4]), 0) == 0
    assert distance(np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6]), 0) == 0.5
    assert distance(np.array([3.0, 4, 5, 6]), np.array([1.0, 2, 3, 4]), 0) == 0.5
    assert distance(np.array([1.0, 1, 1]), np.array([1.5, 1.5, 1.5]), 0) == 1
    assert distance(np.array([1.0, 1, 1]), np.array([1.5, 1.5, 1.5]), 0.5) == 0
    assert distance(np.array([2.1, 2.1]), np.array([1.5, 1.5]), 0.5) == 1


def test_a_run_folder_is_joined_with_the_endpoints_log(write):
    folder = write(n=1000, rate_per_s=100, ttft_ms=100.0, offsets_ns=(0,), cpu_share=0.25)

    (found,) = measure.measure(folder, [Window(2000.0, 2.0, 9.0)], 0.5)

    assert found.failed == ()
    assert found.ttft.bias_ms == pytest.approx(0.05)  # the log says that each chunk left 50 us before
    assert found.gap.bias_ms == 0
    assert found.sent_per_s == pytest.approx(2000, rel=0.01)
    assert found.cpu_us_per_chunk == pytest.approx(0.25e6 / 2000, rel=0.02)


def test_a_worker_with_a_clock_of_its_own_is_put_on_the_masters(write):
    folder = write(n=1000, rate_per_s=100, ttft_ms=100.0, offsets_ns=(-5_000_000_000, 7_000_000_000))

    (found,) = measure.measure(folder, [Window(2000.0, 2.0, 9.0)], 0.5)

    assert (found.failed, found.ttft.bias_ms) == ((), pytest.approx(0.05))


def test_a_run_whose_log_is_gone_certifies_nothing(write):
    (found,) = measure.measure(write(n=200, server_log=False), [Window(2000.0, 1.0, 3.0)], 0.5)

    assert any("not in" in why or "only 0" in why for why in found.failed)
