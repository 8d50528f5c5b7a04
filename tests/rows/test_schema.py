"""The record: what a column is, and that rows and columns agree."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from tailgauge.rows.schema import (
    CENSORED,
    CLIENT_DROP,
    ENDED_CLASSES,
    ORIGIN,
    RECORDED,
    TABLES,
    columns,
)


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_the_fields_of_the_row_in_their_order_and_then_its_origin(table):
    origin = list(ORIGIN) if table in RECORDED else []
    assert [c.name for c in columns(table)] == [f.name for f in fields(TABLES[table])] + origin


@pytest.mark.parametrize("table", TABLES)
def test_times_are_whole_nanoseconds_and_everything_has_a_meaning(table):
    for column in columns(table):
        if column.name.endswith("_ns"):
            assert column.kind in {"int64", "list<int64>"}
        assert len(column.meaning) > 5


@pytest.mark.parametrize("table", TABLES)
def test_a_column_that_defaults_to_nothing_may_be_null(table):
    nullable = {c.name: c.nullable for c in columns(table)}

    for field in fields(TABLES[table]):
        if field.default is None:
            assert nullable[field.name]
        elif field.default is not MISSING:
            assert not nullable[field.name]


def test_how_a_request_ended_has_one_word_each():
    text = (*ENDED_CLASSES, CENSORED, CLIENT_DROP)

    assert len(set(text)) == len(text) == 19
