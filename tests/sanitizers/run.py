"""Build the compiled core with sanitizers, and run it: `make sanitize`.

AddressSanitizer and UndefinedBehaviorSanitizer see the tests of the core, the random driver (driver.py) and the harness
without Python (harness.c); LeakSanitizer and ThreadSanitizer see the harness.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CORE = Path("src", "tailgauge", "transport", "core")
COMPILER = os.environ.get("CC", "gcc")
FLAGS = (
    "-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-pthread",
    "-fno-sanitize-recover=all",
)  # fmt: skip
ADDRESS = "-fsanitize=address,undefined"
THREAD = "-fsanitize=thread"
TESTS = (
    "tests/transport/test_answer.py",
    "tests/transport/test_sockets.py",
    "tests/transport/test_reader.py",
    "tests/transport/test_connection.py",
    "tests/transport/test_exchange.py",
    "tests/transport/test_http1.py",
    "tests/transport/test_tls.py",
    "tests/protocols/test_both_decoders.py",
    "tests/protocols/test_decoder.py",
)
OPERATIONS = 1_000_000


def missing() -> str | None:
    """What is not there of what a build needs."""
    if sys.platform != "linux" or shutil.which(COMPILER) is None:
        return f"{COMPILER} on Linux"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's headers"
    return next(
        (name for name in ("libasan.so", "libubsan.so", "libtsan.so") if library(name) is None),
        None,
    )


def library(name: str) -> str | None:
    """The path of one of the compiler's libraries."""
    found = subprocess.run(
        [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    path = found.stdout.strip()
    return path if Path(path).is_absolute() else None


def build_extension(folder: Path) -> dict[str, str]:
    """Build a copy of the product whose core has sanitizers; returns the environment in which Python uses it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    target = folder / "tailgauge" / "transport" / "_core.abi3.so"
    include = f"-I{sysconfig.get_paths()['include']}"
    sources = sorted((ROOT / CORE).glob("*.c"))
    command = [COMPILER, *FLAGS, ADDRESS, "-shared", "-fPIC", include, *sources, "-o", target]
    subprocess.run(command, check=True)
    return {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",  # the latter: for exceptions of C++
        # Python leaves memory to the end of the process. What was freed is kept for a while, but tests measure memory.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(folder),
    }


def build_harness(target: Path, sanitizer: str) -> None:
    """Build the harness with the core."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = [path for path in sorted((ROOT / CORE).glob("*.c")) if path.name != "module.c"]
    command = [
        COMPILER,
        *FLAGS,
        sanitizer,
        f"-I{ROOT / CORE}",
        HERE / "harness.c",
        *sources,
        "-o",
        target,
    ]
    subprocess.run(command, check=True)


def drive(environment: dict[str, str], seed: int, operations: int) -> None:
    """Call the core at random from Python."""
    command = [
        sys.executable,
        HERE / "driver.py",
        "--seed",
        str(seed),
        "--operations",
        str(operations),
    ]
    # Python's own memory is also from `malloc`, which the tests are too slow with.
    subprocess.run(command, env={**environment, "PYTHONMALLOC": "malloc"}, check=True)


def run_harness(harness: Path, seed: int, operations: int) -> None:
    """Call the core at random from C."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([harness, str(seed), str(operations)], env=environment, check=True)


def main() -> int:
    """Run all of it; the first finding ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--no-tests", action="store_true", help="only drive the core at random")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sanitize")
    arguments = parser.parse_args()
    needed = missing()
    if needed is not None:
        print(f"sanitize: needs {needed}", file=sys.stderr)
        return 1
    print(f"sanitize: repeat with --seed {arguments.seed}", flush=True)
    try:
        for name, sanitizer in (("address", ADDRESS), ("thread", THREAD)):
            harness = arguments.folder / f"harness-{name}"
            build_harness(harness, sanitizer)
            run_harness(harness, arguments.seed, arguments.operations)
        environment = build_extension(arguments.folder / "src")
        drive(environment, arguments.seed, arguments.operations)
        if not arguments.no_tests:
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *TESTS],
                env=environment,
                cwd=ROOT,
                check=True,
            )
    except subprocess.CalledProcessError as error:
        print(f"sanitize: {Path(error.cmd[0]).name} ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
