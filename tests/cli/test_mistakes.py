"""Mistakes that people make on the command line, and the line that they get: what was typed, what is wrong, what to type.

A row is a command, the texts that its message must have, and how many lines it may take. Kinds that need a server stand at
the end. No message repeats a secret.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tailgauge.address import unused_proxy
from tailgauge.cli.main import main
from tailgauge.errors import Exit
from tailgauge.master.preflight_advice import proxy_notes
from tailgauge.master.progress import preflight_failure
from tailgauge.plan.resolve import resolve
from tailgauge.protocols.table import Target
from tailgauge.scenario.objective import Objective, lacks_percentile, proposals
from tailgauge.transport.peer import peer_name

SECRET = "sk-4f9a8b7c6d5e4f3a2b1c"
RUN = "run quickstart --dry-run"


class Done(NamedTuple):
    """What a command has printed on standard error, and its exit code."""

    text: str
    code: int


@pytest.fixture
def tailgauge(tmp_path, monkeypatch, capsys):
    """Run a command line in an empty folder, within this process."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tailgauge", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(capsys.readouterr().err, int(ended.value.code or 0))

    return run


def check(done: Done, expected: tuple[str, ...], lines: int = 1) -> None:
    """One line that begins with the program, says what is expected, and has no secret."""
    assert done.code == Exit.USAGE
    assert done.text.startswith("tailgauge: ")
    assert done.text.count("\n") <= lines
    assert [text for text in expected if text not in done.text] == []
    assert not any(word in done.text for word in ("Traceback", "Usage:", SECRET, "hunter22"))


# --- the command line -------------------------------------------------------------------------------------------------

