"""Runs in object storage: s3://BUCKET/PREFIX, gs:// and abfs:// through pyarrow's file systems.

A run is recorded on a local disk and copied at its end, file by file, each with retries and a check of its size; run.json comes
last, so that a folder with one is complete. What is read is copied into a temporary folder first: a report reads each table
more than once, and one copy of 10 million rows is 100 MB. Credentials come from the environment, never from the URL.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tailgauge import interpreter
from tailgauge.errors import RunDataError, TailgaugeError, UsageError
from tailgauge.redaction import name_secret
from tailgauge.rows.run_folder import RunFolder

SCHEMES = ("s3", "gs", "abfs")
# Attempts to copy, and the first wait between two of them, which doubles.
ATTEMPTS = 4
WAIT_S = 1.0
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/*([^?#]*)(.*)")
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY")
_PIECE = 1 << 22
LISTING_S = 120.0  # for a listing, or the file that tries a URL; a copy has as long, and a second for each MiB
SLOWEST = 1 << 20  # bytes a second
# Bytes of the process that lists and copies, of which Arrow reserves one half.
READING_MEMORY = 2 << 30
MOST_OBJECTS = 100_000
LARGEST_RUN = 64 << 30  # bytes
NO_RUN = 3  # exit code of that process where there is no run
_staged: dict[str, str] = {}  # URLs by the folder that is copied there
_ADVICE = "Check bucket, region and credentials (for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL)"


class ObjectStoreError(UsageError):
    """A bucket that cannot be read or written."""


def is_remote(place: object) -> bool:
    """Return whether this is a URL and no folder."""
    return "://" in str(place)


def _place(url: str) -> tuple[str, str]:
    """Scheme, and bucket with path; UsageError where it is no place for runs."""
    match = _URL.fullmatch(url)
    if match is None or match[1] not in SCHEMES:
        schemes = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"{url[:200]}: expected a folder, or a URL of {schemes}")
    scheme, bucket, path, rest = match.groups()
    if "@" in bucket or rest or not bucket:
        keys = "credentials come from the environment, not from the URL"
        raise UsageError(f"{scheme}://: expected {scheme}://BUCKET/PREFIX; {keys}")
    return scheme, f"{bucket}/{path}".rstrip("/")


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it, for pyarrow.

    The credentials come from the environment, and become secrets that are redacted from then on. Raises
    UsageError for a URL that is none of these, and ObjectStoreError without an account for Azure.
    """
    from pyarrow import fs

    scheme, path = _place(url)
    for name in _SECRETS:
        if os.environ.get(name):
            name_secret(name)
    if scheme == "gs":
        return fs.GcsFileSystem(), path
    if scheme == "abfs":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT")
        if not account:
            raise ObjectStoreError(
                f"{url}: the environment variable AZURE_STORAGE_ACCOUNT is not set"
            )
        key = os.environ.get("AZURE_STORAGE_KEY")
        return fs.AzureFileSystem(account, account_key=key), path
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not region and endpoint:
        region = "us-east-1"  # an endpoint that is not Amazon's has no regions, but the library asks for one
    files = fs.S3FileSystem(
        region=region or None,
        endpoint_override=endpoint,
        connect_timeout=5.0,
        request_timeout=60.0,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
    )
    return files, path


def check(url: str) -> None:
    """Write and delete an object. Raises ObjectStoreError with what to check."""
    files, path = _opened(url)
    probe = f"{path}/.tailgauge-{os.getpid()}"
    with _explained(url, "written"):
        with files.open_output_stream(probe) as stream:
            stream.write(b"tailgauge")
        files.delete_file(probe)


@contextmanager
def _explained(url: str, action: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that no store takes, such as a//b
        reason = " ".join(str(error).split())[:300]
        raise ObjectStoreError(f"{url}: cannot be {action}: {reason}. {_ADVICE}") from error


@contextmanager
def staged(out: Path | str, announce: Callable[[str], None]) -> Iterator[Path]:
    """Yield the local folder for what goes to `out`: of a URL a temporary one, whose files are copied there at the end.

    Also after an error in the block. If copying fails the files stay, and the error says where. Before the
    block an object is written to the URL and deleted, so that a wrong URL shows before a run. `announce`
    gets a text for each folder that was copied.
    """
    if not is_remote(out):
        yield Path(out)
        return
    _place(str(out))
    url = str(out).rstrip("/")
    # In a process of its own: workers are forked from this one, which must have no threads yet.
    try:
        _in_child("written", LISTING_S, check, url)
    except ObjectStoreError as error:
        raise ObjectStoreError(f"--out {error}") from error
    folder = Path(tempfile.mkdtemp(prefix="tailgauge-out-")).resolve()
    # Messages then name the URL in place of the folder, see `renamed`.
    _staged[str(folder)] = url
    try:
        yield folder
    finally:
        del _staged[str(folder)]
        for name in _upload(folder, url):
            announce(f"stored {url}/{name}")
        shutil.rmtree(folder)


def renamed(text: str) -> str:
    """Return a text about files in a folder that is going to be copied, with where they will be."""
    for folder, url in _staged.items():
        text = text.replace(folder, url)
    return text


def _upload(folder: Path, url: str) -> list[str]:
    """Copy every file below a folder, and check its size; returns the run and report folders."""
    marks = {RunFolder(path).mark for path in folder.glob("runs/*")}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in marks]
    paths.sort(key=lambda path: path.name == "run.json")
    if not paths:
        return []
    try:
        with _explained(url, "written"):
            files, root = _opened(url)
            for path in paths:
                _repeated(_put, files, path, f"{root}/{path.relative_to(folder).as_posix()}")
    except ObjectStoreError as error:
        raise ObjectStoreError(
            f"{error}. Nothing is lost: all runs and reports are in {folder}"
        ) from error
    return sorted({"/".join(path.relative_to(folder).parts[:2]) for path in paths})


