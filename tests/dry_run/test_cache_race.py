"""The cache race under fan-out: legs that leave together all write the prefix; each cure takes it away."""

import pytest
from dry_run.in_memory import UNBOUNDED, run_in_memory

LEGS = 5


def fanned(*, at_once=None, pre_warm=False, visibility_delay_s=0.0, requests=3):
    return {
        "arrival": {"process": "constant", "rate_per_s": 0.1},
        "stages": {"duration_s": requests * 10.0, "warmup_s": 0.0},
        "limits": UNBOUNDED,
        "simulated": {
            "ttft_ms": 100.0,
            "cache": {
                "mode": "marked",
                "minimum_tokens": 100,
                "visibility_delay_s": visibility_delay_s,
            },
        },
        "traffic": {
            "main": {
                "pattern": "fan_out",
                "prompt_tokens": 20,
                "output_tokens": 2,
                "fan_out": {"legs": LEGS, **({"at_once": at_once} if at_once else {})},
                "cache": {"system_tokens": 500, "breakpoints": ["system"], "pre_warm": pre_warm},
            }
        },
    }


def writes_and_reads(kept):
    """Of each request, in order."""
    measured = [
        rows for _, rows in sorted(kept.by_request().items()) if rows[0].stage != "preflight"
    ]
    return [
        (
            sum(row.cache_creation_input_tokens > 0 for row in rows),
            sum(row.cache_read_input_tokens > 0 for row in rows),
        )
        for rows in measured
    ]


def test_row_18_simultaneous_cold_legs_all_write():
    assert writes_and_reads(run_in_memory(fanned())) == [(LEGS, 0), (0, LEGS), (0, LEGS)]


@pytest.mark.parametrize("cure", [{"at_once": 1}, {"pre_warm": True}])
def test_one_leg_after_the_other_or_a_pre_warmed_prefix_do_not(cure):
    first = (1, LEGS - 1) if "at_once" in cure else (0, LEGS)

    assert writes_and_reads(run_in_memory(fanned(**cure))) == [first, (0, LEGS), (0, LEGS)]


def test_what_becomes_readable_late_is_written_by_later_legs_too():
    """A leg leaves every 110 ms, the first answer begins at 100 ms and can be read at 350 ms: the fifth leg's turn."""
    assert writes_and_reads(run_in_memory(fanned(at_once=1, visibility_delay_s=0.25)))[0] == (4, 1)


def test_the_server_log_and_the_usage_agree_and_the_client_knows_of_the_race():
    kept = run_in_memory(fanned())
    logged = {row.client_request_id: row for row in kept.server_rows}

    for row in kept.attempts:
        log = logged[f"dry_run/{row.request_id}/{row.leg}/{row.attempt}"]
        assert (log.cache_read_tokens, log.cache_created_tokens) == (
            row.cache_read_input_tokens,
            row.cache_creation_input_tokens,
        )
    first = kept.by_request()[0]
    assert [row.cache_writers for row in first] == list(range(LEGS))
    assert {logged[f"dry_run/0/{leg}/0"].cache_reason for leg in range(1, LEGS)} == {"race"}
