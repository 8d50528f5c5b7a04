"""The raw bytes of an answer are all there, in whatever pieces they came. What happens is in scripts/capture.py."""

from __future__ import annotations

import pytest

# name -> how the peer ended the connection while the answer went on
ENDS = {
    "stream": ["None"],
    "interim": ["None"],
    "counted": ["None"],
    "until_close": ["closed"],
    "closed_early": ["closed"],
    "reset": ["reset"],
    "closed_in_the_head": ["closed"],
    "bad_chunk": ["None"],
    "banner": ["None"],
    "compressed": ["None"],
    "excess": ["None"],
    "error": ["None"],
}
# Wires whose exchange ends before their last byte: what comes in a later read belongs to no answer.
SHORT = ("bad_chunk", "banner", "compressed", "excess")


@pytest.fixture(scope="module")
def seen(run_script, reader, tmp_path_factory):
    return run_script("transport/scripts/capture.py", tmp_path_factory.mktemp("capture"), reader)


@pytest.mark.parametrize("name", ENDS)
def test_every_byte_is_kept_wherever_an_answer_was_split(seen, name):
    facts = seen["every_split"][name]

    assert facts["ends"] == ENDS[name]
    if name not in SHORT:
        assert facts["short"] == []
    assert len(facts["short"]) < facts["size"] / 3


def test_its_memory_is_counted_until_the_call_ends(seen):
    for name in ENDS:
        assert seen["every_split"][name]["held"] == [True, 0]


def test_a_stream_that_no_one_waits_for_is_kept_read_by_read(seen):
    facts = seen["many_plain_reads"]

    assert facts["data"]
    assert facts["is_in_order"]
    assert facts["reads"] > 50
    assert facts["gap_ns"] > 50_000_000
    assert (facts["method"], facts["left_out"]) == ("POST", 0)
    assert facts["exchange_reads"] == facts["reads"]


def test_a_stream_under_tls_is_kept_decrypted(seen):
    facts = seen["tls"]

    assert facts["data"]
    assert facts["is_in_order"]


def test_an_answer_beyond_its_bound_keeps_its_beginning_and_counts_the_rest(seen):
    facts = seen["beyond_the_bound_of_one"]

    assert facts["data"] == 1000
    assert facts["left_out"] > 1000
    assert facts["aborted"] is None


def test_answers_beyond_the_bound_of_all_keep_their_beginning(seen):
    facts = seen["beyond_the_bound_of_all"]

    assert 0 < facts["data"] < 1200
    assert facts["left_out"] > 0
    assert facts["held"] == [True, 0]
