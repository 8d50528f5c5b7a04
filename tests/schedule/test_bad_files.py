"""Files that cannot be used: each error names the file, the line and the column, before any traffic."""

import gzip

import pytest

from tailgauge.errors import Exit, ScenarioError, UsageError
from tailgauge.patterns.table import Traffic
from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = HEAD + "2023-11-16 18:15:46.68,374,44\n"
BURST = "Timestamp,Model,Request tokens,Response tokens\n"
TRACES = [
    ("", "t.csv: is empty"),
    ("\n  \n", "t.csv: is empty"),
    (HEAD, "t.csv: has no rows"),
    ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n", "t.csv:1: column GeneratedTokens: missing; a trace of format azure"),
    (FIRST.replace(",", ";").replace("68", "68,5"), "t.csv:1: the separator seems to be ';': expected ',', and '.' in decimals"),
    ("\n" + FIRST.replace(",", "\t"), "t.csv:2: the separator seems to be a tab: expected ','"),
    ("when,how\n1,2\n", "t.csv: no known trace has these columns: when, how. Expected azure: TIMESTAMP,"),
    (FIRST + "2023-11-16 18:15:47,nan,44\n", "t.csv:3: column ContextTokens: expected a whole number of tokens from 0 to"),
    (FIRST + "2023-11-16 18:15:47,,44\n", "t.csv:3: column ContextTokens: expected a whole number"),
    (FIRST + "2023-11-16 18:15:47,3.5,44\n", "t.csv:3: column ContextTokens: expected a whole number"),
    (FIRST + "2023-11-16 18:15:47,1_0,44\n", "t.csv:3: column ContextTokens: expected a whole number"),
    (FIRST + "2023-11-16 18:15:47,374,-1\n", "t.csv:3: column GeneratedTokens: expected a whole number"),
    (FIRST + "2023-11-16 18:15:47,374,99999999999\n", "t.csv:3: column GeneratedTokens: expected a whole number"),
    (FIRST + "2023-11-16 18:15:45,374,4\n", "t.csv:3: column TIMESTAMP: '2023-11-16 18:15:45' is before the time of the row above"),
    (FIRST + "2023-11-31 18:15:45,374,4\n", "t.csv:3: column TIMESTAMP: expected a time, got '2023-11-31"),
    (FIRST + "yesterday,374,4\n", "t.csv:3: column TIMESTAMP: expected a time, got 'yesterday'"),
    (FIRST + "2023-11-16 18:15:47.,374,4\n", "t.csv:3: column TIMESTAMP: expected a time"),
    ("x" * 200_000 + "\n1\n", "t.csv:1: not CSV: field larger than field limit"),
    (FIRST + "2023-11-16 18:15:47,374\n", "t.csv:3: has 2 columns, the header 3"),
    (FIRST + '2023-11-16 18:15:47,"374,44\n', "t.csv:3: not CSV"),
    (BURST + "NaN,GPT-4,1,1\n", "t.csv:2: column Timestamp: expected a time, got 'NaN'"),
    (BURST + "5,GPT-4,1,1\n1e400,GPT-4,1,1\n", "t.csv:3: column Timestamp: expected a time"),
    (BURST + "5,GPT-4,1,1\n1e12,GPT-4,1,1\n", "t.csv:3: column Timestamp: '1e12' is over a century away"),
    ('{"timestamp": 0, "input_length": 5}\n', "t.csv:1: column output_length: missing"),
    ('{"timestamp": 0, "input_length": 5, "output_length": NaN}\n', "t.csv:1: NaN is not a number"),
    ('{"Timestamp": [], "Request tokens": 5, "Response tokens": 1}\n', "t.csv:1: column Timestamp: expected a time, got '[]'"),
    ('{"TIMESTAMP": 5, "ContextTokens": 5, "GeneratedTokens": 1}\n', "t.csv:1: column TIMESTAMP: expected a time, got '5'"),
    ('{"timestamp": 0, "input_length": 5, "output_length": true}\n', "t.csv:1: column output_length: expected a whole"),
    ('{"timestamp": "now", "input_length": 5, "output_length": 1}\n', "t.csv:1: column timestamp: expected a time"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n[1]\n', "t.csv:2: expected a JSON object, got '[1]'"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timest\n', "t.csv:2: not JSON"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}\n', "t.csv:1: column hash_ids: expected a list of whole"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n{"timestamp": 0, "input_length": 5, "output_length": 1}\n', "t.csv:2: column hash_ids: expected a list"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n', "t.csv:2: column hash_ids: is here, but not"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp": 1, "input_length": 5}\n', "t.csv:2: column output_length: missing"),
]  # fmt: skip
PROMPTS = [
    ("", "p.jsonl: is empty"),
    ("Why?\n", "p.jsonl:1: not JSON"),
    ('"Why?"\n', "p.jsonl:1: expected a JSON object"),
    ('{"prompt": "Why?"}\n{}\n', "p.jsonl:2: expected either prompt (text) or prompt_tokens (a size)"),
    ('{"prompt": "Why?", "prompt_tokens": 3}\n', "p.jsonl:1: expected either prompt (text) or prompt_tokens (a size)"),
    ('{"prompt": ""}\n', "p.jsonl:1: prompt: expected some text, got ''"),
    ('{"prompt": 5}\n', "p.jsonl:1: prompt: expected some text, got '5'"),
    ('{"prompt": "\\ud800"}\n', "p.jsonl:1: prompt: half of a surrogate pair is not text"),
    ('{"prompt_tokens": "5"}\n', "p.jsonl:1: prompt_tokens: expected a whole number from 1 to 10,000,000, got '5'"),
    ('{"prompt_tokens": true}\n', "p.jsonl:1: prompt_tokens: expected a whole number"),
    ('{"prompt_tokens": 0}\n', "p.jsonl:1: prompt_tokens: expected a whole number"),
    ('\n{"prompt": "a", "output_tokens": 2.5}\n', "p.jsonl:2: output_tokens: expected a whole number"),
    ('{"prompt": "a", "name": ["b"]}\n', "p.jsonl:1: name: expected some text"),
    ('{"prompt": "a", "tags": {"tenant": 5}}\n', "p.jsonl:1: tags: expected an object of texts"),
    ('{"prompt": "a", "max_tokens": 5}\n', "p.jsonl:1: unknown key 'max_tokens'. Expected one of: prompt, prompt_tokens,"),
]  # fmt: skip


