"""The certificate: this machine's measurement error when it was last measured, and whether a run may cite it.

A small JSON file, written by `tailgauge calibrate` and read by the master of a run, which copies what it cites into
run.json. It names the machine and the versions it holds for; one of another machine, a stale or a damaged one is refused
with the reason. The digest shows damage and careless edits, not forgery.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from tailgauge import __version__
from tailgauge.errors import UsageError
from tailgauge.protocols.table import SDKS
from tailgauge.rows.run_folder import write_json

VERSION = 1
MAX_AGE = timedelta(days=30)
PLAIN, TLS = "plain", "tls"
NEW = "run `tailgauge calibrate` for a new one"
# What a run cites of a transport: figures and their units, as in the certificate.
CITED = (
    "holds_to_per_s", "failed_at_per_s", "ttft_bias_ms", "ttft_spread_ms", "gap_bias_ms", "gap_spread_ms",
    "cpu_us_per_chunk",
)  # fmt: skip
PACKAGES = ("locust", "gevent", "greenlet", *SDKS, "httpx2", "pyarrow", "numpy")
_MACHINE = ("host", "system", "machine", "cpu_model", "cpu_count")


class RefusedError(Exception):
    """A certificate that no run may cite; says why."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of a certificate."""

    clock: str  # kernel or user
    tls: bool


def default_path() -> Path:
    """Default path: it belongs to the machine, not to a working folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return root / "tailgauge" / "certificate.json"


def machine() -> dict[str, Any]:
    """What identifies this machine."""
    return {
        "host": platform.node(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
    }


def installed_versions() -> dict[str, str]:
    """Versions of what produces the numbers."""
    found = {"tailgauge": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in PACKAGES:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def make(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate of this machine, today, with what was measured."""
    now = datetime.now(UTC)
    body = {
        "certificate_version": VERSION,
        "id": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
        "made_at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "machine": machine(),
        "versions": installed_versions(),
        **facts,
    }
    return {**body, "digest": _digest(body)}


def write(path: Path, certificate: Mapping[str, Any]) -> None:
    """Store it. Raises UsageError where that is not possible."""
    try:
        write_json(path, certificate)
    except OSError as error:
        raise UsageError(f"{path}: the certificate cannot be written: {error.strerror or error}") from error


def writable(path: Path) -> None:
    """Raises UsageError where no file could be written, before minutes are spent on what goes into it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(f"{path}: the certificate cannot be written: {error.strerror or error}") from error
    if path.is_dir():
        raise UsageError(f"{path}: a folder, not a file")


def read(path: Path) -> dict[str, Any]:
    """The certificate in a file. Raises RefusedError where there is none, or it is not whole."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise RefusedError("there is none") from None
    except (OSError, ValueError) as error:
        raise RefusedError(f"it cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(tree, dict) or "digest" not in tree:
        raise RefusedError("it is no certificate")
    version = tree.get("certificate_version")
    if version != VERSION:
        raise RefusedError(f"it has version {version!r}, and this tailgauge reads {VERSION}")
    if tree["digest"] != _digest({key: value for key, value in tree.items() if key != "digest"}):
        raise RefusedError("it is damaged, or was changed after it was made")
    return tree


def cite(path: Path, needs: Needs, now: datetime | None = None) -> dict[str, Any]:
    """What run.json says of the certificate in a file; raises RefusedError where it does not hold for this run."""
    held = read(path)
    try:
        made = datetime.strptime(held["made_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        _same_machine(held["machine"])
        _fresh(held["versions"], made, now or datetime.now(UTC))
        return _cited(held, needs)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RefusedError(f"it lacks what a certificate says ({error})") from error


def cited(path: Path | None, needs: Needs) -> dict[str, Any]:
    """The same for run.json: a certificate that the user did not name and that is refused is reported, not raised."""
    try:
        return cite(path or default_path(), needs)
    except RefusedError as why:
        if path is not None:
            raise UsageError(f"--certificate {path}: {why}. Leave it out, or {NEW}") from why
        return {"id": None, "why": str(why)}


def _same_machine(made_on: Mapping[str, Any]) -> None:
    here = machine()
    for name in _MACHINE:
        if made_on[name] != here[name]:
            what = name.replace("_", " ")
            raise RefusedError(f"it is of another machine: {what} {made_on[name]!r}, here {here[name]!r}")


def _fresh(versions: Mapping[str, Any], made: datetime, now: datetime) -> None:
    if now - made > MAX_AGE:
        raise RefusedError(f"it is stale: made on {made:%Y-%m-%d}, more than {MAX_AGE.days} days ago")
    if made - now > timedelta(days=1):
        raise RefusedError(f"it is dated {made:%Y-%m-%d}, in the future")
    for name, version in installed_versions().items():
        if versions[name] != version:
            raise RefusedError(f"it is stale: made with {name} {versions[name]}, here {version}")


def _cited(held: Mapping[str, Any], needs: Needs) -> dict[str, Any]:
    if held["clock"] != needs.clock:
        raise RefusedError(f"it is of the {held['clock']} clock, and this run has the {needs.clock} clock")
    transport = TLS if needs.tls else PLAIN
    found = held["transports"].get(transport)
    if found is None:
        raise RefusedError(f"it does not cover {'TLS' if needs.tls else 'connections without TLS'}")
    if found["holds_to_per_s"] is None:
        raise RefusedError("no rate passed its criteria on this machine")
    figures = {name: found[name] for name in CITED}
    for name, value in figures.items():
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise ValueError(name)
    return {
        "id": held["id"],
        "why": None,
        "made_at": held["made_at"],
        "host": held["machine"]["host"],
        "transport": transport,
        **figures,
    }


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _cpu_model() -> str:
    """The processor's name; its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
