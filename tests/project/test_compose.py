"""docker-compose.yml, as far as it can be judged without an engine: commands, secrets, what is open to whom."""

import json
import re
import shlex
import shutil

import pytest
import yaml
from project.compose_file import (
    ENTRY_POINT,
    TOKEN,
    command_line,
    on_this_machine,
    services,
)

from tailgauge.cli.main import cli

GIVEN = {"TAILGAUGE_TOKEN": TOKEN}
SECRETS = {"TAILGAUGE_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TARGET_API_KEY"}


@pytest.fixture(scope="module")
def docker_compose(checkout, command):
    """`docker_compose(env)`: what `docker-compose config` says of the file."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")

    variables = re.findall(
        r"\$\{(\w+):", (checkout / "docker-compose.yml").read_text(encoding="utf-8")
    )

    def config(given):
        env = {**dict.fromkeys([*SECRETS, *variables], ""), **given}
        return command(["docker-compose", "-f", checkout / "docker-compose.yml", "config"], env=env)

    return config


def test_docker_compose_accepts_the_file_and_reads_the_commands_as_these_tests_do(
    checkout, docker_compose
):
    given = {**GIVEN, "WORKERS": "3", "OPTIONS": "--duration 2 --set 'target.model=a b'"}

    result = docker_compose(given)

    assert result.returncode == 0, result.stderr
    theirs = yaml.safe_load(result.stdout)["services"]  # those of a profile may be left out
    ours = services(checkout, given)
    assert {"endpoint", "master", "worker"} <= set(theirs)
    for name, service in theirs.items():
        service["command"] = json.loads(json.dumps(service["command"]).replace("$$", "$"))
        assert command_line(service) == command_line(ours[name]), name
    assert theirs["worker"]["scale"] == 3


def test_docker_compose_reports_a_missing_token(docker_compose):
    result = docker_compose({})

    assert result.returncode != 0
    assert "set it to 16 or more random characters" in result.stderr


def test_secrets_have_no_value_in_the_file_and_reach_only_the_master_and_the_workers(checkout):
    environments = {
        name: service.get("environment", {}) for name, service in services(checkout, GIVEN).items()
    }

    assert {name for name, variables in environments.items() if SECRETS & set(variables)} == {
        "master",
        "worker",
    }
    for name in ("master", "worker"):
        assert environments[name] == {**dict.fromkeys(SECRETS), "TAILGAUGE_TOKEN": TOKEN}


@pytest.mark.parametrize("name", ["endpoint", "master", "worker"])
def test_each_service_starts_a_command_of_tailgauge_with_options_that_it_has(name, checkout):
    given = {**GIVEN, "OPTIONS": "--duration 2", "ENDPOINT_OPTIONS": "--profile haiku"}

    program, command, *arguments = command_line(services(checkout, given)[name])

    assert program == ENTRY_POINT
    assert cli.commands[command].make_context(command, arguments).params != {}


def test_the_report_is_made_only_when_asked_for_and_of_the_newest_run(checkout):
    report = services(checkout, GIVEN)["report"]

    assert report["profiles"] == ["report"]
    assert "exec tailgauge report" in command_line(report)[-1]
    assert (
        cli.commands["report"].make_context("report", ["/data/runs/x", "--out", "/data"]).params
        != {}
    )


def test_every_service_runs_one_image_that_is_built_once_and_may_write_only_into_its_volumes(
    checkout,
):
    all_of_them = services(checkout, GIVEN)

    assert {service["image"] for service in all_of_them.values()} == {"tailgauge:local"}
    assert [name for name, service in all_of_them.items() if "build" in service] == ["endpoint"]
    for service in all_of_them.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["ulimits"]["nofile"]["soft"] >= 65536


def test_other_machines_reach_the_master_only_if_configured(checkout):
    def published(given):
        return {
            name: s["ports"]
            for name, s in services(checkout, {**GIVEN, **given}).items()
            if "ports" in s
        }

    assert published({}) == {"master": ["127.0.0.1::5557", "127.0.0.1::8089"]}
    ports = published({"PUBLISH": "10.0.0.5:5557", "WEB": "80"})
    assert ports == {"master": ["10.0.0.5:5557:5557", "127.0.0.1:80:8089"]}


def test_on_this_machine_only_places_change(tmp_path):
    line = shlex.split(
        "run x --target http://endpoint:8000 --bind 0.0.0.0:5557 --out /data --set a=/usr/data"
    )

    changed = on_this_machine(line, 1, 2, tmp_path)

    expected = f"run x --target http://127.0.0.1:1 --bind 127.0.0.1:2 --out {tmp_path}/data --set a=/usr/data"
    assert changed == shlex.split(expected)
