"""How a worker's rows reach the master: in the master's run folder, or as parts that are sent to it.

It says which of the two, whether all have arrived, and where they are. `part_sender` sends the parts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from tailgauge.rows.run_folder import RunFolder
from tailgauge.worker.part_sender import PartSender

log = logging.getLogger("tailgauge")
POLL_S = 0.05  # between checks of a transfer


class RowDelivery:
    """The rows of one worker on their way to the master. `is_shared`: the worker writes into the master's run folder."""

    def __init__(
        self,
        folder: RunFolder,
        number: int,
        send: Callable[[dict[str, Any]], None],
        *,
        is_shared: bool,
    ) -> None:
        self.is_shared = is_shared
        self.sender = PartSender(send)
        self.master_gone = False
        self._folder = folder
        self._number = number
        self._delivered = Event()

    @property
    def is_delivered(self) -> bool:
        """Whether the master has every row."""
        return self._delivered.is_set() or (self.is_shared and not self.master_gone)

    @property
    def place(self) -> str:
        """Where the rows are, for the log."""
        if self.is_shared or self.sender.unshipped:
            return f"in {self._folder.path}"
        return "sent to the master"

    def send_parts(self) -> None:
        """Wait until the master has every part that it accepts, or is gone."""
        sender = self.sender
        while sender.waiting and not self.master_gone:
            sender.pump()
            gevent.sleep(POLL_S)
        if sender.refused is not None:
            parts = ", ".join(sender.unshipped)
            log.warning("the master refused %s: %s", parts, sender.refused)

    def give_up(self) -> None:
        """Send no more: the master takes nothing in time."""
        self.master_gone = True

    def wait(self, timeout_s: float) -> None:
        """Wait until the master has every row, while it can be reached."""
        if not (self.master_gone or self.is_shared):
            self._delivered.wait(timeout=timeout_s)

    def delete_copy(self) -> None:
        """Delete this worker's copy of rows that the master has. Other workers may share the folder."""
        self._delivered.set()
        folder = self._folder.path
        for part in folder.glob(f"*/part-{self._number}-*"):
            part.unlink(missing_ok=True)
        self._folder.worker_json(self._number).unlink(missing_ok=True)
        tables = [path for path in folder.iterdir() if path.is_dir()]
        for directory in (*tables, folder, folder.parent):
            with contextlib.suppress(OSError):  # not empty: of another worker
                directory.rmdir()
