"""Calls that submit a job, or are about one: its state, its result, its end.

Each returns the body of the answer; the status is in the row of the server log. The jobs themselves, and how each ends, are
in behaviours/jobs.py.
"""

from __future__ import annotations

import json
from functools import partial

from tailgauge.simulator.behaviours import jobs
from tailgauge.simulator.core.exchange import Exchange, whole
from tailgauge.simulator.protocols.request import Refused

PATH = "/v1/jobs"


def submit_job(exchange: Exchange, now_ns: int) -> bytes:
    """Take an admitted call as a job."""
    count = exchange.request.max_tokens
    exchange.look_up(0, now_ns)
    exchange.end(count, now_ns)
    job_tokens = (exchange.prompt_tokens.input_tokens, count)
    job = exchange.endpoint.jobs.submit(job_tokens, partial(whole, exchange), now_ns)
    exchange.row.planned_ttft_ns = job.ends_ns - now_ns
    exchange.headers["location"] = f"{PATH}/{job.id}"
    return _logged(exchange, 202, _described(exchange, job, now_ns), now_ns)


def answer_about_job(exchange: Exchange, method: str, path: str, now_ns: int) -> bytes:
    """Return the body of an answer about a job: its state, its result, or its state after its cancellation.

    `path` is that of the job, with `/result` behind it for the result; `method` DELETE cancels. Raises `Refused` for a
    fault, an unknown or lost job (404), one that is gone (410), and a result that is not there (409). Fills in the row of
    the server log.
    """
    job_id, _, subpath = path.removeprefix(f"{PATH}/").partition("/")
    fault = exchange.endpoint.faults.fault_of(exchange.key)
    if fault.refuses:
        exchange.fault = fault
        exchange.row.fault = fault.kind
        exchange.refuse(fault.status, now_ns)
    job = exchange.endpoint.jobs.get(job_id)
    state = jobs.LOST if job is None else job.state(now_ns)
    if job is None or state in {jobs.LOST, jobs.GONE}:
        status = 410 if state == jobs.GONE else 404
        raise Refused(status, f"No such job: {job_id[:64]}")
    if method == "DELETE":
        job.cancel(now_ns)
    elif subpath:
        if state != jobs.SUCCEEDED:
            raise Refused(409, f"{job_id}: the job has no result")
        exchange.row.input_tokens, exchange.row.output_tokens = job.tokens
        return _logged(exchange, 200, job.result(), now_ns)
    return _logged(exchange, 200, _described(exchange, job, now_ns), now_ns)


def _described(exchange: Exchange, job: jobs.Job, now_ns: int) -> bytes:
    """Return the state of a job as JSON; the headers say when to ask again."""
    state = job.state(now_ns)
    retry_after_s = exchange.endpoint.jobs.table.retry_after_s
    if state == jobs.RUNNING and retry_after_s is not None:
        exchange.headers["retry-after"] = str(retry_after_s)
    url = None
    if state == jobs.SUCCEEDED:
        url = f"{PATH}/{job.id}/result"
    description = {"id": job.id, "object": "job", "status": state, "result_url": url}
    return json.dumps(description).encode()


def _logged(exchange: Exchange, status: int, body: bytes, now_ns: int) -> bytes:
    """Write the answer into the row, and return its body."""
    row = exchange.row
    row.status = status
    row.headers_at_ns = now_ns
    row.ended_at_ns = now_ns
    return body
