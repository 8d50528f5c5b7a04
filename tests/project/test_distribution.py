"""The wheel, built from the checkout, from the sdist and as the Dockerfile builds it, works in a fresh environment far from
the checkout: by itself, and as the services of docker-compose.yml, without containers.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from project.compose_file import TOKEN, command_line, free_port, on_this_machine, services
from project.dockerfile import copied
from run_folders.run_data import RunData, assert_conserved
from starting.command import Running, commands

import tailgauge

LIST = """
import json, tailgauge, tailgauge_analysis
from tailgauge.schedule.schedule import plan
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import find, packaged
from tailgauge.transport.reader import COMPILED
found = {name: sorted(p.name for p in packaged(name).iterdir() if p.is_file()) for name in ("scenarios", "locustfiles")}
for name in found["scenarios"]:
    load(name.removesuffix(".toml"))
trace = load("trace")
schedule = plan(trace.arrival, trace.traffic, trace.stages.duration_s, trace.seed, folder=find("trace").parent)
found["rows"] = schedule.trace["rows_read"]
print(json.dumps({"package": tailgauge.__file__, "analysis": tailgauge_analysis.__file__, "compiled": COMPILED, **found}))
"""
COMPILED = {"tailgauge/transport/_core.abi3.so"}


@pytest.fixture(scope="module")
def built(checkout, command, tmp_path_factory) -> dict[str, Path]:
    """Wheels by build: `wheel` from the checkout, `sdist` from the unpacked sdist, `image` from those
    files alone that the Dockerfile copies, `pure` where there is no C compiler.
    """
    out = tmp_path_factory.mktemp("built")
    (context := out / "context").mkdir()
    for source in copied(checkout):
        if (checkout / source).is_dir():
            shutil.copytree(
                checkout / source, context / source, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(checkout / source, context)
    build = ["python", "-m", "build", "--no-isolation", "--outdir"]
    for name, (flags, source) in {
        "wheel": (["--wheel"], checkout),
        "sdist": ([], checkout),
        "image": (["--wheel"], context),
        "pure": (["--wheel"], checkout),
    }.items():
        env = {"CC": str(out / "no-compiler")} if name == "pure" else {}
        result = command([*build, out / name, *flags, source], timeout_s=120, env=env)
        assert result.returncode == 0, result.stdout + result.stderr
    return {
        build: next((out / build).glob("*.whl")) for build in ("wheel", "sdist", "image", "pure")
    }


@pytest.fixture(scope="module", params=["wheel", "sdist", "pure"])
def installed(request, built, command, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it; its dependencies are those of this environment, so no network is needed."""
    environment = tmp_path_factory.mktemp(f"fresh-{request.param}") / "env"
    for line in (
        ["python", "-m", "venv", "--without-pip", environment],
        ["python", "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", "--quiet", built[request.param]],
    ):  # fmt: skip
        result = command(line, timeout_s=120)
        assert result.returncode == 0, result.stdout + result.stderr
    site = next(environment.glob("lib/python*/site-packages"))
    # A .pth line adds the folder, but not the editable install that the folder's own .pth files point at.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return environment


@pytest.mark.slow
def test_every_build_puts_the_same_files_into_the_wheel(built):
    names = {build: sorted(zipfile.ZipFile(path).namelist()) for build, path in built.items()}

    assert names["wheel"] == names["sdist"] == names["image"]
    assert set(names["wheel"]) - set(names["pure"]) <= COMPILED


@pytest.mark.parametrize("build", ["wheel", "sdist", "image", "pure"])
def test_every_link_of_the_description_is_whole_and_leads_to_a_file(build, built, checkout):
    wheel = zipfile.ZipFile(built[build])
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    _, _, text = wheel.read(name).decode().partition("\n\n")
    readme = (checkout / "README.md").read_text(encoding="utf-8")
    repository = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]  # fmt: skip
    links = re.findall(r"\]\(([^)]+)\)", text)

    assert len(links) == len(re.findall(r"\]\(", readme)) > 8
    for link in links:
        place = re.fullmatch(rf"{repository}/(?:blob|raw)/main/([^#]+)(?:#.*)?", link)
        assert place is not None, link
        assert (checkout / place[1]).exists(), link
    assert f"]({repository}/raw/main/docs/images/report.png)" in text
    assert text.startswith("# Tailgauge\n")


