"""Hosts that share no network with this machine: namespaces, two switches, and what goes wrong between them.

Rule: everything is named `tg-<pid>-...` and lies in namespaces made here, so that nothing of this machine's own network is
touched, and what a killed test left behind is known by its name and removed by the next one.

    host  ---- control ----  switch      master and workers
          ---- traffic ----  switch      workers and endpoint
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

SUBNETS = {"control": "10.77.1", "traffic": "10.77.2"}
_OURS = re.compile(r"tg-(\d+)-[0-9a-f]{4}-\w+")
_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class NetworkError(Exception):
    """A step of building the network was refused."""


def _do(*line: str) -> str:
    program = shutil.which(line[0], path=_SBIN) or line[0]
    done = subprocess.run(
        [program, *line[1:]], capture_output=True, text=True, timeout=20, check=False
    )
    if done.returncode:
        raise NetworkError(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    for program in ("ip", "nft"):
        if shutil.which(program, path=_SBIN) is None:
            return f"{program} is not installed"
    try:
        with Network() as network:
            network.host("probe").lose(1)
    except (NetworkError, OSError) as error:
        return f"network namespaces cannot be made: {error}"
    return ""


class Host:
    """One namespace with an address on each switch, and the processes in it."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self._network, self.name, self.number = network, name, number
        self.space = f"{network.name}-{name}"
        self.processes: list[subprocess.Popen[str]] = []
        _do("ip", "netns", "add", self.space)
        _do("ip", "-n", self.space, "link", "set", "lo", "up")
        for cable in SUBNETS:
            self._plug(cable)

    def _plug(self, cable: str) -> None:
        switch, port = self._network.switch, f"{cable[0]}{self.number}"
        _do(
            "ip",
            "link",
            "add",
            cable,
            "netns",
            self.space,
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            switch,
        )
        _do("ip", "-n", switch, "link", "set", port, "master", cable, "up")
        _do("ip", "-n", self.space, "address", "add", f"{self.address(cable)}/24", "dev", cable)
        _do("ip", "-n", self.space, "link", "set", cable, "up")

    def address(self, cable: str) -> str:
        """Its address on a switch."""
        return f"{SUBNETS[cable]}.{self.number}"

    def lose(self, percent: int) -> None:
        """Drop so many of the packets that come in from elsewhere, at random."""
        _do("ip", "netns", "exec", self.space, "nft", "add table inet loss; add chain inet loss in { type filter hook input "
            f'priority 0; }}; add rule inet loss in iifname != "lo" numgen random mod 100 < {percent} drop')  # fmt: skip

    def cut(self, cable: str) -> None:
        """Pull a cable out."""
        _do("ip", "-n", self.space, "link", "set", cable, "down")

    def mend(self, cable: str) -> None:
        """Put it back; its address is announced anew, as a host does whose link comes up."""
        _do("ip", "-n", self.space, "link", "set", cable, "up")

    def start(
        self,
        line: Sequence[str | Path],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Sequence[str | Path]] = (),
        after: str = "",
    ) -> subprocess.Popen[str]:
        """A process on this host, in a session of its own; `mounts` are arguments of mount that it alone sees.

        `after`: a shell command that follows it, with those mounts. Its output goes to files `<host>-<n>.*` in cwd.
        """
        steps = ["mount " + " ".join(f"'{word}'" for word in mount) for mount in mounts]
        steps.append(f'"$@"; code=$?; {after}; exit $code' if after else 'exec "$@"')
        script = " && ".join(steps)
        stem = cwd / f"{self.name}-{len(self.processes)}"
        with stem.with_suffix(".out").open("w") as out, stem.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(
                [_ip(), "netns", "exec", self.space, "sh", "-c", script, "sh", *map(str, line)],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def output(self, number: int = -1, cwd: Path | None = None) -> str:
        """What a process of this host wrote to both its outputs."""
        assert cwd is not None
        stem = cwd / f"{self.name}-{range(len(self.processes))[number]}"
        return stem.with_suffix(".out").read_text() + stem.with_suffix(".err").read_text()


def _ip() -> str:
    return shutil.which("ip", path=_SBIN) or "ip"


class Network:
    """Two switches and the hosts on them; gone, with every process on them, at the end of the `with`."""

    def __init__(self) -> None:
        self.name = f"tg-{os.getpid()}-{secrets.token_hex(2)}"
        self.switch = f"{self.name}-switch"
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        sweep()
        try:
            _do("ip", "netns", "add", self.switch)
            for cable in SUBNETS:
                _do("ip", "-n", self.switch, "link", "add", cable, "type", "bridge")
                _do("ip", "-n", self.switch, "link", "set", cable, "up")
        except NetworkError:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def host(self, name: str) -> Host:
        """A host, new or as it was made."""
        if name not in self.hosts:
            self.hosts[name] = Host(self, name, len(self.hosts) + 1)
        return self.hosts[name]

    def close(self) -> None:
        """End every process and remove every namespace."""
        for host in self.hosts.values():
            for process in host.processes:
                end(process)
        _remove([space for space in spaces() if space.startswith(f"{self.name}-")])


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process with its whole session, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait(10)


def spaces() -> list[str]:
    """Names of all namespaces made by these tests, whoever runs them."""
    names = [line.split()[0] for line in _do("ip", "netns", "list").splitlines() if line]
    return [name for name in names if _OURS.fullmatch(name)]


def sweep() -> None:
    """Remove what tests left that were killed before they could."""
    _remove([name for name in spaces() if not _lives(int(_OURS.fullmatch(name)[1]))])  # type: ignore[index]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _remove(names: Sequence[str]) -> None:
    """Kill what is in them, also what only now enters, and delete them."""
    for name in names:
        deadline = time.monotonic() + 5
        while (pids := _do("ip", "netns", "pids", name).split()) and time.monotonic() < deadline:
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        _do("ip", "netns", "delete", name)
