"""Nothing of the current folder is opened, imported or obeyed but what the command line names.

The folder has a module of each name that Python or an installed package has, which says so where it is imported, and the
files from which Locust and others take settings. The kernel says what was opened.
"""

from __future__ import annotations

import re
import signal
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from starting.command import QUICK, commands, free_port, until
from starting.opened import Opened
from starting.programs import TAILGAUGE

SHORT = (
    *QUICK,
    "--set=stages.duration_s=1",
    "--set=stages.warmup_s=0",
    "--set=arrival.rate_per_s=20",
)
PLANTED = "a planted module runs"
SETTINGS = {
    "locust.conf": "this is no option = [\nusers = many\n",
    "pyproject.toml": '[tool.locust]\nusers = "many"\n',
    "setup.cfg": "[tool:pytest]\n",
    ".env": "ANTHROPIC_API_KEY=from-a-file\n",
    ".netrc": "machine 127.0.0.1 login a password b\n",
    "pip.conf": "[global]\n",
    "prices.toml": "[not a price file",
    "tailgauge.toml": "[no scenario",
    "openssl.cnf": "[",
    "ca-certificates.crt": "no certificate",
}
# Made by the commands themselves: folders for their results, and unnamed files that show whether the disk takes one.
MADE = re.compile(r"(runs|reports)/?|#\d+")


def _module_names() -> set[str]:
    names = set(sys.stdlib_module_names)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        names.add(path.name.partition(".")[0])
    names |= {"sitecustomize", "usercustomize", "locustfile", "conftest", "plugin", "streaming"}
    return {name for name in names if name.isidentifier()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for name in _module_names():
        (folder / f"{name}.py").write_text(
            f"import sys\nsys.stderr.write({PLANTED!r})\nsys.exit(1)\n"
        )
    for name, text in SETTINGS.items():
        (folder / name).write_text(text)
    for name in ("anthropic-99.dist-info", "tailgauge-99.dist-info", "locust_plugins-1.dist-info"):
        (folder / name).mkdir()
        (folder / name / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: planted\nVersion: 99\n"
        )
        (folder / name / "entry_points.txt").write_text("[tailgauge.plugins]\nplanted = random\n")
    return folder


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    opened = Opened(folder)
    yield opened
    opened.close()


def _not_named(opened: Opened, *named: str) -> set[str]:
    return {name for name in opened.names() if not MADE.match(name) and name not in named}


LOCUST_VARIABLES = {
    "LOCUST_USERS": "many",
    "LOCUST_EXCLUDE_TAGS": "chat",
    "LOCUST_HEADLESS": "perhaps",
}


@pytest.mark.slow
def test_a_run_its_report_and_a_comparison_open_nothing_else(folder, opened, command):
    done = command(
        ["tailgauge", "run", "streaming", "--concurrency=1,2", "--duration=1s", *QUICK],
        cwd=folder,
        env=LOCUST_VARIABLES,
    )
    assert done.returncode in {0, 1, 3}, done.stderr
    assert PLANTED not in done.stdout + done.stderr
    assert _not_named(opened) == set()
    runs = [str(path.relative_to(folder)) for path in sorted((folder / "runs").iterdir())]

    for arguments in (["report", runs[0]], ["compare", runs[0], runs[1]]):
        done = command(["tailgauge", *arguments], cwd=folder)
        assert done.returncode in {0, 1, 3}, done.stderr
        assert PLANTED not in done.stdout + done.stderr
        assert _not_named(opened) == set()


@pytest.mark.slow("workers")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "streaming", "--workers=2", *SHORT), 0),
        (("scenario", "list"), 0),
        (("docs", "slo"), 0),
        (("run", "no such scenario"), 2),
    ],
    ids=["workers", "list", "docs", "unknown"],
)
def test_other_commands_open_nothing(folder, opened, command, arguments, code):
    done = command(["tailgauge", *arguments], cwd=folder, env=LOCUST_VARIABLES)

    assert done.returncode in {code, 3 if code == 0 else code}, done.stderr
    assert PLANTED not in done.stdout + done.stderr
    assert _not_named(opened) == set()


@pytest.mark.slow
def test_a_named_file_is_opened_and_no_other(folder, opened, command):
    command(["tailgauge", "scenario", "copy", "streaming", "mine.toml"], cwd=folder)
    opened.names()

    done = command(["tailgauge", "run", "mine.toml", "--dry-run", *SHORT], cwd=folder)

    assert done.returncode in {0, 1}, done.stderr
    assert _not_named(opened) == {"mine.toml"}


@pytest.mark.slow
def test_the_web_page_of_a_run_opens_nothing(folder, opened):
    url = f"http://127.0.0.1:{free_port()}"
    line = [TAILGAUGE, "run", "streaming", f"--web={url.rpartition(':')[2]}", *SHORT]
    with commands() as start:
        running = start([*line, "--set=stages.duration_s=60"], folder, LOCUST_VARIABLES, folder)
        until(lambda: urllib.request.urlopen(url, timeout=10))
        for page in ("/", "/tailgauge", "/tailgauge/live.json", "/stats/requests", "/exceptions"):
            with urllib.request.urlopen(url + page, timeout=10) as answer:
                assert answer.status == 200
        running.signal(signal.SIGINT)
        done = running.finish()

    assert PLANTED not in done.stdout + done.stderr
    assert _not_named(opened) == set()


def test_what_is_opened_is_seen(folder, opened):
    """The watch itself: else the tests above could not fail."""
    (folder / "locust.conf").read_text()
    list(folder.glob("*.none"))

    assert _not_named(opened) == {"locust.conf", ""}
