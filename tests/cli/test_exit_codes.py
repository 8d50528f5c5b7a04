"""Exit codes: one order for every command, and the report of a folder ends as its run did."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tailgauge import __main__
from tailgauge.errors import Exit, InternalError

BROKEN = """
import sys
from tailgauge.cli import main
def broken(*_):
    raise ValueError("no such thing: sk-ant-123456789")
main.writable = broken
sys.argv = ["tailgauge", "worker", "--master", "127.0.0.1:1"]
main.main()
"""


def test_of_several_codes_the_gravest_is_returned_wherever_it_stands():
    gravest_first = [Exit(code) for code in (70, 2, 130, 4, 3, 1, 5, 0)]

    assert gravest_first == list(Exit)
    for graver, other in pairwise(gravest_first):
        assert Exit.worst([graver, other]) == Exit.worst([other, graver]) == graver
    assert Exit.worst(iter([Exit.OK, Exit.OK])) == Exit.OK


def test_where_no_run_began_it_was_interrupted():
    assert Exit.worst([]) == Exit.INTERRUPTED


@pytest.mark.slow
def test_the_report_of_a_run_ends_as_the_run_did_and_says_the_same(command, tmp_path):
    """A second is too short for a p95."""
    ran = command(
        ["tailgauge", "run", "quickstart", "--dry-run", "--duration=1", "--out", tmp_path],
        timeout_s=120,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    again = command(["tailgauge", "report", folder, "--out", tmp_path, "--json"], timeout_s=120)
    facts = json.loads(again.stdout)

    assert ran.returncode == again.returncode == facts["exit_code"] == Exit.INCONCLUSIVE
    assert ran.stdout.splitlines()[1].startswith("simulated INCONCLUSIVE  ")
    assert ran.stdout == facts["summary"] + "\n"
    assert facts["result"]["outcome"] == "INCONCLUSIVE"
    assert {one["outcome"] for one in facts["result"]["objectives"]} == {"INCONCLUSIVE"}
    assert facts["measurement"]["verdict"] == facts["verdict"] == "VALID"
    assert facts["conservation"]["ended"]["ok"] == facts["conservation"]["scheduled"]
    (ttft,) = [
        row for row in facts["latency"] if (row["metric"], row["since"], row["population"]) == ("ttft", "scheduled", "offered")
    ]  # fmt: skip
    assert (
        ttft["percentiles"]["p50"]["low"]
        < ttft["percentiles"]["p50"]["value"]
        < ttft["percentiles"]["p50"]["high"]
    )


def test_the_answer_is_as_wide_as_the_terminal_and_has_its_colours(
    write, command, tmp_path, monkeypatch
):
    folder = write(n=500)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    coloured = command(["tailgauge", "report", folder, "--out", tmp_path]).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    plain = command(["tailgauge", "report", folder, "--out", tmp_path]).stdout

    assert coloured.startswith("\x1b[32m")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert max(map(len, plain.splitlines()[:-2])) <= 50


def test_an_internal_error_is_one_line_and_its_traceback_a_file_without_secrets(
    command, monkeypatch, tmp_path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = command([sys.executable, "-c", BROKEN])
    (file,) = tmp_path.iterdir()

    assert done.returncode == Exit.INTERNAL
    assert (
        done.stderr
        == f"tailgauge: internal error: ValueError: no such thing: [redacted] (traceback: {file})\n"
    )
    assert "in broken" in file.read_text()
    assert "sk-ant" not in file.read_text()


@pytest.mark.parametrize("text", ["", "one\ntwo", "x" * 900])
def test_an_internal_error_of_any_text_is_one_line(text, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = str(InternalError.of(ValueError(text)))

    assert shown.startswith("internal error: ValueError: ")
    assert "\n" not in shown
    assert len(shown) < 300 + len(str(tmp_path))
    assert Path(shown.rpartition("traceback: ")[2].rstrip(")")).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("line", ["scenario list", "run quickstart --duration 1s"])
def test_output_that_cannot_be_written_is_no_internal_error(line, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tailgauge", *line.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip

    assert done.returncode == Exit.USAGE
    assert done.stderr.endswith(
        "tailgauge: the output cannot be written: No space left on device\n"
    )
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_commands_are_loaded_is_silent(monkeypatch, capsys):
    class Interrupted:
        """Ctrl-C comes when the commands are looked for."""

        @staticmethod
        def find_spec(name, *_):
            if name == "tailgauge.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tailgauge.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()

    assert ended.value.code == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_ctrl_c_in_a_worker_that_waits_says_that_no_master_answered(tmp_path):
    """The worker waits once it has connected: nothing answers there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        master = f"127.0.0.1:{listener.getsockname()[1]}"
        worker = subprocess.Popen(
            [sys.executable, "-m", "tailgauge", "worker", "--master", master],
            stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "TAILGAUGE_TOKEN": "0" * 32},
        )  # fmt: skip
        connection, _ = listener.accept()
        with connection:
            worker.send_signal(signal.SIGINT)
            text = worker.communicate(timeout=60)[1]

    assert worker.returncode == Exit.INTERRUPTED
    assert text == f"tailgauge: interrupted: no master answered at {master}\n"
