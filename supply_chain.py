"""What Tailgauge is made of: an audit of the pinned versions against known vulnerabilities, and a bill of materials.

    python supply_chain.py audit [OPTION]...   options are those of pip-audit, for example -s osv
    python supply_chain.py sbom FOLDER         writes FOLDER/tailgauge-VERSION.cdx.json (CycloneDX 1.6)

Exit codes of the audit: 0 nothing known, 1 a vulnerability, 69 not every pin could be looked up: the service cannot be reached,
or does not know it. pip-audit itself counts a version that it could not look up as one without vulnerability.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "tailgauge"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
VULNERABLE, UNREACHABLE = 1, 69
PATIENCE_S = 600


def pins() -> dict[str, str]:
    """The pinned version of each package."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


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
    wanted, known = pins(), {canonicalize_name(one["name"]) for one in found if "skip_reason" not in one}
    vulnerable = sum(bool(one.get("vulns")) for one in found)
    print(f"{len(known & wanted.keys())} of {len(wanted)} pins looked up, {vulnerable} of them vulnerable")
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
        components=[parts[name] for name in parts if name != ROOT], serial_number=uuid5(NAMESPACE_URL, of_all)
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
    return Component(name=name, version=version, type=kind, purl=url, bom_ref=str(url), licenses=licences)


def sbom(folder: Path) -> Path:
    """Write the bill of materials; returns its file."""
    made = bill()
    assert made.metadata.component is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{ROOT}-{made.metadata.component.version}.cdx.json"
    path.write_text(JsonV1Dot6(made).output_as_string(indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["audit", *options]:
            sys.exit(audit(*options))
        case ["sbom", folder]:
            print(f"wrote {sbom(Path(folder))}")
        case _:
            sys.exit(__doc__)
