"""Tables of rows: what a second row of a name, or a table with the name of a key, would hide is refused."""

from dataclasses import dataclass

import pytest
from pydantic import Field

from tailgauge.table import Table, by_name, with_choices


@dataclass
class _Row:
    name: str
    number: int


@dataclass
class _Choice:
    name: str
    summary: str
    settings_type: type[Table] | None = None


class _Settings(Table):
    """Some keys."""

    kind: str = Field("a", description="the kind")
    retry: int = Field(0, description="another key")


def test_rows_are_found_by_their_name():
    rows = [_Row("a", 1), _Row("b", 2)]
    assert by_name(rows) == {"a": rows[0], "b": rows[1]}


def test_a_copied_row_that_kept_its_name_is_refused():
    with pytest.raises(ValueError, match="the same name: 'a'"):
        by_name([_Row("a", 1), _Row("b", 2), _Row("a", 3)])


def test_a_choice_whose_table_would_replace_a_key_is_refused():
    with pytest.raises(ValueError, match="would replace the key 'retry'"):
        with_choices(
            "More", _Settings, "kind", [_Choice("a", "one"), _Choice("retry", "two", _Settings)]
        )


def test_a_choice_with_a_name_of_its_own_gets_its_table():
    more = with_choices(
        "More", _Settings, "kind", [_Choice("a", "one"), _Choice("b", "two", _Settings)]
    )
    assert more(kind="b").b.retry == 0
