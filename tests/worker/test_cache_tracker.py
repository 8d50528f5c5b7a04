"""What a worker knows of the target's cache: expected states, times since use, writers, distances, differences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailgauge.call import ASSISTANT, JOB_POLL, SECOND, USER, Call, Message, Part, Prompt, Tool
from tailgauge.rows.schema import COLD, UNKNOWN, WARM
from tailgauge.scenario.model import parse
from tailgauge.worker import cache_tracker
from tailgauge.worker.cache_tracker import CacheBook, CacheNote

S = 1_000_000_000


def printed(role: str, text: str, ttl: str | None = None) -> Message:
    return Message(role, (Part(text, ttl),))


def call(
    question: str = "why?",
    system: str = "be kind",
    ttl: str | None = "5m",
    last: str | None = None,
    **more,
) -> Call:
    """A system prompt with a mark, then earlier turns, then a question that may have one."""
    earlier = more.pop("earlier", ())
    prompt = Prompt(
        (*earlier, printed(USER, question, last)),
        (Part(system, ttl),),
        prefix=0,
        unique=more.pop("unique", False),
    )
    return Call(prompt, 10, **more)


class Worker:
    """A book, and calls that are answered at once."""

    def __init__(self, alone: bool = True, **more) -> None:
        self.book, self.count = CacheBook(alone, **more), 0

    def sends(self, one: Call, at_s: float, answered: bool = True, traffic: str = "") -> CacheNote:
        self.count += 1
        note = self.book.sent(one, (self.count, 0, 0), round(at_s * S), traffic)
        assert note is not None
        if answered:
            self.book.begun((self.count, 0, 0), round(at_s * S))
            self.book.ended((self.count, 0, 0), round(at_s * S))
        return note

    def expects(self, *calls: tuple[Call, float]) -> list[str]:
        return [self.sends(one, at_s).cache_expected for one, at_s in calls]


@pytest.mark.parametrize(
    "other", [Call(Prompt.of("x"), 1), replace(call(), kind=JOB_POLL)], ids=["no prefix", "poll"]
)
def test_there_is_nothing_to_know_without_a_prefix(other):
    assert CacheBook(is_alone=True).sent(other, (0, 0, 0), 0) is None


class TestExpected:
    def test_the_first_call_finds_nothing_and_the_second_what_the_first_has_written(self):
        assert Worker().expects((call("a"), 0), (call("b"), 1)) == [COLD, WARM]

    def test_each_use_begins_the_life_anew_and_at_its_end_nothing_is_readable(self):
        times = [0, 299, 598, 598 + 299.999, 598 + 299.999 + 300]

        assert Worker().expects(*((call(), at) for at in times)) == [COLD, WARM, WARM, WARM, COLD]

    @pytest.mark.parametrize(("ttl", "life"), [("5m", 300), ("1h", 3600)])
    def test_an_entry_lives_as_long_as_its_mark_asked_for(self, ttl, life):
        one = call(ttl=ttl)

        assert Worker().expects((one, 0), (one, life - 1), (one, 2 * life - 1)) == [
            COLD,
            WARM,
            COLD,
        ]

    def test_the_lives_are_those_of_the_target(self):
        worker = Worker(ttl_s={"5m": 5.0, "1h": 60.0})

        assert worker.expects((call(), 0), (call(), 4), (call(), 9)) == [COLD, WARM, COLD]

    def test_among_others_a_worker_knows_only_what_it_saw(self):
        assert Worker(alone=False).expects((call(), 0), (call(), 1), (call(), 400)) == [
            UNKNOWN,
            WARM,
            UNKNOWN,
        ]

    def test_first_bytes_of_ones_own_are_cold_whoever_else_is_there(self):
        assert Worker(alone=False).expects((call(unique=True), 0), (call(unique=True), 1)) == [
            COLD,
            WARM,
        ]

    def test_a_call_that_was_not_answered_wrote_nothing(self):
        worker = Worker()
        worker.sends(call(), 0, answered=False)
        worker.book.ended((1, 0, 0), S)

        assert worker.expects((call(), 2)) == [COLD]

    def test_another_text_model_or_target_is_another_entry(self):
        worker = Worker()
        worker.sends(call(), 0)

        others = [call(system="be brief"), call(model="other"), call(target=SECOND)]
        assert worker.expects(*((one, 1) for one in others)) == [COLD] * 3

    def test_a_call_that_names_no_model_asks_for_the_target_s(self):
        worker = Worker(models={"main": "small"})
        worker.sends(call(), 0)

        assert worker.expects((call(model="small"), 1), (call(model="large"), 1)) == [WARM, COLD]

    def test_parameters_of_the_answer_change_what_is_written_of_messages_only(self):
        worker = Worker()
        earlier = (printed(USER, "before"), printed(ASSISTANT, "so", "5m"))
        tools = replace(call(ttl=None, earlier=earlier).prompt, system=(Part("be kind"),))
        plain, thinking = (Call(tools, 10, thinking=thinking) for thinking in ("off", "adaptive"))
        notes = [
            worker.sends(plain, 0),
            worker.sends(thinking, 1),
            worker.sends(call(thinking="off"), 2),
        ]

        assert [note.cache_expected for note in notes] == [COLD, COLD, COLD]
        assert worker.sends(call(thinking="adaptive"), 3).cache_expected == WARM
        assert notes[0].params_hash != notes[1].params_hash
        assert notes[0].prefix_hash == notes[1].prefix_hash

    def test_a_worker_that_had_to_forget_does_not_claim_that_a_prefix_is_new(self, monkeypatch):
        monkeypatch.setattr(cache_tracker, "_ENTRIES", 3)
        worker = Worker()
        found = worker.expects(*((call(system=str(i)), 0) for i in range(5)), (call(system="4"), 1))

        assert found == [COLD] * 4 + [UNKNOWN, WARM]


class TestConversation:
    def turns(self, count: int) -> Call:
        earlier = tuple(printed((USER, ASSISTANT)[i % 2], f"turn {i}") for i in range(2 * count))
        return call(f"turn {2 * count}", earlier=earlier, last="5m")

    def test_each_turn_reads_up_to_the_question_before(self):
        worker = Worker()
        notes = [worker.sends(self.turns(i), i) for i in range(4)]

        assert [note.cache_expected for note in notes] == [COLD, WARM, WARM, WARM]
        assert [note.cache_blocks for note in notes] == [None, 2, 2, 2]
        assert [note.cache_marks for note in notes] == [2] * 4
        assert len({note.prefix_hash for note in notes}) == 4  # up to the last mark
        assert [note.first_difference for note in notes] == [None] * 4  # what is shared stays

    def test_what_stands_too_far_before_the_marks_is_known_and_not_readable(self):
        worker = Worker()
        start = replace(
            self.turns(0), prompt=replace(self.turns(0).prompt, system=(Part("be kind"),))
        )
        far, near = (replace(one, prompt=replace(one.prompt, system=(Part("be kind"),))) for one in (self.turns(10), self.turns(9)))  # fmt: skip
        worker.sends(start, 0)
        note = worker.sends(far, 1, answered=False)
        worker.book.ended((worker.count, 0, 0), S)

        assert (note.cache_expected, note.cache_blocks) == (COLD, 20)
        assert (worker.sends(near, 1).cache_expected, worker.sends(far, 1).cache_blocks) == (
            WARM,
            2,
        )

    def test_a_part_that_is_readable_is_warm_even_if_the_rest_is_not(self):
        """As with `breakpoints = ["system", "last"]`, where every question is another."""
        worker = Worker()
        notes = [worker.sends(call(str(i), last="5m"), 10 * i) for i in range(3)]

        assert [note.cache_expected for note in notes] == [COLD, WARM, WARM]
        assert [note.cache_since_use_ns for note in notes] == [None, 10 * S, 10 * S]
        assert [note.cache_blocks for note in notes] == [None, 0, 0]


class TestWithoutMarks:
    def test_an_engine_that_caches_by_itself_reads_what_was_shared_and_what_was_said(self):
        worker = Worker()
        first = call("a", ttl=None)
        later = call("b", ttl=None, earlier=(printed(USER, "a"), printed(ASSISTANT, "yes")))
        notes = [
            worker.sends(first, 0),
            worker.sends(call("c", ttl=None), 5000),
            worker.sends(later, 90_000),
        ]

        assert [note.cache_expected for note in notes] == [COLD, WARM, WARM]
        assert [note.cache_blocks for note in notes] == [None, 0, 2]
        assert {(note.cache_marks, note.cache_ttl) for note in notes} == {(0, None)}
        assert len({note.prefix_hash for note in notes}) == 1  # of the shared prefix

    def test_a_prompt_with_neither_prefix_nor_mark_is_no_reason_to_fail(self):
        bare = Call(Prompt((printed(USER, "x"),), prefix=0), 1)

        assert [Worker().sends(bare, at).cache_blocks for at in (0, 1)] == [None, None]


class TestWriters:
    def test_calls_that_are_sent_and_not_answered_are_counted(self):
        worker = Worker()
        notes = [worker.sends(call(str(i)), 0, answered=False) for i in range(4)]
        worker.book.begun((1, 0, 0), S)
        worker.book.begun((1, 0, 0), 2 * S)  # said twice, counted once
        worker.book.ended((2, 0, 0), S)

        assert [note.cache_writers for note in notes] == [0, 1, 2, 3]
        assert [note.cache_expected for note in notes] == [COLD] + [UNKNOWN] * 3
        after = worker.sends(call("x"), 2)
        assert (after.cache_writers, after.cache_expected, after.cache_since_use_ns) == (2, WARM, S)

    def test_nothing_is_kept_of_calls_that_ended(self):
        worker = Worker()
        for i in range(10):
            worker.sends(call(str(i), system=str(i)), i, answered=bool(i % 2))
            worker.book.ended((i + 1, 0, 0), i)

        assert not worker.book._open
        assert not worker.book._writers


class TestDifference:
    def test_the_first_byte_that_changed_within_the_shared_part(self):
        worker = Worker()
        texts = ["be kind", "be kind", "be kinder", "we kinder", "we"]
        notes = [worker.sends(call(system=text), 0) for text in texts]

        assert [note.first_difference for note in notes] == [None, None, 7, 0, 2]

    @pytest.mark.parametrize("at", [0, 1, 4999, 5000, 9999])
    def test_it_is_exact_in_long_texts_and_counts_bytes(self, at):
        long = "ü" * 10_000
        worker = Worker()
        worker.sends(call(system=long), 0)
        changed = long[:at] + "x" + long[at + 1 :]

        assert worker.sends(call(system=changed), 1).first_difference == 2 * at

    def test_tables_that_number_alike_are_kept_apart(self):
        worker = Worker()
        worker.sends(call(system="one"), 0, traffic="a")

        assert worker.sends(call(system="other"), 0, traffic="b").first_difference is None
        assert worker.sends(call(system="onto"), 0, traffic="a").first_difference == 2

    def test_a_tool_is_part_of_the_prefix(self):
        worker = Worker()
        prompts = [
            replace(call().prompt, tools=(Tool(name, "d", "{}"),)) for name in ("add", "aim")
        ]
        notes = [worker.sends(Call(prompt, 1), 0) for prompt in prompts]

        assert notes[1].first_difference == 1
        assert notes[0].prefix_hash != notes[1].prefix_hash


class TestTargets:
    """What the tracker knows of a target from its scenario."""

    def book(self, protocol: str = "anthropic", traffic: dict | None = None, **more) -> CacheBook:
        tables = {"chat": {"pattern": "cached", "cache": {"system_tokens": 10}} | (traffic or {})}
        tree = {
            "name": "x",
            "target": {"protocol": protocol} | more.pop("target", {}),
            "traffic": tables,
            **more,
        }
        book = CacheBook.from_scenario(
            parse(tree, "x.toml"), is_alone=True, simulated="simulated" in more
        )
        assert book is not None
        return book

    def expects(self, book: CacheBook, *calls: tuple[Call, float]) -> list[str]:
        worker = Worker()
        worker.book = book
        return [worker.sends(one, at_s, traffic="chat").cache_expected for one, at_s in calls]

    @pytest.mark.parametrize(("ttl", "life"), [("30m", 1800), ("12h", 43_200)])
    def test_openais_entries_live_as_their_breakpoints_say(self, ttl, life):
        calls = [(call(ttl=ttl), at) for at in (0, life - 1, 2 * life - 1)]

        assert self.expects(self.book("openai"), *calls) == [COLD, WARM, COLD]

    def test_of_the_simulated_endpoint_they_are_its_own(self):
        book = self.book("openai", simulated={"cache": {"ttl_30m_s": 5.0}})

        assert self.expects(book, *((call(ttl="30m"), at) for at in (0, 4, 9))) == [
            COLD,
            WARM,
            COLD,
        ]

    @pytest.mark.parametrize(
        ("protocol", "ttl", "expected"), [("anthropic", "5m", COLD), ("openai", "30m", WARM)]
    )
    def test_only_anthropic_looks_at_twenty_blocks(self, protocol, ttl, expected):
        turns = tuple(printed(USER, str(number)) for number in range(30))
        first, later = (
            call(ttl=None, last=ttl),
            call("now?", ttl=None, last=ttl, earlier=(printed(USER, "why?"), *turns)),
        )

        assert self.expects(self.book(protocol), (first, 0), (later, 1)) == [COLD, expected]

    def test_an_automatic_mark_stands_at_the_end(self):
        def turn(*texts: str) -> Call:
            messages = tuple(printed(USER, text) for text in texts)
            return Call(Prompt(messages, (Part("be kind"),), prefix=0, automatic="5m"), 10)

        worker = Worker()
        notes = [
            worker.sends(turn("a"), 0),
            worker.sends(turn("a", "b"), 1),
            worker.sends(turn("c"), 2),
        ]

        assert [note.cache_expected for note in notes] == [COLD, WARM, COLD]
        assert {(note.cache_marks, note.cache_ttl) for note in notes} == {(1, "5m")}
        assert notes[1].cache_blocks == 1

    def test_a_mark_at_the_end_and_an_automatic_one_are_one(self):
        prompt = Prompt(
            (printed(USER, "a", "5m"),), (Part("be kind", "5m"),), prefix=0, automatic="5m"
        )

        assert Worker().sends(Call(prompt, 10), 0).cache_marks == 2

    @pytest.mark.parametrize(
        "added",
        [
            {"output_config": {"effort": "low"}},
            {"speed": "fast"},
            {"reasoning_effort": "high"},
        ],
    )
    def test_effort_and_the_like_are_a_part_of_the_key(self, added):
        plain = Worker()
        plain.book = self.book()
        other = Worker()
        other.book = self.book(traffic={"body": added})
        same = Worker()
        same.book = self.book(target={"body": added})
        hashes = [
            worker.sends(call(), 0, traffic="chat").params_hash for worker in (plain, other, same)
        ]

        assert hashes[0] != hashes[1] == hashes[2]

    @pytest.mark.parametrize(
        "added", [{"temperature": 0.5}, {"metadata": {"user": "{session_id}"}}, {}]
    )
    def test_what_changes_no_prompt_is_not(self, added):
        plain = Worker()
        plain.book = self.book()
        other = Worker()
        other.book = self.book(traffic={"body": added})
        hashes = {worker.sends(call(), 0, traffic="chat").params_hash for worker in (plain, other)}

        assert len(hashes) == 1
