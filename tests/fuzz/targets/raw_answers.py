"""Files of raw answers, which `tailgauge endpoint --replay` reads: answers, or a refusal that names file and line."""

from __future__ import annotations

import json

from fuzz.targets.scenario import FOLDER

from tailgauge.errors import ScenarioError
from tailgauge.rows.answer_file import COMPLETE, RESET, RawAnswer, Read, answer_text, read_answers

READS = [
    Read(1_000_000, b"HTTP/1.1 200 OK\r\n\r\n"),
    Read(2_000_000, b"\xff\xfe"),
    Read(3_000_000, "data: é\n\n".encode()),
]
PATH = FOLDER / "answers.jsonl"


def corpus() -> list[bytes]:
    facts = {"stage": "steady", "request_id": 7}
    answers = [
        RawAnswer(facts, "POST", end, 4_000_000, READS, left_out)
        for end, left_out in ((COMPLETE, 0), (RESET, 5))
    ]
    whole = "".join(
        answer_text(number, answer) for number, answer in enumerate(answers, 1)
    ).encode()
    return [whole, json.dumps({"answer": 1, "format": 1, "method": "GET"}).encode()]


def check(data: bytes) -> None:
    PATH.write_bytes(data)
    try:
        answers = read_answers(PATH)
    except ScenarioError as refusal:
        text = str(refusal)
        assert text.startswith(str(PATH)), text
        assert len(text) < 2000, text
        return
    for answer in answers:
        assert all(read.at_ns >= 0 for read in answer.reads)
        assert answer.method in {"GET", "POST"} or answer.method, answer.method
