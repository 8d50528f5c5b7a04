"""What a worker counts: quantiles of a second, exactly the sorted values at their ranks, and the pace of an answer."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from tailgauge.worker.counters import Rejections, Second, pace_ms


@pytest.mark.parametrize("n", [1, 2, 99, 100, 101, 5000])
def test_the_quantiles_are_values_that_were_seen(n):
    second = Second()
    lags = array("q", np.random.default_rng(n).permutation(n) + 1)
    second.dispatched(7)

    assert second.close(lags) == ((-(-n // 2), -(-99 * n // 100), n), (7, 7, 7))
    assert second.close(array("q")) == ((None, None, 0), (None, None, 0))


def answer(first=0, last=90, *, thinking_at=None, text_at=None, streams=True, **usage):
    """A decoder after its answer; times in ms."""

    def stamp(at_ms):
        return None if at_ms is None else SimpleNamespace(at=at_ms * 1_000_000)

    return SimpleNamespace(
        first_content=stamp(first), last_content=stamp(last), first_thinking=stamp(thinking_at), first_text=stamp(text_at),
        first_tool_json=None, streams=streams, usage=usage,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decoder", "thinks", "expected"),
    [
        (answer(output_tokens=10), False, 10.0),
        (answer(output_tokens=10, thinking_tokens=0), True, 10.0),
        (answer(output_tokens=30, thinking_tokens=20, thinking_at=0, text_at=45), True, 5.0),
        (answer(output_tokens=30, thinking_tokens=20, text_at=0), True, 10.0),  # hidden
        (answer(output_tokens=30, thinking_at=0, text_at=45), False, None),  # shown, not counted
        (answer(output_tokens=30), True, None),  # asked for, not counted
        (answer(output_tokens=1), False, None),
        (answer(), False, None),
        (answer(last=0, output_tokens=10), False, None),  # all at the same moment
        (answer(output_tokens=10, streams=False), False, None),
        (answer(None, None, output_tokens=10), False, None),
    ],
)
def test_the_pace_of_an_answer_is_known_where_tokens_and_time_cover_the_same_span(
    decoder, thinks, expected
):
    assert pace_ms(decoder, decoder.usage, thinks=thinks) == (
        expected if expected is None else pytest.approx(expected)
    )


def ended(name, status=None, target="main"):
    return SimpleNamespace(
        ended=name,
        status=status,
        target=target,
        error_type=None,
        error_body="no",
        asked_model="tiny",
    )


@pytest.mark.parametrize(
    ("rows", "in_a_row"),
    [
        ([ended("client_error", 401)] * 3, 3),
        ([ended("client_error", 401), ended("cancelled"), ended("client_error", 401)], 2),
        ([ended("client_error", 401), ended("ok", 200)], 0),
        ([ended("client_error", 401), ended("rate_limited", 429)], 0),
        ([ended("client_error", 404), ended("client_error", 404, "second")], 1),
        ([ended("client_error", 400), ended("client_error", 422), ended("client_error", 422)], 2),
        ([ended("client_error", 302)], 0),
    ],
)
def test_rejections_are_equal_and_in_a_row(rows, in_a_row):
    rejections = Rejections()
    for row in rows:
        rejections.note(row, "http://127.0.0.1:9/v1/messages")

    assert rejections.in_a_row == in_a_row