COMMANDS = {
    "rnu quickstart": ("no such command rnu", "did you mean `tailgauge run`?"),
    "scenario shw": ("no such command shw", "`tailgauge scenario show`"),
    "quickstart": ("did you mean `tailgauge run quickstart`?",),
    "load.toml": ("did you mean `tailgauge run load.toml`?",),
    '"my load.toml"': ("did you mean `tailgauge run 'my load.toml'`?",),
    "frobnicate": ("no such command frobnicate", "run, checkup, compare"),
    "baseline frobnicate": ("Commands of tailgauge baseline: add, list, drop",),
    "compare a b --seed 3": ("--seed is an option of `tailgauge run`",),
    f"{RUN} --dryrun": ("no such option --dryrun; did you mean --dry-run?",),
    f"{RUN} --input-token 5": ("did you mean --input-tokens?",),
    f"{RUN} --zzz": ("no such option --zzz; see `tailgauge run -h`",),
    f"{RUN} --rate": ("--rate: expected a value after it, such as --rate 20",),
    f"{RUN} --rate --json": ("--rate: expected a value after it, such as --rate 20, got --json",),
    f"{RUN} --model": ("expected a value after it, such as --model NAME",),
    f"{RUN} --slo": ("expected a value after it, such as --slo 'ttft p95 < 800ms'",),
    f"{RUN} --json-output": ("no such option --json-output; did you mean --json?",),
    f"{RUN} --output-tokens-max 5": ("did you mean --output-tokens?",),
    f"{RUN} --num-prompt 5": ("did you mean --num-prompts (that is --requests)?",),
    f"{RUN} --stages 30s:20": ("--stages: --rate N --set arrival.shape.kind=ramp",),
    f"{RUN} --host http://127.0.0.1:8731": ("--host: --target http://127.0.0.1:8731",),
    f"{RUN} -u http://127.0.0.1:8731": ("-u: --target http://127.0.0.1:8731",),
    f"{RUN} --timeout 5": ("--set limits.attempt_deadline_s=5",),
    f"{RUN} --timeout {SECRET}": ("--set limits.attempt_deadline_s=60",),
    f"{RUN} --threads 4": ("processes: --workers 4; in flight: --concurrency 4",),
    f"{RUN} --users=9": ("--concurrency 9 keeps 9 in flight",),
    f"{RUN} --top-p 0.9": ("--set 'target.body={top_p = 0.9}'",),
    f"{RUN} --rate-type poisson": ("--rate N: arrivals are Poisson by default",),
    f"{RUN} --rate-type synchronous": ("--concurrency 1 keeps one in flight",),
    f"{RUN} -H 'Authorization: Bearer {SECRET}'": ("-H: export the key as KEY and add --set target.api_key_env=KEY",),
    f"{RUN} --header 'x-api-key: {SECRET}'": ("export the key as KEY and add --set target.api_key_env=KEY",),
    f"{RUN} --api-key {SECRET}": ("--api-key: export it as KEY and add --set target.api_key_env=KEY",),
    f"{RUN} --dataset-name sharegpt": ("--set 'traffic.*.prompts.file=FILE'",),
    f"{RUN} --json=5": ("--json: expected no value",),
    f"{RUN} --rate -1": ("--rate: expected a number above 0, got '-1'",),
    f"{RUN} --rate abc": ("--rate: expected a number above 0, got 'abc'",),
    f"{RUN} --rate 50/s": ("--rate: ", "got '50/s': write 50"),
    f"{RUN} --rate 1,000": ("--rate: ", "write 1000"),
    f"{RUN} --rate nan": ("--rate: expected a number above 0, got 'nan'",),
    "run streaming --dry-run --concurrency 2000 --set limits.in_flight_per_worker=1000": ("--concurrency: expected at most 1,000, got 2,000: limits.in_flight_per_worker is 1,000: raise it, or add workers",),
    f"{RUN} --rate inf": ("--rate: expected a number above 0, got 'inf'",),
    f"{RUN} --duration '5 minutes'": ("--duration: ", "got '5 minutes': write 5m"),
    f"{RUN} --duration 1500ms": ("--duration: ", "write 1.5s"),
    f"{RUN} --duration 0": ("--duration: expected a length of time above 0, for example 60s or 5m, got '0'",),
    f"{RUN} --workers 0": ("--workers 1 on this machine, or --expect-workers N for others",),
    f"{RUN} --workers -1": ("--workers: expected a whole number from 0 to 256, got '-1'",),
    f"{RUN} --requests 1k": ("--requests: ", "write 1000"),
    f"{RUN} --plugin nosuch.py": ("--plugin: nosuch.py: no such file in /",),
    f"{RUN} --plugin mypkg.plugin:Foo": ("give the file: --plugin mypkg/plugin.py",),
    f"{RUN} --plugin mine.toml": ("this is a scenario, a plugin is a Python file: tailgauge run mine.toml",),
    f"{RUN} --plugin 'my own.toml'": ("tailgauge run 'my own.toml'",),
    f"{RUN} --plugin /tmp": ("a folder, not a file: give its Python file",),
    f"{RUN} --seed 1.5": ("--seed: expected a whole number", "got '1.5'"),
    f"{RUN} --clock kernal": ("--clock: expected kernel or user, got 'kernal'; did you mean kernel?",),
    f"{RUN} --protocol OpenAI": ("--protocol: ", "got 'OpenAI'; did you mean openai?"),
    f"{RUN} --protocol opneai": ("--protocol: ", "did you mean openai?"),
    f"{RUN} --duration 5s --requests 9": ("--duration and --requests: ",),
    "scenario copy": ("NAME is missing: tailgauge scenario copy [OPTIONS] NAME [FILE]",),
    "report": ("RUN_DIR is missing: tailgauge report [OPTIONS] RUN_DIR...",),
    "worker": ("--master is missing: add --master HOST:PORT",),
    "worker --master nowhere": ("--master nowhere: expected HOST:PORT: write nowhere:5557",),
    "worker --master http://10.0.0.1:5557": ("without http://: write 10.0.0.1:5557",),
    "run quickstart --web 80x": ("--web 80x: expected a port, such as --web 8089",),
    f"{RUN} --max-cost 0.001 --model zz": ("--max-cost: no price is known for model 'zz'", "guard.prices=FILE", "--max-tokens N"),
    "run quickstart --max-requests 2": ("--max-requests: expected at least ", "got 2"),
    "run quickstart --set guard.max_tokens=3": ("--set guard.max_tokens: expected at least ",),
    "http://127.0.0.1:8731": ("did you mean `tailgauge run streaming --target http://127.0.0.1:8731`?",),
    "runs --older-than 3days": ("got '3days': write 72h",),
    f"{RUN} --duration '2 hours'": ("write 2h",),
    f"{RUN} --out /proc/nowhere": ("--out /proc/nowhere: cannot be written: ", "name another folder"),
    "endpoint --port 99999": ("--port: expected a whole number from 0 to 65,535, got '99999'",),
    "endpoint --profile hiaku": ("--profile: ", "did you mean haiku?"),
    "endpoint --set limits.rmp=1": ("--set simulated.limits.rmp: unknown key; did you mean rpm?",),
    '"http://127.0.0.1:8731/a?b=1&c=2"': ("did you mean `tailgauge run streaming --target 'http://127.0.0.1:8731/a?b=1&c=2'`?",),
    f"http://h:1/{'x' * 300}": ("no such command URL; did you mean `tailgauge run streaming --target URL`?",),
    "http://bob:hunter22@h:1": ("no such command URL; did you mean `tailgauge run streaming --target URL`?",),
    f"run http://h:1/{'x' * 300}": ("expected a scenario, got an address: ", "`tailgauge run streaming --target URL`"),
    "report nothere": ("nothere: no such run folder: there are none here yet: `tailgauge run quickstart` makes one",),
    "report deep/er": ("deep/er: no such run folder: `tailgauge runs` lists them",),
    "report .": (".: not a run folder: ", "`tailgauge runs` lists the run folders"),
    "report . --as vlm": ("--as: expected vllm, ", "did you mean vllm?"),
    "compare .": ("compare takes runs in pairs", "1 given: judge one run with --baseline DIR"),
    "compare a b": ("a: no such run folder: ",),
    "help": ("no such command help; did you mean `tailgauge --help`?",),
    "scenario help": ("did you mean `tailgauge scenario --help`?",),
    "benchmark": ("did you mean `tailgauge run`?",),
    "start streaming": ("did you mean `tailgauge run`?",),
    "Init": ("did you mean `tailgauge scenario copy streaming`?",),
    "version": ("did you mean `tailgauge --version`?",),
    f"{RUN} --prompt 'Why is the sky blue?'": ("--prompt: put it in a file: --set 'traffic.*.prompts.file=FILE'",),
    f"{RUN} --think-time 2": ("--think-time: --set 'arrival={process=\"closed\",closed={think_s=2}}'",),
    f"{RUN} --rate 2 4 8": ("--rate: a list of loads has commas and no spaces: write --rate 2,4,8",),
    f"{RUN} --concurrency=1, 2, 4 --json": ("write --concurrency 1,2,4",),
    "run --request-rate 2.5 5 quickstart": ("write --rate 2.5,5",),
    "checkup --rate 2 4": ("--rate: expected one value, got 2 4",),
    f"{RUN} --output-tokens 50 100": ("--output-tokens: expected one value, got 50 100",),
    f"{RUN} --input-tokens 300,500": ("write 300500 for one number; a list here is no sweep: give one size",),
    f"{RUN} --output-tokens 30,50,70": ("got '30,50,70'; a list here is no sweep: give one size",),
    f"{RUN} --input-tokens 1,000k": ("got '1,000k'",),
    f"{RUN} http://127.0.0.1:8731": ("expected a scenario, got an address: write it with --target, as in `tailgauge run streaming --target http://127.0.0.1:8731`",),
    "run 'https://127.0.0.1:8731/a?b=1&c=2'": ("--target 'https://127.0.0.1:8731/a?b=1&c=2'`",),
    "checkup http://bob:hunter22@h:1": ("expected a scenario, got an address: write it with --target, as in `tailgauge run streaming --target URL`",),
    "run quickstart -dry-run": ("-dry-run: did you mean --dry-run? (two dashes)",),
    "run quickstart -rate=5": ("-rate: did you mean --rate? (two dashes)",),
    "checkup -max-concurrency 5": ("did you mean --max-concurrency? (two dashes)",),
    "run quickstart \u2014dry-run": ("\u2014dry-run: did you mean --dry-run? (two short dashes: --)",),
    "run quickstart \u2013\u2013rate=5": ("did you mean --rate? (two short dashes: --)",),
    "run \u2014zzz": ("(two short dashes: --)",),
    f"{RUN} --slo 'ttft p95 < 800ms and tpot p50 < 30ms'": ("expected one objective per --slo: write --slo 'ttft p95 < 800ms' --slo 'tpot p50 < 30ms'",),
    f"{RUN} --slo 'error_rate < 1%, p95 ttft < 2s; goodput > 99%'": ("--slo 'error_rate < 1%' --slo 'ttft p95 < 2s' --slo 'goodput > 99%'",),
    "runs list": ("no run has 'list' in its name; `tailgauge runs` lists all",),
    "runs rm 0a1b": ("no run has 'rm' in its name; to delete runs: tailgauge runs 0a1b --clean",),
    "runs --out nothere": ("--out nothere: no such folder",),
    "runs --older-than 24": ("got '24': write 24h for hours, or 24s for seconds",),
    "runs --older-than 1.5 --clean --yes": ("write 1.5h for hours",),
    "compare a b --metric ttft_schde": ("--metric ttft_schde: no such metric; did you mean ttft_sched",),
}  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_answered_in_one_line(line, tailgauge):
    check(tailgauge(line), COMMANDS[line])


