"""What Tailgauge is made of, and whether its packages work: an audit, a bill of materials, a check.

    python supply_chain.py audit [OPTION]...       options are those of pip-audit, for example -s osv
    python supply_chain.py sbom FOLDER             writes FOLDER/tailgauge-VERSION.cdx.json (CycloneDX 1.6)
    python supply_chain.py check FOLDER [PYTHON]   checks the metadata of its sdist and wheel, installs the wheel in a fresh
                                                   environment of PYTHON, and runs it in an empty folder

Exit codes of the audit: 0 nothing known, 1 a vulnerability, 69 not every pin could be looked up: the service cannot be reached,
or does not know it. pip-audit itself counts a version that it could not look up as one without vulnerability.
The check exits with 1 and the reason where something does not work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers

ROOT = "tailgauge"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
VULNERABLE, UNREACHABLE = 1, 69
PATIENCE_S = 600
MOST_MB = 650  # of an installation, with pip


def pins() -> dict[str, str]:
    """The pinned version of each package."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").split()
    return {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines)
    }


def audit(*options: str) -> int:
    """Look every pin up, print what was found; returns the exit code."""
    what = ("--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip")
    how = ("--format", "json", "--progress-spinner", "off", *options)
    line = [sys.executable, "-m", "pip_audit", *what, *how]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return _report([], f"no answer within {PATIENCE_S} s")
    except ValueError:
        return _report([], (done.stderr.strip().splitlines() or ["no answer"])[-1])
    return _report(found)


def _report(found: list[dict[str, Any]], why: str = "") -> int:
    """Print what pip-audit knows of each pin; returns the exit code."""
    for one in found:
        for known in one.get("vulns", ()):
            fixed = ", ".join(known["fix_versions"]) or "no version"
            print(f"{one['name']} {one['version']}: {known['id']}, fixed in {fixed}")
    wanted, known = (
        pins(),
        {canonicalize_name(one["name"]) for one in found if "skip_reason" not in one},
    )
    vulnerable = sum(bool(one.get("vulns")) for one in found)
    print(
        f"{len(known & wanted.keys())} of {len(wanted)} pins looked up, {vulnerable} of them vulnerable"
    )
    if missing := sorted(wanted.keys() - known):
        print(
            f"not looked up: {', '.join(missing[:5])}{' and others' if missing[5:] else ''}. {why}".rstrip()
        )
        print(
            "The vulnerability service cannot be reached or does not know them: they may be vulnerable or not."
        )
    return VULNERABLE if vulnerable else UNREACHABLE if missing else 0


def follow(name: str, edges: dict[str, set[str]], extra: str = "") -> None:
    """Add what an installed package needs at run time on this platform, and all below it."""
    first = name not in edges
    of = edges.setdefault(name, set())
    for one in map(Requirement, distribution(name).requires or ()):
        if (
            one.marker is None
            or (first and one.marker.evaluate({"extra": ""}))
            or one.marker.evaluate({"extra": extra})
        ):
            needed = canonicalize_name(one.name)
            of.add(needed)
            for wanted in ("", *one.extras):
                if wanted or needed not in edges:
                    follow(needed, edges, wanted)


def bill() -> Bom:
    """Tailgauge and all that it needs at run time, in the pinned versions; SystemExit where one is not pinned."""
    edges: dict[str, set[str]] = {}
    follow(ROOT, edges)
    versions = {**pins(), ROOT: distribution(ROOT).version}
    if unpinned := sorted(edges.keys() - versions.keys()):
        raise SystemExit(f"constraints.txt: expected a pin for {', '.join(unpinned)}")
    parts = {name: _component(name, versions[name]) for name in sorted(edges)}
    of_all = repr([(name, versions[name]) for name in parts])
    bom = Bom(
        components=[parts[name] for name in parts if name != ROOT],
        serial_number=uuid5(NAMESPACE_URL, of_all),
    )
    bom.metadata.component = parts[ROOT]
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):  # a reproducible build
        bom.metadata.timestamp = datetime.fromtimestamp(int(epoch), UTC)
    for name, of in edges.items():
        bom.register_dependency(parts[name], [parts[one] for one in sorted(of)])
    return bom


