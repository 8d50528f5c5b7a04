"""Starts the simulated endpoint as the master's child process, which targets.py ends; fetches its server log over HTTP."""

from __future__ import annotations

import ssl
import urllib.request
from http.client import HTTPException
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
    """Write the endpoint's server log of a run into the run folder; return notes on problems, empty without any.

    `url`: of the endpoint, which waits some seconds for open calls. `authority`: a PEM file whose
    authorities TLS trusts; None: the system's. The log appears whole or not at all.
    """
    page = f"{url}/tailgauge/server-log?run={run_id}&settled"
    try:
        with http_client(authority).open(page, timeout=FETCH_S) as answer:
            body = answer.read()
            headers = answer.headers
    except (OSError, HTTPException) as error:  # the second: an answer that breaks off
        return [f"the endpoint's server log could not be fetched: {error}"]
    path = folder.part("target", 0, "all")
    try:
        path.with_suffix(".tmp").write_bytes(body)
        path.with_suffix(".tmp").rename(path)
    except OSError as error:
        return [f"the endpoint's server log could not be written: {advice(error, folder.path)}"]
    notes = []
    dropped = headers.get("x-tailgauge-server-log-dropped") or "0"
    if dropped != "0":
        notes.append(f"the endpoint's server log left out {dropped} calls")
    unfinished = headers.get("x-tailgauge-server-log-open") or "0"
    if unfinished != "0":
        notes.append(
            f"the endpoint's server log has incomplete rows of {unfinished} unfinished calls"
        )
    return notes


def http_client(
    authority: str | None, *handlers: urllib.request.BaseHandler
) -> urllib.request.OpenerDirector:
    """Return an opener without any proxy; `authority` is a PEM file, None for the system's. Raises OSError if the file cannot be used."""
    all_handlers = [urllib.request.ProxyHandler({}), *handlers]
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        all_handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*all_handlers)
