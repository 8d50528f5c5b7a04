"""A target that does not listen is named before anything is planned."""

from __future__ import annotations

import re
import socket
import threading

import pytest

from tailgauge.errors import TargetError
from tailgauge.master import listening
from tailgauge.master.listening import await_targets
from tailgauge.scenario.model import parse


@pytest.fixture
def port():
    """A port of the loopback that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1], held


def scenario(url, ready_s=0.0, **tables):
    return parse(
        {"name": "x", "target": {"url": url}, "limits": {"ready_s": ready_s}, **tables}, "test"
    )


@pytest.mark.parametrize("ready_s", [0.0, 0.05])
def test_a_refused_connection_names_the_address_and_how_to_wait(port, ready_s):
    url = f"http://127.0.0.1:{port[0]}"

    with pytest.raises(
        TargetError, match=rf"target {url} could not be used .*Is it running.*ready_s="
    ) as error:
        await_targets(scenario(url, ready_s), lambda _: None)
    assert ("waits longer than the 0.05 s" in str(error.value)) == (ready_s > 0)


def test_the_wait_is_noted_and_ends_when_the_target_listens(port, monkeypatch):
    monkeypatch.setattr(listening, "PAUSE_S", 0.01)
    url = f"http://127.0.0.1:{port[0]}"
    notes = []
    listens = threading.Event()

    def note(text):
        notes.append(text)
        if not listens.is_set():
            port[1].listen()
            listens.set()

    await_targets(scenario(url, 60.0), note)

    (text,) = notes
    waiting = (
        r"refuses the connection: waiting until it listens, [56]\d s at most \(limits.ready_s\)"
    )
    assert re.fullmatch(rf"{url} {waiting}", text)


def test_other_targets_are_left_to_the_preflight(monkeypatch):
    def fails(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", fails)

    await_targets(scenario("http://127.0.0.1:9"), lambda _: None)
    await_targets(scenario("simulated"), lambda _: None)
