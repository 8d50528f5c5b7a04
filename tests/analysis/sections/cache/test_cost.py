"""The parts of the cache report against closed forms and rows written one by one."""

import json
from fractions import Fraction
from math import exp

import numpy as np
import pandas as pd
import pytest
from analysis.sections.cache.planted_calls import REAL, S, rows

from tailgauge.scenario.prices import Price
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.sections.cache.calls import settings
from tailgauge_analysis.sections.cache.cost import Tariff, cost, no_price, tariff
from tailgauge_analysis.sections.cache.effect import cache_effect
from tailgauge_analysis.sections.cache.misses import Miss, causes, misses
from tailgauge_analysis.sections.cache.section import _cost as facts_of_cost
from tailgauge_analysis.sections.cache.shares import expiry, fixed_hit, sliding_hit, why_not


def caused(*of_calls):
    return causes(rows(*of_calls), settings(REAL), set()).tolist()


class TestSeveralWorkers:
    """Each worker knows its own calls only; the rows of all know more."""

    def test_a_text_that_another_worker_is_writing_is_a_race(self):
        assert caused((0, 0, 90, {}), (0.1, 0, 90, {}), (1, 90, 0, {})) == ["first", "race", ""]

    def test_a_text_that_another_worker_used_long_ago_has_expired(self):
        assert caused((0, 0, 90, {}), (300.3, 0, 90, {})) == ["first", "expired"]

    def test_within_its_life_nothing_explains_it(self):
        assert caused((0, 0, 90, {}), (200, 0, 90, {})) == ["first", "unexplained"]

    def test_another_model_is_a_parameter_even_if_its_first_call_was_closed_without_usage(self):
        other = {"params_hash": "q"}
        closed = {
            "cache_read_input_tokens": np.nan,
            "cache_creation_input_tokens": np.nan,
            "input_tokens": np.nan,
        }

        assert caused((0, 0, 90, {}), (1, 0, 90, other), (2, 90, 0, other)) == [
            "first",
            "parameter",
            "",
        ]
        assert caused((0, 0, 0, closed), (1, 0, 90, other)) == ["", "parameter"]

    def test_a_reader_on_its_way_is_no_writer(self):
        assert caused((0, 0, 90, {}), (9, 90, 0, {}), (9.1, 0, 90, {"cache_writers": 1.0, "cache_expected": "warm"})) == [
            "first", "", "unexplained",
        ]  # fmt: skip


@pytest.mark.parametrize(("more", "cause"), [
    ({"first_difference": 7.0, "cache_since_use_ns": 400.0 * S}, "unstable"),
    ({"cache_since_use_ns": 400.0 * S, "cache_blocks": 30.0}, "expired"),
    ({"cache_since_use_ns": 4.0 * S, "cache_blocks": 20.0}, "lookback"),
    ({"cache_since_use_ns": 4.0 * S, "cache_blocks": 19.0, "cache_expected": "warm"}, "unexplained"),
    ({"cache_since_use_ns": 400.0 * S, "cache_ttl": "1h", "cache_blocks": 0.0}, "unexplained"),
    ({"cache_writers": 2.0}, "race"),
])  # fmt: skip
def test_what_a_row_says_names_the_cause(more, cause):
    assert caused((0, 0, 90, {"prefix_hash": "b", **more})) == [cause]


def test_marked_and_neither_written_nor_read_is_below_the_minimum():
    haiku = {"asked_model": "claude-haiku-4-5-20251001"}  # caches from 4,096 tokens
    assert (
        caused((0, 0, 0, haiku), (1, 0, 0, {"first_difference": 3.0, **haiku}))
        == ["below_minimum"] * 2
    )
    assert caused((0, 0, 90, {}), (1, 0, 0, {"prefix_hash": "b"})) == ["first", "below_minimum"]
    assert caused((0, 0, 0, {"cache_marks": 0.0, "cache_ttl": None})) == ["first"]


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_an_automatic_cache_has_a_minimum_too(calls):
    """Without marks, where the model's minimum is known."""
    haiku = {"asked_model": "claude-haiku-4-5-20251001", "cache_marks": 0.0, "cache_ttl": None}

    assert caused(*[(n, 0, 0, haiku) for n in range(calls)]) == ["below_minimum"] * calls


