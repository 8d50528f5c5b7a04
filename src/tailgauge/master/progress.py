"""What the master tells: run.json's frame, the live figures, and why a target could not be used.

Rule: plain values in, plain values and sentences out.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from typing import Any

from tailgauge.clock import boot_id
from tailgauge.plan.versions import installed_versions
from tailgauge.quantile_sketch import Bins
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.sanitize import plain
from tailgauge.thresholds import VALID

MAX_SHOWN = 200  # characters of a target's own words in one of our lines


@dataclass(slots=True)
class Progress:
    """The run so far, over all workers."""

    passed_s: float
    duration_s: float
    sent: int = 0
    in_flight: int = 0
    dropped: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # ended calls by outcome
    chunks: int = 0
    ttft: Bins = field(default_factory=dict)  # ms since scheduled
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    verdict: str = VALID  # so far
    reason: str = ""

    @property
    def errors(self) -> int:
        """Requests that ended otherwise than well; 429s are counted apart."""
        return sum(
            n for name, n in self.ended.items() if name not in {"ok", "empty", "cancelled", "rate_limited"}
        )


def run_json(
    facts: dict[str, Any], state: str, notes: list[str], preflight: list[dict[str, Any]]
) -> dict[str, Any]:
    """The frame of run.json; see docs/data-format.md."""
    master = {
        "host": platform.node(),
        "pid": os.getpid(),
        "kernel": platform.release(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "boot_id": boot_id(),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "state": state,
        "versions": installed_versions(),
        "master": master,
        "notes": list(notes),
        "preflight": list(preflight),
        "verdict": None,
    }


_ADVICE = {
    "tcp": "Is it running, and is the port right?",
    "dns": "Is the host name right?",
    "timeout": "Nothing answered in time: is it running, is a firewall between?",
    "tls_certificate": "If it is your own authority, name its PEM file in target.ca_file",
    "ca_file": "target.ca_file must name a PEM file with your authority's certificate",
    "tls": "Does the target speak TLS on this port? A plain one wants http://",
    "not_http": "Something else than HTTP/1.1 listens there",
    "head_too_large": "No model's endpoint answers like that: is this the right address?",
    "compressed": "It packs its answers although it was asked not to: is a proxy between?",
    "closed": "Does the target speak HTTP on this port, or does it want https://?",
    "not_an_event_stream": "It answered, but not with an event stream: is this the right path and protocol?",
    "not_json": "It answered, but not as the protocol does: is this the right URL and protocol?",
}


def preflight_failure(url: str, protocol: str, seen: dict[str, Any]) -> str:
    """One or two sentences: which target, what it did, what to do."""
    status = seen["status"]
    kind = plain(seen["error_type"] or "") or (None if status else seen["ended"])
    text = plain(re.sub(r"<[^>]*>", " ", seen["message"] or "")).rstrip(".")
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    did = f"answered HTTP {status}" if status else f"could not be used ({kind})"
    if status == 200:
        did = f"answered HTTP 200, but the stream ended as {seen['ended']}"
    advice = _ADVICE.get(kind or "", "")
    if status in {401, 403}:
        advice = "The key was refused. For your own engine, name the variable that holds its key in target.api_key_env"
    elif status in {404, 405}:
        advice = f"Is the base URL right, and does it speak the {protocol} protocol?"
    return f"target {url} {did}{': ' + text if text else ''}. {advice}".strip()
