"""A locustfile of a user: tasks that stream, a shape, an HttpUser beside them; alone, with workers, with the web page.

Rule: the endpoint's log says what reached it, tasks count themselves, and the rows must agree with both.
"""

from __future__ import annotations

import io
import json
import signal
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import Finished, Running, Start, free_port, until
from starting.programs import LOCUST

TTFT_MS = 80
# Each task notes itself in a file of its process: what the rows have must be what the tasks did.
LOCUSTFILE = """
import json, os
from pathlib import Path
from locust import HttpUser, LoadTestShape, between, task
from tailgauge import StreamingUser

def note(**what):
    with Path(os.environ["NOTES"], f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\\n")

class Chat(StreamingUser):
    weight = 2
    wait_time = between(0.05, 0.15)
    protocol = "openai"
    model = "tiny"

    @task(3)
    def short(self):
        answer = self.stream(prompt="Say hello", max_tokens=5, tags={"kind": "quick"})
        note(task="short", ok=answer.ok, text=answer.text, ttft_ms=answer.ttft_ms, e2e_ms=answer.e2e_ms,
             status=answer.status, output_tokens=answer.usage["output_tokens"])

    @task
    def long(self):
        response = self.ask_at_length()
        answer = response.answer
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert sum(line.startswith(b"data: {") for line in response.iter_lines()) > 5
        note(task="long", ok=answer.ok, text=answer.text, ttft_ms=answer.ttft_ms, e2e_ms=answer.e2e_ms,
             status=answer.status, output_tokens=answer.usage["output_tokens"])

    def ask_at_length(self):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 20,
                "stream": True, "stream_options": {"include_usage": True}}
        return self.client.post("/v1/chat/completions", json=body, name="long", stream=True)

class Status(HttpUser):
    wait_time = between(0.1, 0.3)

    @task
    def models(self):
        self.client.get("/v1/models")
        note(task="models")
"""
SHAPE = """
class Shape(LoadTestShape):
    def tick(self):
        done = self.runner.stats.num_requests
        return next(((users, 20) for until, users in ((15, 4), (60, 8)) if done < until), None)
"""


def server_log(url: str, run: str) -> pd.DataFrame:
    with urllib.request.urlopen(
        f"{url}/tailgauge/server-log?run={run}&settled", timeout=10
    ) as response:
        return pd.read_parquet(io.BytesIO(response.read()))


class UserFile:
    """The locustfile in a folder, and the notes of its tasks."""

    def __init__(self, folder: Path, text: str) -> None:
        self.notes, self.file = folder / "notes", folder / "chat.py"
        self.notes.mkdir()
        self.file.write_text(text)
        self.env = {"NOTES": str(self.notes)}

    def noted(self) -> pd.DataFrame:
        lines = [line for path in self.notes.iterdir() for line in path.read_text().splitlines()]
        return pd.DataFrame([json.loads(line) for line in lines])


@pytest.fixture
def user_file(tmp_path: Path) -> UserFile:
    return UserFile(tmp_path, LOCUSTFILE)


@pytest.fixture
def target(endpoint: Callable[..., str]) -> str:
    return endpoint(
        f"--set=simulated.ttft_ms={TTFT_MS}",
        "--set=simulated.ttft_sigma=0",
        "--set=simulated.chunk_gap_ms=5",
    )


