"""A certificate for an endpoint on loopback, which is its own authority, made by the `openssl` command.

Rule: the key lives as long as the folder it is put in. Without the command there is no TLS to calibrate, and why is said.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Authority:
    """PEM files: the certificate, to serve with and to trust, and its key."""

    certificate: Path
    key: Path


def authority(folder: Path) -> Authority | str:
    """Make one for 127.0.0.1; or why there is none."""
    command = shutil.which("openssl")
    if command is None:
        return "the command openssl, which makes the endpoint's certificate, was not found"
    made = Authority(folder / "endpoint.pem", folder / "endpoint-key.pem")
    done = subprocess.run(
        [command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(made.key), "-out", str(made.certificate), "-days", _DAYS, "-subj", "/CN=tailgauge calibrate",
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return f"openssl made no certificate: {said[:200]}"
    return made