# --- --set ------------------------------------------------------------------------------------------------------------

SETS = {
    "foo.bar=1": ("--set foo.bar: foo: unknown key. Expected one of: target, ", "`tailgauge docs scenarios` has all"),
    "trafic.chat.weight=1": ("--set trafic.chat.weight: trafic: unknown key; did you mean traffic?",),
    "traffic.caht.weight=5": ("--set traffic.caht.weight: there is no traffic.caht; did you mean chat?",),
    "traffic.zz.weight=5": ("--set traffic.zz.weight: there is no traffic.zz; the scenario has chat",),
    "traffic.chat.prompt_tokns=5": ("--set traffic.chat.prompt_tokns: unknown key; did you mean prompt_tokens?",),
    "traffic.chat.max_tokens=5": ("did you mean output_tokens?",),
    "traffic.chat.prompt_tokens=1k": ("expected a whole number, got '1k': write 1000",),
    "traffic.chat.prompt_tokens=-5": ("expected a number >= 1, got -5",),
    "rate=5": ("--set rate: unknown key; did you mean arrival.rate_per_s?",),
    "concurrency=5": ("did you mean arrival.closed.users?",),
    "duration=5": ("did you mean stages.duration_s?",),
    "target.protocol=grpc": ("expected 'anthropic', 'openai' or 'sse', got 'grpc'",),
    "target.base_url=x": ("did you mean url?",),
    "target=5": ("--set target: expected a table, got 5: set one of its keys, such as target.url",),
    "stages.duration_s=60s": ("--set stages.duration_s: ", "got '60s': write 60, the seconds without a unit"),
    "stages.duration_s=2m": ("write 120, the seconds without a unit",),
    "limits.drain_s=500ms": ("write 0.5, the seconds without a unit",),
    "stop.max_ttft_ms=2s": ("write 2000, the milliseconds without a unit",),
    "stop.min_completed=50%": ("write 0.5",),
    "arrival.rate_per_s=fast": ("--set arrival.rate_per_s: expected a number, got 'fast'",),
    "arrival.process=posson": ("did you mean poisson?",),
    "arrival.rate_per_s=-1": ("--set arrival.rate_per_s: expected a number > 0, got -1",),
    "arrival.rate_per_s=99999999": ("at most 20 million arrivals in duration_s: split the run",),
    "seed=99999999999999999999999": ("--set seed: expected a whole number of 64 bits",),
    "seed": ("--set seed: expected table.key=value, for example --set arrival.rate_per_s=20",),
    f"target.api_key={SECRET}": ("--set target.api_key: unknown key; did you mean api_key_env?",),
    f"target.model={SECRET}": ("--set target.model: looks like a secret by its value",),
}  # fmt: skip


