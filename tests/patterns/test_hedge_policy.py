"""When a hedge is sent, and what suppresses it."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.patterns.events import Ended
from tailgauge.patterns.policies import Hedger
from tailgauge.patterns.settings import Hedge

MS, S = 1_000_000, 1_000_000_000


def take(hedger, now_ns=0, *, retried=False):
    return hedger.take(now_ns, retried=retried)


class TestDelay:
    def test_off_is_never_due(self):
        assert Hedger(Hedge()).due_at_ns(5, 0.0) is None

    def test_fixed_is_due_after_its_delay(self):
        assert Hedger(Hedge(policy="fixed", delay_ms=250)).due_at_ns(3 * S, 0.9) == 3 * S + 250 * MS

    def test_immediate_is_due_at_once_whatever_the_delay(self):
        assert Hedger(Hedge(policy="immediate", delay_ms=250)).due_at_ns(3 * S, 0.9) == 3 * S

    def test_single_r_is_due_for_a_share_of_the_calls(self):
        hedger = Hedger(Hedge(policy="single_r", delay_ms=250, probability=0.3))
        draws = [Random(i).random() for i in range(20_000)]
        due = [hedger.due_at_ns(0, draw) for draw in draws]

        assert set(due) == {None, 250 * MS}
        assert 1 - due.count(None) / len(due) == pytest.approx(0.3, abs=0.015)
        assert hedger.draws
        assert not Hedger(Hedge(policy="fixed")).draws


class TestAdaptiveDelay:
    def test_until_enough_was_seen_the_given_delay_holds(self):
        hedger = Hedger(Hedge(policy="adaptive", delay_ms=700, warm_up=20))
        for _ in range(19):
            hedger.waited(100 * MS, S)

        assert hedger.due_at_ns(S, 0) == S + 700 * MS
        hedger.waited(100 * MS, S)
        assert hedger.due_at_ns(S, 0) - S == pytest.approx(100 * MS, rel=0.01)

    def test_it_is_the_quantile_of_what_was_seen(self):
        hedger = Hedger(Hedge(policy="adaptive", quantile=0.95))
        rng = Random(1)
        times = sorted(round(rng.expovariate(1) * 100 * MS) for _ in range(5000))
        for time in times:
            hedger.waited(time, S)

        assert hedger.due_at_ns(S, 0) - S == pytest.approx(
            times[math.ceil(0.95 * 5000) - 1], rel=0.01
        )

    def test_two_windows_count_and_older_times_do_not(self):
        hedger = Hedger(Hedge(policy="adaptive", delay_ms=9, quantile=0.5, window_s=10, warm_up=1))
        hedger.waited(100 * MS, 5 * S)

        assert hedger.due_at_ns(19 * S, 0) - 19 * S == pytest.approx(100 * MS, rel=0.01)
        assert hedger.due_at_ns(20 * S, 0) == 20 * S + 9 * MS
        hedger.waited(100 * MS, 21 * S)
        assert hedger.due_at_ns(41 * S, 0) == 41 * S + 9 * MS  # a whole window without any

    @pytest.mark.parametrize("first_ms", [10, 5000])
    def test_it_finds_the_quantile_from_either_side_though_it_cuts_what_it_sees(self, first_ms):
        """A first copy that lost is known to have waited so long only; see the module's docstring."""
        hedger = Hedger(
            Hedge(policy="adaptive", delay_ms=first_ms, quantile=0.9, window_s=10, warm_up=20)
        )
        rng, now = Random(3), 0
        for _ in range(10_000):
            now += 10 * MS
            mine, other = (round(rng.expovariate(1) * 100 * MS) for _ in range(2))
            hedged = hedger.due_at_ns(now, 0) - now + other
            hedger.waited(min(mine, hedged), now + min(mine, hedged))

        assert hedger.due_at_ns(now, 0) - now == pytest.approx(math.log(10) * 100 * MS, rel=0.12)


