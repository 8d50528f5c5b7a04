"""Addresses that a user gives, and which of them only this machine reaches."""

import pytest

from tailgauge.address import Address, is_loopback, parse
from tailgauge.errors import UsageError


@pytest.mark.parametrize(
    ("text", "port", "expected"),
    [
        ("127.0.0.1:5557", None, Address("127.0.0.1", 5557)),
        ("master:1", None, Address("master", 1)),
        ("[::1]:5557", None, Address("[::1]", 5557)),
        ("0.0.0.0", 5557, Address("0.0.0.0", 5557)),
        ("0.0.0.0:7", 5557, Address("0.0.0.0", 7)),
        ("[::]", 5557, Address("[::]", 5557)),
    ],
)
def test_an_address_is_host_and_port(text, port, expected):
    assert parse(text, "--bind", port=port) == expected


@pytest.mark.parametrize(
    ("text", "port"),
    [("", None), ("host", None), (":5557", None), ("host:", 5557), ("host:0", None), ("host:65536", None),
     ("host:x", None), ("::1:5557", None), ("::1", 5557), ("http://host:80", None), ("a b:80", None), ("u@h:80", None)],
)  # fmt: skip
def test_whatever_else_it_is_the_option_is_named(text, port):
    with pytest.raises(UsageError, match=r"--bind .*expected HOST:PORT"):
        parse(text, "--bind", port=port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("::1", True), ("0.0.0.0", False),
     ("*", False), ("", False), ("10.0.0.1", False), ("master", False), ("[::]", False)],
)  # fmt: skip
def test_loopback_is_what_no_other_machine_reaches(host, expected):
    assert is_loopback(host) is expected
