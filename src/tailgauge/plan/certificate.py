"""The certificate: this machine's measurement error when it was last measured, and whether a run may cite it.

A small JSON file, written by `tailgauge calibrate` and read by the master of a run, which copies what it cites into
run.json. It names the machine and the versions it holds for; one of another machine, a stale or a damaged one is refused
with the reason. The digest shows damage and careless edits, not forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tailgauge import __version__
from tailgauge.errors import UsageError
from tailgauge.protocols.table import SDKS
from tailgauge.rows.disk import writable
from tailgauge.rows.run_folder import write_json
from tailgauge.rows.text_file import MISSING, json_tree, no_number, read_text

VERSION = 1
_TIME = "%Y-%m-%dT%H:%M:%SZ"
MAX_AGE = timedelta(days=30)
PLAIN, TLS = "plain", "tls"
NEW = "run `tailgauge calibrate` for a new one"
PACKAGES = ("locust", "gevent", "greenlet", *SDKS, "httpx2", "pyarrow", "numpy")


class RefusedError(Exception):
    """A certificate that no run may cite, with the reason."""


def default_path() -> Path:
    """Default path: it belongs to the machine, not to a working folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return root / "tailgauge" / "certificate.json"


def machine() -> dict[str, Any]:
    """What identifies this machine."""
    return {
        "host": platform.node(), "system": platform.system(), "machine": platform.machine(),
        "cpu_model": _cpu_model(), "cpu_count": os.cpu_count(),
    }  # fmt: skip


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
        "certificate_version": VERSION, "id": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
        "made_at": now.strftime(_TIME), "machine": machine(), "versions": installed_versions(), **facts,
    }  # fmt: skip
    return {**body, "digest": _digest(body)}


def write(path: Path, certificate: Mapping[str, Any]) -> None:
    """Store it. Raises UsageError where that is not possible."""
    try:
        write_json(path, certificate)
    except OSError as error:
        raise UsageError(f"{path}: the certificate cannot be written: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Raises UsageError where no file could be written, before minutes are spent on what goes into it."""
    writable(path.parent, f"{path}: the certificate")
    if path.is_dir():
        raise UsageError(f"{path}: a folder, not a file")


class Figures(BaseModel):
    """What a run cites of a transport; an interval, a rate or a cost that was not measured is None."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    holds_to_per_s: float | None
    failed_at_per_s: float | None
    ttft_bias_ms: float | None
    ttft_spread_ms: float | None
    gap_bias_ms: float | None
    gap_spread_ms: float | None
    cpu_us_per_chunk: float | None


_Time = Annotated[datetime, BeforeValidator(lambda text: datetime.strptime(text, _TIME).replace(tzinfo=UTC))]


class _Certificate(BaseModel):
    id: str
    made_at: _Time
    clock: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    transports: dict[str, Figures | None]


def read(path: Path) -> dict[str, Any]:
    """The certificate in a file. Raises RefusedError if it is missing or incomplete."""
    try:
        tree = json_tree(read_text(path), no_number)
    except (UsageError, ValueError) as error:
        why = str(error).removeprefix(f"{path}: ").partition("\n")[0]
        raise RefusedError("no certificate found" if why == MISSING else f"cannot be read: {why}") from None
    if not isinstance(tree, dict) or "digest" not in tree:
        raise RefusedError("not a calibration certificate")
    version = tree.get("certificate_version")
    if version != VERSION:
        raise RefusedError(f"version {version!r}, but this tailgauge reads version {VERSION}")
    if tree["digest"] != _digest({key: value for key, value in tree.items() if key != "digest"}):
        raise RefusedError("damaged, or changed after it was made")
    return tree


def cite(path: Path, clock: str, *, tls: bool, now: datetime | None = None) -> dict[str, Any]:
    """The entry of run.json for the certificate in a file; raises RefusedError where it does not hold for this run.

    `clock`: kernel or user; `tls`: whether the target is called under TLS.
    """
    tree = read(path)
    try:
        found = _Certificate.model_validate(tree)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise RefusedError(f"missing or invalid field {where}") from None
    _current(found, now or datetime.now(UTC))
    if found.clock != clock:
        raise RefusedError(f"made with the {found.clock} clock, but this run uses the {clock} clock")
    transport = TLS if tls else PLAIN
    figures = found.transports.get(transport)
    if figures is None:
        raise RefusedError(f"does not cover {'TLS' if tls else 'connections without TLS'}")
    if figures.holds_to_per_s is None:
        raise RefusedError("no rate passed its criteria on this machine")
    about = {"id": found.id, "why": None, "made_at": tree["made_at"], "host": found.machine["host"]}
    return {**about, "transport": transport, **figures.model_dump()}


def _current(found: _Certificate, now: datetime) -> None:
    """Refuse a certificate of another machine, of long ago, or of other versions."""
    for name, here in machine().items():
        if found.machine.get(name) != here:
            what = name.replace("_", " ")
            raise RefusedError(f"made on another machine: {what} {found.machine.get(name)!r}, here {here!r}")
    age = now - found.made_at
    if age > MAX_AGE:
        raise RefusedError(f"expired: made on {found.made_at:%Y-%m-%d}, more than {MAX_AGE.days} days ago")
    if -age > timedelta(days=1):
        raise RefusedError(f"dated {found.made_at:%Y-%m-%d}, in the future")
    for name, version in installed_versions().items():
        if found.versions.get(name) != version:
            raise RefusedError(f"outdated: made with {name} {found.versions.get(name)}, here {version}")


def cited(path: Path | None, clock: str, *, tls: bool) -> dict[str, Any]:
    """As `cite`, but a refused certificate that the user did not name is reported in run.json, not raised."""
    try:
        return cite(path or default_path(), clock, tls=tls)
    except RefusedError as why:
        if path is not None:
            raise UsageError(f"--certificate {path}: {why}. Leave it out, or {NEW}") from why
        return {"id": None, "why": str(why)}


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _cpu_model() -> str:
    """The processor's name; its architecture where the system has no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
