"""The result of a run is the last thing that plain Locust prints, and its exit code is named once."""

import pytest

OURS = "--scenario limits.toml --set limits.drain_s=9 --plugin p.py"


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("locust_app/scripts/console.py")


def test_the_result_stands_below_the_last_table_which_is_not_repeated(seen):
    assert seen["ends"]["headless"] == [
        "table",
        "last table",
        "PASS  the summary",
        "exit code 0",
        "",
    ]


def test_the_result_is_on_standard_output_unless_the_json_of_locust_is_there(seen):
    assert seen["streams"] == {"text": "standard output", "json": "standard error"}


def test_with_a_page_the_result_is_printed_when_the_run_has_ended_and_at_the_end(seen):
    summary = "PASS  the summary"
    tables = ["table", "table while the report is made"]

    assert seen["ends"]["page"] == [
        *tables,
        "",
        summary,
        "",
        "last table",
        summary,
        "exit code 0",
        "",
    ]


def test_the_exit_code_is_the_last_word_and_says_whose_it_is(seen):
    assert seen["codes"] == {
        "of the run": "exit code 3",
        "of Locust": "exit code 1: Locust counted failures; the result above alone would be 0",
        "none": "exit code 0",
    }


def test_why_there_is_no_result_stands_below_the_tables_too(seen):
    logged = seen["failures"][: seen["failures"].index("last table")]
    *printed, code, end = seen["failures"][len(logged) + 1 :]

    assert [line[:10] for line in logged] == ["the target", "choose a l"]
    assert printed[0].startswith("the target could not be used because")
    assert printed[-1] == "choose a longer -t"
    assert all(len(line) <= 80 for line in printed)
    assert (code, end) == ("exit code 4", "")


def test_the_result_of_tasks_ends_with_the_response_time_that_an_http_user_shows(seen):
    found = seen["http_user"]
    to_headers = (
        "HttpUser  With stream=True it shows the time to the headers: p50 290 ms, p95 590 ms."
    )
    to_end = "HttpUser  Without stream=True it shows the time to the end, as total:"

    assert found["streamed"] == [f"{to_headers} Here, total is the time to the end."]
    assert found["whole"] == [f"{to_end} p50 890 ms, p95 1,200 ms."]
    assert [line[:64] for line in found["both"]] == [to_headers[:64], to_end[:64]]
    assert found["both"][1].endswith("p50 40 ms, p95 40 ms."), "of the calls without it alone"
    assert found["no request"] == []
    *_, last, code, end = found["printed"]
    assert found["printed"][-4].startswith("HttpUser  With stream=True")
    assert last.startswith("          ")
    assert (code, end) == ("exit code 0", "")
    assert not any("HttpUser" in line for line in found["schedule"])


def test_only_the_exit_code_is_left_to_the_master(seen):
    assert seen["other_messages"] == [False, True]


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("plain", "locust -f chat.py --headless -u 6 -r 2 -t 12s"),
        ("page", "locust -f chat.py --headless -u 1 -r 1 --host http://127.0.0.1:1"),
        ("processes", "locust -f chat.py --headless -u 6 -r 2 -t 12s --processes 2 -s 3"),
        ("workers", "locust -f chat.py --headless -u 6 -r 2 -t 12s --master --expect-workers 4"),
        ("shape", "locust -f chat.py --headless -t 12s"),
        ("classes", "locust -f chat.py Chat --headless -u 6 -r 2 -t 12s -T a b"),
        ("picked", "locust -f chat.py Terminal Console --headless -u 6 -r 2 -t 12s"),
        ("ours", f"locust -f chat.py --headless -u 6 -r 2 -t 12s {OURS}"),
        ("from a site", "locust -f https://files.example/chat.py --headless -u 6 -r 2 -t 12s"),
    ],
)  # fmt: skip
def test_the_command_that_repeats_a_run_has_its_load_and_no_secret(seen, case, line):
    assert seen["commands"][case] == line
    assert "secret" not in line