def planned(folder, arrival=None, **traffic):
    return plan(arrival or Arrival(), {"chat": Traffic(**traffic)}, 10, 1, folder=folder)


def replay(folder, name="t.csv", **options):
    return planned(folder, Arrival(process="trace", trace=Trace(file=name, **options)))


@pytest.mark.parametrize(
    ("text", "error_text"), TRACES, ids=[error_text[:60] for _, error_text in TRACES]
)
def test_a_trace_that_cannot_be_used_is_refused_with_file_line_and_column(
    tmp_path, text, error_text
):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        replay(tmp_path)

    assert str(caught.value).startswith(f"{tmp_path}/{error_text}")
    assert caught.value.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("text", "error_text"), PROMPTS, ids=[error_text[:60] for _, error_text in PROMPTS]
)
def test_a_prompt_file_that_cannot_be_used_is_refused_with_file_line_and_key(
    tmp_path, text, error_text
):
    (tmp_path / "p.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        planned(tmp_path, prompts={"file": "p.jsonl"})

    assert str(caught.value).startswith(f"{tmp_path}/{error_text}")
    assert caught.value.exit_code == Exit.USAGE


def test_a_file_that_is_not_there_is_named_with_the_places_looked_at(tmp_path):
    for make in (
        lambda: replay(tmp_path, "no.csv"),
        lambda: planned(tmp_path, prompts={"file": "no.csv"}),
    ):
        with pytest.raises(
            UsageError, match=rf"no\.csv: no such file, neither in {tmp_path} nor in /"
        ):
            make()


def test_a_file_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(HEAD.encode() + b"\xff\xfe")
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt": "\xff"}')
    for make in (lambda: replay(tmp_path), lambda: planned(tmp_path, prompts={"file": "p.jsonl"})):
        with pytest.raises(ScenarioError, match="not UTF-8 text"):
            make()


@pytest.mark.parametrize(
    ("name", "data", "error_text"),
    [
        ("p.csv", "prompt\nWhy?\n".encode("utf-16"), "p.csv: line 1: not UTF-8 text: it begins with the mark of UTF-16. Save it as UTF-8"),
        ("p.xlsx", b"PK\x03\x04 and more", "p.xlsx: a spreadsheet, not text: save it as CSV or as JSON lines"),
        ("p.csv", b"PK\x03\x04 and more", "p.csv: not UTF-8 text: it seems to be a zip file"),
        ("p.jsonl", b"PAR1\x15\x04", "p.jsonl: not UTF-8 text: it seems to be a Parquet file"),
        ("p.jsonl", gzip.compress(b"{}", mtime=0), "p.jsonl: not UTF-8 text: it seems to be a gzip file"),
        ("p.csv.gz", gzip.compress("prompt\n".encode("utf-16"), mtime=0), "p.csv.gz: line 1: not UTF-8 text: it begins with the mark of UTF-16"),
    ],
)  # fmt: skip
def test_a_prompt_file_of_another_kind_is_named_as_what_it_is(tmp_path, name, data, error_text):
    (tmp_path / name).write_bytes(data)

    with pytest.raises(ScenarioError) as error:
        planned(tmp_path, prompts={"file": name})

    assert error_text in str(error.value)


def test_a_format_that_is_named_is_believed(tmp_path):
    (tmp_path / "t.csv").write_text(FIRST)

    assert replay(tmp_path, format="azure").trace["rows_read"] == 1
    with pytest.raises(
        ScenarioError, match=r"t\.csv:1: column Timestamp: missing; a trace of format burstgpt has"
    ):
        replay(tmp_path, format="burstgpt")


def test_windows_line_ends_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path):
    text = "\ufeff" + FIRST.replace("\n", "\r\n") + "\r\n2023-11-16 18:15:47.68,5,6\r\n\r\n"
    (tmp_path / "t.csv").write_bytes(text.encode())
    schedule = replay(tmp_path)

    assert schedule.at_ns.tolist() == [0, 10**9]
    assert schedule.trace["rows_read"] == 2