def _repeated(copy: Callable[..., None], *arguments: Any) -> None:
    for attempt in range(1, ATTEMPTS):
        with suppress(OSError):
            return copy(*arguments)
        time.sleep(WAIT_S * 2 ** (attempt - 1))
    return copy(*arguments)


def _put(files: Any, path: Path, name: str) -> None:
    with path.open("rb") as source, files.open_output_stream(name) as stream:
        shutil.copyfileobj(source, stream, _PIECE)
    size = path.stat().st_size
    stored = files.get_file_info(name).size
    if stored != size:
        raise OSError(f"{name} has {stored} bytes there, {size} here")


def store(path: Path, url: str) -> None:
    """Copy one file to a URL."""
    with _explained(url, "written"):
        files, name = _opened(url)
        _repeated(_put, files, path, name)


def remove(url: str) -> None:
    """Delete the object of a URL."""
    with _explained(url, "deleted"):
        files, name = _opened(url)
        files.delete_file(name)


def _get(files: Any, name: str, size: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    remaining = size
    with files.open_input_stream(name) as source, path.open("wb") as target:
        while True:
            piece = source.read(min(_PIECE, remaining + 1))
            if not piece:
                return
            remaining -= len(piece)
            if remaining < 0:
                raise OSError(f"{name} has more than the {size} bytes of its listing")
            target.write(piece)


def local(place: Path | str, *, suffix: str = "") -> Path:
    """Return a run folder as it is, or the temporary copy of one in object storage, which this process removes at its end.

    `suffix`: only files whose path ends so. RunDataError where there is nothing.
    """
    if not is_remote(place):
        return Path(place)
    url = str(place).rstrip("/")
    _, root = _place(url)
    parent = Path(tempfile.mkdtemp(prefix="tailgauge-in-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = parent / root.rpartition("/")[2]
    folder.mkdir()
    _in_child("read", LISTING_S, write_listing, url, suffix, str(folder))
    size = sum(_listed(folder).values())
    _in_child("read", LISTING_S + size / SLOWEST, copy_below, url, str(folder))
    return folder


def _in_child(
    action: str, seconds: float, function: Callable[..., None], url: str, *arguments: str
) -> None:
    """Call a function of this module in a process of its own, which is ended after so long; `action`: what fails with it.

    An answer of a bucket may have no end, and the pages of a listing are held in memory: no caller could leave it.
    """
    name = function.__name__
    code = f"from tailgauge.rows.object_store import {name}, in_this_process\nin_this_process({name})\n"
    try:
        child = subprocess.run(
            interpreter.command("-c", code, url, *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ObjectStoreError(
            f"{url}: cannot be {action}: no end after {seconds:,.0f} s. {_ADVICE}"
        ) from error
    if child.returncode == 0:
        return
    # A process that is killed for its memory writes nothing.
    message = (
        f"{url}: cannot be {action}: more than {READING_MEMORY >> 20:,} MiB of memory, or a crash"
    )
    lines = child.stderr.strip().splitlines()
    if lines:
        message = lines[-1]
    if child.returncode == NO_RUN:
        raise RunDataError(message)
    raise ObjectStoreError(message)


def in_this_process(function: Callable[..., None]) -> None:
    """Call a function with the arguments of this process: its error is a line on standard error."""
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = READING_MEMORY
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
    try:
        function(*sys.argv[1:])
    except RunDataError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_RUN)
    except (TailgaugeError, MemoryError) as error:
        sys.exit(str(error) or "out of memory")


def write_listing(url: str, suffix: str, folder: str) -> None:
    """Write what is below a URL and ends with `suffix`, by name and size in bytes, as JSON into a file beside `folder`.

    `folder`: where the objects will be copied. RunDataError if there is no run, if a name would leave the
    folder, or if there is too much to copy. It runs in a child process, so that its arguments are texts.
    """
    from pyarrow import fs

    files, root = _opened(url)
    with _explained(url, "read"):
        entries = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        sizes = {}
        for entry in entries:
            if entry.is_file and entry.path.endswith(suffix):
                sizes[entry.path] = entry.size or 0
    # With a suffix there may be no such file in a run.
    if not sizes and not suffix:
        raise RunDataError(f"{url}: no such run folder")
    for name in sizes:
        path = name.removeprefix(f"{root}/")
        if ".." in path.split("/") or path.startswith("/"):
            raise RunDataError(f"{url}: the name of an object leaves the folder: {path[:200]!r}")
    total = sum(sizes.values())
    if len(sizes) > MOST_OBJECTS or total > LARGEST_RUN:
        problem = f"expected at most {MOST_OBJECTS:,} objects and {LARGEST_RUN >> 30} GiB"
        raise RunDataError(f"{url}: {len(sizes):,} objects with {total:,} bytes: {problem}")
    _listing(Path(folder)).write_text(json.dumps(sizes), encoding="utf-8")


def copy_below(url: str, folder: str) -> None:
    """Copy what was listed into the folder."""
    files, root = _opened(url)
    with _explained(url, "read"):
        for name, size in _listed(Path(folder)).items():
            _repeated(_get, files, name, size, Path(folder) / name.removeprefix(f"{root}/"))


def _listed(folder: Path) -> dict[str, int]:
    """Bytes by the names of the objects to be copied into a folder."""
    sizes: dict[str, int] = json.loads(_listing(folder).read_text(encoding="utf-8"))
    return sizes


def _listing(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.listing")
