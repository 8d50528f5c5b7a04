"""Looks at a run that goes on until its objectives are known: a child process reads the rows recorded by then.

The child loads pandas once, at low priority, and estimates as the report does. A look waits until each request that was
due before it has its row here; rows of workers on other machines are, once their parts were received.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tailgauge import interpreter
from tailgauge.plan.looks import InterimLook
from tailgauge.plugins import plugin
from tailgauge.redaction import environment
from tailgauge.rows.run_folder import RunFolder

KNOWN = "known"  # state of a run that ended because every objective with a precision was known
WRITTEN_S = 5.0  # from the end of a request to its row here, at most, while few workers are busy
EVERY_S = 2.0  # between tries of a look whose rows are not all here


class InterimLooks:
    """The looks of one run, one after the other; `is_known`: whether the last one ends it."""

    def __init__(self, looks: tuple[InterimLook, ...], folder: RunFolder) -> None:
        self._looks = looks
        self._folder = folder
        self.is_known = False
        self._done = 0
        self._tried_s = 0.0
        self._is_whole = False
        self._child: subprocess.Popen[str] | None = None

    @property
    def next(self) -> InterimLook | None:
        """The next look; none is left at the end of the run, which is the last one of the plan."""
        if self.is_known or self._done >= len(self._looks) - 1:
            return None
        return self._looks[self._done]

    @property
    def facts(self) -> dict[str, Any]:
        """`precision` of run.json, for a report of now: after a run that ended by itself all that is left of 5% is its own."""
        if not self._looks:
            return {}
        if self.is_known:
            return {"looks": self._done, **asdict(self._looks[self._done - 1])}
        look = self._looks[-1] if self._is_whole else self._looks[self._done]
        return {"looks": self._done, "confidence": look.confidence}

    def stop(self, *, is_whole: bool) -> None:
        """End the child: no look follows. `is_whole`: the schedule has ended."""
        self._is_whole = is_whole
        if self._child is not None:
            self._child.kill()
            self._child.communicate()

    def is_due(self, passed_s: float) -> bool:
        """Return whether to look, so many seconds into the run."""
        look = self.next
        if look is None:
            return False
        due_s = max(look.until_s + WRITTEN_S, self._tried_s + EVERY_S)
        if passed_s < due_s:
            return False
        self._tried_s = passed_s
        return True

    def look(self, start_at_ns: int | None) -> list[str]:
        """Take the next look. Return a sentence for each objective; none where rows are still missing."""
        look = self._looks[self._done]
        message = json.dumps({"start_at_ns": start_at_ns, "precision": asdict(look)})
        try:
            answer = json.loads(self._answer(message))
        except (OSError, ValueError):  # the child has ended
            self._done = len(self._looks) - 1
            return ["the run cannot be checked for an early stop: it goes on to its planned end"]
        texts: list[str] = answer["texts"]
        if texts:
            self._done += 1
            self.is_known = answer["known"]
        return texts

    def _answer(self, message: str) -> str:
        if self._child is None:
            self._child = reader(self._folder, "--looks")
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(message, file=self._child.stdin, flush=True)
        return self._child.stdout.readline()


def reader(
    folder: RunFolder, *options: str, terminal: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a process that reads a run with pandas, which is never loaded into a process of a run.

    `terminal`: see ReportProcess.
    """
    command = interpreter.tailgauge("report", str(folder.path), *options, *plugin.options())
    env = {**environment(with_keys=False), **(terminal or {"NO_COLOR": "1"})}
    pipe = subprocess.PIPE
    # In a session of its own, so that Ctrl-C reaches the master only.
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
    )
