"""A user's mistake is one clear line and a documented exit code, never a traceback."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from end_to_end.running import LOCUST, QUICK, Start

WRONG_USAGE = {
    "a misspelt key": (
        ["streaming", "--set", "arrival.rate=3"],
        "arrival.rate: unknown key; did you mean rate_per_s?",
    ),
    "rate 0": (["streaming", "--rate", "0"], "expected a number above 0, got '0'"),
    "rate -1": (["streaming", "--rate", "-1"], "expected a number above 0, got '-1'"),
    "rate fast": (["streaming", "--rate", "fast"], "expected a number above 0, got 'fast'"),
    "rate nan": (["streaming", "--rate", "nan"], "expected a number above 0, got 'nan'"),
    "rate text in --set": (
        ["streaming", "--set", "arrival.rate_per_s=fast"],
        "expected a number, got 'fast'",
    ),
    "an unknown protocol": (
        ["streaming", "--set", "target.protocol=grpc"],
        "expected 'anthropic', 'openai' or 'sse', got 'grpc'",
    ),
    "a missing file": (["scenarios/none.toml"], "scenarios/none.toml: no such file"),
    "a near miss": (["quickstar"], "did you mean quickstart?"),
    "no workers": (["streaming", "--workers", "0"], "--workers"),
    "duration 0": (["streaming", "--duration", "0"], "--duration"),
    "an odd --set": (["streaming", "--set", "arrival"], "expected table.key=value"),
    "an odd URL": (["streaming", "--target", "ftp://x"], "http(s)://HOST"),
    "a key in the URL": (
        ["streaming", "--target", "http://me:pw@127.0.0.1"],
        "keys come from the environment",
    ),
    "a rate in a closed loop": (
        ["streaming", "--set", "arrival.process=closed", "--rate", "5"],
        "--rate: a closed loop has no rate of its own: set closed.users and closed.think_s",
    ),
    "a cost without a price": (["streaming", "--max-cost", "5"], "no price is known for model 'tiny'"),
    "a limit below the preflight": (["streaming", "--max-requests", "2"], "guard.max_requests: expected at"),
    "an unknown option": (["streaming", "--wrokers", "2"], "--wrokers"),
    "a certificate that is none": (
        ["streaming", "--certificate", "none.json"],
        "--certificate none.json: there is none. Leave it out, or run `tailgauge calibrate` for a new one",
    ),
    "no scenario": ([], "SCENARIO"),
    "a folder as scenario": (["."], "no such file"),
}


# Each is the command itself, in one process for all of them: a start of Python each would take half a minute.
EACH_IN_TURN = """
import contextlib, io, json, sys
from tailgauge.cli import main

told = {}
for case, line in json.loads(sys.argv[1]).items():
    sys.argv = ["tailgauge", "run", *line]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    told[case] = code, said.getvalue()
    assert "locust" not in sys.modules, f"{case}: a run was begun"
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, command: Callable[..., subprocess.CompletedProcess[str]]
) -> dict[str, tuple[int, str]]:
    """Exit code and message of each case."""
    folder = tmp_path_factory.mktemp("usage")
    lines = {case: [*line, "--out", "out"] for case, (line, _) in WRONG_USAGE.items()}
    done = command(["python", "-c", EACH_IN_TURN, json.dumps(lines)], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir()), "nothing was started"
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage_exits_2_with_one_clear_line(told: dict[str, tuple[int, str]], case: str) -> None:
    code, said = told[case]

    assert code == 2
    assert WRONG_USAGE[case][1] in said
    assert "Traceback" not in said


def test_so_it_does_as_a_command(start: Start) -> None:
    arguments, expected = WRONG_USAGE["a misspelt key"]

    done = start("run", *arguments).finish(30)

    assert done.code == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (done.out / "runs").exists(), "nothing was started"


def test_a_broken_scenario_file_is_named_with_its_key(start: Start, tmp_path: Path) -> None:
    bad = tmp_path / "mine.toml"
    bad.write_text('[target]\nprotocoll = "openai"\n[arrival]\nrate_per_s = "fast"\n')

    done = start("run", str(bad)).finish(30)

    assert done.code == 2
    assert f"{bad}: target.protocoll: unknown key; did you mean protocol?" in done.stderr
    assert f"{bad}: arrival.rate_per_s: expected a number, got 'fast'" in done.stderr


