"""The manifests of deploy/kubernetes follow the strict schemas of Kubernetes, and their command lines make a run on this machine.

kubernetes_schemas.json says where the schemas come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from run_folders.run_data import assert_conserved
from starting.command import commands, free_port
from starting.endpoint import endpoint
from starting.programs import TAILGAUGE

from tailgauge.cli.main import cli

TOKEN_VARIABLE, TOKEN = "TAILGAUGE_TOKEN", "a token of sixteen or more"
Manifest = dict[str, Any]
SCENARIO = """
[arrival]
rate_per_s = 20
[stages]
duration_s = 3
[traffic.chat]
prompt_tokens = 50
output_tokens = 5
"""


@pytest.fixture(scope="module")
def manifests(checkout: Path) -> dict[str, Manifest]:
    """By kind and name."""
    files = sorted((checkout / "deploy" / "kubernetes").glob("*.yaml"))
    loaded = [one for file in files for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in loaded}
    assert len(found) == len(loaded) == 6
    return found


@pytest.fixture(scope="module")
def problems() -> Any:
    """`problems(manifest)`: what its schema says against it."""
    schemas = json.loads(
        Path(__file__).with_name("kubernetes_schemas.json").read_text(encoding="utf-8")
    )

    def check(manifest: Manifest) -> list[str]:
        name = schemas["kinds"][manifest["kind"]]
        schema = {"$ref": f"#/definitions/{name}", "definitions": schemas["definitions"]}
        return [
            f"{error.json_path}: {error.message}"
            for error in jsonschema.Draft7Validator(schema).iter_errors(manifest)
        ]

    return check


def pods(manifests: dict[str, Manifest]) -> Iterator[tuple[str, Manifest]]:
    """What each Job and Pod starts."""
    for name, one in manifests.items():
        if one["kind"] in {"Job", "Pod"}:
            yield name, one["spec"]["template"]["spec"] if one["kind"] == "Job" else one["spec"]


def container(manifests: dict[str, Manifest], name: str) -> Manifest:
    (found,) = dict(pods(manifests))[name]["containers"]
    return dict(found)


def test_each_manifest_follows_the_strict_schema_of_its_kind(manifests, problems):
    assert {name: found for name, one in manifests.items() if (found := problems(one))} == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.completionMod", "Indexed"),
        ("spec.completions", "2"),
        ("spec.template.spec.containers.0.volumeMount", []),
        ("spec.template.spec.containers.0.securityContext.readOnlyRootFileSystem", True),
        ("apiVersion", "batch/v1beta1"),
    ],
)
def test_the_schema_finds_a_misspelt_key_and_a_wrong_type(path, value, manifests, problems):
    broken = json.loads(json.dumps(manifests["Job/tailgauge-worker"]))
    at: Any = broken
    *above, last = path.split(".")
    for key in above:
        at = at[int(key) if key.isdigit() else key]
    at[last] = value

    assert problems(broken) != []


def test_every_pod_runs_without_root_on_a_read_only_file_system_and_says_what_it_needs(manifests):
    found = dict(pods(manifests))

    assert len(found) == 3
    for pod in found.values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert pod["automountServiceAccountToken"] is False
        assert pod["restartPolicy"] == "Never"
        (one,) = pod["containers"]
        assert one["securityContext"] == {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # fmt: skip
        assert {"cpu", "memory"} <= one["resources"]["requests"].keys()
        assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}  # fmt: skip


def test_names_ports_labels_and_counts_agree(manifests):
    master, worker = manifests["Job/tailgauge-master"], manifests["Job/tailgauge-worker"]
    service, policy = manifests["Service/tailgauge-master"], manifests["NetworkPolicy/tailgauge"]
    labels = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in (("master", master), ("worker", worker))}  # fmt: skip
    port, page = container(manifests, "Job/tailgauge-master")["ports"]
    arguments = container(manifests, "Job/tailgauge-master")["args"]

    assert service["spec"]["selector"] == labels["master"]
    for_workers, for_prometheus = policy["spec"]["ingress"]
    assert for_workers["from"] == [{"podSelector": {"matchLabels": labels["worker"]}}]
    assert for_workers["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    assert for_prometheus["ports"] == [{"port": page["name"], "protocol": "TCP"}]
    assert "namespaceSelector" in for_prometheus["from"][0]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"] == "channel"
    assert f"--bind=0.0.0.0:{port['containerPort']}" in arguments
    assert f"--master={service['metadata']['name']}:{service['spec']['ports'][0]['port']}" in container(manifests, "Job/tailgauge-worker")["args"]  # fmt: skip
    assert worker["spec"]["completionMode"] == "Indexed"
    assert worker["spec"]["completions"] == worker["spec"]["parallelism"]
    assert f"--expect-workers={worker['spec']['completions']}" in arguments
    assert master["spec"]["backoffLimit"] == 0, "a run is not repeated"


def test_the_token_comes_from_a_secret_that_is_in_no_file(manifests):
    for role in ("master", "worker"):
        one = container(manifests, f"Job/tailgauge-{role}")
        assert one["envFrom"] == [{"secretRef": {"name": "tailgauge"}}]
        assert "env" not in one
    assert [name for name in manifests if name.startswith("Secret/")] == []


@pytest.mark.slow
def test_the_command_lines_make_a_run_with_two_workers(manifests, tmp_path):
    """The same arguments, with names and paths of the cluster as places on this machine."""
    port = free_port()
    for folder in ("results", "scenario", "spool"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scenario" / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    with endpoint("--set=ttft_ms=30", "--set=chunk_gap_ms=2") as server, commands() as start:
        places = {
            r"http://[\w.]+:\d+": server.url,
            r"(0\.0\.0\.0|tailgauge-master):5557": f"127.0.0.1:{port}",
            r"(^|=)(/(results|scenario|spool))": rf"\1{tmp_path}\2",
        }

        def line(name: str) -> list[str]:
            arguments = container(manifests, name)["args"]
            assert arguments[0] in cli.commands
            for pattern, place in places.items():
                arguments = [re.sub(pattern, place, word) for word in arguments]
            return [TAILGAUGE, *arguments]

        env = {TOKEN_VARIABLE: TOKEN}
        master = start(line("Job/tailgauge-master"), tmp_path / "results", env, tmp_path)
        workers = [
            start(line("Job/tailgauge-worker"), tmp_path / "spool", env, tmp_path) for _ in range(2)
        ]
        ended = master.finish(90)
        ends = [worker.finish(30) for worker in workers]

    assert ended.code in {0, 3, 5}, ended.stderr
    assert [end.code for end in ends] == [0, 0], [end.stderr for end in ends]
    counts = assert_conserved(ended.run)
    assert counts["ended"]["ok"] > 30
    assert len(ended.run.facts["workers"]) == 2
    assert (ended.report / "report.html").exists()
    assert list((tmp_path / "spool").rglob("*.parquet")) == []
