"""Bounds in bytes and seconds of what is read; docs/explanation/security.md has their table.

Rule: a bomb is read by a process of its own, whose memory and CPU time the kernel measures.
"""

from __future__ import annotations

import gzip
import http.server
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hostile.bombs import BOMBS
from starting.programs import TAILGAUGE, environment

from tailgauge.errors import ScenarioError, TailgaugeError
from tailgauge.rows import object_store
from tailgauge.rows.text_file import MOST_TABLES, text_lines
from tailgauge.scenario.packaged import read
from tailgauge_analysis.reading.budget import SECONDS, SECONDS_PER_MIB, stored

pytestmark = pytest.mark.patient

MIB = 1 << 20
GIB = 1 << 30


class Taken(NamedTuple):
    """The end of a command, and what it took."""

    code: int
    stdout: str
    stderr: str
    peak_bytes: int
    cpu_s: float


def taken(*arguments: object, folder: Path) -> Taken:
    """Run `tailgauge` in this folder; an address space of 12 GiB and 300 s of CPU end what would not end."""
    outputs = [folder / "stdout", folder / "stderr"]
    with outputs[0].open("w") as out, outputs[1].open("w") as err:
        child = subprocess.Popen(
            ["prlimit", f"--as={12 * GIB}", "--cpu=300", TAILGAUGE, *map(str, arguments)],
            stdout=out, stderr=err, cwd=folder, env=environment({}),
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    stdout, stderr = (path.read_text() for path in outputs)
    return Taken(
        child.returncode, stdout, stderr, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_part_that_unpacks_to_gigabytes(synthetic, tmp_path, name):
    """It is left out and named, or the run is refused; memory and time stay within those of any small run."""
    folder = synthetic.write(tmp_path / "run", n=60)
    bomb = subprocess.run(
        [sys.executable, Path(__file__).with_name("bombs.py"), name, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    part = Path(bomb.stdout.strip())
    done = taken("report", folder, "--out", tmp_path, folder=tmp_path)
    shown = f"exit {done.code}, {done.peak_bytes / GIB:.2f} GiB, {done.cpu_s:.1f} s: {done.stderr or done.stdout}"

    assert done.peak_bytes < 2 * GIB, shown
    assert done.cpu_s < 1.2 * (SECONDS + SECONDS_PER_MIB * stored([folder]) / MIB), shown
    assert "internal error" not in done.stderr, shown
    assert done.code in {1, 2, 3, 5}, shown
    if done.code == 2:
        assert done.stderr.count("\n") == 1
        assert str(folder) in done.stderr
        assert "expected" in done.stderr
    elif "target" not in part.parts:
        assert done.code == 3, shown


def test_a_run_json_of_millions_of_notes(synthetic, tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify: it takes half a minute")
    folder = synthetic.write(tmp_path / "run", n=60)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "notes": ["x"] * 10_000_000}))
    done = taken("report", folder, "--out", tmp_path, folder=tmp_path)

    assert done.peak_bytes < 2.2 * GIB
    assert done.code in {2, 5}, done.stderr
    assert done.cpu_s < 65


def test_what_unpacks_to_far_more_than_text_does(tmp_path):
    """300 kB of gzip with 200 MB of rows, beside an honest file of the same size."""
    bomb = tmp_path / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(300):
            file.write(b'{"timestamp": 1.0}\n' * 35_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        ScenarioError,
        match=r"bomb\.jsonl\.gz: unpacks to more than 100 times its size: expected text",
    ):
        for _ in text_lines(bomb):
            pass

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    honest = tmp_path / "honest.jsonl.gz"
    rows = [
        json.dumps({"timestamp": number / 7, "input_length": number % 977})
        for number in range(50_000)
    ]
    honest.write_bytes(gzip.compress("\n".join(rows).encode()))
    assert len(list(text_lines(honest))) == 50_000


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[traffic.t{number}]\nprompt_tokens = 50\n" for number in range(20_000)),
        "".join(f"[slo.s{number}]\nmax_ms = 1\n" for number in range(20_000)),
        f"sizes = [{'[1],' * 100_000}]\n",
    ],
    ids=["traffic", "objectives", "lists"],
)  # fmt: skip
def test_a_scenario_of_20_000_traffic_tables(tmp_path, text):
    path = tmp_path / "many.toml"
    path.write_text(f'name = "many"\n{text}')
    began = time.process_time()
    with pytest.raises(
        TailgaugeError,
        match=rf"many\.toml: expected at most {MOST_TABLES:,} tables and lists, got ",
    ):
        read(path)

    assert time.process_time() - began < 10


PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>runs/x</Prefix><KeyCount>{count}</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>{more}</IsTruncated>{token}{entries}</ListBucketResult>"""
ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag>"
    "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class Bucket(http.server.BaseHTTPRequestHandler):
    """A server of S3 that lists what `names` has, in pages without end if `endless`, and sends `body` for each object."""

    protocol_version = "HTTP/1.1"
    names = ("runs/x/run.json",)
    sizes = 2
    endless = False
    body = b"{}"
    drips = False

    def do_GET(self) -> None:
        is_listing = "list-type" in self.path
        data = self._listing() if is_listing else self.body
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with self._ignored():
            while self.drips:
                self.wfile.write(data[:1])
                time.sleep(0.2)
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()

    def _listing(self) -> bytes:
        names = self.names
        if self.endless:
            names = [
                f"runs/x/chunks/{number}-{time.monotonic_ns()}-{'y' * 500}"
                for number in range(1000)
            ]
        entries = "".join(ENTRY.format(key=name, size=self.sizes) for name in names)
        token = (
            f"<NextContinuationToken>{time.monotonic_ns()}</NextContinuationToken>"
            if self.endless
            else ""
        )
        more = "true" if self.endless else "false"
        return PAGE.format(count=len(names), more=more, token=token, entries=entries).encode()

    @contextmanager
    def _ignored(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # the client has left
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def bucket(monkeypatch):
    """Serve a bucket with these attributes: `bucket(endless=True)`."""
    servers = []

    def serve(**attributes: object) -> str:
        handler = type("Given", (Bucket,), attributes)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        keys = {
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for name, value in {**keys, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        return "s3://b/runs/x"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("attributes", [{"endless": True}, {"drips": True}], ids=["pages", "drips"])
def test_a_listing_without_end(bucket, monkeypatch, attributes):
    """It is ended, with the process that holds its pages."""
    monkeypatch.setattr(object_store, "LISTING_S", 3.0)
    url = bucket(**attributes)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the largest child so far
    with pytest.raises(
        TailgaugeError,
        match=r"s3://b/runs/x: cannot be read: (no end after 3 s|more than 2,048 MiB)",
    ):
        object_store.local(url)

    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest == before or largest * 1024 < 2.5 * GIB


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["runs/x//tmp/x"], ["runs/x/../../y"], ["runs/x/" + "y" * 5000], ["runs/x/a", "runs/x/a/b"]],
    ids=["absolute", "above", "long", "file and folder"],
)  # fmt: skip
def test_names_of_objects_that_cannot_be_files(bucket, names):
    url = bucket(names=names)
    with pytest.raises(
        TailgaugeError,
        match=r"^s3://b/runs/x: (cannot be read|the name of an object leaves the folder)",
    ):
        object_store.local(url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "why"),
    [(1 << 50, "expected at most 100,000 objects and 64 GiB"), (1, "cannot be read")],
    ids=["more than a run has", "less than is there"],
)
def test_sizes_of_objects_that_cannot_be(bucket, size, why):
    url = bucket(names=["runs/x/run.json"], sizes=size, body=b"{}" * 1000)
    with pytest.raises(TailgaugeError, match=rf"^s3://b/runs/x: .*{why}"):
        object_store.local(url)


WEB = """
import sys
from types import SimpleNamespace
import locust.env
from tailgauge.address import Address
from tailgauge.live import web
web.LONGEST_REQUEST_S = 2.0
print(web.serve(locust.env.Environment(), Address("127.0.0.1", 0), lambda: None, metrics=True), flush=True)
import gevent
gevent.spawn(lambda: gevent.get_hub().threadpool.apply(sys.stdin.read)).join()
"""


@pytest.fixture(scope="module")
def web_page():
    """The port of the web page of a run, and its process."""
    child = subprocess.Popen(
        [sys.executable, "-c", WEB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment({})
    )  # fmt: skip
    yield int(child.stdout.readline().rpartition(":")[2]), child
    child.stdin.close()
    child.wait(20)
    child.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/swarm", "/tailgauge/live.json"])
def test_a_request_to_the_web_page(web_page, path):
    """A body of 64 MiB, one that never ends, and a head that never ends: refused or closed, without being held."""
    port, child = web_page
    before = psutil.Process(child.pid).memory_info().rss
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {64 * MIB}\r\n"
        peer.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\nhost=".encode())
        with suppress(OSError):
            for _ in range(64):
                peer.sendall(b"x" * MIB)
        answer = peer.recv(100)
    assert re.match(rb"HTTP/1.1 4\d\d ", answer) or not answer
    for begin in (f"{head}\r\n", head):
        with socket.create_connection(("127.0.0.1", port), 20) as peer:
            peer.sendall(begin.encode())
            began = time.monotonic()
            with suppress(ConnectionResetError):
                while peer.recv(1000):
                    pass
            assert time.monotonic() - began < 20

    assert psutil.Process(child.pid).memory_info().rss - before < 16 * MIB