@pytest.mark.parametrize("unmarked", [{}, {"cache_marks": 0.0, "cache_ttl": None}])
def test_a_target_that_never_reads_or_writes_has_no_cache(unmarked):
    assert caused((0, 0, 0, unmarked), (9, 0, 0, unmarked)) == ["first", "no_cache"]
    assert caused((0, 0, 0, unmarked), (0.1, 0, 0, {"first_difference": 3.0, **unmarked})) == [
        "first",
        "unstable",
    ]
    long = {"asked_model": "claude-haiku-4-5", "input_tokens": 5000.0, **unmarked}
    assert caused((0, 0, 0, long), (9, 0, 0, long)) == ["first", "no_cache"]


def test_shares_have_their_formulas_and_their_denominator_holds_what_was_written():
    of_calls = rows(
        (0, 0, 90, {}), *((i, 90, 0, {}) for i in range(1, 40)), (50, 40, 50, {"prefix_hash": "b"})
    )

    assert shares.token_hit(of_calls).value == (39 * 90 + 40) / (40 * 100 + 100)
    assert shares.cacheable_hit(of_calls).value == (39 * 90 + 40) / (41 * 90)
    assert shares.request_hit(of_calls).value == 40 / 41
    assert shares.write_amplification(of_calls).value == 1
    for share in (shares.token_hit(of_calls), shares.request_hit(of_calls)):
        assert share.low <= share.value <= share.high


def test_a_text_written_three_times_is_amplified_threefold():
    of_calls = rows(*((400 * i, 0, 90, {}) for i in range(3)))

    assert shares.write_amplification(of_calls).value == 3
    assert shares.write_amplification(of_calls).low is None


def test_few_calls_have_no_interval_and_shares_of_all_or_none_an_exact_one():
    few = rows(*((i, 90, 0, {}) for i in range(5)))

    assert (shares.token_hit(few).low, shares.token_hit(few).why) == (None, shares.TOO_FEW)
    assert shares.request_hit(few).low == pytest.approx(0.4782, abs=1e-4)  # 0.025 ** (1 / 5)


class TestRow16:
    """Poisson calls over one text, read as the cache would."""

    @pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
    @pytest.mark.parametrize("sliding", [True, False])
    def test_the_hit_rate_is_the_predicted_one(self, load, sliding, full_size):
        n, tolerance = (400_000, 0.003) if full_size else (6_000, 0.03)
        at = np.cumsum(np.random.Generator(np.random.Philox(16)).exponential(300 / load, n))
        hit = np.concatenate(([False], np.diff(at) < 300)) if sliding else self.fixed(at)
        of_calls = pd.DataFrame({
            "sent_at_ns": at * S, "gap_ns": np.concatenate(([np.nan], np.diff(at))) * S, "life_ns": 300.0 * S, "entry": 0,
            "hit": hit, "read": hit * 90, "created": ~hit * 90, "counted": True, "known": True,
        })  # fmt: skip
        found = expiry(of_calls, sliding=sliding)

        predicted = 1 - exp(-load) if sliding else load / (1 + load)
        assert predicted == (sliding_hit if sliding else fixed_hit)(np.float64(load))
        assert found.observed.value == pytest.approx(predicted, abs=tolerance)
        if sliding:
            assert (found.by_gaps, found.excess_misses) == (found.observed.value, 0)
        else:
            assert found.excess_misses > 0

    @staticmethod
    def fixed(at):
        hits, until = [], -1.0
        for now in at:
            hits.append(now < until)
            until = until if now < until else now + 300
        return np.array(hits)


TOOLS_CHANGED = {"cache_miss_reason": "tools_changed", "cache_missed_input_tokens": 4096.0}


class TestReasonsOfTheTarget:
    """Where the target says why its cache missed, that is the cause, whatever the rows would say."""

    def counted(self, *of_calls):
        of = rows(*of_calls)
        return misses(of, causes(of, settings(REAL), set()))

    def test_its_reason_comes_first_with_its_own_count_of_tokens(self):
        found = self.counted(
            (0, 0, 90, {}), (1, 0, 90, TOOLS_CHANGED), (2, 0, 90, TOOLS_CHANGED), (3, 90, 0, {})
        )

        assert found == [
            Miss("tools_changed", 2, 0, 8192, by_target=True), Miss("first", 1, 0, 100),
        ]  # fmt: skip

    def test_a_reason_beside_something_read_is_a_partial_miss(self):
        assert self.counted((0, 0, 90, {}), (1, 50, 40, TOOLS_CHANGED))[0] == Miss(
            "tools_changed", 1, 1, 4096, by_target=True
        )

    @pytest.mark.parametrize("reason", ["unavailable", "previous_message_not_found"])
    def test_no_reason_leaves_ours(self, reason):
        found = self.counted(
            (0, 0, 90, {}), (1, 0, 90, {"cache_miss_reason": reason, "first_difference": 7.0})
        )

        assert [(miss.cause, miss.by_target) for miss in found] == [
            ("unstable", False),
            ("first", False),
        ]

    def test_a_reason_that_nobody_knows_is_kept_and_one_of_our_names_is_not_mixed_up(self):
        new = {"cache_miss_reason": "moon_phase"}
        ours = {"cache_miss_reason": "expired"}
        found = self.counted((0, 0, 90, {}), (1, 0, 90, new), (400, 0, 90, {}), (401, 0, 90, ours))

        assert {(miss.cause, miss.by_target): miss.calls for miss in found} == {
            ("moon_phase", True): 1, ("expired", True): 1, ("first", False): 1, ("expired", False): 1,
        }  # fmt: skip


