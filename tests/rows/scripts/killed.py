"""A process that kills itself while it stores rows: `killed.py FOLDER part` or `killed.py FOLDER compaction`.

It dies in the middle of its tenth part, or when a compacted part stands beside those that it replaces,
and then prints whether it has loaded pandas.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rows.examples import WORKER, append, health

from tailgauge.rows import recorder as recorders
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
folder.create()
recorder = Recorder(folder, WORKER)
recorder.warm_up()
if sys.argv[2] == "part":
    write_table = recorders.pq.write_table
    parts = []

    def cut(table: Any, where: Any, **other: Any) -> None:
        parts.append(where)
        write_table(table, where, **other)
        if len(parts) == 10:
            data = Path(where).read_bytes()
            Path(where).write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    recorders.pq.write_table = cut
    while True:
        append(recorder)
        recorder.flush(wait=True)

for number in range(3):
    health(recorder, 10 * number)
    recorder.flush(wait=True)
unlink = Path.unlink


def unlink_one(path: Path, *arguments: Any, **other: Any) -> None:
    unlink(path, *arguments, **other)
    print("pandas" in sys.modules, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


Path.unlink = unlink_one
recorder.close()
