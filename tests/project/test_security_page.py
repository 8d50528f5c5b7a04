"""docs/explanation/security.md says the bounds and names that the code has."""

import re

import pytest

from tailgauge.protocols import decoder, sse_parser
from tailgauge.scenario.model import Limits
from tailgauge.transport import exchange, http1

BOUNDS = {
    "time of one attempt": (Limits().attempt_deadline_s,),
    "head of a response": (http1.MAX_HEAD >> 10, http1.MAX_LINES, http1.MAX_INTERIM),
    "line of a chunk's size": (http1.MAX_HEAD >> 10, http1.MAX_LINES),
    "one event of a stream": (
        sse_parser.MAX_EVENT >> 20,
        sse_parser.MAX_LINES,
        sse_parser.MAX_VALUES,
    ),
    "events and pieces of content": (decoder.MANY_EVENTS, decoder.EVENTS_PER_TOKEN),
    "malformed events": (decoder.MANY_MALFORMED,),
    "a stream as a whole": (exchange.MAX_BODY >> 20,),
    "a non-streamed answer": (exchange.MAX_WHOLE >> 20, sse_parser.MAX_VALUES),
    "the text of an answer": (decoder.MAX_TEXT >> 10, decoder.TEXT_PER_TOKEN),
    "any other body": (exchange.MAX_ERROR_BODY >> 20, exchange.ERROR_KEPT >> 10, 2000),
    "all open answers of a worker": (exchange.MAX_HELD >> 20,),
    "all answers that conversations of a worker keep": (decoder.MAX_CONVERSATIONS >> 20,),
    "rate-limit headers": (40, 200),
    "phases of an answer": (decoder.MAX_PHASES,),
}


@pytest.fixture(scope="module")
def page(checkout):
    return (checkout / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", BOUNDS)
def test_a_bound_is_that_of_the_code(page, what):
    (row,) = re.findall(rf"^\| {re.escape(what)}[^|]*\|([^|]*)\|", page, re.MULTILINE)
    numbers = [
        float(text.replace(",", ""))
        for text in re.findall(r"(?<![\w`])\d[\d,]*", row.replace("(1xx)", ""))
    ]

    assert numbers == [float(number) for number in BOUNDS[what]]


def test_every_row_of_the_table_of_threats_names_tests_that_there_are(checkout):
    text = (checkout / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\|.*\|$", text.partition("| who | may |")[2].partition("\n\n")[0], re.MULTILINE
    )[1:]
    named = [re.findall(r"`([\w/]+\.py)::(test_\w+)`", row) for row in rows]
    missing = [
        f"{file}::{name}"
        for row in named
        for file, name in row
        if not re.search(
            rf"^def {name}\(", (checkout / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]

    assert len(rows) >= 10
    assert all(named)
    assert missing == []
