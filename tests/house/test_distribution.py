"""The wheel, built straight and by way of the sdist, works in a fresh environment far from the checkout."""

import json
import sysconfig
import zipfile
from pathlib import Path

import pytest

import tailgauge

LIST = """
import json, tailgauge, tailgauge_analysis
from tailgauge.arrivals import plan
from tailgauge.scenario import find, load, packaged
found = {name: sorted(p.name for p in packaged(name).iterdir() if p.is_file()) for name in ("scenarios", "locustfiles")}
for name in found["scenarios"]:
    load(name.removesuffix(".toml"))
trace = load("trace")
schedule = plan(trace.arrival, trace.traffic, trace.stages.duration_s, trace.seed, folder=find("trace").parent)
found["rows"] = schedule.trace["rows_read"]
print(json.dumps({"package": tailgauge.__file__, "analysis": tailgauge_analysis.__file__, **found}))
"""


@pytest.fixture(scope="module")
def built(checkout, command, tmp_path_factory) -> dict[str, Path]:
    """Wheels by the way they were made: `wheel` from the checkout, `sdist` from the unpacked sdist."""
    out = tmp_path_factory.mktemp("built")
    build = ["python", "-m", "build", "--no-isolation", "--outdir"]
    for way, flags in {"wheel": ["--wheel"], "sdist": []}.items():
        result = command([*build, out / way, *flags, checkout], timeout_s=120)
        assert result.returncode == 0, result.stdout + result.stderr
    return {way: next((out / way).glob("*.whl")) for way in ("wheel", "sdist")}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request, built, command, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it; its dependencies are those of this environment, so no network is needed."""
    home = tmp_path_factory.mktemp(f"fresh-{request.param}") / "env"
    for line in (
        ["python", "-m", "venv", "--without-pip", home],
        ["python", "-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", "--quiet", built[request.param]],
    ):  # fmt: skip
        result = command(line, timeout_s=120)
        assert result.returncode == 0, result.stdout + result.stderr
    site = next(home.glob("lib/python*/site-packages"))
    # A .pth line adds the folder, but not the editable install that the folder's own .pth files point at.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home


def test_both_ways_of_building_put_the_same_files_into_the_wheel(built):
    names = {way: sorted(zipfile.ZipFile(path).namelist()) for way, path in built.items()}

    assert names["wheel"] == names["sdist"]


def test_the_wheel_carries_the_packages_and_the_licence_and_no_tests(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()

    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tailgauge", "tailgauge_analysis"}
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []
    assert [name for name in names if name.endswith("py.typed")] != []
    assert "tailgauge/prices.toml" in names


def test_a_fresh_environment_finds_the_packaged_scenarios_and_locustfiles(
    installed, checkout, command, tmp_path
):
    result = command([installed / "bin" / "python", "-c", LIST], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)

    assert found["package"].startswith(str(installed))
    assert found["analysis"].startswith(str(installed))
    assert found["rows"] == 300  # of the trace that comes along
    for shelf in ("scenarios", "locustfiles"):
        assert found[shelf] == sorted(path.name for path in (checkout / shelf).iterdir() if path.is_file())
        assert found[shelf] != []


def test_the_installed_command_names_its_version_from_any_folder(installed, command, tmp_path):
    result = command([installed / "bin" / "tailgauge", "--version"], cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    assert tailgauge.__version__ in result.stdout