@pytest.mark.parametrize("text", SETS)
def test_a_wrong_override_names_set_and_the_nearest_key(text, tailgauge):
    check(tailgauge(f"{RUN} --set {text}"), SETS[text])


# --- --slo ------------------------------------------------------------------------------------------------------------

OBJECTIVES = {
    "latency p95 < 1s": ("e2e p95 < 1s", "ttft p95 < 1s"),
    "http_req_duration p(99)<500": ("e2e p99 < 500ms",),
    "ttft p95 < 0ms": ("ttft p95 < 800ms",),
    "ttft p95 < 800": ("ttft p95 < 800ms",),
    "ttft p95 < 2": ("ttft p95 < 2s",),
    "p95 ttft < 800ms": ("ttft p95 < 800ms",),
    "p(95)<800": ("ttft p95 < 800ms",),
    "ttft p95 > 800ms": ("ttft p95 < 800ms",),
    "ttft p100 < 1s": ("ttft p99 < 1s",),
    "ttft p999 < 2s": ("ttft p99.9 < 2s",),
    "TTFT P95 < 800MS": ("ttft p95 < 800ms",),
    "ttft_p95 < 800ms": ("ttft p95 < 800ms",),
    "tftt p95 < 800msec": ("ttft p95 < 800ms",),
    "e2e 95th percentile < 2 seconds": ("e2e p95 < 2s",),
    "median ttft under 500 ms": ("ttft p50 < 500ms",),
    "ttft < -5ms": ("ttft p99 < 5ms",),
    "errors < 1%": ("error_rate < 1%",),
    "error_rate < 1": ("error_rate < 1%",),
    "error_rate < 200%": ("error_rate < 1%",),
    "error_rate p95 < 1%": ("error_rate < 1%",),
    "goodput < 99%": ("goodput > 99%",),
    "rps > 40": ("requests_per_s > 40",),
    "requests_per_s > 40ms": ("requests_per_s > 40",),
    "chat: p95 latency <= 2s": ("chat: e2e p95 < 2s", "chat: ttft p95 < 2s"),
    "goodput ttft:800": ("ttft p99 < 800ms",),
    "ttft:800 tpot:50ms": ("ttft p99 < 800ms", "tpot p99 < 50ms"),
    "e2el:2000": ("e2e p99 < 2000ms",),
    "ttft p95 < 800 us": ("ttft p95 < 0.8ms",),
    "fast": ("ttft p99 < 800ms",),
    "": ("ttft p99 < 800ms",),
}  # fmt: skip


