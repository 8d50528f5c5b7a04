"""ShareGPT files as they are: rows that cannot be asked are left out and counted by their number, none silently."""

import json

import pytest

from tailgauge.errors import Exit, ScenarioError
from tailgauge.patterns.table import Traffic
from tailgauge.rows import text_file
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival

ASKED = {"from": "human", "value": "Why?"}
ANSWERED = {"from": "gpt", "value": "Because of the sky."}
FINE = {"id": "a", "conversations": [ASKED, ANSWERED]}


def talk(*entries, **more):
    return {"conversations": list(entries), **more}


@pytest.fixture
def schedule(tmp_path):
    """The plan of a table with a file of these rows."""

    def make(rows, *, name="p.json", turns_mean=1.0, **prompts):
        path = tmp_path / name
        is_array = name.endswith(".json")
        text = json.dumps(rows) if is_array else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        traffic = Traffic.model_validate(
            {"prompts": {"file": str(path), **prompts}, "session": {"turns_mean": turns_mean}}
        )
        return plan(Arrival(process="constant", rate_per_s=5), {"chat": traffic}, 2, 1)

    return make


def facts(schedule):
    return schedule.prompt_files["chat"]


def questions(schedule):
    return {row.source["text"] for row in schedule.slice(0, 10**18)}


ODD_ROWS = [
    ("a stray string", "not an object"),
    (None, "not an object"),
    (12, "not an object"),
    ([ASKED, ANSWERED], "not an object"),
    ({"id": "b"}, "without conversations"),
    ({"id": "b", "conversations": None}, "without conversations"),
    (talk(), "without a question"),
    (talk(ANSWERED), "without a question"),
    (talk({"from": "system", "value": "Be brief."}), "without a question"),
    (talk({"from": "human", "value": "  "}, ANSWERED), "without a question"),
    ({"conversations": "Why?"}, "whose conversations are not a list of objects"),
    (talk("Why?", ANSWERED), "with an entry that is not an object"),
    (talk(None, ANSWERED), "with an entry that is not an object"),
    (talk(ASKED, "Because."), "with an entry that is not an object"),
    (talk({"from": "human"}, ANSWERED), "with an entry without text"),
    (talk({"from": "human", "value": None}, ANSWERED), "with an entry without text"),
    (talk(ASKED, {"from": "gpt", "value": {"text": "x"}}), "with an entry without text"),
    (talk({"from": "human", "value": "half \ud800"}, ANSWERED), "with half of a surrogate pair"),
    (talk(ASKED, {"from": "function_call", "value": "{}"}), "with an entry from function_call"),
    (talk({"from": "tool", "value": "42"}, ASKED), "with an entry from tool"),
    (talk({"from": "someone of sk-secret", "value": "x"}), "with an entry from an unknown role"),
    (talk({"value": "x"}), "with an entry from an unknown role"),
    (talk(ASKED, ANSWERED, tools='[{"name": "f"}]'), "whose tools are not a list of objects"),
    (talk(ASKED, ANSWERED, tags=["a"]), "whose tags are not an object of texts"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
@pytest.mark.parametrize(("odd", "reason"), ODD_ROWS, ids=range(len(ODD_ROWS)))
def test_a_row_that_cannot_be_asked_is_left_out_and_counted_by_its_number(
    schedule, name, odd, reason
):
    made = schedule([FINE, odd, FINE], name=name)

    assert facts(made) == {
        "file": facts(made)["file"],
        "rows_read": 3,
        "usable": 2,
        "dropped": {reason: 1},
        "dropped_rows": {reason: [2]},
    }
    assert made.notes == (f"{name}: 1 of 3 rows are left out: 1 {reason} (row 2)",)
    assert questions(made) == {"Why?"}


def test_every_reason_has_its_count_and_the_numbers_of_its_first_rows(schedule):
    rows = [FINE, "stray", *[talk() for _ in range(12)], {"id": 5}]
    made = schedule(rows)

    assert facts(made)["dropped"] == {
        "not an object": 1,
        "without a question": 12,
        "without conversations": 1,
    }
    assert facts(made)["dropped_rows"]["without a question"] == list(range(3, 13))
    assert (
        "14 of 15 rows are left out: 1 not an object (row 2), 12 without a question (rows 3, 4,"
        in (made.notes[0])
    )
    assert "12, ...), 1 without conversations (row 15)" in made.notes[0]


def test_a_file_whose_rows_can_all_be_asked_drops_none(schedule):
    made = schedule([FINE, FINE])

    assert (facts(made)["rows_read"], facts(made)["usable"], facts(made)["dropped"]) == (2, 2, {})
    assert made.notes == ()


def test_a_file_of_which_nothing_can_be_asked_is_refused_with_the_reasons(schedule, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        schedule([talk(), talk({"from": "tool", "value": "x"}), "stray"])

    assert str(caught.value) == (
        f"{tmp_path}/p.json: none of its 3 rows can be sent: 1 without a question (row 1), "
        "1 with an entry from tool (row 2), 1 not an object (row 3). "
        "Expected a question from human or user in each conversation"
    )
    assert caught.value.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["stray", {"prompt": "Why?"}], "p.json:1: expected a JSON object, got '\"stray\"'"),
        ([{"prompt": "Why?"}, "stray"], "p.json:1: expected a JSON object, got '\"stray\"'"),
        ([{"id": 5}, {"prompt": "Why?"}], "p.json:1: unknown key 'id'"),
        (["stray", "strays"], "p.json:1: expected a JSON object"),
    ],
)
def test_in_a_file_of_prompts_an_odd_row_is_an_error(schedule, rows, why):
    with pytest.raises(ScenarioError) as caught:
        schedule(rows)

    assert why in str(caught.value)