class TestCost:
    PRICE = Price(
        pd.Timestamp("2026-01-01").date(), tuple(map(Fraction, ("3", "3.75", "6", "0.3", "15")))
    )

    def of(
        self,
        of_calls,
        price_share=1.0,
        price=lambda model: TestCost.PRICE if model == "m" else None,
    ):
        return cost(
            of_calls, Tariff(unit="USD", price=price), price_share=price_share, without_usage=0
        )

    def test_to_the_cent(self):
        of_calls = rows((0, 0, 90_000, {}), (1, 90_000, 0, {}), (2, 90_000, 0, {}))
        found = self.of(of_calls)

        assert found.total == Fraction("0.3375") + 2 * Fraction("0.027") + 3 * (
            Fraction("0.00003") + Fraction("0.000075")
        )
        assert found.saved == 2 * Fraction("0.243") - Fraction("0.0675")
        assert self.of(of_calls, price_share=0.5).total == found.total / 2

    def test_an_hour_costs_more_and_long_prompts_have_their_own_rates(self):
        hour = {
            "cache_creation_1h_input_tokens": 50_000.0,
            "cache_creation_5m_input_tokens": 40_000.0,
        }
        of_calls = rows((0, 0, 90_000, hour))

        assert self.of(of_calls).input == Fraction("0.15") + Fraction("0.3") + Fraction("0.00003")
        long = Price(
            self.PRICE.since, self.PRICE.rates, 80_000, tuple(2 * rate for rate in self.PRICE.rates)
        )
        both = rows((0, 0, 90_000, hour), (1, 0, 70_000, {}))
        short = self.of(rows((1, 0, 70_000, {}))).total
        assert self.of(both, price=lambda _: long).total == 2 * self.of(of_calls).total + short

    def test_an_unknown_model_has_no_cost_and_is_named(self):
        unheard_of = {"model": "unheard-of", "asked_model": "unheard-of"}
        of_calls = rows((0, 0, 90, {}), (1, 90, 0, unheard_of))

        assert (self.of(of_calls).calls, self.of(of_calls).unpriced, self.of(of_calls).why) == (
            1,
            1,
            "no price for unheard-of",
        )
        assert self.of(of_calls[of_calls["model"] == "unheard-of"]) is None

    def test_an_alias_behind_a_gateway_costs_what_the_model_that_was_asked_for_costs(self):
        """A gateway may name the model in a spelling of its own; a model that took over is another one."""
        alias = self.of(rows((0, 0, 90, {}), (1, 90, 0, {"model": "bedrock/m-v1"})))
        unnamed = self.of(rows((0, 0, 90, {}), (1, 90, 0, {"model": ""})))
        took_over = self.of(rows((0, 0, 90, {}), (1, 90, 0, {"model": "other", "fallback": "m"})))

        assert (alias.calls, alias.by_asked) == (2, 1)
        assert (unnamed.calls, unnamed.by_asked, unnamed.total) == (2, 0, alias.total)
        assert (took_over.calls, took_over.unpriced, took_over.why) == (1, 1, "no price for other")
        assert (
            "; 1 call at the price of the model that was asked for"
            in dict(facts_of_cost(alias))["Cost"]
        )

    def test_billed_iterations_replace_the_counts_of_the_answer(self):
        """Compaction and fallback bill more than the last message says."""
        compaction = [
            {"type": "compaction", "input_tokens": 1_000_000, "output_tokens": 100_000},
            {"type": "message", "cache_read_input_tokens": 1_000_000, "output_tokens": 0},
        ]
        plain, listed = (
            self.of(rows((0, 0, 0, more))) for more in ({}, {"iterations": json.dumps(compaction)})
        )

        assert plain.total == Fraction("0.00003") + Fraction("0.000075")
        assert listed.total == 3 + Fraction("1.5") + Fraction("0.3")
        assert listed.saved == Fraction("2.7")
        assert listed.calls == 1

    @pytest.mark.parametrize("text", [
        "not json", "[]", "[1]", '{"input_tokens": 5}', '[{"input_tokens": -1}]', '[{"input_tokens": "5"}]',
        '[{"output_tokens": 1e999}]', "[" * 100_000,
    ])  # fmt: skip
    def test_iterations_that_cannot_be_read_leave_the_counts_of_the_answer(self, text):
        assert (
            self.of(rows((0, 0, 0, {"iterations": text}))).total
            == self.of(rows((0, 0, 0, {}))).total
        )

    def test_writes_of_an_automatic_cache_are_counted_and_priced(self):
        """OpenAI reports what it wrote without a lifetime: 1.25 times the price of input."""
        unmarked = {"cache_marks": 0.0, "cache_ttl": None}
        found = self.of(rows((0, 0, 1_000_000, unmarked), (1, 1_000_000, 0, unmarked)))

        assert found.input == Fraction("3.75") + Fraction("0.3") + 2 * Fraction("0.00003")

    def test_the_packaged_prices_are_those_of_the_day(self):
        before = tariff({**REAL, "started_at": "2020-01-01T00:00:00Z"})
        now = tariff(REAL)

        assert now.unit == "USD"
        assert now.price("claude-fable-5").rates[0] == 10
        assert before.price("claude-fable-5") is None
        assert (
            "no such file"
            in tariff({**REAL, "scenario": {"guard": {"prices": "no-such.toml"}}}).why
        )
        assert tariff({**REAL, "started_at": ""}).why


