"""Certificates: what a run may cite, and every reason for which it may not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tailgauge.errors import UsageError
from tailgauge.plan import certificate
from tailgauge.plan.certificate import RefusedError
from tailgauge.plan.resolve import resolve

ENTRY = {
    "models": ["lognormal"], "holds_to_per_s": 4000.5, "failed_at_per_s": 8000.0, "limited_by": "client", "disturbed": 0,
    "ttft_bias_ms": 0.004, "ttft_spread_ms": 0.011, "gap_bias_ms": 0.0, "gap_spread_ms": 0.067, "cpu_us_per_chunk": 81.7,
}  # fmt: skip
PLAIN: dict[str, Any] = {"clock": "kernel", "tls": False}


def made(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "clock": "kernel",
        "transports": {"plain": dict(ENTRY), "tls": None},
        "levels": [],
    }
    return certificate.make({**facts, **changes})


def stored(tmp_path: Path, tree: Any = None) -> Path:
    path = tmp_path / "certificate.json"
    certificate.write(path, made() if tree is None else tree)
    return path


def sealed(tree: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same, changed before it was sealed."""
    body = {key: value for key, value in {**tree, **changes}.items() if key != "digest"}
    return {**body, "digest": certificate._digest(body)}


def refusal(path: Path, use: dict[str, Any] = PLAIN, now: datetime | None = None) -> str:
    with pytest.raises(RefusedError) as raised:
        certificate.cite(path, **use, now=now)
    return str(raised.value)


def test_what_is_cited_is_what_was_measured_of_the_transport(tmp_path: Path) -> None:
    tree = made()

    cited = certificate.cite(stored(tmp_path, tree), **PLAIN)

    assert (cited["id"], cited["why"], cited["transport"]) == (tree["id"], None, "plain")
    assert {name: cited[name] for name in certificate.Figures.model_fields} == {
        name: ENTRY[name] for name in certificate.Figures.model_fields
    }


def test_a_certificate_names_the_machine_and_the_versions_and_no_path(tmp_path: Path) -> None:
    path = stored(tmp_path)
    tree = json.loads(path.read_text())

    assert tree["machine"] == certificate.machine()
    assert tree["machine"]["cpu_count"] > 0
    assert tree["versions"] == certificate.installed_versions()
    assert str(Path.home()) not in path.read_text()


@pytest.mark.parametrize("name", ["host", "system", "machine", "cpu_model", "cpu_count"])
def test_one_of_another_machine_is_refused(tmp_path: Path, name: str) -> None:
    tree = made()
    there = {**tree["machine"], name: 3 if name == "cpu_count" else "elsewhere"}

    error_text = refusal(stored(tmp_path, sealed(tree, machine=there)))

    assert error_text.startswith(f"made on another machine: {name.replace('_', ' ')} ")


@pytest.mark.parametrize("name", ["tailgauge", "python", "kernel", "anthropic", "openai", "gevent"])
def test_one_of_other_versions_is_stale(tmp_path: Path, name: str) -> None:
    tree = made()

    error_text = refusal(stored(tmp_path, sealed(tree, versions={**tree["versions"], name: "0.0.1"})))

    assert error_text.startswith(f"outdated: made with {name} 0.0.1, here ")


def test_it_is_stale_after_thirty_days_and_not_before(tmp_path: Path) -> None:
    path, now = stored(tmp_path), datetime.now(UTC)

    assert certificate.cite(path, **PLAIN, now=now + timedelta(days=29, hours=23))["id"]
    assert "more than 30 days ago" in refusal(path, now=now + timedelta(days=30, hours=1))
    assert "in the future" in refusal(path, now=now - timedelta(days=2))


def test_one_of_the_other_clock_is_refused(tmp_path: Path) -> None:
    assert (
        refusal(stored(tmp_path), {"clock": "user", "tls": False})
        == "made with the kernel clock, but this run uses the user clock"
    )


def test_one_without_tls_covers_no_target_that_speaks_it(tmp_path: Path) -> None:
    assert refusal(stored(tmp_path), {"clock": "kernel", "tls": True}) == "does not cover TLS"


def test_one_in_which_nothing_passed_is_refused(tmp_path: Path) -> None:
    failed = {"plain": {**ENTRY, "holds_to_per_s": None}, "tls": None}

    assert "no rate passed" in refusal(stored(tmp_path, made(transports=failed)))


def test_nothing_there_is_reported(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == "no certificate found"


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("", "cannot be read: "),
        ('{"certificate_version": 1', "cannot be read: "),
        ("[1]", "not a calibration certificate"),
        ("{}", "not a calibration certificate"),
        ('{"certificate_version": 2, "digest": ""}', "version 2, but this tailgauge reads version 1"),
        ('{"certificate_version": 1, "digest": ""}', "damaged"),
        ('{"certificate_version": 1, "digest": "", "x": NaN}', "cannot be read: NaN"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, error_text: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(text)

    assert refusal(path).startswith(error_text)


def test_one_figure_changed_by_hand_is_damage(tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_text(path.read_text().replace("4000.5", "9000.5"))

    assert refusal(path) == "damaged, or changed after it was made"


@pytest.mark.parametrize("lacking", ["made_at", "machine", "versions", "clock", "transports", "id"])
def test_one_that_lacks_a_part_is_refused_and_not_an_error(tmp_path: Path, lacking: str) -> None:
    tree = made()
    del tree[lacking]

    assert refusal(stored(tmp_path, sealed(tree))).startswith("missing or invalid field ")


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    odd = {"plain": {**ENTRY, "ttft_spread_ms": "small"}, "tls": None}

    assert "ttft_spread_ms" in refusal(stored(tmp_path, made(transports=odd)))


def test_one_that_was_named_and_is_refused_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--certificate .*none.json: no certificate found\. Leave it out, or run"
    ):
        certificate.cited(tmp_path / "none.json", **PLAIN)


def test_without_one_a_run_says_why_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    assert certificate.cited(None, **PLAIN) == {"id": None, "why": "no certificate found"}


def test_a_run_finds_it_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tree = made()
    certificate.write(certificate.default_path(), tree)

    settings = resolve("streaming", [], tmp_path / "out")
    under_tls = resolve("streaming", [("target.url", "https://127.0.0.1:1")], tmp_path / "out")
    in_dry_run = resolve("streaming", [], tmp_path / "out", sends=False)

    assert certificate.default_path() == tmp_path / "tailgauge" / "certificate.json"
    assert settings.certificate is not None
    assert under_tls.certificate is not None
    assert settings.certificate["id"] == tree["id"]
    assert (under_tls.certificate["id"], under_tls.certificate["why"]) == (None, "does not cover TLS")
    assert in_dry_run.certificate is None


def test_a_relative_state_folder_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")

    assert certificate.default_path() == Path.home() / ".local" / "state" / "tailgauge" / "certificate.json"


def test_a_place_that_cannot_be_written_is_reported_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="the certificate cannot be written"):
        certificate.check_writable(tmp_path / "file" / "certificate.json")
    with pytest.raises(UsageError, match="a folder, not a file"):
        certificate.check_writable(tmp_path)
    certificate.check_writable(tmp_path / "new" / "certificate.json")
    assert list((tmp_path / "new").iterdir()) == []
