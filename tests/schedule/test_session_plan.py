"""Turns of sessions, users of a closed loop, and the lines of prompt files dealt to them."""

import json
import math

import numpy as np
import pytest

from tailgauge.patterns.settings import Prompts, Session
from tailgauge.patterns.table import Traffic
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Closed

CHAT = Traffic(session=Session(turns_mean=4.0))


@pytest.fixture
def prompts(tmp_path):
    """Traffic whose prompt file holds the given lines."""

    def write(*lines, **settings):
        (tmp_path / "p.jsonl").write_text(
            "\n".join(json.dumps(line) for line in lines), encoding="utf-8"
        )
        return Traffic(prompts=Prompts(file=str(tmp_path / "p.jsonl")), **settings)

    return write


def rows(schedule):
    return list(schedule.slice(0, 10**18))


def test_turns_are_geometric_with_the_mean_that_was_asked_for():
    turns = plan(Arrival(rate_per_s=100), {"chat": CHAT}, 300, 1).turns

    assert turns.min() == 1
    assert abs(turns.mean() - 4) < 4 * math.sqrt(12 / len(turns))
    assert np.mean(turns > 8) == pytest.approx(0.75**8, rel=0.1)


def test_every_turn_is_a_request():
    schedule = plan(Arrival(rate_per_s=10), {"chat": CHAT}, 30, 1)

    assert schedule.requests == sum(row.turns for row in rows(schedule)) > 2 * len(schedule)
    assert plan(Arrival(rate_per_s=10), {"chat": Traffic()}, 30, 1).requests == len(schedule)


def test_sessions_change_neither_times_nor_sizes():
    with_turns, without = (
        plan(Arrival(), {"chat": t}, 60, 1) for t in (CHAT.model_copy(update={"prompt_sigma": 0.5}), Traffic(prompt_sigma=0.5))
    )  # fmt: skip

    assert with_turns.at_ns.tolist() == without.at_ns.tolist()
    assert with_turns.prompt_tokens.tolist() == without.prompt_tokens.tolist()


def test_turns_have_nothing_to_do_with_the_sizes():
    schedule = plan(Arrival(rate_per_s=100), {"chat": Traffic(session=Session(turns_mean=4.0), prompt_sigma=0.5, output_sigma=0.5)}, 200, 1)  # fmt: skip
    fields = np.log([schedule.turns, schedule.prompt_tokens, schedule.output_tokens])

    assert np.abs(np.corrcoef(fields) - np.eye(3)).max() < 4 / math.sqrt(len(schedule))


class TestClosedLoop:
    def users(self, duration_s=60, warmup_s=6.0, traffic=None, **closed):
        arrival = Arrival(process="closed", closed=Closed(**closed))
        return plan(arrival, traffic or {"chat": Traffic()}, duration_s, 1, warmup_s=warmup_s)

    def test_each_user_is_one_arrival_without_end(self):
        schedule = self.users(users=5)

        assert [row.request_id for row in rows(schedule)] == [u * 65536 for u in range(5)]
        assert {row.turns for row in rows(schedule)} == {0}
        assert schedule.requests == 0

    def test_users_come_evenly_over_the_first_half_of_the_warm_up(self):
        assert (self.users(users=6).at_ns / 1e9).tolist() == [0, 0.5, 1, 1.5, 2, 2.5]

    def test_without_a_warm_up_they_come_over_a_think_time(self):
        assert (self.users(users=4, think_s=2.0, warmup_s=0).at_ns / 1e9).tolist() == [
            0,
            0.5,
            1,
            1.5,
        ]
        assert (self.users(users=4, think_s=90.0, warmup_s=0).at_ns / 1e9).tolist() == [
            0,
            15,
            30,
            45,
        ]
        assert set(self.users(users=4, think_s=0.0, warmup_s=0).at_ns) == {0}

    def test_kinds_of_traffic_are_drawn_by_user(self):
        traffic = {"a": Traffic(weight=3), "b": Traffic()}
        share = np.mean(self.users(users=4000, traffic=traffic).traffic == 0)

        assert share == pytest.approx(0.75, abs=4 * math.sqrt(0.1875 / 4000))