class TestWorth:
    """TTFT = 50 + 40 per 1k tokens - 36 per 1k read + 5 per call in flight + 30 if new + noise of Exp(20)."""

    def sample(self, n, seed, total=None):
        rng = np.random.default_rng(seed)
        total = rng.integers(500, 8000, n).astype(float) if total is None else np.full(n, total)
        read = np.where(
            rng.random(n) < 0.5 + 0.3 * (total > 4000), 0.8 * total, 0.0
        )  # long prompts hit more often
        open_, new = rng.poisson(6, n).astype(float), rng.random(n) < 0.1
        ttft = 50 + 0.04 * total - 0.036 * read + 5 * open_ + 30 * new + rng.exponential(20, n)
        return pd.DataFrame({
            "stage": "steady", "ended": "ok", "reader_paused_ns": np.nan, "began_ns": ttft * 1e6, "hit": read > 0, "read": read,
            "total": total, "in_flight": open_, "connection_is_new": new,
        })  # fmt: skip

    def test_medians_of_hits_and_misses_alone_would_mislead_and_strata_do_not(self):
        calls = self.sample(2000, 7)
        raw = calls.groupby("hit")["began_ns"].median() / 1e6
        found = cache_effect(calls).strata

        mean_read = 0.036 * 0.8 * calls["total"].mean()
        assert found.strata == 10
        assert found.value == pytest.approx(mean_read, rel=0.12)
        assert abs(raw[False] - raw[True] - mean_read) > 2 * abs(found.value - mean_read)

    def test_where_all_calls_read_alike_nothing_is_estimated(self):
        calls = self.sample(500, 11)
        found = cache_effect(calls[calls["hit"]].assign(read=3200.0, total=4000.0))

        assert (found.strata, found.misses) == (None, 0)
        assert cache_effect(calls.iloc[:0]).strata is None


def test_why_there_is_no_expiry():
    unmarked = {"cache_marks": 0.0}

    assert why_not(rows((0, 0, 0, {}), (1, 0, 0, {}))) == "nothing was read or written"
    assert (
        why_not(rows((0, 0, 90, {}), (1, 0, 90, {"prefix_hash": "b"})))
        == "no call had exactly the same prefix as an earlier call"
    )
    assert (
        why_not(rows((0, 0, 90, unmarked), (1, 90, 0, unmarked)))
        == "the TTL of the entries is not known"
    )


def test_a_model_is_named_without_what_it_could_do_to_a_terminal_or_page():
    assert no_price("\x1b[31mred\n\u202e", "") == "no price for [31mred"
    assert len(no_price("m" * 100_000, "")) < 120
