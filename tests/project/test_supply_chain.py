"""The audit looks every pin up or says that it did not; the bill of materials names what is needed at run time, as pinned."""

from __future__ import annotations

import http.server
import importlib.util
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

KNOWN = {
    "id": "PYSEC-2026-1", "summary": "s", "details": "d", "published": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z",
    "affected": [{
        "package": {"ecosystem": "PyPI", "name": "flask"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
    }],
}  # fmt: skip


@pytest.fixture(scope="module")
def supply_chain(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply_chain", checkout / "supply_chain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def service() -> Iterator[tuple[str, dict[str, Any]]]:
    """A list of vulnerabilities on loopback: its URL, and what it knows by package."""
    known: dict[str, Any] = {}

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found = known.get(query["package"]["name"].lower())
            body = json.dumps({"vulns": [found]} if found else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/query", known
        server.shutdown()


@pytest.fixture
def audit(checkout, command, tmp_path):
    """Run the audit against a service: its exit code and what it printed."""

    def run(url: str) -> tuple[int, str]:
        line = ["python", checkout / "supply_chain.py", "audit", "-s", "osv", f"--osv-url={url}", f"--cache-dir={tmp_path}"]  # fmt: skip
        done = command(line, 120)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    return run


@pytest.mark.slow
def test_a_vulnerable_pin_is_named_with_the_version_that_mends_it(audit, service, supply_chain):
    url, known = service
    known["flask"] = KNOWN

    code, text = audit(url)

    assert code == 1
    assert f"flask {supply_chain.pins()['flask']}: PYSEC-2026-1, fixed in 99.1\n" in text
    assert "pins looked up, 1 of them vulnerable" in text


def test_a_service_that_cannot_be_reached_is_named_and_has_a_status_of_its_own(audit, supply_chain):
    code, text = audit("http://127.0.0.1:9/query")

    assert code == 69
    assert f"0 of {len(supply_chain.pins())} pins looked up" in text
    assert "The vulnerability service cannot be reached or does not know them" in text


def test_pins_that_pip_audit_skips_are_not_taken_for_sound(supply_chain, capsys):
    """Behind a mirror the service answers 404 to all; pip-audit then finds no vulnerability and exits 0."""
    found = [
        {"name": name, "version": version, "vulns": []}
        for name, version in supply_chain.pins().items()
    ]
    assert supply_chain._report(found) == 0
    assert (
        capsys.readouterr().out
        == f"{len(found)} of {len(found)} pins looked up, 0 of them vulnerable\n"
    )
    found[3] = {"name": found[3]["name"], "skip_reason": "Dependency not found"}

    assert supply_chain._report(found) == 69
    assert f"not looked up: {found[3]['name']}." in capsys.readouterr().out


@pytest.fixture(scope="module")
def bill(checkout, command, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("dist")
    done = command(["python", checkout / "supply_chain.py", "sbom", folder], 60, env={"SOURCE_DATE_EPOCH": "1700000000"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    assert re.fullmatch(r"tailgauge-\d+\.\d+\.\d+\.cdx\.json", path.name)
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def test_the_bill_of_materials_follows_its_schema(bill):
    required = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    assert {key: bill[key] for key in required} == required
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    assert bill["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    assert all(
        {"type", "name", "version", "purl", "bom-ref"} <= part.keys() for part in bill["components"]
    )


def test_it_names_each_package_of_the_run_time_in_its_pinned_version(bill, supply_chain, checkout):
    versions = {part["name"]: part["version"] for part in bill["components"]}
    direct = {canonicalize_name(Requirement(text).name) for text in distribution("tailgauge").requires or () if "extra ==" not in text}  # fmt: skip
    pins = supply_chain.pins()

    assert versions == {name: pins[name] for name in versions}
    assert direct <= versions.keys()
    assert {"locust", "greenlet", "pydantic-core", "httpcore2"} <= versions.keys()
    assert not {"ruff", "mypy", "pip-audit", "cyclonedx-python-lib", "gguf"} & versions.keys()


def test_its_graph_begins_at_tailgauge_and_reaches_every_component(bill):
    root = bill["metadata"]["component"]
    edges = {row["ref"]: row.get("dependsOn", []) for row in bill["dependencies"]}
    reached, waiting = set(), [root["bom-ref"]]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += edges[ref]

    assert (root["name"], root["type"], root["licenses"]) == ("tailgauge", "application", [{"license": {"id": "Apache-2.0"}}])  # fmt: skip
    assert reached == {root["bom-ref"], *(part["bom-ref"] for part in bill["components"])}


def test_make_dist_builds_the_packages_and_the_bill(checkout, command):
    recipe = command(["make", "-n", "dist", "PIP=true"], 30, cwd=checkout).stdout

    assert "-m build --no-isolation --outdir dist" in recipe
    assert "supply_chain.py sbom dist" in recipe
    assert "supply_chain.py check dist" in recipe


FINE = "Metadata-Version: 2.4\nName: x\nVersion: 1\nSummary: s\nLicense-Expression: MIT\nProject-URL: A, https://a.example\n{}Description-Content-Type: text/markdown\n\ntext\n"
WRONG = {
    "no summary": (FINE.replace("Summary: s\n", "").format(""), "has no summary"),
    "no text": (FINE.format("").partition("\n\n")[0] + "\n\n", "has no description"),
    "no such classifier": (FINE.format("Classifier: Programming Language :: Snake\n"), "unknown classifiers: Programming Language :: Snake"),
    "not a version": (FINE.replace("Version: 1\n", "Version: one\n").format(""), "version"),
    "not a requirement": (FINE.format("Requires-Dist: a b\n"), "requires-dist"),
    "no such licence": (FINE.replace("MIT", "my own").format(""), "license-expression"),
}  # fmt: skip


def package(folder: Path, text: str) -> Path:
    path = folder / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x-1.dist-info/METADATA", text)
    return path


def test_metadata_as_an_index_wants_it_is_accepted(supply_chain, tmp_path):
    assert supply_chain.metadata(package(tmp_path, FINE.format(""))).name == "x"


@pytest.mark.parametrize("name", WRONG)
def test_metadata_that_an_index_would_refuse_is_named(name, supply_chain, tmp_path):
    text, reason = WRONG[name]
    with pytest.raises((ExceptionGroup, SystemExit)) as caught:
        supply_chain.metadata(package(tmp_path, text))

    reasons = getattr(caught.value, "exceptions", [caught.value])
    assert reason in "; ".join(map(str, reasons))
