"""Every command block of the README, the tutorials and the how-to pages is run, or says why it is not.

`make test` looks at the options of all of them and runs the first scenario of the reference; `make verify` runs all pages, with
shorter runs. Each page is followed in a folder of its own, and all use one simulated endpoint. The tutorials and the page on prompts are run by test_tutorials.py.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from docs.page_reader import ROOT, Reader, Step, free_port, patched, sides, steps
from starting.endpoint import endpoint

from tailgauge.cli.main import cli
from tailgauge.errors import Exit

SHORT = {
    "--duration 60s": "--duration 3s",
    "--duration 120s": "--duration 3s",
    "--requests 100": "--requests 24",
}
MODEL = {"my-model": "tiny"}
LOCUST_PORT = str(free_port())  # of a page whose first master may still make its report
# Page -> what is put in the place of its hosts, lengths and names. `@url` is the endpoint, `@port` a free port.
PAGES: dict[str, Mapping[str, str]] = {
    "README": {
        "http://127.0.0.1:8000": "@url", "NAME": "tiny", "--concurrency 2,4,8": "--concurrency 1,2,4 --dry-run", "-t 60s": "-t 8s", "--target URL": "--target @url",
        "experiment.kind=headroom": "experiment.kind=headroom --dry-run --set experiment.minutes=5", **SHORT,
    },
    "how-to/from-vllm-and-guidellm": {
        "http://127.0.0.1:8000": "@url", "RUN_ID": "$(ls runs | tail -n 1)", "--concurrency 2,4,8": "--concurrency 1,2,4 --dry-run",
        **MODEL, **SHORT,
    },
    "how-to/from-aiperf": {"http://127.0.0.1:8000": "@url", **MODEL, **SHORT},
    "how-to/from-k6": {"http://127.0.0.1:8000": "@url", **MODEL, **SHORT},
    "how-to/from-locust": {"http://127.0.0.1:8000": "@url", **MODEL, **SHORT},
    "how-to/baselines": {"seq 1 10": "seq 1 5", "--duration 60s": "--duration 20s", "results/runs/*": "build/runs/*"},
    "how-to/ci": {'"$TARGET"': "@url --duration 3s"},
    "how-to/compare": {
        "seq 1 20": "seq 1 2", "run hedged": "run hedged --dry-run --duration 5s",
        "run curve": "run curve --dry-run --set experiment.curve.loads=[2,6,18]",
    },
    "how-to/gateway": {
        "http://10.0.0.9:8000": "@url", "http://10.0.0.7:4000": "@url", "tailgauge run gateway  ": "tailgauge run gateway --duration 12s", "run gateway --target": "run gateway --duration 12s --target",
        **MODEL,
    },
    "how-to/keep-answers": {
        "https://my-gateway": "@url", "RUN_ID": "*", "0.jsonl": "0.jsonl --port @port &", "http://127.0.0.1:8000": "http://127.0.0.1:@port",
    },
    "how-to/live": {"--workers 4": "--workers 2", "8089": "@port --duration 3s"},
    "how-to/many-machines": {
        "scenarios/": str(ROOT / "scenarios") + "/", "locustfiles/": str(ROOT / "locustfiles") + "/",
        "http://10.0.0.9:8000": "@url", "--expect-workers 8": "--expect-workers 1",
        "--bind 10.0.0.5": "--bind 127.0.0.1:@port --duration 3s &", "10.0.0.5:5557": "127.0.0.1:@port",
        "--master-bind-host 10.0.0.5": f"--master-bind-host 127.0.0.1 --master-bind-port {LOCUST_PORT} -t 4s", "--host @url": "--host @url &",
        "--master-host 10.0.0.5": f"--master-host 127.0.0.1 --master-port {LOCUST_PORT}",
        "20261121T211604Z-quickstart-84af from-b/20261121T211604Z-quickstart-84af": "$(ls runs | tail -n 1)",
    },
    "how-to/plugins": {"runs/RUN_ID": "$(ls -d runs/* | tail -n 1)"},
    "reference/scenarios": {"run chat.toml": "run chat.toml --dry-run"},
}  # fmt: skip
FOLLOWED_ELSEWHERE = {
    "how-to/prompts",
    "tutorials/gate-in-ci",
    "tutorials/headroom-and-hedging",
    "tutorials/locustfile",
    "tutorials/self-hosted-engine",
}
# Why a block cannot be run here, and in how many blocks.
NOT_RUN = {
    "a command of another tool": 1,
    "commands of other tools": 1,
    "it depends on the engine": 1,
    "it installs packages": 1,
    "it needs Docker": 3,
    "it needs a bucket": 1,
    "it needs a cluster": 3,
    "it needs a key and costs money": 1,
    "it needs a key, costs money and takes 45 minutes": 1,
    "it needs a second machine": 1,
    "make runs this": 1,
    "until Ctrl-C": 2,
}
GATED = {
    "how-to/ci": "load/chat.toml",
    "how-to/keep-answers": "chat.toml",
}  # the scenario of a tutorial
ENDED = (Exit.OK, Exit.FAILED, Exit.INCONCLUSIVE, Exit.INVALID)  # of a short run on a busy machine


def page_steps(page: str) -> list[Step]:
    return list(steps(f"../{page}" if "/" in page else f"../../{page}"))


def pages() -> dict[str, list[Step]]:
    """The steps of every page whose commands are run."""
    paths = [ROOT / "README.md", *(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]  # fmt: skip
    names = [path.relative_to(ROOT / "docs" if "docs" in path.parts else ROOT).with_suffix("").as_posix() for path in paths]  # fmt: skip
    return {name: page_steps(name) for name in (*names, "reference/scenarios")}


def commands(found: list[Step]) -> list[Step]:
    return [step for step in found if not step.file and not step.printed]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with endpoint("--set=ttft_ms=30", "--set=chunk_gap_ms=2") as server:
        yield server.url


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path, free_port(), {})
    one.accepted = [("", code) for code in ENDED]
    yield one
    one.stop()


@pytest.mark.slow("README]", "how-to/")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(page: str, reader: Reader, target: str):
    values = {"@url": target, "@port": str(reader.port)}
    for old, new in PAGES[page].items():
        texts = [old, new]
        for name, value in values.items():
            texts = [text.replace(name, value) for text in texts]
        reader.replaced[texts[0]] = texts[1]
    if page in GATED:
        (scenario,) = [step for step in page_steps("tutorials/gate-in-ci") if step.file]
        reader.follow(Step(scenario.text, file=GATED[page]))
    followed = page_steps(page)
    for step in [*(step for step in followed if step.file), *commands(followed)]:
        if not step.not_run:
            reader.follow(step)
    for process in reader.background:
        if " endpoint " not in process.args[2]:
            assert process.wait(60) in ENDED, process.args


@pytest.mark.parametrize("page", ["README", "tutorials/locustfile"])
def test_an_http_user_needs_a_change_of_three_lines(page: str):
    followed = page_steps(page)
    (diff,) = [step for step in followed if step.is_diff]
    files = [step.text for step in followed if step.file == diff.file]
    before = files[0] if files[0] != diff.text else sides(diff.text)[0]
    after = patched(before, diff.text)

    assert "class Chat(HttpUser):" in before
    assert "class Chat(StreamingUser):" in after
    assert set(before.splitlines()) - set(after.splitlines()) <= {
        "from locust import HttpUser, between, task",
        "class Chat(HttpUser):",
    }
    assert len([line for line in diff.text.splitlines() if line[0] == "+"]) <= 3
    compile(before, "before", "exec")
    compile(after, "after", "exec")


def test_every_block_is_run_or_has_a_reason():
    found = pages()
    run = {page for page, of in found.items() if any(not step.not_run for step in commands(of))}
    reasons = Counter(
        reason
        for page in found
        for reason in re.findall(
            r"^<!-- not run: (.+) -->$", (ROOT / source(page)).read_text("utf-8"), re.MULTILINE
        )
    )

    assert run == {*PAGES, *FOLLOWED_ELSEWHERE}
    assert reasons == NOT_RUN


def source(page: str) -> str:
    return f"docs/{page}.md" if "/" in page else f"{page}.md"


def test_every_command_of_a_page_has_options_that_exist():
    """Also of those that are not run."""
    unknown = {
        page: options
        for page, of in pages().items()
        if (options := [option for step in commands(of) for option in unknown_options(step.text)])
    }

    assert unknown == {}


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("tailgauge run streaming --users 5 --rate 2", ["--users"]),
        ("for x in 1; do tailgauge compare a b --allow=hosts --theshold 3; done", ["--theshold"]),
        ("tailgauge baseline add f runs/* --keep 3  # --nothing", ["--keep"]),
        ("export A=1; tailgauge worker --master h:1", []),
    ],
)
def test_an_option_that_does_not_exist_is_found(line: str, options: list[str]):
    assert unknown_options(line) == options


def unknown_options(text: str) -> list[str]:
    found = []
    for line in re.findall(r"(?<![\w/])tailgauge ([a-z][^\n|;&)]*)", text):
        command = cli
        arguments = shlex.split(line, comments=True)
        while arguments and arguments[0] in getattr(command, "commands", {}):
            command = command.commands[arguments.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
        found += [option for option in options if option not in known]
    return found
