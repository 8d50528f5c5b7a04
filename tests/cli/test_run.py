"""What `tailgauge run` is asked for about its web page."""

import pytest

from tailgauge.address import Address
from tailgauge.cli.run import page
from tailgauge.errors import UsageError


@pytest.mark.parametrize(
    ("web", "at"),
    [
        ("8089", Address("127.0.0.1", 8089)),
        ("0.0.0.0:8089", Address("0.0.0.0", 8089)),
        ("[::1]:8089", Address("[::1]", 8089)),
        ("load-1:80", Address("load-1", 80)),
    ],
)
def test_a_port_alone_is_on_loopback(web, at):
    assert page(web, metrics=False) == (at, False)
    assert page(web, metrics=True) == (at, True)


def test_no_page_is_asked_for():
    assert page(None, metrics=False) is None


@pytest.mark.parametrize(
    ("web", "metrics", "why"),
    [
        (None, True, "--metrics: it needs the web page: add --web PORT"),
        ("localhost", False, "--web localhost: expected a port, such as --web 8089, or HOST:PORT"),
        (
            "localhost:http",
            False,
            "--web localhost:http: expected HOST:PORT with a port from 1 to 65535",
        ),
        ("99999", False, "--web 127.0.0.1:99999: expected HOST:PORT with a port from 1 to 65535"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(web, metrics, why):
    with pytest.raises(UsageError) as refused:
        page(web, metrics=metrics)

    assert str(refused.value) == why
