"""A user's mistake is one clear line and a documented exit code, never a traceback."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from run_folders.run_data import RunData
from starting.command import QUICK, Finished, Start, run_in
from starting.programs import LOCUST

pytestmark = pytest.mark.slow


def test_a_misspelt_key_starts_nothing(start):
    """Other mistakes, within one process: tests/cli/test_mistakes.py."""
    done = start("run", "streaming", "--set", "arrival.rate=3").finish(30)

    assert done.code == 2
    assert "arrival.rate: unknown key; did you mean rate_per_s?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (done.out / "runs").exists(), "nothing was started"


def test_plain_locust_has_the_same_checks(start, tmp_path, checkout):
    mine = tmp_path / "mine.toml"
    mine.write_text('[traffic.chat]\n[target]\nurl = "http://192.0.2.1:8000"\n')
    file = str(checkout / "locustfiles" / "streaming.py")

    done = start(
        "-f", file, "--headless", "-t", "3s", "--scenario", str(mine), program=LOCUST
    ).finish(30)

    assert done.code == 2
    assert f"{mine}: target.url: http://192.0.2.1:8000 is not on this machine" in done.stderr
    assert "--host URL under Locust" in done.stderr


def test_an_output_folder_that_cannot_be_written_exits_2(start, tmp_path):
    (tmp_path / "out").write_text("a file, not a folder")

    done = start("run", "streaming").finish(30)

    assert done.code == 2
    assert "cannot be written" in done.stderr


@pytest.fixture(scope="module")
def plain_web_server() -> Iterator[str]:
    """A web server that knows nothing of any model."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler
    ) as server:
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# `tailgauge run`, in which Locust tells the workers late of their users, as it now and then does on a busy machine.
LATE_USERS = """
from tailgauge.cli.main import main
from tailgauge.locust_app import launch  # imports Locust
from gevent.event import Event
from locust.rpc.zmqrpc import Server

send, stopped = Server.send_to_client, Event()

def send_to_client(server, message):
    if message.type == "spawn":
        stopped.clear()
        stopped.wait(0.3)
    send(server, message)
    if message.type == "stop":
        stopped.set()

Server.send_to_client = send_to_client
main()
"""


def test_after_a_run_that_fails_before_locust_starts_its_users_the_next_one_begins(start, tmp_path):
    files = [tmp_path / f"{name}.toml" for name in ("one", "two", "three")]
    for file in files:
        file.write_text(
            '[traffic.chat]\n[target]\nurl = "http://127.0.0.1:9"\n[stages]\nduration_s = 2\n'
        )

    done = start(
        "-c", LATE_USERS, "run", *map(str, files), "--json", program=sys.executable
    ).finish(60)

    assert [json.loads(line)["exit_code"] for line in done.stdout.splitlines()] == [4] * 3
    assert done.stderr.count("Connection refused. Is it running") == 3
    assert "workers" not in done.stderr


@dataclass(frozen=True)
class Guarded:
    """An endpoint that wants a key, under a certificate of nobody's."""

    url: str
    authority: Path


@pytest.fixture(scope="module")
def guarded(endpoint: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    folder, authority = tmp_path_factory.mktemp("certificate"), trustme.CA()
    chain, key, trusted = (folder / name for name in ("chain.pem", "key.pem", "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    chain.write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    options = ("--api-key-env=MY_KEY", f"--certfile={chain}", f"--keyfile={key}", *QUICK[:2])
    return Guarded(endpoint(*options, env={"MY_KEY": "right-key-123"}), trusted)


@dataclass(frozen=True)
class Tried:
    """One command with a scenario for each target, the last of which can be used."""

    done: Finished
    summary: dict[str, dict[str, Any]]

    def run(self, name: str) -> RunData:
        return RunData(Path(self.summary[name]["run_dir"]))


@pytest.fixture(scope="module")
def tried(
    plain_web_server: str, guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> Tried:
    folder = tmp_path_factory.mktemp("targets")
    trusting = f'ca_file = "{guarded.authority}"'
    targets = {
        "refusing": ('url = "http://127.0.0.1:9"',),
        "web_anthropic": (f'url = "{plain_web_server}"', 'protocol = "anthropic"'),
        "web_openai": (f'url = "{plain_web_server}"', 'protocol = "openai"'),
        "wrong_key": (f'url = "{guarded.url}"', trusting, 'api_key_env = "OTHER"'),
        "untrusted": (f'url = "{guarded.url}"', 'api_key_env = "MY_KEY"'),
        "usable": (f'url = "{guarded.url}"', trusting, 'api_key_env = "MY_KEY"'),
    }
    files = [folder / f"{name}.toml" for name in targets]
    for file, lines in zip(files, targets.values(), strict=True):
        file.write_text(
            "\n".join(["[traffic.chat]", "[target]", *lines, "[stages]", "duration_s = 2", ""])
        )
    keys = {"MY_KEY": "right-key-123", "OTHER": "wrong-key-456"}
    done = run_in(folder, *map(str, files), "--json", env=keys)
    summary = [json.loads(text) for text in done.stdout.splitlines()]
    return Tried(done, dict(zip(targets, summary, strict=True)))


def test_a_target_that_cannot_be_used_exits_4_and_the_next_scenario_is_run(tried):
    *refused, went = tried.summary.values()

    assert [one["exit_code"] for one in refused] == [4] * 5
    assert went["exit_code"] in {0, 3, 5}
    assert went["conservation"]["ended"] == {"ok": went["conservation"]["scheduled"]}
    assert tried.done.code == 4
    assert "Traceback" not in tried.done.stderr


def test_each_file_is_refused_with_its_reason(tried):
    output = tried.done.stderr

    assert "Connection refused. Is it running" in output
    assert output.count("answered HTTP 501") == output.count("are URL and protocol right?") == 2
    assert "answered HTTP 401" in output
    assert "certificate not trusted" in output
    assert "target.ca_file" in output


def test_no_key_is_printed(tried):
    for key in ("right-key-123", "wrong-key-456"):
        assert key not in tried.done.stderr + tried.done.stdout


def test_the_right_key_is_taken_from_the_named_variable_and_the_authority_can_be_named(tried):
    attempts = tried.run("usable").table("attempts")

    assert (attempts.ended == "ok").all()
    assert (attempts.tls_ns[attempts.connection_is_new] > 0).all()
    assert (attempts.stamps == "kernel").all()


def unusable(start: Start, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run against a target that cannot be used; returns what was said."""
    done = start("run", "streaming", "--duration=2", *arguments, env=env).finish(60)
    assert done.code == 4, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_host_without_an_address_exits_4(start):
    assert "no address for no-such-host.invalid" in unusable(
        start, "--target=http://no-such-host.invalid"
    )


def test_no_key_for_the_provider_exits_4_before_anything_starts(start):
    output = unusable(start, "--target=https://api.anthropic.com", env={"ANTHROPIC_API_KEY": ""})

    assert "the environment variable ANTHROPIC_API_KEY is not set" in output
