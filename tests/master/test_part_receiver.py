"""What comes from a worker is believed in nothing: it lands under its own name, whole and right, or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker.part_transfer import files, given_to, pieces, written

from tailgauge.master import part_receiver
from tailgauge.master.part_receiver import OPEN, REMEMBERED, PartReceiver
from tailgauge.rows import parquet
from tailgauge.rows.parquet import PIECE
from tailgauge.rows.run_folder import RunFolder
from tailgauge.worker import part_sender

WORKER = 3


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("worker"))
    folder.create()
    return {n: written(folder, WORKER, "health", n).read_bytes() for n in range(REMEMBERED + 2)}


@pytest.fixture
def master(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.create()
    return folder


# --- what is taken ----------------------------------------------------------------------------------------------


def test_a_part_is_named_only_when_it_is_whole_and_answers_say_how_much_is_here(master, spool):
    inbox, size = PartReceiver(master), len(spool[0])
    third = size // 3 + 1
    names = [
        (inbox.take(WORKER, message), sorted(files(master.path)))
        for message in pieces(spool[0], size=third)
    ]

    answer = {"table": "health", "name": "part-3-0.parquet", "why": None}
    assert names == [
        ({**answer, "upto": third, "state": "more"}, ["health/part-3-0.tmp"]),
        ({**answer, "upto": 2 * third, "state": "more"}, ["health/part-3-0.tmp"]),
        ({**answer, "upto": size, "state": "done"}, ["health/part-3-0.parquet"]),
    ]
    assert files(master.path) == {"health/part-3-0.parquet": spool[0]}
    assert inbox.rows == {WORKER: {"requests": 0, "attempts": 0, "chunks": 0, "health": 3}}


def test_a_piece_from_elsewhere_than_the_end_is_answered_with_the_end(master, spool):
    inbox, messages = PartReceiver(master), pieces(spool[0], size=1000)

    printed = [inbox.take(WORKER, messages[i])["upto"] for i in (1, 0, 2, 0, 1)]

    assert printed == [0, 1000, 1000, 1000, 2000]


def test_a_part_that_is_here_is_done_again_and_counted_once(master, spool):
    inbox, messages = PartReceiver(master), pieces(spool[0], size=3000)
    given_to(inbox, messages)

    again = [(a["state"], a["upto"]) for a in given_to(inbox, [messages[0], messages[-1]])]

    assert again == [("done", len(spool[0]))] * 2
    assert inbox.rows[WORKER]["health"] == 3


def test_another_part_of_a_name_that_is_here_is_refused_and_changes_nothing(master, spool):
    inbox = PartReceiver(master)
    given_to(inbox, pieces(spool[0]))

    [answer] = given_to(inbox, pieces(spool[1]))

    assert (answer["state"], answer["why"]) == (
        "refused",
        "another part of this name is already there",
    )
    assert files(master.path) == {"health/part-3-0.parquet": spool[0]}


def test_a_file_that_the_inbox_knows_nothing_of_is_never_replaced(master, spool):
    (master.path / "health/part-3-0.parquet").write_bytes(b"mine")

    [answer] = given_to(PartReceiver(master), pieces(spool[0]))

    assert (answer["state"], answer["why"]) == ("refused", "a part of this name is already there")
    assert files(master.path) == {"health/part-3-0.parquet": b"mine"}


def test_of_parts_that_came_long_ago_no_checksum_is_kept(master, spool):
    inbox = PartReceiver(master)
    for n, data in spool.items():
        given_to(inbox, pieces(data, f"part-3-{n}.parquet"))

    states = [
        inbox.take(WORKER, pieces(spool[n], f"part-3-{n}.parquet")[0])["state"] for n in (0, 1, 2)
    ]

    assert states == ["refused", "refused", "done"]
    assert inbox.rows[WORKER]["health"] == 3 * len(spool)


# --- what is not ------------------------------------------------------------------------------------------------


HOSTILE = {
    "not a table": lambda _: [1, 2],
    "nothing": lambda _: {},
    "another table": lambda m: m | {"table": "target"},
    "a table that is a path": lambda m: m | {"table": "health/../requests"},
    "a table that cannot be a key": lambda m: m | {"table": ["health"]},
    "another worker's name": lambda m: m | {"name": "part-4-0.parquet"},
    "a number that is not written so": lambda m: m | {"name": "part-3-00.parquet"},
    "a worker that is not written so": lambda m: m | {"name": "part-03-0.parquet"},
    "a minus": lambda m: m | {"name": "part-3--1.parquet"},
    "digits of another script": lambda m: m | {"name": "part-3-٣.parquet"},
    "a folded part": lambda m: m | {"name": "part-3-all.parquet"},
    "another ending": lambda m: m | {"name": "part-3-0.tmp"},
    "a line more": lambda m: m | {"name": "part-3-0.parquet\n"},
    "a NUL": lambda m: m | {"name": "part-3-0.parquet\0"},
    "a path upwards": lambda m: m | {"name": "../../../part-3-0.parquet"},
    "a path from the root": lambda m: m | {"name": "/part-3-0.parquet"},
    "a path in the number": lambda m: m | {"name": "part-3-0/../../../x.parquet"},
    "a name of bytes": lambda m: m | {"name": b"part-3-0.parquet"},
    "a long name": lambda m: m | {"name": "part-3-" + "1" * 5000 + ".parquet"},
    "no size": lambda m: {k: v for k, v in m.items() if k != "size"},
    "a size of nothing": lambda m: m | {"size": 0},
    "a size below nothing": lambda m: m | {"size": -1},
    "a size beyond the limit": lambda m: m | {"size": parquet.LARGEST + 1},
    "a size without end": lambda m: m | {"size": 2**80},
    "a size with a fraction": lambda m: m | {"size": float(m["size"])},
    "a size of truth": lambda m: m | {"size": True},
    "a size in text": lambda m: m | {"size": str(m["size"])},
    "a checksum of another kind": lambda m: m | {"sha256": "0" * 32},
    "a checksum in capitals": lambda m: m | {"sha256": m["sha256"].upper()},
    "a checksum of bytes": lambda m: m | {"sha256": bytes(64)},
    "an offset below nothing": lambda m: m | {"offset": -1},
    "an offset of truth": lambda m: m | {"offset": False},
    "an offset beyond the part": lambda m: m | {"offset": m["size"]},
    "no bytes": lambda m: m | {"bytes": b""},
    "bytes as text": lambda m: m | {"bytes": "x" * 10},
    "bytes as a list": lambda m: m | {"bytes": [1, 2, 3]},
    "more bytes than the part has": lambda m: m | {"bytes": m["bytes"] + b"x"},
    "more bytes than a piece may have": lambda m: (
        m | {"size": PIECE + 1, "bytes": bytes(PIECE + 1)}
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_piece_that_is_not_what_it_must_be_is_refused_and_leaves_nothing(
    case, master, spool, tmp_path
):
    [message] = pieces(spool[0])
    inbox = PartReceiver(master)

    answer = inbox.take(WORKER, HOSTILE[case](message))

    assert answer["state"] == "refused"
    assert ": expected " in answer["why"] or answer["why"] in {
        "a piece must be a table of keys", "bytes: more than the part's size",
    }  # fmt: skip
    assert len(answer["why"]) < 120
    assert files(tmp_path) == {}
    assert inbox.rows == {}


def test_a_refusal_names_the_part_where_it_has_a_name(master, spool):
    """So that an honest worker hears that its part is too large, and goes on with the next."""
    [message] = pieces(spool[0])

    answer = PartReceiver(master).take(WORKER, message | {"size": parquet.LARGEST + 1})

    assert (answer["table"], answer["name"], answer["state"]) == (
        "health",
        "part-3-0.parquet",
        "refused",
    )
    assert answer["why"] == "size: expected 1 to 268,435,456 bytes"


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = ("table", "name", "size", "sha256", "offset", "bytes")


@given(
    swaps=st.lists(
        st.dictionaries(
            st.sampled_from(KEYS), junk | st.sampled_from([0, 1, b"x", "health"]), max_size=3
        ),
        max_size=6,
    ),
    other=junk,
)
def test_whatever_comes_is_answered_and_only_whole_parts_are_left(spool, swaps, other):
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "one")
        folder.create()
        inbox = PartReceiver(folder)
        honest = pieces(spool[0], size=2000)
        mixed = [message | swap for swap in swaps for message in honest]

        answers = given_to(inbox, [*mixed, other])
        inbox.fold(WORKER)

        assert {a["state"] for a in answers} <= {"more", "done", "refused"}
        assert set(files(Path(path)).values()) <= {spool[0]}
        assert all(name.startswith("one/health/part-3-") for name in files(Path(path)))


def test_one_that_changes_its_mind_in_mid_part_is_refused(master, spool):
    inbox, messages = PartReceiver(master), pieces(spool[0], size=3000)
    inbox.take(WORKER, messages[0])

    answer = inbox.take(WORKER, messages[1] | {"size": len(spool[0]) + 1})

    assert answer["why"] == "size or checksum differs from the piece before"
    assert files(master.path) == {}
    states = [a["state"] for a in given_to(inbox, messages)]  # and may begin anew
    assert states == ["more"] * (len(messages) - 1) + ["done"]


def test_damage_on_the_way_is_seen_by_the_checksum(master, spool):
    messages = pieces(spool[0], size=3000)
    messages[1]["bytes"] = bytes(3000)

    answer = given_to(PartReceiver(master), messages)[-1]

    assert (answer["state"], answer["why"]) == (
        "refused",
        "the checksum of the received bytes is wrong",
    )
    assert files(master.path) == {}


def test_begun_parts_of_a_worker_are_few_and_those_of_another_are_not_touched(master, spool):
    inbox = PartReceiver(master)
    first = pieces(spool[0], "part-4-0.parquet", size=3000)
    inbox.take(4, first[0])
    for n in range(50):
        inbox.take(WORKER, pieces(spool[0], f"part-3-{n}.parquet", size=3000)[0])

    names = sorted(files(master.path))

    assert names == sorted(
        [f"health/part-3-{n}.tmp" for n in range(50 - OPEN, 50)] + ["health/part-4-0.tmp"]
    )
    assert given_to(inbox, first[1:], 4)[-1]["state"] == "done"


def test_what_an_earlier_attempt_left_is_written_over(master, spool):
    (master.path / "health/part-3-0.tmp").write_bytes(b"x" * 9000)

    assert given_to(PartReceiver(master), pieces(spool[0], size=3000))[-1]["state"] == "done"
    assert files(master.path) == {"health/part-3-0.parquet": spool[0]}


def test_the_page_on_the_data_says_what_the_limits_are(checkout):
    page = (checkout / "docs/reference/data-format.md").read_text(encoding="utf-8")

    expected = (
        f"pieces of at most {PIECE // 1024} KiB, of which at most {part_sender.WINDOW} are unacknowledged",
        f"After {part_sender.SILENCE_NS / 1e9:.0f} s without progress", f"with {part_sender._PROBE // 1024} KiB.",
        f"of at most {parquet.LARGEST // 2**20} MiB", f"keeps {part_receiver.RESERVE // 1_000_000} MB of its disk free",
    )  # fmt: skip
    assert [text for text in expected if text not in page] == []
