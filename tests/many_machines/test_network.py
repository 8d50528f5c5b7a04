"""The rig itself: what it loses, delays and cuts is what it says, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from many_machines.network import Host, Network, spaces, sweep

PROBE = Path(__file__).parent / "scripts" / "probe.py"
RELAY = Path(__file__).with_name("relay.py")
DELAY_S = 0.02


def begin(host: Host, cwd: Path, *line: str | Path) -> subprocess.Popen[str]:
    """A program on a host, as soon as it has said that it is ready."""
    process = host.start([sys.executable, *line], cwd)
    deadline = time.monotonic() + 20
    while not host.output(cwd=cwd) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def probe(host: Host, cwd: Path, case: str, address: str, port: int) -> dict[str, float]:
    process = host.start([sys.executable, PROBE, case, address, str(port)], cwd)
    process.wait(30)
    return json.loads(host.output(cwd=cwd).splitlines()[-1])


@pytest.fixture(scope="module")
def pair(network: Network) -> tuple[Host, Host]:
    return network.host("a"), network.host("b")


def test_a_cable_that_was_pulled_out_carries_nothing_and_the_other_one_does(pair, tmp_path):
    a, b = pair
    assert probe(a, tmp_path, "reach", b.address("control"), 9)["reached"]

    b.cut("control")
    cut, other = (
        probe(a, tmp_path, "reach", b.address("control"), 9),
        probe(a, tmp_path, "reach", b.address("traffic"), 9),
    )
    b.mend("control")

    assert (cut["reached"], other["reached"]) == (False, True)
    assert probe(a, tmp_path, "reach", b.address("control"), 9)["reached"]


def test_the_relay_holds_a_byte_back_each_way_and_carries_many_at_once(pair, tmp_path):
    a, b = pair
    echoing = begin(b, tmp_path, PROBE, "echo", "127.0.0.1", "7001")
    begin(b, tmp_path, RELAY, b.address("control"), "7000", "127.0.0.1", "7001", str(DELAY_S))

    times = probe(a, tmp_path, "call", b.address("control"), 7000)

    assert echoing.wait(10) == 0
    assert times["byte_s"] >= 2 * DELAY_S
    one_by_one = times["bytes"] / 65536 * DELAY_S
    assert times["bulk_s"] < one_by_one / 2


def test_one_packet_in_a_hundred_is_lost(pair, tmp_path):
    a, b = pair
    b.lose(1)
    catching = begin(b, tmp_path, PROBE, "catch", b.address("traffic"), "7002")

    thrown = probe(a, tmp_path, "throw", b.address("traffic"), 7002)["thrown"]

    assert catching.wait(30) == 0
    lost = thrown - json.loads(b.output(cwd=tmp_path).splitlines()[-1])["caught"]
    assert 8 <= lost <= 100  # 40 of 4,000, give or take six


def test_nothing_is_left_behind_and_this_machine_is_as_it_was(network, tmp_path):
    def links() -> str:
        return subprocess.run(
            ["ip", "-br", "link"], capture_output=True, text=True, timeout=10, check=True
        ).stdout

    before = links()
    with Network() as made:
        sleeping = made.host("x").start(["sleep", "60"], tmp_path)
        assert len([name for name in spaces() if name.startswith(made.name)]) == 2
        assert links() == before

    assert sleeping.returncode == -signal.SIGKILL
    assert [name for name in spaces() if name.startswith(made.name)] == []
    assert links() == before


def test_what_a_killed_test_left_is_swept_with_its_processes(network, tmp_path):
    script = (
        "import os, pathlib, sys; from many_machines.network import Network; network = Network().__enter__(); "
        "print(network.name, network.host('x').start(['sleep', '60'], pathlib.Path('.')).pid, flush=True); os._exit(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    name, pid = done.stdout.split()
    assert [space for space in spaces() if space.startswith(name)] != []

    sweep()

    assert [space for space in spaces() if space.startswith(name)] == []
    stat = Path(f"/proc/{pid}/stat")  # of a zombie, where nobody asks how an orphan ended
    assert not stat.exists() or stat.read_text().split()[2] == "Z"
