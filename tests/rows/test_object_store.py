"""Runs in object storage, at a real S3 server: written, read, and never lost, whatever becomes of the connection."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from starting.programs import LOCUST, TAILGAUGE, environment

import tailgauge_analysis as tg
from tailgauge.cli.main import cli
from tailgauge.errors import Exit, RunDataError, UsageError
from tailgauge.rows import object_store
from tailgauge.rows.object_store import local

SERVER = Path(__file__).parents[1] / "starting" / "s3.py"
KEYS = {"AWS_ACCESS_KEY_ID": "unguessable-key-id", "AWS_SECRET_ACCESS_KEY": "unguessable-canary-7"}
RUN = ("run", "quickstart", "--dry-run", "--duration=6")
BUCKET = "results"


@contextmanager
def s3(**variables: str) -> Iterator[str]:
    """The address of a server with one bucket."""
    server = subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environment(variables)
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=20
        ):
            yield url
    finally:
        server.stdin.close()
        server.wait(20)
        server.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture
def at_server(server, monkeypatch):
    """This process reads from the server."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    return server


def tailgauge(
    *arguments: str, endpoint: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    given = {
        **KEYS,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "TMPDIR": str(folder),
        **variables,
    }
    return subprocess.run(
        [TAILGAUGE, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment(given)
    )  # fmt: skip


def files_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


class Relay:
    """Passes bytes on to a server; the first `drops` connections that carry more than `after` bytes are reset."""

    def __init__(self, url: str, drops: float, after: int) -> None:
        self._port, self._drops, self._after = int(url.rpartition(":")[2]), drops, after
        self.dropped = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, counts in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pass, args=(source, sink, counts), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        passed = 0
        try:
            while data := source.recv(4096):
                passed += len(data)
                if counts and passed > self._after and self.dropped < self._drops:
                    self.dropped += 1
                    break
                sink.sendall(data)
        except OSError:
            pass  # the other direction has closed both
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listening.close()


@pytest.mark.slow
def test_a_baseline_in_a_bucket(at_server, write, tmp_path, monkeypatch):
    """Added, listed, judged by and dropped; nothing stays on this disk."""
    url, spec = (
        f"s3://{BUCKET}/kept/chat",
        {"n": 200, "warmup_s": 0.0, "chunks": 2, "parts": 1, "offsets_ns": (0,)},
    )
    monkeypatch.chdir(tmp_path)
    runs = [write(f"r{i}", run_id=f"r{i}", **spec) for i in range(3)]

    def baseline(*line: object) -> str:
        done = CliRunner().invoke(cli, [*map(str, line)])
        return done.output or str(done.exception)

    assert baseline("baseline", "list", url) == "no runs in this baseline\n"
    added = baseline("baseline", "add", f"{url}/", *runs[:2]).splitlines()
    assert added == [f"added {url}/r{i}.json, number {i + 1}" for i in (0, 1)]
    assert (
        baseline("baseline", "add", url, runs[0])
        == f"{url}/r0.json: the run is in this baseline already"
    )
    assert all(f"{name}  " in baseline("baseline", "list", url) for name in ("r0", "r1"))
    assert "Not enough history: the baseline has 2 of 5 runs" in baseline(
        "compare", "--baseline", url, runs[2]
    )
    assert baseline("baseline", "drop", url, "--keep", "1") == "dropped 1 of 2 runs\n"
    assert [path.name for path in local(url, suffix=".json").iterdir()] == ["r1.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "reports"}


@pytest.mark.slow
def test_a_run_its_report_and_the_python_api_end_to_end(at_server, tmp_path):
    url = f"s3://{BUCKET}/team/a"
    done = tailgauge(*RUN, "--out", url, endpoint=at_server, folder=tmp_path)

    assert done.returncode in {Exit.OK, Exit.INCONCLUSIVE}, done.stderr
    (run_url,) = re.findall(rf"stored ({url}/runs/\S+)", done.stderr)
    run_id = run_url.rpartition("/")[2]
    assert f"{url}/reports/{run_id}/report.html" in done.stdout
    assert "tailgauge-out-" not in done.stdout + done.stderr
    assert files_below(tmp_path) == []

    run = tg.load(run_url)
    assert len(run.requests) > 100
    assert run.record["run_id"] == run_id
    report = json.loads((local(f"{url}/reports/{run_id}") / "report.json").read_text())
    assert run.data["result"] == report["result"]
    listed = tg.list_runs(url)
    assert listed[["run_id", "state", "folder"]].values.tolist() == [[run_id, "complete", run_url]]
    assert listed["verdict"].tolist() == [run.verdict]

    again = tailgauge(
        "report",
        run_url,
        "--json",
        "--out",
        f"s3://{BUCKET}/again",
        endpoint=at_server,
        folder=tmp_path,
    )
    facts = json.loads(again.stdout)
    assert facts["run_id"] == run_id
    assert facts["report"]["json"] == f"s3://{BUCKET}/again/reports/{run_id}/report.json"
    assert (local(f"s3://{BUCKET}/again/reports/{run_id}") / "junit.xml").exists()
    same = tailgauge("compare", run_url, run_url, endpoint=at_server, folder=tmp_path)
    assert "the same run" in same.stderr
    assert not any(
        value in text
        for value in KEYS.values()
        for text in (done.stdout, done.stderr, again.stdout)
    )


def test_what_is_stored_is_what_is_written_locally(at_server, tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify: three more runs, one of them with workers and in real time")
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir(), here.mkdir()
    done = tailgauge(*RUN, "--json", "--out", f"s3://{BUCKET}/b", endpoint=at_server, folder=there)
    beside = tailgauge(*RUN, "--json", endpoint=at_server, folder=here)
    stored, kept = json.loads(done.stdout), json.loads(beside.stdout)

    assert stored["run_dir"] == f"s3://{BUCKET}/b/runs/{stored['run_id']}"
    copy = local(stored["run_dir"])
    assert files_below(copy) == [
        name for name in files_below(Path(kept["run_dir"])) if name != ".master"
    ]
    for name in files_below(copy):
        if name.endswith(".parquet"):
            assert (copy / name).stat().st_size > 0

    real = tailgauge(
        "run", "quickstart", "--duration=10", "--workers=2", "--json", "--out", f"s3://{BUCKET}/c",
        endpoint=at_server, folder=there,
    )  # fmt: skip
    where = json.loads(real.stdout)["run_dir"]
    assert len(tg.load(where).requests) > 300
    assert len(files_below(local(where) / "workers")) == 2
    both = tailgauge("compare", stored["run_dir"], where, endpoint=at_server, folder=there)
    printed = " ".join(both.stdout.split())
    assert "do not use these numbers some runs are dry runs, others are real" in printed, (
        both.stderr
    )
    assert not any(value in text for value in KEYS.values() for text in (real.stdout, real.stderr))


def test_a_connection_dropped_in_mid_upload_is_tried_again(at_server, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "WAIT_S", 0.01)
    folder = tmp_path / "out"
    (folder / "runs" / "r").mkdir(parents=True)
    (folder / "runs" / "r" / "part.parquet").write_bytes(os.urandom(300_000))
    (folder / "runs" / "r" / "run.json").write_text("{}")
    relay = Relay(at_server, drops=3, after=100_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
    try:
        assert object_store._upload(folder, f"s3://{BUCKET}/dropped") == ["runs/r"]
    finally:
        relay.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", at_server)
    copy = local(f"s3://{BUCKET}/dropped/runs/r")

    assert relay.dropped == 3
    assert (copy / "part.parquet").read_bytes() == (
        folder / "runs" / "r" / "part.parquet"
    ).read_bytes()


@pytest.mark.slow
def test_an_upload_that_fails_for_good_keeps_everything_and_says_where(at_server, tmp_path):
    relay = Relay(at_server, drops=float("inf"), after=20_000)  # the check before the run passes
    try:
        done = tailgauge(*RUN, "--out", f"s3://{BUCKET}/lost", endpoint=relay.url, folder=tmp_path)
    finally:
        relay.close()

    assert done.returncode == Exit.USAGE
    assert relay.dropped >= object_store.ATTEMPTS
    (kept,) = re.findall(r"Nothing is lost: all runs and reports are in (\S+)", done.stderr)
    (run,) = (Path(kept) / "runs").iterdir()
    assert tg.load(run).record["state"] == "complete"
    assert (Path(kept) / "reports" / run.name / "report.html").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "endpoint", "why"),
    [
        ("s3://no-such-bucket/x", "", "s3://no-such-bucket/x: cannot be written: .*NO_SUCH_BUCKET.*Check bucket, region"),
        ("s3://results/x", "http://127.0.0.1:1", "cannot be written: .*Check bucket, region and credentials"),
        ("ftp://host/x", "", "ftp://host/x: expected a folder, or a URL of s3://, gs://, abfs://"),
        ("s3://KEY:HIDDEN@results/x", "", "s3://: expected s3://BUCKET/PREFIX; credentials come from the environment"),
        ("s3://results/x?secret_key=HIDDEN", "", "credentials come from the environment, not from the URL"),
        ("s3://", "", "expected s3://BUCKET/PREFIX"),
        ("abfs://container/x", "", "AZURE_STORAGE_ACCOUNT is not set"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_is_refused_before_anything_is_sent(
    at_server, tmp_path, url, endpoint, why
):
    listening = socket.create_server(("127.0.0.1", 0))
    target = f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.setblocking(False)
    given = ("run", "quickstart", "--target", target, "--out", url)
    done = tailgauge(*given, endpoint=endpoint or at_server, folder=tmp_path)

    assert done.returncode == Exit.USAGE, done.stderr
    assert re.search(why, done.stderr), done.stderr
    assert "HIDDEN" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    with pytest.raises(BlockingIOError):
        listening.accept()
    listening.close()
    assert files_below(tmp_path) == []


@pytest.mark.slow
def test_without_credentials_the_error_says_so_before_the_run(tmp_path):
    with s3(INITIAL_NO_AUTH_ACTION_COUNT="1") as url:
        nothing = {
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_SHARED_CREDENTIALS_FILE": "none",
            "AWS_CONFIG_FILE": "none",
        }
        done = tailgauge(
            *RUN, "--out", f"s3://{BUCKET}/x", endpoint=url, folder=tmp_path, **nothing
        )

    assert done.returncode == Exit.USAGE, done.stderr
    assert re.search(r"cannot be written: .*credentials", done.stderr)


@pytest.mark.slow
def test_a_folder_that_is_not_there_and_commands_without_object_storage_say_so(at_server, tmp_path):
    with pytest.raises(RunDataError, match="s3://results/none/runs/x: no such run folder"):
        tg.load(f"s3://{BUCKET}/none/runs/x")
    assert tg.list_runs(f"s3://{BUCKET}/none").empty
    with pytest.raises(UsageError, match="expected a folder, or a URL of"):
        tg.load("http://results/x")
    for command in (("runs",), ("worker", "--master", "127.0.0.1:1")):
        done = tailgauge(*command, "--out", f"s3://{BUCKET}/x", endpoint=at_server, folder=tmp_path)
        assert done.returncode == Exit.USAGE
        assert (
            "expected a folder: only run, checkup, calibrate and report write to object storage"
            in done.stderr
        )


@pytest.mark.slow
def test_plain_locust_refuses_it_in_one_line(tmp_path, checkout):
    line = [
        LOCUST,
        "-f",
        str(checkout / "locustfiles/streaming.py"),
        "--headless",
        f"--out=s3://{BUCKET}/x",
    ]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=environment({}),
    )

    assert done.returncode == Exit.USAGE
    assert f"tailgauge: --out s3://{BUCKET}/x: plain Locust writes to a folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_object_whose_name_leaves_the_folder_is_refused(at_server, tmp_path, monkeypatch):
    """Whoever can write to the bucket must not write to this machine."""
    from pyarrow import fs

    files = fs.S3FileSystem(endpoint_override=at_server, region="us-east-1")
    for name in ("run.json", "chunks/part-0.parquet"):
        with files.open_output_stream(f"{BUCKET}/hostile/runs/x/{name}") as stream:
            stream.write(b"{}")
    honest = fs.S3FileSystem.get_file_info

    def listed(self, what):
        found = honest(self, what)
        return [*found, fs.FileInfo(f"{BUCKET}/hostile/runs/x/../../../escaped", fs.FileType.File)]

    class Hostile:
        def get_file_info(self, what):
            return listed(files, what)

    monkeypatch.setattr(object_store, "_opened", lambda _: (Hostile(), f"{BUCKET}/hostile/runs/x"))
    with pytest.raises(RunDataError, match=r"leaves the folder: '\.\./\.\./\.\./escaped"):
        object_store.write_listing(f"s3://{BUCKET}/hostile/runs/x", "escaped", str(tmp_path))
