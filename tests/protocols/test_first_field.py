"""The first usable field: found exactly when it is complete, whatever the pieces, and never for what is no JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.protocols.decoder import FirstField

TEXT, TOOL = 0, 2


def first_at(text: str, kind: int = TEXT, size: int = 1) -> str | None:
    """What had come when the field was found, in pieces of `size` characters."""
    field = FirstField()
    for end in range(size, len(text) + size, size):
        if field.feed(kind, text[end - size : end]):
            return text[:end]
    return None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"a": "hello", "b": 1}', '{"a": "hello"'),
        ('{"n": 123, "x": 2}', '{"n": 123,'),  # 12 could still become 123
        ('{"n": 5}', '{"n": 5}'),
        ('{"a": {"b": ["x"]}}', '{"a": {"b": ["x"'),
        ('  \n{"a": "q\\"uote"}', '  \n{"a": "q\\"uote"'),
        ('[{"k": 1.5e3}]', '[{"k": 1.5e3}'),
        ('{"a": true, "b": 1}', '{"a": true,'),
        ('{"a": [], "b": {}}', None),
        ("{}", None),
        ("Sure! Here you are", None),
        ('```json\n{"a": 1}\n```', None),
        ('"just a text"', None),
        ("12", None),
        ("", None),
        ("   ", None),
    ],
)
def test_a_field_is_found_when_its_value_is_complete(answer, expected):
    assert first_at(answer) == expected


SCALARS = st.text(max_size=8) | st.integers() | st.booleans() | st.none()


@given(st.dictionaries(st.text(max_size=5), SCALARS, min_size=1, max_size=4), st.integers(1, 7))
def test_it_is_found_once_its_value_is_certain_and_not_a_piece_later(tree, size):
    answer = json.dumps(tree)
    key, value = next(iter(tree.items()))
    needed = len(json.dumps({key: value})) - (
        1 if isinstance(value, str) else 0
    )  # others end with what follows
    found = first_at(answer, size=size)

    assert found is not None
    if isinstance(value, str):
        assert needed <= len(found) < needed + size
    else:  # true and null are certain at their last letter, but are looked for when a value can have ended
        assert needed - 1 <= len(found) < needed + size


def test_prose_before_a_tool_call_is_passed_over():
    field = FirstField()

    assert not field.feed(TEXT, "I will look, ")
    assert not field.feed(TEXT, '"there".')
    assert not field.feed(TOOL, '{"at": "h')
    assert field.feed(TOOL, 'ere"')
