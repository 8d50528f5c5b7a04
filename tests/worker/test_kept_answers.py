"""Which raw answers a worker keeps, and what a full disk does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from tailgauge.rows.answer_file import read_answers
from tailgauge.rows.recorder import RecorderError
from tailgauge.transport.exchange import STALE
from tailgauge.worker import kept_answers
from tailgauge.worker.kept_answers import KeptAnswers

pytestmark = pytest.mark.gevent

SENT_AT_NS = 1_000_000_000
NAMES = ("leg", "attempt", "traffic", "protocol", "error_type", "status")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.jsonl"


def end(
    answers: KeptAnswers,
    number: int,
    ended: str = "ok",
    stage: str = "steady",
    *,
    data: bytes = b"an answer",
    at_ns: int = 5,
    peer_end: str | None = None,
    **exchange: Any,
) -> None:
    """One call that ends so, with one read."""
    row: Any = SimpleNamespace(**dict.fromkeys(NAMES), request_id=number, ended=ended, stage=stage)
    capture = answers.capture()
    facts = {"failure": None, "aborted": None, "cut": None, "left_at_ns": SENT_AT_NS, **exchange}
    if capture is not None:
        capture.method = "POST"
        capture.add(data, SENT_AT_NS + at_ns)
        capture.peer_end = peer_end
    answers.ended(row, SimpleNamespace(capture=capture, ended_at_ns=SENT_AT_NS + 9, **facts))


def kept(path: Path) -> list[tuple[int, str, str]]:
    """Number, outcome and end of each answer."""
    return [
        (answer.facts["request_id"], answer.facts["ended"], answer.end)
        for answer in read_answers(path)
    ]


def test_the_first_answers_and_the_first_of_each_outcome_are_kept(path):
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

    assert kept(path) == [
        (1, "ok", "complete"),
        (2, "ok", "complete"),
        (5, "refused", "complete"),
        (8, "timeout", "client"),
        (9, "truncated", "closed"),
        (10, "stream_error", "reset"),
        (11, "client_error", "client"),
    ]
    assert answers.written == 7


def test_answers_of_the_preflight_take_none_from_those_of_the_run(path):
    answers = KeptAnswers(path, 1)
    for number in range(1, 15):
        end(answers, -number, stage="preflight")
    end(answers, -15, "refused", stage="preflight")
    end(answers, 1)
    end(answers, 2)
    answers.close()

    assert [number for number, *_ in kept(path)] == [*range(-1, -9, -1), -15, 1]


def test_calls_that_no_answer_can_have_are_not_kept(path):
    answers = KeptAnswers(path, 9)
    end(answers, 1, "connect_error", left_at_ns=None, failure=("tcp", "refused"))
    end(answers, 2, "connect_error", failure=(STALE, "closed"))
    answers.close()

    assert (path.exists(), answers.written) == (False, 0)


def test_times_are_never_negative_and_never_go_back(path):
    """An answer that came while its request was being sent, one in time, and one before the clock was set."""
    answers = KeptAnswers(path, 9)
    for number, at_ns in enumerate((-400, 5, 800)):
        end(answers, number, at_ns=at_ns)
    answers.close()

    times = [(answer.reads[-1].at_ns, answer.end_at_ns) for answer in read_answers(path)]
    assert times == [(0, 9), (5, 9), (800, 800)]


def test_a_file_at_its_bound_takes_no_more(path, monkeypatch):
    monkeypatch.setattr(kept_answers, "MAX_FILE", 100)
    answers = KeptAnswers(path, 100)
    for number in range(20):
        end(answers, number, data=b"x" * 30)
    answers.close()

    assert (answers.written, answers.capture()) == (4, None)


def test_a_full_disk_is_an_error_with_what_to_do_and_leaves_whole_answers(small_disk):
    path = small_disk(1_000_000) / "answers" / "0.jsonl"
    answers = KeptAnswers(path, 100)

    def fill() -> None:
        for number in range(100):
            end(answers, number, data=b"x" * 40_000)
            gevent.sleep(0.001)
            answers.check()

    with pytest.raises(RecorderError) as error:
        fill()
    assert "0.jsonl: an answer could not be written: no space is left (" in str(error.value)
    assert str(error.value).endswith("choose another --out")
    with pytest.raises(RecorderError):
        answers.close()
    assert 0 < answers.written == len(kept(path)) < 26
    assert answers.capture() is None


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    answers = KeptAnswers(tmp_path / "file" / "0.jsonl", 3)
    end(answers, 1)

    with pytest.raises(RecorderError, match=r"0\.jsonl: an answer could not be written: "):
        answers.close()
