"""Prompt files of users: what each format and each row becomes, and the error of a bad row."""

import csv
import gzip
import json

import pytest

from tailgauge.call import Call
from tailgauge.errors import ScenarioError
from tailgauge.patterns.settings import ALL_MARKS, NO_MARKS
from tailgauge.patterns.table import Traffic
from tailgauge.prompts import Maker
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.table import Target
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Closed

FIVE = Arrival(process="constant", rate_per_s=5)
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
TALK = {
    "id": "a1",
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "gpt", "value": "Hello."},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "x" * 41},
        {"from": "human", "value": "And then?"},
    ],
}


@pytest.fixture
def schedule(tmp_path):
    """The plan of a table with this file; its rows as a worker gets them."""

    def make(
        name,
        content,
        *,
        arrival=FIVE,
        seconds=1,
        seed=1,
        protocols=(),
        bounded=False,
        session=None,
        **prompts,
    ):
        path = tmp_path / name
        data = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
        path.write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
        traffic = Traffic.model_validate(
            {"prompts": {"file": str(path), **prompts}, "session": session or {}}
        )
        return plan(arrival, {"chat": traffic}, seconds, seed, protocols=protocols, bounded=bounded)

    return make


def rows(schedule):
    return list(schedule.slice(0, 10**18))


def texts(schedule):
    return [row.source.get("text") for row in rows(schedule)]


class TestFormats:
    @pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.jsonl.gz"])
    def test_json_lines_and_an_array_are_the_same_rows(self, schedule, name):
        given = [{"prompt": f"q{i}", "tags": {"k": "[]},{"}} for i in range(3)]
        wanted = texts(schedule("p.jsonl", given))

        for content in (
            json.dumps(given),
            json.dumps(given, indent=2),
            "\n\n [ " + json.dumps(given)[1:],
        ):
            assert texts(schedule(name, content)) == wanted == ["q0", "q1", "q2", "q0", "q1"]

    def test_an_array_longer_than_what_is_read_at_once(self, schedule, monkeypatch):
        monkeypatch.setattr("tailgauge.rows.text_file._PIECE", 7)
        given = [{"prompt": "ü" * (50 * i) + f'q{i}"]}}'} for i in range(1, 6)]

        assert texts(schedule("p.json", json.dumps(given, ensure_ascii=False))) == [
            row["prompt"] for row in given
        ]

    def test_csv_with_its_own_columns_quotes_and_lines(self, schedule, tmp_path):
        with (tmp_path / "x").open("w", newline="") as file:
            csv.writer(file).writerows(
                [
                    ["id", "question", "len", "who"],
                    [1, 'a,"b"\n\nc', 7, "sky"],
                    [],
                    [2, "x" * 200_000, "", ""],
                ]
            )
        made = schedule(
            "p.csv", (tmp_path / "x").read_text(),
            columns={"prompt": "question", "output_tokens": "len", "name": "who"},
        )  # fmt: skip
        first, second, *_ = rows(made)

        assert (first.source["text"], first.output_tokens, first.source["name"]) == (
            'a,"b"\n\nc',
            7,
            "sky",
        )
        assert (len(second.source["text"]), second.output_tokens) == (200_000, 50)
        assert "name" not in second.source

    def test_csv_under_our_own_names_with_json_in_a_cell(self, schedule):
        made = schedule("p.csv.gz", 'prompt,tags,prompt_tokens\n"{x}","{""a"": ""b""}",\n,,30\n')

        assert texts(made)[:2] == ["{x}", None]
        assert rows(made)[0].source["tags"] == {"a": "b"}
        assert rows(made)[1].prompt_tokens == 30

    def test_columns_of_json_lines_are_named_too_and_others_ignored(self, schedule):
        made = schedule("p.jsonl", [{"q": "Why?", "id": 5}], columns={"prompt": "q"})

        assert texts(made)[0] == "Why?"

    @pytest.mark.parametrize(
        ("name", "content", "columns", "why"),
        [
            ("p.json", '[{"prompt": "a"},\n{"prompt": 5}]', {}, ":2: prompt: expected some text, got '5'"),
            ("p.json", '[\n\n{"prompt": "a"},\n 7]', {}, ":4: expected a JSON object, got '7"),
            ("p.json", '[{"prompt": "a"},\n\n{"prompt"', {}, ":3: not JSON"),
            ("p.json", '[{"prompt": "a"}', {}, ":1: not JSON: the array has no end"),
            ("p.json", "[" + '{"a":' * 41 + "1" + "}" * 41 + "]", {}, ":1: expected at most 40 levels"),
            ("p.json", "[]", {}, ": has no rows with a question"),
            ("p.csv", "prompt\n", {}, ": has no rows with a question"),
            ("p.csv", "question\nWhy?\n", {}, ":2: unknown key 'question'. Expected one of: prompt,"),
            ("p.csv", "question\nWhy?\n", {"prompt": "text"}, ":2: column text: missing, but prompts.columns names it"),
            ("p.csv", "q,len\na,7\nb,many\n", {"prompt": "q", "output_tokens": "len"}, ":3: len: expected a whole number from 1 to 10,000,000, got 'many'"),
            ("p.csv", 'prompt\n"a\nb"\n"c\n', {}, ":4: not CSV"),
            ("p.jsonl", '{"q": ""}', {"prompt": "q"}, ":1: q: expected some text, got ''"),
            ("p.jsonl", '{"a": "b"}', {"prompt": "q"}, ":1: expected either prompt (text)"),
        ],
    )  # fmt: skip
    def test_a_bad_row_is_refused_with_file_line_key_and_what_was_expected(
        self, schedule, tmp_path, name, content, columns, why
    ):
        with pytest.raises(ScenarioError) as caught:
            schedule(name, content, columns=columns)

        assert str(caught.value).startswith(f"{tmp_path}/{name}{why}")

    def test_a_file_that_is_no_gzip_or_ends_early_is_refused(self, tmp_path):
        for data in (b"plain", gzip.compress(b'{"prompt": "a"}' * 999)[:-30]):
            (tmp_path / "p.jsonl.gz").write_bytes(data)
            with pytest.raises(Exception, match=r"p\.jsonl\.gz: cannot be (read|unpacked)"):
                plan(FIVE, {"chat": Traffic(prompts={"file": str(tmp_path / "p.jsonl.gz")})}, 1, 1)


