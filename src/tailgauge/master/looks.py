"""Looks at a run that goes on until its objectives are known: a child process reads the rows recorded by then.

The child loads pandas once, at low priority, and estimates as the report does. A look waits until each request that was
due before it has its row here; rows of workers on other machines are, once their parts were received.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from tailgauge.plan.precision import looks
from tailgauge.plugins import plugin
from tailgauge.redaction import environment
from tailgauge.rows.run_folder import RunFolder
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Schedule

KNOWN = "known"  # state of a run that ended because every objective with a precision was known
EVERY_S = 2.0  # between tries of a look whose rows are not all here


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look saw: whether all is known, and a sentence for each objective."""

    known: bool
    texts: tuple[str, ...]


class Looks:
    """The looks of one run, one after the other."""

    def __init__(self, scenario: Scenario, schedule: Schedule, folder: RunFolder) -> None:
        self.all = looks(scenario, schedule)
        self._folder, self._known, self._tried_s = folder, False, 0.0
        self._done = self._level = 0  # looks, and which one's level a report of now has
        self._child: subprocess.Popen[str] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """`precision` of run.json: the level of the look that a report is; until when, if the run ended with one."""
        if not self.all:
            return {}
        look = self.all[self._level]
        until = {"until_s": look.until_s, "requests": look.requests} if self._known else {}
        return {"confidence": look.confidence, "looks": self._done, **until}

    def stop(self, *, is_whole: bool = False) -> None:
        """No more looks. After a run that ended by itself what the looks left of the 5% is the report's."""
        self._level = -1 if is_whole and not self._known else self._level
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def is_due(self, passed_s: float) -> bool:
        """Whether to look, so many seconds into the run."""
        is_due = self._done < len(self.all) - 1 and passed_s >= self.all[self._done].until_s
        if not is_due or passed_s < self._tried_s + EVERY_S:
            return False
        self._tried_s = passed_s
        return True

    def look(self, start_at_ns: int | None) -> Seen | None:
        """The look that is due; None where rows are still missing. It takes as long as a report without its figures."""
        look = self.all[self._done]
        message = {"start_at_ns": start_at_ns, "precision": asdict(look)}
        try:
            found = json.loads(self._asked(json.dumps(message)))
        except (OSError, ValueError):  # the child has ended: the next look has another
            self.stop()
            found = {"known": False, "texts": [f"the look at {look.until_s:.0f} s could not be made"]}
        if "missing" in found:
            return None
        self._done, self._known = self._done + 1, found["known"]
        self._level = self._done - self._known
        return Seen(found["known"], tuple(found["texts"]))

    def _asked(self, message: str) -> str:
        if self._child is None:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tailgauge",
                    "report",
                    str(self._folder.path),
                    *plugin.options(),
                    "--looks",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment(with_keys=False),
                start_new_session=True,  # Ctrl-C reaches the master only
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{message}\n")
        self._child.stdin.flush()
        return self._child.stdout.readline()
