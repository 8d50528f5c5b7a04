"""Streams drawn from a grammar, read by the harness and by the official SDKs.

Where the SDK completes, text, tool inputs, stop reason and usage are equal, but for `DEVIATIONS` in `oracle.py`; the class
is the grammar's own (see `grammar.py`). `TAILGAUGE_FUZZ=SEED` repeats the seed that is printed.
"""

from __future__ import annotations

import os
import secrets

import pytest
from wire.grammar import expected
from wire.oracle import DEVIATIONS, DRAW, TOLERATED

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai"])
FEW, MANY = 150, 2000
FEW_SOCKETS, MANY_SOCKETS = 50, 400


def seed_of(full_size: bool) -> str:
    """Return the seed: the same each time in the short form, a fresh one in the full form."""
    seed = os.environ.get("TAILGAUGE_FUZZ") or (str(secrets.randbits(32)) if full_size else "39")
    print(f"seed {seed}: repeat with TAILGAUGE_FUZZ={seed}")
    return seed


def shown(mismatches: list[dict]) -> str:
    """Return the failing cases, for whoever has to find out why."""
    lines = []
    for case in mismatches[:5]:
        lines.append(
            f"--- {case['protocol']} {case['seed']} ({case['plan']}, {case['reads']} reads): {case['notes']}"
        )
        lines += case["problems"]
        lines.append(case["bytes"])
    return "\n".join(lines)


@BOTH
def test_the_harness_reads_what_the_official_sdk_reads(run_script, full_size, protocol):
    seed = seed_of(full_size)
    count = MANY if full_size else FEW

    facts = run_script("wire/scripts/oracle.py", protocol, seed, "0", str(count), timeout_s=300)

    assert facts["mismatches"] == [], (
        f"{facts['mismatch_count']} streams\n{shown(facts['mismatches'])}"
    )
    assert facts["completed_by_sdk"] > count / 3
    assert len(facts["classes"]) >= 9
    if full_size:
        assert facts["deviations"].keys() == DEVIATIONS[protocol].keys()


@pytest.mark.slow
@BOTH
def test_whole_calls_over_connections_end_in_the_same_rows(run_script, full_size, protocol):
    seed = seed_of(full_size)
    count = MANY_SOCKETS if full_size else FEW_SOCKETS

    facts = run_script("wire/scripts/sockets.py", protocol, seed, str(count), timeout_s=300)

    assert facts["mismatches"] == [], (
        f"{facts['mismatch_count']} streams\n{shown(facts['mismatches'])}"
    )


@BOTH
def test_a_seed_gives_the_same_stream_again(protocol):
    draw = DRAW[protocol]

    assert draw("a") == draw("a")
    assert draw("a").wire != draw("b").wire


@BOTH
def test_every_kind_of_stream_is_drawn(protocol):
    """Of each there are some among those of the full size; the classes are the grammar's own."""
    streams = [DRAW[protocol](f"kinds-{number}") for number in range(900)]
    classes = {expected(stream).ended for stream in streams}
    notes = set().union(*(stream.notes for stream in streams))

    assert classes == {
        "ok", "empty", "cut", "refused", "filtered", "aborted", "overloaded", "rate_limited", "server_error", "client_error",
        "stream_error", "truncated",
    }  # fmt: skip
    assert set(DEVIATIONS[protocol]) - notes == set()


def test_what_is_tolerated_is_drawn_in_one_protocol_at_least():
    notes = set()
    for draw in DRAW.values():
        notes |= set().union(*(draw(f"tolerated-{number}").notes for number in range(600)))

    assert TOLERATED.keys() - notes == set()


def test_each_deviation_from_the_sdk_has_a_reason():
    for deviations in DEVIATIONS.values():
        for deviation in deviations.values():
            assert len(deviation.reason) > 20
            assert deviation.fields
