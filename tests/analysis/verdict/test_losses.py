"""Nothing lost in silence: which worker, which seconds, how many requests, and what was found after all."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from analysis.reading.damages import JUNK
from run_folders.run_data import edited_run

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.reading.run_record import entries
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import exit_code, result
from tailgauge_analysis.verdict import losses
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.conservation import Conservation, conservation
from tailgauge_analysis.verdict.verdict import Reason, reasons, worst

RUN = {
    "n": 240,
    "rate_per_s": 12,
    "parts": 4,
    "chunks": 2,
    "offsets_ns": (0, -5_000_000_000, 7_000_000_000),
}


@pytest.fixture(scope="module")
def written(synthetic, tmp_path_factory):
    """A run of three workers, each with four parts a table; written once, for it takes longer than to read it."""
    return synthetic.write(tmp_path_factory.mktemp("written") / "run", **RUN)


@pytest.fixture
def whole(written, tmp_path):
    """A copy of it."""
    return shutil.copytree(written, tmp_path / "run")


@pytest.fixture
def lost(whole, losing, tmp_path):
    """Worker 1 was lost at 9 s, its last two parts of four lie in its worker_dir folder: `master_dir, worker_dir, (n, from, to)`."""
    worker_dir = tmp_path / "worker_dir"
    return lambda **how: (whole, worker_dir, losing.lose(whole, 1, (2, 3), worker_dir, **how))


@dataclass
class Judged:
    """What the checks that look at losses see."""

    frames: Frames
    conservation: Conservation
    reasons: list[Reason]

    @property
    def explanations(self):
        return list(losses.explanations(self.conservation.workers))


ASKED = {"finished", "parts", "lost", "written", "conservation", "unique", "unsent"}


def judged(*folders):
    """Verdict, failed checks and evidence, by these checks alone: the others cost a second each time."""
    frames = load(folders)
    found = Judged(frames, conservation(frames), [])
    found.reasons = reasons([check for check in CHECKS if check.name in ASKED], found)
    return worst(found.reasons), [reason.check for reason in found.reasons], found


def books(c):
    assert c.scheduled == c.dispatched + c.client_drop + c.not_reached + c.lost
    return c.lost, c.found, c.not_reached


def test_a_lost_worker_is_named_with_its_seconds(lost):
    master_dir, _, (n, since, until) = lost()
    word, checks, found = judged(master_dir)

    assert (word, checks) == (INVALID, ["lost"])
    assert n == 40
    assert found.reasons[0].text == (
        f"Missing: worker 1 was lost at 9 s; 40 requests due between {since:.1f} and {until:.1f} s have no row."
    )
    assert "tailgauge report RUN_DIR WORKER_DIR" in found.reasons[0].advice
    assert books(found.conservation) == (40, 0, 0)


def test_what_its_own_folder_has_is_found_and_nothing_is_broken_by_it(lost):
    master_dir, worker_dir, _ = lost()
    for folders in ((master_dir, worker_dir), (worker_dir, master_dir)):
        word, checks, found = judged(*folders)
        c = found.conservation

        assert books(c) == (0, 40, 0)
        assert (c.broken, c.duplicates, c.missing_rows) == ((), 0, 0)
        assert (word, checks) == (
            DEGRADED,
            ["lost"],
        )  # it was killed: it never by_check that this is all
        assert "Worker 1 was lost without a final report" in found.reasons[0].text


def test_what_is_in_neither_folder_stays_lost(lost):
    master_dir, worker_dir, _ = lost()
    (worker_dir / "requests" / "part-1-3.parquet").unlink()
    word, _, found = judged(master_dir, worker_dir)

    assert word == INVALID
    assert books(found.conservation) == (20, 20, 0)
    assert "20 requests due" in found.reasons[0].text
    assert "have no row (20 more are in the worker's folder)" in found.reasons[0].text
    assert found.reasons[0].advice.startswith("See the worker's log")
    assert [m.requests for m in found.conservation.workers[1].missing] == [20]


def test_a_lost_worker_that_ended_by_itself_is_believed(lost):
    master_dir, worker_dir, _ = lost(ended=True)
    word, checks, found = judged(master_dir, worker_dir)

    assert (word, checks) == (VALID, [])
    assert books(found.conservation) == (0, 40, 0)
    assert found.explanations == [
        "worker 1 lost the master and ended by itself; all its rows are here"
    ]


def test_what_such_a_worker_held_and_did_not_send_is_not_reached(lost):
    master_dir, worker_dir, _ = lost(ended=True)
    for table in ("requests", "attempts", "chunks"):
        (worker_dir / table / "part-1-3.parquet").unlink()
    record = json.loads((worker_dir / "workers" / "1.json").read_text())
    record["rows"] |= {"requests": 60, "attempts": 60, "chunks": 120}
    record["counts"] |= {"dispatched": 60, "not_reached": 20}
    (worker_dir / "workers" / "1.json").write_text(json.dumps(record))
    word, checks, found = judged(master_dir, worker_dir)

    assert books(found.conservation) == (0, 20, 20)
    assert (word, checks) == (INVALID, ["unsent"])
    assert "20 requests (8.3% of scheduled) were never sent" in found.reasons[0].text
    assert "Worker 1 held 20 requests due between" in found.reasons[0].text


def test_the_rest_of_a_worker_that_says_it_wrote_more_is_lost(lost):
    master_dir, worker_dir, _ = lost(ended=True)
    (worker_dir / "requests" / "part-1-3.parquet").unlink()
    word, _, found = judged(master_dir, worker_dir)

    assert word == INVALID
    assert found.conservation.lost == 20
    assert "worker 1 wrote 80 rows of requests, its parts have 60" in found.conservation.broken


def test_rows_that_came_after_run_json_was_closed_count_too(lost):
    """A frozen worker that shares the master's folder wakes up after the end."""
    master_dir, worker_dir, _ = lost()
    for part in worker_dir.glob("*/*.parquet"):
        part.rename(master_dir / part.relative_to(worker_dir))
    found = judged(master_dir)[2]

    assert books(found.conservation) == (0, 40, 0)
    assert found.conservation.broken == ()


