"""Runs pytest in a process that gevent has patched, as masters and workers are.

    .venv/bin/python tests/patched.py tests/transport/test_reader.py -k pieces

Files with `pytestmark = pytest.mark.gevent` need such a process. An ordinary session starts one for each of them.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

# isort: split
import sys  # noqa: E402
from collections.abc import Generator  # noqa: E402

import gevent  # noqa: E402
import pytest  # noqa: E402

LIMIT_S = 120  # of a test


class Bounded:
    """No test waits without end."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        with gevent.Timeout(LIMIT_S):
            return (yield)


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[Bounded()]))
