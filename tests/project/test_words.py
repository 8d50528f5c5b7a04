"""One meaning a word: names and prose use the terms of the field (docs/reference/glossary.md), not those of the table in words.py."""

import pytest
from project.words import (
    EXCEPTIONS,
    Finding,
    in_name,
    in_prose,
    is_excepted,
    scan,
    scan_tree,
)

pytestmark = pytest.mark.slow

PLACES = ("src", "analysis", "bench", "locustfiles", "scenarios", "docs", "tests", "reports/README.md", "README.md",
          "CONTRIBUTING.md", "SECURITY.md", "supply_chain.py", "Makefile", "docker-compose.yml", "Dockerfile")  # fmt: skip


@pytest.fixture(scope="module")
def found(checkout) -> list[Finding]:
    return scan_tree(checkout, *PLACES)


def test_no_name_and_no_sentence_uses_a_word_of_the_table(found):
    assert [str(finding) for finding in found if not is_excepted(finding)] == []


def test_every_exception_is_still_needed(found):
    """An exception that excuses nothing is one that the next reader trips over."""
    unused = [
        exception
        for exception in EXCEPTIONS
        if not any(is_excepted(one, [exception]) for one in found)
    ]

    assert unused == []


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("told_calls", "told"), ("_SAID", "said"), ("byOwner", "owner"), ("OwnerClock", "owner"), ("rows-home", "home"),
        ("HANDOVER_MS", "handover"), ("virtual_rows", "virtual"), ("--virtual", "virtual"), ("BatchShelf", "shelf"),
        ("server_truth", "truth"), ("run.arms", "arms"), ("LAWS", "laws"),
    ],
)  # fmt: skip
def test_a_banned_word_is_found_in_a_name_however_it_is_written(name, word):
    assert [found for found, _ in in_name(name)] == [word]


@pytest.mark.parametrize(
    "name",
    ["ground_truth", "GroundTruth", "master", "told3d_x".replace("told", "fold"), "true", "warm"],
)
def test_a_name_that_only_looks_like_one_is_left_alone(name):
    assert list(in_name(name)) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Send traffic for the owner at HOST:PORT until it lets go.", "what was recorded stays, and where is told",
        "6 of 7 are surely quiet", "worker 0 stood still in 3 of its 9 s", "Arms that took turns", "tries a call",
        "a stretch of rows on their way home", "the rehearsal said", "What load does", "no alarm would ring",
    ],
)  # fmt: skip
def test_a_phrase_of_the_list_is_found_in_prose(sentence):
    assert list(in_prose(sentence)) != []


@pytest.mark.parametrize(
    "sentence",
    [
        "Run as a worker of the master at HOST:PORT.", "Worker 0 was stalled for 3 of 9 s (event loop blocked).",
        "The next turn of a conversation waits for the answer.", "Compare two sets of runs.", "2.3 attempts per call",
    ],
)  # fmt: skip
def test_plain_prose_is_left_alone(sentence):
    assert list(in_prose(sentence)) == []


def test_class_names_headings_comments_strings_and_file_names_are_looked_at(tmp_path):
    source = tmp_path / "crew_list.py"
    source.write_text(
        'class Kind:\n    """The rehearsal."""\n\n\nnames = {"said": 1}  # the owner\n',
        encoding="utf-8",
    )
    page = tmp_path / "page.md"
    page.write_text("# Arms\n\nPlain text.\n", encoding="utf-8")

    assert {one.word.lower() for one in scan(tmp_path, source)} == {
        "crew",
        "kind",
        "rehearsal",
        "said",
        "the owner",
    }
    assert {one.word.lower() for one in scan(tmp_path, page)} == {"arms"}