@pytest.mark.parametrize("text", OBJECTIVES)
def test_a_wrong_objective_is_answered_with_one_that_is_accepted(text, tailgauge):
    written = " or ".join(map(repr, OBJECTIVES[text]))

    check(tailgauge(f"{RUN} --slo {shlex.quote(text)}"), (f"--slo {text!r}: ", f"write {written}"))
    assert tuple(proposals(text)) == OBJECTIVES[text]
    for proposal in OBJECTIVES[text]:
        Objective.model_validate(proposal)


@pytest.mark.parametrize("text", ["ttft p95 < 800 us", "e2e p99 < 2 min", "tpot < 50 msec"])
def test_a_unit_that_is_none_here_is_named(text, tailgauge):
    unit = text.split()[-1]

    check(
        tailgauge(f"{RUN} --slo {shlex.quote(text)}"),
        (f"{unit} is not a unit of an objective: use ms, s, % or /s",),
    )


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("ttft < 800ms", True),
        ("chat: e2e < 2s", True),
        ("ttft p95 < 800ms", False),
        ("error_rate < 1%", False),
    ],
)
def test_an_objective_without_a_percentile_is_noticed(text, lacks):
    assert lacks_percentile(text) == lacks


@pytest.mark.parametrize("key", ["warmup_s", "cooldown_s"])
def test_stages_of_the_command_line_are_judged_by_its_duration(key, tailgauge, tmp_path):
    (tmp_path / "short.toml").write_text("[traffic.main]\n[stages]\nduration_s = 2\n")
    line = f"run short.toml --dry-run --set stages.{key}=3"

    check(
        tailgauge(f"{line} --duration 3s"),
        (f"--set stages.{key}: ", "leave nothing of duration_s (3)"),
    )
    assert (
        resolve(
            "short.toml", [(f"stages.{key}", 3)], tmp_path, duration_s=5
        ).scenario.stages.duration_s
        == 5
    )


def test_an_objective_on_traffic_that_is_not_there_names_what_is(tailgauge):
    done = tailgauge(f"{RUN} --slo 'caht: ttft p95 < 1s' --slo 'zz: e2e p95 < 2s'")

    check(done, ("--slo 'caht: ttft p95 < 1s': ", "there is no traffic.caht; did you mean chat?"))


# --- scenario files ---------------------------------------------------------------------------------------------------

