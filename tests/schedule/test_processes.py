"""What each arrival process promises: the spread of its gaps, how it clumps, and its mean rate."""

import math

import numpy as np
import pytest

from tailgauge.errors import ScenarioError
from tailgauge.schedule.schedule import arrival_times
from tailgauge.schedule.settings import Arrival, OnOff

RENEWAL = [("gamma", 0.3), ("gamma", 1.0), ("gamma", 2.0), ("gamma", 4.0)]


def times(process, rate_per_s, duration_s, seed=1, **settings):
    return arrival_times(
        Arrival(process=process, rate_per_s=rate_per_s, **settings), duration_s, seed
    )


def dispersion(at_s, window_s, windows):
    """Index of dispersion of the counts: variance over mean."""
    counts = np.bincount((at_s / window_s).astype(int), minlength=windows)[:windows]
    return counts.var(ddof=1) / counts.mean()


@pytest.mark.parametrize(("process", "cv"), RENEWAL)
def test_gaps_have_the_coefficient_of_variation_that_was_asked_for(process, cv):
    """Row 22: within 3% at 100,000 arrivals, or four standard errors of the estimate where that is more."""
    gaps = np.diff(times(process, 100, 1000, cv=cv))
    found = gaps.std() / gaps.mean()
    fourth = np.mean((gaps / gaps.mean() - 1) ** 4)
    error = math.sqrt(max(fourth - cv**4, 0) / len(gaps)) / (
        2 * cv
    )  # of an estimated standard deviation

    assert len(gaps) == pytest.approx(100_000, rel=0.1)
    assert abs(found - cv) < max(0.03 * cv, 4 * error)


@pytest.mark.parametrize(("process", "cv"), RENEWAL)
def test_over_long_windows_the_index_of_dispersion_is_the_square_of_the_cv(process, cv, full_size):
    windows, per_window = (20_000, 900) if full_size else (2_000, 400)
    at_s = times(process, 100, windows * per_window / 100, cv=cv)
    found = dispersion(at_s, per_window / 100, windows)

    # Of a finite window the exact value is off by about cv^4 / window; the rest is the error of a variance.
    assert (
        abs(found / cv**2 - 1)
        < max(0.03, 4 * math.sqrt(2 / windows)) + max(cv**2, 1 / cv**2) / per_window
    )


def test_gamma_with_a_cv_of_one_is_exponential():
    gaps = np.diff(times("gamma", 100, 600, cv=1.0))

    assert np.mean(gaps > 0.03) == pytest.approx(math.exp(-3), rel=0.1)


@pytest.mark.parametrize(("process", "cv"), [("gamma", 5.0), ("gamma", 0.2)])
def test_short_runs_of_uneven_gaps_get_rate_times_duration_on_average(process, cv):
    """A plan that began with an arrival would have (cv^2 - 1) / 2 too many: 12 of 20 at a cv of 5."""
    counts = np.array([len(times(process, 10, 2, seed, cv=cv)) for seed in range(1500)])

    assert abs(counts.mean() - 20) < 4 * counts.std(ddof=1) / math.sqrt(len(counts))


def test_poisson_has_a_cv_and_an_index_of_dispersion_of_one():
    at_s = times("poisson", 100, 1000)
    gaps = np.diff(at_s)

    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=4 / math.sqrt(len(gaps)))
    assert dispersion(at_s, 1.0, 1000) == pytest.approx(1, abs=4 * math.sqrt(2 / 1000))


class TestBursts:
    BURST = OnOff(on_s=2.0, off_s=6.0)

    def test_the_mean_rate_is_kept(self):
        counts = np.array(
            [len(times("on_off", 20, 60, seed, on_off=self.BURST)) for seed in range(400)]
        )

        assert abs(counts.mean() - 1200) < 4 * counts.std(ddof=1) / math.sqrt(len(counts))

    @pytest.mark.parametrize("off_share", [0.0, 0.25])
    def test_the_index_of_dispersion_is_that_of_a_two_state_process(self, off_share):
        """Variance of a Markov-modulated Poisson process, with rates a, b in states that end at rates p, q."""
        burst = OnOff(on_s=2.0, off_s=6.0, off_share=off_share)
        window_s, windows = 100.0, 2000
        p, q = 1 / burst.on_s, 1 / burst.off_s
        on = q / (p + q)
        high = 20 / (on + (1 - on) * off_share)
        relaxed = 1 - (1 - math.exp(-(p + q) * window_s)) / ((p + q) * window_s)
        exact = 1 + 2 * (high * (1 - off_share)) ** 2 * on * (1 - on) / ((p + q) * 20) * relaxed
        at_s = times("on_off", 20, window_s * windows, on_off=burst)

        assert exact > 20
        assert dispersion(at_s, window_s, windows) == pytest.approx(
            exact, rel=4 * math.sqrt(2 / windows)
        )

    def test_nothing_comes_between_bursts_and_the_bursts_have_their_length(self):
        at_s = times("on_off", 250, 8000, on_off=self.BURST)  # 1,000 a second within a burst
        ends = np.flatnonzero(np.diff(at_s) > 0.05)  # e^-50: no gap within a burst is so long
        lengths = at_s[ends[1:]] - at_s[ends[:-1] + 1]

        assert len(lengths) == pytest.approx(1000, rel=0.15)
        assert lengths.mean() == pytest.approx(2.0, rel=4 / math.sqrt(len(lengths)))
        assert np.diff(at_s)[ends].mean() == pytest.approx(6.0, rel=4 / math.sqrt(len(lengths)))

    def test_the_same_rate_in_both_states_is_poisson(self):
        at_s = times("on_off", 100, 600, on_off=OnOff(on_s=1, off_s=1, off_share=1.0))

        assert dispersion(at_s, 1.0, 600) == pytest.approx(1, abs=4 * math.sqrt(2 / 600))

    def test_too_many_bursts_are_refused(self):
        with pytest.raises(ScenarioError, match=r"arrival\.on_off: over 20 million bursts"):
            times("on_off", 1, 1000, on_off=OnOff(on_s=1e-6, off_s=1e-6))

    def test_a_burst_much_longer_than_the_run_is_planned_to_the_end_of_the_run(self):
        """Not to its own end: that would take a terabyte."""
        at_s = times("on_off", 8, 600, on_off=OnOff(on_s=1e9, off_s=6, off_share=0))

        assert len(at_s) == pytest.approx(8 * 600, rel=0.1)
        assert 590 < at_s[-1] < 600

    def test_a_burst_of_too_many_arrivals_is_refused(self):
        """Where the run begins within one; else it has none."""
        refused = 0
        for seed in range(40):
            try:
                times("on_off", 1e6, 10, seed=seed, on_off=OnOff(on_s=100, off_s=900, off_share=0))
            except ScenarioError as error:
                refused += "arrival.on_off: over 20 million arrivals in the bursts" in str(error)
        assert 0 < refused < 40


def test_every_purpose_has_a_stream_of_its_own():
    """The first gap and the bursts are drawn apart from the times: another cv moves no burst."""
    short, long = (times("on_off", rate, 400, on_off=OnOff(on_s=1, off_s=9)) for rate in (50, 500))
    empty = [set(np.floor(at_s).astype(int)) for at_s in (short, long)]

    assert len(empty[0] - empty[1]) == 0


def test_over_twenty_million_arrivals_are_refused():
    with pytest.raises(ScenarioError, match="over 20 million arrivals"):
        times("poisson", 1000, 30_000)
