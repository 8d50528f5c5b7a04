"""Pages of a list follow each other without a gap."""

from __future__ import annotations

import pytest

from tailgauge.simulator.http.api import page
from tailgauge.simulator.protocols.request import Refused

ITEMS = [{"id": f"m{i}"} for i in range(7)]


def ids(shown: dict[str, list[dict[str, str]]]) -> list[str]:
    return [item["id"] for item in shown["data"]]


def test_pages_forward_and_back_cover_the_list() -> None:
    first = page(ITEMS, {"limit": "3"}, 20)
    second = page(ITEMS, {"limit": "3", "after_id": first["last_id"]}, 20)
    third = page(ITEMS, {"limit": "3", "after_id": second["last_id"]}, 20)
    assert ids(first) + ids(second) + ids(third) == [item["id"] for item in ITEMS]
    assert [p["has_more"] for p in (first, second, third)] == [True, True, False]
    back = page(ITEMS, {"limit": "3", "before_id": third["first_id"]}, 20)
    assert (ids(back), back["has_more"]) == (ids(second), True)
    assert page(ITEMS, {"limit": "3", "before_id": "m1"}, 20)["has_more"] is False


def test_an_empty_list_is_an_empty_page() -> None:
    assert page([], {}, 20) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "²"}, {"after_id": "no"}]
)
def test_a_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(Refused):
        page(ITEMS, query, 20)
