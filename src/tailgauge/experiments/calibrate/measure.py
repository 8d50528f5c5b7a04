"""The client's error at each step, against an endpoint that logged when it sent each chunk.

The reference is the endpoint's send time, not its plan, so a late endpoint is not an error of the client; both clocks are
CLOCK_MONOTONIC of one machine. A step passes by the criteria of docs/how-to/calibration.md.

Also here: one calibration run, the simulated endpoint as a child, a real run against it, and the endpoint's log beside the run's rows.

The run is `tailgauge run` itself with one worker, in separate processes. Endpoint and client use different cores if there
are two, because no real target shares the client's. For TLS the endpoint has a self-signed certificate, made by the
`openssl` command; its key is deleted with its folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailgauge.channel.child_process import Child
from tailgauge.errors import Exit, TailgaugeError
from tailgauge.experiments.calibrate import plan
from tailgauge.experiments.calibrate.plan import Steps, Window
from tailgauge.experiments.runners import kill
from tailgauge.master.embedded_endpoint import START_S, fetch_server_log
from tailgauge.rows import schema
from tailgauge.rows.run_folder import RunFolder
from tailgauge_analysis.reading import parquet
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.stats.quantiles import Floats, Ints, rank
from tailgauge_analysis.verdict.client import SHORT_OF_CORES

_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Authority:
    """PEM files: the certificate, to serve with and to trust, and its key."""

    certificate: Path
    key: Path


def authority(folder: Path) -> Authority | str:
    """Make one for 127.0.0.1; or why that is not possible."""
    command = shutil.which("openssl")
    if command is None:
        return "the command openssl, which makes the endpoint's certificate, was not found"
    files = Authority(folder / "endpoint.pem", folder / "endpoint-key.pem")
    done = subprocess.run(
        [command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(files.key), "-out", str(files.certificate), "-days", _DAYS, "-subj", "/CN=tailgauge calibrate",
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        return f"openssl did not make a certificate: {message[:200]}"
    return files


def calibration_run(
    steps: Steps, model: str, clock: str, authority: Authority | None, folder: Path, patience_s: float
) -> list[StepError]:
    """The client's error at each step. Raises TailgaugeError if no run came about, TimeoutError if it took too long."""
    folder.mkdir()
    serving, sending = _cores()
    line = ["endpoint", "--port=0", "--lifeline", *plan.endpoint_options(model)]
    if authority is not None:
        line += [f"--certfile={authority.certificate}", f"--keyfile={authority.key}"]
    endpoint = Child(line, folder / "endpoint.log", with_keys=False)
    try:
        url = endpoint.first_line(START_S).split()[-1]
        _keep_to(endpoint.process.pid, serving)
        trusted = str(authority.certificate) if authority else None
        path = folder / "calibrate.toml"
        path.write_text(plan.scenario(steps, url, trusted, clock), encoding="utf-8")
        run = _run(path, folder, patience_s, sending)
        complaints = fetch_server_log(url, run.path.name, run, trusted)
        if complaints:
            raise TailgaugeError(complaints[0])
    finally:
        endpoint.stop(3)
    return measure(run.path, steps.windows(), plan.SLACK_MS[model])


def _run(path: Path, folder: Path, patience_s: float, cores: set[int]) -> RunFolder:
    """Run the scenario to its end; the folder of the run."""
    line = ["run", str(path), "--workers=1", "--json", f"--out={folder}"]
    run = Child(line, folder / "run.log", with_keys=False)
    _keep_to(run.process.pid, cores)
    try:
        output, _ = run.process.communicate(timeout=patience_s)
    except BaseException as error:
        kill(run.process)  # its worker too, which would keep writing into the folder
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"it did not end within {patience_s:.0f} s") from error
        raise
    if run.process.returncode == Exit.INTERRUPTED:
        raise TailgaugeError("interrupted: no certificate was made")
    code = run.process.returncode
    try:
        done = RunFolder(Path(json.loads(output)["run_dir"]))
    except (ValueError, KeyError):
        code = code or Exit.INTERNAL
    if code in {Exit.USAGE, Exit.TARGET, Exit.INTERNAL}:
        raise TailgaugeError(f"a run of the calibration failed (exit code {code}): {run.log_tail()}")
    return done


def _cores() -> tuple[set[int], set[int]]:
    """One core for the endpoint, the others for the client; empty if there is only one, or no affinity."""
    free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return ({free[0]}, set(free[1:])) if len(free) > 1 else (set(), set())


def _keep_to(pid: int, cores: set[int]) -> None:
    if cores:
        with contextlib.suppress(OSError):  # it has ended; its output is read elsewhere
            os.sched_setaffinity(pid, cores)


# --- the client's error at each step ------------------------------------------------------------------------------