@pytest.mark.slow
def test_every_page_says_what_is_missing_and_what_was_found(lost):
    master_dir, worker_dir, _ = lost()
    (worker_dir / "requests" / "part-1-3.parquet").unlink()
    found = Run([master_dir, worker_dir])
    made = build(found)
    data = made.data
    texts = html(made), markdown(made), terminal(made, Path("report.html"), 80)

    assert (found.verdict, int(exit_code(found, result(found)))) == (INVALID, 3)
    worker = data["environment"]["workers"][1]
    assert (worker["state"], worker["missing_requests"], worker["found"]) == ("lost", 20, 20)
    assert data["conservation"]["missing"] == [{"worker": 1, **worker["missing"][0]}]
    assert all(
        "20 requests counted as lost by the master were found in the other folders given" in t
        for t in texts[:2]
    )
    assert "20 requests due between" in " ".join(texts[2].split())
    assert "silent from 00:09" in texts[0]
    assert "lost; silent from 00:09" in texts[1]


def change_worker(folder, number, **values):
    """Change an entry of run.json's workers."""
    with edited_run(folder) as run:
        run["workers"][number] |= values


def test_a_silence_with_nothing_missing_and_a_late_joiner_are_explanations(whole):
    folder = whole
    change_worker(folder, 1, silent=[{"from_s": 4.2, "to_s": 14.4}], missing=[])
    change_worker(folder, 2, late_s=6.0)
    word, checks, found = judged(folder)

    assert (word, checks) == (VALID, [])
    assert found.explanations == [
        "worker 1 was silent from 00:04 to 00:14 (10.2 s); none of its requests is missing",
        "worker 2 joined at 00:06 and got a share of the load from then on",
    ]
    assert [losses.notes(one) for one in found.conservation.workers] == [
        [],
        ["silent from 00:04 to 00:14"],
        ["joined at 00:06"],
    ]


def test_rows_that_could_not_be_written_are_counted_and_make_a_run_invalid(whole):
    """The worker counted what it did; its disk took less."""
    folder = whole
    for table in ("requests", "chunks"):
        (folder / table / "part-1-3.parquet").unlink()
    unwritten = {"requests": 20, "chunks": 40}
    rows = {"requests": 60, "attempts": 80, "chunks": 120}
    change_worker(folder, 1, state="failed", why="disk full", rows=rows, unwritten=unwritten)
    word, checks, found = judged(folder)

    assert word == INVALID
    assert {"lost", "written"} <= set(checks)
    assert "conservation" not in checks
    by_check = {reason.check: reason.text for reason in found.reasons}
    assert by_check["written"] == (
        "Rows recorded by worker 1 could not be written: 40 of chunks and 20 of requests (disk full)."
    )
    assert by_check["lost"].startswith(
        "Missing: worker 1 (disk full) did not finish; 20 requests have no row"
    )
    assert found.conservation.unwritten == unwritten


def test_many_lost_workers_are_named_in_one_sentence(write):
    folder = write(n=60, rate_per_s=12, chunks=1, parts=1, offsets_ns=(0,) * 6)
    for number in range(1, 6):
        span = {"from_s": 5.0, "to_s": 5.0, "requests": number}
        change_worker(folder, number, state="lost", leased=10 + number, missing=[span])
        (folder / "workers" / f"{number}.json").unlink()
    text = judged(folder)[2].reasons[0].text

    assert "worker 5 was lost at 5 s; 5 requests due at 5.0 s have no row. Worker 4 was" in text
    assert text.endswith("2 more workers left 3 requests without a row.")


# --- a run whose master died ---------------------------------------------------------------------------------------


