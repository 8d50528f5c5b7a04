"""The collector rests while a command loads, and is back afterwards, whatever happens."""

import gc

import pytest

from tailgauge.cli.main import importing_without_gc


def test_nothing_is_searched_while_it_loads_and_what_stands_then_not_later():
    before = gc.get_freeze_count()
    with importing_without_gc():
        assert not gc.isenabled()
        kept = [[number] for number in range(1000)]

    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)


def test_an_import_that_fails_gives_the_collector_back():
    with pytest.raises(ModuleNotFoundError), importing_without_gc():
        import no_such_module  # noqa: F401

    assert gc.isenabled()


def test_what_comes_after_is_searched_as_ever():
    class Node:
        pass

    with importing_without_gc():
        pass
    lost = Node()
    lost.itself = lost
    del lost

    assert gc.collect() > 0