def test_a_wheel_with_the_compiled_reader_is_of_its_platform_and_one_without_of_any(built):
    assert built["pure"].name.endswith("-py3-none-any.whl")
    if shutil.which("cc"):
        assert re.search(r"-cp311-abi3-manylinux_2_\d+_", built["wheel"].name), (
            "an index refuses plain linux_"
        )
        tags = parse_wheel_filename(built["wheel"].name)[3]
        assert tags <= set(sys_tags()), "this machine can install it"


def test_the_compiled_reader_of_the_wheel_is_hardened(built, tmp_path):
    """Functions with arrays check their stack, and the tables of the linker are read-only before it is used."""
    if not (shutil.which("cc") and shutil.which("readelf")):
        pytest.skip("no C compiler or no readelf")
    wheel = zipfile.ZipFile(built["wheel"])
    libraries = [wheel.extract(name, tmp_path) for name in COMPILED]

    listed = subprocess.run(
        ["readelf", "-dlsW", *libraries], capture_output=True, text=True, check=True
    ).stdout

    assert re.search(r"BIND_NOW|Flags: .*NOW", listed)
    assert "GNU_RELRO" in listed
    assert "__stack_chk_fail" in listed


def test_the_platform_of_the_wheel_has_every_symbol_that_the_reader_needs(built, tmp_path):
    """The linker's own list of them; an older platform would accept a wheel that cannot be loaded."""
    if not (shutil.which("cc") and shutil.which("objdump")):
        pytest.skip("no C compiler or no objdump")
    wheel = zipfile.ZipFile(built["wheel"])
    libraries = [wheel.extract(name, tmp_path) for name in COMPILED]

    listed = subprocess.run(
        ["objdump", "-p", *libraries], capture_output=True, text=True, check=True
    ).stdout
    needed = {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", listed)}
    (promised,) = re.findall(r"manylinux_2_(\d+)_", built["wheel"].name)

    assert max(needed) == int(promised)
    assert set(re.findall(r"NEEDED +(\S+)", listed)) <= {"libc.so.6", "libpthread.so.0"}


def test_the_wheel_carries_the_packages_and_the_licence_and_no_tests(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()

    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "tailgauge",
        "tailgauge_analysis",
    }
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []
    assert [name for name in names if name.endswith("py.typed")] != []
    assert {"tailgauge/scenario/prices.toml", "tailgauge/docs/reference/cli.md"} <= set(names)
    assert [
        name for name in names if name.startswith("tailgauge/docs/") and name.endswith(".py")
    ] == []
    assert {
        f"tailgauge/live/page/{file}" for file in ("live.html", "live.css", "live.js", "tab.js")
    } <= set(names)


@pytest.mark.slow("sdist", "pure")
def test_a_fresh_environment_finds_the_packaged_scenarios_and_locustfiles(
    request, installed, checkout, command, tmp_path
):
    result = command([installed / "bin" / "python", "-c", LIST], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)

    assert found["package"].startswith(str(installed))
    assert found["analysis"].startswith(str(installed))
    assert found["rows"] == 300  # of the trace that comes along
    pure = request.node.callspec.params["installed"] == "pure"
    assert found["compiled"] == (bool(shutil.which("cc")) and not pure)
    for folder in ("scenarios", "locustfiles"):
        assert found[folder] == sorted(
            path.name for path in (checkout / folder).iterdir() if path.is_file()
        )
        assert found[folder] != []


def interpreter(minor: int) -> str | None:
    """A Python 3.x of this machine that starts; a shim of pyenv alone does not."""
    names = [shutil.which(f"python3.{minor}"), *map(str, Path("~").expanduser().glob(f".pyenv/versions/3.{minor}.*/bin/python"))]  # fmt: skip
    for name in filter(None, names):
        done = subprocess.run([name, "-c", "import sys, venv, ensurepip; print(sys.version_info[1])"], capture_output=True, text=True, check=False)  # fmt: skip
        if done.stdout.strip() == str(minor):
            return name
    return None


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_packages_work_with_every_python_in_an_empty_folder(
    minor, built, full_size, checkout, command
):
    """Metadata, a real installation with its size, and three commands: what `make dist` does."""
    if not full_size:
        pytest.skip("make verify: a minute each")
    if (python := interpreter(minor)) is None:
        pytest.skip(f"Python 3.{minor} is not installed")

    done = command(
        ["python", checkout / "supply_chain.py", "check", built["sdist"].parent, python], 400
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"^installed in \d+ s, \d+ MB$", done.stdout, re.MULTILINE)


def test_the_classifiers_are_the_pythons_that_are_tested(checkout):
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]

    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert {"Repository", "Documentation", "Changelog", "Issues"} == set(project["urls"])


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["pure"], indirect=True)
def test_a_wheel_without_the_compiled_reader_makes_a_run_in_an_empty_folder(
    installed, command, tmp_path
):
    """Also by plain Locust, with a file of the package; a dry run of a scenario that was copied out of it."""
    program, env = installed / "bin" / "tailgauge", {"PYTHONPATH": ""}
    (packaged,) = installed.glob("lib/python*/site-packages/tailgauge/locustfiles/streaming.py")
    lines = (
        [program, "scenario", "copy", "headroom"],
        [program, "run", "headroom.toml", "--dry-run", "--out", "dry"],
        [installed / "bin" / "python", "-m", "locust", "-f", packaged, "--headless", "--set=stages.duration_s=3", "--out=real"],
    )  # fmt: skip
    codes = [command(line, 90, tmp_path, env) for line in lines]

    assert [done.returncode for done in codes[:2]] == [0, 0], [done.stderr for done in codes]
    assert codes[2].returncode in {0, 3, 5}, codes[2].stderr
    (run,) = (tmp_path / "real" / "runs").iterdir()
    assert assert_conserved(RunData(run))["ended"]["ok"] > 3