def assert_rows_are_tasks(run: RunData, user_file: UserFile, url: str) -> pd.DataFrame:
    """Rows = tasks = what the named host received; returns the rows."""
    counts = assert_conserved(run)
    rows, noted = run.requests(), user_file.noted()
    noted = noted[noted.task != "models"]
    attempts = run.attempts()
    received = server_log(url, run.facts["run_id"])
    assert run.facts["target"]["url"] == url
    assert not run.facts["target"]["simulated"]
    assert counts["scheduled"] == counts["dispatched"] == len(rows) == len(attempts) > 10
    assert len(received[received.request_id >= 0]) == len(rows), (
        "each reached the host that was named"
    )
    ok = rows[rows.ended == "ok"]
    assert ok.name.value_counts().to_dict() == noted.task.value_counts().to_dict()
    assert set(rows.traffic) == {"Chat"}
    tags = {json.loads(one)["task"]: json.loads(one) for one in rows.tags}
    assert tags == {"short": {"task": "short", "kind": "quick"}, "long": {"task": "long"}}
    assert ok.asked_output_tokens.groupby(ok.name).first().to_dict() == {"short": 5, "long": 20}
    assert noted.ok.all()
    assert (noted.text.str.len() > 0).all()
    assert set(noted.status) == {200}
    assert set(zip(noted.task, noted.output_tokens, strict=True)) == {("short", 5), ("long", 20)}
    return rows


def assert_statistics(stdout: str, user_file: UserFile, *, by_workers: bool = False) -> None:
    """Locust's statistics have the tasks of both classes under their names.

    Once the calls have ended, a master waits half a second for the last statistics of its workers. Requests to a plain host
    go on until then: on a busy machine Locust misses some.
    """
    counted = {
        (one["name"], one["method"]): (one["num_requests"], one["num_failures"])
        for one in json.loads(stdout)
    }
    noted = user_file.noted().task.value_counts()
    for name in ("short", "long"):
        assert counted[name, "total"] == counted[name, "TTFT"] == (noted[name], 0)
    assert counted["long", "headers"] == (noted["long"], 0)
    assert ("short", "headers") not in counted
    requests, _ = counted["/v1/models", "GET"]
    assert by_workers or noted["models"] <= requests


@pytest.mark.slow
def test_tasks_a_shape_and_an_http_user_in_one_process(start, user_file, target):
    text = user_file.file.read_text() + SHAPE
    user_file.file.write_text(text.replace('    model = "tiny"\n', f'    model = "tiny"\n    host = "{target}"\n').replace(
        "class Status(HttpUser):\n", f'class Status(HttpUser):\n    host = "{target}"\n'))  # fmt: skip

    done = start(
        "-f", str(user_file.file), "--headless", "--json", program=LOCUST, env=user_file.env
    ).finish()

    run = done.run
    rows = assert_rows_are_tasks(run, user_file, target)
    assert_statistics(done.stdout, user_file)
    assert (run.facts["state"], run.facts["arrival"]) == ("complete", "closed")
    text = done.report_text
    assert "Closed loop: a user waits for its answer" in text
    assert f"| Reproduce | `locust -f {user_file.file} --headless` |" in text
    assert done.stderr.splitlines()[-1].startswith(f"exit code {done.code}")
    assert done.stderr.count("exit code") == 1
    assert "users wait: 2 short calls try the target before the first task" in done.stderr
    assert (
        done.stderr.count("\nHttpUser  With stream")
        == done.stderr.count("\nHttpUser  Without")
        == 1
    )
    assert 4 <= rows.session_id.nunique() <= 6, "as many users as the shape has of this class"
    assert (rows.dispatched_at_ns >= rows.scheduled_at_ns).all()
    attempts = run.table("attempts").merge(
        server_log(target, run.facts["run_id"]), on=["request_id", "leg", "attempt"]
    )
    exact = attempts[attempts.first_content_at_ns.notna() & attempts.first_content_low_at_ns.isna()]
    written = exact.chunk_sent_at_ns.map(lambda sent: sent[0])
    assert len(exact) > 10
    assert ((exact.first_content_at_ns - written).abs() / 1e6).median() < 3, (
        "kernel times agree with the server's log"
    )
    by_tasks = user_file.noted().dropna(subset="ttft_ms")
    assert (by_tasks.ttft_ms >= TTFT_MS).all(), "no sooner than the endpoint answers"
    by_rows = (run.attempts().first_content_at_ns - rows.scheduled_at_ns.to_numpy()) / 1e6
    assert sorted(by_tasks.ttft_ms) == pytest.approx(sorted(by_rows), abs=1e-3), (
        "what a task sees is what is recorded"
    )
    assert done.code in {0, 3, 5}, done.stderr  # the verdict depends on the machine


