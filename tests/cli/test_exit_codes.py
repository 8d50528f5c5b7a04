"""The exit code of several runs is the worst of theirs."""

from __future__ import annotations

from itertools import pairwise

from tailgauge.errors import Exit


def test_of_several_codes_the_gravest_is_returned_wherever_it_stands():
    gravest_first = [
        Exit.INTERNAL, Exit.USAGE, Exit.INTERRUPTED, Exit.TARGET, Exit.INVALID, Exit.FAILED, Exit.INCONCLUSIVE, Exit.OK,
    ]  # fmt: skip

    assert set(gravest_first) == set(Exit)
    for graver, other in pairwise(gravest_first):
        assert Exit.worst([graver, other]) == Exit.worst([other, graver]) == graver
    assert Exit.worst(iter([Exit.OK, Exit.OK])) == Exit.OK


def test_where_no_run_began_it_was_interrupted():
    assert Exit.worst([]) == Exit.INTERRUPTED
