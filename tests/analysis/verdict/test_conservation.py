"""Nothing that was scheduled may vanish."""

import pytest
from run_folders.run_data import edited_run

from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.verdict.conservation import conservation


def test_a_sound_run_adds_up(write):
    c = conservation(
        load([write(n=100, ended={5: "client_drop", 6: "timeout", 99: "censored"}, not_reached=7)])
    )

    assert (c.scheduled, c.dispatched, c.client_drop, c.not_reached, c.lost) == (107, 99, 1, 7, 0)
    assert (c.ended, c.censored) == ({"ok": 97, "timeout": 1}, 1)
    assert (c.duplicates, c.missing_rows, c.broken) == (0, 0, ())


@pytest.mark.parametrize("has_record", [True, False])
def test_rows_that_no_part_holds_are_counted(write, has_record):
    folder = write(n=100, offsets_ns=(0,))
    (folder / "chunks" / "part-0-1.parquet").unlink()
    if not has_record:
        (folder / "run.json").unlink()
        (folder / "workers" / "0.json").unlink()
    c = conservation(load([folder]))

    assert c.missing_rows == 1000
    assert c.scheduled == (100 if has_record else None)
    text = "worker 0 wrote 2,000 rows of chunks, its parts have 1,000"
    assert (text in c.broken) == has_record


def test_duplicates_are_counted(write, synthetic):
    folder = write(n=100, offsets_ns=(0,))
    columns, _ = synthetic.rows_of(synthetic.Spec(n=100, offsets_ns=(0,)))["requests"]
    synthetic.write_part(folder, "requests", "part-0-5", columns, range(10), synthetic.START_AT_NS)
    c = conservation(load([folder]))

    assert c.duplicates == 10
    assert any("10 more requests in the rows than were scheduled" in text for text in c.broken)


def test_the_masters_count_must_equal_the_rows(write):
    folder = write(n=100)
    with edited_run(folder) as run:
        run["conservation"]["ended"]["ok"] = 90

    assert conservation(load([folder])).broken == ("ok: the master counted 90, the rows have 100",)


def test_preflight_is_outside(write, synthetic):
    folder = write(n=100, offsets_ns=(0,))
    columns, _ = synthetic.rows_of(synthetic.Spec(n=1, offsets_ns=(0,)))["requests"]
    columns = {**columns, "request_id": [-1], "stage": ["preflight"]}
    synthetic.write_part(folder, "requests", "part-1-0", columns, [0], synthetic.START_AT_NS)

    assert conservation(load([folder])).dispatched == 100