@pytest.mark.parametrize(
    ("arrival", "error_text"),
    [
        ({"process": "trace"}, "trace.file: expected the path of a trace"),
        ({"process": "trace", "rate_per_s": 5, "trace": {"file": "a", "speed_up": 2}}, "both scale the trace's time"),
        ({"process": "trace", "trace": {"file": "a"}, "shape": {"kind": "ramp"}}, "shape: does not apply with process = 'trace'"),
        ({"process": "poisson", "trace": {"file": "a"}}, "trace: does not apply with process = 'poisson'"),
        ({"process": "poisson", "cv": 2.0}, "cv: does not apply with process = 'poisson'"),
        ({"process": "closed", "rate_per_s": 5}, "a closed loop has no rate"),
        ({"shape": {"kind": "ramp", "at": 0.3}}, "at: does not apply with kind = 'ramp'"),
        ({"shape": {"kind": "step", "width": 0.3}}, "width: does not apply with kind = 'step'"),
        ({"shape": {"kind": "spike", "at": 0.95}}, "at + width (0.95 + 0.1) is beyond the end of the run"),
        ({"shape": {"kind": "piecewise", "points": [[0, 1]]}}, "points: expected at least two, from share 0 to share 1"),
        ({"shape": {"kind": "piecewise", "points": [[0, 1], [0.6, 2], [0.5, 2], [1, 1]]}}, "in order of time"),
        ({"shape": {"kind": "piecewise", "points": [[0, 0], [1, 0]]}}, "points: every rate is 0"),
    ],
)  # fmt: skip
def test_an_arrival_that_cannot_be_is_refused_in_the_scenario(arrival, error_text):
    with pytest.raises(ScenarioError) as caught:
        parse({"name": "x", "arrival": arrival}, "my.toml")

    assert str(caught.value).startswith("my.toml: arrival")
    assert error_text in str(caught.value)
