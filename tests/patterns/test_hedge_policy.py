"""When a hedge is sent, and what suppresses it."""

import pytest

from tailgauge.patterns.events import Ended
from tailgauge.patterns.policies import Hedger
from tailgauge.patterns.settings import Hedge

MS, S = 1_000_000, 1_000_000_000


def end(hedger, ended, calls=1):
    """Let calls to the main target end so."""
    for _ in range(calls):
        hedger.ended(Ended(0, 0, 0, ended, None), "main")


def take(hedger, now_ns=0, *, retried=False):
    return hedger.take(now_ns, retried=retried)


class TestAdaptiveDelay:
    def test_until_enough_was_seen_the_given_delay_holds(self):
        hedger = Hedger(Hedge(policy="adaptive", delay_ms=700, warm_up=20))
        for _ in range(19):
            hedger.waited(100 * MS, S)

        assert hedger.due_at_ns(S, 0) == S + 700 * MS
        hedger.waited(100 * MS, S)
        assert hedger.due_at_ns(S, 0) - S == pytest.approx(100 * MS, rel=0.01)

    def test_two_windows_count_and_older_times_do_not(self):
        hedger = Hedger(Hedge(policy="adaptive", delay_ms=9, quantile=0.5, window_s=10, warm_up=1))
        hedger.waited(100 * MS, 5 * S)

        assert hedger.due_at_ns(19 * S, 0) - 19 * S == pytest.approx(100 * MS, rel=0.01)
        assert hedger.due_at_ns(20 * S, 0) == 20 * S + 9 * MS
        hedger.waited(100 * MS, 21 * S)
        assert hedger.due_at_ns(41 * S, 0) == 41 * S + 9 * MS  # a whole window without any


class TestHeld:
    def test_another_target_is_not_held_by_it(self):
        hedger = Hedger(Hedge(policy="fixed", target="second"))
        hedger.ended(Ended(0, 0, 10 * S, "rate_limited", 3.0), "main")

        assert take(hedger, 11 * S) is None
        hedger.ended(Ended(0, 0, 11 * S, "rate_limited", 3.0), "second")
        assert take(hedger, 12 * S) == "pushback"

    @pytest.mark.parametrize("ended", ["rate_limited", "overloaded", "timeout"])
    def test_failures_stop_copies_at_half_and_successes_bring_them_back(self, ended):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=10, throttle_ratio=0.5))
        end(hedger, ended, 4)

        assert take(hedger) is None
        end(hedger, ended)
        assert take(hedger) == "throttle"
        end(hedger, "ok")
        assert take(hedger) is None

    @pytest.mark.parametrize("error_class", ["rate_limited", "overloaded"])
    def test_an_overload_within_an_answer_stops_copies_too(self, error_class):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=4))
        for _ in range(2):
            hedger.ended(Ended(0, 0, 0, "stream_error", None, error_class=error_class), "main")

        assert take(hedger) == "throttle"

    def test_the_throttle_neither_saves_nor_owes_more_than_it_has(self):
        hedger = Hedger(
            Hedge(policy="fixed", throttle_tokens=4, throttle_ratio=1.0, budget_burst=99)
        )
        end(hedger, "ok", 50)
        end(hedger, "timeout", 2)
        assert take(hedger) == "throttle"
        end(hedger, "timeout", 50)
        end(hedger, "empty", 3)
        assert take(hedger) is None

    @pytest.mark.parametrize(
        "ended", ["cancelled", "client_error", "stream_error", "connect_error"]
    )
    def test_other_endings_leave_the_throttle_alone(self, ended):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=1))
        end(hedger, ended, 9)

        assert take(hedger) is None

    def test_no_throttle_where_it_is_0(self):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=0))
        end(hedger, "timeout", 9)

        assert take(hedger) is None

    def test_what_is_held_for_another_reason_takes_nothing_from_the_budget(self):
        hedger = Hedger(Hedge(policy="fixed", budget_share=0.0, budget_burst=1))

        assert take(hedger, retried=True) == "retry"
        assert take(hedger) is None