class TestHeld:
    def test_a_call_that_was_sent_again_gets_no_copy(self):
        assert take(Hedger(Hedge(policy="fixed")), retried=True) == "retry"

    def test_no_copy_before_the_time_that_its_target_named(self):
        hedger = Hedger(Hedge(policy="fixed"))
        hedger.ended(Ended(0, 0, 10 * S, "rate_limited", 3.0), "main")
        hedger.ended(Ended(0, 0, 11 * S, "rate_limited", 1.0), "main")  # does not shorten it

        assert take(hedger, 13 * S - 1) == "pushback"
        assert take(hedger, 13 * S) is None

    def test_another_target_is_not_held_by_it(self):
        hedger = Hedger(Hedge(policy="fixed", target="second"))
        hedger.ended(Ended(0, 0, 10 * S, "rate_limited", 3.0), "main")

        assert take(hedger, 11 * S) is None
        hedger.ended(Ended(0, 0, 11 * S, "rate_limited", 3.0), "second")
        assert take(hedger, 12 * S) == "pushback"

    @pytest.mark.parametrize("ended", ["rate_limited", "overloaded", "timeout"])
    def test_failures_stop_copies_at_half_and_successes_bring_them_back(self, ended):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=10, throttle_ratio=0.5))
        for _ in range(4):
            hedger.ended(Ended(0, 0, 0, ended, None), "main")

        assert take(hedger) is None
        hedger.ended(Ended(0, 0, 0, ended, None), "main")
        assert take(hedger) == "throttle"
        hedger.ended(Ended(0, 0, 0, "ok", None), "main")
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
        for _ in range(50):
            hedger.ended(Ended(0, 0, 0, "ok", None), "main")
        for _ in range(2):
            hedger.ended(Ended(0, 0, 0, "timeout", None), "main")
        assert take(hedger) == "throttle"
        for _ in range(50):
            hedger.ended(Ended(0, 0, 0, "timeout", None), "main")
        for _ in range(3):
            hedger.ended(Ended(0, 0, 0, "empty", None), "main")
        assert take(hedger) is None

    @pytest.mark.parametrize(
        "ended", ["cancelled", "client_error", "stream_error", "connect_error"]
    )
    def test_other_endings_leave_the_throttle_alone(self, ended):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=1))
        for _ in range(9):
            hedger.ended(Ended(0, 0, 0, ended, None), "main")

        assert take(hedger) is None

    def test_no_throttle_where_it_is_0(self):
        hedger = Hedger(Hedge(policy="fixed", throttle_tokens=0))
        for _ in range(9):
            hedger.ended(Ended(0, 0, 0, "timeout", None), "main")

        assert take(hedger) is None

    def test_the_budget_is_used_up_and_filled_by_calls(self):
        hedger = Hedger(Hedge(policy="fixed", budget_share=0.5, budget_burst=1))

        assert [take(hedger) for _ in range(2)] == [None, "budget"]
        hedger.called()
        assert take(hedger) == "budget"
        hedger.called()
        assert take(hedger) is None

    def test_what_is_held_for_another_reason_takes_nothing_from_the_budget(self):
        hedger = Hedger(Hedge(policy="fixed", budget_share=0.0, budget_burst=1))

        assert take(hedger, retried=True) == "retry"
        assert take(hedger) is None


_ACTS = st.lists(
    st.one_of(
        st.just("call"),
        st.tuples(st.sampled_from(["ok", "rate_limited", "overloaded", "timeout"]), st.sampled_from([None, 0.0, 2.0])),
        st.just("due"),
    ),
    max_size=300,
)  # fmt: skip


@given(_ACTS, st.integers(0, 10), st.integers(1, 5), st.integers(0, 6))
def test_whatever_happens_the_budget_holds_and_nobody_is_pressed(acts, tenths, burst, throttle):
    hedger = Hedger(
        Hedge(
            policy="fixed", budget_share=tenths / 10, budget_burst=burst, throttle_tokens=throttle
        )
    )
    calls = copies = back_at = now = 0
    for act in acts:
        now += S // 2
        if act == "call":
            hedger.called()
            calls += 1
        elif act == "due":
            if take(hedger, now) is None:
                copies += 1
                assert now >= back_at
        else:
            ended, after_s = act
            hedger.ended(Ended(0, 0, now, ended, after_s), "main")
            back_at = max(back_at, now + round((after_s or 0) * S))
        assert 10 * copies <= 10 * burst + tenths * calls
