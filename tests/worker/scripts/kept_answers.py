"""Script: which raw answers a worker keeps, and what happens on a full disk."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starting.script import case, print_facts

from tailgauge.rows.answer_file import read_answers
from tailgauge.rows.recorder import RecorderError
from tailgauge.transport.exchange import STALE
from tailgauge.worker import kept_answers
from tailgauge.worker.kept_answers import KeptAnswers

FOLDER = Path(sys.argv[1])
DISK = Path(sys.argv[2]) if sys.argv[2:] else None
SENT_AT_NS = 1_000_000_000
NAMES = (
    "request_id",
    "leg",
    "attempt",
    "stage",
    "traffic",
    "protocol",
    "ended",
    "error_type",
    "status",
)


def end(
    answers: KeptAnswers, number: int, ended: str = "ok", stage: str = "steady", **other: Any
) -> None:
    """One call that ends so; `other`: of its exchange, or `data` and `at_ns` of its only read."""
    row: Any = SimpleNamespace(**dict.fromkeys(NAMES))
    row.request_id, row.ended, row.stage = number, ended, stage
    capture = answers.capture()
    exchange: Any = SimpleNamespace(
        capture=capture,
        left_at_ns=SENT_AT_NS,
        ended_at_ns=SENT_AT_NS + 9,
        failure=None,
        aborted=None,
        cut=None,
    )
    if capture is not None:
        capture.method = "POST"
        capture.add(other.pop("data", b"answer %d" % number), SENT_AT_NS + other.pop("at_ns", 5))
        capture.peer_end = other.pop("peer_end", None)
    for name, value in other.items():
        setattr(exchange, name, value)
    answers.ended(row, exchange)


def kept(path: Path) -> list[list[Any]]:
    """Number, outcome, end and time of the last read of each answer in a file."""
    return [
        [
            answer.facts["request_id"],
            answer.facts["ended"],
            answer.end,
            answer.reads[-1].at_ns,
            answer.end_at_ns,
        ]
        for answer in read_answers(path)
    ]


@case
def first_and_one_of_each_outcome() -> Any:
    path = FOLDER / "0.jsonl"
    answers = KeptAnswers(path, 2)
    for number in range(1, 5):
        end(answers, number)
    end(answers, 5, "refused")
    end(answers, 6, "refused")
    end(answers, 7, "ok")
    end(answers, 8, "timeout", aborted="timeout")
    end(answers, 9, "truncated", cut="connection_closed", peer_end="closed")
    end(answers, 10, "stream_error", cut="connection_reset", peer_end="reset")
    end(answers, 11, "client_error", cut="framing")
    answers.close()
    return [kept(path), answers.written]


@case
def preflight_beside_the_run() -> Any:
    path = FOLDER / "1.jsonl"
    answers = KeptAnswers(path, 1)
    for number in range(1, 15):
        end(answers, -number, stage="preflight")
    end(answers, -15, "refused", stage="preflight")
    end(answers, 1)
    end(answers, 2)
    answers.close()
    return [number for number, *_ in kept(path)]


@case
def what_is_no_answer() -> Any:
    path = FOLDER / "2.jsonl"
    answers = KeptAnswers(path, 9)
    end(answers, 1, "connect_error", left_at_ns=None, failure=("tcp", "refused"))
    end(answers, 2, "connect_error", failure=(STALE, "closed"))
    answers.close()
    return [path.exists(), answers.written]


@case
def times_never_go_back() -> Any:
    """An answer that came while its request was being sent, or before the clock was set."""
    path = FOLDER / "3.jsonl"
    answers = KeptAnswers(path, 9)
    end(answers, 1, at_ns=-400)
    end(answers, 2, at_ns=800)
    answers.close()
    return [times[-2:] for times in kept(path)]


@case
def a_file_that_is_full_takes_no_more() -> Any:
    most, kept_answers.MAX_FILE = kept_answers.MAX_FILE, 100
    answers = KeptAnswers(FOLDER / "4.jsonl", 100)
    for number in range(20):
        end(answers, number, data=b"x" * 30)
    answers.close()
    is_full = answers.capture() is None
    kept_answers.MAX_FILE = most
    return [answers.written, is_full]


@case
def full_disk() -> Any:
    if DISK is None:
        return None
    path = DISK / "answers" / "0.jsonl"
    answers = KeptAnswers(path, 100)
    fault = ""
    for number in range(100):
        end(answers, number, data=b"x" * 40_000)
        try:
            answers.check()
        except RecorderError as error:
            fault = str(error)
            break
    try:
        answers.close()
    except RecorderError as error:
        fault = fault or str(error)
    return {
        "fault": fault,
        "written": answers.written,
        "whole": len(kept(path)),
        "more": answers.capture() is None,
    }


@case
def no_folder() -> Any:
    (FOLDER / "file").write_text("")
    answers = KeptAnswers(FOLDER / "file" / "0.jsonl", 3)
    end(answers, 1)
    try:
        answers.close()
    except RecorderError as error:
        return str(error)
    return ""


print_facts()
