"""The tutorials, and the page on prompts, work as written: each is run from its Markdown, command by command, in an empty folder.

A ```toml block is saved under the last `name.toml` before it, a ```python block under a `name.py` if that is in the line before it. Each command of a ```sh block is run by a shell, and ends with code
0 or the one in its comment. A comment before a block says why it is not run, or with which engine. The lines of a ```text block are
among those that the command before it has printed, but for their numbers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from real_engine.conftest import Need, serving, tiny_model  # noqa: F401 - a fixture
from starting.programs import TAILGAUGE, environment

from tailgauge.errors import Exit

ENGINES = ("simulated", "llama.cpp", "vllm")
BLOCK = re.compile(r"(?:<!-- (.+?) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
CODE = re.compile(r"# exit code (\d+)$")
START_S, COMMAND_S, TRIES = 180, 300, 2  # START_S: a vLLM loads its model
# Experiments of fewer runs, for `make test`.
FEWER = {
    "run headroom.toml": "--set experiment.minutes=5 --set experiment.headroom.confirm=1",
}
TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@dataclass(frozen=True)
class Step:
    """A file to save, a command to run, or what it has printed."""

    text: str
    file: str = ""
    printed: bool = False
    engine: str = ""
    not_run: str = ""


def steps(page: str) -> Iterator[Step]:
    """The steps of a tutorial, in order."""
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        mark, language, content = block.groups()
        kind, _, value = (mark or "").partition(": ")
        if language == "toml":
            yield Step(content, file=re.findall(r"`([\w-]+\.toml)`", text[: block.start()])[-1])
        elif language == "python":
            if saved := re.search(r"Save this as `([\w-]+\.py)`:\n\n$", text[: block.start()]):
                yield Step(content, file=saved[1])
        elif language == "text":
            yield Step(content, printed=True)
        elif language == "sh":
            for line in re.sub(r"\\\n\s*", "", content).splitlines():
                yield Step(
                    line, engine=value if kind == "engine" else "", not_run=value if kind == "not run" else ""
                )


def plain(text: str) -> list[str]:
    """Its lines, without numbers and spaces beside the first between two words."""
    return [re.sub(r"\d[\d,.]*", "#", " ".join(line.split())) for line in text.splitlines()]


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
        if step.file:
            (self.folder / step.file).write_text(text, encoding="utf-8")
        elif step.printed:
            assert set(plain(text)) <= set(plain(self.printed)), self.printed
        elif text.endswith("&"):
            self.background.append(subprocess.Popen(["bash", "-c", f"exec {text[:-1]}"], **self._where()))
            if f"--port {self.port}" in text:
                wait_for(self.port)
        elif text.startswith("export "):
            shown = subprocess.run(
                ["bash", "-c", f"{text}; env -0"], check=True, capture_output=True, **self._where()
            )
            self.variables = dict(pair.split("=", 1) for pair in shown.stdout.decode().split("\0") if pair)
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
                ["bash", "-c", text],
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
                **self._where(),
            )
            codes = {int(expected[1] if expected else 0)}
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
        return {"cwd": self.folder, "env": environment({**self.variables, "PATH": path, "COLUMNS": "80"})}

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


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    master = free_port()
    bound = {"--expect-workers 2": f"--expect-workers 2 --bind 127.0.0.1:{master}"}
    one = Reader(tmp_path, free_port(), {":5557": f":{master}", **bound})
    yield one
    one.stop()


@pytest.mark.parametrize("page", ["gate-in-ci", "headroom-and-hedging", "../how-to/prompts"])
def test_a_tutorial_works_as_written(page, reader, full_size):
    if not full_size:
        reader.replaced |= {f"{line} --dry-run": f"{line} --dry-run {fewer}" for line, fewer in FEWER.items()}
    for step in steps(page):
        if not step.not_run:
            reader.follow(step)


def test_the_tutorial_of_locustfiles_works(reader):
    """Locust's log has the result, so that any verdict on this machine is accepted."""
    reader.replaced |= {word.format(8000): word.format(reader.port) for word in (":{}", "--port {}")}
    reader.accepted = [("", Exit.INVALID), ("", Exit.INCONCLUSIVE)]
    for step in steps("locustfile"):
        if not step.not_run:
            reader.follow(step)
    found = [json.loads(path.read_text()) for path in sorted(reader.folder.glob("runs/*/run.json"))]

    assert [run["state"] for run in found] == ["complete", "complete"]
    assert all(run["conservation"]["ended"]["ok"] for run in found), (
        "a busy machine sends few in eight seconds"
    )
    assert all(run["target"]["url"] == f"http://127.0.0.1:{reader.port}" for run in found)
    assert "--allow-plugins" in reader.printed
    assert "Tailgauge options:" in reader.printed


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tutorial_of_engines_works_with(engine, reader, tmp_path, request, full_size):
    """With llama.cpp a generated model takes the place of the user's, with vLLM the user's own program is started."""
    if engine == "simulated" and not full_size:
        pytest.skip("make verify: a minute; the same commands as with llama.cpp")
    if engine != "simulated":
        reader.accepted += [("FAIL", Exit.FAILED), ("INCONCLUSIVE", Exit.INCONCLUSIVE)]
    with ExitStack() as stack:
        if engine == "llama.cpp":
            model = request.getfixturevalue("tiny_model")
            url = stack.enter_context(serving(model, Need(), tmp_path / "engine.log")).url
            reader.replaced["http://127.0.0.1:8000"] = url
        elif engine == "vllm" and shutil.which("vllm") is None:
            pytest.skip("vllm is not installed")
        else:
            reader.replaced |= {word.format(8000): word.format(reader.port) for word in (":{}", "--port {}")}
        if not full_size:
            reader.replaced["duration_s = 25"] = "duration_s = 8"
        for step in steps("self-hosted-engine"):
            if (
                not step.not_run
                and step.engine in {"", engine}
                and (step.engine, engine) != ("llama.cpp",) * 2
            ):
                reader.follow(step)


def test_every_tutorial_is_run():
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {
        "gate-in-ci",
        "headroom-and-hedging",
        "locustfile",
        "self-hosted-engine",
    }
    marks = {step.engine for step in steps("self-hosted-engine")}

    assert marks == {"", *ENGINES}
