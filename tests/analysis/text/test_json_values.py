"""Cells of a damaged table: whatever stands there, what is read of it can be shown."""

import json
import sys

import pytest

from tailgauge_analysis.text.json_values import parsed


def test_texts_and_numbers_of_a_table_are_read_and_nothing_nested():
    text = json.dumps(
        {"tenant": "a", "n": 5, "share": 0.5, "none": None, "list": [1], "table": {"a": 1}}
    )

    assert parsed(text) == {"tenant": "a", "n": 5, "share": 0.5, "none": None}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "null", None, "[" * 100_000, '{"a": ' * 100_000]
)
def test_what_is_no_table_holds_nothing(text):
    assert parsed(text) == {}


def test_no_depth_of_nesting_is_too_deep_to_be_shown():
    for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit() + 10):
        assert str(parsed('{"a": ' + "[" * depth + "]" * depth + "}")) == "{}"