def test_a_scenario_file_cannot_choose_another_machine(start: Start, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[target]\nurl = "http://192.0.2.1:8000"\n')

    done = start("run", str(mine)).finish(30)

    assert done.code == 2
    assert f"{mine}: target.url: http://192.0.2.1:8000 is not on this machine" in done.stderr
    assert "Add --target URL" in done.stderr


def test_plain_locust_has_the_same_checks(start: Start, tmp_path: Path, checkout: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[target]\nurl = "http://192.0.2.1:8000"\n')
    file = str(checkout / "locustfiles" / "streaming.py")

    done = start("-f", file, "--headless", "-t", "3s", "--scenario", str(mine), program=LOCUST).finish(30)

    assert done.code == 2
    assert f"{mine}: target.url: http://192.0.2.1:8000 is not on this machine" in done.stderr
    assert "--host URL under Locust" in done.stderr


def test_an_output_folder_that_cannot_be_written_exits_2(start: Start, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file, not a folder")

    done = start("run", "streaming").finish(30)

    assert done.code == 2
    assert "cannot be written" in done.stderr


@pytest.fixture
def plain_web_server() -> Iterator[str]:
    """A web server that knows nothing of any model."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def unusable(start: Start, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run against a target that cannot be used; returns what was said."""
    done = start("run", "streaming", "--duration=2", *arguments, env=env).finish(60)
    assert done.code == 4, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_target_that_refuses_connections_exits_4_and_the_next_scenario_is_run(
    start: Start, tmp_path: Path
) -> None:
    refusing = tmp_path / "refusing.toml"
    refusing.write_text('[target]\nurl = "http://127.0.0.1:9"\n[stages]\nduration_s = 2\n')

    done = start("run", str(refusing), "streaming", "--duration=2", "--json").finish(60)

    assert done.code == 4
    assert "Connection refused. Is it running" in done.stderr
    assert "Traceback" not in done.stderr
    refused, went = [json.loads(line) for line in done.stdout.splitlines()]
    assert refused["exit_code"] == 4
    assert went["exit_code"] in {0, 3}
    assert went["conservation"]["ended"] == {"ok": went["conservation"]["scheduled"]}


def test_a_host_without_an_address_exits_4(start: Start) -> None:
    assert "no address for no-such-host.invalid" in unusable(start, "--target=http://no-such-host.invalid")


def test_a_plain_web_server_exits_4(start: Start, plain_web_server: str, tmp_path: Path) -> None:
    protocols = ("anthropic", "openai")
    for protocol in protocols:
        (tmp_path / f"{protocol}.toml").write_text(
            f'[target]\nurl = "{plain_web_server}"\nprotocol = "{protocol}"\n'
        )

    done = start("run", *(str(tmp_path / f"{protocol}.toml") for protocol in protocols)).finish(60)

    assert done.code == 4
    assert done.stderr.count("answered HTTP 501") == len(protocols)
    assert done.stderr.count("is this the right URL and protocol?") == len(protocols)
    assert "Traceback" not in done.stderr


def test_a_refused_key_exits_4(start: Start, endpoint: Callable[..., str]) -> None:
    url = endpoint("--api-key-env=MY_KEY", env={"MY_KEY": "right-key-123"})

    said = unusable(
        start, f"--target={url}", "--set=target.api_key_env=OTHER", env={"OTHER": "wrong-key-456"}
    )

    assert "answered HTTP 401" in said
    assert "wrong-key-456" not in said


def test_the_right_key_is_taken_from_the_named_variable(start: Start, endpoint: Callable[..., str]) -> None:
    url = endpoint("--api-key-env=MY_KEY", *QUICK[:2], env={"MY_KEY": "right-key-123"})

    done = start(
        "run", "streaming", "--duration=2", f"--target={url}", "--set=target.api_key_env=MY_KEY",
        env={"MY_KEY": "right-key-123"},
    ).finish(60)  # fmt: skip

    assert done.run.requests().ended.eq("ok").all()


def test_no_key_for_the_provider_exits_4_before_anything_starts(start: Start) -> None:
    said = unusable(start, "--target=https://api.anthropic.com", env={"ANTHROPIC_API_KEY": ""})

    assert "the environment variable ANTHROPIC_API_KEY is not set" in said


def test_an_untrusted_certificate_exits_4_and_the_authority_can_be_named(
    start: Start, endpoint: Callable[..., str], tmp_path: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, trusted = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    url = endpoint(f"--certfile={chain}", f"--keyfile={key}", *QUICK[:2])

    said = unusable(start, f"--target={url}")
    assert "certificate not trusted" in said
    assert "target.ca_file" in said

    out = tmp_path / "out" / "runs"
    for folder in out.iterdir():
        folder.rename(tmp_path / "first")
    done = start(
        "run", "streaming", "--duration=2", f"--target={url}", f"--set=target.ca_file={trusted}"
    ).finish(60)
    attempts = done.run.table("attempts")
    assert (attempts.ended == "ok").all()
    assert (attempts.tls_ns[attempts.connection_is_new] > 0).all()
    assert (attempts.stamps == "kernel").all()
