"""`x-should-retry` of the simulated endpoint: the policy `sdk` obeys it, in real and in dry runs."""

import pytest

SCENARIO = """
[target]
url = "simulated"
protocol = "openai"
[arrival]
process = "constant"
rate_per_s = 10
[stages]
duration_s = 3
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 2
[traffic.chat.retry]
policy = "sdk"
[simulated]
ttft_ms = 10.0
chunk_gap_ms = 1.0
[simulated.limits]
rpm = 60
burst = 5
retry_after = "none"
{setting}
[stop]
min_completed = 0
"""


@pytest.mark.slow("real", "dry, true]", "dry, no")
@pytest.mark.parametrize(
    ("options", "setting", "is_retried"),
    [
        ((), "should_retry = false", False),
        ((), "should_retry = true", True),
        (("--dry-run",), "should_retry = false", False),
        (("--dry-run",), "should_retry = true", True),
        (("--dry-run",), "", True),
    ],
    ids=["real, false", "real, true", "dry, false", "dry, true", "dry, no header"],
)
def test_the_policy_of_the_sdks_obeys_the_header(start, tmp_path, options, setting, is_retried):
    scenario = tmp_path / "limited.toml"
    scenario.write_text(SCENARIO.format(setting=setting), encoding="utf-8")

    done = start("run", scenario, *options).finish()

    attempts = done.run.table("attempts").query("request_id >= 0")
    limited = attempts[attempts.ended == "rate_limited"]
    assert len(limited) > 5, done.stderr
    assert ("retry" in set(attempts.cause)) is is_retried
