"""Gateways before the simulated endpoint, in real time: what the report says they add is what two logs say.

The logs: the endpoint's, and that of a relay that is the gateway or stands right before it. Direct, a call takes from its
arrival at the endpoint to its first content, and to its last; through the gateway, from its arrival at the relay to the same
leaving it.
"""

from __future__ import annotations

import contextlib
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from end_to_end.relay import relay
from run_folders.dry_runs import exact
from run_folders.run_data import RunData
from starting.command import run_scenarios
from starting.endpoint import endpoint
from starting.nginx import needs_nginx, proxy

from tailgauge_analysis.comparing.gateway import LEAST_MS
from tailgauge_analysis.stats.binomial import binomial_quantile
from tailgauge_analysis.stats.estimate import paired
from tailgauge_analysis.stats.quantiles import CONFIDENCE

pytestmark = pytest.mark.patient

SETS = ("simulated.ttft_ms=40", "simulated.ttft_sigma=0.02", "simulated.chunk_gap_ms=4")
OUTPUT = 20
RATE, BLOCK_S, WASHOUT_S = 24, 1.5, 0.3
NEAR_MS = 1.0
SEED = 3
DELAY_MS = 3.0


@dataclass(frozen=True)
class Measured:
    """What the report says, and what the logs say is added by quantile in ms, of TTFT and of the whole answer."""

    gateway: dict[str, Any]
    ttft_ms: dict[float, float]
    e2e_ms: dict[float, float]

    def row(self, title: str, p: float | None = None) -> dict[str, Any]:
        return next(row for row in self.gateway["rows"] if (row["title"], row["p"]) == (title, p))

    @property
    def lost(self) -> dict[str, Any]:
        """The cancelled calls that the endpoint kept generating."""
        return self.row("cancelled calls that the endpoint kept generating")

    def print(self, name: str) -> None:
        print(
            name,
            self.gateway["sentence"],
            f"{self.lost['why']} lost",
            sep="; ",
        )
        for title, by_log in (("TTFT", self.ttft_ms), ("end to end", self.e2e_ms)):
            for p, value in by_log.items():
                row = self.row(title, p)
                print(
                    f"  {title} {p}: by the logs {value:.3f}, added {row['change']} ({row['low']} to {row['high']})"
                )

    def far(self, title: str, by_log: dict[float, float], p: float) -> float:
        return abs(self.row(title, p)["change"] - by_log[p])


Gateway = Callable[[str, Path], contextlib.AbstractContextManager[str]]


def measure(gateway: Gateway, folder: Path, pairs: int, seed: int = SEED) -> Measured:
    """A run directly and through a gateway, before which the relay with the log stands."""
    with contextlib.ExitStack() as stack:
        folder.mkdir(exist_ok=True)
        url = stack.enter_context(endpoint(*(f"--set={text}" for text in SETS), cwd=folder)).url
        with gateway(url, folder) as through:
            length_s = 2 + 2 * pairs * BLOCK_S
            keys = (
                f"second_target.url={through}", f"stages.duration_s={length_s}", "stages.warmup_s=2",
                f"crossover.block_s={BLOCK_S}", f"crossover.washout_s={WASHOUT_S}", f"arrival.rate_per_s={RATE}",
                f"traffic.*.output_tokens={OUTPUT}", "traffic.*.prompt_tokens=50",
            )  # fmt: skip
            options = [f"--seed={seed}", f"--target={url}", *(f"--set={key}" for key in keys)]
            (report,), _ = run_scenarios(["gateway"], *options, out=folder, timeout_s=length_s + 90)
        run = Path(report["run_dir"])
        answer = urllib.request.urlopen(
            f"{url}/tailgauge/server-log?run={run.name}&settled", timeout=20
        ).read()
    found = json.loads((folder / "reports" / run.name / "report.json").read_text())
    if not found["gateway"]:
        print(found["result"]["sentence"], found["verdict"]["reasons"])
    log = pd.read_parquet(io.BytesIO(answer))
    return Measured(found["gateway"], *by_two_logs(run, log, folder / "relay.json"))


def by_two_logs(run: Path, log: pd.DataFrame, relay_log: Path) -> Iterator[dict[float, float]]:
    """By the two logs, of the calls of the steady stage that went well."""
    relayed = (
        {name.split("/", 1)[1]: times for name, times in json.loads(relay_log.read_text()).items()}
        if relay_log.exists()
        else {}
    )
    log = log[log["request_id"].notna()].set_index("request_id")
    requests = RunData(run).requests()
    good = requests[(requests["stage"] == "steady") & (requests["ended"] == "ok")]
    direct = log.loc[good.loc[good["traffic"] == "direct", "request_id"]]
    through = (
        [relayed[f"{one}/0/0"] for one in good.loc[good["traffic"] == "gateway", "request_id"]]
        if relayed
        else []
    )
    for place, chunk in ((1, 0), (2, -1)):
        of_direct = [sent[chunk] for sent in direct["chunk_sent_at_ns"]] - direct["received_at_ns"]
        waits = [times[place] - times[0] for times in through]
        yield {p: exact(waits, p) - exact(of_direct, p) for p in (0.5, 0.95, 0.99)} if waits else {}


