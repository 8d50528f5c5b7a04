"""docker-compose.yml as a test reads it: variables put in, and a service as the arguments of its command.

Rule: no engine is needed. The little of Compose's language that the file uses is done here, and test_compose.py holds it
to what docker-compose itself makes of the file.
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TOKEN = "a token of sixteen or more"
ENTRY_POINT = "tailgauge"  # of the image; test_dockerfile.py holds the Dockerfile to it
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+):(?P<how>[-?])(?P<rest>[^}]*)\})")


class MissingError(Exception):
    """A variable that must be given, and what the file says about it."""


def services(checkout: Path, given: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services by name, with the variables `given` put in. Raises MissingError."""
    loaded = yaml.safe_load((checkout / "docker-compose.yml").read_text(encoding="utf-8"))
    return _put_in(loaded["services"], given)


def command_line(service: Mapping[str, Any]) -> list[str]:
    """Program and arguments that a container of the service starts with."""
    command = service["command"]
    arguments = shlex.split(command) if isinstance(command, str) else command
    return [*service.get("entrypoint", [ENTRY_POINT]), *arguments]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def on_this_machine(line: list[str], endpoint: int, master: int, folder: Path) -> list[str]:
    """The same arguments, with the services' names and ports as two ports of this machine, and the volumes in `folder`."""
    places = {
        r"\b(endpoint|master):": "127.0.0.1:",
        r"^0\.0\.0\.0": "127.0.0.1",
        r"\b8000$": str(endpoint),
        r"\b5557$": str(master),
        r"(?<![\w/])/(data|spool)\b": rf"{folder}/\1",
    }
    found = []
    for word in line:
        for pattern, place in places.items():
            word = re.sub(pattern, place, word)  # noqa: PLW2901
        found.append(word)
    return found


def _put_in(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _put_in(each, given) for key, each in value.items()}
    if isinstance(value, list):
        return [_put_in(each, given) for each in value]
    return (
        _VARIABLE.sub(lambda match: _variable(match, given), value)
        if isinstance(value, str)
        else value
    )


def _variable(match: re.Match[str], given: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    if text := given.get(match["name"]):
        return text
    if match["how"] == "?":
        raise MissingError(f"{match['name']}: {match['rest']}")
    return match["rest"]
