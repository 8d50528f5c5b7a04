"""The master's side of the preflight, which the first worker makes: what it shows of the targets, and which failures end a run.

The calls themselves are planned in plan/preflight.py.
"""

from __future__ import annotations

from typing import Any

from tailgauge.call import SECOND
from tailgauge.errors import InternalError, MachineError, ScenarioError, TargetError, UsageError
from tailgauge.master import progress
from tailgauge.master.run_state import RunState
from tailgauge.master.targets import RunTargets
from tailgauge.plan.preflight import USABLE, Learnt, is_loading, prefixes, preflight_calls
from tailgauge.protocols.protocol import Adaptation
from tailgauge.rows.schema import COMPLETE, INTERNAL_ERROR, PLUGIN_ERROR, SERVED
from tailgauge.sanitize import plain
from tailgauge.transport.connection import OF_THIS_MACHINE


class Preflight:
    """The calls before the run, and what they show about the targets."""

    def __init__(self, run: RunState, targets: RunTargets) -> None:
        self._run = run
        self._targets = targets
        self.result: dict[str, Any] | None = None  # the first worker's message
        self.calls: list[dict[str, Any]] = []
        self.learnt = Learnt()
        # The engine of each target that has to answer exactly; None for an unknown one.
        self.engines: dict[str, str | None] = {}

    def receive(self, result: dict[str, Any]) -> None:
        """Take the first worker's message, with the facts of each call and what they measured."""
        self.result = result
        self.calls = result["calls"]
        self.learnt = Learnt(*result["learnt"])
        self.engines = result["engines"]

    @property
    def called_urls(self) -> list[str]:
        """The full URLs of the calls."""
        return list(dict.fromkeys(str(call["url"]) for call in self.calls if call["words"]))

    def make(self) -> None:
        """Let the first worker call the targets. Raise the error that makes the run impossible."""
        run = self._run
        run.send("try", next(iter(run.workers)))
        run.wait_until(
            lambda: self.result is not None, self._patience_s(), "the preflight did not end"
        )
        self._note_adaptations()
        for call in self.calls:
            self._check_call(call)
        for name, engine in self.engines.items():
            if engine is None:
                url = self._targets.urls[self._targets.index(name)]
                raise ScenarioError(progress.unknown_engine(_table(name), url))

    def _patience_s(self) -> float:
        """Return how long the worker may take: every call up to its deadline, and targets that load."""
        scenario = self._run.scenario
        limits = scenario.limits
        calls = len(preflight_calls(scenario)) + prefixes(scenario)
        call_s = limits.attempt_deadline_s + limits.connect_timeout_s + 5
        if not limits.ready_s:
            return call_s * calls
        return call_s * calls + limits.ready_s + call_s * len(self._targets.urls)

    def _note_adaptations(self) -> None:
        """Note what is sent otherwise than by default because a target refused it."""
        assert self.result is not None
        for name, values in self.result["adaptations"].items():
            self._run.notes.extend(progress.adaptation_notes(_table(name), Adaptation(*values)))

    def _check_call(self, call: dict[str, Any]) -> None:
        """Raise the error of a call without which there is no run; note other surprises."""
        _refuse_bug(call)
        if call["error_type"] in OF_THIS_MACHINE:
            raise MachineError(f"the preflight could not be made: {plain(call['message'] or '')}")
        is_usable = call["ended"] in USABLE and not is_loading(call["status"], call["message"])
        if call["needed"] and not is_usable:
            raise TargetError(self._failure_text(call))
        whole_note = progress.not_whole(call)
        if whole_note:
            self._run.notes.append(whole_note)
        # A call that only writes a prefix has no answer.
        expected = COMPLETE if call["words"] else SERVED
        if call["ended"] not in expected:
            text = call["message"] or "no text"
            self._run.notes.append(
                f"a preflight call, sent before the run, ended as {call['ended']}: {text}"
            )

    def _failure_text(self, call: dict[str, Any]) -> str:
        index = self._targets.index(call["target"])
        target = self._targets.settings[index]
        url = call["url"] or self._targets.urls[index]
        ready_s = self._run.scenario.limits.ready_s
        return progress.preflight_failure(url, target.protocol, call, target, ready_s=ready_s)


def _table(name: str) -> str:
    """Return the scenario's table of a target that a worker names."""
    return "second_target" if name == SECOND else "target"


def _refuse_bug(call: dict[str, Any]) -> None:
    """End the run where our own code, or a plugin's, could not prepare a call: the target has not seen it."""
    text = call["message"]
    if call["error_type"] == INTERNAL_ERROR:
        raise InternalError(f"internal error: a request could not be prepared: {text}")
    if call["error_type"] == PLUGIN_ERROR and call["status"] is None:
        raise UsageError(f"plugin {text}")
