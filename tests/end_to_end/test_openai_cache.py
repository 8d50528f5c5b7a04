"""OpenAI's prompt cache of today: what is marked is written and read as the endpoint's own log says, and costs to the cent."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
import pytest
from starting.command import Finished, run_in

pytestmark = pytest.mark.slow

KEY = ["request_id", "leg", "attempt"]
OPTIONS = (
    "--protocol=openai", "--rate=10", "--duration=4", "--seed=3", "--set=stages.warmup_s=0",
    "--set=traffic.assistant.output_tokens=8", "--set=traffic.assistant.cache.system_tokens=1500",
)  # fmt: skip
TOKENS = {
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_created_tokens",
}
RATES = {
    "uncached": Fraction(1),
    "read": Fraction(1, 10),
    "written": Fraction(5, 4),
    "output": Fraction(5),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_in(tmp_path_factory.mktemp("cached"), "cached", *OPTIONS)


@pytest.fixture(scope="module")
def joined(done: Finished) -> pd.DataFrame:
    """Rows of the run beside those of the endpoint."""
    attempts = done.run.table("attempts").query("request_id >= 0")
    log = done.run.table("target")[[*KEY, "input_tokens", "output_tokens", *TOKENS.values()]]
    return attempts.merge(log, on=KEY, suffixes=("", "_of_log"), validate="one_to_one")


def test_each_prefix_is_written_and_then_read(joined):
    assert len(joined) > 20
    assert (joined["cache_created_tokens"] > 0).sum() >= 3
    assert (joined["cache_read_tokens"] > 0).sum() > len(joined) / 2
    assert set(joined["cache_marks"]) == {2}
    assert set(joined["cache_ttl"]) == {"30m"}


@pytest.mark.parametrize("column", TOKENS)
def test_tokens_are_those_of_the_endpoint(joined, column):
    assert joined[column].tolist() == joined[TOKENS[column]].tolist()


def test_a_call_that_was_expected_to_read_did(joined):
    warm = joined[joined["cache_expected"] == "warm"]

    assert len(warm) > 5
    assert (warm["cache_read_tokens"] > 0).all()


def test_the_cost_is_that_of_the_log_to_the_cent(done, joined):
    report = done.report_data
    counts = {
        "uncached": joined["input_tokens_of_log"].sum(),
        "read": joined["cache_read_tokens"].sum(),
        "written": joined["cache_created_tokens"].sum(),
        "output": joined["output_tokens_of_log"].sum(),
    }
    (cache,) = report["cache"]

    assert Fraction(str(cache["cost"]["total"])) == sum(
        int(counts[name]) * rate for name, rate in RATES.items()
    )
    assert joined["input_tokens"].tolist() == joined["input_tokens_of_log"].tolist()
