"""Files of raw answers: what is written is read back byte for byte; damaged and foreign files are refused by their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.rows.answer_file import (
    CLOSED,
    COMPLETE,
    ENDS,
    RawAnswer,
    Read,
    answer_text,
    read_answers,
)

FACTS = {"request_id": 65536, "ended": "ok", "error_type": None, "stage": "steady"}
FIRST = '{"answer": 1, "format": 1, "method": "POST", "ended": "ok"}'
READ = '{"at_ms": 1.5, "text": "HTTP/1.1 200 OK"}'
END = '{"end": "complete", "at_ms": 2, "left_out_bytes": 0}'


def answer(*reads: Read, **more: object) -> RawAnswer:
    values = {"facts": FACTS, "method": "POST", "end": COMPLETE, "end_at_ns": 9_000_000, **more}
    return RawAnswer(reads=list(reads), **values)  # type: ignore[arg-type]


def read_back(folder: Path, *answers: RawAnswer) -> list[RawAnswer]:
    path = folder / "answers.jsonl"
    texts = [answer_text(number, each) for number, each in enumerate(answers, 1)]
    path.write_text("".join(texts), encoding="utf-8")
    return read_answers(path)


def test_text_is_readable_and_the_rest_is_base64() -> None:
    euro = "1 €".encode()
    text = answer_text(
        7, answer(Read(1_234_567, euro), Read(2_000_000, euro[:-1]), Read(2_000_000, b"\x1b[31m"))
    )
    first, *reads, end = text.splitlines()

    assert json.loads(first) == {"answer": 7, "format": 1, "method": "POST", **FACTS}
    assert reads[0] == '{"at_ms": 1.234567, "text": "1 €"}'
    assert reads[1] == '{"at_ms": 2.0, "base64": "MSDigg=="}'
    assert reads[2] == '{"at_ms": 2.0, "text": "\\u001b[31m"}'
    assert end == '{"end": "complete", "at_ms": 9.0, "left_out_bytes": 0}'


def test_no_character_that_a_terminal_acts_on_is_in_the_file() -> None:
    text = answer_text(1, answer(Read(1, "\x9b31m\u202e\u2028\ufeff".encode())))

    assert all(char.isprintable() or char == "\n" for char in text)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.binary(max_size=40) | st.text(max_size=9).map(str.encode)), max_size=6),
    st.sampled_from(ENDS),
)  # fmt: skip
def test_every_answer_is_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]], end: str
) -> None:
    reads = [Read(at_ns, data) for at_ns, data in sorted(pieces)]
    last_ns = reads[-1].at_ns if reads else 0
    written = answer(*reads, end=end, end_at_ns=last_ns + 17)

    assert read_back(tmp_path_factory.getbasetemp(), written, written) == [written, written]


def test_facts_end_and_what_was_left_out_are_kept(tmp_path: Path) -> None:
    (found,) = read_back(
        tmp_path, answer(Read(5, b"a"), Read(6, b"b"), end=CLOSED, left_out_bytes=4)
    )

    assert (found.facts, found.data, found.end, found.left_out_bytes) == (FACTS, b"ab", CLOSED, 4)


def line(**values: object) -> str:
    return json.dumps(values)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ": is empty"),
        (["x = 1"], ":1: not JSON"),
        (["[1]"], ":1: expected a JSON object"),
        ([line(model="m", prompt="hello")], ":1: expected a line that begins an answer of --keep-answers"),
        ([READ], ":1: expected a line that begins an answer"),
        ([line(answer=1, format=2)], ":1: format: expected 1, got 2: use the version that wrote it"),
        ([line(answer=1, format=1, method="PUT")], ':1: method: expected "GET" or "POST"'),
        ([FIRST, READ], ":1: the answer that begins on line 1 has no end"),
        ([FIRST, END, FIRST, READ, FIRST], ":5: the answer that begins on line 3 has no end"),
        ([FIRST, READ[:20]], ":2: not JSON"),
        ([FIRST, line(at_ms=1)], ':2: expected "text" or "base64"'),
        ([FIRST, line(at_ms=1, text=2)], ':2: expected "text" or "base64"'),
        ([FIRST, line(at_ms=1, text="a", base64="YQ==")], ':2: expected "text" or "base64"'),
        ([FIRST, line(at_ms=1, base64="Y")], ":2: base64: "),
        ([FIRST, line(at_ms=1, base64="YQ== ")], ":2: base64: "),
        ([FIRST, '{"at_ms": 1, "text": "\\ud83d"}'], ":2: text: expected UTF-8"),
        ([FIRST, line(text="a")], ":2: at_ms: expected a time in ms"),
        ([FIRST, line(at_ms=-1, text="a")], ":2: at_ms: expected a time in ms"),
        ([FIRST, line(at_ms=True, text="a")], ":2: at_ms: expected a time in ms"),
        ([FIRST, '{"at_ms": NaN, "text": "a"}'], ":2: NaN is not a number"),
        ([FIRST, READ, line(at_ms=1, text="a")], ":3: at_ms: expected no time before that of the line above"),
        ([FIRST, READ, line(end="complete", at_ms=1)], ":3: at_ms: expected no time before"),
        ([FIRST, READ, line(end="gone", at_ms=9)], ":3: end: expected one of complete, closed, reset, client"),
        ([FIRST, READ, line(end="closed", at_ms=9, left_out_bytes=-1)], ":3: left_out_bytes: expected"),
    ],
)  # fmt: skip
def test_a_damaged_file_or_another_one_is_refused_by_its_line(
    tmp_path: Path, lines: list[str], expected: str
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")

    with pytest.raises(ScenarioError) as error:
        read_answers(path)
    assert str(error.value).startswith(f"{path}{expected}")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0-all.parquet"
    path.write_bytes(b"PAR1\xff\xfe\x00")

    with pytest.raises(ScenarioError, match="not UTF-8 text"):
        read_answers(path)
    with pytest.raises(UsageError, match="no such file"):
        read_answers(tmp_path / "missing")
    with pytest.raises(UsageError, match="a folder, not a file"):
        read_answers(tmp_path)