BIAS_MS = 0.5  # of the median
P99_MS, P99_SHARE = 2.0, 0.02  # of the p99, the larger of both
KS, KS_MORE = 1.63, 0.01  # distance of the distributions: KS / sqrt(n) + KS_MORE
FEWEST = 20  # requests of a step
STRAINED_MS = 10.0  # an endpoint whose median first chunk is later than planned by more is at its limit
STRAINED_OF = 0.7  # so is one that sends a smaller share of the requested rate
_LOG = (*CALL, "received_at_ns", "planned_ttft_ns", "chunk_sent_at_ns")


@dataclass(frozen=True, slots=True)
class TimeError:
    """Measured times against sent times, in ms. `bias`: median of the differences; `spread`: p99 of their size."""

    n: int
    bias_ms: float
    spread_ms: float
    p99_off_ms: float
    p99_reference_ms: float
    distance: float

    @property
    def distance_bound(self) -> float:
        """Largest Kolmogorov-Smirnov distance that chance explains."""
        return KS / math.sqrt(self.n) + KS_MORE

    def failed(self, what: str) -> list[str]:
        """The criteria that it misses, as text."""
        bound = max(P99_MS, P99_SHARE * self.p99_reference_ms)
        criteria = (
            ("the median is off by {:.3g} ms, above {:g} ms", abs(self.bias_ms), self.bias_ms, BIAS_MS),
            ("the p99 is off by {:.3g} ms, above {:.3g} ms", abs(self.p99_off_ms), self.p99_off_ms, bound),
            ("the distributions differ by {:.3f}, above {:.3f}", self.distance, self.distance, self.distance_bound),
        )  # fmt: skip
        return [f"{what}: {text.format(value, most)}" for text, size, value, most in criteria if size > most]


@dataclass(frozen=True, slots=True)
class StepError:
    """The client's error at one step; `failed` is empty if it passed."""

    asked_per_s: float
    sent_per_s: float
    requests_per_s: float
    ttft: TimeError | None
    gap: TimeError | None
    exact_first: float  # share of the first chunks with an exact stamp
    cpu_us_per_chunk: float | None
    core_wait: float | None  # share of the time in which the worker waited for a core; None: not known
    endpoint_late_ms: float
    failed: tuple[str, ...]

    @property
    def strained(self) -> bool:
        """Whether the endpoint itself was at its limit."""
        return self.endpoint_late_ms > STRAINED_MS or self.sent_per_s < STRAINED_OF * self.asked_per_s

    @property
    def crowded(self) -> bool:
        """Whether other processes had the worker's core."""
        return self.core_wait is not None and self.core_wait > SHORT_OF_CORES


@dataclass(frozen=True, slots=True)
class Joined:
    """Calls in the client's rows and in the endpoint's log, in ns of the run's clock; chunks one call after the other."""

    sent: Floats  # the request, by the client
    first: Floats  # its first content, as it is reported
    first_exact: np.ndarray[tuple[int], np.dtype[np.bool_]]
    late: Floats  # of the endpoint's first chunk, against its plan
    sizes: Ints
    arrived: Ints
    reference: Ints  # when each was sent
    lost: int  # calls that the log lacks, or with other chunks


def measure(run_dir: Path, windows: Sequence[Window], slack_ms: float) -> list[StepError]:
    """Each step of a run whose folder has the endpoint's log; `slack_ms`: see `distance`."""
    frames = load([run_dir])
    joined = _join(frames, run_dir)
    return [step_error(joined, window, slack_ms, *seconds_of(frames, window)) for window in windows]


def step_error(
    joined: Joined, window: Window, slack_ms: float, cpu_s: float | None, wait_s: float | None = None
) -> StepError:
    """The client's error in one step."""
    since, until = window.from_s * 1e9, window.to_s * 1e9
    starts = np.cumsum(joined.sizes) - joined.sizes
    asked = (joined.sent >= since) & (joined.sent < until)
    sent_first = joined.reference[starts].astype(np.float64)
    ttft = _error(joined.first[asked] - joined.sent[asked], sent_first[asked] - joined.sent[asked], slack_ms)
    later = np.ones(len(joined.reference), np.bool_)
    later[starts] = False
    inside = (joined.reference >= since) & (joined.reference < until)
    at = np.flatnonzero(inside & later)
    arrived, sent = ((of[at] - of[at - 1]).astype(np.float64) for of in (joined.arrived, joined.reference))
    gap = _error(arrived, sent, slack_ms)
    chunks, requests, seconds = int(inside.sum()), int(asked.sum()), window.to_s - window.from_s
    failed = [*(ttft.failed("TTFT") if ttft else []), *(gap.failed("chunk gaps") if gap else [])]
    if ttft is None or gap is None or requests < FEWEST:
        failed.append(f"only {requests} requests were answered, {FEWEST} needed")
    if joined.lost:
        failed.append(f"{joined.lost} calls do not match the endpoint's log")
    return StepError(
        asked_per_s=window.asked_per_s, sent_per_s=chunks / seconds, requests_per_s=requests / seconds, ttft=ttft, gap=gap,
        exact_first=float(joined.first_exact[asked].mean()) if requests else 0.0,
        cpu_us_per_chunk=cpu_s * 1e6 / chunks if chunks and cpu_s is not None else None,
        core_wait=wait_s / seconds if wait_s is not None else None,
        endpoint_late_ms=float(np.median(joined.late[asked])) / 1e6 if requests else 0.0, failed=tuple(failed),
    )  # fmt: skip