@pytest.mark.slow
def test_the_run_time_counts_from_the_first_request(start, user_file, target):  # fmt: skip
    user_file.file.write_text(f"import time\ntime.sleep(6)\n{user_file.file.read_text()}")
    line = f"-f {user_file.file} --headless -u 6 -r 6 -t 7s --host {target}"

    done = start(*line.split(), program=LOCUST, env=user_file.env).finish()

    sent = done.run.requests().scheduled_at_ns
    assert sent.max() - sent.min() > 6e9, "7 s from the first request on"
    end = done.stderr[done.stderr.index("making the report") :]
    assert end.count("\nType ") == 2, "the last statistics and their percentiles"
    assert "\nreport  " in done.stdout
    assert done.stdout.splitlines()[-1] == f"exit code {done.code}"
    assert f"-t 7s --host {target}" in done.report_text


def with_two_workers(
    start: Start, user_file: UserFile, target: str, *options: str
) -> tuple[Running, list[Running]]:
    """A master of Locust and its workers."""
    port, file = free_port(), str(user_file.file)
    line = f"--master --master-bind-port={port} --headless -u 6 -r 6 --expect-workers=2 --host {target}"
    master = start("-f", file, *line.split(), *options, program=LOCUST, env=user_file.env)
    worker = ("-f", file, "--worker", f"--master-port={port}")
    return master, [start(*worker, program=LOCUST, env=user_file.env) for _ in range(2)]


@pytest.mark.slow
def test_a_master_and_two_workers_share_the_tasks(start, user_file, target):
    master, workers = with_two_workers(start, user_file, target, "--json", "-t", "10s")

    done = master.finish()

    assert [worker.finish(30).code for worker in workers] == [0, 0]
    assert done.stderr.splitlines()[-1].startswith(f"exit code {done.code}")
    run = done.run
    rows = assert_rows_are_tasks(run, user_file, target)
    assert_statistics(done.stdout, user_file, by_workers=True)
    assert run.facts["state"] == "complete", "Locust's -t is the end of the run"
    assert [worker["state"] for worker in run.facts["workers"]] == ["drained", "drained"]
    assert all(worker["counts"]["dispatched"] > 0 for worker in run.facts["workers"])
    assert rows.session_id.nunique() == 4
    assert len(list(user_file.notes.iterdir())) == 2, "users are in the workers only"


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        ('[guard]\nmax_requests = 60\n', "The run stopped at one of its limits"),
        ('[stop]\nmax_ttft_ms = 40\nttft_s = 2\n', "run: the median TTFT was"),
    ],
    ids=["guard", "stop"],
)  # fmt: skip
def test_limits_and_stop_rules_end_tasks_in_processes(
    start, user_file, target, rule, ends, full_size
):
    if not full_size:
        pytest.skip("make verify: two more runs")
    scenario = user_file.file.with_name("limits.toml")
    scenario.write_text(rule)
    line = ["--headless", "--json", "-u", "6", "-r", "6", "-t", "60s", "--processes", "2", "--host"]

    done = start(
        "-f", str(user_file.file), *line, target, "--scenario", str(scenario),
        program=LOCUST, env=user_file.env,
    ).finish()  # fmt: skip

    rows = assert_rows_are_tasks(done.run, user_file, target)
    assert ends in done.report_text
    assert rows.scheduled_at_ns.max() - rows.scheduled_at_ns.min() < 30e9, "long before -t"
    assert [worker["state"] for worker in done.run.facts["workers"]] == ["drained", "drained"]
    attempts = done.run.table("attempts")
    assert len(attempts) <= 60 or rule.startswith("[stop]"), "the two calls of the preflight count"


