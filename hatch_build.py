"""Compiles the core of `tailgauge.transport` where there is Linux, a C compiler and Python's headers.

It is built against the stable ABI, so one wheel of a platform serves every Python from 3.11 on. Where it cannot be compiled
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCES = Path("src", "tailgauge", "transport", "core")  # all its C files are one library
LIBRARY = Path("tailgauge", "transport", "_core.abi3.so")
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")
# What ends a process instead of letting a bug be used. A compiler that does not know one of them compiles without all.
HARDENING = (
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-Wl,-z,relro,-z,now",
)


class ReadmeHook(MetadataHookInterface):
    """The description of the packages: README.md with whole links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put it into the metadata."""
        repository = metadata["urls"]["Repository"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{repository}/raw/main/", text)
        text = re.sub(r"(\]\()(?!\w+:|#)", rf"\1{repository}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CoreHook(BuildHookInterface[Any]):
    """Adds the compiled library to a wheel, or puts it into the source tree for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it cannot be: then say why, and go on without."""
        is_editable = version == "editable"
        target = Path(self.root, "src", LIBRARY)
        self._folder = TemporaryDirectory(dir=target.parent if is_editable else None)
        built = Path(self._folder.name, LIBRARY.name)
        why = _compiled(sorted(Path(self.root, SOURCES).glob("*.c")), built)
        if why:
            self.app.display_warning(f"not compiled, workers read and decode in Python: {why}")
        if is_editable and why:
            target.unlink(missing_ok=True)  # of another source
        elif is_editable:
            built.replace(target)  # at once: a process may run the one before
        elif not why:
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{_platform(built)}"
            build_data["force_include"][str(built)] = str(LIBRARY)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The wheel is made."""
        self._folder.cleanup()


def _platform(library: Path) -> str:
    """Where a library runs, as indexes want it: on every system with the newest glibc that its symbols need (PEP 600)."""
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
    return system.replace("linux", f"manylinux_2_{max(needed)}", 1) if needed else system


def _compiled(sources: list[Path], target: Path) -> str | None:
    """Compile the library; returns why it could not be."""
    if sys.platform != "linux":
        return "only Linux has what it uses"
    return _compile(sources, target, HARDENING) and _compile(sources, target, ())


def _compile(sources: list[Path], target: Path, hardening: tuple[str, ...]) -> str | None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_paths()['include']}"
    try:
        done = subprocess.run(
            [*compiler, *FLAGS, *hardening, include, *sources, "-o", target],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    return done.stderr.strip()[-500:] or f"exit code {done.returncode}" if done.returncode else None
