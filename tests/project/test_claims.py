"""The numbers of docs/explanation/claims.md, computed."""

from math import exp, log
from pathlib import Path
from statistics import NormalDist, median

import pyarrow.dataset
import pytest

from tailgauge_analysis.stats.quantiles import n_min, rank

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def claims(checkout) -> str:
    return (checkout / "docs" / "explanation" / "claims.md").read_text(encoding="utf-8")


NORMAL = NormalDist()


def p99(sigma: float, hedged: bool = False) -> float:
    """The p99 of a lognormal of median 1, in the hedged case of min(X, delay + Y) with the delay at its p95, by bisection."""
    delay = exp(sigma * NORMAL.inv_cdf(0.95)) if hedged else float("inf")

    def beyond(t: float) -> float:
        return 1 - NORMAL.cdf(log(t) / sigma) if t > 0 else 1.0

    low, high = 0.0, exp(sigma * NORMAL.inv_cdf(0.999))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if beyond(middle) * beyond(middle - delay) > 0.01 else (low, middle)
        )
    return low


def gain(sigma: float) -> float:
    return 1 - p99(sigma, hedged=True) / p99(sigma)


def uses(write: float, read: float) -> float:
    """How many uses of each write pay for it."""
    return (write - read) / (1 - read)


CLAIMS = (
    ("comes out at 109 ms instead of 20", (1000 + 10 * 20) / 11, (108.5, 109.5)),
    ("For K = 100 that is 36.6%", 0.99**100, (0.3655, 0.3665)),
    ("the p50 at K = 69", 0.99**69, (0.499, 0.501)),
    ("hit rate of 47%, not 90%", 9000 / (1000 + 9000 + 9000), (0.465, 0.475)),
    ("hit rate of 47%, not 90%", 9000 / (1000 + 9000), (0.895, 0.905)),
    ("needs 299 independent requests", n_min(0.99), (299, 299)),
    ("the 99th of 100", rank(100, 0.99), (99, 99)),
    ("it takes the largest, the p100", int(100 * 0.99) + 1, (100, 100)),
    ("the p99 falls by 3% for sigma 0.45", gain(0.45), (0.025, 0.035)),
    ("(p99 2.8 times the median)", p99(0.45), (2.75, 2.85)),
    ("by 35% for sigma 1", gain(1), (0.345, 0.355)),
    ("(10 times the median)", p99(1), (9.5, 10.5)),
    *(("pays at its second use", uses(1.25, read), (1, 2)) for read in (0.1, 0.05, 0.025)),
    ("2.6 MB", 2 * 80 * 8192 * 2 / 1e6, (2.55, 2.65)),
    ("it is 320 KB", 2 * 80 * 8 * 128 * 2 / 1024, (320, 320)),
)


@pytest.mark.parametrize(("sentence", "value", "bounds"), CLAIMS)
def test_the_number_is_right_and_on_the_page(claims, sentence, value, bounds):
    assert sentence in claims
    assert bounds[0] <= value <= bounds[1]


KINDS = "[{prompt_tokens = 80, output_tokens = 20, count = 6}, {prompt_tokens = 400, output_tokens = 40, count = 2}]"
FAN_OUT = (
    *(
        "fan_out",
        "--dry-run",
        "--duration=60",
        "--rate=4",
        "--set=traffic.search.retry.policy=polite",
    ),
    *("--set=traffic.search.prompt_sigma=0", "--set=traffic.search.output_sigma=0"),
    "--set=traffic.search.fan_out.partial=accept",
    f"--set=traffic.search.fan_out.kinds={KINDS}",
    *("--set=simulated.limits.rpm=2400", "--set=simulated.limits.burst=12"),
)


@pytest.mark.parametrize(
    ("at_once", "share", "join"), [(100, "20.5%", "782 ms"), (2, "2.7%", "1,603 ms")]
)
def test_fan_out_joins_as_fast_as_the_page_says(claims, command, tmp_path, at_once, share, join):
    done = command(
        [
            "tailgauge",
            "run",
            *FAN_OUT,
            f"--set=traffic.search.fan_out.at_once={at_once}",
            "--out",
            tmp_path,
        ]
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    requests, attempts = (steady(folder / table) for table in ("requests", "attempts"))
    waits = [1e-6 * (row["joined_at_ns"] - row["scheduled_at_ns"]) for row in requests]
    refused = sum(row["status"] == 429 for row in attempts) / len(attempts)

    assert (f"{refused:.1%}", f"{median(waits):,.0f} ms") == (share, join)
    assert share in claims
    assert join in claims


def steady(table: Path) -> list[dict]:
    """Rows of the steady stage."""
    rows = pyarrow.dataset.dataset(table).to_table().to_pylist()
    return [row for row in rows if row["stage"] == "steady"]