def test_the_installed_command_names_its_version_from_any_folder(installed, command, tmp_path):
    result = command([installed / "bin" / "tailgauge", "--version"], cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    assert tailgauge.__version__ in result.stdout


@pytest.fixture
def compose(installed, checkout, tmp_path) -> Iterator:
    """`compose("worker")` starts what a container of that service runs, from the fresh environment, on this machine."""
    path = f"{installed / 'bin'}{os.pathsep}{os.defpath}"
    given = {"TAILGAUGE_TOKEN": TOKEN, "OPTIONS": "--duration 3 --rate 20"}
    declared = services(checkout, given)
    ports = free_port(), free_port()
    for folder in ("data/runs", "data/reports", "spool"):
        (tmp_path / folder).mkdir(parents=True)

    def start(name: str) -> Running:
        line = on_this_machine(command_line(declared[name]), *ports, tmp_path)
        line[0] = shutil.which(line[0], path=path)
        variables = declared[name].get("environment", {}).items()
        env = {"PATH": path, **{key: value for key, value in variables if value is not None}}
        return run(line, tmp_path / "data", env, tmp_path)

    with commands() as run:
        yield start


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_the_services_of_docker_compose_make_a_run_and_its_report(compose, tmp_path):
    """The rows of both workers are delivered, the report made afterwards equals that of the run, and the token is written nowhere."""
    endpoint = compose("endpoint")
    assert "listening on" in endpoint.process.stdout.readline()  # depends_on: service_healthy
    master, workers = compose("master"), [compose("worker") for _ in range(2)]

    run = master.finish(90)
    let_go = [worker.finish(30) for worker in workers]
    report = compose("report").finish(60)
    endpoint.signal(signal.SIGTERM)
    served = endpoint.finish(20)

    assert run.code in {0, 3, 5}, (
        run.stderr
    )  # 59 requests pass by little; INVALID on a busy machine
    assert [worker.code for worker in let_go] == [0, 0], [worker.stderr for worker in let_go]
    assert report.code == run.code, report.stderr
    assert report.stdout == run.stdout
    assert served.code == 0
    counts = assert_conserved(run.run)
    assert counts["scheduled"] == counts["ended"]["ok"] > 30
    assert [worker["state"] for worker in run.run.facts["workers"]] == ["drained", "drained"]
    assert all(worker["counts"]["dispatched"] > 0 for worker in run.run.facts["workers"])
    assert list((tmp_path / "spool").rglob("*.parquet")) == [], "all of it is with the master"
    output = "".join(end.stdout + end.stderr for end in (run, report, served, *let_go)).encode()
    assert TOKEN.encode() not in output
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if TOKEN.encode() in path.read_bytes()] == []
