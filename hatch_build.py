"""Compiles the reader of `tailgauge.transport` and what `tailgauge.protocols` does with each event, where there is Linux, a C compiler and Python's headers.

They are built against the stable ABI, so one wheel of a platform serves every Python from 3.11 on. Where they cannot be compiled
the wheel is a pure one: the same package, whose worker does it in Python. The links of README.md lead into the repository, from
wherever a package index shows it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCES = (Path("tailgauge", "transport", "_reader.c"), Path("tailgauge", "protocols", "_holes.c"))
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")


class ReadmeHook(MetadataHookInterface):
    """The description of the packages: README.md with whole links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put it into the metadata."""
        repository = metadata["urls"]["Repository"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{repository}/raw/main/", text)
        text = re.sub(r"(\]\()(?!\w+:|#)", rf"\1{repository}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class ReaderHook(BuildHookInterface[Any]):
    """Adds the compiled libraries to a wheel, or puts them beside their sources for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it cannot be: then say why, and go on without."""
        editable = version == "editable"
        self._folder = TemporaryDirectory(dir=Path(self.root, "src", "tailgauge") if editable else None)
        built = {Path(self._folder.name, f"{source.stem}.abi3.so"): source for source in SOURCES}
        whys = [_compiled(Path(self.root, "src", source), library) for library, source in built.items()]
        if why := next(filter(None, whys), None):
            self.app.display_warning(f"not compiled, workers read and compare in Python: {why}")
        elif not editable:
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{_platform(built)}"
        for library, source in built.items():
            target = Path(self.root, "src", source).with_suffix(".abi3.so")
            if editable and why:
                target.unlink(missing_ok=True)  # of another source
            elif editable:
                library.replace(target)  # at once: a process may run the one before
            elif not why:
                build_data["force_include"][str(library)] = str(source.with_name(library.name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The wheel is made."""
        self._folder.cleanup()


def _platform(libraries: Iterable[Path]) -> str:
    """Where libraries run, as indexes want it: on every system with the newest glibc that their symbols need (PEP 600)."""
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = [int(minor) for one in libraries for minor in re.findall(rb"GLIBC_2\.(\d+)", one.read_bytes())]
    return system.replace("linux", f"manylinux_2_{max(needed)}", 1) if needed else system


def _compiled(source: Path, target: Path) -> str | None:
    """Compile the library; returns why it could not be."""
    if sys.platform != "linux":
        return "only Linux has what it uses"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_paths()['include']}"
    try:
        done = subprocess.run(
            [*compiler, *FLAGS, include, source, "-o", target], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    return done.stderr.strip()[-500:] or f"exit code {done.returncode}" if done.returncode else None
