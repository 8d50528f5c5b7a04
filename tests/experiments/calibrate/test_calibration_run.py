"""The endpoint's certificate: made by openssl, or why there is none."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from tailgauge.experiments.calibrate.measure import Authority, authority


def test_it_is_trusted_for_loopback_and_its_key_fits(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command here")
    made = authority(tmp_path)

    assert isinstance(made, Authority)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)
    (trusted,) = ssl.create_default_context(cafile=made.certificate).get_ca_certs()
    assert trusted["subjectAltName"] == (("IP Address", "127.0.0.1"),)
    assert made.key.stat().st_mode & 0o077 == 0


def test_without_the_command_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "openssl" in str(authority(tmp_path))
    assert "was not found" in str(authority(tmp_path))


def test_the_commands_message_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "openssl"
    fake.write_text("#!/bin/sh\necho first >&2\necho cannot do that >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    assert authority(tmp_path) == "openssl did not make a certificate: cannot do that"