def test_what_is_not_asked_is_not_looked_at(schedule):
    tools = talk(
        ASKED, ANSWERED, {"from": "tool", "value": "42"}, "stray", {"from": "human", "value": "So?"}
    )

    assert facts(schedule([tools]))["dropped"] == {}
    with pytest.raises(ScenarioError, match="1 with an entry from tool"):
        schedule([tools], turns_mean=2.0)


def test_a_system_entry_behind_a_question_is_no_system_prompt(schedule):
    late = talk(
        ASKED, ANSWERED, {"from": "system", "value": "Be rude."}, {"from": "human", "value": "So?"}
    )
    first, *_ = schedule([late]).slice(0, 10**18)

    assert "system" not in first.source
    assert facts(schedule([late, FINE], turns_mean=2.0))["dropped"] == {
        "with a system entry after a question": 1
    }


def test_entries_with_role_and_content_and_roles_in_capitals_are_read(schedule):
    rows = [
        talk({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}),
        talk({"from": "Human", "value": "Why?"}, {"from": "ChatGPT", "value": "x" * 41}),
    ]
    first, second, *_ = schedule(rows).slice(0, 10**18)

    assert first.source["system"] == "Be brief."
    assert second.output_tokens == 11


def test_empty_columns_beside_the_conversation_are_no_values(schedule):
    made = schedule([talk(ASKED, ANSWERED, system="", tools="[]", name=None, tags={}, score=3)])
    first, *_ = made.slice(0, 10**18)

    assert facts(made)["usable"] == 1
    assert not first.source.keys() & {"system", "tools", "name", "tags"}


def test_numbers_and_strings_between_the_rows_are_one_value_wherever_the_file_is_cut(
    schedule, monkeypatch
):
    rows = [FINE, 1234567, "stray, with ] and {", True, FINE, -12.5, None]
    for piece in (1, 2, 3, 5, 7, 11):
        monkeypatch.setattr(text_file, "_PIECE", piece)
        made = schedule(rows, name=f"p{piece}.json")

        assert facts(made)["dropped_rows"] == {"not an object": [2, 3, 4, 6, 7]}
        assert facts(made)["usable"] == 2