def test_a_worker_that_is_killed_is_accounted(start, user_file, target, full_size):
    if not full_size:
        pytest.skip("full form")
    master, workers = with_two_workers(start, user_file, target, "-t", "20s")
    run = master.wait_for_start(8)
    until(lambda: len(list((run.path / "requests").glob("part-*"))) >= 2)
    workers[0].kill()

    done = master.finish()

    assert workers[1].finish(30).code == 0
    counts = assert_conserved(done.run)
    states = {worker["state"] for worker in done.run.facts["workers"]}
    assert (states, done.code) == ({"lost", "drained"}, 3)
    assert counts["scheduled"] == counts["dispatched"] + counts["lost"] > 20
    assert len(done.run.requests()) == counts["dispatched"]


@pytest.fixture
def page(start: Start, user_file: UserFile) -> tuple[str, Running]:
    url = f"http://127.0.0.1:{free_port()}"
    web_port = url.rpartition(":")[2]
    locust = start(
        "-f", str(user_file.file), f"--web-port={web_port}", program=LOCUST, env=user_file.env
    )
    until(lambda: urllib.request.urlopen(f"{url}/stats/requests", timeout=5))
    return url, locust


def post(url: str, path: str, **form: Any) -> dict[str, Any]:
    data = urllib.parse.urlencode(form).encode()
    answer: dict[str, Any] = json.load(urllib.request.urlopen(f"{url}{path}", data, timeout=60))
    return answer


@pytest.mark.slow
def test_the_start_form_names_the_target(page, user_file, target):
    url, locust = page

    def users() -> int:
        return int(
            json.load(urllib.request.urlopen(f"{url}/stats/requests", timeout=5))["user_count"]
        )

    for host in ("", "my engine"):
        refused = post(url, "/swarm", user_count=2, spawn_rate=2, host=host)
        assert not refused["success"]
        assert ("no target is named" if not host else "--host: ") in refused["message"]
    assert post(
        url,
        "/swarm",
        user_count=2,
        spawn_rate=2,
        host=target,
        tailgauge_out="/",
        scenario="/etc/passwd",
    )["success"]
    locust.wait_for_start(1)
    elsewhere = post(url, "/swarm", user_count=4, spawn_rate=4, host="http://127.0.0.1:1")
    assert elsewhere["message"] == f"the run in progress has the target {target}: stop it first"
    assert post(url, "/swarm", user_count=4, spawn_rate=4)["success"], "more users, on the same run"
    until(lambda: users() == 4)
    until(
        lambda: (
            len(user_file.noted()) > 40
            and {"short", "long", "models"} <= set(user_file.noted().task)
        )
    )
    assert post(url, "/stop")["success"]
    until(lambda: list((locust.out / "reports").glob("*/report.md")))
    names = {
        one["name"]
        for one in json.load(urllib.request.urlopen(f"{url}/stats/requests", timeout=5))["stats"]
    }
    locust.signal(signal.SIGINT)
    done: Finished = locust.finish()

    assert {"short", "long", "/v1/models"} <= names
    assert_rows_are_tasks(done.run, user_file, target)
    assert done.run.facts["state"] == "complete"


def test_the_packaged_locustfile_sends_to_the_host_of_its_class(start, tmp_path):
    """Nobody listens there: the run must fail at that address, not pass at another."""
    file = tmp_path / "mine.py"
    dead = f"http://127.0.0.1:{free_port()}"
    file.write_text(
        f'from tailgauge.locust_app.users import Traffic\nclass Streaming(Traffic):\n    host = "{dead}"\n    scenario = "streaming"\n'
    )

    done = start("-f", str(file), "--headless", program=LOCUST).finish()

    assert done.code == 4
    assert f"streaming  1 worker  {dead}  " in done.stderr
    assert "-u and -r have no effect on Streaming: a schedule drives the load" in done.stderr
    assert f"target {dead}/v1/messages could not be used" in done.stderr
    assert done.run.facts["target"] == {"url": dead, "simulated": False, "protocol": "anthropic"}
