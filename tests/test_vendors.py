"""The table of what vendors call things."""

import pytest

from tailgauge import vendors
from tailgauge.rows.schema import (
    ABORTED,
    CLIENT_ERROR,
    CUT,
    ENDED_CLASSES,
    FILTERED,
    OK,
    OVERLOADED,
    RATE_LIMITED,
    REFUSED,
    SERVER_ERROR,
    AttemptRow,
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("overloaded_error",), OVERLOADED),
        (("OverloadedError",), OVERLOADED),
        (("Service Unavailable",), OVERLOADED),
        (("rate_limit_error",), RATE_LIMITED),
        (("RateLimitError",), RATE_LIMITED),
        (("rate_limit_exceeded",), RATE_LIMITED),
        (("RESOURCE_EXHAUSTED",), RATE_LIMITED),
        (("api_error",), SERVER_ERROR),
        (("InternalServerError",), SERVER_ERROR),
        (("Internal Server Error",), SERVER_ERROR),
        (("invalid_request_error",), CLIENT_ERROR),
        (("content_filter",), FILTERED),
        ((429,), RATE_LIMITED),
        (("429",), RATE_LIMITED),
        ((503,), OVERLOADED),
        ((529,), OVERLOADED),
        ((502,), SERVER_ERROR),
        ((400,), CLIENT_ERROR),
        ((None, "boom", 503), OVERLOADED),
        ((503, "invalid_request_error"), OVERLOADED),
    ],
)
def test_an_error_has_the_class_of_its_status_or_name(names, expected):
    assert vendors.class_of_error(*names) == expected


@pytest.mark.parametrize(
    "name", [None, "", "boom", 200, 0, -1, True, 4.29, [503], {"code": 503}, "error", "5033"]
)
def test_an_error_that_nobody_knows_has_no_class(name):
    assert vendors.class_of_error(name) is None


def test_every_meaning_and_class_of_the_table_exists():
    meanings = {OK, vendors.LIMIT, CUT, REFUSED, FILTERED, ABORTED}
    for protocol, reasons in vendors.TABLE["ends"].items():
        assert set(reasons.values()) <= meanings, protocol
    assert set(vendors.TABLE["errors"]) <= set(ENDED_CLASSES)


def test_no_name_of_an_error_has_two_classes():
    names = [name for names in vendors.TABLE["errors"].values() for name in names]

    assert len(names) == len(set(names))
    for error_class, listed in vendors.TABLE["errors"].items():
        assert [vendors.class_of_error(name) for name in listed] == [error_class] * len(listed)


def test_every_count_of_the_table_is_a_column_or_makes_one():
    columns = set(AttemptRow.__dataclass_fields__)
    for protocol in vendors.TABLE["ends"]:
        counts = set(vendors.TABLE["usage"][protocol]) - {"places", "prompt_tokens", "total_tokens"}
        assert counts <= columns


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            "max_tokens",
        ),
        ("Unrecognized request argument supplied: max_completion_tokens", "max_completion_tokens"),
        (
            "[{'loc': ['body', 'max_completion_tokens'], 'msg': 'Extra inputs are not permitted'}]",
            "max_completion_tokens",
        ),
        ("max_tokens is too large: 9000", ""),
        ("This model does not support tools", ""),
    ],
)
def test_the_limit_field_that_an_error_refuses_is_the_first_that_it_names(message, field):
    assert vendors.refused_limit_field(message) == field