class TestOrder:
    GIVEN = tuple({"prompt": f"q{i}"} for i in range(4))

    def test_shuffled_is_a_permutation_by_the_seed(self, schedule):
        def first_round(seed):
            made = schedule("p.jsonl", self.GIVEN, order="shuffled", seconds=2, seed=seed)
            assert texts(made)[:4] == texts(made)[4:8]
            return texts(made)[:4]

        found = [first_round(seed) for seed in range(6)]
        assert found == [first_round(seed) for seed in range(6)]
        assert len(set(map(tuple, found))) > 1
        assert {tuple(sorted(one)) for one in found} == {("q0", "q1", "q2", "q3")}

    def test_at_the_end_nothing_more_arrives_where_the_scenario_says_stop(self, schedule):
        made = schedule("p.jsonl", self.GIVEN, at_end="stop", seconds=9)

        assert texts(made) == ["q0", "q1", "q2", "q3"]
        assert made.requests == len(made.turns) == len(made.prompt_tokens) == 4
        assert made.notes == ("p.jsonl: 41 arrivals after its 4 rows are left out",)

    def test_another_table_goes_on_after_one_whose_rows_have_ended(self, tmp_path):
        (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
        (tmp_path / "q.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
        traffic = {
            "ends": Traffic(prompts={"file": str(tmp_path / "p.jsonl"), "at_end": "stop"}),
            "goes_on": Traffic(prompts={"file": str(tmp_path / "q.jsonl")}),
        }
        made = rows(plan(Arrival(rate_per_s=20), traffic, 10, 1))
        goes_on = [row.source["text"] for row in made if row.traffic == "goes_on"]

        assert [row.source["text"] for row in made if row.traffic == "ends"] == ["one", "two"]
        assert "".join(goes_on) == ("abc" * 99)[: len(goes_on)]
        assert [row.request_id for row in made] == [i << 16 for i in range(len(made))]


class TestConversations:
    def test_without_sessions_the_first_question_is_asked_with_the_size_of_its_answer(
        self, schedule
    ):
        row, *_ = rows(schedule("p.json", json.dumps([TALK])))

        assert row.source == {
            "text": "Why?", "system": "Be brief.", "prompt_tokens": 4, "output_tokens": 11,
        }  # fmt: skip
        assert (row.prompt_tokens, row.output_tokens, row.turns) == (4, 11, 1)

    def test_with_sessions_a_conversation_is_one(self, schedule):
        made = schedule(
            "p.json",
            json.dumps([TALK, {"conversations": TALK["conversations"][:3]}]),
            session={"turns_mean": 2.0},
        )
        first, second, *_ = rows(made)

        assert (first.turns, second.turns) == (2, 1)
        assert [first.of_turn(turn).source["text"] for turn in range(2)] == ["Why?", "And then?"]
        assert [first.of_turn(turn).prompt_tokens for turn in range(2)] == [4, 6]
        assert made.requests == sum(row.turns for row in rows(made))
        assert made.prompt_tokens[0] == 5  # the mean of its turns, for the estimate


ANTHROPIC = {
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"type": "web_search_20260209", "name": "web_search", "max_uses": 2}, {"name": "f", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [IMAGE, {"type": "text", "text": "What?", "citations": None}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [IMAGE]}]},
    ],
}  # fmt: skip
OPENAI = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
    "messages": [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [IMAGE_URL, {"type": "text", "text": "What?"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ],
}  # fmt: skip


def body(protocol, row, **traffic):
    """The body that a protocol sends for a row, and the prompt."""
    table = Traffic.model_validate(
        {"pattern": "cached" if "cache" in traffic else "streaming", **traffic}
    )
    marks = ALL_MARKS if protocol is Anthropic else NO_MARKS
    (prompt,) = Maker(1, table, "main", marks=marks).make(row)
    target = Target(protocol=protocol.name)
    return protocol(target, "http://127.0.0.1").body(Call(prompt, 5), "m"), prompt


class TestContent:
    @pytest.mark.parametrize(("protocol", "given"), [(Anthropic, ANTHROPIC), (OpenAI, OPENAI)])
    def test_what_a_row_gives_is_what_the_protocol_sends(self, schedule, protocol, given):
        row, *_ = rows(schedule("p.jsonl", [given], protocols=(protocol,)))
        row = type(row)(*json.loads(json.dumps(row)))  # as the link carries it
        sent, _ = body(protocol, row)

        assert {key: sent[key] for key in given} == given

    def test_a_system_message_in_front_becomes_the_system_prompt_of_either_protocol(self, schedule):
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}]
        row, *_ = rows(
            schedule("p.jsonl", [{"messages": messages}], protocols=(Anthropic, OpenAI, CustomSse))
        )

        assert body(Anthropic, row)[0]["system"] == "S"
        assert body(OpenAI, row)[0]["messages"] == messages

    def test_marks_and_salt_go_around_the_rows_own(self, schedule):
        row, *_ = rows(schedule("p.jsonl", [ANTHROPIC]))
        cache = {"breakpoints": ["last"], "cold": True}
        sent, prompt = body(Anthropic, row, cache=cache)

        assert prompt.unique
        assert sent["tools"][0]["name"].endswith("_web_search")
        assert sent["tools"][0]["max_uses"] == 2
        assert sent["system"][1:] == ANTHROPIC["system"]
        assert sent["system"][0]["text"] == sent["tools"][0]["name"].removesuffix("_web_search")
        assert sent["messages"][:2] == ANTHROPIC["messages"][:2]
        assert sent["messages"][2]["content"][0]["cache_control"] == {
            "type": "ephemeral",
            "ttl": "5m",
        }

    @pytest.mark.parametrize(
        ("protocol", "given", "why"),
        [
            (Anthropic, {"messages": [{"role": "user", "content": [IMAGE_URL]}]}, "messages[0].content[0].type: expected one of container_upload, document, image, search_result, text, tool_result with target.protocol = 'anthropic', got 'image_url'"),
            (OpenAI, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1].type: expected one of"),
            (CustomSse, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type: expected one of text with"),
            (Anthropic, {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: expected one of user, assistant with target.protocol = 'anthropic', got 'tool'"),
            (Anthropic, {"messages": [{"role": "user", "content": "a", "name": "x"}]}, "messages[0].name: unknown key with target.protocol = 'anthropic': expected one of content, role"),
            (OpenAI, {"prompt": "a", "tools": [{"name": "f", "input_schema": {}}]}, "tools[0].function: missing"),
            (Anthropic, {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name: missing"),
            (CustomSse, {"prompt": "a", "tools": [{"name": "f"}]}, "tools: not with target.protocol = 'sse', which has no tools"),
            (OpenAI, {"prompt": "a", "system": [IMAGE]}, "system[0].type: expected one of text"),
            (OpenAI, {"messages": []}, "messages: expected at least one message"),
            (OpenAI, {"messages": "hi"}, "messages: expected a list of objects, got 'hi'"),
            (OpenAI, {"messages": [{"content": "a"}]}, "messages[0].role: expected a role, got 'None'"),
            (OpenAI, {"messages": [{"role": "user"}]}, "messages[0].content: expected some text or a list of blocks, got 'None'"),
            (OpenAI, {"messages": [{"role": "user", "content": []}]}, "messages[0].content: expected some text or a list"),
            (OpenAI, {"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0].type: expected the type of a content block, got 'a'"),
            (OpenAI, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: expected some text"),
            (OpenAI, {"messages": [{"role": "user", "content": "\ud800"}]}, "half of a surrogate pair is not text"),
            (OpenAI, {"prompt": "a", "tools": [{}]}, "tools[0].name: expected the name of a tool"),
            (OpenAI, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "expected either prompt (text)"),
            (OpenAI, {"prompt_tokens": 5, "system": "S"}, "expected either prompt (text)"),
        ],
    )  # fmt: skip
    def test_what_a_protocol_cannot_send_is_refused_by_file_line_and_key(
        self, schedule, protocol, given, why
    ):
        with pytest.raises(ScenarioError) as caught:
            schedule("p.jsonl", [{"prompt": "fine"}, given], protocols=(protocol,))

        assert f"p.jsonl:2: {why}" in str(caught.value)

    def test_a_growing_session_has_one_prompt_a_turn(self, schedule):
        given = [{"messages": [{"role": "user", "content": "a"}]}]
        with pytest.raises(
            ScenarioError, match=r"p\.jsonl:1: messages: a turn of a session is one prompt"
        ):
            schedule("p.jsonl", given, session={"turns_mean": 2.0})

        assert schedule("p.jsonl", given, session={"turns_mean": 2.0, "grow": False}).requests


class TestSizes:
    def test_texts_count_by_their_characters_and_pictures_as_they_are_likely_to(self, schedule):
        row, *_ = rows(schedule("p.jsonl", [{"system": "a" * 40, "messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "b" * 80}]}]}]))  # fmt: skip

        assert 1600 + 30 <= row.prompt_tokens <= 1600 + 35

    def test_a_stated_size_goes_before_an_estimated_one_and_bounds_a_guard(self, schedule):
        from tailgauge.plan.spend_limit import Sizing

        given = {"messages": [{"role": "user", "content": [IMAGE]}], "prompt_tokens": 4321}
        row, *_ = rows(schedule("p.jsonl", [given], bounded=True))

        assert row.prompt_tokens == 4321
        assert Sizing().tokens(body(Anthropic, row)[1]) >= 4321

    def test_a_guard_takes_all_that_is_sent_into_account(self, schedule):
        from tailgauge.plan.spend_limit import Sizing

        row, *_ = rows(schedule("p.jsonl", [OPENAI]))
        sent, prompt = body(OpenAI, row)

        assert Sizing().tokens(prompt) > len(json.dumps(sent["messages"])) * 0.8

    def test_a_picture_of_unknown_size_is_refused_where_a_guard_must_bound_it(self, schedule):
        nested = {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
        for block in (IMAGE, IMAGE_URL, nested):
            with pytest.raises(
                ScenarioError,
                match=r"p\.jsonl:1: prompt_tokens: expected a size, because \[guard\]",
            ):
                schedule(
                    "p.jsonl", [{"messages": [{"role": "user", "content": [block]}]}], bounded=True
                )


class TestLargeFiles:
    def test_a_file_is_read_once_however_often_it_is_planned(self, schedule, monkeypatch):
        from tailgauge.schedule import prompt_file

        reads = []
        monkeypatch.setattr(
            prompt_file,
            "table_values",
            lambda path, **_: reads.append(path) or iter([(1, {"prompt": "a"})]),
        )
        for _ in range(3):
            schedule("once.jsonl", [{"prompt": "a"}])
        # Written anew each time, so that its time differs; planned twice without a change:
        before = len(reads)
        traffic = Traffic(prompts={"file": str(reads[0])})
        for _ in range(3):
            plan(FIVE, {"chat": traffic}, 1, 1)

        assert len(reads) <= before + 1

    @pytest.mark.slow
    def test_memory_holds_a_few_numbers_of_each_row(self, tmp_path):
        import tracemalloc

        path = tmp_path / "p.jsonl"
        with path.open("w") as file:
            for i in range(5000):
                file.write(json.dumps({"prompt": f"{i} " + "word " * 400}) + "\n")
        tracemalloc.start()
        try:
            made = plan(FIVE, {"chat": Traffic(prompts={"file": str(path)})}, 1, 1)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert path.stat().st_size > 10_000_000
        assert held < 500_000
        assert peak < 5_000_000
        assert texts(made)[4].startswith("4 word")

    def test_users_of_a_closed_loop_still_share_the_rows_out(self, schedule):
        made = schedule(
            "p.json",
            json.dumps([TALK, TALK]),
            arrival=Arrival(process="closed", closed=Closed(users=2)),
        )

        assert [row.turns for row in rows(made)] == [0, 0]
