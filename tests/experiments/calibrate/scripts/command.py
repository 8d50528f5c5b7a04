"""Script: one short step under TLS, end to end, and the certificate of it; and what a plan is result of."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.calibrate import command
from tailgauge.experiments.calibrate.plan import LATENCY_MODELS, Steps, plan
from tailgauge.plan import certificate
from tailgauge.plan.certificate import PLAIN, TLS, RefusedError
from tailgauge_analysis.report.terminal import terminal

PATH = Path(sys.argv[1]) / "certificate.json"


def cited(*, tls: bool) -> Any:
    try:
        return certificate.cite(PATH, "kernel", tls=tls)
    except RefusedError as why:
        return str(why)


def shown(result: dict[str, Any]) -> str:
    return terminal(command.report(result, PATH), None, 80)


def measured() -> dict[str, Any]:
    messages: list[str] = []
    chosen = dataclasses.replace(
        plan(None, "kernel", quick=True), steps=Steps((1200.0,), 3.0), transports=(TLS,)
    )
    result = command.calibrate(chosen, PATH, messages.append)
    return {
        "result": result, "messages": messages, "text": shown(result), "exit_code": command.exit_code(result),
        "stored": json.loads(PATH.read_text()) == result,
        "tls": cited(tls=True), "plain": cited(tls=False),
    }  # fmt: skip


def no_time() -> dict[str, Any]:
    chosen = dataclasses.replace(
        plan(None, "kernel", quick=False), budget_s=20.0, latency_models=tuple(LATENCY_MODELS)[:1]
    )
    result = command.calibrate(chosen, PATH.with_name("none.json"), lambda _: None)
    return {"left_out": result["left_out"], "transports": result["transports"], "exit_code": command.exit_code(result),
            "text": shown(result)}  # fmt: skip


def planned(rate: float) -> Any:
    try:
        chosen = plan(rate, "user", quick=True)
    except UsageError as error:
        return str(error)
    return [chosen.mode, chosen.clock, chosen.steps.rates, chosen.steps.step_s, chosen.transports]


facts = {
    "measured": measured(), "no_time": no_time(), "planned": {rate: planned(rate) for rate in (100.0, 400.0, 8000.0, 1e7)},
    "transports": [PLAIN, TLS],
}  # fmt: skip
print(json.dumps(facts))