def distance(measured: Floats, reference: Floats, slack: float) -> float:
    """Largest difference of two distribution functions; times within `slack` count as equal.

    The plain distance of a constant is 1 for a difference of a microsecond.
    """
    ours, theirs = np.sort(measured), np.sort(reference)
    n, m = len(ours), len(theirs)
    above = np.arange(1, n + 1) / n - np.searchsorted(theirs, ours + slack, "right") / m
    below = np.arange(1, m + 1) / m - np.searchsorted(ours, theirs + slack, "right") / n
    return float(max(above.max(), below.max(), 0.0))


def seconds_of(frames: Frames, window: Window) -> tuple[float | None, float | None]:
    """CPU time of the workers within a window, and their wait for a core, from health rows; None: unknown."""
    totals, ends = np.zeros(2), (window.from_s, window.to_s)
    for _, rows in frames.health.sort_values("at_ns").groupby("worker"):
        at_s = rows["at_ns"].to_numpy(np.float64) / 1e9
        if len(at_s) < 2 or at_s[0] > window.from_s or at_s[-1] < window.to_s:
            return None, None
        cpu = np.cumsum(rows["cpu_share"].to_numpy(np.float64) * np.diff(at_s, prepend=at_s[0]))
        # NaN if the system does not report it.
        wait = np.cumsum(rows["core_wait_ns"].to_numpy(np.float64)) / 1e9
        totals += [np.diff(np.interp(ends, at_s, one))[0] for one in (cpu, wait)]
    used, waited = totals.tolist() if len(frames.health) else (None, math.nan)
    return used, waited if math.isfinite(waited) else None


def _error(measured: Floats, reference: Floats, slack_ms: float) -> TimeError | None:
    n = len(reference)
    if not n:
        return None
    off, at = measured - reference, rank(n, 0.99) - 1
    spread, p99, p99_reference = (float(np.sort(times)[at]) for times in (np.abs(off), measured, reference))
    return TimeError(
        n=n, bias_ms=float(np.median(off)) / 1e6, spread_ms=spread / 1e6, p99_off_ms=(p99 - p99_reference) / 1e6,
        p99_reference_ms=p99_reference / 1e6, distance=distance(measured, reference, slack_ms * 1e6),
    )  # fmt: skip


def _join(frames: Frames, run_dir: Path) -> Joined:
    """Join the client's rows with the endpoint's log."""
    start = frames.run["start_at_ns"] or 0
    log = {}
    for part in parquet.listed([run_dir], "target", []):
        table = parquet.read(part, _LOG, [])
        rows = table.drop_columns("chunk_sent_at_ns").to_pylist()
        for row, sent in zip(rows, table["chunk_sent_at_ns"], strict=True):
            times = np.asarray(sent.values if sent.is_valid else (), np.int64) - start
            planned = row["planned_ttft_ns"]
            behind = times[0] - (row["received_at_ns"] - start) - planned if len(times) and planned else 0
            log[tuple(row[name] for name in CALL)] = times, behind
    calls = frames.attempts
    answered = calls["ended"].isin(schema.COMPLETE) & calls["stage"].ne(schema.PREFLIGHT)
    ours = calls[answered & calls["first_content_at_ns"].notna()]
    named = ours[list(CALL)].astype("int64")
    chunks = frames.chunks
    places = chunks.places(*(named[name].to_numpy() for name in named.columns))
    begin = np.cumsum(chunks.sizes) - chunks.sizes
    kept, arrived, reference, late, nothing = [], [], [], [], np.empty(0, np.int64)
    for row, (key, place) in enumerate(zip(named.itertuples(index=False, name=None), places, strict=True)):
        times, behind = log.get(key, (nothing, 0))
        size = int(chunks.sizes[place]) if place >= 0 else 0
        if not size or size != len(times):
            continue
        kept.append(row)
        arrived.append(chunks.arrived_at_ns[begin[place] : begin[place] + size])
        reference.append(times)
        late.append(behind)
    rows = ours.iloc[kept]
    sent, first = (rows[name].to_numpy(np.float64) for name in ("sent_at_ns", "first_content_at_ns"))
    return Joined(
        sent, first, rows["first_content_low_at_ns"].isna().to_numpy(), late=np.array(late, np.float64),
        sizes=np.array([len(times) for times in reference], np.int64), lost=len(ours) - len(kept),
        arrived=np.concatenate([nothing, *arrived]), reference=np.concatenate([nothing, *reference]),
    )  # fmt: skip