class TestPromptFiles:
    def test_lines_are_used_in_turn_and_from_the_top_again(self, prompts):
        traffic = prompts({"prompt": "one"}, {"prompt": "two"}, {"prompt_tokens": 30})
        schedule = plan(Arrival(process="constant", rate_per_s=5), {"chat": traffic}, 1, 1)

        assert [row.source.get("text") for row in rows(schedule)] == [
            "one",
            "two",
            None,
            "one",
            "two",
        ]
        assert [row.prompt_tokens for row in rows(schedule)] == [1, 1, 30, 1, 1]
        assert {row.output_tokens for row in rows(schedule)} == {50}

    def test_names_tags_and_output_sizes_come_along(self, prompts):
        line = {"prompt": "a" * 41, "output_tokens": 7, "name": "sky", "tags": {"tenant": "x"}}
        (row,) = rows(
            plan(Arrival(process="constant", rate_per_s=1), {"chat": prompts(line)}, 1, 1)
        )

        assert (row.prompt_tokens, row.output_tokens) == (11, 7)
        assert row.source["text"] == "a" * 41
        assert (row.source["name"], row.source["tags"]) == ("sky", {"tenant": "x"})

    def test_each_table_takes_its_own_lines(self, prompts):
        traffic = {
            "plain": Traffic(prompt_tokens=9),
            "file": prompts({"prompt_tokens": 1}, {"prompt_tokens": 2}),
        }
        schedule = plan(Arrival(rate_per_s=20), traffic, 10, 1)
        filed = [row for row in rows(schedule) if row.traffic == "file"]

        assert [row.prompt_tokens for row in filed] == [1 + i % 2 for i in range(len(filed))]
        assert {row.prompt_tokens for row in rows(schedule) if row.traffic == "plain"} == {9}
        assert {row.source for row in rows(schedule) if row.traffic == "plain"} == {None}

    def test_each_turn_of_a_session_takes_a_line(self, prompts):
        traffic = prompts(
            *({"prompt": f"q{i}"} for i in range(1000)), session=Session(turns_mean=3.0)
        )
        schedule = plan(Arrival(rate_per_s=5), {"chat": traffic}, 30, 1)
        asked = [row.of_turn(t).source["text"] for row in rows(schedule) for t in range(row.turns)]

        assert asked == [f"q{i}" for i in range(schedule.requests)]

    def test_users_of_a_closed_loop_share_the_lines_out(self, prompts):
        traffic = prompts(*({"prompt_tokens": 10 + i, "output_tokens": 1 + i} for i in range(7)))
        arrival = Arrival(process="closed", closed=Closed(users=3))
        schedule = plan(arrival, {"chat": traffic}, 10, 1)
        asked = [[row.of_turn(t).prompt_tokens - 10 for t in range(16)] for row in rows(schedule)]

        assert asked == [[(u + 3 * t) % 7 for t in range(16)] for u in range(3)]
        assert rows(schedule)[1].of_turn(1).output_tokens == 5

    def test_more_users_than_lines_take_them_in_turn_each(self, prompts):
        traffic = prompts({"prompt": "a"}, {"prompt": "b"})
        schedule = plan(Arrival(process="closed", closed=Closed(users=4)), {"chat": traffic}, 10, 1)
        asked = ["".join(row.of_turn(t).source["text"] for t in range(4)) for row in rows(schedule)]

        assert asked == ["abab", "baba", "abab", "baba"]

    @pytest.mark.parametrize(
        ("users", "lines", "each"), [(3, 100, 34), (99, 100, 8), (500, 100, 8), (500, 2, 2)]
    )
    def test_what_is_sent_with_a_user_stays_small(self, prompts, users, lines, each):
        traffic = prompts(*({"prompt_tokens": 1 + i} for i in range(lines)))
        schedule = plan(
            Arrival(process="closed", closed=Closed(users=users)), {"chat": traffic}, 10, 1
        )
        carried = [[row.source, *row.source["later"]] for row in rows(schedule)]

        assert {len(mine) for mine in carried} == {each}
        assert {line["prompt_tokens"] for mine in carried for line in mine} == set(
            range(1, lines + 1)
        )

    def test_what_the_link_carries_is_plain(self, prompts):
        traffic = prompts(
            {"prompt": "a"}, {"prompt": "b", "tags": {"x": "y"}}, session=Session(turns_mean=3.0)
        )
        for row in rows(plan(Arrival(), {"chat": traffic}, 5, 1)):
            assert json.loads(json.dumps(row)) == list(row)
