"""Numbers and untrusted text as people read them."""

import math

import pytest

from tailgauge_analysis.text.formatting import clock, count, ms, percentile, plain, plural, share
from tailgauge_analysis.text.formatting import markdown_safe as safe


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0421, "0.042"), (4.213, "4.21"), (42.13, "42.1"), (421.3, "421"), (4213.4, "4,213"), (None, "–"),
     (math.inf, "–"), (math.nan, "–"), (9.996, "10.0"), (-3.5, "-3.50")],
)  # fmt: skip
def test_milliseconds(value, text):
    assert ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.042, "4.2%"),
        (0.9998, "99.980%"),
        (0.00012, "0.012%"),
        (1.0221, "102.2%"),
        (None, "–"),
    ],
)
def test_shares(value, text):
    assert share(value) == text


def test_the_rest():
    assert [clock(12), clock(3723), clock(-1)] == ["00:12", "1:02:03", "00:00"]
    assert [count(12345), count(None)] == ["12,345", "–"]
    assert [plural(1, "row"), plural(2000, "row")] == ["1 row", "2,000 rows"]
    assert [percentile(0.99), percentile(0.999), percentile(0.5)] == ["p99", "p99.9", "p50"]


def test_untrusted_text_cannot_command_a_terminal_or_break_a_table():
    assert plain("a\x1b[2J\r\nb\u202e\x07 c") == "a[2J b c"
    assert plain("x" * 50, 10) == "x" * 9 + "…"
    assert safe("a | <b> `c`\n# d") == "a \\| &lt;b&gt; \\`c\\` \\# d"