def test_worker_folders_alone_make_one_report(whole, losing, tmp_path):
    folders = losing.orphan(whole, tmp_path / "apart")
    word, checks, found = judged(*folders)

    assert (word, checks) == (DEGRADED, ["finished"])
    assert "rebuilt from the records of 3 workers (0, 1 and 2)" in found.reasons[0].text
    assert "requests that were not leased to them are unknown" in found.reasons[0].text
    assert books(found.conservation) == (0, 0, 0)
    assert found.conservation.broken == ()


def test_a_killed_worker_is_taken_at_its_last_second_of_health(whole, losing, tmp_path):
    """Its record is of its start, and counts nothing; the master is dead as well."""
    folders = losing.orphan(whole, tmp_path / "apart")
    for part in folders[1].glob("*/part-1-3.parquet"):
        part.unlink()
    record = folders[1] / "workers" / "1.json"
    early = {"state": "running", "counts": {"leased": 0}, "rows": {"requests": 1}}
    record.write_text(json.dumps(json.loads(record.read_text()) | early))
    word, checks, found = judged(*folders)
    c = found.conservation

    assert (word, checks) == (INVALID, ["lost", "finished"])
    assert c.broken == ()
    assert books(c) == (20, 0, 0)
    assert found.reasons[0].text.startswith(
        "Missing: worker 1 left no final report; 20 requests have no row."
    )


def test_a_worker_whose_folder_is_not_given_is_named(whole, losing, tmp_path):
    first, _, third = losing.orphan(whole, tmp_path / "apart")
    word, checks, found = judged(first, third)

    assert (word, checks) == (INVALID, ["lost", "finished"])
    assert "worker 1 has neither a record nor rows here" in found.reasons[0].text
    assert "80 scheduled requests have no row" in found.reasons[0].text
    assert "WORKER_DIR" in found.reasons[0].advice


def test_a_dead_master_s_plan_still_says_how_many_there_were(whole, losing, tmp_path):
    """run.json says running for ever; what was never handed out is not reached."""
    master_dir = whole
    with edited_run(master_dir) as run:
        run.update({"state": "running", "conservation": {"scheduled": 300}})
    folders = losing.orphan(master_dir, tmp_path / "apart")
    for part in master_dir.glob("*/*.parquet"):
        part.unlink()
    for record in master_dir.glob("workers/*"):
        record.unlink()
    word, checks, found = judged(master_dir, *folders)

    assert (word, checks) == (DEGRADED, ["finished"])
    assert books(found.conservation) == (0, 0, 60)
    assert "The master died before its workers ended" in found.reasons[0].text
    assert "60 requests were not reached" in found.reasons[0].text


# --- what is by_check of a worker -------------------------------------------------------------------------------------


def test_no_type_in_an_entry_is_a_traceback():
    for shift in range(len(JUNK)):
        junk = JUNK[shift:] + JUNK[:shift]
        span = {"from_s": junk[0], "to_s": junk[1], "requests": junk[2]}
        entry = {
            "worker": 3, "missing": [span, junk[3]], "silent": junk[4], "late_s": junk[5], "unwritten": junk[6], "clock": junk[7],
            "state": junk[8], "counts": junk[9], "rows": junk[10], "leased": junk[11], "host": junk[12],
        }  # fmt: skip
        for ended in (True, False):
            (one,) = [
                w
                for w in entries([entry], [entry | {"state": "drained"}], master_ended=ended)
                if w["worker"] == 3
            ]
            assert all(s.requests >= 0 and s.from_s >= 0 for s in one["missing"])
            assert all(n > 0 for n in one["unwritten"].values())
            assert one["late_s"] is None or one["late_s"] >= 0


def test_an_older_run_says_nothing_of_losses():
    (one,) = entries([{"worker": 0, "state": "drained"}], [], master_ended=True)

    assert [one[key] for key in ("missing", "silent", "late_s", "unwritten")] == [[], [], None, {}]


def test_a_stretch_may_have_no_end_but_must_be_in_order():
    spans = [
        {"from_s": 3, "to_s": None},
        {"from_s": 3, "to_s": 2},
        {"from_s": 3},
        {"from_s": 1, "to_s": 2.5},
    ]
    spans.append({"from_s": 10**400, "to_s": None})
    (one,) = entries([{"worker": 0, "silent": spans}], [], master_ended=True)

    assert [(s.from_s, s.to_s) for s in one["silent"]] == [(3.0, None), (1.0, 2.5)]


def test_a_worker_s_last_words_come_before_its_first():
    first, last = (
        {"worker": 1, "state": "running", "rows": {"requests": 1}},
        {"worker": 1, "state": "failed", "rows": {"requests": 9}},
    )
    for worker_dir in ([first, last], [last, first]):
        (one,) = [w for w in entries([], worker_dir, master_ended=False) if w["worker"] == 1]
        assert (one["recorded_state"], one["rows"]) == ("failed", {"requests": 9})
