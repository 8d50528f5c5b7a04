"""A process that grows does not hold, one that does not does, and a folder without the run's last word is no soak."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def watched(grows_mib, grows_files):
    import soak

    at = [2.0 * n for n in range(200)]
    return soak.Watched(
        None,
        at,
        [100 + grows_mib * n / 100 for n in range(200)],
        [40 + grows_files * n // 100 for n in range(200)],
    )


@pytest.mark.parametrize(
    ("mib", "files", "holds"),
    [
        (0.0, 0, [True, True]),
        (2.0, 1, [True, True]),
        (4.0, 0, [False, True]),
        (0.0, 5, [True, False]),
    ],
    ids=["flat", "within the bounds", "memory grows", "open files grow"],
)
def test_growth_of_a_process_is_held_to_its_bounds(mib, files, holds):
    import soak

    assert [row.holds for row in soak._of_process("worker 0", watched(mib, files))] == holds


@pytest.fixture
def folder(tmp_path):
    """A run of a minute as two workers leave it."""
    run = tmp_path / "runs" / "one"
    counts = {"scheduled": 3000, "ended": {"ok": 3000}}
    for table in ("requests", "attempts", "chunks", "health"):
        (run / table).mkdir(parents=True)
        for worker in range(2):
            lags = {
                name: [100_000] * 60
                for name in ("receive_lag_p50_ns", "receive_lag_p99_ns", "dispatch_late_p99_ns")
            }
            rows = (
                {**lags, "queued_rows": [4000] * 60} if table == "health" else {"x": [0] * 60_000}
            )
            pq.write_table(pa.table(rows), run / table / f"part-{worker}-all.parquet")
    (run / "run.json").write_text(
        json.dumps({"conservation": counts, "scenario": {"stages": {"duration_s": 60.0}}})
    )
    (tmp_path / "report.html").touch()
    return tmp_path


def made(folder, verdict="VALID", code=0):
    return {"verdict": verdict, "exit_code": code, "report": {"html": str(folder / "report.html")}}


def broken(rows):
    return [row.what for row in rows if not row.holds]


def test_a_steady_run_holds_in_every_row(folder):
    import soak

    assert broken(soak._of_run(folder, made(folder), youngest=4.0)) == []


def test_what_is_wrong_with_a_run_is_named(folder):
    import soak

    (folder / "runs" / "one" / "chunks" / "part-0-7.parquet").write_bytes(
        (folder / "runs" / "one" / "chunks" / "part-0-all.parquet").read_bytes()
    )
    facts = {
        "conservation": {"scheduled": 3000, "ended": {"ok": 2999}},
        "scenario": {"stages": {"duration_s": 60.0}},
    }
    (folder / "runs" / "one" / "run.json").write_text(json.dumps(facts))

    rows = soak._of_run(folder, made(folder, "INVALID", 3), youngest=30.0)

    assert broken(rows) == ["age of the last part, at most", "parts in the end, and the largest", "requests", "chunks per second", "report"]  # fmt: skip
