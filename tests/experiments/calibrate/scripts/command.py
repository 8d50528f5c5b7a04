"""Script: one short step under TLS, end to end, and the certificate of it; and what a plan is made of."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.calibrate import command
from tailgauge.experiments.calibrate.plan import LAWS, Steps
from tailgauge.plan import certificate
from tailgauge.plan.certificate import PLAIN, TLS, Needs, RefusedError

PATH = Path(sys.argv[1]) / "certificate.json"


def cited(use: Needs) -> Any:
    try:
        return certificate.cite(PATH, use)
    except RefusedError as why:
        return str(why)


def measured() -> dict[str, Any]:
    said: list[str] = []
    plan = dataclasses.replace(
        command.plan(None, "kernel", quick=True), steps=Steps((1200.0,), 3.0), transports=(TLS,)
    )
    made = command.calibrate(plan, PATH, said.append)
    return {
        "made": made, "said": said, "lines": command.lines(made, PATH), "exit_code": command.exit_code(made),
        "stored": json.loads(PATH.read_text()) == made,
        "tls": cited(Needs("kernel", tls=True)), "plain": cited(Needs("kernel", tls=False)),
    }  # fmt: skip


def no_time() -> dict[str, Any]:
    plan = dataclasses.replace(command.plan(None, "kernel", quick=False), budget_s=20.0, laws=tuple(LAWS)[:1])
    made = command.calibrate(plan, PATH.with_name("none.json"), lambda _: None)
    return {"left_out": made["left_out"], "transports": made["transports"], "exit_code": command.exit_code(made),
            "lines": command.lines(made, PATH)}  # fmt: skip


def planned(rate: float) -> Any:
    try:
        plan = command.plan(rate, "user", quick=True)
    except UsageError as error:
        return str(error)
    return [plan.mode, plan.clock, plan.steps.rates, plan.steps.step_s, plan.transports]


facts = {
    "measured": measured(), "no_time": no_time(), "planned": {rate: planned(rate) for rate in (100.0, 400.0, 8000.0, 1e7)},
    "transports": [PLAIN, TLS],
}  # fmt: skip
print(json.dumps(facts))
