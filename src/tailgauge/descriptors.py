"""File descriptors of a process that opens a connection for each stream."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress

# The kernel's table of descriptors doubles when it is full, and a process with threads waits up to 25 ms for that
# (expand_fdtable calls synchronize_rcu): a request that is due would wait with it. 8 bytes each.
_AT_LEAST = 65_536


def raise_limit() -> None:
    """Permit as many as the system allows, and make the kernel's table large enough for the first 65,536 of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    permitted = _AT_LEAST if hard == resource.RLIM_INFINITY else min(hard, _AT_LEAST)
    any_file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # all are in use: what opens the next one says so
        # The table never shrinks.
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, permitted - 1))
    os.close(any_file)
