"""The simulated endpoint as the master's child process, the fetch of its server log, and the HTTP client for that."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path

from tailgauge.channel.child_process import Child
from tailgauge.errors import TailgaugeError
from tailgauge.rows.disk import advice
from tailgauge.rows.run_folder import RunFolder
from tailgauge.scenario.model import Scenario, spelled

START_S = 30.0
FETCH_S = 60.0


def start_endpoint(scenario: Scenario, log: Path) -> tuple[Child, str]:
    """Start `tailgauge endpoint` on a free port of loopback; returns the child and its URL."""
    table = spelled("simulated", scenario.simulated.model_dump(exclude_none=True))
    line = ["endpoint", "--port=0", "--lifeline", f"--seed={scenario.seed}", f"--set={table}"]
    child = Child(line, log, with_keys=False)
    try:
        printed = child.first_line(START_S)
    except TailgaugeError:
        child.stop(1)
        raise
    return child, printed.split()[-1]


def fetch_server_log(
    url: str, run_id: str, folder: RunFolder, authority: str | None = None
) -> list[str]:
    """Write the endpoint's server log into the run folder; returns notes on problems. `authority`: PEM to trust."""
    page = f"{url}/tailgauge/server-log?run={run_id}&settled"
    try:
        with http_client(authority).open(page, timeout=FETCH_S) as answer:
            body = answer.read()
            headers = answer.headers
    except OSError as error:
        return [f"the endpoint's server log could not be fetched: {error}"]
    path = folder.part("target", 0, "all")
    try:
        path.with_suffix(".tmp").write_bytes(body)
        path.with_suffix(".tmp").rename(path)
    except OSError as error:
        return [f"the endpoint's server log could not be written: {advice(error, folder.path)}"]
    named = (f"x-tailgauge-server-log-{word}" for word in ("dropped", "open"))
    dropped, unfinished = (headers.get(name) or "0" for name in named)
    notes = [] if dropped == "0" else [f"the endpoint's server log left out {dropped} calls"]
    if unfinished != "0":
        notes.append(
            f"the endpoint's server log has incomplete rows of {unfinished} unfinished calls"
        )
    return notes


def http_client(
    authority: str | None, *more: urllib.request.BaseHandler
) -> urllib.request.OpenerDirector:
    """An opener without any proxy; `authority` is a PEM file, None for the system's. Raises OSError if the file cannot be used."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), *more]
    if authority is not None:
        handlers.append(
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=authority))
        )
    return urllib.request.build_opener(*handlers)