def by_relay(mode: str, delay_ms: float = DELAY_MS) -> Gateway:
    return lambda url, folder: relay(url, folder / "relay.json", delay_ms, mode)


def nginx(buffering: str) -> Gateway:
    @contextlib.contextmanager
    def through(url: str, folder: Path) -> Iterator[str]:
        with (
            proxy(folder / "nginx", url, buffering, "64k") as at,
            relay(at, folder / "relay.json") as before,
        ):
            yield before

    return through


@contextlib.contextmanager
def nothing(url: str, folder: Path) -> Iterator[str]:
    yield url


@pytest.mark.slow
def test_a_relay_costs_what_it_takes_and_keeps_cancellations_to_itself(tmp_path):
    seen = measure(by_relay("reads_on"), tmp_path / "run", 20)
    seen.print("reads on")

    for title, by_log in (("TTFT", seen.ttft_ms), ("end to end", seen.e2e_ms)):
        assert seen.far(title, by_log, 0.5) < NEAR_MS
        assert seen.far(title, by_log, 0.95) < NEAR_MS
    assert seen.row("TTFT", 0.5)["verdict"] == "worse"
    assert DELAY_MS < seen.row("TTFT", 0.5)["change"] < DELAY_MS + 3
    assert seen.lost["b"] == 1
    assert f"does not pass on {seen.lost['why']} cancellations" in seen.gateway["sentence"]
    assert "passes chunks on one by one" in seen.gateway["sentence"]
    assert "reports the same number of prompt tokens" in seen.gateway["sentence"]


@pytest.mark.slow
@needs_nginx
def test_a_proxy_that_buffers_is_found(tmp_path):
    seen = measure(nginx("on"), tmp_path / "run", 20)
    seen.print("nginx on")

    assert "of the answers back until they end" in seen.gateway["sentence"]
    assert seen.row("answers that arrive whole")["b"] > 0.9
    assert seen.row("TTFT", 0.5)["change"] == pytest.approx(4 * (OUTPUT - 1), abs=8), (
        "all of the answer but its first chunk"
    )
    assert seen.far("TTFT", seen.ttft_ms, 0.5) < NEAR_MS


@pytest.mark.parametrize("name", ["passes", "holds", pytest.param("nginx off", marks=needs_nginx)])
def test_other_gateways_cost_what_they_take(name, tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify")
    seen = measure(nginx("off") if name == "nginx off" else by_relay(name), tmp_path / "run", 20)

    seen.print(name)
    for p in (0.5, 0.95):
        assert seen.far("TTFT", seen.ttft_ms, p) < NEAR_MS
        assert seen.far("end to end", seen.e2e_ms, p) < NEAR_MS
    last = seen.row("TTFT", 0.99)
    assert last["low"] - NEAR_MS <= seen.ttft_ms[0.99] <= last["high"] + NEAR_MS
    assert ("back until they end" in seen.gateway["sentence"]) == (name == "holds")
    assert seen.lost["b"] == (1 if name == "holds" else 0), "held back, it has ended"


def test_the_same_endpoint_under_both_names_differs_by_chance_alone(tmp_path, full_size):
    """The p-values of all rows of a report are corrected together at 5%: so many reports name a difference by chance."""
    if not full_size:
        pytest.skip("make verify")
    reports = 0
    named = []
    added_ms = []
    for seed in range(SEED, SEED + 10):
        seen = measure(nothing, tmp_path / f"run{seed}", 12, seed=seed)
        if not seen.gateway:
            continue
        reports += 1
        added_ms.append([seen.row(title, 0.5)["change"] for title in ("TTFT", "end to end")])
        seen.print(f"seed {seed}")
        different = [row for row in seen.gateway["rows"] if row["verdict"] in {"worse", "better"}]
        if different:
            named.append(seed)
            print("  named:", *different, sep="\n    ")
    assert reports >= 7
    # More would be chance in one of a hundred repetitions.
    assert len(named) <= binomial_quantile(0.99, reports, 1 - CONFIDENCE)
    for of_title in np.transpose(added_ms):
        over_runs = paired(of_title)
        print("medians over all runs", over_runs)
        assert over_runs.low < LEAST_MS
        assert over_runs.high > -LEAST_MS