HEAD = "[traffic.main]\n"
FILES = {
    "empty": (b"", ("mine.toml: has no tables: a scenario needs [traffic.NAME]", "tailgauge scenario copy streaming"), 1),
    "comments": (b"# nothing\n\n", ("mine.toml: has no tables",), 1),
    "no traffic": (b"[target]\nmodel = 'm'\n", ("mine.toml: traffic: there is no table [traffic.NAME]: add one, for example [traffic.main]",), 1),
    "JSON": (b'{"traffic": {"main": {}}}', ("this is JSON: expected a scenario in TOML",), 1),
    "a list": (b'[{"a": 1}]', ("this is JSON",), 1),
    "YAML": (b"traffic:\n  main:\n    weight: 1\n", ("this is YAML",), 1),
    "YAML of documents": (b"---\n- a\n", ("this is YAML",), 1),
    "Python": (b"from locust import task\n", ("this is Python", "locust -f FILE"), 1),
    "HTML": (b"<!doctype html><html></html>", ("this is HTML",), 1),
    "JavaScript": (b"import http from 'k6/http';\n", ("this is JavaScript",), 1),
    "prose": (b"Run the chat load\n", ("this is a text",), 1),
    "UTF-16": (HEAD.encode("utf-16"), ("line 1", "UTF-16", "Save it as UTF-8"), 1),
    "UTF-16 without a mark": (HEAD.encode("utf-16-le"), ("line 1", "UTF-16"), 1),
    "Latin-1": ("[traffic.main]\n# café\n".encode("latin-1"), ("line 2: not UTF-8 text", "'é' in Latin-1"), 1),
    "Windows": ("[traffic.main]\n\n# “a”\n".encode("cp1252"), ("line 3: not UTF-8 text", "Windows-1252"), 1),
    "a program": (b"\x7fELF\x02\x01\x01\0\0", ("it seems to be a program: expected a scenario in TOML", "tailgauge scenario copy streaming"), 1),
    "gzip": (b"\x1f\x8b\x08\0\0", ("it seems to be a gzip file",), 1),
    "binary": (b"a = 1\n\xfe\x01\x02\xff\x03", ("not UTF-8 text: this is a binary file: expected a scenario in TOML", "tailgauge scenario copy streaming"), 1),
    "an open quote": (b'[target]\nurl = "http://h:1\n', ("line 2: the text that begins here has no closing quote\n", "\n        ^"), 3),
    "an open quote of three": (b'description = """a\nb\n', ('line 1: the text that begins here has no closing """',), 3),
    "an open list": (b"plugins = ['a',\n[traffic.main]\n", ("line 1: the [ that opens here has no closing ]\n", "\n            ^"), 3),
    "an open header": (b"[traffic.main\n", ("line 1: the [ that opens here has no closing ]",), 3),
    "lines of a table": (b'[target]\nheaders = {a = "x",\nb = "y"}\n', ("line 2: a table in { } stays on one line",), 3),
    "a word": (b"[target]\nmodel = tiny\n", ('line 2: text needs quotes: write model = "tiny"\n', "  model = tiny\n          ^"), 3),
    "True": (HEAD.encode() + b"stream = True\n", ("line 2: write stream = true",), 3),
    "no value": (b"[target]\nurl =\n", ("line 2: url has no value",), 3),
    "a unit": (b"[stages]\nduration_s = 60s\n", ("line 2: a number has no unit: write duration_s = 60 (seconds)",), 3),
    "two in a line": (b"seed = 1 clock = 'user'\n", ("line 1: expected the end of the line here",), 3),
    "a backslash": (b'description = "C:\\data"\n', ("line 1: a backslash in double quotes needs a second one",), 3),
    "a table twice": (HEAD.encode() + b"[target]\n" + HEAD.encode(), ("line 3: [traffic.main] is there already, in line 1",), 3),
    "a key twice": (b"seed = 1\nseed = 2\n", ("line 2: seed is there already, in line 1",), 3),
    "a typo in a table": (b"[trafic.main]\nweight = 1\n", ("mine.toml: trafic: unknown key; did you mean traffic?",), 1),
    "a typo in a key": (b"[traffic.main]\nprompt_tokns = 5\n", ("traffic.main.prompt_tokns: unknown key; did you mean prompt_tokens?",), 1),
    "a typo in a value": (HEAD.encode() + b"[arrival]\nprocess = 'posson'\n", ("arrival.process: ", "did you mean poisson?"), 1),
    "no name": (b"[traffic]\nprompt_tokens = 5\n", ("traffic.prompt_tokens: ", "a table with a name, [traffic.main]"), 1),
    "a negative number": (HEAD.encode() + b"[arrival]\nrate_per_s = -1\n", ("arrival.rate_per_s: expected a number > 0, got -1",), 1),
    "zero": (HEAD.encode() + b"[arrival]\nrate_per_s = 0\n", ("arrival.rate_per_s: expected a number > 0, got 0",), 1),
    "a huge number": (b"seed = 123456789012345678901234567890\n", ("seed: expected a whole number of 64 bits",), 1),
    "text for a number": (HEAD.encode() + b"[stages]\nduration_s = '60s'\n", ("stages.duration_s: ", "write 60, the seconds without a unit"), 1),
    "a number for text": (HEAD.encode() + b"[target]\nmodel = 5\n", ("target.model: expected text in quotes, got 5",), 1),
    "an objective": (HEAD.encode() + b"[slo]\na = 'p95 ttft < 1s'\n", ("slo.a: ", "write 'ttft p95 < 1s'"), 1),
    "a secret": (f'[target]\napi_key = "{SECRET}\n'.encode(), ("line 2: the text that begins here has no closing quote", "[redacted]"), 2),
    "a password": (b'[target]\nurl = "http://bob:hunter22@h:1\n', ("line 2: ", "[redacted]"), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_answered_with_the_line_and_what_to_write(name, tailgauge, tmp_path):
    data, expected, lines = FILES[name]
    Path(tmp_path / "mine.toml").write_bytes(data)

    check(tailgauge("run mine.toml --dry-run"), expected, lines)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("laod.toml", "laod.toml: no such file; did you mean load.toml?"),
        ("zzz.toml", "zzz.toml: no such file; "),
        ("zzz.toml", " has load.toml"),
        ("nowhere/a.toml", "nowhere/a.toml: no such file: there is no folder nowhere"),
        ("quickstrt.toml", "no such file; did you mean the packaged scenario quickstart?"),
        ("quickstrt", "no packaged scenario of that name; did you mean quickstart?"),
        ("chat", "no packaged scenario of that name; did you mean quickstart or "),
        ("multiturn", "did you mean cached_multi_turn?"),
        ("folder", "folder: a folder, not a file: give one of its files: a.toml"),
        (
            "bare",
            "bare: a folder, not a file: it holds no *.toml file: `tailgauge scenario copy streaming` makes one",
        ),
    ],
)
def test_a_scenario_that_is_not_there_is_answered_with_what_is_near(
    argument, expected, tailgauge, tmp_path
):
    (tmp_path / "load.toml").write_text(HEAD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.toml").write_text(HEAD)
    (tmp_path / "bare").mkdir()

    check(tailgauge(f"run {argument} --dry-run"), (expected,))


def test_a_plugin_that_imports_what_is_missing_names_the_package_and_the_python(
    tailgauge, tmp_path
):
    (tmp_path / "needs.py").write_text("import no_such_package.part\n")
    where = f"install no_such_package into the Python at {sys.executable}"

    check(
        tailgauge(f"{RUN} --plugin needs.py"),
        ("plugin needs.py, line 1: ModuleNotFoundError", where),
    )


def test_a_byte_order_mark_is_no_mistake(tailgauge, tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbf" + HEAD.encode())

    check(tailgauge("run mine.toml --dry-run --set nothing=1"), ("--set nothing: unknown key",))


# --- targets ----------------------------------------------------------------------------------------------------------

URLS = {
    "127.0.0.1:8731": "expected http:// or https:// in front: write http://127.0.0.1:8731",
    "http:127.0.0.1:8731": "write http://127.0.0.1:8731",
    "http:/127.0.0.1:8731": "write http://127.0.0.1:8731",
    "localhost:8000/v1": "write http://localhost:8000/v1",
    "[::1]:8000": "write http://[::1]:8000",
    ":8000": "write http://127.0.0.1:8000",
    "api.example.com/v1": "write https://api.example.com/v1",
    "localhost:99999": "and a port from 1 to 65535: write http://localhost:PORT",
    "http://localhost:99999": "expected a port from 1 to 65535 after localhost, got 99999",
    "http://:8000": "expected a host in front of the port",
    "'http://127.0.0.1 :8000'": "a URL has no spaces: write http://127.0.0.1:8000",
    "htp://127.0.0.1:8000": "write http://127.0.0.1:8000",
    "htps://api.example.com": "write https://api.example.com",
    "ftp://x": "http(s)://HOST",
    "ws://localhost:1": "write http://localhost:1",
    "HTTP://localhost:80": "write http://localhost:80",
    "http://h/#chat": "write http://h/",
    "Simulated": "write simulated",
    "engine": "expected http:// or https:// in front, such as http://127.0.0.1:8000",
    "http://bob:hunter22@h:1": "keys come from the environment, by their variable in target.api_key_env",
    "bob:hunter22@h:1": "must not carry a user name or password",
    f"h:1?key={SECRET}": "looks like a secret",
    "h:1?version=5": "expected http:// or https:// in front",
}  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_a_wrong_url_is_answered_with_the_one_that_was_meant(url, tailgauge):
    check(tailgauge(f"{RUN} --target {url}"), ("--target: ", URLS[url]))


def failure(url: str, kind: str, text: str, status: int | None = None, **target: str) -> str:
    """The message of a target that failed the preflight in this way."""
    call = f"{url}/v1/messages"
    seen = {
        "ended": "x",
        "status": status,
        "error_type": kind,
        "message": text,
        "url": call,
        "model": "tiny",
    }
    return preflight_failure(call, "anthropic", seen, Target(url=url, **target))


FIRST_BYTES = {
    b"HTTP/1.1 400 Bad Request": "this port speaks HTTP without TLS",
    b"<!DOCTYPE HTML>": "this port speaks HTTP without TLS",
    b"\x15\x03\x01\x00\x02": "this port speaks TLS",
    b"SSH-2.0-OpenSSH_9.2": "an SSH server answers here",
    b"220 mail.example ESMTP": "a mail server answers here",
    b"-ERR unknown command": "a Redis server answers here",
    b"what": "",
}


@pytest.mark.parametrize("first", FIRST_BYTES)
def test_a_port_is_named_by_what_comes_first(first):
    assert peer_name(first) == FIRST_BYTES[first]


ENGINE = "http://127.0.0.1:8731"
TLS_ENGINE = "https://127.0.0.1:8731"
FAILED = [
    (
        TLS_ENGINE,
        "tls",
        "TLS handshake failed: X (this port speaks HTTP without TLS)",
        None,
        f"Write {ENGINE}",
    ),
    (
        ENGINE,
        "not_http",
        "not an HTTP/1.1 response, this port speaks TLS",
        None,
        f"Write {TLS_ENGINE}",
    ),
    (ENGINE, "x", "The plain HTTP request was sent to HTTPS port", 400, f"Write {TLS_ENGINE}"),
    (ENGINE, "x", "Client sent an HTTP request to an HTTPS server.", 400, f"Write {TLS_ENGINE}"),
    (ENGINE, "closed", "reset", None, f"If it needs TLS, write {TLS_ENGINE}"),
    (
        ENGINE,
        "not_http",
        "not an HTTP/1.1 response, an SSH server answers here",
        None,
        "Is the port right?",
    ),
    (ENGINE, "x", "no key", 401, "export API_KEY=... and add --set target.api_key_env=API_KEY"),
    (
        ENGINE,
        "x",
        "nothing",
        404,
        "/v1/messages was requested; the base URL is usually http://127.0.0.1:8731 or ",
    ),
]


@pytest.mark.parametrize(("url", "kind", "text", "status", "expected"), FAILED)
def test_a_target_that_cannot_be_used_is_answered_with_what_to_change(
    url, kind, text, status, expected
):
    assert expected in failure(url, kind, text, status)


def test_a_model_that_is_not_there_is_answered_with_the_list_and_the_nearest():
    seen = {
        "ended": "x",
        "status": 404,
        "error_type": "x",
        "model": "Qwen-7",
        "models": ["Qwen-7B", "llama"],
    }
    no_model = preflight_failure(ENGINE, "openai", {**seen, "message": "no such model"})
    no_path = preflight_failure(
        ENGINE, "openai", {**seen, "message": "Not Found", "url": f"{ENGINE}/x/messages"}
    )

    assert no_model.endswith("It lists Qwen-7B, llama. Did you mean Qwen-7B?")
    assert "/x/messages was requested" in no_path
    assert no_path.endswith("Models that it lists (--model NAME): Qwen-7B, llama")


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://b.example/v1/messages", "https://b.example"),
        ("https://b.example/login", "https://b.example/login"),
        ("/api/v1/messages", f"{ENGINE}/api"),
    ],
)
def test_a_redirect_is_answered_with_the_base_url(location, target):
    assert failure(ENGINE, "redirect", location, 301).endswith(f"write --target {target}")


