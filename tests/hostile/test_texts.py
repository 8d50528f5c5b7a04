"""Texts that would take over a terminal, in every place that a user, a file or a folder can put one: none gets there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starting.programs import environment

pytestmark = pytest.mark.patient

CODES = {
    "clear": "\x1b[2J", "title": "\x1b]0;owned\x07", "clipboard": "\x1b]52;c;aGk=\x07", "hidden": "\x1b[8m", "link": "\x1b]8;;http://x\x1b\\",
    "cursor": "\x1b[1A", "charset": "\x1b(0", "device": "\x1bP$q\x1b\\", "escape": "\x1b", "bell": "\x07", "backspace": "\x08\x08\x08", "return": "\r",
    "delete": "\x7f", "C1": "\x9b2J", "next line": "\x85", "right to left": "\u202e", "isolate": "\u2066", "mark": "\u200f", "order mark": "\ufeff",
    "tag": "\U000e0041",
}  # fmt: skip
SHAPES = {"alone": "{}", "within": "a{}b", "often": "{0}x{0}{0}"}
TEXTS = {
    f"{code}, {shape}": form.format(text)
    for code, text in CODES.items()
    for shape, form in SHAPES.items()
}
ALLOWED = re.compile(r"\x1b\[(?:[0-2]|[39][0-7])m|[\n\t]")  # our colours
HARMFUL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)

RUN_ALL = """
import contextlib, io, json, sys
from tailgauge.cli import main
found = []
for line in json.load(sys.stdin):
    out, sys.argv = io.StringIO(), ["tailgauge", *line]
    out.isatty = lambda: True
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
    found.append([code, out.getvalue()])
print(json.dumps(found))
"""


def harmful(text: str) -> list[str]:
    return HARMFUL.findall(ALLOWED.sub("", text))


def answers(lines: list[list[str]], cwd: Path) -> list[tuple[int, str]]:
    """What commands say to a terminal that shows colours, one after the other in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        check=True,
        env=environment({"FORCE_COLOR": "1"}),
    )
    return [(code, text) for code, text in json.loads(done.stdout)]


PLACES: dict[str, Callable[[str], list[str]]] = {
    "command": lambda text: [text],
    "option": lambda text: ["run", "quickstart", f"--{text}"],
    "option's value": lambda text: ["run", "quickstart", "--workers", text],
    "objective": lambda text: ["run", "quickstart", "--slo", text, "--dry-run"],
    "scenario": lambda text: ["run", text],
    "target": lambda text: ["run", "quickstart", "--target", text, "--dry-run"],
    "key": lambda text: ["run", "quickstart", "--set", f"traffic.{text}=1", "--dry-run"],
    "value": lambda text: ["run", "quickstart", "--set", f"arrival.process={json.dumps(text)}", "--dry-run"],
    "prompt file": lambda text: ["run", "quickstart", "--set", f"prompts.file={json.dumps(text)}", "--dry-run"],
    "plug-in": lambda text: ["run", "quickstart", "--plugin", f"{text}.py", "--dry-run"],
    "run": lambda text: ["report", text],
    "two runs": lambda text: ["compare", text, text],
    "list of runs": lambda text: ["runs", text],
    "out": lambda text: ["runs", "--out", text],
    "page of the docs": lambda text: ["docs", text],
    "search": lambda text: ["docs", "search", text],
    "packaged scenario": lambda text: ["scenario", "show", text],
    "baseline": lambda text: ["baseline", "list", text],
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_no_word_of_a_command_line_reaches_the_terminal_as_it_is(tmp_path, place):
    lines = [PLACES[place](text) for text in TEXTS.values()]
    for name, (_, output) in zip(TEXTS, answers(lines, tmp_path), strict=True):
        assert harmful(output) == [], (name, output)
        assert "Traceback" not in output


FILES: dict[str, Callable[[str], str]] = {
    "a key": lambda text: f"[traffic.chat]\n{json.dumps(text)} = 1\n",
    "a table": lambda text: f"[{json.dumps(text)}]\na = 1\n",
    "a value": lambda text: f"[arrival]\nprocess = {json.dumps(text)}\n",
    "no TOML": lambda text: f"[traffic.chat\n{text} = 1\n",
    "a name": lambda text: f"name = {json.dumps(text)}\n[arrival]\nrate_per_s = 'x'\n",
    "traffic": lambda text: f"[traffic.{json.dumps(text)}]\npattern = 'x'\n",
    "a prompt file": lambda text: f"[prompts]\nfile = {json.dumps(text)}\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_nothing_in_a_scenario_reaches_the_terminal_as_it_is(tmp_path, kind):
    lines = []
    for number, text in enumerate(TEXTS.values()):
        file = tmp_path / f"{number}.toml"
        file.write_text(FILES[kind](text), encoding="utf-8", newline="")
        lines.append(["run", str(file), "--dry-run"])
    for name, (_, output) in zip(TEXTS, answers(lines, tmp_path), strict=True):
        assert harmful(output) == [], (name, output)
        assert "Traceback" not in output


def test_no_name_of_a_file_or_folder_reaches_the_terminal_as_it_is(tmp_path):
    """A scenario, a run folder that is empty, damaged or of something else, and lines of a prompt file."""
    lines = []
    for number, text in enumerate(text.replace("/", "|") for text in TEXTS.values()):
        folder = tmp_path / "out" / "runs" / f"{number}{text}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(
            ["", "{", '{"schema": 1}', json.dumps({"run_id": text})][number % 4]
        )
        scenario = tmp_path / f"{number}{text}.toml"
        scenario.write_text(f"[{number}")
        lines += [
            ["report", str(folder)],
            ["compare", str(folder), str(folder)],
            ["run", str(scenario)],
        ]
    lines.append(["runs", "--out", str(tmp_path / "out")])
    for line, (_, output) in zip(lines, answers(lines, tmp_path), strict=True):
        assert harmful(output) == [], (line, output)
        assert "Traceback" not in output


SCENARIO = """
name = "hostile"
[target]
url = "simulated"
model = {0}
[arrival]
process = "constant"
rate_per_s = 20
[stages]
duration_s = 12
warmup_s = 2
[traffic.{1}]
prompt_tokens = 20
output_tokens = 5
[slo]
fast = "ttft p95 < 1ms"
"""


def test_what_a_run_writes_and_says_holds_none(tmp_path):
    """Names out of the scenario in the report's page, its Markdown, JUnit and the terminal, each with many texts."""
    every = "".join(TEXTS.values())
    file = tmp_path / "hostile.toml"
    file.write_text(SCENARIO.format(json.dumps(every[:150]), json.dumps("chat")), encoding="utf-8")
    ((code, output),) = answers([["run", str(file), "--dry-run", "--out", str(tmp_path)]], tmp_path)

    assert harmful(output) == [], output
    written = [
        path
        for path in (tmp_path / "reports").rglob("*")
        if path.suffix in {".html", ".md", ".xml"}
    ]
    assert len(written) >= 3, (code, output)
    for path in written:
        text = re.sub(
            r"(?s)<script.*?</script>", "", path.read_text(encoding="utf-8")
        )  # Plotly's has some
        assert harmful(text) == [], path