def _component(name: str, version: str) -> Component:
    """A package, with its licence where it states one in a line."""
    facts = distribution(name).metadata
    url = PackageURL("pypi", None, name, version)
    stated = str(facts["License-Expression"] or facts["License"] or "")
    licences = [LicenseFactory().make_from_string(stated)] if 0 < len(stated) < 80 else []
    kind = ComponentType.APPLICATION if name == ROOT else ComponentType.LIBRARY
    return Component(
        name=name, version=version, type=kind, purl=url, bom_ref=str(url), licenses=licences
    )


def sbom(folder: Path) -> Path:
    """Write the bill of materials; returns its file."""
    made = bill()
    assert made.metadata.component is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{ROOT}-{made.metadata.component.version}.cdx.json"
    path.write_text(JsonV1Dot6(made).output_as_string(indent=1) + "\n", encoding="utf-8")
    return path


def metadata(package: Path) -> Metadata:
    """What a package says of itself; an ExceptionGroup or SystemExit where an index would refuse it."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
            text = wheel.read(name)
    else:
        with tarfile.open(package) as sdist:
            part = sdist.extractfile(f"{package.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert part is not None
            text = part.read()
    found = Metadata.from_email(text)
    if unknown := sorted(set(found.classifiers or ()) - set(classifiers)):
        raise SystemExit(f"{package.name}: unknown classifiers: {', '.join(unknown)}")
    for field in (
        "summary",
        "description",
        "description_content_type",
        "license_expression",
        "project_urls",
    ):
        if not getattr(found, field):
            raise SystemExit(f"{package.name}: its metadata has no {field}")
    return found


def check(folder: Path, python: str = sys.executable) -> None:
    """Install the newest wheel of a folder, and use it far from the checkout; SystemExit where that fails."""
    wheel, sdist = (
        max(folder.glob(f"{ROOT}-*{end}"), key=os.path.getmtime) for end in (".whl", ".tar.gz")
    )
    for package in (wheel, sdist):
        found = metadata(package)
        print(
            f"{package.name}: metadata {found.metadata_version}, {len(found.requires_dist or ())} requirements"
        )
    with TemporaryDirectory() as place:
        environment, empty = Path(place, "environment"), Path(place, "empty")
        empty.mkdir()
        _do(python, "-m", "venv", str(environment), where=empty)
        began = time.monotonic()
        pip = (
            str(environment / "bin" / "python"),
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
        )
        _do(*pip, "install", "--only-binary=:all:", "-c", str(CONSTRAINTS), str(wheel), where=empty)
        took_s = time.monotonic() - began
        files = {
            (at.st_dev, at.st_ino): at.st_blocks * 512
            for at in map(Path.lstat, environment.rglob("*"))
        }
        size_mb = round(sum(files.values()) / 2**20)
        print(f"installed in {took_s:.0f} s, {size_mb} MB")
        if size_mb > MOST_MB:
            raise SystemExit(f"the installation has {size_mb} MB, expected at most {MOST_MB}")
        tailgauge = str(environment / "bin" / "tailgauge")
        _do(tailgauge, "scenario", "copy", "headroom", where=empty)
        _do(tailgauge, "run", "headroom.toml", "--dry-run", where=empty)
        _do(tailgauge, "run", "quickstart", "--duration", "8s", where=empty, accepted=(0, 3, 5))


def _do(*line: str, where: Path, accepted: Sequence[int] = (0,)) -> None:
    """Run a command without this environment; 3 and 5 say that the machine was busy, or the run too short."""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "TAILGAUGE"))
    }
    done = subprocess.run(line, cwd=where, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # fmt: skip
    if done.returncode not in accepted:
        raise SystemExit(
            f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    if done.stdout:
        print(done.stdout.splitlines()[0])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["audit", *options]:
            sys.exit(audit(*options))
        case ["sbom", folder]:
            print(f"wrote {sbom(Path(folder))}")
        case ["check", folder, *python]:
            check(Path(folder).resolve(), *python)  # it works in another folder
        case _:
            sys.exit(__doc__)
