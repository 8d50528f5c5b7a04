"""The tutorials, and the page on prompts, work as written: each is run from its Markdown, command by command, in an empty folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from docs.page_reader import TUTORIALS, Reader, free_port, steps
from real_engine.conftest import Need, serving, tiny_model  # noqa: F401 - a fixture

from tailgauge.errors import Exit

ENGINES = ("simulated", "llama.cpp", "vllm")
# Experiments of fewer runs, for `make test`.
FEWER = {
    "run headroom.toml": "--set experiment.minutes=5 --set experiment.headroom.confirm=1",
}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    master = free_port()
    bound = {"--expect-workers 2": f"--expect-workers 2 --bind 127.0.0.1:{master}"}
    one = Reader(tmp_path, free_port(), {":5557": f":{master}", **bound})
    yield one
    one.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["gate-in-ci", "headroom-and-hedging", "../how-to/prompts"])
def test_a_tutorial_works_as_written(page, reader, full_size):
    if not full_size:
        reader.replaced |= {
            f"{line} --dry-run": f"{line} --dry-run {fewer}" for line, fewer in FEWER.items()
        }
    for step in steps(page):
        if not step.not_run:
            reader.follow(step)


@pytest.mark.slow
def test_the_tutorial_of_locustfiles_works(reader):
    """Locust's log has the result, so that any verdict on this machine is accepted."""
    reader.replaced |= {
        word.format(8000): word.format(reader.port) for word in (":{}", "--port {}")
    }
    reader.replaced["-t 8s"] = "-t 16s"  # a busy machine takes seconds to start, which count
    reader.accepted = [("", Exit.INVALID), ("", Exit.INCONCLUSIVE)]
    for step in steps("locustfile"):
        if not step.not_run:
            reader.follow(step)
    found = [json.loads(path.read_text()) for path in sorted(reader.folder.glob("runs/*/run.json"))]
    (diff,) = [step.text for step in steps("locustfile") if step.is_diff]
    assert sum(line[0] in "+-" for line in diff.splitlines()) <= 5

    assert [run["state"] for run in found] == ["complete", "complete"]
    assert all(run["conservation"]["ended"]["ok"] for run in found), (
        "a busy machine sends few in eight seconds"
    )
    assert all(run["target"]["url"] == f"http://127.0.0.1:{reader.port}" for run in found)
    assert "--allow-plugins" in reader.printed
    assert "Tailgauge options:" in reader.printed


@pytest.mark.slow
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
            reader.replaced |= {
                word.format(8000): word.format(reader.port) for word in (":{}", "--port {}")
            }
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
