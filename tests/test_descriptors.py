"""The table of descriptors is made large at the start of a process that opens a connection for each stream."""

import subprocess
import sys

import pytest

GROWN = """
import resource, sys
from tailgauge import descriptors
soft, hard = (int(text) for text in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
descriptors.raise_limit()
size = next(line for line in open("/proc/self/status") if line.startswith("FDSize"))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], size.split()[1])
"""


@pytest.mark.parametrize(("soft", "hard"), [(64, 300), (1_000, 5_000), (256, 256), (4_000, 15_000)])
def test_the_kernels_table_holds_as_many_as_are_permitted(soft, hard):
    """What /proc says, not we: the table grows no more while requests are due."""
    done = subprocess.run(
        [sys.executable, "-c", GROWN, str(soft), str(hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    permitted, table = (int(text) for text in done.stdout.split())
    assert permitted == hard
    assert table >= hard
