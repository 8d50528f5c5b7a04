"""Somebody who follows a page in a shell: its blocks in order, in a folder of its own.

A ```toml block is saved under the last `name.toml` before it, a ```python block under a `name.py` if that is in the line before
it, and a ```diff block changes that file, or has the whole of it. Each command of a ```sh block is run by a shell, a ```bash block as a whole; they end with code 0 or the one in their comment.
A comment before a block says why it is not run, or with which engine. The lines of a ```text block are among those that the
command before it has printed, but for their numbers.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from starting.programs import TAILGAUGE, environment

from tailgauge.errors import Exit

BLOCK = re.compile(r"(?:<!-- (.+?) -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"# exit code (\d+)$")
START_S, COMMAND_S, TRIES = 180, 600, 2  # START_S: a vLLM loads its model
ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


@dataclass(frozen=True)
class Step:
    """A file to save, a command to run, or what it has printed."""

    text: str
    file: str = ""
    printed: bool = False
    is_diff: bool = False
    engine: str = ""
    not_run: str = ""


def steps(page: str) -> Iterator[Step]:
    """The steps of a page of docs/tutorials, or of one beside it, in order."""
    text = (TUTORIALS / f"{page}.md").resolve().read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        mark, language, content = block.groups()
        kind, _, value = (mark or "").partition(": ")
        not_run = value if kind == "not run" else ""
        if language in {"toml", "python"}:
            if (name := _file_name(text[: block.start()], language)) and not not_run:
                yield Step(content, file=name)
        elif language == "diff":
            yield Step(content, file=_file_name(text[: block.start()], language), is_diff=True)
        elif language == "text":
            yield Step(content, printed=True)
        elif language in {"sh", "bash"}:
            lines = re.sub(r"\\\n\s*", "", content).splitlines() if language == "sh" else [content]
            for line in lines:
                yield Step(line, engine=value if kind == "engine" else "", not_run=not_run)


def _file_name(text: str, language: str) -> str:
    """The file that a block is saved as: the one that the paragraph before it names."""
    ending = {"toml": "toml", "python": "py", "diff": "py"}[language]
    paragraph = text.rstrip().rpartition("\n\n")[2]
    names = re.findall(rf"`([\w./-]+\.{ending})`", paragraph)
    return names[-1] if names else ""


def sides(diff: str) -> tuple[str, str]:
    """The text before and after a diff of one piece."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    return old, new


def patched(text: str, diff: str) -> str:
    """A file with a diff of one piece."""
    old, new = sides(diff)
    assert text.count(old) == 1
    return text.replace(old, new)


def plain(text: str) -> list[str]:
    """Its lines, without numbers and spaces beside the first between two words."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [re.sub(r"\d[\d,.]*", "#", line) for line in lines if line != "..."]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass
class Reader:
    """Somebody who follows a tutorial in a shell: the folder, the environment, what runs in the background."""

    folder: Path
    port: int  # free, for the engine
    replaced: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)
    accepted: list[tuple[str, Exit]] = field(default_factory=lambda: [("INVALID", Exit.INVALID)])
    printed: str = ""

    def follow(self, step: Step) -> None:
        text = step.text
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        if step.is_diff:
            path = self.folder / step.file
            before = path.read_text(encoding="utf-8") if path.exists() else sides(text)[0]
            path.write_text(patched(before, text), encoding="utf-8")
        elif step.file:
            path = self.folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif step.printed:
            assert set(plain(text)) <= set(plain(self.printed)), self.printed
        elif text.endswith("&"):
            self.background.append(
                subprocess.Popen(["bash", "-c", f"exec {text[:-1]}"], **self._where())
            )
            if f"--port {self.port}" in text:
                wait_for(self.port)
        elif text.startswith("export "):
            shown = subprocess.run(
                ["bash", "-c", f"{text}; env -0"], check=True, capture_output=True, **self._where()
            )
            self.variables = dict(
                pair.split("=", 1) for pair in shown.stdout.decode().split("\0") if pair
            )
        else:
            self._run(text)

    def _run(self, text: str) -> None:
        """A run in real time with another result than on the page is made once more: how fast this machine is, is not at stake.

        Nor is its result where it says that this machine was too slow for it.
        """
        expected = CODE.search(text)
        real = "--dry-run" not in text
        for _ in range(TRIES if real else 1):
            done = subprocess.run(
                ["bash", "-ec", text],
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
                **self._where(),
            )
            codes = {int(expected[1] if expected else 0)}
            codes |= {code for word, code in self.accepted if not word}
            if real:
                codes |= {code for word, code in self.accepted if done.stdout.startswith(word)}
                if re.search("^measured +DEGRADED", done.stdout, re.MULTILINE):
                    codes |= {Exit.FAILED, Exit.INCONCLUSIVE}
            if done.returncode in codes or done.returncode not in {Exit.FAILED, Exit.INCONCLUSIVE}:
                break
        assert done.returncode in codes, f"{text}\n{done.stdout}\n{done.stderr}"
        self.printed = done.stdout

    def _where(self) -> dict:
        path = f"{Path(TAILGAUGE).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            "cwd": self.folder,
            "env": environment({**self.variables, "PATH": path, "COLUMNS": "80"}),
        }

    def stop(self) -> None:
        """End what runs in the background; workers that their master has released have ended before."""
        for one in self.background:
            one.terminate()
        for one in self.background:
            one.wait(timeout=START_S)


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + START_S
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.1)
