"""Files of users, whatever lies where a file is expected: none is waited for or read without bound, each is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from tailgauge.cli import main
from tailgauge.errors import ScenarioError, UsageError
from tailgauge.plan.resolve import resolve
from tailgauge.rows import text_file
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.text_file import DEEPEST, json_tree, no_number, read_text, text_lines, toml
from tailgauge.scenario import prices
from tailgauge.scenario.model import load, override, parse
from tailgauge_analysis.reading.frames import load as load_run
from tailgauge_analysis.reading.run_record import DAMAGED

HANGS_S = 10
ODD = {
    "a FIFO": "not a regular file",
    "a device": "not a regular file",
    "a socket": "not a regular file",
    "a folder": "a folder, not a file",
    "a circle": "cannot be read: Too many levels of symbolic links",
    "an endless file": "larger than ",
}


@pytest.fixture(autouse=True)
def _no_hang():
    """What would wait for ever, ends the test."""

    def end(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> Path:
    """Something else where a file is expected."""
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = Path.cwd()
            os.chdir(path.parent)  # the name of a socket is short
            bound.bind(path.name)
            os.chdir(here)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a circle":
        path.symlink_to(path)
    else:
        path.touch()
        os.truncate(path, 1 << 42)
    return path


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("arrival.trace.file", "[arrival]\nprocess = 'trace'\n[arrival.trace]\nfile = 'odd'\n"),
        ("traffic.chat.prompts.file", "[traffic.chat]\nprompts.file = 'odd'\n"),
        ("guard.prices", "[guard]\nprices = 'odd'\n"),
    ],
)
def test_a_key_that_names_no_file_is_refused_by_file_and_key(
    tmp_path, monkeypatch, kind, key, table
):
    monkeypatch.chdir(tmp_path)
    put(kind, tmp_path / "odd")
    traffic = "" if "[traffic.chat]" in table else "[traffic.chat]\n"
    Path("mine.toml").write_text(traffic + table)

    with pytest.raises(UsageError) as caught:
        resolve("mine.toml", (), tmp_path)

    where = "odd: " if kind == "an endless file" else f"mine.toml: {key}: odd: "
    assert str(caught.value).startswith(where + ODD[kind])


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_no_scenario_and_no_price_file(tmp_path, kind):
    odd = put(kind, tmp_path / "odd.toml")

    for read in (lambda: load(str(odd)), lambda: prices.read(odd), lambda: list(text_lines(odd))):
        with pytest.raises(UsageError) as caught:
            read()
        assert str(caught.value).startswith(f"{odd}: {ODD[kind]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["run.json", "workers/0.json", "requests/part-0-0.parquet", "target/part-0-0.parquet"]
)
def test_a_run_is_loaded_without_what_is_no_file_of_it(write, name):
    folder = write(n=40, state="running")
    for kind, why in ODD.items():
        path = folder / name
        path.rmdir() if path.is_dir() else None
        put(kind, path)

        found = [problem.text for problem in load_run([folder]).problems]

        text = next(text for text in found if text.startswith(f"{name} "))
        assert why in text or (kind == "an endless file" and "is left out" in text)


@pytest.mark.slow
def test_a_run_folder_with_a_fifo_is_reported_as_a_command(write, tmp_path, command):
    folder = write(n=40)
    put("a FIFO", folder / "chunks/part-0-0.parquet")

    done = command(["tailgauge", "report", folder, "--out", tmp_path], 30)

    assert done.returncode == 3
    (text,) = (path.read_text() for path in tmp_path.glob("reports/*/report.md"))
    assert "chunks/part-0-0.parquet is left out: not a regular file" in text


@pytest.mark.parametrize("argument", ["a" * 300, "a" * 5000, "é" * 200, "x/" * 3000], ids=len)
@pytest.mark.parametrize(
    "line",
    [["run"], ["report"], ["compare", "."], ["scenario", "show"]],
    ids="-".join,
)
def test_a_name_that_no_file_can_have_is_a_clear_error(
    tmp_path, monkeypatch, capsys, line, argument
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tailgauge", *line, argument])

    with pytest.raises(SystemExit) as ended:
        main.main()

    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "internal error" not in error


@pytest.mark.parametrize(
    "key", ["arrival.trace.file", "guard.prices", "target.ca_file", "traffic.*.prompts.file"]
)
@pytest.mark.parametrize(
    ("name", "why"), [("none", "no such file"), ("a" * 300, "cannot be read: File name too long"), ("a\0b", "cannot be read: embedded null byte")]
)  # fmt: skip
def test_a_file_that_is_not_there_is_named_with_the_option_that_names_it(
    tmp_path, monkeypatch, key, name, why
):
    monkeypatch.chdir(tmp_path)
    process = [("arrival.process", "trace"), ("arrival.rate_per_s", 1.0)] if "trace" in key else []

    with pytest.raises(UsageError) as caught:
        resolve("streaming", [*process, (key, name)], tmp_path)

    assert str(caught.value).startswith(f"--set {key.replace('*', 'chat')}: ")
    assert why in str(caught.value)


DIGITS, HEX = "9" * 5000, "0x" + "F" * 9000
WHOLE, FLAT = (
    "expected a whole number of 64 bits",
    f"expected at most {DEEPEST} levels of tables and lists",
)
TEXTS = [
    (f"seed = {DIGITS}", f"line 1: {WHOLE}"),
    (f"# 1\nseed = {DIGITS[:4000]}", f"seed: {WHOLE}"),
    (f"[arrival]\nrate_per_s = {HEX}", f"arrival.rate_per_s: {WHOLE}"),
    (f"[traffic.chat]\nx = [{HEX}]", f"traffic.chat.x.0: {WHOLE}"),
    (f"seed = {2**63}", f"seed: {WHOLE}"),
    (f"seed = 1\nx = {'[' * 5000}{']' * 5000}", f"line 2: {FLAT}"),
    (f"seed = 1\nx = {'{a=' * 5000}1{'}' * 5000}", f"line 2: {FLAT}"),
    (f"x = {'[' * 100}{']' * 100}", f"x.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0: {FLAT}"),
    (f"seed = 1\n{'a.' * 200_000}b = 1", f"line 2: {FLAT}"),
    (f"[{'a . ' * 100_000}b]", f"line 1: {FLAT}"),
    (f"x = {{{'a.' * 60}b = 1}}", f"line 1: {FLAT}"),
    ('"a".' * 60 + "b = 1", f"line 1: {FLAT}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
def test_numbers_and_nesting_without_bound_are_refused_by_line_or_key(tmp_path, text, message):
    mine = tmp_path / "mine.toml"
    mine.write_text(text)

    with pytest.raises(ScenarioError) as caught:
        load(str(mine))

    assert str(caught.value) == f"{mine}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seed={DIGITS}", f"--set seed: {WHOLE}"),
        (f"seed={HEX}", f"--set seed: {WHOLE}"),
        (f"target.sse={{a = [{HEX}]}}", f"--set target.sse: a.0: {WHOLE}"),
        (f"seed={'[' * 3000}", f"--set seed: {FLAT}"),
        (f"{'a.' * 3000}b=1", "--set a.a.a."),
        (f"a={'{a=' * 3000}", f"--set a: {FLAT}"),
    ],
    ids=range(6),
)
def test_so_they_are_on_the_command_line(text, message):
    with pytest.raises(UsageError) as caught:
        override(text)

    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


def test_texts_with_dots_and_brackets_are_no_nesting():
    text = "Yes. " * 300 + "[{" * 300
    tree = toml(
        f"a = '{text}'\nb = \"{text}\"\nc = '''\n[[[{'a b.' * 99}'''\nd = 0.5 # {text}".replace(
            "# Yes", "# No"
        )
    )

    assert tree["a"] == tree["b"] == text
    assert tree["d"] == 0.5


@pytest.mark.parametrize("exponent", [99, 99_999_999, 99_999_999_999])
def test_a_price_of_endless_decimals_is_refused_at_once(tmp_path, exponent):
    mine = tmp_path / "prices.toml"
    rates = "".join(f"{name} = 1\n" for name in prices.RATES[1:])
    mine.write_text(
        f"[[price]]\nmodels = ['m']\nsince = 2026-01-01\ninput = 1e-{exponent}\n{rates}"
    )

    with pytest.raises(
        UsageError, match=r"prices\.toml: price\.0\.input: expected a number of at most 30 decimals"
    ):
        prices.read(mine)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DIGITS, "is not a number of 64 bits"), ("1e999", "is not a number of 64 bits"), ("[-NaN]", "not JSON"),
        ("[" * 100_000, FLAT), ('{"a":' * 500 + "1" + "}" * 500, FLAT), ("", "not JSON"), ("[1,]", "not JSON"),
    ],
    ids=range(7),
)  # fmt: skip
def test_json_has_the_same_bounds(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        json_tree(text, no_number)
    (tmp_path / "t.jsonl").write_text(
        f'{{"prompt_tokens": 5}}\n{{"prompt_tokens": {text or "?"}}}\n'
    )
    (tmp_path / "mine.toml").write_text("[traffic.chat]\nprompts.file = 't.jsonl'\n")
    with pytest.raises(UsageError, match=r"t\.jsonl:2: "):
        resolve(str(tmp_path / "mine.toml"), (), tmp_path)


def test_a_byte_order_mark_is_no_character(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("seed = 5\n[traffic.chat]", encoding="utf-8-sig")
    assert load(str(mine)).seed == 5

    mine.write_text("seed = 5", encoding="utf-16")
    with pytest.raises(ScenarioError, match=r"mine\.toml: line 1: not UTF-8 text: .*UTF-16"):
        load(str(mine))


def test_a_file_or_line_over_its_bound_is_refused(tmp_path, monkeypatch):
    mine = tmp_path / "mine.toml"
    mine.write_text("#" * text_file.LARGEST_TOML)
    assert len(read_text(mine)) == text_file.LARGEST_TOML
    mine.write_text("#" * (text_file.LARGEST_TOML + 1))
    with pytest.raises(UsageError, match=r"mine\.toml: larger than 1 MiB"):
        load(str(mine))

    monkeypatch.setattr(text_file, "LONGEST_LINE", 20)
    mine.write_text("short\n" + "x" * 20 + "\n" + "x" * 21 + "\n")
    with pytest.raises(ScenarioError, match=r"mine\.toml:3: a line of more than 20 characters"):
        list(text_lines(mine))


def test_of_very_many_errors_the_first_are_shown():
    tree = {"name": "x", "traffic": {"chat": {f"key_{number}": 1 for number in range(20_000)}}}

    with pytest.raises(ScenarioError) as caught:
        parse(tree, "mine.toml")

    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[0].startswith("mine.toml: traffic.chat.key_0: unknown key")
    assert lines[-1] == "mine.toml: and 19,980 more errors"


@pytest.mark.parametrize("version", [0, -1, "4", 4.0, True, None, [4], 10**30], ids=repr)
@pytest.mark.parametrize("name", ["run.json", "workers/0.json"])
def test_a_schema_version_that_is_none_is_named_and_the_file_not_used(write, version, name):
    folder = write(n=40, state="running")
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))

    problems = load_run([folder]).problems

    given = None if version == 10**30 else version
    expected = f"{name} is not used: schema_version: expected a whole number from 1 to "
    (problem,) = [one for one in problems if "schema_version" in one.text]
    assert problem.kind == DAMAGED
    assert problem.text.startswith(expected)
    assert problem.text.endswith(f", got {given!r}")


@pytest.mark.slow
def test_a_run_that_is_still_going_on_is_not_reported(write, tmp_path, monkeypatch, capsys):
    """As long as a process holds its mark; a run whose processes are gone is reported at once."""
    going, other = (
        write("going", n=40, state="running", run_id="going"),
        write("other", n=40, run_id="other"),
    )
    held = RunFolder(going).hold("mark")
    children = os.fork()
    if not children:
        signal.pause()
    os.close(held)  # the child has it, as a worker that outlives its master

    def run(*line: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tailgauge", *map(str, line)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    try:
        refused = run("report", going, "--out", tmp_path), run("compare", other, going)
    finally:
        os.kill(children, signal.SIGKILL)
        os.waitpid(children, 0)

    expected = f"tailgauge: {going}: the run is still going on: wait for its end; `tailgauge runs` shows when it is over\n"
    assert refused == ((2, expected), (2, expected))
    assert not (tmp_path / "reports").exists()
    assert run("report", going, "--out", tmp_path)[0] in {3, 5}
    shutil.rmtree(going)