def test_an_error_inside_an_answer_points_to_the_log():
    for kind in ("server_error", "overloaded_error", "boom"):
        seen = {"ended": "server_error", "status": 200, "error_type": kind, "message": "boom"}
        assert "inside its answer: look at its log" in preflight_failure(
            ENGINE, "openai", {**seen, "model": "m"}
        )


def test_a_refused_key_is_named_by_its_variable():
    assert "The key in MY_KEY was refused" in failure(ENGINE, "x", "no", 401, api_key_env="MY_KEY")
    at_provider = failure("https://api.anthropic.com", "x", "no", 401)
    assert (
        "The key in ANTHROPIC_API_KEY was refused: set that variable to another key" in at_provider
    )


@pytest.mark.parametrize(
    ("variable", "url", "named"),
    [
        ("HTTP_PROXY", "http://engine.example", "HTTP_PROXY"),
        ("https_proxy", "https://engine.example", "https_proxy"),
        ("ALL_PROXY", "https://engine.example", "ALL_PROXY"),
        ("HTTPS_PROXY", "http://engine.example", ""),
    ],
)
def test_a_proxy_of_the_environment_is_named_once(variable, url, named, monkeypatch):
    for scheme in ("http", "https", "all"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(variable, "http://bob:hunter22@proxy:3128")
    notes = list(proxy_notes([url, url]))

    assert unused_proxy(url) == named
    assert [
        note.startswith(f"note: the environment variable {named} is not used") for note in notes
    ] == [True] * bool(named)
    assert "hunter22" not in "".join(notes)
    assert (named in failure(ENGINE, "tcp", "Connection refused")) == (
        named in {"HTTP_PROXY", "ALL_PROXY"} or not named
    )
    monkeypatch.setenv("NO_PROXY", "engine.example")
    assert unused_proxy(url) == ""


@pytest.mark.slow("checkup", "run --target simulated")
@pytest.mark.parametrize(
    ("line", "is_noted"), [("run", True), ("checkup", True), ("run --target simulated", False)]
)
def test_a_variable_that_does_not_name_the_target_is_noted(line, is_noted, tailgauge, monkeypatch):
    monkeypatch.setenv("TAILGAUGE_TARGET", "http://bob:hunter22@127.0.0.1:8731")
    command, *options = line.split()
    done = tailgauge(f"{command} quickstart --dry-run --max-requests 99999 {' '.join(options)}")

    assert (
        "the environment variable TAILGAUGE_TARGET is not used: write --target URL" in done.text
    ) == is_noted
    assert "hunter22" not in done.text
